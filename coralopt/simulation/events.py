"""The rules of the simulation, compiled: what happens when a request arrives, a micro-batch ends, a KV cache arrives.

docs/concepts/simulation.md states every rule in words; tests hold this code equal to a second, slow writing of them.
"""

from __future__ import annotations

import numpy as np

from coralopt.simulation.kernels import (
    Array,
    append,
    compiled,
    drop_event,
    enters,
    held_tokens,
    kv_bytes,
    noise_factor,
    pop,
    push_event,
    put_first,
    route_offset,
    stage_ms,
    touch_instance,
    touch_node,
)
from coralopt.simulation.state import (
    BATCH_DONE,
    BATCH_FULL,
    DECODE,
    DRAINING,
    FINISHED,
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
    now = state.clock[0].now
    holder.area += holder.inside * (now - holder.area_at)
    holder.area_at = now
    holder.inside -= 1
    if holder.state == DRAINING and holder.inside == 0:
        holder.state = GONE
        holder.gone_at = now
    touch_instance(state, instance)


@compiled
def fits(state: State, request: int, instance: int) -> bool:
    """Whether every stage has a node that could hold the request if it were empty."""
    holder = state.instances[instance]
    tokens = held_tokens(state, request, holder.phase)
    for stage in range(holder.stages):
        found = False
        for k in range(state.stage_first[instance, stage], state.stage_first[instance, stage + 1]):
            if kv_bytes(state, k, tokens) <= state.nodes[k].capacity:
                found = True
                break
        if not found:
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
    enters(state, best)
    append(state.requests, state.instance_list, best, request)
    touch_instance(state, best)


@compiled
def start_transfer(state: State, request: int) -> None:
    """Send the KV cache from the prefill nodes to the decode nodes; every link takes its transfers in turn."""
    clock = state.clock[0]
    now = clock.now
    record = state.requests[request]
    source, target = state.instances[record.prefill_instance], state.instances[record.decode_instance]
    done = now
    offset = route_offset(state, DECODE)
    for stage in range(source.stages):
        k = state.routes[request, stage]
        node = state.nodes[k]
        seconds = kv_bytes(state, k, record.input) / node.kv_copies / node.link
        if clock.kv_contention:
            node.sent_at = max(now, node.sent_at) + seconds
            done = max(done, node.sent_at)
        else:
            done = max(done, now + seconds)
    for stage in range(target.stages):
        k = state.routes[request, offset + stage]
        node = state.nodes[k]
        seconds = kv_bytes(state, k, record.input) / node.kv_copies / node.link
        if clock.kv_contention:
            node.received_at = max(now, node.received_at) + seconds
            done = max(done, node.received_at)
        else:
            done = max(done, now + seconds)
    done += clock.kv_latency
    if source.region != target.region:
        done += clock.kv_region_latency
    push_event(state, done, KV_ARRIVED, request)


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


@compiled
def free_slot(state: State, k: int, stages: int) -> int:
    """A slot for one more micro-batch in flight from a first node; one a stage, ``NIL`` when all are taken."""
    for slot in range(stages):
        if state.slots[k, slot] == 0:
            return slot
    return NIL


@compiled
def try_start(state: State, k: int) -> None:
    """Start a micro-batch on an idle node if enough waits."""
    node = state.nodes[k]
    if node.busy:
        return
    clock = state.clock[0]
    instance = state.instances[node.instance]
    decodes, context, prompts, prompt_tokens, ms = 0, 0, 0, 0, 0.0
    if instance.phase == PREFILL:
        while state.prompt_list[k, 2] > 0 and prompts < node.batch:
            record = state.requests[state.prompt_list[k, 0]]
            more = stage_ms(state, k, 0, 0, prompts + 1, prompt_tokens + record.input)
            if prompts > 0 and more > node.budget_ms:
                break
            ms = more
            prompts += 1
            prompt_tokens += record.input
            record.chunk = record.input
            append(state.requests, state.batch_list, k, pop(state.requests, state.prompt_list, k))
    else:
        slot, most = NIL, node.batch
        if node.stage == 0:
            slot = free_slot(state, k, instance.stages)
            if slot == NIL:
                return
            # A fair share, so that as many micro-batches as stages are in flight.
            most = min(most, (node.active + instance.stages - 1) // instance.stages)
        while state.decode_list[k, 2] > 0 and decodes < most:
            request = pop(state.requests, state.decode_list, k)
            record = state.requests[request]
            decodes += 1
            context += record.input + record.generated
            if node.stage == 0:
                record.slot = slot
                if np.isnan(record.decode_start):
                    record.decode_start = clock.now
            append(state.requests, state.batch_list, k, request)
        while state.prompt_list[k, 2] > 0 and prompt_tokens < node.chunk:
            record = state.requests[state.prompt_list[k, 0]]
            if node.stage == 0:
                record.chunk = min(record.input - record.prefilled, node.chunk - prompt_tokens)
                record.slot = slot
            elif prompt_tokens > 0 and prompt_tokens + record.chunk > node.chunk:
                break
            prompts = 1
            prompt_tokens += record.chunk
            append(state.requests, state.batch_list, k, pop(state.requests, state.prompt_list, k))
        if node.stage == 0:
            state.slots[k, slot] = state.batch_list[k, 2]
        if decodes + prompts > 0:
            ms = stage_ms(state, k, decodes, context, prompts, prompt_tokens)
    if decodes + prompts == 0:
        return
    seconds = ms * noise_factor(state) / 1e3
    node.busy = 1
    node.free_at = clock.now + seconds
    node.busy_s += seconds
    node.batches += 1
    node.decode_tokens += decodes
    node.prompt_tokens += prompt_tokens
    push_event(state, node.free_at, BATCH_DONE, k)


@compiled
def finish_batch(state: State, k: int) -> None:
    """Hand every request of the micro-batch to its next stage, its next round, or its next phase."""
    node = state.nodes[k]
    node.busy = 0
    holder = state.instances[node.instance]
    offset = route_offset(state, holder.phase)
    now = state.clock[0].now
    while state.batch_list[k, 2] > 0:
        request = pop(state.requests, state.batch_list, k)
        record = state.requests[request]
        prefilling = record.prefilled < record.input
        if node.stage + 1 < holder.stages:
            following = state.routes[request, offset + node.stage + 1]
            if prefilling:
                append(state.requests, state.prompt_list, following, request)
            else:
                append(state.requests, state.decode_list, following, request)
            touch_node(state, following)
            continue
        if holder.phase == PREFILL:
            # At work no more; the memory is held until the KV cache is elsewhere.
            for stage in range(holder.stages):
                state.nodes[state.routes[request, stage]].active -= 1
            touch_instance(state, node.instance)
        else:
            first = state.routes[request, offset]
            state.slots[first, record.slot] -= 1
            if state.slots[first, record.slot] == 0:
                touch_node(state, first)
        if prefilling:
            record.prefilled += record.chunk
            if record.prefilled < record.input:
                # The next chunk of a prompt goes before prompts that came later.
                first = state.routes[request, offset]
                put_first(state.requests, state.prompt_list, first, request)
                touch_node(state, first)
                continue
            record.first_token = now
            record.generated = 1
            if record.output > 1:
                if holder.phase == PREFILL:
                    route(state, request, 3 * record.model + DECODE)
                else:
                    record.decode_admitted = now
                    begin_decoding(state, request, node.instance)
                continue
        else:
            record.generated += 1
            if record.generated < record.output:
                first = state.routes[request, offset]
                append(state.requests, state.decode_list, first, request)
                touch_node(state, first)
                continue
        record.finish = now
        record.status = FINISHED
        leave(state, request, node.instance)
    touch_node(state, k)


@compiled
def settle(state: State) -> None:
    """Everything of this instant has happened: take in requests, then start micro-batches."""
    clock = state.clock[0]
    for t in range(clock.touched_instances):
        i = state.touched_instances[t]
        state.instances[i].touched = 0
        begin_arrived(state, i)
        admit(state, i)
    clock.touched_instances = 0
    for t in range(clock.touched_nodes):
        k = state.touched_nodes[t]
        state.nodes[k].touched = 0
        try_start(state, k)
    clock.touched_nodes = 0


@compiled
def route_waiting(state: State, pool: int, now: float) -> None:
    """An instance of the pool serves now: route the requests that found none."""
    state.clock[0].now = now
    for _ in range(state.pool_list[pool, 2]):
        route(state, pop(state.requests, state.pool_list, pool), pool)
    settle(state)


@compiled
def run(state: State, until: float, most_events: int) -> bool:
    """Play all events before ``until`` (s), at most about ``most_events``; whether none before ``until`` is left."""
    clock = state.clock[0]
    handled = 0
    total = len(state.requests)
    while True:
        time = np.inf
        if clock.events > 0:
            time = state.heap_time[0]
        if clock.next_arrival < total:
            time = min(time, state.requests[clock.next_arrival].arrival)
        if time >= until or handled >= most_events:
            break
        clock.now = time
        while clock.events > 0 and state.heap_time[0] == time:
            kind, what = state.heap_what[0, 1], state.heap_what[0, 2]
            drop_event(state)
            handled += 1
            if kind == BATCH_DONE:
                finish_batch(state, what)
            else:
                record = state.requests[what]
                leave(state, what, record.prefill_instance)
                record.kv_arrived = time
                append(state.requests, state.arrived_list, record.decode_instance, what)
                touch_instance(state, record.decode_instance)
        while clock.next_arrival < total and state.requests[clock.next_arrival].arrival == time:
            request = clock.next_arrival
            clock.next_arrival = request + 1
            handled += 1
            route(state, request, state.entry[state.requests[request].model])
        settle(state)
    clock.handled += handled
    return bool(time >= until)
