"""Independent judgement of a placement: nothing here is shared with a formulation or a solver."""

from __future__ import annotations

from functools import partial

from coralopt.placement.cells import throughput_of
from coralopt.placement.problem import PlacementProblem
from coralopt.placement.problem_parts import Placement
from coralopt.solving.problem import Check, Violation
from coralopt.throughput.tables import stage_role


def check_placement(problem: PlacementProblem, placement: Placement) -> Check:
    """Every rule of the problem that ``placement`` breaks, in words, and its throughput in tokens/s.

    An infeasible placement has objective 0.
    """
    values, coupling = problem.cells
    width, count = len(problem.configurations), len(placement.stages)
    wrong: list[Violation] = []
    if not 1 <= count <= values.shape[0]:
        wrong.append(Violation("placement", "stages", f"{count} stages, outside 1..{values.shape[0]}"))
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
        elif count <= values.shape[0]:
            capacity = values[count - 1, stage_role(position, count), :, :, stage.layers].max(axis=1)
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
    objective = 0.0 if wrong else throughput_of(values, placement, coupling)
    if not wrong and objective <= 0:
        wrong.append(Violation("memory", "stages", "no cells let every node hold its layers"))
    return Check(feasible=not wrong, objective=objective, violations=tuple(wrong))
