"""The dynamic programme as a solver of single placement problems."""

from __future__ import annotations

import math
import time
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from coralopt._version import __version__
from coralopt.errors import UnsupportedError
from coralopt.placement import Links, Placement, PlacementProblem, Stage
from coralopt.solving import Availability, Capability, RawAnswer, Reason, SolveOptions
from coralopt_dp.sweep import Family, SweepResult, Threads, sweep

#: Most pairs (node set, sub-multiset of it) that one problem may have: some minutes on one core.
MOST_SPLITS = 200_000_000
#: Most bytes of tables.
MOST_TABLE_BYTES = 4 * 1024**3


class DynamicProgrammeSolver:
    """Answers a placement problem exactly: the programme runs over all sub-multisets of the node set.

    There is no tolerance: the bound equals the objective. It looks at ``time_limit`` between stage counts and then
    answers with the best placement so far and a valid weaker bound.
    """

    name: ClassVar[str] = "dp"
    kind: ClassVar[str] = "placement"
    #: Its answers are proofs of coralopt's own.
    own_proof: ClassVar[bool] = True
    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.PLACEMENT, Capability.PLACEMENT_FAMILY})

    def probe(self) -> Availability:
        """Always there: it comes with coralopt."""
        return Availability(True, __version__, "Apache-2.0, no limits")

    def solve_problem(self, problem: PlacementProblem, options: SolveOptions) -> RawAnswer[Placement]:
        """The throughput-optimal placement; of equally good ones the first with the fewest stages.

        Raises:
            UnsupportedError: The node set has too many sub-multisets.
        """
        started = time.perf_counter()
        _refuse_large(problem)
        # Configurations without a node only widen the rows.
        used = [c for c, count in enumerate(problem.node_set) if count > 0]
        values, coupling = problem.cells
        values = np.ascontiguousarray(values[:, :, used])
        if isinstance(coupling, Links):
            coupling = Links(tuple(coupling.classes[c] for c in used))
        threads = options.threads or 1
        family = Family.of(_closed([problem.node_set[c] for c in used]), threads)
        whole = np.array([len(family.sets) - 1])
        best, finished = 0.0, True
        answer: Placement | None = None
        for stages in problem.stage_counts:
            if options.time_limit is not None and time.perf_counter() - started >= options.time_limit:
                finished = False
                break
            with Threads(threads):
                result = family.solve(values, coupling, range(stages, stages + 1), whole, problem.limits)
            if result.throughput[-1] > best:
                best, answer = float(result.throughput[-1]), _placement(result, used, len(problem.node_set))
        seconds = time.perf_counter() - started
        if finished:
            reason = Reason.INFEASIBLE if answer is None else Reason.OPTIMAL
            words = "every stage count tried" if answer is not None else "no stage count has a placement"
            return RawAnswer(reason, answer, -math.inf if answer is None else best, words, seconds)
        reason = Reason.NO_SOLUTION_FOUND if answer is None else Reason.FEASIBLE
        return RawAnswer(reason, answer, _weak_bound(problem), "time limit between two stage counts", seconds)

    #: Optimal placements of a whole family of node sets at once; see :func:`coralopt_dp.sweep.sweep`.
    place_family = staticmethod(sweep)


def _closed(counts: list[int]) -> npt.NDArray[np.int8]:
    """Every non-empty sub-multiset of the node set, in sweep order; the node set itself is the last."""
    grid = np.indices([count + 1 for count in counts], dtype=np.int8).reshape(len(counts), -1).T[1:]
    return np.ascontiguousarray(grid[np.argsort(grid.sum(axis=1, dtype=np.int64), kind="stable")])


def _placement(result: SweepResult, used: list[int], width: int) -> Placement:
    stages = []
    for stage in range(int(result.stages[-1])):
        nodes = [0] * width
        for c, count in zip(used, result.node_sets[result.stage_sets[-1, stage]], strict=True):
            nodes[c] = int(count)
        stages.append(Stage(int(result.stage_layers[-1, stage]), tuple(nodes)))
    return Placement(tuple(stages))


def _weak_bound(problem: PlacementProblem) -> float:
    """No stage does better than all nodes together at their best; a little more for rounding."""
    peak = problem.cells[0].max(axis=(0, 1, 3, 4))
    return float(peak @ np.asarray(problem.node_set, dtype=np.float64)) * (1 + 1e-9)


def _refuse_large(problem: PlacementProblem) -> None:
    members = math.prod(count + 1 for count in problem.node_set)
    splits = math.prod((count + 1) * (count + 2) // 2 for count in problem.node_set)
    if splits > MOST_SPLITS or 4 * members * (problem.layers + 1) * 8 > MOST_TABLE_BYTES or max(problem.node_set) > 127:
        raise UnsupportedError(
            f"the dynamic programme would visit {splits:,} splits of {members:,} node sets for node set "
            f"{problem.node_set}; use fewer nodes or configurations, or a MILP solver through "
            "coralopt.placement.best_placement"
        )
