"""The steps ``decomposition`` and ``cuts``: the highest Lagrangian bound, without and with cutting planes on the supply."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coralopt.allocation.bounds.coverings import side_adds
from coralopt.allocation.bounds.cuts import SupplyCut, cuts_of_coverings, violated_cuts
from coralopt.allocation.bounds.decomposition import CLOSE, Decomposition, MasterState, best_prices
from coralopt.allocation.bounds.fitting import PRICED, WHOLE, FittingPricing, with_fitting
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
        used: Coverings of the last one that its solution takes, with the share of each.
        chosen: int64 (k,), columns that took part.
        last: Coverings of the last master programme that the next one begins with.
        fits: Whether that solution fits the pool; otherwise nothing does, or there was no time left to see.
    """

    root: Root
    met: list[Covering]
    used: tuple[tuple[Covering, float], ...]
    chosen: Ints
    last: tuple[Covering, ...]
    fits: bool

    def keep(self, search: SearchContext) -> Highest:
        """Raise the bound of the search to it."""
        search.raise_bound(self.root.lagrangian.bound)
        search.lagrangian_usd_h = self.root.lagrangian.bound
        return self

    def after(self, master: Decomposition, known: int) -> Highest:
        """With the coverings of another master programme, of which it began with ``known``."""
        coverings = master.state.coverings
        shares = zip(coverings, master.shares.tolist(), strict=False)
        used = tuple((covering, share) for covering, share in shares if share > 0)
        return replace(
            self,
            met=[*self.met, *coverings[known:]],
            used=used,
            chosen=master.chosen,
            last=(*(covering for covering, _ in used), *coverings[-SPARE:]),
            fits=bool(np.isfinite(master.master)),
        )

    def values(self, columns: Columns) -> Floats:
        """float64 (N,): instances of every column in the last fractional allocation."""
        values = np.zeros(len(columns))
        for covering, share in self.used:
            for column, count in covering.members:
                values[column] += share * count
        return values


#: What raises a bound from some prices and coverings on.
Raise = Callable[[SearchContext, Highest, MasterState], Highest]


def raise_bound(search: SearchContext, root: Root, known: Floats | None) -> Highest:
    """The step ``decomposition``: best prices over some columns, held against all, until no other column matters.

    Args:
        search: What is known.
        root: The bounds over all columns.
        known: float64 (R, C): capacity prices to begin with, in place of those of the relaxation.
    """
    prices = root.relaxation.capacity_prices if known is None else known
    state = MasterState(prices, side_prices=root.relaxation.side_prices)
    nothing = Highest(root, [], (), np.zeros(0, dtype=np.int64), (), True)
    highest = _highest(search, nothing, state).keep(search)
    search.capacity_prices, search.by_prices = search.best.capacity_prices, search.bound
    search.lap("decomposition")
    return highest


def add_cuts(search: SearchContext, highest: Highest, whole: bool) -> Highest:
    """The step ``cuts``: those that the fractional allocation violates, round by round while they close enough of the gap.

    The problem within cuts and its best prices are kept in ``search``; capacity prices that pass on to other problems stay.

    Args:
        search: What is known.
        highest: The highest bound so far.
        whole: Whether cuts count coverings that fit as a whole, instead of instance by instance.
    """
    deadline = time.perf_counter() + search.share_of_left()
    raised: Raise = _fitting if whole else _highest
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
        fresh = [cut for cut in _violated(search, highest, whole) if cut.name not in known]
        if not fresh:
            break
        search.cut([*(cuts[k] for k in stay), *fresh])
        side_prices = np.concatenate([paid[:own], paid[own:][stay], np.zeros(len(fresh))])
        search.best = MasterState(best.capacity_prices, side_prices=side_prices)
        coverings = _counted(search.within_cuts, search.columns, highest.last)
        higher = raised(search, highest, replace(search.best, coverings=coverings))
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
    known = _counted(search.within_cuts, search.columns, highest.met)
    higher = _fitting(search, highest, replace(search.best, coverings=known)).keep(search)
    search.lap("fitting")
    return higher


def _violated(search: SearchContext, highest: Highest, whole: bool) -> list[SupplyCut]:
    """Cuts that the last fractional allocation violates."""
    small = search.small
    if not whole:
        return violated_cuts(small, search.columns, highest.values(search.columns))
    use = np.array([covering.use[: small.price.size] for covering, _ in highest.used], dtype=np.int64)
    shares = np.array([share for _, share in highest.used])
    return cuts_of_coverings(small, use.reshape(-1, *small.price.shape), shares)


def _fitting(search: SearchContext, highest: Highest, state: MasterState) -> Highest:
    """The highest bound of coverings that fit within the cuts, from some prices and coverings on."""
    problem, columns = search.within_cuts, search.columns
    root, deadline = highest.root, time.perf_counter() + search.share_of_left()
    if len(columns) <= search.limits.near_columns:
        # At these prices columns that looked dear are needed, too.
        highest = replace(highest, chosen=np.arange(len(columns)))
    for _ in range(FITS):
        pricing = FittingPricing(problem, columns, highest.chosen, good=search.own_prices, until=deadline)
        state = pricing.started(state)
        if set(pricing.reach) <= pricing.hard and not search.cuts:
            # No phase needs more than there is of anything, or it cannot be told what those that do weigh.
            break
        master = best_prices(pricing, state, search.lp_solver, deadline)
        highest = highest.after(master, len(state.coverings))
        state = master.state
        plain = lagrangian_bound(problem, columns, state.capacity_prices, side_prices=state.side_prices)
        begun = time.perf_counter()
        lagrangian = with_fitting(problem, columns, plain, state, replace(PRICED, until=deadline), search.own_prices)
        took = time.perf_counter() - begun
        near = np.flatnonzero(lagrangian.column_bounds <= lagrangian.bound * (1 + search.limits.near_bound))
        near = near[np.argsort(lagrangian.column_bounds[near], kind="stable")[: search.limits.near_columns]]
        grown = np.union1d(highest.chosen, near)
        close = lagrangian.bound >= master.bound - CLOSE * abs(master.bound)
        last = len(grown) == len(highest.chosen) or close or time.perf_counter() >= deadline
        # As high as the master programme says, a thorough look gains next to nothing.
        if last and not close and took * WHOLE.most / PRICED.most < search.share_of_left():
            lagrangian = with_fitting(problem, columns, plain, state, good=search.own_prices)
        bounds = np.maximum(root.column_bounds, lagrangian.column_bounds)
        if lagrangian.bound > root.lagrangian.bound:
            search.best = replace(state, coverings=())
            root = replace(root, lagrangian=replace(lagrangian, column_bounds=bounds))
        root = replace(root, column_bounds=bounds)
        if last:
            break
        highest = replace(highest, chosen=grown)
    return replace(highest, root=root)


def _highest(search: SearchContext, highest: Highest, state: MasterState) -> Highest:
    """The highest bound within the cuts, from some prices and coverings on; its prices are kept in ``search``."""
    problem, columns, limits = search.within_cuts, search.columns, search.limits
    root, chosen = highest.root, highest.chosen
    best = lagrangian = root.lagrangian
    highest = replace(highest, last=state.coverings, fits=True)
    # With other cuts the same columns say something new.
    again = len(chosen) > 0
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
        highest = highest.after(master, len(state.coverings))
        state = replace(master.state, coverings=highest.last)
        lagrangian = lagrangian_bound(problem, columns, state.capacity_prices, side_prices=state.side_prices)
        if lagrangian.bound > best.bound:
            search.best = state
            best = replace(lagrangian, column_bounds=np.maximum(lagrangian.column_bounds, best.column_bounds))
        # Above the target no bound says more, and the prices are good ones already.
        if lagrangian.bound >= master.bound - CLOSE * abs(master.bound) or best.bound >= search.target:
            break
    bounds = np.maximum(root.column_bounds, best.column_bounds)
    return replace(highest, root=replace(root, lagrangian=replace(best, column_bounds=bounds), column_bounds=bounds))


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
