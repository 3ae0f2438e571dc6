"""The online stage: reductions, bounds, a small integer programme for any back end, and a proven gap.

The steps, each exact; ``seconds`` of the result has them by these names:

``reductions``
    make the problem smaller without changing its optimum.
``relaxation``
    solves the linear relaxation over all columns. Its dual prices, priced out over all columns, give a lower bound by weak
    duality, whatever state the column generation ended in.
``lagrangian``
    gives a second bound at the relaxation's capacity prices; the larger of the two is the *root bound*. There is none where
    templates serve several model phases.
``rounding``
    makes a first allocation of cost U.
``decomposition``
    raises the Lagrangian bound to its highest, L.
``cuts``
    raises L by cutting planes on the supply, which whole allocations satisfy and the decomposition's fractional one does
    not.
``restricted master``
    looks for an allocation among the templates of the fractional allocations, where few of their instances are whole, or
    one may be lost.
``repair``
    looks for a first allocation where rounding finds none: demand may be missed at a price, which rises for whatever still
    is. Once more after ``rest``.
``fitting``
    raises L further: every model phase weighs what a covering weighs that fits the supply by itself. ``branching`` knows
    such coverings too. Where coverings are parts of regions, ``cuts`` follows once more and counts whole coverings, with
    many instances only if a proof is what is missing. Left out where demand may go unmet, or a region be lost.
``rest``
    keeps the whole instances of the decomposition's fractional allocation and searches, as a problem of its own, what
    demand and supply they leave. Ahead of ``restricted master`` where nothing is known.
``coverings``
    lists, for a slack g, every covering of a model phase that an allocation of cost at most L + g may use. A tree
    picks one for each phase; with its bound B, min(L + g, B) is a bound on the whole problem. The slack grows from
    small to U (1 - gap) - L; the first rounds already find allocations near the best.
``annealing``
    ruins and recreates whole allocations, and passes through such as do not fit. It gives allocations, no bounds.
``branching``
    splits the problem by how many nodes a phase uses of a kind, where there are too many coverings for that. It comes ahead
    of the last ``coverings``, and after them where an instance may be lost; right after ``rest`` where there are many
    instances and little is left.
``node counts``
    splits it by how many nodes of a kind are in use in a region, where templates serve several model phases.
``neighbourhood``
    looks for a better allocation by large-neighbourhood search, if all that does not end in time; right after ``rest`` where
    there are many instances.
``fixing``
    rules out columns: one whose column bound is above t = U (1 - gap) is 0 in every allocation cheaper than t. Let S be the
    columns that survive. Any allocation costs at least t, or uses S only; so min(t, bound of the integer programme over
    S) is a lower bound on the whole problem. The closer U is to the root bound, the fewer survive. Where more survive than
    a back end can take, or nothing was found, integer programmes over the columns of least column bound look for an
    allocation; their own bounds say nothing about the whole problem and are not used. Few columns go to the back end
    before all other steps, for a part of the time; some thousand once the bound is at its highest, for as long as that took.
    Where an instance or a region may be lost they have the rows of a node programme besides
    (:mod:`coralopt.allocation.search.node_programme`).
``check``
    holds the answer against the whole problem.

Upper limits are left out as long as that settles it (:mod:`coralopt.allocation.search.upper_limits`).

Large libraries, and problems that come with the ``state`` of a similar one, are not reduced step by step. One pass over
the library at given capacity prices, 0 at first, leaves the templates that an allocation below some target may use
(:mod:`coralopt.allocation.reductions.prices`); the steps above over these give better prices; and so on until the
allocation found is within the gap of the target. Where the bound reaches the target at prices that are good, a wider pass
follows. Only if that does not happen everything is looked at. What a pass proves about the whole problem stays.

The bound returned is the largest of those that hold, and at most the cost of the allocation returned.

Time limits make results depend on the clock. Without one, the same problem, options and back end (with one thread) give
the same allocation every time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from coralopt.allocation.bounds.decomposition import MasterState
from coralopt.allocation.bounds.lagrangian import LagrangianBound, lagrangian_bound
from coralopt.allocation.bounds.relaxation import SHORTFALL, dual_bound, reduced_costs, solve_relaxation
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.search.context import WIDER, Root, SearchContext, TooFarError
from coralopt.allocation.search.fixing import solve_full_model
from coralopt.allocation.search.options import DEFAULT_OPTIONS, AllocationSearchOptions
from coralopt.allocation.search.result import AllocationResult, finished, infeasible
from coralopt.allocation.search.rounding import rounded
from coralopt.allocation.search.strategy import prove
from coralopt.allocation.search.upper_limits import UpperLimitSearch
from coralopt.allocation.side_constraints import open_constraints
from coralopt.errors import InfeasibleError, NoSolutionError, OptionError
from coralopt.solving import Backend, SolveOptions, require_backend
from coralopt.types import Floats

#: Share of the time so far that the first steps of one more pass take, which look at no clock.
FIRST_STEPS = 0.1


def solve_allocation(
    problem: AllocationProblem,
    solver: Backend | str = "highs",
    options: SolveOptions | Mapping[str, object] | None = None,
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
    known, restrict = problem.formulations(), search.restrict
    if isinstance(search.formulation, str) and search.formulation not in known:
        raise OptionError(f"unknown formulation {search.formulation!r}; choose from: {', '.join(sorted(known))}")
    if restrict is not None and (not search.reductions or restrict < 1):
        raise OptionError(f"restrict is {restrict}; it must be at least 1, and needs the reductions")
    solve = partial(_solved, backend)
    if np.isfinite(problem.unmet_prices()).any() or not search.reductions:
        return solve(problem, options, search)
    return UpperLimitSearch(problem, backend, options, search, solve).run()


def _solved(
    backend: Backend, problem: AllocationProblem, options: SolveOptions, search: AllocationSearchOptions
) -> AllocationResult:
    """What :func:`solve_allocation` returns, with a row for every side constraint."""
    if search.start is not None and not problem.check(search.start).feasible:
        search = replace(search, start=None)
    deadline = math.inf if options.time_limit is None else time.perf_counter() + options.time_limit
    context = SearchContext(problem, backend, search, options, deadline, _search_rest)
    if not search.reductions:
        solve_full_model(context)
        return finished(context, context.survivors)
    prices = _first_prices(problem, search)
    for tries in range(search.limits.most_tries):
        if prices is None:
            break
        last = WIDER * context.near.most > search.limits.most_near
        try:
            result = _pass(context, prices, tries < search.limits.most_tries // 2, last)
        except (InfeasibleError, NoSolutionError, TooFarError):
            pass
        else:
            # Looking further away helps only where the target is what the proof stops at.
            over = context.left() <= FIRST_STEPS * sum(context.seconds.values())
            if context.done() or context.bound < context.target or over or (context.too_near and last):
                return result
        near = context.too_near
        # The prices of that pass are better ones, since they come from all phases together.
        prices = None if near and last else context.capacity_prices
        context = context.again(context.further() if near else context.near)
    return _pass(context)


def _search_rest(
    rest: AllocationProblem, solver: Backend, options: SolveOptions, search: AllocationSearchOptions
) -> tuple[Allocation, bool]:
    """The best allocation of what whole instances leave, and whether Ctrl-C cut the search short."""
    result = _solved(solver, rest, options, search)
    return result.allocation, result.interrupted


def _first_prices(problem: AllocationProblem, search: AllocationSearchOptions) -> Floats | None:
    """float64 (R, C): capacity prices near which to look first, or ``None`` to look at everything."""
    if len(problem.joint) or any(item.measure != "new_nodes" for item in open_constraints(problem)):
        return None
    if search.state is not None and search.state.capacity_prices.shape == problem.price.shape:
        return search.state.capacity_prices
    return np.zeros_like(problem.price) if len(problem.throughput) > search.limits.many_templates else None


def _pass(
    search: SearchContext, known: Floats | None = None, early: bool = False, last: bool = True
) -> AllocationResult:
    """The steps of the module docstring, over what is near the known capacity prices if there are any.

    ``early`` passes end where the target is too low to prove anything and the prices can still be better ones; all but the
    ``last`` where it is, and more can be looked at.

    Raises:
        TooFarError: What is near these prices says too little.
    """
    search.reduce(known)
    search.lap("reductions")
    if not (search.small.demand > 0).any():
        search.allocation, search.cost = Allocation.of({}), 0.0
        search.relaxation_usd_h = search.lagrangian_usd_h = 0.0
        return finished(search, 0)
    search.columns = Columns.of(search.small)
    search.survivors = len(search.columns)
    root = _root_bound(search)
    _round(search, root)
    try:
        try:
            prove(search, root, known, early, last)
        finally:
            search.gather()
    except KeyboardInterrupt:
        if search.allocation is None:
            raise
        search.interrupt()
    if search.allocation is None and search.settled():
        # A bound without limit over everything: a tree found nothing that fits.
        raise infeasible(search) if math.isinf(search.target) else TooFarError
    return finished(search, len(search.columns))


def _root_bound(search: SearchContext) -> Root:
    """The steps ``relaxation`` and ``lagrangian``.

    Raises:
        InfeasibleError: Some demand cannot be met even in fractions.
    """
    small, columns = search.small, search.columns
    relaxation = solve_relaxation(small, columns, search.lp_solver)
    search.lap("relaxation")
    if (relaxation.shortfall > SHORTFALL).any():
        if not math.isinf(search.target):
            raise InfeasibleError("nothing near the last prices meets every demand")
        raise infeasible(search)
    search.capacity_prices = relaxation.capacity_prices
    search.best = MasterState(relaxation.capacity_prices, side_prices=relaxation.side_prices)
    side = relaxation.side_prices
    reduced = reduced_costs(small, columns, relaxation.demand_duals, relaxation.capacity_prices, side)
    dual = dual_bound(small, columns, relaxation, reduced)
    # Covering knapsacks know one model phase a template.
    lagrangian = (
        LagrangianBound.nothing(len(columns))
        if len(small.joint)
        else lagrangian_bound(small, columns, relaxation.capacity_prices, side_prices=side)
    )
    search.bound = max(0.0, dual, lagrangian.bound)
    search.relaxation_usd_h, search.lagrangian_usd_h = relaxation.objective, lagrangian.bound
    search.lap("lagrangian")
    bounds = np.maximum(lagrangian.column_bounds, dual + np.maximum(reduced, 0.0))
    return Root(relaxation, reduced, lagrangian, bounds)


def _round(search: SearchContext, root: Root) -> None:
    """The step ``rounding``; the allocation to begin with is another one."""
    start, kept = search.options.start, search.reduced.kept
    if start is not None and np.isin(start.template, kept).all():
        search.offer(replace(start, template=np.searchsorted(kept, start.template)))
    relaxation, first = root.relaxation, None
    # Filling up counts what whole instances serve; how they divide their time is the programme's business.
    if not search.small.joint.divided:
        first = rounded(search.small, search.columns, relaxation.x, root.reduced_costs, relaxation.demand_duals)
    if first is not None:
        search.offer(first)
    search.lap("rounding")
