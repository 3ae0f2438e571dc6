"""Instance schedulers, compiled: taking requests in, preemption, KV transfers, letting go.

docs/concepts/simulator.md states every rule in words; tests hold this code equal to a second, slow writing of them.
"""

from __future__ import annotations

import numpy as np

from coralopt.simulation.compiled import Array, compiled
from coralopt.simulation.kernels import (
    answer_work,
    count_inside,
    held_tokens,
    kv_bytes,
    link_seconds,
    path_bytes_s,
    route_offset,
    touch_instance,
    touch_node,
    wanted_tokens,
)
from coralopt.simulation.queues import append, pop, pop_shortest, push_event, put_first
from coralopt.simulation.state import (
    BATCH_FULL,
    DECODE,
    DRAINING,
    GONE,
    HOPELESS_LAST,
    KV_ARRIVED,
    MIXED,
    NIL,
    NO_MEMORY,
    NOT_BLOCKED,
    PREFILL,
    SHORTEST_FIRST,
    State,
)
from coralopt.simulation.turns import end_turn, takes_turns


@compiled
def release(state: State, request: int, instance: int) -> None:
    """Free the memory and the places that a request has on the nodes of an instance."""
    holder = state.instances[instance]
    record = state.requests[request]
    offset = route_offset(state, holder.phase)
    tokens = held_tokens(state, request, holder.phase)
    for stage in range(holder.stages):
        k = state.routes[request, offset + stage]
        node = state.nodes[k]
        node.used -= kv_bytes(state, k, tokens)
        node.resident -= 1
        # Prompts were at work until their first token.
        if holder.phase != PREFILL:
            node.active -= record.decoding
    if holder.phase == PREFILL:
        return
    record.held = 0
    record.decoding = 0
    if record.older != NIL:
        state.requests[record.older].newer = record.newer
    if record.newer != NIL:
        state.requests[record.newer].older = record.older
    elif holder.youngest == request:
        holder.youngest = record.older
    record.older = NIL
    record.newer = NIL


@compiled
def join(state: State, request: int, instance: int) -> None:
    """A request begins to compute at an instance; the last to join is the first to be preempted."""
    holder = state.instances[instance]
    record = state.requests[request]
    record.older = holder.youngest
    if holder.youngest != NIL:
        state.requests[holder.youngest].newer = request
    holder.youngest = request


@compiled
def leave(state: State, request: int, instance: int) -> None:
    """Free what a request holds in an instance; a draining one that is empty now is gone."""
    holder = state.instances[instance]
    record = state.requests[request]
    if holder.phase != PREFILL and record.evicted:
        record.evicted = 0
        holder.evicted -= 1
    else:
        release(state, request, instance)
    count_inside(state, instance, -1)
    holder.work -= answer_work(state, request, holder.phase)
    if holder.state == DRAINING and holder.inside == 0:
        holder.state = GONE
        holder.gone_at = state.clock[0].now
    if takes_turns(state, instance):
        end_turn(state, instance)
    touch_instance(state, instance)


@compiled
def grow(state: State, request: int, instance: int) -> bool:
    """Get the memory that a sequence needs for its next token; whether it could, and was not preempted itself.

    While a node of it lacks memory, the request that joined last of those on that node is preempted: its memory is free
    at once, and it goes back to the front of the queue at its next turn.
    """
    holder = state.instances[instance]
    record = state.requests[request]
    offset = route_offset(state, holder.phase)
    wanted = wanted_tokens(state, request, holder.phase)
    for stage in range(holder.stages):
        k = state.routes[request, offset + stage]
        more = kv_bytes(state, k, wanted) - kv_bytes(state, k, record.held)
        while state.nodes[k].used + more > state.nodes[k].capacity:
            victim = holder.youngest
            while state.routes[victim, offset + stage] != k:
                victim = state.requests[victim].older
            release(state, victim, instance)
            state.requests[victim].evicted = 1
            state.requests[victim].preempted += 1
            holder.evicted += 1
            if victim == request:
                return False
    for stage in range(holder.stages):
        k = state.routes[request, offset + stage]
        node = state.nodes[k]
        node.used += kv_bytes(state, k, wanted) - kv_bytes(state, k, record.held)
        node.peak = max(node.peak, node.used)
    record.held = wanted
    return True


@compiled
def send_back(state: State, request: int, instance: int) -> None:
    """A preempted request is at the front of the queue again; its prompt and what it has said must be computed anew."""
    record = state.requests[request]
    record.evicted = 0
    state.instances[instance].evicted -= 1
    if record.generated == 0:
        record.prefill_admitted = np.nan
        if record.blocked_prefill == NOT_BLOCKED:
            record.blocked_prefill = NO_MEMORY
    else:
        if record.prefilled == record.target:
            record.away -= state.clock[0].now
        if record.blocked_decode == NOT_BLOCKED:
            record.blocked_decode = NO_MEMORY
    record.wasted += record.prefilled - record.cached
    record.prefilled = record.cached
    record.target = record.input + record.generated
    put_first(state.requests, state.returned_list, instance, request)
    touch_instance(state, instance)


@compiled
def next_waiting(state: State, instance: int) -> int:
    """The request that an instance takes in next, ``NIL`` for none; those that are too late go behind."""
    if state.returned_list[instance, 2] > 0:
        return int(state.returned_list[instance, 0])
    clock = state.clock[0]
    if clock.order == HOPELESS_LAST and state.instances[instance].phase != DECODE:
        while state.instance_list[instance, 2] > 0:
            request = state.instance_list[instance, 0]
            if clock.now <= state.requests[request].latest:
                return int(request)
            append(state.requests, state.late_list, instance, pop(state.requests, state.instance_list, instance))
        return int(state.late_list[instance, 0])
    return int(state.instance_list[instance, 0])


@compiled
def take_waiting(state: State, instance: int) -> None:
    """Take the request that :func:`next_waiting` names out of the queue."""
    if state.returned_list[instance, 2] > 0:
        pop(state.requests, state.returned_list, instance)
    elif state.instance_list[instance, 2] == 0:
        pop(state.requests, state.late_list, instance)
    elif state.clock[0].order == SHORTEST_FIRST and state.instances[instance].phase != DECODE:
        pop_shortest(state.requests, state.instance_list, instance)
    else:
        pop(state.requests, state.instance_list, instance)


@compiled
def start_transfer(state: State, request: int) -> None:
    """Send the KV cache from the prefill nodes to the decode nodes; every link takes its transfers in turn."""
    clock = state.clock[0]
    now = clock.now
    record = state.requests[request]
    source, target = state.instances[record.prefill_instance], state.instances[record.decode_instance]
    arrives = now
    offset = route_offset(state, DECODE)
    path = path_bytes_s(state, request, record.decode_instance)
    for stage in range(source.stages):
        k = state.routes[request, stage]
        node = state.nodes[k]
        seconds = link_seconds(state, k, record.input - record.cached, path)
        if clock.kv_contention:
            node.sent_at = max(now, node.sent_at) + seconds
            arrives = max(arrives, node.sent_at)
        else:
            arrives = max(arrives, now + seconds)
    for stage in range(target.stages):
        k = state.routes[request, offset + stage]
        node = state.nodes[k]
        seconds = link_seconds(state, k, record.input - record.cached, path)
        if clock.kv_contention:
            node.received_at = max(now, node.received_at) + seconds
            arrives = max(arrives, node.received_at)
        else:
            arrives = max(arrives, now + seconds)
    arrives += clock.kv_latency
    if source.region != target.region:
        arrives += clock.kv_region_latency
    push_event(state, arrives, KV_ARRIVED, request)


@compiled
def has_room(node: Array, phase: int, computes: bool) -> bool:
    """Whether a node may take one more in, memory apart; decode instances look at that when the KV cache is there."""
    if phase == MIXED:
        return bool(node.resident < node.limit)
    return bool(not computes or node.active < node.limit)


@compiled
def admit(state: State, instance: int) -> None:
    """The instance scheduler: take in waiting requests, one after the other, as long as every stage has room."""
    holder = state.instances[instance]
    offset = route_offset(state, holder.phase)
    clock = state.clock[0]
    now = clock.now
    while True:
        request = next_waiting(state, instance)
        if request == NIL:
            return
        if holder.evicted > 0:
            # Memory that was taken from others is for those who go on.
            holder.reason = NO_MEMORY
            return
        record = state.requests[request]
        # A decode instance computes only what it preempted; other caches come from a prefill instance.
        computes = bool(record.prefilled < record.target)
        tokens = wanted_tokens(state, request, holder.phase)
        for stage in range(holder.stages):
            memory, room = False, False
            for k in range(state.stage_first[instance, stage], state.stage_first[instance, stage + 1]):
                node = state.nodes[k]
                if node.used + kv_bytes(state, k, tokens) <= node.capacity:
                    memory = True
                    if has_room(node, holder.phase, computes):
                        room = True
            if not room:
                holder.reason = BATCH_FULL if memory else NO_MEMORY
                return
        if holder.phase == DECODE:
            if record.blocked_decode == NOT_BLOCKED and record.first_token < now:
                record.blocked_decode = holder.reason
        elif (
            record.generated == 0
            and record.blocked_prefill == NOT_BLOCKED
            and record.arrival + clock.host_request < now
        ):
            record.blocked_prefill = holder.reason
        take_waiting(state, instance)
        for stage in range(holder.stages):
            best, total = NIL, 0.0
            for k in range(state.stage_first[instance, stage], state.stage_first[instance, stage + 1]):
                node = state.nodes[k]
                if has_room(node, holder.phase, computes) and node.used + kv_bytes(state, k, tokens) <= node.capacity:
                    node.credit += node.weight
                    total += node.weight
                    if best == NIL or node.credit > state.nodes[best].credit:
                        best = k
            chosen = state.nodes[best]
            chosen.credit -= total
            chosen.used += kv_bytes(state, best, tokens)
            chosen.peak = max(chosen.peak, chosen.used)
            chosen.resident += 1
            if holder.phase != MIXED and computes:
                chosen.active += 1
            state.routes[request, offset + stage] = best
        if holder.phase != PREFILL:
            record.held = tokens
        if not computes:
            record.decode_admitted = now
            start_transfer(state, request)
            continue
        if holder.phase == DECODE:
            record.decoding = 1
        elif record.generated == 0:
            record.prefill_admitted = now
        if holder.phase != PREFILL:
            join(state, request, instance)
        first = state.routes[request, offset]
        record.ready = now
        append(state.requests, state.prompt_list, first, request)
        touch_node(state, first)


@compiled
def begin_decoding(state: State, request: int, instance: int) -> None:
    """A sequence whose KV cache is in place joins the decode steps of its nodes."""
    holder = state.instances[instance]
    record = state.requests[request]
    offset = route_offset(state, holder.phase)
    if not record.decoding:
        for stage in range(holder.stages):
            state.nodes[state.routes[request, offset + stage]].active += 1
        record.decoding = 1
    first = state.routes[request, offset]
    record.ready = state.clock[0].now
    append(state.requests, state.decode_list, first, request)
    touch_node(state, first)


@compiled
def begin_arrived(state: State, instance: int) -> None:
    """Let sequences whose KV cache is there decode, in the order of arrival, as far as the nodes' limits go."""
    holder = state.instances[instance]
    offset = route_offset(state, DECODE)
    while state.arrived_list[instance, 2] > 0:
        request = state.arrived_list[instance, 0]
        for stage in range(holder.stages):
            node = state.nodes[state.routes[request, offset + stage]]
            if node.active >= node.limit:
                return
        record = state.requests[request]
        if record.blocked_decode == NOT_BLOCKED and record.kv_arrived < state.clock[0].now:
            record.blocked_decode = BATCH_FULL
        pop(state.requests, state.arrived_list, instance)
        join(state, request, instance)
        begin_decoding(state, request, instance)
