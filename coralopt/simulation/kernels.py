"""Compiled ground work: stage times, KV bytes and tokens, work of requests, random numbers, what changed at an instant."""

from __future__ import annotations

import math

import numpy as np

from coralopt.routing import ANSWER_SHARE, ANSWER_TOKENS
from coralopt.simulation.compiled import compiled, entry
from coralopt.simulation.state import BLOCK, DECODE, PREFILL, RESERVE, State
from coralopt.throughput.layer_times import SHORT_PASS


@compiled
def layer_time(state: State, table: int, batch: int, tokens: float) -> tuple[float, float]:
    """(ms of one layer, ms of what is not a layer) at a whole batch and any token count, linear between samples.

    Outside the sampled token counts the outermost line goes on; a batch beyond the table takes its last row.
    """
    record = state.tables[table]
    first, points = record.tokens_at, record.points
    low, high = 0, points - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if state.tokens[first + middle] <= tokens:
            low = middle
        else:
            high = middle
    left, right = state.tokens[first + low], state.tokens[first + low + 1]
    share = (tokens - left) / (right - left)
    row = record.values_at + (min(batch, record.batches) - 1) * points + low
    layer = (1.0 - share) * state.values[row, 0] + share * state.values[row + 1, 0]
    other = (1.0 - share) * state.values[row, 1] + share * state.values[row + 1, 1]
    return layer, other


@entry
def stage_ms(
    state: State, node: int, decodes: int, context: int, prompts: int, prompt_tokens: int, pairs: float
) -> float:
    """Time of one micro-batch on a node, ms, sending on included.

    Args:
        state: The simulation.
        node: The node.
        decodes: Sequences that decode one token.
        context: Sum of their contexts, tokens.
        prompts: Prompts, whole or chunks.
        prompt_tokens: Tokens of the prompts or chunks together.
        pairs: Each token of a chunk with each of its prompt's earlier chunks, counted.

    A mixed step is :func:`coralopt.throughput.layer_times.mixed_ms` on the sampled tables.
    """
    holder = state.nodes[node]
    layer, other = 0.0, 0.0
    tokens = decodes + prompt_tokens
    if prompts > 0:
        # Mixed steps are one pass over all tokens, see mixed_ms; others are as many equal prompts as the table knows.
        alone = state.instances[holder.instance].phase == PREFILL
        passes = min(prompts, state.tables[holder.prefill_table].batches) if alone else 1
        layer, other = layer_time(state, holder.prefill_table, passes, tokens / passes)
        if not alone and tokens < SHORT_PASS and tokens <= state.tables[holder.decode_table].batches:
            layer = min(layer, layer_time(state, holder.decode_table, tokens, 1.0)[0])
        layer += holder.pair_ms * pairs
    if decodes > 0:
        attending, head = layer_time(state, holder.decode_table, decodes, context / decodes)
        if prompts > 0:
            attending -= layer_time(state, holder.decode_table, decodes, 1.0)[0]
        layer += attending
        other = max(other, head)
        if prompts > 0:
            layer *= holder.mixed_factor
    time = holder.layers * layer + tokens * holder.token_ms + holder.hop_ms
    if holder.pays_head:
        time += other
    return float(time)


@compiled
def prompt_ms(state: State, request: int, node: int, first: int) -> float:
    """Time of a whole prompt alone on a node, ms; ``first`` is the first node on its way, whose chunks it comes in."""
    cached = state.requests[request].cached
    tokens = state.requests[request].input - cached
    holder = state.nodes[first]
    chunk = holder.chunk if holder.chunk > 0 else tokens
    whole, rest = tokens // chunk, tokens % chunk
    time = 0.0
    if whole > 0:
        # The mean of so many whole chunks, each of which attends to all before it.
        time += whole * stage_ms(state, node, 0, 0, 1, chunk, chunk * (cached + chunk * (whole - 1) / 2))
    if rest > 0:
        time += stage_ms(state, node, 0, 0, 1, rest, float(rest * (cached + tokens - rest)))
    return time


@compiled
def kv_bytes(state: State, node: int, tokens: int) -> int:
    """KV bytes of one sequence of so many tokens on a node, rounded up to whole bytes."""
    holder = state.nodes[node]
    size: int = math.ceil(holder.kv_full * tokens + holder.kv_window * min(float(tokens), holder.window))
    return size


@compiled
def link_seconds(state: State, node: int, tokens: int, path: float) -> float:
    """Seconds that a node's link, or the way between regions, takes for its part of the KV cache of so many tokens."""
    return float(kv_bytes(state, node, tokens) / state.nodes[node].kv_copies / min(state.nodes[node].link, path))


@compiled
def path_bytes_s(state: State, request: int, instance: int) -> float:
    """Bytes/s at which a node may send the KV cache of a request to a decode instance; 0 where it may not go there."""
    source = state.requests[request].prefill_instance
    if state.paths.shape[1] == 0 or source < 0:
        return np.inf
    model = state.requests[request].model
    return float(state.paths[model, state.instances[source].region, state.instances[instance].region])


@compiled
def uniform(state: State) -> float:
    """The next random number inside (0, 1) (splitmix64)."""
    clock = state.clock[0]
    clock.random = clock.random + np.uint64(0x9E3779B97F4A7C15)
    z = clock.random
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (float(z >> np.uint64(11)) + 0.5) / 9007199254740992.0


@compiled
def noise_factor(state: State) -> float:
    """The next lognormal factor of mean 1 (Box-Muller); 1 without noise."""
    spread = state.clock[0].noise
    if spread == 0.0:
        return 1.0
    radius = math.sqrt(-2.0 * math.log(uniform(state)))
    normal = radius * math.cos(2.0 * math.pi * uniform(state))
    sigma2 = math.log1p(spread * spread)
    return math.exp(math.sqrt(sigma2) * normal - sigma2 / 2.0)


@compiled
def touch_instance(state: State, instance: int) -> None:
    """Look at the instance's waiting requests once this instant is over."""
    if state.instances[instance].touched == 0:
        state.instances[instance].touched = 1
        clock = state.clock[0]
        state.touched_instances[clock.touched_instances] = instance
        clock.touched_instances += 1


@compiled
def touch_node(state: State, node: int) -> None:
    """See whether the node can start a micro-batch once this instant is over."""
    if state.nodes[node].touched == 0:
        state.nodes[node].touched = 1
        clock = state.clock[0]
        state.touched_nodes[clock.touched_nodes] = node
        clock.touched_nodes += 1


@compiled
def count_inside(state: State, instance: int, change: int) -> None:
    """One request more or less (``change``) inside an instance from now on."""
    holder = state.instances[instance]
    now = state.clock[0].now
    holder.area += holder.inside * (now - holder.area_at)
    holder.area_at = now
    holder.inside += change


@compiled
def most_tokens(state: State, request: int, phase: int) -> int:
    """Tokens of KV memory that a request may come to hold on every node of an instance of this phase."""
    record = state.requests[request]
    if phase == PREFILL:
        return int(record.input)
    return int(record.input) + int(record.output)


@compiled
def wanted_tokens(state: State, request: int, phase: int) -> int:
    """Tokens of KV memory that a request needs now: all it may hold, or what is there and the rest of a block."""
    most = most_tokens(state, request, phase)
    if phase == PREFILL or state.clock[0].admission == RESERVE:
        return most
    record = state.requests[request]
    return min(most, ((int(record.input) + int(record.generated)) // BLOCK + 1) * BLOCK)


@compiled
def held_tokens(state: State, request: int, phase: int) -> int:
    """Tokens of KV memory that a request holds on every node of an instance of this phase."""
    record = state.requests[request]
    return int(record.input) if phase == PREFILL else int(record.held)


@compiled
def prompt_work(state: State, request: int, phase: int) -> float:
    """Work that a request brings to an instance until its first token, see :func:`coralopt.routing.work_of`."""
    return 0.0 if phase == DECODE else float(state.requests[request].input)


@compiled
def answer_work(state: State, request: int, phase: int) -> float:
    """Work that a request is until it leaves, see :func:`coralopt.routing.work_of`."""
    return 0.0 if phase == PREFILL else ANSWER_SHARE * state.requests[request].input + ANSWER_TOKENS


@compiled
def route_offset(state: State, phase: int) -> int:
    """Where a request's nodes in an instance of this phase begin in its row of ``routes``."""
    return state.routes.shape[1] // 2 if phase == DECODE else 0
