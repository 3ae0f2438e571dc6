"""Independent judgement of a placement: nothing here is shared with a formulation or a solver."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

from coralopt.placement.problem import Placement, PlacementProblem
from coralopt.solving.problem import Check, Violation
from coralopt.throughput.tables import stage_role
from coralopt.types import Floats


def throughput_of(values: Floats, placement: Placement) -> float:
    """Throughput of a placement in tokens/s: the least over the stages of the sum over their nodes.

    The sum runs over the configurations in order, count times tokens/s, so that the same placement always gives the
    same float.

    Args:
        values: float64 (S, 3, C, L + 1), tokens/s of one node.
        placement: At most S stages of 0..L layers.

    Returns:
        tokens/s; 0 when a node cannot hold the layers of its stage or a stage has no node.
    """
    count = len(placement.stages)
    lowest = float("inf")
    for position, stage in enumerate(placement.stages):
        total = 0.0
        for configuration, nodes in enumerate(stage.nodes):
            if nodes > 0:
                one = float(values[count - 1, stage_role(position, count), configuration, stage.layers])
                if one <= 0.0:
                    return 0.0
                total += nodes * one
        lowest = min(lowest, total)
    return lowest if count else 0.0


def check_placement(problem: PlacementProblem, placement: Placement) -> Check:
    """Every rule of the problem that ``placement`` breaks, in words, and its throughput in tokens/s.

    An infeasible placement has objective 0.
    """
    width, count = len(problem.configurations), len(placement.stages)
    wrong: list[Violation] = []
    if not 1 <= count <= problem.values.shape[0]:
        wrong.append(Violation("placement", "stages", f"{count} stages, outside 1..{problem.values.shape[0]}"))
    if problem.stages is not None and count != problem.stages:
        wrong.append(Violation("placement", "stages", f"{count} stages instead of {problem.stages}"))
    used = [0] * width
    for position, stage in enumerate(placement.stages):
        name = f"stage {position + 1} of {count}"
        broken = partial(Violation, "placement", name)
        if len(stage.nodes) != width:
            wrong.append(
                Violation("answer", name, f"{name} counts {len(stage.nodes)} configurations instead of {width}")
            )
            continue
        used = [sum(pair) for pair in zip(used, stage.nodes, strict=True)]
        if min(stage.nodes) < 0 or sum(stage.nodes) < 1:
            wrong.append(broken(f"{name} has node counts {stage.nodes}; it needs a node and no negative count"))
        if not 1 <= stage.layers <= problem.layers:
            wrong.append(broken(f"{name} holds {stage.layers} layers, outside 1..{problem.layers}"))
        elif count <= problem.values.shape[0]:
            capacity = problem.values[count - 1, stage_role(position, count), :, stage.layers]
            wrong += [
                Violation("memory", name, f"{name}: {problem.configurations[c]} cannot hold {stage.layers} layers")
                for c, nodes in enumerate(stage.nodes)
                if nodes > 0 and capacity[c] <= 0
            ]
    if placement.layers != problem.layers:
        text = f"the stages hold {placement.layers} layers instead of {problem.layers}"
        wrong.append(Violation("placement", "layers", text))
    wrong += [
        Violation("capacity", name, f"{have} nodes of {name} are placed instead of {want}")
        for name, have, want in zip(problem.configurations, used, problem.node_set, strict=True)
        if have != want
    ]
    if not wrong:  # a placement of the wrong shape has no limits to keep
        wrong += problem.limits.violations(placement, problem.gpus)
    objective = 0.0 if wrong else throughput_of(problem.values, placement)
    return Check(feasible=not wrong, objective=objective, violations=tuple(wrong))


def max_flow_throughput(values: Floats, placement: Placement) -> Fraction:
    """Throughput of a placement as a maximum flow, in exact arithmetic, tokens/s.

    Tokens flow through one node of every stage. Each node is split into an arc of capacity T_j(g); every node of a
    stage feeds every node of the next one without limit. The value is the least stage sum, found by a route that
    knows nothing of stages, so it confirms :func:`throughput_of`.
    """
    import networkx

    count = len(placement.stages)
    graph: Any = networkx.DiGraph()
    graph.add_nodes_from(("source", "sink"))
    exits: list[Any] = ["source"]
    for position, stage in enumerate(placement.stages):
        role = stage_role(position, count)
        here = [(position, c, copy) for c, nodes in enumerate(stage.nodes) for copy in range(nodes)]
        for node in here:
            capacity = Fraction(float(values[count - 1, role, node[1], stage.layers]))
            graph.add_edge((*node, "in"), (*node, "out"), capacity=capacity)
            for origin in exits:
                graph.add_edge(origin, (*node, "in"))
        exits = [(*node, "out") for node in here]
    for origin in exits:
        graph.add_edge(origin, "sink")
    flow = networkx.maximum_flow_value(graph, "source", "sink", flow_func=networkx.algorithms.flow.edmonds_karp)
    return Fraction(flow)
