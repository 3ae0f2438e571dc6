"""Nodes and the event loop, compiled: micro-batches start and end, requests arrive, KV caches arrive.

docs/concepts/simulator.md states every rule in words; tests hold this code equal to a second, slow writing of them.
"""

from __future__ import annotations

import numpy as np

from coralopt.simulation.compiled import compiled, entry
from coralopt.simulation.coordinator import enter, route
from coralopt.simulation.kernels import noise_factor, prompt_work, route_offset, stage_ms, touch_instance, touch_node
from coralopt.simulation.queues import append, drop_event, pop, push_event, put_first
from coralopt.simulation.scheduling import admit, begin_arrived, begin_decoding, grow, leave, send_back
from coralopt.simulation.state import BATCH_DONE, DECODE, FINISHED, MIXED, NIL, PREFILL, SWAPPED, State
from coralopt.simulation.turns import open_gate


@compiled
def free_slot(state: State, k: int, stages: int) -> int:
    """The slot that has been free longest for one more micro-batch in flight from a first node; one a stage, ``NIL`` when
    all are taken."""
    best = NIL
    for slot in range(stages):
        if state.slots[k, slot] == 0 and (best == NIL or state.freed_at[k, slot] < state.freed_at[k, best]):
            best = slot
    return best


@compiled
def longest_wait(state: State, k: int) -> float:
    """Since when those at the head of a node's lists have waited; infinite where nobody does."""
    since = np.inf
    if state.decode_list[k, 2] > 0:
        since = state.requests[state.decode_list[k, 0]].ready
    if state.prompt_list[k, 2] > 0:
        since = min(since, state.requests[state.prompt_list[k, 0]].ready)
    return float(since)


@compiled
def chosen_until(state: State, k: int, slot: int) -> float:
    """When the micro-batch that takes a slot was chosen: as soon as there were both the slot and somebody who waits.

    Whoever came while the first node was still busy with others is not in it. Those whose memory was taken go back.
    """
    while state.decode_list[k, 2] > 0 and state.requests[state.decode_list[k, 0]].evicted:
        send_back(state, pop(state.requests, state.decode_list, k), state.nodes[k].instance)
    while state.prompt_list[k, 2] > 0 and state.requests[state.prompt_list[k, 0]].evicted:
        send_back(state, pop(state.requests, state.prompt_list, k), state.nodes[k].instance)
    return float(max(longest_wait(state, k), state.freed_at[k, slot]))


@compiled
def chosen_since(state: State, k: int) -> float:
    """When the step that begins now was chosen, if others go on in it: with the one before it, or now."""
    node = state.nodes[k]
    holder = state.instances[node.instance]
    clock = state.clock[0]
    ahead = clock.async_scheduling and holder.phase == MIXED and holder.stages == 1
    if ahead and node.batches > 0 and node.free_at == clock.now:
        return float(node.began_at)
    return float(clock.now)


@compiled
def is_pipeline(state: State, instance: int) -> bool:
    """Whether an instance has one node a stage, as engines run it with one scheduler."""
    stages = state.instances[instance].stages
    return bool(state.stage_first[instance, stages] - state.stage_first[instance, 0] == stages)


@compiled
def next_batch(state: State, k: int) -> tuple[int, int, float]:
    """Of the next micro-batch of an idle node: slot, most sequences or whole prompts, since when at the latest they wait.

    Slot ``NIL``: as many as stages are in flight.
    """
    node = state.nodes[k]
    instance = state.instances[node.instance]
    pipeline = is_pipeline(state, node.instance)
    if node.stage > 0 and pipeline:
        # It passes through all stages as the first node chose it.
        return 0, len(state.requests), longest_wait(state, k)
    if node.stage > 0 or (instance.phase == PREFILL and not pipeline):
        return 0, node.batch, np.inf
    slot = free_slot(state, k, instance.stages)
    if slot == NIL:
        return NIL, 0, 0.0
    if pipeline:
        return slot, node.batch, chosen_until(state, k, slot)
    # A fair share, so that as many micro-batches as stages are in flight. With nobody at work, all that wait were
    # preempted (one of another first node may have taken their memory), and go back where they are taken.
    share = max(1, (node.active + instance.stages - 1) // instance.stages)
    return slot, min(node.batch, share), np.inf


@compiled
def prompt_part(state: State, k: int, request: int, decodes: int, prompts: int, tokens: int, pairs: float) -> int:
    """Tokens of a waiting prompt that a step takes beside what it has (see :func:`stage_ms`); 0 where it is full."""
    node, record = state.nodes[k], state.requests[request]
    left = record.target - record.prefilled
    if node.chunk == 0:
        # Whole prompts; the first one whatever it takes.
        if prompts == 0:
            return int(left)
        ms = stage_ms(state, k, 0, 0, prompts + 1, tokens + left, pairs + left * record.prefilled)
        return int(left) if prompts < node.batch and ms <= node.budget_ms else 0
    room = node.chunk - decodes - tokens
    if node.stage == 0:
        return int(max(0, min(left, room)))
    return int(record.chunk) if prompts == 0 or record.chunk <= room else 0


@compiled
def try_start(state: State, k: int) -> None:
    """Start a micro-batch on an idle node if enough waits and none that shares its GPUs is busy."""
    node = state.nodes[k]
    if node.busy:
        return
    peer = k + node.peer
    while peer != k:
        if state.nodes[peer].busy:
            return
        peer += state.nodes[peer].peer
    slot, most, until = next_batch(state, k)
    if slot == NIL:
        return
    clock = state.clock[0]
    first = node.stage == 0
    decodes, context, prompts, prompt_tokens, pairs = 0, 0, 0, 0, 0.0
    while state.decode_list[k, 2] > 0 and decodes < most:
        record = state.requests[state.decode_list[k, 0]]
        if record.ready > until:
            break
        request = pop(state.requests, state.decode_list, k)
        if first:
            if record.evicted:
                send_back(state, request, node.instance)
                continue
            record.slot = slot
            if np.isnan(record.decode_start):
                record.decode_start = clock.now
        decodes += 1
        context += record.input + record.generated
        append(state.requests, state.batch_list, k, request)
    chosen_at = chosen_since(state, k)
    goes_on = decodes > 0
    as_chosen = not first and is_pipeline(state, node.instance)
    while state.prompt_list[k, 2] > 0:
        request = state.prompt_list[k, 0]
        record = state.requests[request]
        if record.ready > until:
            break
        if first and record.evicted:
            send_back(state, pop(state.requests, state.prompt_list, k), node.instance)
            continue
        if record.prefilled > record.cached:
            goes_on = True
        elif goes_on and record.prefill_admitted > chosen_at:
            break
        if not as_chosen:
            part = prompt_part(state, k, request, decodes, prompts, prompt_tokens, pairs)
            if part == 0:
                break
            record.chunk = part
        if first:
            record.slot = slot
        prompts += 1
        prompt_tokens += record.chunk
        pairs += record.chunk * record.prefilled
        append(state.requests, state.batch_list, k, pop(state.requests, state.prompt_list, k))
    if decodes + prompts == 0:
        return
    if first:
        state.slots[k, slot] += state.batch_list[k, 2]
    ms = stage_ms(state, k, decodes, context, prompts, prompt_tokens, pairs)
    seconds = ms * noise_factor(state) / 1e3
    node.busy = 1
    node.began_at = clock.now
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
    # Those that share its GPUs have their turn before it.
    peer = k + node.peer
    while peer != k:
        touch_node(state, peer)
        peer += state.nodes[peer].peer
    holder = state.instances[node.instance]
    offset = route_offset(state, holder.phase)
    now = state.clock[0].now
    for _ in range(state.batch_list[k, 2]):
        request = pop(state.requests, state.batch_list, k)
        record = state.requests[request]
        prefilling = record.prefilled < record.target
        if node.stage + 1 < holder.stages:
            following = state.routes[request, offset + node.stage + 1]
            record.ready = now
            if prefilling:
                append(state.requests, state.prompt_list, following, request)
            else:
                append(state.requests, state.decode_list, following, request)
            touch_node(state, following)
            continue
        first = state.routes[request, offset]
        state.slots[first, record.slot] -= 1
        if state.slots[first, record.slot] == 0:
            state.freed_at[first, record.slot] = now
            touch_node(state, first)
        if prefilling:
            record.prefilled += record.chunk
            if record.prefilled < record.target:
                # The next chunk of a prompt goes before prompts that came later.
                if record.evicted:
                    send_back(state, request, node.instance)
                    continue
                record.ready = now
                put_first(state.requests, state.prompt_list, first, request)
                touch_node(state, first)
                continue
            if holder.phase == PREFILL:
                # At work no more; the memory is held until the KV cache is elsewhere.
                for stage in range(holder.stages):
                    state.nodes[state.routes[request, stage]].active -= 1
                touch_instance(state, node.instance)
            if record.generated == 0:
                record.first_token = now
                holder.work -= prompt_work(state, request, holder.phase)
                if holder.phase != PREFILL and record.output > 1:
                    record.decode_admitted = now
            else:
                record.away += now
        record.generated += 1
        if record.generated == record.output:
            record.finish = now
            record.status = FINISHED
            leave(state, request, node.instance)
        elif holder.phase == PREFILL:
            route(state, request, 3 * record.model + DECODE)
        elif record.evicted:
            send_back(state, request, node.instance)
        elif record.input + record.generated >= record.held:
            # Its last block is full. More memory once all of this micro-batch that ends has given its own back.
            append(state.requests, state.batch_list, k, request)
        elif record.decoding:
            record.ready = now
            append(state.requests, state.decode_list, first, request)
            touch_node(state, first)
        else:
            begin_decoding(state, request, node.instance)
    while state.batch_list[k, 2] > 0:
        request = pop(state.requests, state.batch_list, k)
        if state.requests[request].evicted or not grow(state, request, node.instance):
            send_back(state, request, node.instance)
        else:
            begin_decoding(state, request, node.instance)
    touch_node(state, k)


@compiled
def settle(state: State) -> None:
    """Everything of this instant has happened: take in requests, then start micro-batches."""
    clock = state.clock[0]
    while clock.touched_instances + clock.touched_nodes > 0:
        for t in range(clock.touched_instances):
            i = state.touched_instances[t]
            state.instances[i].touched = 0
            begin_arrived(state, i)
            admit(state, i)
        clock.touched_instances = 0
        # Nodes may send what was preempted back to its instance, which is then looked at once more.
        for t in range(clock.touched_nodes):
            k = state.touched_nodes[t]
            state.nodes[k].touched = 0
            try_start(state, k)
        clock.touched_nodes = 0


@entry
def route_waiting(state: State, pool: int, now: float) -> None:
    """An instance of the pool serves now: route the requests that found none."""
    state.clock[0].now = now
    for _ in range(state.pool_list[pool, 2]):
        route(state, pop(state.requests, state.pool_list, pool), pool)
    settle(state)


@entry
def run(state: State, until: float, most_events: int) -> bool:
    """Process all events before ``until`` (s), at most about ``most_events``; whether none before ``until`` is left."""
    clock = state.clock[0]
    handled = 0
    total = len(state.requests)
    while True:
        time = np.inf
        if clock.events > 0:
            time = state.heap_time[0]
        if clock.next_arrival < total:
            time = min(time, state.requests[clock.next_arrival].arrival + clock.host_request)
        if time >= until or handled >= most_events:
            break
        clock.now = time
        while clock.events > 0 and state.heap_time[0] == time:
            kind, what = state.heap_what[0, 1], state.heap_what[0, 2]
            drop_event(state)
            handled += 1
            if kind == BATCH_DONE:
                finish_batch(state, what)
            elif kind == SWAPPED:
                open_gate(state, what)
            else:
                record = state.requests[what]
                leave(state, what, record.prefill_instance)
                record.kv_arrived = time
                if state.instances[record.decode_instance].stages > 0:
                    append(state.requests, state.arrived_list, record.decode_instance, what)
                    touch_instance(state, record.decode_instance)
                else:
                    # Without nodes, what comes after the cache is not simulated.
                    record.finish = time
                    record.status = FINISHED
                    leave(state, what, record.decode_instance)
        while clock.next_arrival < total and state.requests[clock.next_arrival].arrival + clock.host_request == time:
            request = clock.next_arrival
            clock.next_arrival = request + 1
            handled += 1
            enter(state, request)
        settle(state)
    clock.handled += handled
    return bool(time >= until)
