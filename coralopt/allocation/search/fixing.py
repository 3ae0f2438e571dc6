"""The step ``fixing``: columns that no allocation worth finding uses are ruled out, what survives goes to the back end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from coralopt.allocation.bounds.coverings import WeightedColumns
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.search.context import Root, SearchContext
from coralopt.allocation.search.neighbourhood import search_neighbourhoods
from coralopt.allocation.search.node_programme import ProgrammeAnswer, solve_programme
from coralopt.allocation.search.part import TOLERANCE, Part
from coralopt.allocation.search.restriction import Restriction
from coralopt.allocation.search.result import infeasible
from coralopt.errors import LicenseLimitError
from coralopt.solving import Proof, Reason, Solution, SolveOptions, Termination, solve
from coralopt.types import Floats, Ints

_A = TypeVar("_A", bound="_Answer")

#: Seeds of the back end that are tried side by side, at most.
RACED = 4
#: With these a solve is over; errors of one seed say nothing of others.
ENDED = (Reason.OPTIMAL, Reason.INFEASIBLE, Reason.INFEASIBLE_OR_UNBOUNDED)


def solve_full_model(search: SearchContext) -> None:
    """Everything in one integer programme: the step ``full model``, in place of all others.

    Raises:
        InfeasibleError: No allocation meets every demand.
        LicenseLimitError: The back end's licence does not cover so many columns; said before anything is built.
    """
    limit, wanted = search.backend.probe().size_limit, len(Columns.of(search.problem))
    if limit is not None and wanted > limit[1]:
        raise LicenseLimitError(
            f"solver {search.backend.name!r} is size-limited here ({limit[1]} columns x {limit[0]} rows); the full "
            f"model has {wanted:,} columns; use solver 'highs' or 'scip', the reductions with restrict={limit[1]}, "
            "or a full licence"
        )
    solution = solve_part(search, search.small, search.reduced.kept, search.with_gap(1.0, math.inf), [0.0])
    search.lap("full model")
    if search.allocation is None and solution.termination.reason in (Reason.INFEASIBLE, Reason.INFEASIBLE_OR_UNBOUNDED):
        raise infeasible(search)
    search.bound, search.bound_proof = max(0.0, solution.bound or 0.0), solution.proof
    search.survivors = solution.shape[1] if solution.shape else 0


def close_gap(search: SearchContext, root: Root, ranking: Floats, seconds: float = math.inf) -> None:
    """Fix, and hand over what survives or the best of it, until the gap is reached or time is up.

    Args:
        search: What is known.
        root: Bounds of columns, by which they are fixed.
        ranking: Those without cuts, by which the best columns are chosen: cuts say little of what is in a good allocation.
        seconds: How long the back end may take over all that survives.

    Raises:
        InfeasibleError: No allocation meets every demand.
    """
    columns, limits = search.columns, search.limits
    joint = len(search.small.joint) > 0
    most = limits.most_joint_columns if joint else limits.most_columns
    bounds, wanted = root.column_bounds, min(limits.first_columns, most)
    # No neighbourhoods were searched where templates serve several phases, so a few of many columns go first.
    ready = not joint or math.isinf(search.left()) or len(columns) <= limits.most_columns
    floor = search.bound
    restricted = Restriction.of(columns, bounds, search.options.restrict)
    while not search.done() and (search.allocation is None or search.left() > 0):
        known, target = search.allocation, search.worth_proving()
        alive = columns.kept | ((bounds <= target) & np.isfinite(bounds)) | columns.of_pairs(known)
        search.survivors = int(alive.sum())
        templates = np.unique(columns.template[alive])
        if search.survivors <= (most if ready else wanted) and restricted.admits(templates):
            options = search.with_gap(1.0, min(seconds, search.left()))
            # A floor leaves relaxations with nothing to choose by: it ends some proofs early, and hinders others.
            solution = solve_part(search, search.small, templates, options, [floor, 0.0])
            # Outside the survivors nothing is cheaper than the target; inside them nothing is than their bound.
            inside = math.inf if solution.bound is None else solution.bound
            search.raise_bound(min(inside, target), solution.proof)
            search.lap("fixing")
            if search.allocation is None and solution.termination.reason is Reason.INFEASIBLE:
                raise infeasible(search)
            break
        if known is not None and math.isinf(search.left()):
            # Without a time limit, an integer programme that proves nothing might run for ever.
            break
        ready, chosen = True, np.flatnonzero(alive)
        ranked = chosen[np.argsort(ranking[chosen], kind="stable")[:wanted]]
        always = np.flatnonzero(columns.kept | (root.relaxation.x > 1e-9) | columns.of_pairs(known))
        templates = restricted.cut(np.unique(columns.template[np.union1d(ranked, always)]))
        solve_part(search, search.small, templates, search.for_solutions(search.share_of_left()), [floor])
        search.lap("fixing")
        if known is None:
            search_neighbourhoods(search, root)
        if wanted >= min(most, search.survivors) or restricted.full:
            break
        wanted = min(2 * wanted, most)


def close_weighed(search: SearchContext, root: Root, seconds: float = math.inf) -> None:
    """The same over all that survives, with what the Lagrangian bound knows of every phase as rows of the programme.

    Raises:
        InfeasibleError: No allocation meets every demand.
    """
    target, lagrangian = search.worth_proving(), root.lagrangian
    chosen = np.flatnonzero((root.column_bounds <= target) & np.isfinite(root.column_bounds))
    near = WeightedColumns(chosen, lagrangian.weight[chosen], lagrangian.least, lagrangian.whole)

    def solve_over(options: SolveOptions) -> ProgrammeAnswer:
        return solve_programme(search, near, (), target, options)

    search.survivors = len(chosen)
    options = search.with_gap(1.0, min(seconds, search.left()))
    answers = _raced(search, options, (solve_over,), lambda answer: answer.ended)
    for answer in answers:
        if answer.allocation is not None:
            search.offer(answer.allocation)
        # Outside the survivors nothing is cheaper than the target.
        search.raise_bound(min(answer.bound, target), Proof.SOLVER)
    search.lap("fixing")
    if math.isinf(target) and any(answer.bound == math.inf for answer in answers):
        raise infeasible(search)


def solve_part(
    search: SearchContext, problem: AllocationProblem, templates: Ints, options: SolveOptions, floors: Sequence[float]
) -> Solution[Allocation]:
    """Solve over some templates, keep a better allocation; what the back end said, its bound without a margin.

    Args:
        search: What is known.
        problem: The reduced problem, maybe within further limits.
        templates: int64 (k,), those that take part.
        options: Gap, time and focus.
        floors: USD/h, for one seed each in turn; no allocation of ``problem`` costs less.
    """

    def solve_with(margin: float) -> tuple[Solution[Allocation], bool]:
        parts = [Part.of(problem, templates, floor, margin) for floor in dict.fromkeys(floors)]
        solutions = _raced(search, options, [partial(solution_of, search, part) for part in parts], _ended)
        # The one to rely on comes last.
        for solution in sorted(solutions, key=_says_most):
            holds = keep_answer(search, templates, solution)
        return solution, holds

    solution, holds = solve_with(0.0)
    if not holds:
        # The answer lives on the back end's tolerances: ask again with a demand that leaves room for them.
        solve_with(4 * TOLERANCE)
    return solution


def keep_answer(search: SearchContext, templates: Ints, solution: Solution[Allocation]) -> bool:
    """Keep what the back end says over some templates; whether its answer, if there is one, holds in exact figures."""
    search.solutions.append(solution)
    if solution.answer is None:
        return True
    whole = replace(solution.answer, template=templates[solution.answer.template])
    holds = search.offer(whole)
    search.missed = () if holds else search.small.check(whole).sentences
    return holds


def solution_of(search: SearchContext, part: Part, options: SolveOptions) -> Solution[Allocation]:
    """What the back end says; changes nothing that is known."""
    formulation = search.options.formulation
    return solve(part, search.backend, formulation, options, route="arrays" if formulation == "split" else "pyomo")


class _Answer(Protocol):
    """What a back end says."""

    @property
    def termination(self) -> Termination:
        """Its own words."""


def _raced(
    search: SearchContext,
    options: SolveOptions,
    ways: Sequence[Callable[[SolveOptions], _A]],
    ended: Callable[[_A], bool],
) -> list[_A]:
    """What the back end says from several seeds side by side, these ways of asking it in turn.

    The first that proves what it says ends the others. Seeds decide how soon that is, and what is known by then: of six
    seeds over the same templates, one found as good an allocation in 8 s as another in 17. Only within a time limit:
    which of them is the first depends on the clock.

    Raises:
        KeyboardInterrupt: Ctrl-C left nothing to say.
    """
    raced = 1 if options.time_limit is None else min(RACED, search.lanes)

    def solve_from(k: int) -> _A:
        answer = ways[k % len(ways)](replace(options, seed=options.seed + k))
        if ended(answer):
            lanes.stop()
        return answer

    with search.side_by_side(raced) as lanes:
        answers = list(lanes.results(iter([partial(solve_from, k) for k in range(raced)]), raced))
    if raced == 1:
        # Side by side, those that were ended say that they were interrupted, too; the lanes know of Ctrl-C.
        for answer in answers:
            search.heed(answer.termination)
    if not answers:
        # Ctrl-C came before any of them had begun.
        raise KeyboardInterrupt
    return answers


def _ended(solution: Solution[Allocation]) -> bool:
    return solution.termination.reason in ENDED


def _says_most(solution: Solution[Allocation]) -> tuple[bool, float]:
    """Whether it ended the race, and its bound."""
    return _ended(solution), -math.inf if solution.bound is None else solution.bound
