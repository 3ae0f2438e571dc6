"""Decode tokens/s of a saturated pool by a formula: convoys behind prompts, KV caches, and Little's law.

A decoding request in one pass with a prompt leaves with it and meets it again at the next node: the convoy ends where
links part, or where a node is free. With X decode tokens/s, share phi_v of them at node v with j layers, ``out`` tokens an
answer, and prompts of ``in`` tokens:

    c0_v = j d(b_v)                        a pass over b_v = X phi_v c0_v decoding requests
    c1_v = j (d(b_v) + p(in)) + transfer   the same with one prompt, and its activations taken over and sent on
    u_v  = X phi_v / out * c1_v            share of the time that passes with prompts take
    w_v  = u_v c1_v / (2 (1 - u_v))        how long a prompt waits for those before it
    s                                      share of the tokens at a node that travel with a prompt: it becomes
                                           s + (1 - s) u_v (1 - c0_v / c1_v) behind the node, times the link's share of
                                           the flow of its sender
    R    = sum_v phi_v [s (c1_v + w_v) + (1 - s) (3/2 c0_v + u_v c1_v / 2) + latency]     one token's way, s
    R_p  = sum_v phi_v [c1_v + w_v + c0_v / 2 + latency]                                  one prompt's way, s
    N    = X R + X / out R_p                                                              requests inside (Little)

N is how many requests the KV caches hold: with K_v tokens of every layer at node v, and ``in`` here the mean prompt of the
requests inside, 0.9 * 0.85 / (in + reserved) times the mean of min_v K_v / phi_v and the least over the layers of sum K_v.
The largest X with these N requests is the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coralopt.compiling import compiled
from coralopt.placement.pool import PlacementPool
from coralopt.placement.served.network import PoolNetwork
from coralopt.placement.served.simulation import FILLED
from coralopt.types import Floats, Ints

#: How much of what admission fills of a KV cache is in use on average.
IN_USE = 0.9


@dataclass(frozen=True)
class ServedEstimate:
    """What the formula says of a network.

    Attributes:
        decode_tokens_s: Decode tokens/s when requests never end.
        requests: Requests that fit into the KV caches.
        token_ms: Mean time of one token through all stages and queues, ms.
    """

    decode_tokens_s: float
    requests: float
    token_ms: float


def estimate_served(pool: PlacementPool, network: PoolNetwork) -> ServedEstimate:
    """The formula of this module for one network.

    Raises:
        SolverError: The pool has no step times or no KV caches.
    """
    serving, cache = pool.served_by()
    share = network.flow / network.throughput
    used = share > 0
    held = np.where(used, cache[network.kind, network.layers], 0).astype(np.float64)
    by_layer = np.zeros(int((network.first + network.layers).max()))
    for first, layers, tokens in zip(network.first, network.layers, held, strict=True):
        by_layer[first : first + layers] += tokens
    mean_in, mean_out = serving.mean_input, serving.mean_output
    fits = (float((held[used] / share[used]).min()) + float(by_layer.min())) / 2
    requests = IN_USE * FILLED * fits / (serving.resident_input + serving.reserved_output)
    links = serving.links
    at = min(round(mean_in), serving.prompt_ms.shape[1] - 1)
    prompt_s = network.layers * serving.prompt_ms[network.kind, at] / 1e3 + mean_in * links.copy_ms / 1e3
    sent = network.link_flow / network.bytes_s
    owner = np.repeat(np.arange(len(network.start) - 1), np.diff(network.start))
    between = (owner < len(network.kind)) & (network.target < len(network.kind))
    sending = np.bincount(owner[between], weights=sent[between], minlength=len(network.kind))[: len(network.kind)]
    with np.errstate(divide="ignore", invalid="ignore"):
        prompt_s += np.where(used, sending / network.flow, 0.0) * mean_in * links.activation_bytes
    nodes = _Nodes(
        layers=network.layers,
        share=share,
        decode_s=np.ascontiguousarray(serving.decode_ms[network.kind] / 1e3),
        prompt_s=prompt_s,
        most=serving.decodes[network.kind, network.layers],
        order=np.argsort(network.first, kind="stable").astype(np.int64),
    )
    between_nodes = _Links(network.start, network.target, network.link_flow / network.throughput)
    rate, token_s = _largest_rate(nodes, between_nodes, mean_out, requests, links.latency_ms / 1e3)
    return ServedEstimate(float(rate), requests, float(token_s) * 1e3)


class _Nodes(NamedTuple):
    """By node: layers, share of the flow, s of a layer by requests, s of a prompt, most requests, order along the layers."""

    layers: Ints
    share: Floats
    decode_s: Floats
    prompt_s: Floats
    most: Ints
    order: Ints


class _Links(NamedTuple):
    """As in the network; ``share`` of the whole flow."""

    start: Ints
    target: Ints
    share: Floats


@compiled()
def _largest_rate(
    nodes: _Nodes, links: _Links, mean_out: float, requests: float, latency: float
) -> tuple[float, float]:
    """The X at which Little's law holds, by bisection, and the time of one token, s."""
    low, high, token_s = 0.0, 1e7, 0.0
    for _ in range(60):
        rate = (low + high) / 2
        inside, way = _inside(rate, nodes, links, mean_out, latency)
        if inside <= requests:
            low, token_s = rate, way
        else:
            high = rate
    return low, token_s


@compiled()
def _inside(rate: float, nodes: _Nodes, links: _Links, mean_out: float, latency: float) -> tuple[float, float]:
    """Requests inside at a rate, infinite where a node has no time for its prompts, and the time of one token, s."""
    layers, share, decode_s, prompt_s, most, order = nodes
    count = len(layers)
    convoy = np.zeros(count + 1)
    token, prompt = 0.0, 0.0
    for v in order:
        if share[v] <= 0.0:
            continue
        batch = 1.0
        for _ in range(20):
            low = min(int(batch), most[v] - 1)
            part = min(batch - low, 1.0)
            plain = layers[v] * (decode_s[v, low] * (1.0 - part) + decode_s[v, low + 1] * part)
            batch = min(max(rate * share[v] * plain, 1.0), float(most[v]))
        full = plain + prompt_s[v]
        busy = rate * share[v] / mean_out * full
        if busy >= 1.0 or batch >= most[v]:
            return np.inf, 0.0
        wait = busy * full / (2.0 * (1.0 - busy))
        with_prompt = min(convoy[v] / share[v], 1.0)
        token += share[v] * (
            with_prompt * (full + wait) + (1.0 - with_prompt) * (1.5 * plain + busy * full / 2.0) + latency
        )
        prompt += share[v] * (full + wait + plain / 2.0 + latency)
        behind = with_prompt + (1.0 - with_prompt) * busy * (1.0 - plain / full)
        for link in range(links.start[v], links.start[v + 1]):
            convoy[links.target[link]] += links.share[link] * behind * (links.share[link] / share[v])
    return rate * token + rate / mean_out * prompt, token
