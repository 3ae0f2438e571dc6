"""The compiled engine and the slow reference agree on every request and every node, bit for bit."""

from __future__ import annotations

import math

from hypothesis import given, settings
from simulation_cases import SimulationCase, simulation_cases

from coralopt.simulation.state import FINISHED, REJECTED, WAITING

STATUS = {"waiting": WAITING, "finished": FINISHED, "rejected": REJECTED}
BLOCKED = {None: 0, "memory": 1, "batch": 2, "instance": 3, "turn": 4}


def _same(first: float, second: float) -> bool:
    return first == second or (math.isnan(first) and math.isnan(second))


def _assert_engine_equals_reference(case: SimulationCase) -> None:
    state = case.simulate().state
    slow = case.reference()
    for record, request in zip(state.requests, slow.requests, strict=True):
        assert record["status"] == STATUS[request.status]
        for name in ("prefilled", "generated", "target", "wasted", "preempted", "away"):
            assert record[name] == getattr(request, name), name
        for name in ("prefill_admitted", "first_token", "decode_admitted", "kv_arrived", "decode_start", "finish"):
            assert _same(float(record[name]), request.times.get(name, math.nan)), name
        assert record["blocked_prefill"] == BLOCKED[request.blocked.get("prefill")]
        assert record["blocked_decode"] == BLOCKED[request.blocked.get("decode")]
    nodes = [node for instance in slow.instances for stage in instance.stages for node in stage]
    for record, node in zip(state.nodes, nodes, strict=True):
        for name in ("used", "peak", "batches", "decode_tokens", "prompt_tokens", "busy_s", "sent_at", "received_at"):
            assert record[name] == getattr(node, name), name
    for record, instance in zip(state.instances, slow.instances, strict=True):
        assert record["inside"] == instance.inside
        assert _same(float(record["gone_at"]), instance.gone_at)


@settings(max_examples=100, deadline=None)
@given(case=simulation_cases())
def test_engine_equals_reference(case: SimulationCase) -> None:
    """Two writings of the rules that share no code: a slip in one of them shows as a different time somewhere."""
    _assert_engine_equals_reference(case)


@settings(max_examples=100, deadline=None)
@given(case=simulation_cases(pressed=True))
def test_engine_equals_reference_where_memory_is_short(case: SimulationCase) -> None:
    """In one case of 18 it matters that a request is evicted between two chunks of its prompt; else in one of thousands."""
    _assert_engine_equals_reference(case)


@settings(max_examples=15, deadline=None)
@given(case=simulation_cases(most_requests=25))
def test_pauses_change_nothing(case: SimulationCase) -> None:
    """The engine hands control back now and then, for progress and Ctrl-C; when it does must not matter."""
    whole, paused = case.simulate(), case.simulate(events_a_call=3)
    assert whole.state.requests.tobytes() == paused.state.requests.tobytes()
    assert whole.state.nodes.tobytes() == paused.state.nodes.tobytes()
