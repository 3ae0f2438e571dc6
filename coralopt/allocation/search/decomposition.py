"""The steps ``decomposition`` and ``cuts``: the highest Lagrangian bound, without and with cutting planes on the supply."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from coralopt.allocation.bounds.coverings import side_adds
from coralopt.allocation.bounds.cuts import violated_cuts
from coralopt.allocation.bounds.decomposition import CLOSE, MasterState, best_prices
from coralopt.allocation.bounds.fitting import FittingPricing, with_fitting
from coralopt.allocation.bounds.lagrangian import lagrangian_bound
from coralopt.allocation.bounds.pricing import Covering, PricingProblem
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.search.context import Root, SearchContext
from coralopt.types import Floats, Ints

#: A round of cuts that raises the bound by a smaller share is the last.
WORTH = 2e-5
#: Coverings without a share that the next round begins with, the newest.
SPARE = 400
#: How often prices of coverings that fit are held against all columns.
FITS = 3


@dataclass(frozen=True, eq=False)
class Highest:
    """The highest bound so far.

    Attributes:
        root: With it.
        met: Coverings of all master programmes.
        values: float64 (N,), instances of every column in the last fractional allocation.
        chosen: int64 (k,), columns that took part.
        last: Coverings of the last master programme that the next one begins with.
        fits: Whether that allocation fits the pool; otherwise nothing does, or there was no time left to see.
    """

    root: Root
    met: list[Covering]
    values: Floats
    chosen: Ints
    last: tuple[Covering, ...]
    fits: bool

    def keep(self, search: SearchContext) -> Highest:
        """Raise the bound of the search to it."""
        search.bound = max(search.bound, self.root.lagrangian.bound)
        search.lagrangian_usd_h = self.root.lagrangian.bound
        return self


def raise_bound(search: SearchContext, root: Root, known: Floats | None) -> Highest:
    """The step ``decomposition``: best prices over some columns, held against all, until no other column matters.

    Args:
        search: What is known.
        root: The bounds over all columns.
        known: float64 (R, C): capacity prices to begin with, in place of those of the relaxation.
    """
    prices = root.relaxation.capacity_prices if known is None else known
    state = MasterState(prices, side_prices=root.relaxation.side_prices)
    nothing = Highest(root, [], np.zeros(len(search.columns)), np.zeros(0, dtype=np.int64), (), True)
    highest = _highest(search, nothing, state).keep(search)
    search.capacity_prices, search.by_prices = search.best.capacity_prices, search.bound
    search.lap("decomposition")
    return highest


def add_cuts(search: SearchContext, highest: Highest) -> Highest:
    """The step ``cuts``: those that the fractional allocation violates, round by round while they close enough of the gap.

    The problem within cuts and its best prices are kept in ``search``; capacity prices that pass on to other problems stay.
    """
    deadline = time.perf_counter() + search.share_of_left()
    for _ in range(search.limits.cut_rounds):
        if not search.open() or time.perf_counter() >= deadline:
            break
        before, cuts, best = search.bound, search.cuts, search.best
        paid = best.side_prices
        assert paid is not None
        own = len(paid) - len(cuts)
        # Those without a price change nothing any more.
        stay = [k for k, cut in enumerate(cuts) if paid[own + k] > 0]
        known = {cuts[k].name for k in stay}
        violated = violated_cuts(search.small, search.columns, highest.values)
        fresh = [cut for cut in violated if cut.name not in known]
        if not fresh:
            break
        search.cut([*(cuts[k] for k in stay), *fresh])
        side_prices = np.concatenate([paid[:own], paid[own:][stay], np.zeros(len(fresh))])
        search.best = MasterState(best.capacity_prices, side_prices=side_prices)
        coverings = _counted(search.within_cuts, search.columns, highest.last)
        higher = _highest(search, highest, replace(search.best, coverings=coverings))
        if not higher.fits:
            # Prices of rows that leave nothing grow without end.
            search.cut(cuts)
            search.best = best
            break
        highest = higher.keep(search)
        if search.bound < before * (1 + WORTH):
            break
    met = _counted(search.within_cuts, search.columns, highest.met) if search.cuts else highest.met
    search.lap("cuts")
    return replace(highest, met=list(met))


def fit_supply(search: SearchContext, highest: Highest) -> Highest:
    """The step ``fitting``: prices at which the bound of coverings that fit the pool by themselves is highest.

    Where no phase needs more than there is of anything, the bound stays what it was.
    """
    if not search.open():
        return highest
    problem, columns, chosen = search.within_cuts, search.columns, highest.chosen
    root, best = highest.root, search.best
    known = _counted(problem, columns, highest.met)
    for _ in range(FITS):
        pricing = FittingPricing(problem, columns, chosen)
        state = pricing.started(replace(best, coverings=known))
        if set(pricing.reach) <= pricing.hard:
            # No phase needs more than there is of anything, or it cannot be told what those that do weigh.
            break
        deadline = time.perf_counter() + search.share_of_left()
        master = best_prices(pricing, state, search.lp_solver, deadline)
        best, known = master.state, master.state.coverings
        plain = lagrangian_bound(problem, columns, best.capacity_prices, side_prices=best.side_prices)
        lagrangian = with_fitting(problem, columns, plain)
        bounds = np.maximum(root.column_bounds, lagrangian.column_bounds)
        if lagrangian.bound > root.lagrangian.bound:
            search.best = replace(best, coverings=())
            root = replace(root, lagrangian=replace(lagrangian, column_bounds=bounds))
        root = replace(root, column_bounds=bounds)
        near = np.flatnonzero(lagrangian.column_bounds <= lagrangian.bound * (1 + search.limits.near_bound))
        grown = np.union1d(chosen, near[: search.limits.near_columns])
        if len(grown) == len(chosen) or lagrangian.bound >= master.bound - CLOSE * abs(master.bound):
            break
        chosen = grown
    search.lap("fitting")
    return replace(highest, root=root).keep(search)


def _highest(search: SearchContext, highest: Highest, state: MasterState) -> Highest:
    """The highest bound within the cuts, from some prices and coverings on; its prices are kept in ``search``."""
    problem, columns, limits = search.within_cuts, search.columns, search.limits
    root, met, values, chosen = highest.root, list(highest.met), highest.values, highest.chosen
    best = lagrangian = root.lagrangian
    last = state.coverings
    # With other cuts the same columns say something new.
    again, fits = len(chosen) > 0, True
    while True:
        # Columns that look good at any prices so far; at bad prices that may be nearly all.
        limit = lagrangian.bound + limits.near_bound * abs(lagrangian.bound)
        near = np.flatnonzero((lagrangian.column_bounds <= limit) | columns.kept)
        if len(near) > limits.near_columns:
            near = near[np.argsort(lagrangian.column_bounds[near], kind="stable")[: limits.near_columns]]
        grown = np.union1d(chosen, near)
        if (len(grown) == len(chosen) and not again) or search.left() == 0:
            break
        chosen, again = grown, False
        master = best_prices(PricingProblem(problem, columns, chosen), state, search.lp_solver, search.deadline)
        fits = bool(np.isfinite(master.master))
        met += master.state.coverings[len(state.coverings) :]
        values = np.zeros(len(columns))
        used = []
        for covering, share in zip(master.state.coverings, master.shares.tolist(), strict=False):
            if share > 0:
                used.append(covering)
            for column, count in covering.members if share > 0 else ():
                values[column] += share * count
        last = (*used, *master.state.coverings[-SPARE:])
        state = MasterState(master.state.capacity_prices, side_prices=master.state.side_prices)
        lagrangian = lagrangian_bound(problem, columns, state.capacity_prices, side_prices=state.side_prices)
        if lagrangian.bound > best.bound:
            search.best = state
            best = replace(lagrangian, column_bounds=np.maximum(lagrangian.column_bounds, best.column_bounds))
        if lagrangian.bound >= master.bound - CLOSE * abs(master.bound):
            break
    bounds = np.maximum(root.column_bounds, best.column_bounds)
    root = replace(root, lagrangian=replace(best, column_bounds=bounds), column_bounds=bounds)
    return Highest(root, met, values, chosen, last, fits)


def _counted(problem: AllocationProblem, columns: Columns, coverings: Sequence[Covering]) -> tuple[Covering, ...]:
    """The coverings with what they add to all side constraints and cuts of a problem."""
    members = np.unique(np.array([k for covering in coverings for k, _ in covering.members], dtype=np.int64))
    adds, cells = side_adds(problem, columns, members), problem.price.size
    counted = []
    for covering in coverings:
        total = np.zeros(adds.shape[1])
        for column, count in covering.members:
            total += count * adds[np.searchsorted(members, column)]
        counted.append(replace(covering, use=np.concatenate([covering.use[:cells], total])))
    return tuple(counted)
