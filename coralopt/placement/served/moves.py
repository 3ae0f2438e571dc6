"""Random changes of pipelines on a pool: the order of stages, their layers and nodes, idle nodes, and how many there are."""

from __future__ import annotations

import numpy as np

from coralopt.placement.pool import PlacementPool
from coralopt.placement.problem_parts import Placement, Stage

Pipelines = tuple[Placement, ...]


def moved(
    pool: PlacementPool, layout: Pipelines, generator: np.random.Generator, stages: tuple[int, int]
) -> Pipelines | None:
    """One random change, or ``None`` where it leads nowhere.

    Args:
        pool: The pool.
        layout: Pipelines on it.
        generator: Of the change.
        stages: Fewest and most stages that a pipeline may have.
    """
    draw = generator.integers
    which = int(draw(len(layout)))
    own = list(layout[which].stages)
    a, b = int(draw(len(own))), int(draw(len(own)))
    kind = int(draw(7))
    if kind >= 5:
        return _nodes_moved(pool, layout, (which, a), generator, back=kind == 6)
    if kind == 0:
        own[a], own[b] = own[b], own[a]
    elif kind == 1:
        own.insert(b, own.pop(a))
    elif a == b:
        return None
    elif kind == 2:
        if own[a].layers < 2:
            return None
        own[a] = Stage(own[a].layers - 1, own[a].nodes)
        own[b] = Stage(own[b].layers + 1, own[b].nodes)
    elif kind == 3:
        if len(own) <= stages[0]:
            return None
        both = np.add(own[a].nodes, own[b].nodes).tolist()
        own[a] = Stage(own[a].layers + own[b].layers, tuple(both))
        del own[b]
    else:
        if len(own) >= stages[1] or own[a].layers < 2:
            return None
        first, part = int(draw(1, own[a].layers)), [int(draw(count + 1)) for count in own[a].nodes]
        rest = tuple(count - some for count, some in zip(own[a].nodes, part, strict=True))
        own[a : a + 1] = [Stage(first, tuple(part)), Stage(own[a].layers - first, rest)]
    return _changed(pool, layout, {which: Placement(tuple(own))})


def _nodes_moved(
    pool: PlacementPool, layout: Pipelines, origin: tuple[int, int], generator: np.random.Generator, back: bool
) -> Pipelines | None:
    """A node moved to another stage, with ``back`` for one of its nodes, or an idle one added to its own."""
    draw = generator.integers
    goal = int(draw(len(layout)))
    b = int(draw(len(layout[goal].stages)))
    parts = [[list(stage.nodes) for stage in placement.stages] for placement in layout]
    source, target = parts[origin[0]][origin[1]], parts[goal][b]
    if origin == (goal, b):
        used = np.sum([stage for pipeline in parts for stage in pipeline], axis=0)
        idle = [c for c, count in enumerate(pool.counts) if used[c] < count]
        if not idle:
            return None
        source[idle[int(draw(len(idle)))]] += 1
    else:
        held = [c for c, count in enumerate(source) if count]
        c = held[int(draw(len(held)))]
        source[c] -= 1
        target[c] += 1
        if back:
            other = [d for d, count in enumerate(target) if count and d != c]
            if not other:
                return None
            d = other[int(draw(len(other)))]
            target[d] -= 1
            source[d] += 1
    changed = {
        k: Placement(tuple(Stage(s.layers, tuple(n)) for s, n in zip(layout[k].stages, parts[k], strict=True)))
        for k in {origin[0], goal}
    }
    return _changed(pool, layout, changed)


def _changed(pool: PlacementPool, layout: Pipelines, changed: dict[int, Placement]) -> Pipelines | None:
    other = tuple(changed.get(k, placement) for k, placement in enumerate(layout))
    if other == layout or not all(pool.check(placement).feasible for placement in changed.values()):
        return None
    return other
