"""Whole simulations of real plans: the planner's promise, epochs, start-up, draining, cost, bad input."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from coralopt import CoraloptError, Plan, plan_scenario, scenario_from_mapping
from coralopt.scenario.facts.serving import PAPER_SERVING
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.simulation import FunctionTimes, SimulationConfig, SimulationResult, simulate
from coralopt.simulation.events import run
from coralopt.simulation.fleet import Fleet, empty_state
from coralopt.simulation.kernels import stage_ms
from coralopt.simulation.layout import common_models, lay_out
from coralopt.simulation.state import DRAINING, GONE, READY, STARTING, requests_of
from coralopt.simulation.times import TimeTables
from coralopt.throughput import build_tables, stage_role, throughput_source
from coralopt.workload import Trace, poisson_for_scenario

#: Links that cost nothing: what is left is what the planner models.
FREE = SimulationConfig(kv_gb_s=1e6, kv_latency_ms=0.0, kv_region_latency_ms=0.0)


def _steady(plan: Plan, model: str, load: float, seconds: float) -> Trace:
    """Evenly spaced requests of mean lengths at ``load`` times what the plan promises for the model."""
    scenario = scenario_from_mapping(plan.scenario, source="plan")
    phase = next(phase for phase in scenario.model_phases if phase.model.name == model)
    lengths = {"prefill": round(phase.mean_input_tokens), "decode": round(phase.mean_output_tokens)}
    lengths["mixed"] = lengths["decode"]
    rate = load * min(item.planned_tokens_s / lengths[item.phase] for item in plan.demands if item.model == model)
    n = int(rate * seconds)
    return Trace(
        np.arange(n) / rate,
        np.full(n, lengths["prefill"]),
        np.full(n, lengths["decode"]),
        np.zeros(n, dtype=np.int32),
        (model,),
    )


@pytest.mark.parametrize("model", ["gpt-oss-20b", "phi4-14b"])
def test_plan_keeps_its_promise_under_mean_load(tiny_plan: Plan, model: str) -> None:
    """At 95 % of what is promised, with mean lengths and free links, every request meets both SLOs."""
    result = simulate(tiny_plan, _steady(tiny_plan, model, 0.95, 200.0), config=FREE)
    assert result.attainment == 1.0
    for row in result.outcomes:
        if row.model == model:
            # What is under way when the window ends is missing.
            assert row.achieved_tokens_s > 0.93 * row.offered_tokens_s


def test_promise_is_not_far_below_what_is_possible(tiny_plan: Plan) -> None:
    """At 1.3 times the promise queues grow without end: the simulator is not kinder than the planner."""
    result = simulate(tiny_plan, _steady(tiny_plan, "phi4-14b", 1.3, 200.0), config=FREE)
    assert result.attainment < 0.5


@pytest.fixture(scope="module")
def mixed_plan(tiny_scenario: ResolvedScenario) -> Plan:
    """The tiny scenario with mixed instances."""
    return plan_scenario(scenario_from_mapping({**tiny_scenario.document, "mode": "mixed"}))


@pytest.mark.parametrize("model", ["gpt-oss-20b", "phi4-14b"])
def test_mixed_plan_keeps_its_promise_under_mean_load(mixed_plan: Plan, model: str) -> None:
    """The engine's own schedule, whole prompts now and then, runs at 95 % of what the mean step promises."""
    result = simulate(mixed_plan, _steady(mixed_plan, model, 0.95, 200.0))
    assert result.attainment == 1.0
    assert simulate(mixed_plan, _steady(mixed_plan, model, 1.3, 200.0)).attainment < 0.6


@pytest.mark.parametrize("mode", ["tiny_plan", "mixed_plan"])
def test_stage_times_are_the_planners(mode: str, request: pytest.FixtureRequest) -> None:
    """The time of the planned micro-batch of every planned node is that of the throughput table."""
    tiny_plan: Plan = request.getfixturevalue(mode)
    tables = TimeTables(5000)
    layout = lay_out(tiny_plan, tables, SimulationConfig())
    names = tuple(phase.model.name for phase in layout.scenario.model_phases)
    state = empty_state(requests_of(*(np.zeros(0),) * 4), len(names), 3, tables, SimulationConfig(), PAPER_SERVING)  # type: ignore[arg-type]
    fleet = Fleet(state, tuple(dict.fromkeys(names)), SimulationConfig())
    fleet.apply(layout, 0.0, at_once=True)
    source = throughput_source(layout.scenario.throughput_source)
    k = 0
    for instance in tiny_plan.instances:
        phase = next(item for item in layout.scenario.model_phases if item.key == instance.key)
        table = build_tables(source, phase, layout.scenario.configurations, layout.scenario.max_nodes)
        for _ in range(instance.count):
            for s, stage in enumerate(instance.stages):
                for node in stage.nodes:
                    c = table.configurations.index(node.configuration)
                    role = stage_role(s, len(instance.stages))
                    expected = table.stage_ms[len(instance.stages) - 1, role, c, stage.layers]
                    for _ in range(node.count):
                        if instance.phase == "prefill":
                            work = (0, 0, node.batch, round(node.batch * phase.mean_input_tokens), 0.0)
                        else:
                            context = phase.mean_input_tokens + phase.mean_output_tokens / 2
                            work = (node.batch, round(node.batch * context), 0, 0, 0.0)
                        ms = stage_ms(fleet.state, k, *work)
                        if instance.phase == "mixed":
                            # Not every step carries prompts here. One that does holds up the others in flight.
                            passes = -(-phase.mean_input_tokens // (2048 - node.batch))
                            share = node.batch * passes / phase.mean_output_tokens
                            assert share < 1
                            share = 1 - (1 - share) ** len(instance.stages)
                            prompt = round(phase.mean_input_tokens / passes)
                            carrying = stage_ms(fleet.state, k, *work[:2], 1, prompt, prompt**2 * (passes - 1) / 2)
                            ms = (1 - share) * ms + share * carrying
                        assert ms == pytest.approx(expected, rel=2e-3)
                        k += 1
    assert k == len(fleet.state.nodes)


def test_kept_machine_code_belongs_to_all_compiled_modules() -> None:
    """Numba alone keeps code whose callees in other files have changed; the stamp must cover every one of them."""
    stamps = [function._cache._cache_file._file._source_stamp[1] for function in (run, stage_ms)]  # type: ignore[attr-defined]
    assert stamps[0] == stamps[1]
    assert len(stamps[0]) == 64


def test_same_seed_same_result_other_seed_other_result(tiny_plan: Plan) -> None:
    """Noise is drawn from the seed alone."""
    scenario = scenario_from_mapping(tiny_plan.scenario, source="plan")
    requests = poisson_for_scenario(scenario, duration_s=60.0, seed=3)

    def ttft(seed: int) -> bytes:
        config = SimulationConfig(seed=seed, noise=0.2)
        return simulate(tiny_plan, requests, config=config).requests["ttft_ms"].tobytes()

    assert ttft(1) == ttft(1)
    assert ttft(1) != ttft(2)


def _doubled(plan: Plan) -> Plan:
    """Every instance twice."""
    return plan.model_copy(
        update={"instances": tuple(i.model_copy(update={"count": 2 * i.count}) for i in plan.instances)}
    )


def _two_epochs(first: Plan, second: Plan, config: SimulationConfig) -> SimulationResult:
    scenario = scenario_from_mapping(first.scenario, source="plan")
    requests = poisson_for_scenario(scenario, duration_s=600.0, seed=1)
    return simulate([(0.0, first), (300.0, second)], requests, config=config, duration_s=600.0)


def test_scale_up_takes_node_start_weights_and_warm_up(tiny_plan: Plan) -> None:
    """New instances serve after start, loading and warm-up, are paid from the start, and then take half the load."""
    config = SimulationConfig(node_start_s=60.0, weight_load_gb_s=2.0, warm_up_s=20.0)
    result = _two_epochs(tiny_plan, _doubled(tiny_plan), config)
    names, started = result.instances["name"], result.instances["started_s"]
    assert sorted(started) == [0.0] * 4 + [300.0] * 4
    for i, name in enumerate(names):
        delay = result.instances["ready_s"][i] - started[i]
        if started[i] == 0:
            assert delay == 0
            continue
        planned = next(item for item in tiny_plan.instances if item.name == name)
        assert 80.0 < delay < 100.0
        assert result.instances["cost_usd"][i] == pytest.approx(planned.price_usd_h * 300 / 3600)
        late = result.requests["arrival_s"] > result.instances["ready_s"][i] + 5
        which = result.requests["prefill_instance" if planned.phase == "prefill" else "decode_instance"][late]
        twin = names.index(name)
        if (which == i).any():
            assert (which == i).sum() == pytest.approx((which == twin).sum(), abs=2)
    assert result.requests["status"].tolist() == [1] * len(result.requests["status"])


@pytest.mark.parametrize("overlap", [True, False])
def test_scale_down_drains(tiny_plan: Plan, overlap: bool) -> None:
    """Half of the instances go: they finish what they hold, end empty, and are paid until then."""
    result = _two_epochs(_doubled(tiny_plan), tiny_plan, SimulationConfig(overlap=overlap))
    gone = result.instances["gone_s"]
    assert np.isfinite(gone).sum() == 4
    assert (gone[np.isfinite(gone)] < 400).all()
    assert (result.instances["inside"] == 0).all()
    assert (result.requests["status"] == 1).all()
    rate = sum(i.price_usd_h * i.count for i in tiny_plan.instances)
    assert rate * 900 / 3600 < result.cost_usd < rate * 1000 / 3600


def test_the_least_loaded_instance_drains(tiny_plan: Plan) -> None:
    """Of twins the one with fewer requests inside goes, whichever is older; a serving one stays before a starting one."""
    tables, config = TimeTables(100), SimulationConfig()
    twins, single = (lay_out(plan, tables, config) for plan in (_doubled(tiny_plan), tiny_plan))
    none = np.zeros(0)
    models = common_models([twins])
    state = empty_state(requests_of(none, none, none, none), len(models), 3, tables, config, PAPER_SERVING)  # type: ignore[arg-type]
    fleet = Fleet(state, models, config)
    fleet.apply(twins, 0.0, at_once=True)
    instances = fleet.state.instances
    pairs = [np.flatnonzero([b.key == blueprint.key for b in fleet.blueprints]) for blueprint, _ in single.wanted]
    assert [len(pair) for pair in pairs] == [2] * 4
    for number, pair in enumerate(pairs):
        instances["inside"][pair] = (5, 2) if number % 2 else (2, 5)
    # A twin that is still starting goes first, however little its sibling has to do.
    instances["state"][pairs[3]], instances["inside"][pairs[3]] = (STARTING, READY), (0, 0)
    fleet.apply(single, 300.0, at_once=False)
    for number, (first, second) in enumerate(pairs[:3]):
        kept, drained = (first, second) if number % 2 else (second, first)
        assert (instances["state"][kept], instances["state"][drained]) == (READY, DRAINING)
    assert instances["state"][pairs[3]].tolist() == [GONE, READY]


def test_replacement_overlaps_or_leaves_a_gap(tiny_plan: Plan) -> None:
    """Another template replaces one: with overlap the old one serves until the new one does, without it none does."""
    moved = tiny_plan.model_copy(
        update={
            "instances": tuple(
                i.model_copy(update={"region": "elsewhere"}) if i.model == "phi4-14b" else i
                for i in tiny_plan.instances
            )
        }
    )
    smooth = _two_epochs(tiny_plan, moved, SimulationConfig(overlap=True))
    rough = _two_epochs(tiny_plan, moved, SimulationConfig(overlap=False))
    row = next(row for row in smooth.outcomes if row.model == "phi4-14b" and row.phase == "prefill")
    gap = next(row for row in rough.outcomes if row.model == "phi4-14b" and row.phase == "prefill")
    assert row.waited["instance"] == 0
    assert gap.waited["instance"] > 0.2
    assert gap.attainment < row.attainment
    assert (rough.requests["status"] == 1).all()


def test_outcomes_add_up(tiny_plan: Plan) -> None:
    """Epoch goodputs average to the whole one, and shares are shares."""
    result = _two_epochs(tiny_plan, tiny_plan, SimulationConfig())
    assert len(result.epochs["start_s"]) == 4
    for row in result.outcomes:
        mine = [e for e, model in enumerate(result.epochs["model"]) if model == row.model]
        column = result.epochs[f"{row.kind}_goodput_tokens_s"][mine]
        assert column.mean() == pytest.approx(row.goodput_tokens_s)
        assert row.goodput_tokens_s <= row.offered_tokens_s
        assert 0 <= row.attainment <= 1
        assert row.p50_ms <= row.p95_ms <= row.p99_ms
    assert (result.nodes["utilisation"] <= 1.0 + 1e-9).all()
    assert result.epoch_utilisation.mean(axis=0) == pytest.approx(result.nodes["utilisation"])


def test_layer_times_of_ones_own(tiny_plan: Plan) -> None:
    """Any callable replaces the planner's source; times twice as long show."""
    scenario = scenario_from_mapping(tiny_plan.scenario, source="plan")
    requests = poisson_for_scenario(scenario, duration_s=30.0)
    source = throughput_source(scenario.throughput_source)

    def slower(model: object, node: object) -> FunctionTimes:
        times = source.times(model, node)  # type: ignore[arg-type]

        def twice(pair: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            return 2 * pair[0], 2 * pair[1]

        return FunctionTimes(
            lambda n, t: twice(times.prefill_ms(n, t)),
            lambda n, t: twice(times.decode_ms(n, t)),
            8,
            times.most_sequences,
        )

    usual, slow = simulate(tiny_plan, requests), simulate(tiny_plan, requests, source=slower)  # type: ignore[arg-type]
    assert np.nanmedian(slow.requests["step_ms"]) > 1.7 * np.nanmedian(usual.requests["step_ms"])


def test_requests_as_parquet(tiny_plan: Plan, tmp_path: Path) -> None:
    """The table of requests holds one row a request with model and status by name."""
    scenario = scenario_from_mapping(tiny_plan.scenario, source="plan")
    result = simulate(tiny_plan, poisson_for_scenario(scenario, duration_s=20.0))
    result.save_requests(tmp_path / "deep" / "requests.parquet")
    table = pq.read_table(tmp_path / "deep" / "requests.parquet")
    assert table.num_rows == len(result.requests["status"])
    assert set(table.column("model").to_pylist()) == {"gpt-oss-20b", "phi4-14b"}
    assert set(table.column("status").to_pylist()) == {"finished"}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["requests.parquet"]


def test_no_requests(tiny_plan: Plan) -> None:
    """An empty trace costs rent and nothing else."""
    none = Trace(np.zeros(0), *(np.zeros(0, dtype=np.int64),) * 2, np.zeros(0, dtype=np.int32), ("phi4-14b",))
    result = simulate(tiny_plan, none, duration_s=3600.0)
    assert result.cost_usd == pytest.approx(tiny_plan.provisioning_usd_h)
    assert np.isnan(result.attainment)


def test_bad_input_is_named(tiny_plan: Plan) -> None:
    """Every unusable trace or schedule is refused with what, which value and where."""
    good = _steady(tiny_plan, "phi4-14b", 0.5, 10.0)
    for change, message in (
        ({"models": ("gpt-5",)}, "gpt-5"),
        ({"models": ("",)}, "names no model"),
        ({"input_tokens": good.input_tokens + 2**31}, "request 0 has input_tokens"),
    ):
        with pytest.raises(CoraloptError, match=message):
            simulate(tiny_plan, dataclasses.replace(good, **change))  # type: ignore[arg-type]
    for schedule in ([], [(1.0, tiny_plan)], [(0.0, tiny_plan), (0.0, tiny_plan)]):
        with pytest.raises(CoraloptError, match="start"):
            simulate(schedule, good)
    with pytest.raises(CoraloptError, match="noise"):
        SimulationConfig(noise=-0.1)
    with pytest.raises(CoraloptError, match="duration_s"):
        simulate(tiny_plan, good, duration_s=0.0)
