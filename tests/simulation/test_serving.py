"""Routing, order and admission: small cases by hand that tell the rules apart, and what must hold of each."""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from closed_cases import BY_LENGTH, case_of, instance_of
from hypothesis import given, settings
from simulation_cases import SimulationCase, simulation_cases

from coralopt import CoraloptError, Plan
from coralopt.plan import PlannedStage
from coralopt.routing import ROUTINGS
from coralopt.runtime import VllmEngine, lower
from coralopt.simulation import SimulationConfig, simulate
from coralopt.simulation.layout import Draughtsman
from coralopt.simulation.state import ADMISSIONS, DECODE, FINISHED, MIXED, ORDERS, PREFILL, REJECTED
from coralopt.simulation.times import TimeTables
from coralopt.types import Floats, Ints
from coralopt.workload import poisson_for_scenario


def _heavy(seed: int, load: float, instances: int, count: int = 20_000) -> tuple[Floats, Ints]:
    """Poisson arrivals of prompts with lengths of cv 1.3 at a load of so many instances that take 1 ms a token."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(np.rint(rng.lognormal(2.5, 1.0, count)), 1, 190).astype(np.int64)
    return np.cumsum(rng.exponential(lengths.mean() / 1e3 / (load * instances), count)), lengths


@pytest.mark.parametrize(
    ("routing", "instances"), [("weighted-round-robin", [0, 1, 0, 1]), ("least-work", [0, 1, 1, 1])]
)
def test_a_long_prompt_is_avoided_by_least_work(routing: str, instances: list[int]) -> None:
    """One of 100 tokens and three of 10: round robin puts a short one behind the long one, least work none."""
    case = case_of(
        [instance_of(PREFILL)] * 2, np.arange(4) * 0.001, np.array([100, 10, 10, 10]), times=BY_LENGTH, routing=routing
    )
    assert case.simulate().state.requests["prefill_instance"].tolist() == instances


def test_least_work_counts_planned_rates() -> None:
    """An instance planned for three times the rate is given the first three of four equal prompts at once."""
    slow, fast = instance_of(PREFILL), replace(instance_of(PREFILL), weight=3.0)
    case = case_of([slow, fast], np.zeros(4), routing="least-work")
    # Rates with the prompt: 10 against 10/3, 20/3, 10 (a tie goes to the first), then 20/1 against 30/3.
    assert case.simulate().state.requests["prefill_instance"].tolist() == [1, 1, 0, 1]


def test_least_work_counts_caches_and_answers_where_answers_are_made() -> None:
    """At a mixed instance prompts count until their first token, sequences an eighth of their prompts and 128 till the end.

    All at once: 240.5 for the first, 129.125 for each of the others; two of them together are more than the first.
    """
    case = case_of([instance_of(MIXED, batch=9)] * 2, np.zeros(4), np.array([100, 1, 1, 1]), routing="least-work")
    for blueprint in case.blueprints:
        blueprint.nodes["chunk"] = 2048
    assert case.simulate().state.requests["prefill_instance"].tolist() == [0, 1, 1, 0]


def test_two_choices_are_drawn_by_planned_rate() -> None:
    """Of two instances both are drawn, so the choice is that of least work but for ties; rates decide who is drawn."""
    arrival, lengths = _heavy(1, 0.7, 2)
    both = [
        case_of([instance_of(PREFILL)] * 2, arrival, lengths, times=BY_LENGTH, routing=routing)
        .simulate()
        .state.requests
        for routing in ("least-work", "power-of-two")
    ]
    waits = [(requests["first_token"] - requests["arrival"]).mean() for requests in both]
    assert waits[0] == pytest.approx(waits[1], rel=0.01)
    rates = [replace(instance_of(PREFILL, batch=10**6), weight=weight) for weight in (1.0, 1.0, 98.0)]
    idle = case_of(rates, np.arange(5000) * 1.0, routing="power-of-two").simulate().state.requests
    share = np.bincount(idle["prefill_instance"], minlength=3) / 5000
    # An idle instance of 98 times the rate wins whenever it is drawn: always but for 1 in 5,000.
    assert share[2] > 0.99


@pytest.mark.parametrize("instances", [2, 4])
def test_queue_aware_routing_waits_less(instances: int) -> None:
    """Equal instances, heavy lengths, load 0.8: round robin waits longest, then two choices, then least work."""
    arrival, lengths = _heavy(2, 0.8, instances)
    waits = []
    for routing in ("weighted-round-robin", "power-of-two", "least-work"):
        case = case_of([instance_of(PREFILL)] * instances, arrival, lengths, times=BY_LENGTH, routing=routing)
        requests = case.simulate().state.requests
        waits.append((requests["first_token"] - requests["arrival"] - lengths / 1e3).mean())
    assert waits[0] > 1.5 * waits[1]
    assert waits[1] > (0.99 if instances == 2 else 1.2) * waits[2]


@pytest.mark.parametrize(
    ("order", "slo_s", "first_tokens"),
    [
        ("fifo", 0.1, [0.050, 0.150, 0.160]),
        ("shortest-first", 0.1, [0.050, 0.160, 0.060]),
        # At 50 ms a prompt of 100 ms cannot be done within 100 ms of its arrival; within 200 ms it can.
        ("hopeless-last", 0.1, [0.050, 0.160, 0.060]),
        ("hopeless-last", 0.2, [0.050, 0.150, 0.160]),
    ],
)
def test_which_prompt_is_next(order: str, slo_s: float, first_tokens: list[float]) -> None:
    """While one of 50 tokens is at work, one of 100 and then one of 10 tokens arrive."""
    blueprint = instance_of(PREFILL)
    blueprint.nodes["limit"] = 1
    case = case_of([blueprint], np.array([0.0, 0.001, 0.002]), np.array([50, 100, 10]), times=BY_LENGTH, order=order)
    requests = replace(case, slo_s=slo_s).simulate().state.requests
    assert requests["first_token"] == pytest.approx(first_tokens)


def test_an_order_changes_who_waits_not_how_much_is_done() -> None:
    """One server of prompts one by one: every order is busy for as long and ends at the same time."""
    arrival, lengths = _heavy(3, 1.1, 1, 3000)
    met, ends = {}, []
    for order in ORDERS:
        blueprint = instance_of(PREFILL)
        blueprint.nodes["limit"] = 1
        case = replace(case_of([blueprint], arrival, lengths, times=BY_LENGTH, order=order), slo_s=0.2)
        state = case.simulate().state
        met[order] = (state.requests["first_token"] - arrival <= 0.2).mean()
        ends.append((state.requests["first_token"].max(), state.nodes["busy_s"][0]))
    assert np.allclose(ends, ends[0], rtol=1e-9)
    # Overload: first come, first served serves nearly everyone too late.
    assert met["fifo"] < 0.5
    assert met["hopeless-last"] > met["fifo"] + 0.3
    assert met["shortest-first"] > met["fifo"] + 0.3


@pytest.mark.parametrize(("admission", "finish"), [("reserve", [0.300, 0.600]), ("preempt", [0.300, 0.540])])
def test_memory_that_runs_out(admission: str, finish: list[float]) -> None:
    """Two sequences of 10 + 30 tokens and room for 48: one after the other, or together until 32 tokens are full.

    Preempted after six tokens, at 60 ms, the second waits for the first to end and computes 16 tokens again in the step
    that makes its seventh.
    """
    blueprint = instance_of(MIXED, batch=2, capacity=48)
    blueprint.nodes["chunk"] = 250
    state = case_of([blueprint], np.zeros(2), outputs=30, admission=admission).simulate().state
    assert state.requests["finish"] == pytest.approx(finish)
    assert state.requests["preempted"].tolist() == [0, int(admission == "preempt")]
    assert state.nodes["prompt_tokens"][0] == (20 if admission == "reserve" else 36)
    if admission == "preempt":
        # From 60 ms on, until the pass that ends at 310 ms.
        assert state.requests["away"][1] == pytest.approx(0.250)


def test_a_decode_instance_computes_again_what_it_preempted() -> None:
    """Its own nodes pass through prompt and answer so far; nothing is sent a second time."""
    decode = instance_of(DECODE, batch=2, capacity=48)
    decode.nodes["chunk"] = 250
    config = SimulationConfig(kv_latency_ms=0.0, kv_contention=False)
    ends = [instance_of(PREFILL, batch=2), decode]
    state = case_of(ends, np.zeros(2), outputs=30, config=config, admission="preempt").simulate().state
    assert state.requests["finish"] == pytest.approx([0.300, 0.540])
    assert state.nodes["prompt_tokens"].tolist() == [20, 16]
    assert state.nodes["peak"][1] <= 48


@pytest.mark.parametrize(("tokens", "first_tokens"), [(0, [0.100, 0.100, 0.100]), (60, [0.060, 0.100, 0.100])])
def test_a_step_of_prompts_has_so_many_tokens(tokens: int, first_tokens: list[float]) -> None:
    """Three prompts at once where a micro-batch may hold all: in one step of 100 tokens; or 50 + 10 of 60, then 20 + 20."""
    blueprint = instance_of(PREFILL, batch=3)
    blueprint.nodes["chunk"] = tokens
    case = case_of([blueprint], np.zeros(3), np.array([50, 30, 20]), times=BY_LENGTH)
    requests = case.simulate().state.requests
    assert requests["first_token"] == pytest.approx(first_tokens)
    assert [r.times["first_token"] for r in case.reference().requests] == requests["first_token"].tolist()


@pytest.mark.parametrize(
    ("admission", "batches", "limits"), [("reserve", [4, 16], [26, 32]), ("preempt", [13, 16], [26, 32])]
)
def test_an_engine_limits_sequences_and_not_stages(
    tiny_plan: Plan, admission: str, batches: list[int], limits: list[int]
) -> None:
    """Stages planned for 4 sequences at 400/s and 16 at 500/s: while the second does 16 in 32 ms, the first must do 13."""
    whole = next(item for item in tiny_plan.instances if item.phase == "decode")
    node, layers = whole.stages[0].nodes[0], sum(stage.layers for stage in whole.stages)
    stages = tuple(
        PlannedStage(
            first_layer=first,
            last_layer=last,
            nodes=(node.model_copy(update={"batch": batch, "tokens_s": tokens_s, "count": 1}),),
            tokens_s=tokens_s,
        )
        for first, last, batch, tokens_s in ((0, layers // 2, 4, 400.0), (layers // 2 + 1, layers - 1, 16, 500.0))
    )
    config = SimulationConfig(admission=admission)  # type: ignore[arg-type]
    drawn = Draughtsman(tiny_plan.resolved, TimeTables(2**12), config).draw(whole.model_copy(update={"stages": stages}))
    assert drawn.nodes["batch"].tolist() == batches
    assert drawn.nodes["limit"].tolist() == limits


@pytest.mark.parametrize("stages", [1, 2])
def test_prefill_has_the_limits_that_an_engine_is_launched_with(tiny_plan: Plan, stages: int) -> None:
    whole = next(item for item in tiny_plan.instances if item.phase == "prefill")
    parts, layers = whole.stages[0].nodes[0], sum(stage.layers for stage in whole.stages)
    node = parts.model_copy(update={"count": 1})
    cut = [layers * k // stages for k in range(stages + 1)]
    instance = whole.model_copy(
        update={
            "stages": tuple(
                PlannedStage(first_layer=first, last_layer=last - 1, nodes=(node,), tokens_s=node.tokens_s)
                for first, last in itertools.pairwise(cut)
            )
        }
    )
    config = SimulationConfig(admission="preempt")
    drawn = Draughtsman(tiny_plan.resolved, TimeTables(2**12), config).draw(instance)
    argv = lower(tiny_plan.model_copy(update={"instances": (instance,)}), VllmEngine(interface="eth0")).nodes[0].argv
    limits = {name: int(argv[argv.index(name) + 1]) for name in ("--max-num-seqs", "--max-num-batched-tokens")}
    assert drawn.nodes["limit"].tolist() == [limits["--max-num-seqs"]] * stages
    assert drawn.nodes["chunk"].tolist() == [limits["--max-num-batched-tokens"]] * stages


def test_all_of_a_first_node_are_preempted_by_another() -> None:
    """Two first nodes before one that is full: the sequence of one takes the memory of the only one of the other.

    At 40 ms the first, of 14 + 2 tokens, needs a block more. The second is preempted where it waits for its next round,
    on a first node with nobody at work any more. It goes back, computes 12 tokens again from 200 ms on, and ends.
    """
    blueprint = instance_of(MIXED, stages=3, batch=2)
    nodes = blueprint.nodes
    nodes["stage"], nodes["capacity"], nodes["chunk"] = [0, 0, 1], [10**9, 10**9, 32], 250
    blueprint = replace(blueprint, stage_sizes=(2, 1), configurations=("c",) * 3, labels=("n",) * 3)
    case = case_of([blueprint], np.zeros(2), np.array([14, 10]), 10, admission="preempt")
    requests = case.simulate().state.requests
    assert requests["preempted"].tolist() == [0, 1]
    assert requests["finish"] == pytest.approx([0.200, 0.360])
    assert [request.times.get("finish") for request in case.reference().requests] == requests["finish"].tolist()


def test_growing_caches_let_more_sequences_in() -> None:
    """Room for three whole answers, or for twenty prompts with a block each: shorter waits, the same tokens."""
    ends = {}
    for admission in ADMISSIONS:
        blueprint = instance_of(MIXED, batch=20, capacity=320)
        blueprint.nodes["chunk"], blueprint.nodes["limit"] = 250, 20
        state = case_of([blueprint], np.zeros(20), outputs=90, admission=admission).simulate().state
        assert (state.requests["generated"] == 90).all()
        assert state.nodes["peak"][0] <= 320
        ends[admission] = state.requests["finish"].mean()
    assert ends["preempt"] < ends["reserve"]


@settings(max_examples=40, deadline=None)
@given(case=simulation_cases(all_serve=True))
def test_every_request_ends_under_every_rule(case: SimulationCase) -> None:
    """Nothing is lost or stuck; where caches may go anywhere, what is refused depends on no rule."""
    refused = set()
    for routing, order, admission in product(ROUTINGS[:2], ORDERS, ADMISSIONS):
        serving = replace(case.serving, routing=routing, order=order, admission=admission)  # type: ignore[arg-type]
        state = replace(case, serving=serving).simulate().state
        assert np.isin(state.requests["status"], (FINISHED, REJECTED)).all()
        assert (state.nodes["peak"] <= state.nodes["capacity"]).all()
        assert not state.nodes["used"].any()
        assert not state.instances["evicted"].any()
        assert not state.instances["work"].any()
        assert (state.instances["youngest"] == -1).all()
        refused.add((state.requests["status"] == REJECTED).tobytes())
    # Else a request may find its decode instances out of reach of where its prompt was sent.
    assert len(refused) == 1 or case.paths is not None


def test_host_time_is_in_every_step_and_every_request(tiny_plan: Plan) -> None:
    """50 ms more to the first token, and 1 ms more in each of a lone sequence's steps."""
    scenario = tiny_plan.resolved
    trace = poisson_for_scenario(scenario, rate=0.01, duration_s=2000, seed=4, length_cv=0.0)
    trace = trace.take(trace.model == trace.models.index("phi4-14b"))
    document = {**scenario.document, "serving": {"preset": "paper", "host_step_ms": 1.0, "host_request_ms": 50.0}}
    slow = simulate(tiny_plan.model_copy(update={"scenario": document}), trace).requests
    quick = simulate(tiny_plan, trace).requests
    stages = {item.phase: len(item.stages) for item in tiny_plan.instances if item.model == "phi4-14b"}
    for name, more in (("ttft_ms", 50.0 + stages["prefill"]), ("tpot_ms", stages["decode"])):
        assert slow[name] - quick[name] == pytest.approx(np.full(len(trace), more), abs=0.05), name
        assert slow[f"idle_{name}"] - quick[f"idle_{name}"] == pytest.approx(np.full(len(trace), more), abs=0.05)
    assert slow["prefill_wait_ms"] == pytest.approx(np.zeros(len(trace)), abs=1e-9)


def test_plans_of_one_simulation_agree_on_serving(tiny_plan: Plan) -> None:
    """Half a simulation with one router and half with another is nobody's."""
    document = {**tiny_plan.resolved.document, "serving": {"preset": "engine"}}
    other = tiny_plan.model_copy(update={"scenario": document})
    trace = poisson_for_scenario(tiny_plan.resolved, duration_s=20, seed=4)
    with pytest.raises(CoraloptError, match="different engines and routers"):
        simulate([(0.0, tiny_plan), (10.0, other)], trace)
    with pytest.raises(CoraloptError, match="routing is 'random'; give one of weighted-round-robin, least-work"):
        SimulationConfig(routing="random")
