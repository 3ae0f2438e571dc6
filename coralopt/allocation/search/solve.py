"""The online stage: reductions, bounds, a small integer programme for any back end, and a proven gap.

The steps, each exact:

1. ``reductions`` make the problem smaller without changing its optimum.
2. ``relaxation`` solves the linear relaxation over all columns. Its dual prices, priced out over all columns, give a
   lower bound by weak duality, whatever state the column generation ended in.
3. ``lagrangian`` gives a second bound at the relaxation's capacity prices; the larger of the two is the *root bound*.
4. ``rounding`` makes a first allocation of cost U.
5. ``decomposition`` raises the Lagrangian bound to its highest, L, and ``coverings`` lists, for a slack g, every covering
   of a model phase that an allocation of cost at most L + g may use. An integer programme picks one for each phase; with
   its bound B, min(L + g, B) is a bound on the whole problem. The slack grows from small to U (1 - gap) - L; the first
   rounds already find allocations near the best.
6. Where there are too many coverings for that, ``branching`` splits the problem by how many nodes a phase uses of a kind.
7. If that does not end in time, ``improve`` looks for a better allocation. Fixing: a column whose forced cost is above
   t = U (1 - gap) is 0 in every allocation cheaper than t. Let S be the columns that survive. Any allocation costs at
   least t, or uses S only; so min(t, bound of the integer programme over S) is a lower bound on the whole problem.
   The closer U is to the root bound, the fewer survive.
8. Where more survive than a back end can take, or nothing was found, integer programmes over the columns of least
   forced cost look for an allocation; their own bounds say nothing about the whole problem and are not used.

Large libraries, and problems that come with the ``state`` of a similar one, are not reduced step by step. One pass over
the library at given capacity prices, 0 at first, leaves the templates that an allocation below some target may use
(:mod:`coralopt.allocation.reductions.prices`); the steps above over these give better prices; and so on until the
allocation found is within the gap of the target. Only if that does not happen everything is looked at.

The bound returned is the largest of those that hold, and at most the cost of the allocation returned.

Time limits make results depend on the clock. Without one, the same problem, options and back end (with one thread) give
the same allocation every time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coralopt.allocation.bounds.coverings import Coverings
from coralopt.allocation.bounds.decomposition import CLOSE, best_prices
from coralopt.allocation.bounds.lagrangian import LagrangianBound, lagrangian_bound
from coralopt.allocation.bounds.relaxation import SHORTFALL, Columns, dual_bound, reduced_costs, solve_relaxation
from coralopt.allocation.explain import Explanation, explain
from coralopt.allocation.model import FORMULATIONS
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.reductions import Reduction, reduce_problem
from coralopt.allocation.search.branching import branch_and_bound
from coralopt.allocation.search.improve import improved
from coralopt.allocation.search.options import DEFAULT_OPTIONS, AllocationSearchOptions, AllocationState
from coralopt.allocation.search.part import TOLERANCE, Part
from coralopt.allocation.search.partition import all_near, choose
from coralopt.allocation.search.restriction import Restriction
from coralopt.allocation.search.rounding import rounded
from coralopt.allocation.side_constraints import open_rows
from coralopt.errors import InfeasibleError, LicenseLimitError, NoSolutionError, OptionError, WrongAnswerError
from coralopt.solving import (
    Capability,
    Limit,
    Reason,
    Solution,
    SolveOptions,
    Termination,
    gap_reached,
    get_backend,
    relative_gap,
    require_backend,
    solve,
)
from coralopt.types import Bools, Floats, Ints


@dataclass(frozen=True, eq=False)
class AllocationResult:
    """A checked allocation and how good it is.

    Attributes:
        allocation: In terms of the problem's templates.
        cost_usd_h: Exact re-evaluation, USD/h.
        bound_usd_h: Proven lower bound on every allocation, USD/h.
        gap: (cost - bound) / cost.
        formulation: Formulation the back end solved.
        solver: Back end.
        reductions: What each exact reduction did.
        seconds: Seconds by step: ``reductions``, ``relaxation``, ``lagrangian``, ``rounding``, ``decomposition``,
            ``coverings``, ``partition``, ``improve``, ``solver``, ``check``.
        columns: All columns after the reductions.
        survivors: Columns left after fixing when the last integer programme was made.
        relaxation_usd_h: Optimum of the linear relaxation, USD/h.
        lagrangian_usd_h: Lagrangian bound, USD/h.
        solutions: What the back end said each time.
        state: For solving a similar problem next; ``None`` where no prices were found.
        interrupted: Whether Ctrl-C cut the search short.
    """

    allocation: Allocation
    cost_usd_h: float
    bound_usd_h: float
    gap: float
    formulation: str
    solver: str
    reductions: tuple[Reduction, ...]
    seconds: Mapping[str, float]
    columns: int
    survivors: int
    relaxation_usd_h: float
    lagrangian_usd_h: float
    solutions: tuple[Solution[Allocation], ...]
    state: AllocationState | None = None
    interrupted: bool = False


def solve_allocation(
    problem: AllocationProblem,
    solver: Any = "highs",
    options: SolveOptions | Mapping[str, Any] | None = None,
    search: AllocationSearchOptions = AllocationSearchOptions(),
) -> AllocationResult:
    """Allocate at least cost, with a proven bound (paper section 4.3).

    Args:
        problem: The allocation problem.
        solver: Name of a MILP back end or a back end itself.
        options: Common options; ``rel_gap`` decides when the proof is good enough, ``time_limit`` (s) is for the whole
            call. ``None`` is a gap of 0.1 % within 120 s.
        search: Formulation, reductions, where to begin, and limits of every step.

    Raises:
        InfeasibleError: No allocation meets every demand; carries an :class:`Explanation`.
        NoSolutionError: A limit passed before any allocation was found.
        SolverError: Unknown solver, formulation or option, or a wrong answer.
    """
    if options is None:
        options = DEFAULT_OPTIONS
    elif not isinstance(options, SolveOptions):
        options = SolveOptions.from_mapping(options)
    backend = require_backend(solver)
    formulation, restrict, state = search.formulation, search.restrict, search.state
    if formulation not in FORMULATIONS:
        raise OptionError(f"unknown formulation {formulation!r}; choose from: {', '.join(sorted(FORMULATIONS))}")
    if restrict is not None and (not search.reductions or restrict < 1):
        raise OptionError(f"restrict is {restrict}; it must be at least 1, and needs the reductions")
    if search.start is not None and not problem.check(search.start).feasible:
        search = replace(search, start=None)
    run = _Search(problem, backend, search, options)
    if not search.reductions:
        return run.full_model()
    near: Floats | None = None
    if state is not None and state.capacity_prices.shape == problem.price.shape and not open_rows(problem):
        near = state.capacity_prices
    elif len(problem.throughput) > search.limits.many_templates and not open_rows(problem):
        near = np.zeros_like(problem.price)
    for _ in range(search.limits.most_tries):
        if near is None:
            break
        quick = run.near(near)
        if quick is not None:
            return quick
        # The prices of that try are better ones, since they come from all phases together.
        near, run = run.prices, run.again()
    return run.with_reductions()


class _TooFarError(Exception):
    """What is near some capacity prices costs more than the target below which nothing else matters."""


class _Search:
    """One call of :func:`solve_allocation`: what is known so far, and the clock."""

    def __init__(
        self, problem: AllocationProblem, backend: Any, options: AllocationSearchOptions, asked: SolveOptions
    ) -> None:
        self.problem, self.backend, self.asked, self.options = problem, backend, asked, options
        self.limits, self.start = options.limits, options.start
        self.seconds: dict[str, float] = {}
        self.solutions: list[Solution[Allocation]] = []
        self.best: Allocation | None = None
        self.cost, self.bound = math.inf, 0.0
        #: What the reductions left says nothing about costs from here on.
        self.target = math.inf
        self.prices: Floats | None = None
        self.interrupted = False
        self.tree_nodes = 0
        self.looked_at: Ints | None = None
        self.clock = time.perf_counter()
        self.deadline = math.inf if asked.time_limit is None else self.clock + asked.time_limit

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.clock
        self.clock = now

    def left(self) -> float:
        return max(0.0, self.deadline - time.perf_counter())

    def heed(self, termination: Termination) -> None:
        """Ctrl-C reaches the back end first; the rest of the search must not go on as if nothing happened."""
        if termination.limit is Limit.INTERRUPTED:
            self.interrupted, self.deadline = True, 0.0

    def done(self) -> bool:
        return self.best is not None and gap_reached(
            self.cost, min(self.bound, self.target), self.asked.rel_gap, self.asked.abs_gap
        )

    def settled(self) -> bool:
        """Whether going on with what the reductions left cannot narrow the gap to the one asked for."""
        return self.bound >= self.target

    def full_model(self) -> AllocationResult:
        """Everything in one integer programme.

        Raises:
            LicenseLimitError: The back end's licence does not cover so many columns; said before anything is built.
        """
        limit, wanted = self.backend.probe().size_limit, len(Columns.of(self.problem))
        if limit is not None and wanted > limit[1]:
            raise LicenseLimitError(
                f"solver {self.backend.name!r} is size-limited here ({limit[1]} columns x {limit[0]} rows); the full "
                f"model has {wanted:,} columns; use solver 'highs' or 'scip', the reductions with restrict={limit[1]}, "
                "or a full licence"
            )
        everything = np.arange(len(self.problem.throughput), dtype=np.int64)
        found = self.integer_programme(self.problem, everything, math.inf)
        self.lap("solver")
        if self.best is None and found.termination.reason in (Reason.INFEASIBLE, Reason.INFEASIBLE_OR_UNBOUNDED):
            raise self.infeasible()
        self.bound = max(0.0, found.bound or 0.0)
        count = found.shape[1] if found.shape else 0
        return self.result((), count, count, math.nan, math.nan)

    def again(self) -> _Search:
        """A search that knows nothing yet, within what is left of the time."""
        left = None if math.isinf(self.deadline) else self.left()
        other = _Search(self.problem, self.backend, self.options, replace(self.asked, time_limit=left))
        other.seconds, other.looked_at = dict(self.seconds), self.looked_at
        return other

    def near(self, prices: Floats) -> AllocationResult | None:
        """The steps of the module docstring over what is near these prices; ``None`` if that is not enough."""
        try:
            result = self.with_reductions(prices)
        except (InfeasibleError, NoSolutionError, _TooFarError):
            return None
        # Looking further away helps only where the target is what the proof stops at.
        return result if self.done() or self.bound < self.target or self.left() == 0 else None

    def with_reductions(self, known: Floats | None = None) -> AllocationResult:
        """The steps of the module docstring."""
        reduced = reduce_problem(
            self.problem,
            known,
            self.looked_at,
            None if self.start is None else self.start.template,
            (self.limits.near_margin, self.limits.near_templates),
        )
        small, self.target = reduced.problem, reduced.target
        # Templates that once looked good stay in the next try, so that its prices can only be better.
        self.looked_at = reduced.kept
        self.lap("reductions")
        if not (small.demand > 0).any():
            self.best, self.cost = Allocation.of({}), 0.0
            return self.result(reduced.reductions, 0, 0, 0.0, 0.0)
        columns = Columns.of(small)
        able = Capability.LP_DUALS in self.backend.capabilities and self.backend.probe().size_limit is None
        lp_solver = self.backend if able else get_backend("highs")
        relaxation = solve_relaxation(small, columns, lp_solver)
        self.lap("relaxation")
        if (relaxation.shortfall > SHORTFALL).any():
            if not math.isinf(self.target):
                raise InfeasibleError("nothing near the last prices meets every demand")
            raise self.infeasible()
        self.prices = relaxation.capacity_prices
        side = relaxation.side_prices
        prices = reduced_costs(small, columns, relaxation.demand_duals, relaxation.capacity_prices, side)
        dual = dual_bound(small, columns, relaxation, prices)
        lagrangian = lagrangian_bound(small, columns, relaxation.capacity_prices, side_prices=side)
        forced = np.maximum(lagrangian.forced, dual + np.maximum(prices, 0.0))
        self.bound = max(0.0, dual, lagrangian.bound)
        self.lap("lagrangian")
        if self.start is not None and np.isin(self.start.template, reduced.kept).all():
            known_one = replace(self.start, template=np.searchsorted(reduced.kept, self.start.template))
            if small.check(known_one).feasible:
                self.best, self.cost = known_one, small.check(known_one).objective
        first = rounded(small, columns, relaxation.x, prices)
        if first is not None and small.check(first).objective < self.cost:
            self.best, self.cost = first, small.check(first).objective
        self.lap("rounding")
        survivors = len(columns)
        if len(columns) > self.limits.direct_columns and not self.done() and not small.plain:
            # Coverings know nothing of side rows, supply classes and unmet demand: bound, improve, fix, hand over.
            if self.best is not None:
                self.improve(small, columns, prices)
        elif len(columns) > self.limits.direct_columns and not self.done():
            start = relaxation.capacity_prices if known is None else known
            lagrangian = self.decompose(small, columns, lagrangian, start, lp_solver)
            forced = np.maximum(forced, lagrangian.forced)
            if self.settled():
                raise _TooFarError
            survivors = self.partition(small, columns, replace(lagrangian, forced=forced))
            if not self.done() and not self.settled():
                self.branch(small, columns, replace(lagrangian, forced=forced), lp_solver)
            if self.best is not None and not self.done() and not self.settled():
                self.improve(small, columns, prices)
        if not self.done() and not self.settled():
            survivors = self.close_gap(small, columns, forced, relaxation.x, prices)
        if self.best is None and self.settled():
            raise _TooFarError
        if self.best is not None:
            self.best = reduced.restore(self.best)
        return self.result(reduced.reductions, len(columns), survivors, relaxation.objective, lagrangian.bound)

    def decompose(
        self,
        small: AllocationProblem,
        columns: Columns,
        root: LagrangianBound,
        start: Floats,
        lp_solver: Any,
    ) -> LagrangianBound:
        """The highest Lagrangian bound: best prices over some columns, held against all, until no other column matters."""
        chosen, best, prices = np.zeros(0, dtype=np.int64), root, start
        while True:
            # Columns that look good at any prices so far; at bad prices that may be nearly all.
            limit = root.bound + self.limits.near_bound * abs(root.bound)
            near = np.flatnonzero((root.forced <= limit) | columns.kept)
            if len(near) > self.limits.near_columns:
                near = near[np.argsort(root.forced[near], kind="stable")[: self.limits.near_columns]]
            grown = np.union1d(chosen, near)
            if len(grown) == len(chosen) or self.left() == 0:
                break
            chosen = grown
            found = best_prices(small, columns, chosen, prices, lp_solver, self.deadline)
            prices = found.capacity_prices
            root = lagrangian_bound(small, columns, prices)
            if root.bound > best.bound:
                self.prices = prices
                best = replace(root, forced=np.maximum(root.forced, best.forced))
            if root.bound >= found.bound - CLOSE * abs(found.bound):
                break
        self.bound = max(self.bound, best.bound)
        self.lap("decomposition")
        return best

    def partition(self, small: AllocationProblem, columns: Columns, root: LagrangianBound) -> int:
        """Step 5; the number of columns that any allocation of the last slack may use."""
        slack, alive = self.limits.first_slack * abs(root.bound), len(columns)
        for _ in range(self.limits.doublings):
            if self.done() or self.settled() or self.left() == 0:
                break
            needed = self.cost * (1 - self.asked.rel_gap) - root.bound
            # Far from what is needed a step more costs little and says much.
            slack = needed if needed <= 1.5 * slack else slack
            coverings = all_near(
                small,
                columns,
                root,
                slack,
                self.limits.most_coverings,
                time.perf_counter() + self.limits.share * self.left(),
            )
            self.lap("coverings")
            if coverings is None:
                break
            alive = int((root.forced <= root.bound + slack).sum())
            inside = self.choose(small, columns, coverings)
            self.bound = max(self.bound, min(root.bound + slack, inside, self.cost))
            self.lap("partition")
            if slack >= needed or inside < root.bound + slack:
                break
            slack *= 2
        return alive

    def branch(self, small: AllocationProblem, columns: Columns, root: LagrangianBound, lp_solver: Any) -> None:
        """Step 6: a tree below a target, which is raised until an allocation within the gap is found."""
        assert self.prices is not None
        rise = self.limits.first_rise
        for _ in range(self.limits.doublings):
            if self.done() or self.settled() or self.left() == 0:
                break
            guess = root.bound + rise * abs(root.bound)

            def target(guess: float = guess) -> float:
                return min(self.target, self.cost * (1 - self.asked.rel_gap * (1 - 1e-12)), max(guess, self.bound))

            alive = np.flatnonzero(root.forced <= target())
            found, looked = branch_and_bound(
                small,
                columns,
                alive,
                self.prices,
                root.bound,
                target,
                lambda coverings: self.choose(small, columns, coverings),
                lp_solver,
                time.perf_counter() + self.limits.share * self.left(),
                self.limits.tree_nodes,
                self.limits.leaf_coverings,
            )
            self.bound = max(self.bound, min(found, self.cost))
            self.tree_nodes += looked
            self.lap("branching")
            if found < target():
                break
            rise *= 2

    def choose(self, small: AllocationProblem, columns: Columns, coverings: Coverings) -> float:
        """The best choice of coverings is kept if it is better; a bound on all of them, infinite if none fits."""
        options = replace(
            self.asked,
            rel_gap=self.asked.rel_gap / 4,
            node_limit=self.limits.covering_nodes,
            time_limit=None if math.isinf(self.left()) else self.limits.share * self.left(),
            # Its presolve compares coverings with one another, which is done already.
            presolve=False,
        )
        choice = choose(small, columns, coverings, self.backend, options)
        self.heed(choice.result.termination)
        inside = math.inf if choice.result.bound is None else choice.result.bound
        answer = choice.allocation
        if answer is not None and not small.check(answer).feasible and coverings.tight.any():
            # It misses a demand by rounding: choose again among those that surely do not.
            answer = choose(small, columns, coverings.some(~coverings.tight), self.backend, options).allocation
        if answer is not None:
            check = small.check(answer)
            if check.feasible and check.objective < self.cost:
                self.best, self.cost = answer, check.objective
        return inside

    def improve(self, small: AllocationProblem, columns: Columns, prices: Floats) -> None:
        """Step 7, for at most half of the time left."""
        assert self.best is not None
        deadline = time.perf_counter() + self.limits.share * self.left()
        self.best = improved(
            small,
            columns,
            prices,
            self.best,
            self.backend,
            self.asked,
            lambda cost: gap_reached(cost, self.bound, self.asked.rel_gap, self.asked.abs_gap),
            deadline,
        )
        self.cost = small.check(self.best).objective
        self.lap("improve")

    def close_gap(
        self,
        small: AllocationProblem,
        columns: Columns,
        forced: Floats,
        x: Floats,
        prices: Floats,
    ) -> int:
        """Steps 7 and 8 until the gap is reached or time is up; the number of columns that survived fixing."""
        most_columns = self.limits.most_columns
        survivors, wanted = len(columns), min(self.limits.first_columns, most_columns)
        root = self.bound
        restricted = Restriction.of(columns, forced, self.options.restrict)
        while not self.done() and (self.best is None or self.left() > 0):
            # A hair above cost (1 - gap), so that rounding never makes a reached gap look missed.
            target = self.cost * (1 - self.asked.rel_gap * (1 - 1e-12))
            alive = columns.kept | ((forced <= target) & np.isfinite(forced)) | _columns_of(columns, self.best)
            survivors = int(alive.sum())
            if survivors <= most_columns and restricted.admits(np.unique(columns.template[alive])):
                found = self.integer_programme(small, np.unique(columns.template[alive]), self.left(), root)
                # Outside the survivors nothing is cheaper than the target; inside them nothing is than their bound.
                inside = math.inf if found.bound is None else found.bound
                self.bound = max(self.bound, min(inside, target, self.cost))
                self.lap("solver")
                if self.best is None and found.termination.reason is Reason.INFEASIBLE:
                    raise self.infeasible()
                break
            known = self.best
            if known is not None and math.isinf(self.left()):
                # Without a time limit, an integer programme that proves nothing might run for ever.
                break
            chosen = np.flatnonzero(alive)
            ranked = chosen[np.argsort(forced[chosen], kind="stable")[:wanted]]
            always = np.flatnonzero(columns.kept | (x > 1e-9) | _columns_of(columns, known))
            templates = restricted.cut(np.unique(columns.template[np.union1d(ranked, always)]))
            self.integer_programme(small, templates, self.limits.share * self.left(), root)
            self.lap("solver")
            if known is None and self.best is not None:
                self.improve(small, columns, prices)
            if wanted >= min(most_columns, survivors) or restricted.full:
                break
            wanted = min(2 * wanted, most_columns)
        return survivors

    def integer_programme(
        self, small: AllocationProblem, templates: Ints, limit: float, floor: float = 0.0
    ) -> Solution[Allocation]:
        """Solve over some templates, keep a better allocation; what the back end said, its bound without a margin."""
        options = replace(self.asked, time_limit=None if math.isinf(limit) else limit)
        found: Solution[Allocation] = solve(
            Part.of(small, templates, floor), self.backend, self.options.formulation, options
        )
        self.solutions.append(found)
        self.heed(found.termination)
        if found.answer is not None and not self.offer(small, templates, found.answer):
            # The answer lives on the back end's tolerances: ask again with a demand that leaves room for them.
            again: Solution[Allocation] = solve(
                Part.of(small, templates, floor, margin=4 * TOLERANCE), self.backend, self.options.formulation, options
            )
            self.solutions.append(again)
            if again.answer is not None:
                self.offer(small, templates, again.answer)
        return found

    def offer(self, small: AllocationProblem, templates: Ints, answer: Allocation) -> bool:
        """Whether an answer of a part passes the exact check; the best one is kept."""
        whole = Allocation(templates[answer.template], answer.region, answer.count)
        check = small.check(whole)
        if check.feasible and check.objective < self.cost:
            self.best, self.cost = whole, check.objective
        return check.feasible

    def infeasible(self) -> InfeasibleError:
        if not self.options.explained:
            return InfeasibleError("no allocation meets every demand")
        explanation: Explanation = explain(self.problem, self.backend, self.asked)
        return InfeasibleError(str(explanation), explanation)

    def result(
        self, reductions: tuple[Reduction, ...], columns: int, survivors: int, relaxation: float, lagrangian: float
    ) -> AllocationResult:
        """The allocation in terms of the problem's templates, checked once more against the problem itself."""
        if self.best is None:
            last = self.solutions[-1]
            raise NoSolutionError(
                f"solver {self.backend.name!r} found no allocation within its limits "
                f"({last.termination.reason.value}: {last.termination.raw}); raise time_limit, lower the demand"
                + (
                    f", or ease {', '.join(row.name for row in open_rows(self.problem)[:6])}"
                    if self.problem.rows
                    else ""
                ),
                last,
            )
        check = self.problem.check(self.best)
        if not check.feasible:
            raise WrongAnswerError("the allocation fails its check: " + "; ".join(check.sentences[:5]))
        bound = min(self.bound, self.target, check.objective)
        self.lap("check")
        return AllocationResult(
            allocation=self.best,
            cost_usd_h=check.objective,
            bound_usd_h=bound,
            gap=relative_gap(check.objective, bound),
            formulation=self.options.formulation,
            solver=self.backend.name,
            reductions=reductions,
            seconds=self.seconds,
            columns=columns,
            survivors=survivors,
            relaxation_usd_h=relaxation,
            lagrangian_usd_h=lagrangian,
            solutions=tuple(self.solutions),
            state=None if self.prices is None else AllocationState(self.prices),
            interrupted=self.interrupted,
        )


def _columns_of(columns: Columns, allocation: Allocation | None) -> Bools:
    mask = np.zeros(len(columns), dtype=np.bool_)
    for t, r in allocation.to_mapping() if allocation is not None else ():
        mask |= (columns.template == t) & (columns.region == r)
    return mask
