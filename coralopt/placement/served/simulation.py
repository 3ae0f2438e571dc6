"""A simulated saturated pool: requests enter as long as the KV caches have room, every node runs all that waits in one pass.

The rules are those of Helix's simulator in its offline mode, written anew: interleaved weighted round robin over the links
by their flow, a request's KV cache reserved at every node of its way with an answer of ``reserved_output`` tokens, one
request at a time on a link, and a new request 0.1 s after a prompt or an answer has ended while the fullest layer's caches
are at most 80 % reserved. A node takes no request that would fill its cache beyond 85 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coralopt.compiling import compiled
from coralopt.errors import SolverError
from coralopt.placement.pool import PlacementPool
from coralopt.placement.served.network import PoolNetwork
from coralopt.types import Floats, Ints

#: Requests at the beginning, seconds between them, and seconds until one that is admitted later enters.
FIRST_REQUESTS, PAUSE_S = 20, 0.1
#: Share of a node's cache that admission fills, and share of the fullest layer's caches up to which requests are sent.
FILLED, WANTED = 0.85, 0.8
#: Most requests inside at once; more mean that the pool has room without end.
MOST_REQUESTS = 20_000
DONE, ARRIVED, NEW = 0, 1, 2


@dataclass(frozen=True)
class PoolSimulation:
    """What a simulated pool served.

    Attributes:
        decode_tokens_s: Decode tokens/s of each seed, after the warm-up.
        token_ms: Mean time of one token through all stages and queues, ms, over all seeds.
        requests: Mean number of requests inside, over all seeds.
    """

    decode_tokens_s: tuple[float, ...]
    token_ms: float
    requests: float

    @property
    def mean(self) -> float:
        """Mean decode tokens/s over the seeds."""
        return sum(self.decode_tokens_s) / len(self.decode_tokens_s)


def simulate_pool(
    pool: PlacementPool,
    network: PoolNetwork,
    seeds: Sequence[int] = (0,),
    warm_up_s: float = 60.0,
    window_s: float = 300.0,
) -> PoolSimulation:
    """Serve random requests on a saturated network, once for each seed.

    Args:
        pool: A pool with step times and KV caches.
        network: Pipelines on it, see :func:`pool_network`.
        seeds: Of the lengths of requests.
        warm_up_s: Seconds before tokens count.
        window_s: Seconds in which they count.

    Raises:
        SolverError: The pool has no step times or no KV caches, or more than MOST_REQUESTS requests are inside.
    """
    serving, cache = pool.served_by()
    links, kind = serving.links, network.kind
    nodes = np.stack(
        [
            network.first,
            network.layers,
            np.where(network.flow > 0, cache[kind, network.layers] * network.layers, 0),
            serving.prompts[kind],
            serving.decodes[kind, network.layers],
        ]
    ).astype(np.int64)
    rules = (
        links.latency_ms / 1e3,
        links.activation_bytes + links.token_bytes,
        links.token_bytes,
        links.copy_ms / 1e3,
        serving.reserved_output,
        warm_up_s,
        warm_up_s + window_s,
    )
    rates, totals = [], np.zeros(4)
    for seed in seeds:
        prompts, answers = serving.sample(seed, MOST_REQUESTS * 4)
        counted = _simulate(
            nodes,
            np.ascontiguousarray(serving.prompt_ms[kind] / 1e3),
            np.ascontiguousarray(serving.decode_ms[kind] / 1e3),
            (network.start, network.target, network.link_flow, network.bytes_s),
            rules,
            prompts,
            answers,
        )
        if counted[0] < 0:
            raise SolverError(
                f"more than {MOST_REQUESTS} requests are inside at once; the KV caches are too large to fill"
            )
        rates.append(float(counted[0]) / window_s)
        totals += counted
    tokens, way_s, inside_s, _ = totals
    return PoolSimulation(
        tuple(rates), 1e3 * way_s / tokens if tokens else float("inf"), inside_s / (len(rates) * (warm_up_s + window_s))
    )


@compiled()
def _push(heap: Floats, size: int, when: float, order: float, code: float, what: float) -> int:
    i = size
    while i > 0:
        above = (i - 1) // 2
        if heap[above, 0] < when or (heap[above, 0] == when and heap[above, 1] < order):
            break
        heap[i] = heap[above]
        i = above
    heap[i, 0], heap[i, 1], heap[i, 2], heap[i, 3] = when, order, code, what
    return size + 1


@compiled()
def _pop(heap: Floats, size: int) -> int:
    """Drop the first event; the caller has read row 0."""
    size -= 1
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and (
            heap[child + 1, 0] < heap[child, 0]
            or (heap[child + 1, 0] == heap[child, 0] and heap[child + 1, 1] < heap[child, 1])
        ):
            child += 1
        if heap[size, 0] < heap[child, 0] or (heap[size, 0] == heap[child, 0] and heap[size, 1] < heap[child, 1]):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = heap[size]
    return size


@compiled(nogil=True)
def _simulate(
    nodes: Ints,
    prompt_s: Floats,
    decode_s: Floats,
    links: tuple[Ints, Ints, Floats, Floats],
    rules: tuple[float, ...],
    prompts: Ints,
    answers: Ints,
) -> Floats:
    """Decode tokens in the window (-1: too many requests), seconds of their ways, request-seconds inside, requests ended."""
    start, target, weight, bytes_s = links
    latency, activation, token_bytes, copy_s, reserved, begin, end = rules
    first, layers, total, most_prompts, most_decodes = nodes[0], nodes[1], nodes[2], nodes[3], nodes[4]
    count, most = nodes.shape[1], MOST_REQUESTS
    depth = int((first + layers).max())
    # Requests: length of the prompt, tokens left, whether it decodes, links of its way, how far it is, since when.
    length, left = np.zeros(most, np.int64), np.zeros(most, np.int64)
    decoding = np.zeros(most, np.bool_)
    way, at = np.zeros((most, count + 1), np.int32), np.zeros(most, np.int64)
    since, behind = np.zeros(most), np.full(most, -1, np.int64)
    vacant = np.arange(most)[::-1].copy()
    vacancies, drawn, inside = most, 0, 0
    # Nodes: requests that wait and that run, as lists through ``behind``; tokens taken over since the last pass.
    head, tail = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    running = np.full(count, -1, np.int64)
    taken = np.zeros(count)
    room = total.astype(np.float64)
    free_layer, all_layer = np.zeros(depth), np.zeros(depth)
    for v in range(count):
        for layer in range(first[v], first[v] + layers[v]):
            all_layer[layer] += total[v] / layers[v]
    free_layer[:] = all_layer
    idle_at, load = np.zeros(len(target)), np.zeros(len(target))
    heap, size, order = np.zeros((4 * most, 4)), 0, 0.0
    for i in range(FIRST_REQUESTS):
        size = _push(heap, size, i * PAUSE_S, order, NEW, 0.0)
        order += 1.0
    tokens, way_s, inside_s, ended, clock = 0.0, 0.0, 0.0, 0.0, 0.0
    while size > 0 and heap[0, 0] <= end:
        now, code, what = heap[0, 0], int(heap[0, 2]), int(heap[0, 3])
        size = _pop(heap, size)
        inside_s += inside * (now - clock)
        clock = now
        node, send = -1, -1
        if code == DONE:
            # All requests of the pass move on, in the order in which they came.
            node = what
            r = running[node]
            running[node] = -1
            while r >= 0:
                following = behind[r]
                at[r] += 1
                link = way[r, at[r]]
                size_bytes = (1.0 if decoding[r] else float(length[r])) * (
                    token_bytes if target[link] == count else activation
                )
                idle_at[link] = max(idle_at[link], now) + size_bytes / bytes_s[link]
                size = _push(heap, size, idle_at[link] + latency, order, ARRIVED, float(r))
                order += 1.0
                r = following
        elif code == ARRIVED:
            r = what
            node = target[way[r, at[r]]]
            if node < count:
                behind[r] = -1
                if tail[node] < 0:
                    head[node] = r
                else:
                    behind[tail[node]] = r
                tail[node] = r
                taken[node] += 1.0 if decoding[r] else float(length[r])
            else:
                finished = False
                prompt_done = not decoding[r]
                if decoding[r]:
                    left[r] -= 1
                    if now >= begin:
                        tokens += 1.0
                        way_s += now - since[r]
                    finished = left[r] == 0
                decoding[r] = True
                if finished:
                    kept = int(length[r] + reserved)
                    for i in range(at[r]):
                        v = target[way[r, i]]
                        room[v] += kept * layers[v]
                        for layer in range(first[v], first[v] + layers[v]):
                            free_layer[layer] += kept
                    vacant[vacancies] = r
                    vacancies += 1
                    inside -= 1
                    ended += 1.0
                else:
                    send = r
                if prompt_done or finished:
                    used = 0.0
                    for layer in range(depth):
                        used = max(used, 1.0 - free_layer[layer] / all_layer[layer])
                    if used <= WANTED:
                        size = _push(heap, size, now + PAUSE_S, order, NEW, 0.0)
                        order += 1.0
                node = -1
        else:
            if vacancies == 0:
                return np.array([-1.0, 0.0, 0.0, 0.0])
            r = vacant[vacancies - 1]
            length[r], left[r] = prompts[drawn % len(prompts)], answers[drawn % len(answers)]
            drawn += 1
            kept = int(length[r] + reserved)
            v, hops = count, 0
            while True:
                best, least = -1, np.inf
                for link in range(start[v], start[v + 1]):
                    goal = target[link]
                    if weight[link] <= 0.0:
                        continue
                    if goal < count and room[goal] - kept * layers[goal] < (1.0 - FILLED) * total[goal]:
                        continue
                    after = load[link] + length[r] / weight[link]
                    if after < least:
                        best, least = link, after
                if best < 0:
                    break
                load[best] = least
                way[r, hops] = best
                hops += 1
                v = target[best]
                if v == count:
                    break
            if v == count and hops > 0:
                vacancies -= 1
                inside += 1
                decoding[r] = False
                for i in range(hops - 1):
                    u = target[way[r, i]]
                    room[u] -= kept * layers[u]
                    for layer in range(first[u], first[u] + layers[u]):
                        free_layer[layer] -= kept
                at[r] = 0
                since[r] = now
                size = _push(heap, size, now + latency, order, ARRIVED, float(r))
                order += 1.0
            else:
                # No node of the way has room: the request goes elsewhere, and its weight on the links with it.
                for i in range(hops):
                    load[way[r, i]] -= length[r] / weight[way[r, i]]
        if send >= 0:
            for i in range(at[send] + 1):
                load[way[send, i]] += 1.0 / weight[way[send, i]]
            at[send] = 0
            since[send] = now
            size = _push(heap, size, now + latency, order, ARRIVED, float(send))
            order += 1.0
        if node >= 0 and running[node] < 0 and head[node] >= 0:
            # A pass of all that waits, as far as the limits go; what stays keeps its place.
            batch_prompts, batch_tokens, batch_decodes = 0, 0, 0
            last_run, last_wait = -1, -1
            r, head[node], tail[node] = head[node], -1, -1
            while r >= 0:
                following = behind[r]
                if decoding[r]:
                    runs = batch_decodes < most_decodes[node]
                    batch_decodes += 1 if runs else 0
                else:
                    runs = batch_prompts < most_prompts[node]
                    if runs:
                        batch_prompts += 1
                        batch_tokens += length[r]
                behind[r] = -1
                if runs:
                    if last_run < 0:
                        running[node] = r
                    else:
                        behind[last_run] = r
                    last_run = r
                else:
                    if last_wait < 0:
                        head[node] = r
                    else:
                        behind[last_wait] = r
                    last_wait = r
                    tail[node] = r
                r = following
            seconds = (
                layers[node] * (prompt_s[node, batch_tokens] + decode_s[node, batch_decodes]) + taken[node] * copy_s
            )
            taken[node] = 0.0
            size = _push(heap, size, now + seconds, order, DONE, float(node))
            order += 1.0
    return np.array([tokens, way_s, inside_s, ended])
