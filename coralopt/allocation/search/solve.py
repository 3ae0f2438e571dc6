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
``check``
    holds the answer against the whole problem.

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

import contextlib
import math
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from coralopt.allocation.bounds.coverings import listable
from coralopt.allocation.bounds.decomposition import MasterState
from coralopt.allocation.bounds.fitting import knows_fitting
from coralopt.allocation.bounds.lagrangian import LagrangianBound, lagrangian_bound
from coralopt.allocation.bounds.parts import RegionParts
from coralopt.allocation.bounds.relaxation import SHORTFALL, dual_bound, reduced_costs, solve_relaxation
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.search.annealing import Annealing
from coralopt.allocation.search.branching import branch
from coralopt.allocation.search.context import WIDER, Root, SearchContext, TooFarError
from coralopt.allocation.search.coverings import by_backend, by_tree, choose_among, choose_near_coverings
from coralopt.allocation.search.decomposition import Highest, add_cuts, fit_supply, raise_bound
from coralopt.allocation.search.fixing import close_gap, solve_full_model
from coralopt.allocation.search.neighbourhood import repair, search_neighbourhoods
from coralopt.allocation.search.node_counts import branch_on_node_counts
from coralopt.allocation.search.options import DEFAULT_OPTIONS, AllocationSearchOptions
from coralopt.allocation.search.rest import rest_of
from coralopt.allocation.search.restricted_master import begin_restricted_master, mostly_whole, restricted_master
from coralopt.allocation.search.result import AllocationResult, finished, infeasible
from coralopt.allocation.search.rounding import rounded
from coralopt.allocation.side_constraints import open_constraints
from coralopt.errors import InfeasibleError, NoSolutionError, OptionError
from coralopt.solving import Backend, SolveOptions, require_backend
from coralopt.types import Floats

#: Rounds of annealing ahead of a repair, most of which find an allocation if that is easy.
FIRST_LOOK = 4
#: Share that a rest has of the time of a step that proves nothing; each one more has this share of that.
REST = 0.25
#: Share of the time of a step that an integer programme over the templates of fractional allocations has.
SUPPORT = 0.5
#: Share of the time left that the back end has over few columns, before other steps.
AT_ONCE = 2 / 3
#: From so many instances on, whole coverings say little more than fractions: no cuts count them, no tree comes early.
FRACTIONS = 200
#: Share of neighbourhoods ahead of the tree, and of the time left that few columns have; share that the tree has then.
LOOK, PROOF = 0.2, 0.85


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
    if search.start is not None and not problem.check(search.start).feasible:
        search = replace(search, start=None)
    deadline = math.inf if options.time_limit is None else time.perf_counter() + options.time_limit
    context = SearchContext(problem, backend, search, options, deadline)
    if not search.reductions:
        solve_full_model(context)
        return finished(context, context.survivors)
    prices = _first_prices(problem, search)
    for tries in range(search.limits.most_tries):
        if prices is None:
            break
        last = WIDER * context.limits.near_templates > search.limits.most_near
        try:
            result = _pass(context, prices, tries < search.limits.most_tries // 2, last)
        except (InfeasibleError, NoSolutionError, TooFarError):
            pass
        else:
            # Looking further away helps only where the target is what the proof stops at.
            if context.done() or context.bound < context.target or context.left() == 0 or (context.too_near and last):
                return result
        near = context.too_near
        # The prices of that pass are better ones, since they come from all phases together.
        prices = None if near and last else context.capacity_prices
        context = context.again(context.further() if near else context.limits)
    return _pass(context)


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
            _prove(search, root, known, early, last)
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


def _prove(search: SearchContext, root: Root, known: Floats | None, early: bool, last: bool) -> None:
    """The steps after ``rounding``."""
    ranking, few = root.column_bounds, _at_once(search)
    if few and not len(search.small.joint) and not math.isinf(search.left()) and search.open():
        close_gap(search, root, ranking, AT_ONCE * search.left())
        if search.left() == 0 or search.solutions[-1].termination.limit is None:
            return
        few = False
    if not few and not len(search.small.joint):
        if search.small.adds_up and not search.done():
            without_cuts = raise_bound(search, root, known)
            too_low = search.bound * (1 + search.solve_options.rel_gap) > search.target
            if not search.settled_prices and (search.settled() or (too_low and early)):
                raise TooFarError
            tight = _tighten(search, without_cuts)
            if search.settled() and not last:
                return
            root, ranking = tight.root, without_cuts.root.column_bounds
            _choose(search, without_cuts, tight)
        if not search.done() and search.columns_left(root) > search.limits.direct_columns:
            # Where no other bound follows, the back end has most of the time.
            search_neighbourhoods(search, root.reduced_costs, 1.0 if search.small.adds_up else LOOK)
    elif not few and not search.done():
        if not search.small.joint.divided:
            search_neighbourhoods(search, root.reduced_costs, search.limits.share_first)
        branch_on_node_counts(search, root)
    if search.open():
        close_gap(search, root, ranking)


def _tighten(search: SearchContext, highest: Highest) -> Highest:
    """The steps ``cuts`` and ``fitting``; where coverings are parts of regions, cuts follow that count whole coverings."""
    loose, count = highest, float(highest.values(search.columns).sum())
    fitting = knows_fitting(search.small) and count < search.limits.most_instances
    highest = add_cuts(search, highest, whole=False)
    if search.allocation is None and highest.fits:
        if fitting:
            _anneal(search, loose, FIRST_LOOK)
        if search.allocation is None:
            _look(search, highest.root, loose)
        if search.allocation is None:
            # What whole instances leave has an allocation sooner than any programme over all of it.
            _settle_most(search, highest.values(search.columns), 1, SUPPORT)
        if search.allocation is None:
            restricted_master(search, _fractional(search, loose, highest), highest.root.column_bounds, SUPPORT)
        repair(search, highest.values(search.columns), highest.root.column_bounds)
        if not math.isinf(search.target):
            # Its cost says how far the next pass looks.
            search_neighbourhoods(search, highest.root.column_bounds, LOOK)
    # What time is left is better spent on an allocation than on a bound that no cost is held against.
    if not fitting or (search.allocation is None and not math.isinf(search.left())):
        return highest
    if not mostly_whole(highest.values(search.columns)):
        begin_restricted_master(search, _fractional(search, loose, highest), highest.root.column_bounds)
    highest = fit_supply(search, highest)
    if count >= search.limits.many_instances:
        _use_support(search, loose, highest)
        if not search.close():
            # Cuts raise the bound by little; time is better spent on allocations.
            return highest
    return add_cuts(search, highest, whole=True) if count < FRACTIONS and RegionParts.known(search.small) else highest


def _fractional(search: SearchContext, loose: Highest, tight: Highest) -> tuple[Floats, Floats]:
    """float64 (N,) each: instances of every column in fractions, without cuts and with them."""
    return loose.values(search.columns), tight.values(search.columns)


def _at_once(search: SearchContext) -> bool:
    """Whether the back end has all columns before other steps."""
    return len(search.columns) <= search.limits.direct_columns and not search.small.spared.any()


def _look(search: SearchContext, root: Root, loose: Highest) -> None:
    """The back end over few columns, for as long as all before took: it is often quick, and coverings may be too many.

    Not where it had them first, nor where so little is missing that coverings are few.
    """
    few = search.columns_left(root) <= search.limits.compact_columns and not _at_once(search)
    if few and not search.close() and not math.isinf(search.left()):
        seconds = max(LOOK * search.left(), min(AT_ONCE * search.left(), sum(search.seconds.values())))
        close_gap(search, root, loose.root.column_bounds, seconds)


def _choose(search: SearchContext, loose: Highest, tight: Highest) -> None:
    """The steps ``rest``, ``coverings`` and ``branching``, as far as they know the problem's terms.

    Args:
        search: What is known.
        loose: The highest bound without cuts; where annealing begins.
        tight: The highest bound.
    """
    root, met, values = tight.root, tight.met, tight.values(search.columns)
    small, limits, count = search.small, search.limits, float(values.sum())
    if small.routes:
        if small.plain:
            choose_among(search, met)
        return
    unmet, spared = bool(small.unmet_groups()), bool(small.spared.any())
    if spared or small.surviving.any() or small.replicas.any() or unmet:
        # Fractions say little of what an instance or a region may be lost from; whole coverings do.
        choose_among(search, met)
    if unmet or small.surviving.any():
        if search.columns_left(root) > (limits.direct_columns if unmet else limits.most_columns):
            # Otherwise ``fixing`` ends it sooner.
            _anneal(search, loose, limits.annealings)
            if listable(small) and search.open():
                choose_near_coverings(search, root, limits.most_coverings, by_tree)
            if search.open():
                branch(search, root)
        elif search.open():
            _look(search, root, loose)
        return
    if not spared:
        _look(search, root, loose)
    # Of replicas, fractions settle the wrong ones.
    rests = 0 if small.replicas.any() else limits.rests
    listed = count < limits.most_instances
    if count >= limits.many_instances:
        before = search.cost
        # Master programmes over many instances end before their fractions are good ones.
        if search.far() or mostly_whole(values):
            _settle_most(search, values if count < FRACTIONS else loose.values(search.columns), rests)
        if search.allocation is None and tight.fits:
            repair(search, values, root.column_bounds)
        better = search.cost < before or search.far()
        close = search.close() and count < FRACTIONS and listed and not spared
        if better and search.open():
            # What rests leave above the bound, a few whole phases at a time close sooner than annealing.
            search_neighbourhoods(search, root.column_bounds, LOOK if close else 1.0)
        if close and search.open():
            # So little is left that the proof is what is missing.
            branch(search, root, PROOF)
            if better and search.open():
                search_neighbourhoods(search, root.column_bounds)
    if listed and search.open():
        choose_near_coverings(search, root, limits.first_coverings, by_tree if spared else by_backend)
    if count < limits.many_instances and not search.done():
        if not small.supply:
            # Where nodes of one kind have several prices, it finds less than what follows.
            _anneal(search, loose, limits.annealings)
        # Where instances are few, what fractions settle is often all but optimal, or far from it.
        _use_support(search, loose, tight)
        if search.far() or mostly_whole(values):
            _settle_most(search, values, min(1, rests))
    if count < limits.most_instances and (count >= limits.many_instances or small.supply):
        _anneal(search, loose, limits.annealings)
    if spared and search.columns_left(root) <= limits.spared_columns and search.open():
        # Coverings near the bound are often too many there, and the back end raises no bound before its end.
        close_gap(search, root, loose.root.column_bounds)
    # The slack needed is known now. What may be lost leaves few light coverings, and makes nodes of the branching tree slow.
    for step in (_choose_near, branch) if spared else (branch, _choose_near):
        if listed and search.open():
            step(search, root)


def _choose_near(search: SearchContext, root: Root) -> None:
    """The step ``coverings``, after annealing."""
    choose_near_coverings(search, root, search.limits.most_coverings, by_tree)


def _anneal(search: SearchContext, loose: Highest, rounds: int) -> None:
    """The step ``annealing``, where every phase has a covering to begin with."""
    annealing = Annealing.of(search, loose.root, loose.met) if search.open() else None
    if annealing is not None:
        annealing.run(rounds)


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


def _use_support(search: SearchContext, loose: Highest, tight: Highest) -> None:
    """The step ``restricted master`` and neighbourhoods around what it finds, where rests are hardly smaller or unknown.

    Args:
        search: What is known.
        loose: The highest bound without cuts.
        tight: The highest bound.
    """
    values, bounds = tight.values(search.columns), tight.root.column_bounds
    if search.open() and (search.small.spared.any() or not mostly_whole(values)):
        # It needs some seconds before it finds anything, and where it does not, nothing else does either.
        share = 1.0 if search.far() else SUPPORT
        restricted_master(search, _fractional(search, loose, tight), bounds, share)
        if not search.far():
            search_neighbourhoods(search, bounds)


def _settle_most(search: SearchContext, values: Floats, rests: int, share: float = 1.0) -> None:
    """The step ``rest``: whole instances of a fractional allocation stay, what they leave is a problem of its own.

    Only within a time limit, since no other measure bounds the work.

    Args:
        search: What is known.
        values: float64 (N,), instances of every column in fractions.
        rests: How many rests are searched, each leaving one instance more of every column open.
        share: Of what a step may take of the time left.
    """
    small, columns = search.small, search.columns
    for spare in range(0 if math.isinf(search.left()) else rests):
        counts = np.maximum(np.floor(values + 1e-9).astype(np.int64) - spare, 0)
        rest = rest_of(small, columns, counts)
        if rest is None or not counts.any() or search.done() or search.left() == 0:
            break
        paid = columns.usd_h(small, counts)
        # Half of the gap is the rest's.
        gap = min(0.05, 0.5 * search.solve_options.rel_gap * search.bound / max(search.bound - paid, 1e-9))
        # Without a good allocation, most other steps have nothing to begin with.
        limit = share * search.share_of_left() * REST ** (spare + (not search.far()))
        options = replace(search.solve_options, rel_gap=gap, time_limit=limit)
        inner = AllocationSearchOptions(explained=False, limits=replace(search.limits, rests=0, repairs=0))
        with contextlib.suppress(InfeasibleError, NoSolutionError):
            other = solve_allocation(rest, search.backend, options, inner)
            search.offer(Allocation.sum_of(columns.allocation(counts), other.allocation))
            if other.interrupted:
                search.interrupt()
    search.lap("rest")
