"""Coordinator and instance schedulers, compiled: routing, taking requests in, KV transfers, letting go.

docs/concepts/simulation.md states every rule in words; tests hold this code equal to a second, slow writing of them.
"""

from __future__ import annotations

from coralopt.simulation.kernels import (
    Array,
    append,
    compiled,
    count_inside,
    held_tokens,
    kv_bytes,
    link_seconds,
    pop,
    push_event,
    route_offset,
    touch_instance,
    touch_node,
)
from coralopt.simulation.state import (
    BATCH_FULL,
    DECODE,
    DRAINING,
    GONE,
    KV_ARRIVED,
    MIXED,
    NIL,
    NO_INSTANCE,
    NO_MEMORY,
    NOT_BLOCKED,
    PREFILL,
    REJECTED,
    State,
)


@compiled
def leave(state: State, request: int, instance: int) -> None:
    """Free what a request holds in an instance; a draining one that is empty now is gone."""
    holder = state.instances[instance]
    offset = route_offset(state, holder.phase)
    tokens = held_tokens(state, request, holder.phase)
    for stage in range(holder.stages):
        k = state.routes[request, offset + stage]
        node = state.nodes[k]
        node.used -= kv_bytes(state, k, tokens)
        node.resident -= 1
        # Prompts were at work until their first token, and a mixed instance's answers of one token never decoded.
        if holder.phase == DECODE or (holder.phase == MIXED and state.requests[request].output > 1):
            node.active -= 1
    count_inside(state, instance, -1)
    if holder.state == DRAINING and holder.inside == 0:
        holder.state = GONE
        holder.gone_at = state.clock[0].now
    touch_instance(state, instance)


@compiled
def fits(state: State, request: int, instance: int) -> bool:
    """Whether every stage has a node that could hold the request if it were empty."""
    holder = state.instances[instance]
    tokens = held_tokens(state, request, holder.phase)
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
def route(state: State, request: int, pool: int) -> None:
    """The coordinator: weighted round robin over the pool's instances that could ever hold the request."""
    phase = pool % 3
    record = state.requests[request]
    if state.member_count[pool] == 0:
        if phase == DECODE:
            record.blocked_decode = NO_INSTANCE
        else:
            record.blocked_prefill = NO_INSTANCE
        append(state.requests, state.pool_list, pool, request)
        return
    best, total = NIL, 0.0
    for m in range(state.member_count[pool]):
        i = state.members[pool, m]
        if fits(state, request, i):
            member = state.instances[i]
            member.credit += member.weight
            total += member.weight
            if best == NIL or member.credit > state.instances[best].credit:
                best = i
    if best == NIL:
        record.status = REJECTED
        if phase == DECODE:
            leave(state, request, record.prefill_instance)
        return
    state.instances[best].credit -= total
    if phase == DECODE:
        record.decode_instance = best
    else:
        record.prefill_instance = best
        if phase == MIXED:
            record.decode_instance = best
    count_inside(state, best, 1)
    state.instances[best].routed += 1
    append(state.requests, state.instance_list, best, request)
    touch_instance(state, best)


@compiled
def start_transfer(state: State, request: int) -> None:
    """Send the KV cache from the prefill nodes to the decode nodes; every link takes its transfers in turn."""
    clock = state.clock[0]
    now = clock.now
    record = state.requests[request]
    source, target = state.instances[record.prefill_instance], state.instances[record.decode_instance]
    arrives = now
    offset = route_offset(state, DECODE)
    for stage in range(source.stages):
        k = state.routes[request, stage]
        node = state.nodes[k]
        seconds = link_seconds(state, k, record.input)
        if clock.kv_contention:
            node.sent_at = max(now, node.sent_at) + seconds
            arrives = max(arrives, node.sent_at)
        else:
            arrives = max(arrives, now + seconds)
    for stage in range(target.stages):
        k = state.routes[request, offset + stage]
        node = state.nodes[k]
        seconds = link_seconds(state, k, record.input)
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
def has_room(node: Array, phase: int) -> bool:
    """Whether a node may take one more in, memory apart; decode instances look at that when the KV cache is there."""
    return bool(phase == DECODE or (node.active if phase == PREFILL else node.resident) < node.limit)


@compiled
def admit(state: State, instance: int) -> None:
    """The instance scheduler: take in waiting requests, first come first served, as long as every stage has room."""
    holder = state.instances[instance]
    offset = route_offset(state, holder.phase)
    now = state.clock[0].now
    while state.instance_list[instance, 2] > 0:
        request = state.instance_list[instance, 0]
        record = state.requests[request]
        tokens = held_tokens(state, request, holder.phase)
        for stage in range(holder.stages):
            memory, room = False, False
            for k in range(state.stage_first[instance, stage], state.stage_first[instance, stage + 1]):
                node = state.nodes[k]
                if node.used + kv_bytes(state, k, tokens) <= node.capacity:
                    memory = True
                    if has_room(node, holder.phase):
                        room = True
            if not room:
                holder.reason = BATCH_FULL if memory else NO_MEMORY
                return
        if holder.phase == DECODE:
            if record.blocked_decode == NOT_BLOCKED and record.first_token < now:
                record.blocked_decode = holder.reason
        elif record.blocked_prefill == NOT_BLOCKED and record.arrival < now:
            record.blocked_prefill = holder.reason
        pop(state.requests, state.instance_list, instance)
        for stage in range(holder.stages):
            best, total = NIL, 0.0
            for k in range(state.stage_first[instance, stage], state.stage_first[instance, stage + 1]):
                node = state.nodes[k]
                if has_room(node, holder.phase) and node.used + kv_bytes(state, k, tokens) <= node.capacity:
                    node.credit += node.weight
                    total += node.weight
                    if best == NIL or node.credit > state.nodes[best].credit:
                        best = k
            chosen = state.nodes[best]
            chosen.credit -= total
            chosen.used += kv_bytes(state, best, tokens)
            chosen.peak = max(chosen.peak, chosen.used)
            chosen.resident += 1
            if holder.phase == PREFILL:
                chosen.active += 1
            state.routes[request, offset + stage] = best
        if holder.phase == DECODE:
            record.decode_admitted = now
            start_transfer(state, request)
        else:
            record.prefill_admitted = now
            first = state.routes[request, 0]
            append(state.requests, state.prompt_list, first, request)
            touch_node(state, first)


@compiled
def begin_decoding(state: State, request: int, instance: int) -> None:
    """A sequence whose KV cache is in place joins the decode steps of its nodes."""
    holder = state.instances[instance]
    offset = route_offset(state, holder.phase)
    for stage in range(holder.stages):
        state.nodes[state.routes[request, offset + stage]].active += 1
    first = state.routes[request, offset]
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
        begin_decoding(state, pop(state.requests, state.arrived_list, instance), instance)
