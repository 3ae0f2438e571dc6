"""Pipelines on a pool as a network: its nodes, its links, and the maximum flow that says how much each link carries."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import networkx as nx
import numpy as np

from coralopt.errors import SolverError
from coralopt.placement.pool import PlacementPool
from coralopt.placement.pool_serving import PoolLinks
from coralopt.placement.problem_parts import Placement
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

    The links of equal stages are made in the order of the nodes; networkx decides which of them carry the flow, as it
    does in Helix. A flow that is spread over all links would be as large, and another one serves another number of tokens.

    Raises:
        SolverError: The pool does not say how its nodes serve, or no token gets through.
    """
    serving, _ = pool.served_by()
    nodes = _nodes(pool, pipelines)
    count = len(nodes.kind)
    pairs = [(count, v) for pipeline in nodes.stages for v in pipeline[0]]
    for pipeline in nodes.stages:
        for before, after in itertools.pairwise(pipeline):
            pairs += [(u, v) for u in before for v in after]
    pairs += [(u, count) for pipeline in nodes.stages for u in pipeline[-1]]
    # Helix makes its flow of the links that are used, and its router sends nothing where next to nothing flows.
    ends, link_flow = _flow(nodes.capacity, np.array(pairs, dtype=np.int64), serving.links)
    while True:
        out = np.bincount(ends[:, 0], weights=link_flow, minlength=count + 1)
        used = (link_flow > 0) & (link_flow >= LEAST_SHARE * out[ends[:, 0]])
        if used.all():
            break
        ends, link_flow = _flow(nodes.capacity, ends[used], serving.links)
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


def _flow(capacity: list[float], ends: Ints, links: PoolLinks) -> tuple[Ints, Floats]:
    """A maximum flow over links, int64 (M, 2), by sender, and what each carries, tokens/s.

    Of several maximum flows networkx finds one by the order of nodes and edges, so these are made as Helix makes them: the
    coordinator, interface and passes of every node, the links from the coordinator, those of the nodes.

    Raises:
        SolverError: No token gets through.
    """
    count, ends = len(capacity), ends[np.argsort(ends[:, 0], kind="stable")]
    senders, goals = ends.T
    first, last = senders == count, goals == count
    whole = links.token_bytes + links.activation_bytes
    inner, outer = (
        np.bincount(side[~rest], minlength=count + 1) > 0 for side, rest in ((goals, first), (senders, last))
    )
    graph = nx.DiGraph()
    graph.add_edge("source", (count, "out"), capacity=links.nic_bytes_s / links.token_bytes)
    graph.add_edge((count, "in"), "sink", capacity=links.nic_bytes_s / links.token_bytes)
    for v in np.unique(ends[ends < count]).tolist():
        graph.add_edge((v, "in"), (v, "start"), capacity=links.nic_bytes_s / (whole if inner[v] else links.token_bytes))
        graph.add_edge((v, "start"), (v, "end"), capacity=capacity[v])
        graph.add_edge((v, "end"), (v, "out"), capacity=links.nic_bytes_s / (whole if outer[v] else links.token_bytes))
    for k in np.argsort(~first, kind="stable").tolist():
        size = links.token_bytes if first[k] or last[k] else whole
        graph.add_edge((int(senders[k]), "out"), (int(goals[k]), "in"), capacity=links.bytes_s / size)
    throughput, flows = nx.maximum_flow(graph, "source", "sink")
    if throughput <= 0:
        raise SolverError("no token gets through the pipelines: a node cannot hold the layers of its stage")
    carried = [flows[u, "out"][v, "in"] for u, v in ends.tolist()]
    return ends, np.array(carried, dtype=np.float64)


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
