"""Pipelines on a pool as a network: its nodes, its links, and the maximum flow that says how much each link carries."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from coralopt.errors import SolverError
from coralopt.placement.pool import PlacementPool
from coralopt.placement.pool_serving import PoolLinks
from coralopt.placement.problem_parts import Placement
from coralopt.placement.served.max_flow import max_flow
from coralopt.throughput import stage_role
from coralopt.types import Floats, Ints

#: A link with a smaller share of its sender's flow gets no request.
LEAST_SHARE = 0.05


@dataclass(frozen=True, eq=False)
class PoolNetwork:
    """N nodes that hold layers and the E links between them; node N is the coordinator, where requests begin and end.

    Attributes:
        kind: int64 (N,), configuration of each node.
        first: int64 (N,), its first layer.
        layers: int64 (N,), layers it holds.
        flow: float64 (N,), tokens/s that reach it; a node without is idle, and its cache is not counted.
        start: int64 (N + 2,), links of node v are ``start[v]..start[v + 1]``.
        target: int64 (E,), where a link leads.
        link_flow: float64 (E,), tokens/s over it; 0 below LEAST_SHARE of what its sender passes on.
        bytes_s: float64 (E,), bandwidth, bytes/s.
        throughput: Maximum flow of the network, tokens/s.
    """

    kind: Ints
    first: Ints
    layers: Ints
    flow: Floats
    start: Ints
    target: Ints
    link_flow: Floats
    bytes_s: Floats
    throughput: float


def pool_network(pool: PlacementPool, pipelines: tuple[Placement, ...]) -> PoolNetwork:
    """The network of pipelines, which share the requests, with one maximum flow of those that exist.

    The links of equal stages are made in the order of the nodes, and which of them carry the flow is decided as in Helix.
    A flow that is spread over all links would be as large, and another one serves another number of tokens.

    Raises:
        SolverError: The pool does not say how its nodes serve, or no token gets through.
    """
    serving, _ = pool.served_by()
    nodes = _nodes(pool, pipelines)
    count, capacity = len(nodes.kind), np.array(nodes.capacity)
    pairs = [(count, v) for pipeline in nodes.stages for v in pipeline[0]]
    for pipeline in nodes.stages:
        for before, after in itertools.pairwise(pipeline):
            pairs += [(u, v) for u in before for v in after]
    pairs += [(u, count) for pipeline in nodes.stages for u in pipeline[-1]]
    # Helix makes its flow of the links that are used, and its router sends nothing where next to nothing flows.
    ends, link_flow = _flow(capacity, np.array(pairs, dtype=np.int64), serving.links)
    while True:
        out = np.bincount(ends[:, 0], weights=link_flow, minlength=count + 1)
        used = (link_flow > 0) & (link_flow >= LEAST_SHARE * out[ends[:, 0]])
        if used.all():
            break
        ends, link_flow = _flow(capacity, ends[used], serving.links)
    into: Floats = np.bincount(ends[:, 1], weights=link_flow, minlength=count + 1).astype(np.float64)
    share = np.minimum(link_flow / out[ends[:, 0]], link_flow / into[ends[:, 1]])
    return PoolNetwork(
        kind=np.array(nodes.kind, dtype=np.int64),
        first=np.array(nodes.first, dtype=np.int64),
        layers=np.array(nodes.layers, dtype=np.int64),
        flow=into[:count],
        start=np.searchsorted(ends[:, 0], np.arange(count + 2)).astype(np.int64),
        target=ends[:, 1].copy(),
        link_flow=link_flow,
        bytes_s=np.maximum(np.minimum(serving.links.bytes_s, share * serving.links.nic_bytes_s), 1.0),
        throughput=float(out[count]),
    )


def _flow(capacity: Floats, ends: Ints, links: PoolLinks) -> tuple[Ints, Floats]:
    """A maximum flow over links, int64 (M, 2), by sender, and what each carries, tokens/s.

    Of several maximum flows one is found by the order of nodes and edges, so these are as Helix makes them: the coordinator,
    interface and passes of every node, the links from the coordinator, those of the nodes.

    Raises:
        SolverError: No token gets through.
    """
    count, ends = len(capacity), ends[np.argsort(ends[:, 0], kind="stable")]
    senders, goals = ends.T
    first, last = senders == count, goals == count
    whole = links.token_bytes + links.activation_bytes
    inner, outer = (
        np.bincount(side[~rest], minlength=count + 1)[:count] > 0 for side, rest in ((goals, first), (senders, last))
    )
    # Nodes in and out: 0 is the source, 1 the coordinator's way out, 2 its way in, then the nodes with links, the sink.
    known = np.zeros(count + 1, dtype=bool)
    known[senders] = known[goals] = True
    known[count] = False
    ins = np.cumsum(known) * 4 - 1
    ins[count] = 2
    outs = ins + 3
    outs[count] = 1
    sink = int(known.sum()) * 4 + 3
    own, limits = ins[:count][known[:count]], capacity[known[:count]]
    nic_in, nic_out = (
        links.nic_bytes_s / np.where(side, whole, links.token_bytes)[known[:count]] for side in (inner, outer)
    )
    order = np.argsort(~first, kind="stable")
    hub = links.nic_bytes_s / links.token_bytes
    steps = np.stack([np.stack([own + k, own + k + 1], axis=1) for k in range(3)], axis=1).reshape(-1, 2)
    flow_ends = np.concatenate([[[0, 1], [2, sink]], steps, np.stack([outs[senders], ins[goals]], axis=1)[order]])
    sizes = np.where(first | last, links.token_bytes, whole)[order]
    most = np.concatenate([[hub, hub], np.stack([nic_in, limits, nic_out], axis=1).reshape(-1), links.bytes_s / sizes])
    throughput, flows = max_flow(flow_ends, most, sink + 1)
    if throughput <= 0:
        raise SolverError("no token gets through the pipelines: a node cannot hold the layers of its stage")
    carried = np.zeros(len(ends))
    carried[order] = flows[2 + len(steps) :]
    return ends, carried


@dataclass
class _Nodes:
    """By node, in the order of pipelines, stages and configurations; ``stages``: nodes of each stage of each pipeline."""

    kind: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    capacity: list[float] = field(default_factory=list)
    stages: list[list[range]] = field(default_factory=list)


def _nodes(pool: PlacementPool, pipelines: tuple[Placement, ...]) -> _Nodes:
    nodes = _Nodes()
    for placement in pipelines:
        begin, count = 0, len(placement.stages)
        nodes.stages.append([])
        for position, stage in enumerate(placement.stages):
            table = pool.values[count - 1, stage_role(position, count)]
            nodes.stages[-1].append(range(len(nodes.kind), len(nodes.kind) + sum(stage.nodes)))
            for c, many in enumerate(stage.nodes):
                nodes.kind += [c] * many
                nodes.first += [begin] * many
                nodes.layers += [stage.layers] * many
                nodes.capacity += [float(table[c, stage.layers])] * many
            begin += stage.layers
    return nodes
