"""The coordinator, compiled: which pool and which of its instances gets a request.

docs/concepts/simulator.md states every rule in words; tests hold this code equal to a second, slow writing of them.
"""

from __future__ import annotations

import numpy as np

from coralopt.simulation.compiled import compiled
from coralopt.simulation.kernels import (
    answer_work,
    count_inside,
    kv_bytes,
    most_tokens,
    path_bytes_s,
    prompt_ms,
    prompt_work,
    touch_instance,
    uniform,
)
from coralopt.simulation.queues import append, put_shortest
from coralopt.simulation.scheduling import leave
from coralopt.simulation.state import (
    DECODE,
    HOPELESS_LAST,
    LEAST_WORK,
    MIXED,
    NIL,
    NO_INSTANCE,
    REJECTED,
    ROUND_ROBIN,
    SHORTEST_FIRST,
    State,
)
from coralopt.simulation.turns import takes_turns, wait_at_gate


@compiled
def fits(state: State, request: int, instance: int) -> bool:
    """Whether its KV cache may go there, and every stage has a node that could hold the request if it were empty."""
    holder = state.instances[instance]
    if holder.phase == DECODE and path_bytes_s(state, request, instance) <= 0:
        return False
    tokens = most_tokens(state, request, holder.phase)
    for stage in range(holder.stages):
        room = False
        for k in range(state.stage_first[instance, stage], state.stage_first[instance, stage + 1]):
            if kv_bytes(state, k, tokens) <= state.nodes[k].capacity:
                room = True
                break
        if not room:
            return False
    return True


@compiled
def by_round_robin(state: State, request: int, pool: int) -> int:
    """The richest of the instances that could ever hold the request, after each has earned its weight; ``NIL``: none."""
    best, total = NIL, 0.0
    for m in range(state.member_count[pool]):
        i = state.members[pool, m]
        if fits(state, request, i):
            state.credits[pool, i] += state.weights[pool, i]
            total += state.weights[pool, i]
            if best == NIL or state.credits[pool, i] > state.credits[pool, best]:
                best = i
    if best != NIL:
        state.credits[pool, best] -= total
    return best


@compiled
def draw(state: State, request: int, pool: int, without: int) -> int:
    """One instance but ``without`` that could ever hold the request, in proportion to the weights; ``NIL``: none."""
    count, total, last = 0, 0.0, NIL
    for m in range(state.member_count[pool]):
        i = state.members[pool, m]
        if i != without and fits(state, request, i):
            count += 1
            total += state.weights[pool, i]
            last = i
    if count < 2:
        return last
    point = uniform(state) * total
    for m in range(state.member_count[pool]):
        i = state.members[pool, m]
        if i != without and fits(state, request, i):
            point -= state.weights[pool, i]
            if point < 0:
                return int(i)
    return last


@compiled
def work_seconds(state: State, request: int, instance: int) -> float:
    """Work of an instance with this request, as :mod:`coralopt.routing` counts it, over its planned rate."""
    holder = state.instances[instance]
    own = prompt_work(state, request, holder.phase) + answer_work(state, request, holder.phase)
    return float((holder.work + own) / holder.weight)


@compiled
def by_least_work(state: State, request: int, pool: int) -> int:
    """The instance with least work of those that could ever hold the request; ``NIL``: none.

    Of equal ones that with fewest requests so far, over its planned rate.
    """
    best, least, fewest = NIL, np.inf, np.inf
    for m in range(state.member_count[pool]):
        i = state.members[pool, m]
        seconds, taken = work_seconds(state, request, i), state.instances[i].routed / state.instances[i].weight
        if (seconds < least or (seconds == least and taken < fewest)) and fits(state, request, i):
            best, least, fewest = i, seconds, taken
    return best


@compiled
def by_two_choices(state: State, request: int, pool: int) -> int:
    """Of two drawn instances the one with less work; ``NIL`` when none could ever hold the request."""
    first = draw(state, request, pool, NIL)
    second = draw(state, request, pool, first) if first != NIL else NIL
    if second != NIL and work_seconds(state, request, second) < work_seconds(state, request, first):
        return second
    return first


@compiled
def alone_ms(state: State, request: int, instance: int) -> float:
    """The prompt alone through the first node of every stage, ms."""
    total = 0.0
    for stage in range(state.instances[instance].stages):
        total += prompt_ms(state, request, state.stage_first[instance, stage], state.stage_first[instance, 0])
    return total


@compiled
def route(state: State, request: int, pool: int) -> None:
    """The coordinator: give a request to one of the pool's instances that could ever hold it."""
    phase = pool % 3
    record = state.requests[request]
    if state.member_count[pool] == 0:
        if phase == DECODE:
            record.blocked_decode = NO_INSTANCE
        else:
            record.blocked_prefill = NO_INSTANCE
        append(state.requests, state.pool_list, pool, request)
        return
    clock = state.clock[0]
    if clock.routing == ROUND_ROBIN:
        best = by_round_robin(state, request, pool)
    elif clock.routing == LEAST_WORK:
        best = by_least_work(state, request, pool)
    else:
        best = by_two_choices(state, request, pool)
    if best == NIL:
        record.status = REJECTED
        if phase == DECODE:
            leave(state, request, record.prefill_instance)
        return
    if phase == DECODE:
        record.decode_instance = best
    else:
        record.prefill_instance = best
        if phase == MIXED:
            record.decode_instance = best
        if clock.order == HOPELESS_LAST:
            record.latest -= alone_ms(state, request, best) / 1e3
    state.instances[best].work += prompt_work(state, request, phase) + answer_work(state, request, phase)
    state.instances[best].routed += 1
    if takes_turns(state, best):
        wait_at_gate(state, request, best)
    elif clock.order == SHORTEST_FIRST and phase != DECODE:
        put_shortest(state.requests, state.instance_list, best, request)
    else:
        append(state.requests, state.instance_list, best, request)
    count_inside(state, best, 1)
    touch_instance(state, best)


@compiled
def enter(state: State, request: int) -> None:
    """The coordinator: a new request goes to a pool of its model, by weighted round robin over the plan's shares."""
    record = state.requests[request]
    share, credit = state.entry[record.model], state.entry_credit[record.model]
    best, total = NIL, 0.0
    for phase in range(3):
        if share[phase] > 0:
            credit[phase] += share[phase]
            total += share[phase]
            if best == NIL or credit[phase] > credit[best]:
                best = phase
    credit[best] -= total
    record.way = best
    route(state, request, 3 * record.model + best)
