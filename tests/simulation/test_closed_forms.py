"""Cases small enough that theory knows the answer."""

from __future__ import annotations

import numpy as np
import pytest
from closed_cases import case_of, instance_of

from coralopt.simulation.config import SimulationConfig
from coralopt.simulation.layout import Blueprint
from coralopt.simulation.state import DECODE, MIXED, PREFILL


def test_deterministic_server() -> None:
    """D/D/1: no wait below capacity; above it the nth request waits n (service - gap)."""
    state = case_of([instance_of(PREFILL)], np.arange(50) * 0.012).simulate().state
    assert state.requests["first_token"] - state.requests["arrival"] == pytest.approx(np.full(50, 0.010))
    state = case_of([instance_of(PREFILL)], np.arange(50) * 0.008).simulate().state
    assert state.requests["first_token"] - state.requests["arrival"] == pytest.approx(0.010 + np.arange(50) * 0.002)


def test_whole_prompts_share_a_step_within_the_token_budget() -> None:
    """A budget of 250 takes two prompts of 100 tokens and half of the third, then its other half and none that decodes.

    With answers of two tokens the first two decode beside that half: 52 tokens, and the third decodes alone.
    """
    for outputs, last_s in ((1, [0.010, 0.010, 0.020]), (2, [0.020, 0.020, 0.030])):
        blueprint = instance_of(MIXED, batch=2)
        blueprint.nodes["chunk"], blueprint.nodes["limit"] = 250, 3
        state = case_of([blueprint], np.zeros(3), inputs=100, outputs=outputs).simulate().state
        assert state.requests["first_token"] == pytest.approx([0.010, 0.010, 0.020])
        assert state.requests["finish"] == pytest.approx(last_s)
        assert state.nodes["prompt_tokens"][0] == 300


def test_decoding_sequences_come_out_of_the_token_budget() -> None:
    """Budget 10: a sequence decodes beside 9 tokens of the next prompt, so its 27 tokens take three steps."""
    blueprint = instance_of(MIXED, batch=2)
    blueprint.nodes["chunk"], blueprint.nodes["limit"] = 10, 2
    case = case_of([blueprint], np.array([0.0, 0.005]), inputs=10, outputs=9)
    case.input_tokens[1] = 27
    state = case.simulate().state
    assert state.requests["first_token"] == pytest.approx([0.010, 0.040])


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_poisson_arrivals_at_one_server(noise: float) -> None:
    """M/D/1, and M/G/1 with noise: the mean wait is rho s (1 + cv^2) / (2 (1 - rho)) (Pollaczek and Khinchine)."""
    rng, n, load = np.random.default_rng(5), 200_000, 0.7
    arrival = np.cumsum(rng.exponential(0.010 / load, n))
    case = case_of([instance_of(PREFILL)], arrival, config=SimulationConfig(noise=noise))
    state = case.simulate().state
    stay = (state.requests["first_token"] - state.requests["arrival"]).mean()
    expected = 0.010 + load * 0.010 * (1 + noise**2) / (2 * (1 - load))
    assert stay == pytest.approx(expected, rel=0.03)
    assert state.nodes["busy_s"][0] / arrival[-1] == pytest.approx(load, rel=0.01)


@pytest.mark.parametrize("stages", [1, 2, 5])
def test_prefill_pipeline_runs_at_its_bottleneck(stages: int) -> None:
    """N prompts at once through S equal stages are done after (N + S - 1) stage times."""
    state = case_of([instance_of(PREFILL, stages)], np.zeros(40)).simulate().state
    assert state.requests["first_token"].max() == pytest.approx((40 + stages - 1) * 0.010)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_decode_pipeline_keeps_a_micro_batch_a_stage_in_flight(stages: int) -> None:
    """S b sequences in S equal stages give b tokens a stage time, each S stage times after the last one."""
    batch, tokens = 6, 200
    prefill = instance_of(PREFILL, batch=1000)
    case = case_of([prefill, instance_of(DECODE, stages, batch)], np.zeros(stages * batch), outputs=tokens)
    state = case.simulate().state
    first, last = state.requests["first_token"], state.requests["finish"]
    seconds = last.max() - first.max()
    assert (tokens - 1) * stages * batch / seconds == pytest.approx(batch / 0.010, rel=0.01)
    assert (last - first) / (tokens - 1) == pytest.approx(np.full(len(first), stages * 0.010), rel=0.01)


def test_memory_admits_as_many_as_fit() -> None:
    """Room for three sequences of 10 + 50 tokens: ten of them run in four waves of 49 steps."""
    decode = instance_of(DECODE, batch=100, capacity=3 * 60 + 59)
    # Without queues at the link all caches of a wave arrive at one moment.
    config = SimulationConfig(kv_latency_ms=0.0, kv_contention=False)
    state = case_of([instance_of(PREFILL, batch=100), decode], np.zeros(10), outputs=50, config=config).simulate().state
    assert state.nodes["peak"][1] == 180
    assert np.unique(np.round(state.requests["finish"], 6)) == pytest.approx(0.010 + np.arange(1, 5) * 0.490)
    assert (state.requests["blocked_decode"] > 0).sum() == 7


def test_transfers_queue_for_the_link() -> None:
    """10 bytes over 1000 bytes/s take 10 ms and 5 ms of latency; the second of two transfers waits for the first."""
    ends = [instance_of(PREFILL, batch=2, link=1000.0), instance_of(DECODE, batch=2)]
    for contention, second in ((True, 0.025), (False, 0.015)):
        config = SimulationConfig(kv_latency_ms=5.0, kv_contention=contention)
        state = case_of(ends, np.zeros(2), outputs=3, config=config).simulate().state
        assert state.requests["kv_arrived"] - state.requests["first_token"] == pytest.approx([0.015, second])


def test_weighted_round_robin_shares_by_weight() -> None:
    """Three stage nodes with weights 1, 2 and 5 get an eighth, a quarter and five eighths of the prompts."""
    blueprint = instance_of(PREFILL, 3, batch=100)
    blueprint.nodes["stage"], blueprint.nodes["weight"] = 0, (1.0, 2.0, 5.0)
    blueprint = Blueprint(**{**blueprint.__dict__, "stage_sizes": (3,)})
    state = case_of([blueprint], np.arange(800) * 0.02).simulate().state
    assert state.nodes["prompt_tokens"].tolist() == [1000, 2000, 5000]


@pytest.mark.parametrize(("ahead", "first_token"), [(False, 0.040), (True, 0.050)])
def test_a_prompt_waits_for_the_step_that_was_chosen_before_it_came(ahead: bool, first_token: float) -> None:
    """Steps of 10 ms; a prompt comes in the middle of the third one. Chosen ahead, it misses the fourth, too."""
    blueprint = instance_of(MIXED, batch=2)
    blueprint.nodes["chunk"], blueprint.nodes["limit"] = 100, 2
    case = case_of([blueprint], np.array([0.0, 0.025]), outputs=9, async_scheduling=ahead)
    state = case.simulate().state
    assert state.requests["first_token"] == pytest.approx([0.010, first_token])
    # Alone it waits for nobody.
    alone = case_of([blueprint], np.array([0.0, 0.5]), outputs=9, async_scheduling=ahead).simulate().state
    assert alone.requests["first_token"] == pytest.approx([0.010, 0.510])


def test_a_pipeline_chooses_micro_batches_as_soon_as_there_is_a_place() -> None:
    """Two stages of 10 ms. The second prompt takes the second place at once and starts when the first node is idle; the
    third, which comes before that, misses it and goes with what the first micro-batch brings back."""
    arrival, first_token = np.array([0.0, 0.002, 0.005]), [0.020, 0.030, 0.040]
    for phase, outputs in ((MIXED, 9), (PREFILL, 1)):
        blueprint = instance_of(phase, 2, batch=4)
        blueprint.nodes["chunk"], blueprint.nodes["limit"] = 100, 8
        state = case_of([blueprint], arrival, outputs=outputs).simulate().state
        assert state.requests["first_token"] == pytest.approx(first_token)
        assert state.requests["finish"] == pytest.approx(np.array(first_token) + (outputs - 1) * 0.020)


def test_sequences_that_come_together_stay_in_one_micro_batch() -> None:
    """Six sequences and room for eight: one micro-batch, and the second of two stages waits for it; no fair shares."""
    config = SimulationConfig(kv_latency_ms=0.0, kv_contention=False)
    fleet = [instance_of(PREFILL, batch=6), instance_of(DECODE, 2, batch=8)]
    state = case_of(fleet, np.zeros(6), outputs=5, config=config).simulate().state
    assert state.requests["finish"] == pytest.approx(np.full(6, 0.010 + 4 * 0.020))
    assert state.nodes["batches"].tolist() == [1, 4, 4]


def test_a_micro_batch_passes_through_a_pipeline_as_it_was_chosen() -> None:
    """The second node is planned for two sequences; it runs the four that the first one sends all the same."""
    config = SimulationConfig(kv_latency_ms=0.0, kv_contention=False)
    decode = instance_of(DECODE, 2, batch=4)
    decode.nodes["batch"] = (4, 2)
    state = case_of([instance_of(PREFILL, batch=4), decode], np.zeros(4), outputs=5, config=config).simulate().state
    assert state.nodes["batches"].tolist() == [1, 4, 4]


def test_nodes_behind_several_take_all_that_wait() -> None:
    """Two first nodes of 10 ms with three sequences each, one node behind them: it runs what both send as one."""
    config = SimulationConfig(kv_latency_ms=0.0, kv_contention=False)
    decode = instance_of(DECODE, 3, batch=6)
    decode.nodes["stage"] = (0, 0, 1)
    decode = Blueprint(**{**decode.__dict__, "stage_sizes": (2, 1)})
    state = case_of([instance_of(PREFILL, batch=6), decode], np.zeros(6), outputs=5, config=config).simulate().state
    first, second, behind = state.nodes["batches"][1:]
    assert first == second
    assert state.nodes["decode_tokens"][1:].tolist() == [12, 12, 24]
    assert behind < first + second
