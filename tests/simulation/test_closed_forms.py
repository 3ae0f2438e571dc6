"""Cases small enough that theory knows the answer."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from coralopt.simulation.config import SimulationConfig
from coralopt.simulation.layout import Blueprint
from coralopt.simulation.state import DECODE, MIXED, NODE, PHASES, PREFILL
from coralopt.simulation.times import FunctionTimes, TimeTables
from coralopt.testing.simulation_strategies import SimulationCase
from coralopt.types import Floats

#: One stage takes 10 ms, whatever is in the micro-batch.
CONSTANT = FunctionTimes(
    prefill=lambda n, tokens: (10.0 + 0 * n, 0 * n), decode=lambda n, context: (10.0 + 0 * n, 0 * n)
)


def _tables() -> TimeTables:
    tables = TimeTables(200)
    tables.index(SimpleNamespace(name="m"), SimpleNamespace(name="c"), lambda *_: CONSTANT)  # type: ignore[arg-type]
    return tables


def _blueprint(phase: int, stages: int = 1, batch: int = 1, capacity: int = 10**9, link: float = 1e12) -> Blueprint:
    nodes = np.zeros(stages, dtype=NODE)
    nodes["stage"], nodes["layers"], nodes["weight"] = np.arange(stages), 1, 1.0
    nodes["capacity"], nodes["kv_full"], nodes["kv_copies"] = capacity, 1.0, 1.0
    nodes["batch"], nodes["limit"], nodes["budget_ms"] = batch, (stages + 1) * batch, 1e9
    nodes["prefill_table"], nodes["decode_table"], nodes["link"] = 0, 1, link
    if phase == DECODE:
        nodes["limit"] = stages * batch
    name = PHASES[phase]
    return Blueprint(
        (name,), name, "m0", phase, "r0", nodes, (1,) * stages, ("c",) * stages, ("n",) * stages, 1.0, 1.0, 0.0
    )


def _case(
    blueprints: list[Blueprint],
    arrival: Floats,
    inputs: int = 10,
    outputs: int = 1,
    config: SimulationConfig | None = None,
) -> SimulationCase:
    n, count = len(arrival), len(blueprints)
    return SimulationCase(
        models=1,
        mixed=(blueprints[0].phase == MIXED,),
        blueprints=tuple(blueprints),
        ready_s=(0.0,) * count,
        drain_s=(math.inf,) * count,
        arrival_s=arrival,
        input_tokens=np.full(n, inputs),
        output_tokens=np.full(n, outputs),
        model=np.zeros(n, dtype=np.int64),
        config=config or SimulationConfig(kv_latency_ms=0.0),
        tables=_tables(),
    )


def test_deterministic_server() -> None:
    """D/D/1: no wait below capacity; above it the nth request waits n (service - gap)."""
    state = _case([_blueprint(PREFILL)], np.arange(50) * 0.012).play().state
    assert state.requests["first_token"] - state.requests["arrival"] == pytest.approx(np.full(50, 0.010))
    state = _case([_blueprint(PREFILL)], np.arange(50) * 0.008).play().state
    assert state.requests["first_token"] - state.requests["arrival"] == pytest.approx(0.010 + np.arange(50) * 0.002)


def test_whole_prompts_share_a_step_within_the_token_budget() -> None:
    """A budget of 250 takes two prompts of 100 tokens and half of the third, then its other half and none that decodes.

    With answers of two tokens the first two decode beside that half: 52 tokens, and the third decodes alone.
    """
    for outputs, last_s in ((1, [0.010, 0.010, 0.020]), (2, [0.020, 0.020, 0.030])):
        blueprint = _blueprint(MIXED, batch=2)
        blueprint.nodes["chunk"], blueprint.nodes["limit"] = 250, 3
        state = _case([blueprint], np.zeros(3), inputs=100, outputs=outputs).play().state
        assert state.requests["first_token"] == pytest.approx([0.010, 0.010, 0.020])
        assert state.requests["finish"] == pytest.approx(last_s)
        assert state.nodes["prompt_tokens"][0] == 300


def test_decoding_sequences_come_out_of_the_token_budget() -> None:
    """Budget 10: a sequence decodes beside 9 tokens of the next prompt, so its 27 tokens take three steps."""
    blueprint = _blueprint(MIXED, batch=2)
    blueprint.nodes["chunk"], blueprint.nodes["limit"] = 10, 2
    case = _case([blueprint], np.array([0.0, 0.005]), inputs=10, outputs=9)
    case.input_tokens[1] = 27
    state = case.play().state
    assert state.requests["first_token"] == pytest.approx([0.010, 0.040])


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_poisson_arrivals_at_one_server(noise: float) -> None:
    """M/D/1, and M/G/1 with noise: the mean wait is rho s (1 + cv^2) / (2 (1 - rho)) (Pollaczek and Khinchine)."""
    rng, n, load = np.random.default_rng(5), 200_000, 0.7
    arrival = np.cumsum(rng.exponential(0.010 / load, n))
    case = _case([_blueprint(PREFILL)], arrival, config=SimulationConfig(noise=noise))
    state = case.play().state
    stay = (state.requests["first_token"] - state.requests["arrival"]).mean()
    expected = 0.010 + load * 0.010 * (1 + noise**2) / (2 * (1 - load))
    assert stay == pytest.approx(expected, rel=0.03)
    assert state.nodes["busy_s"][0] / arrival[-1] == pytest.approx(load, rel=0.01)


@pytest.mark.parametrize("stages", [1, 2, 5])
def test_prefill_pipeline_runs_at_its_bottleneck(stages: int) -> None:
    """N prompts at once through S equal stages are done after (N + S - 1) stage times."""
    state = _case([_blueprint(PREFILL, stages)], np.zeros(40)).play().state
    assert state.requests["first_token"].max() == pytest.approx((40 + stages - 1) * 0.010)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_decode_pipeline_keeps_a_micro_batch_a_stage_in_flight(stages: int) -> None:
    """S b sequences in S equal stages give b tokens a stage time, each S stage times after the last one."""
    batch, tokens = 6, 200
    prefill = _blueprint(PREFILL, batch=1000)
    case = _case([prefill, _blueprint(DECODE, stages, batch)], np.zeros(stages * batch), outputs=tokens)
    state = case.play().state
    first, last = state.requests["first_token"], state.requests["finish"]
    seconds = last.max() - first.max()
    assert (tokens - 1) * stages * batch / seconds == pytest.approx(batch / 0.010, rel=0.01)
    assert (last - first) / (tokens - 1) == pytest.approx(np.full(len(first), stages * 0.010), rel=0.01)


def test_memory_admits_as_many_as_fit() -> None:
    """Room for three sequences of 10 + 50 tokens: ten of them run in four waves of 49 steps."""
    decode = _blueprint(DECODE, batch=100, capacity=3 * 60 + 59)
    # Without queues at the link all caches of a wave arrive at one moment.
    config = SimulationConfig(kv_latency_ms=0.0, kv_contention=False)
    state = _case([_blueprint(PREFILL, batch=100), decode], np.zeros(10), outputs=50, config=config).play().state
    assert state.nodes["peak"][1] == 180
    assert np.unique(np.round(state.requests["finish"], 6)) == pytest.approx(0.010 + np.arange(1, 5) * 0.490)
    assert (state.requests["blocked_decode"] > 0).sum() == 7


def test_transfers_queue_for_the_link() -> None:
    """10 bytes over 1000 bytes/s take 10 ms and 5 ms of latency; the second of two transfers waits for the first."""
    ends = [_blueprint(PREFILL, batch=2, link=1000.0), _blueprint(DECODE, batch=2)]
    for contention, second in ((True, 0.025), (False, 0.015)):
        config = SimulationConfig(kv_latency_ms=5.0, kv_contention=contention)
        state = _case(ends, np.zeros(2), outputs=3, config=config).play().state
        assert state.requests["kv_arrived"] - state.requests["first_token"] == pytest.approx([0.015, second])


def test_weighted_round_robin_shares_by_weight() -> None:
    """Three stage nodes with weights 1, 2 and 5 get an eighth, a quarter and five eighths of the prompts."""
    blueprint = _blueprint(PREFILL, 3, batch=100)
    blueprint.nodes["stage"], blueprint.nodes["weight"] = 0, (1.0, 2.0, 5.0)
    blueprint = Blueprint(**{**blueprint.__dict__, "stage_sizes": (3,)})
    state = _case([blueprint], np.arange(800) * 0.02).play().state
    assert state.nodes["prompt_tokens"].tolist() == [1000, 2000, 5000]
