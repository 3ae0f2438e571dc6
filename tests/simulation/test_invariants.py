"""What must hold in any simulation, whatever the fleet and the requests."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from simulation_cases import SimulationCase, simulation_cases

from coralopt.simulation.state import DECODE, FINISHED, GONE, PHASES, PREFILL


@settings(max_examples=30, deadline=None)
@given(case=simulation_cases())
def test_time_never_runs_back(case: SimulationCase) -> None:
    """Every request passes its milestones in order, and nothing is taken in before it arrived."""
    requests = case.simulate().state.requests
    order = ("arrival", "prefill_admitted", "first_token", "decode_admitted", "kv_arrived", "decode_start", "finish")
    for request in requests:
        times = [float(request[name]) for name in order]
        passed = [time for time in times if not math.isnan(time)]
        assert passed == sorted(passed)


@settings(max_examples=30, deadline=None)
@given(case=simulation_cases(all_serve=True))
def test_no_token_is_lost_or_made(case: SimulationCase) -> None:
    """Every stage of an instance does each prompt token and each decode step of its requests exactly once."""
    state = case.simulate().state
    requests = state.requests
    done = requests["status"] == FINISHED
    assert (requests["prefilled"][done] == requests["target"][done]).all()
    if case.serving.admission == "reserve":
        assert not requests["preempted"].any()
        assert (requests["target"] == requests["input"]).all()
    assert (requests["generated"][done] == requests["output"][done]).all()
    for i, instance in enumerate(state.instances):
        nodes = state.nodes[state.nodes["instance"] == i]
        # What caches hold of a prompt is computed by nobody.
        own = requests["input"] - requests["cached"]
        computed = requests["prefilled"] + requests["wasted"] - requests["cached"]
        first, last = requests["prefill_instance"] == i, (requests["decode_instance"] == i) & done
        # A decode instance computes what it preempted itself; the pass makes a token, so that is no decode step.
        prompts = {
            "prefill": own[first & ~np.isnan(requests["first_token"])].sum(),
            "decode": (computed - own)[last].sum(),
            "mixed": computed[first].sum(),
        }[PHASES[instance["phase"]]]
        steps, passes = (requests["output"] - 1)[last].sum(), requests["preempted"][last].sum()
        for stage in range(int(instance["stages"])):
            mine = nodes[nodes["stage"] == stage]
            assert mine["prompt_tokens"].sum() == prompts
            least, most = (0, 0) if instance["phase"] == PREFILL else (steps - passes, steps)
            assert least <= mine["decode_tokens"].sum() <= most


@settings(max_examples=30, deadline=None)
@given(case=simulation_cases())
def test_memory_is_never_overdrawn_and_all_given_back(case: SimulationCase) -> None:
    """KV memory stays within the node; once every request has left none is held."""
    state = case.simulate().state
    assert (state.nodes["peak"] <= state.nodes["capacity"]).all()
    assert (state.nodes["used"] >= 0).all()
    # Requests that found no decode instance hold their prompt's memory for ever.
    if not np.isnan(state.requests["first_token"][state.requests["status"] == 0]).all():
        return
    assert (state.nodes["used"] == 0).all()
    assert (state.nodes["resident"] == 0).all()
    assert (state.nodes["active"] == 0).all()


@settings(max_examples=30, deadline=None)
@given(case=simulation_cases())
def test_drained_instances_end_empty_and_take_nothing_new(case: SimulationCase) -> None:
    """Connection draining: what is inside is finished, and nothing is routed there any more."""
    state = case.simulate().state
    waits_for_decode = np.isfinite(state.requests["first_token"]) & (state.requests["status"] == 0)
    for i, drain in enumerate(case.drain_s):
        if drain == math.inf:
            continue
        held = waits_for_decode & (state.requests["prefill_instance"] == i)
        assert state.instances["inside"][i] == held.sum()
        assert (state.instances["state"][i] == GONE) == (not held.any())
        routed = state.requests["prefill_instance"] == i
        # A request that waited for any instance may have arrived long before this one served.
        assert (state.requests["arrival"][routed] <= drain).all()


@settings(max_examples=15, deadline=None)
@given(case=simulation_cases())
def test_same_seed_same_bytes(case: SimulationCase) -> None:
    """Two runs of one case are identical to the last bit."""
    first, second = case.simulate().state, case.simulate().state
    for name in ("requests", "nodes", "instances", "routes"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()


@settings(max_examples=30, deadline=None)
@given(case=simulation_cases(all_serve=True))
def test_littles_law(case: SimulationCase) -> None:
    """The integral of the number inside an instance is the sum of the stays, counted here request by request."""
    state = case.simulate().state
    requests = state.requests
    for i, instance in enumerate(state.instances):
        if instance["phase"] == PREFILL:
            mine = requests[(requests["prefill_instance"] == i) & (requests["status"] == FINISHED)]
            leaves = np.where(np.isnan(mine["kv_arrived"]), mine["finish"], mine["kv_arrived"])
            enters = mine["arrival"] + case.serving.host_request_ms / 1e3
        else:
            mine = requests[(requests["decode_instance"] == i) & (requests["status"] == FINISHED)]
            leaves = mine["finish"]
            routed = mine["arrival"] + case.serving.host_request_ms / 1e3
            enters = mine["first_token"] if instance["phase"] == DECODE else routed
        if len(mine) == instance["routed"]:
            assert math.isclose(instance["area"], (leaves - enters).sum(), rel_tol=1e-9, abs_tol=1e-9)
