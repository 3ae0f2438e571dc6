"""Groups of instances simulated by themselves: the same requests fare as in a whole simulation."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from coralopt import CoraloptError, Plan
from coralopt.simulation import GroupSimulator, SimulationConfig, simulate
from coralopt.simulation.groups import GroupOutcome, QuickestDecoding
from coralopt.simulation.possible import quickest_steps_ms
from coralopt.workload import Trace, poisson_for_scenario

MODEL = "phi4-14b"


def _requests(plan: Plan, seconds: float = 120.0) -> Trace:
    trace = poisson_for_scenario(plan.resolved, duration_s=seconds, seed=3)
    return trace.take(trace.model == trace.models.index(MODEL))


def test_a_whole_model_fares_as_in_a_simulation(tiny_plan: Plan) -> None:
    """Prefill and decode instances together: times to first token and per output token are the simulator's."""
    trace = _requests(tiny_plan)
    mine = [instance for instance in tiny_plan.instances if instance.model == MODEL]
    outcome = GroupSimulator(tiny_plan.resolved).simulate(mine, trace)
    whole = simulate(tiny_plan, trace)
    # Stage times are sampled up to another longest request.
    assert np.allclose(outcome.ttft_ms, whole.requests["ttft_ms"], rtol=2e-3)
    assert outcome.attainment == pytest.approx(whole.attainment, abs=2e-3)


def test_prefill_alone_ends_with_the_first_token(tiny_plan: Plan) -> None:
    """What comes after it costs nothing: as in a simulation of answers of one token."""
    trace = _requests(tiny_plan)
    instance = next(item for item in tiny_plan.instances if item.key == f"{MODEL}/prefill")
    outcome = GroupSimulator(tiny_plan.resolved).simulate([instance], trace)
    short = dataclasses.replace(trace, output_tokens=np.ones_like(trace.output_tokens))
    whole = simulate(tiny_plan, short)
    assert np.allclose(outcome.ttft_ms, whole.requests["ttft_ms"], rtol=2e-3)
    assert np.isnan(outcome.tpot_ms).all()
    assert outcome.met_tpot.all()
    assert 0 < outcome.busy < 1


def test_decode_alone_starts_with_a_cache(tiny_plan: Plan) -> None:
    """Spread requests decode as in a whole simulation with quick links; answers of one token need no decoding."""
    trace = _requests(tiny_plan)
    trace = dataclasses.replace(trace, arrival_s=trace.arrival_s * 20)
    free = SimulationConfig(kv_gb_s=1e6, kv_latency_ms=0.0)
    instance = next(item for item in tiny_plan.instances if item.key == f"{MODEL}/decode")
    outcome = GroupSimulator(tiny_plan.resolved, config=free).simulate([instance], trace)
    whole = simulate(tiny_plan, trace, config=free).requests
    several = trace.output_tokens > 1
    assert np.isnan(outcome.tpot_ms[~several]).all()
    assert outcome.met_tpot[~several].all()
    assert np.median(outcome.tpot_ms[several]) == pytest.approx(np.median(whole["tpot_ms"][several]), rel=0.02)


def test_more_instances_serve_more(tiny_plan: Plan) -> None:
    """Two equal instances meet the SLO for at least as many as one; the simulator may be used again and again."""
    trace = _requests(tiny_plan)
    trace = dataclasses.replace(trace, arrival_s=trace.arrival_s / 2)
    instance = next(item for item in tiny_plan.instances if item.key == f"{MODEL}/prefill")
    simulator = GroupSimulator(tiny_plan.resolved)
    one = simulator.simulate([instance.model_copy(update={"count": 1})], trace)
    two = simulator.simulate([instance.model_copy(update={"count": 2})], trace)
    again = simulator.simulate([instance.model_copy(update={"count": 1})], trace)
    assert two.attainment > one.attainment
    assert one.ttft_ms.tobytes() == again.ttft_ms.tobytes()


def test_a_group_says_what_it_cannot_play(tiny_plan: Plan) -> None:
    """Several models, or requests beyond the sampled stage times."""
    trace = _requests(tiny_plan, 5.0)
    with pytest.raises(CoraloptError, match="instances of one model"):
        GroupSimulator(tiny_plan.resolved).simulate(tiny_plan.instances, trace)
    with pytest.raises(CoraloptError, match="reaches 10"):
        GroupSimulator(tiny_plan.resolved, longest=10).simulate(tiny_plan.instances[:1], trace)


def test_shares_of_a_group_by_hand() -> None:
    """Of four requests one misses TTFT, two miss TPOT, one of these both: half meet both, and half miss the worse one."""
    nan = np.full(4, np.nan)
    outcome = GroupOutcome(nan, nan, np.array([True, True, True, False]), np.array([True, True, False, False]), 0.5)
    assert (outcome.attainment, outcome.missed) == (0.5, 0.5)
    none = GroupOutcome(nan[:0], nan[:0], np.zeros(0, dtype=bool), np.zeros(0, dtype=bool), 0.0)
    assert np.isnan([none.attainment, none.missed]).all()


def test_prefill_that_sends_caches_by_hand(tiny_plan: Plan) -> None:
    """One request: its cache over the slowest link of a stage and the latency, then a step for every other token."""
    resolved = tiny_plan.resolved
    instance = next(item for item in tiny_plan.instances if item.key == f"{MODEL}/prefill")
    model = next(phase.model for phase in resolved.model_phases if phase.key == instance.key)
    one = Trace(np.array([0.0]), np.array([1000]), np.array([11]), np.array([0]), (MODEL,))
    outcome = GroupSimulator(resolved).simulate([instance], one, decoding=QuickestDecoding(np.array([5.0])))
    hosts = {host.name: host for host in resolved.configurations}
    slowest_s = 0.0
    for stage in instance.stages:
        layers = stage.layers
        for node in stage.nodes:
            sent = 1000 * model.kv_token_bytes * layers
            slowest_s = max(slowest_s, sent / (hosts[node.configuration].network_gb_s * 1e9))
    latency_ms = SimulationConfig().kv_latency_ms
    assert outcome.tpot_ms[0] == pytest.approx((1e3 * slowest_s + latency_ms) / 10 + 5.0, rel=1e-6)
    alone = GroupSimulator(resolved).simulate([instance], one)
    assert outcome.ttft_ms[0] == alone.ttft_ms[0]


def test_no_decode_instances_do_better_than_the_best(tiny_plan: Plan) -> None:
    """What caches that arrive late leave is a bound for whatever decodes: request by request where memory is ample."""
    trace = _requests(tiny_plan)
    mine = [instance for instance in tiny_plan.instances if instance.model == MODEL]
    prefill = [instance for instance in mine if instance.phase == "prefill"]
    phase = next(phase for phase in tiny_plan.resolved.model_phases if phase.key == f"{MODEL}/prefill")
    decoding = QuickestDecoding(quickest_steps_ms(tiny_plan.resolved, phase, trace))
    simulator = GroupSimulator(tiny_plan.resolved)
    best, together = simulator.simulate(prefill, trace, decoding=decoding), simulator.simulate(mine, trace)
    assert best.ttft_ms == pytest.approx(together.ttft_ms)
    several = trace.output_tokens > 1
    assert (best.tpot_ms[several] <= together.tpot_ms[several] * (1 + 1e-3)).all()
    assert best.met_tpot.mean() >= together.met_tpot.mean()
    # A run that ends early counts at least as many misses.
    early = simulator.simulate(prefill, trace, most_missed=0.01, decoding=decoding)
    assert early.missed >= min(best.missed, 0.01)


@pytest.mark.slow
def test_kernels_read_inside_their_arrays(tmp_path: Path) -> None:
    """A decode group's source of caches has no nodes; the first of them was looked up all the same, beyond the last one."""
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", "not slow", "tests/simulation/test_groups.py"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
