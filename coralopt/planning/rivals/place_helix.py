"""Helix on a pool of coralopt: which table it sees, what it begins with, and what its answer is worth."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from coralopt.errors import InfeasibleError, NoSolutionError, OptionError
from coralopt.placement import PlacementPool, place_pool
from coralopt.planning.rivals.helix import SOURCE, HelixLayout, HelixProblem
from coralopt.planning.rivals.helix_starts import separate_layout, staged_layout, swarm_layout
from coralopt.solving import Backend, SolveOptions, relative_gap, solve

#: What the search may begin with.
STARTS = ("heuristics", "pool", "none")
#: Seconds for a search that was given no limit: as long as Helix's artifact ran its 24 nodes.
DEFAULT_SECONDS = 600.0


@dataclass(frozen=True)
class HelixSolution:
    """A layout and how good it is.

    Attributes:
        layout: Layer ranges by node.
        nodes: Kind of each node, by name.
        throughput: Maximum flow by networkx in exact arithmetic, tokens/s.
        bound: Proven bound, tokens/s: the least of the back end's and Helix's compute bound.
        gap: (bound - throughput) / throughput.
        solver_bound: The back end's own bound, tokens/s.
        start: tokens/s of the best layout to begin with, 0 without one.
        hops: Nodes on a path: least, most, and mean weighted by flow.
        seconds: Wall time.
        raw: How the back end ended, in its own words.
    """

    layout: HelixLayout
    nodes: tuple[str, ...]
    throughput: float
    bound: float
    gap: float
    solver_bound: float
    start: float
    hops: tuple[int, int, float]
    seconds: float = field(compare=False)
    raw: str = field(compare=False)

    @property
    def proven(self) -> bool:
        """Whether no layout passes more, up to a solver's tolerance."""
        return self.gap <= 1e-6


def helix_problem(pool: PlacementPool, stages: int | None = None) -> HelixProblem:
    """The cluster of a pool as Helix sees it: one table for every length of path.

    Args:
        pool: The pool.
        stages: Where the pool's tables depend on the number of stages: the number whose latency budget SLO / S holds. Paths
            may still be longer or shorter; Helix has no SLO. Of the roles of a stage the slowest counts.

    Raises:
        OptionError: The pool's tables depend on the number of stages and none is given, or there are not so many.
    """
    if pool.stage_free:
        table = pool.values[0, 0]
    elif stages is None:
        raise OptionError(
            f"pool {pool.name} has another table for every number of stages, and Helix needs one; give --stages"
        )
    elif not 1 <= stages <= pool.values.shape[0]:
        raise OptionError(f"--stages is {stages}; pool {pool.name} has tables for 1..{pool.values.shape[0]}")
    else:
        table = pool.values[stages - 1].min(axis=0)
    usable = [c for c in range(len(pool.counts)) if (table[c, 1:] > 0).any()]
    kind = np.repeat(np.array(usable, dtype=np.int64), [pool.counts[c] for c in usable])
    if not len(kind):
        raise InfeasibleError(f"no node of pool {pool.name} can hold a layer")
    return HelixProblem(np.ascontiguousarray(table), kind, pool.configurations)


def place_helix(
    pool: PlacementPool,
    *,
    stages: int | None = None,
    solver: str | Backend = "highs",
    time_limit: float | None = None,
    start: str = "heuristics",
    seed: int = 0,
) -> HelixSolution:
    """Helix's programme on a pool.

    Args:
        pool: The pool.
        stages: See :func:`helix_problem`.
        solver: Any MILP back end.
        time_limit: Seconds for the back end; ``DEFAULT_SECONDS`` when ``None``.
        start: ``"heuristics"``: the better of the SWARM and separate layouts, as Helix's artifact does; ``"pool"``: the
            exact placement in stages of :func:`coralopt.placement.place_pool`; ``"none"``.
        seed: Of the back end.

    Raises:
        InfeasibleError: No node can hold a layer, or nothing flows through any layout.
        NoSolutionError: No layout that passes a token was found in time.
        OptionError: No such start.
    """
    if start not in STARTS:
        raise OptionError(f"start is {start!r}; choose one of: {', '.join(STARTS)}")
    began = time.perf_counter()
    problem = helix_problem(pool, stages)
    options = SolveOptions(time_limit=DEFAULT_SECONDS if time_limit is None else time_limit, rel_gap=1e-6, seed=seed)
    begin, value = _begin(problem, pool, start, solver)
    solution = solve(problem, solver, None, options, begin)
    layout, throughput = solution.answer, solution.objective if solution.answer is not None else 0.0
    if begin is not None and value > throughput:
        # The start is never lost, whatever the back end did with it.
        layout, throughput = begin, value
    solver_bound = float(solution.bound) if solution.bound is not None else problem.compute_bound
    bound = max(throughput, min(solver_bound, problem.compute_bound))
    if layout is None or throughput <= 0:
        if bound <= 0:
            raise InfeasibleError(
                f"nothing flows through any layout of pool {pool.name}: its nodes hold too few layers"
            )
        raise NoSolutionError(f"no layout of pool {pool.name} was found in time; allow more of it", solution)
    return HelixSolution(
        layout=layout,
        nodes=tuple(problem.kinds[c] for c in problem.node_kind.tolist()),
        throughput=throughput,
        bound=bound,
        gap=relative_gap(throughput, bound),
        solver_bound=solver_bound,
        start=value,
        hops=_hops(problem, layout),
        seconds=time.perf_counter() - began,
        raw=solution.termination.raw,
    )


def _begin(
    problem: HelixProblem, pool: PlacementPool, start: str, solver: str | Backend
) -> tuple[HelixLayout | None, float]:
    if start == "none":
        return None, 0.0
    layouts: list[HelixLayout | None]
    if start == "heuristics":
        layouts = [swarm_layout(problem), separate_layout(problem)]
    else:
        staged = PlacementPool(
            name=pool.name,
            values=np.broadcast_to(problem.table, (problem.layers, 3, *problem.table.shape)),
            counts=tuple(np.bincount(problem.node_kind, minlength=len(pool.counts)).tolist()),
            configurations=pool.configurations,
            stage_free=True,
        )
        layouts = [staged_layout(problem, place_pool(staged, solver=solver, time_limit=60.0).placement)]
    flows = [(float(problem.flow(layout)[0]), layout) for layout in layouts if layout is not None]
    value, layout = max(flows, key=lambda pair: pair[0], default=(0.0, None))
    return (layout, value) if value > 0 else (None, 0.0)


def _hops(problem: HelixProblem, layout: HelixLayout) -> tuple[int, int, float]:
    """Nodes on the paths that carry flow: least, most, and the mean weighted by flow."""
    value, carried = problem.flow(layout)
    if value == 0:
        return 0, 0, 0.0
    # Ranges follow each other, so nodes in the order of their first layer are in the order of the paths.
    shortest: dict[int | str, int] = {SOURCE: 0}
    longest: dict[int | str, int] = {SOURCE: 0}
    for i in sorted(range(problem.nodes), key=lambda i: layout.first[i]):
        before = [origin for (origin, target), amount in carried.items() if target == i and amount > 0]
        if before:
            shortest[i] = 1 + min(shortest[origin] for origin in before)
            longest[i] = 1 + max(longest[origin] for origin in before)
    last = [i for i in range(problem.nodes) if carried.get((i, "sink"), 0) > 0]
    through = sum(amount for (_, target), amount in carried.items() if target != "sink")
    return min(shortest[i] for i in last), max(longest[i] for i in last), float(through / value)
