"""What every request would have taken alone on an idle cluster, on the very nodes it was given, compiled."""

from __future__ import annotations

import numpy as np

from coralopt.simulation.compiled import Array, compiled, entry
from coralopt.simulation.kernels import link_seconds, path_bytes_s, prompt_ms, route_offset, stage_ms
from coralopt.simulation.state import DECODE, MIXED, NIL, State


@compiled
def _step_ms(state: State, request: int, instance: int, offset: int, context: int) -> float:
    """One decode step of this request alone through all stages, ms."""
    total = 0.0
    for stage in range(state.instances[instance].stages):
        total += stage_ms(state, state.routes[request, offset + stage], 1, context, 0, 0, 0.0)
    return total


@compiled
def _transfer_ms(state: State, request: int) -> float:
    """The KV transfer with every link to itself, ms."""
    clock = state.clock[0]
    record = state.requests[request]
    source, target = state.instances[record.prefill_instance], state.instances[record.decode_instance]
    offset, path = route_offset(state, DECODE), path_bytes_s(state, request, record.decode_instance)
    slowest, sent = 0.0, record.input - record.cached
    for stage in range(source.stages):
        slowest = max(slowest, link_seconds(state, state.routes[request, stage], sent, path))
    for stage in range(target.stages):
        slowest = max(slowest, link_seconds(state, state.routes[request, offset + stage], sent, path))
    slowest += float(clock.kv_latency)
    if source.region != target.region:
        slowest += float(clock.kv_region_latency)
    return 1e3 * float(slowest)


@entry
def fill_idle_times(state: State, ttft_ms: Array, tpot_ms: Array) -> None:
    """Times without anyone else, ms; NaN stays where a request was given no nodes.

    The context of an answer is taken at its middle: stage times are nearly linear in it. Noise is left out.

    Args:
        state: The end of a simulation.
        ttft_ms: float64 (N,), filled with the time to first token.
        tpot_ms: float64 (N,), filled with the time per output token, the KV transfer included.
    """
    host_ms = 1e3 * state.clock[0].host_request
    for request in range(len(state.requests)):
        record = state.requests[request]
        i = record.prefill_instance
        if i == NIL or state.routes[request, 0] < 0:
            continue
        alone = 0.0
        for stage in range(state.instances[i].stages):
            alone += prompt_ms(state, request, state.routes[request, stage], state.routes[request, 0])
        ttft_ms[request] = host_ms + alone
        if record.output < 2:
            continue
        d = record.decode_instance
        offset = 0 if state.instances[i].phase == MIXED else route_offset(state, DECODE)
        if d == NIL or state.routes[request, offset] < 0:
            continue
        alone = _step_ms(state, request, d, offset, record.input + record.output // 2)
        if state.instances[i].phase != MIXED:
            alone += _transfer_ms(state, request) / (record.output - 1)
        tpot_ms[request] = alone


def idle_times(state: State) -> tuple[Array, Array]:
    """Times to first token and per output token alone on an idle cluster, float64 (N,) each, ms; NaN without nodes."""
    ttft_ms, tpot_ms = np.full((2, len(state.requests)), np.nan)
    fill_idle_times(state, ttft_ms, tpot_ms)
    return ttft_ms, tpot_ms
