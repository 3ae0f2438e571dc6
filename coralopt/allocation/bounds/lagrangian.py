r"""A lower bound that keeps the demand rows whole, and the columns it rules out.

For capacity prices lambda >= 0 the capacity rows move into the objective (Lagrangian relaxation)::

    L(lambda) = - sum_{r,c} lambda_{r,c} A_r(c) + sum_m D_m,
    D_m = min { sum_n w n : sum T n >= T_m, n whole },   w = cost + sum_c lambda_{r,c} U_c >= 0

``D_m`` is a covering knapsack over the columns of model phase m: new instances without limit, kept ones up to the number
that runs. L(lambda) is a lower bound on every allocation's cost for every lambda >= 0. With ample
supply lambda is 0 and the bound closes the gap that rounding up the demand rows leaves to the linear relaxation.

The knapsack is solved on a grid of G steps of T_m / G tokens/s with every throughput rounded *up* to whole steps: a
relaxation, so the bound stays valid, and a fine grid costs little: every instance is
rounded up by less than one step of it.

Beyond the paper's problem: supply classes change the constant only (:mod:`coralopt.allocation.supply`); a unit of unmet
demand at its price is one more item of the knapsack, one step large and without limit; replicas of a phase stay in its
knapsack, D(s, k) = min over items of w + D(s - T, k - 1); other side constraints move into the objective at prices
mu >= 0 of their own, or stay away (mu = 0). What must survive the loss of
any one instance is in :mod:`coralopt.allocation.bounds.spared`; phases with routes weigh at least that, too. What must
survive the loss of a region is in :mod:`coralopt.allocation.bounds.surviving`. Prices under which an item would weigh
less than nothing are scaled down until none does.

Models with routes: their covering knapsacks belong together, see :mod:`coralopt.allocation.bounds.routed`.

Column bound: forcing one instance of a column into the solution costs at least L - D_m + w + D_m(T_m - T), with the
remaining demand covered at best. Where that exceeds the cost one is willing to pay, the column is 0 in every such solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coralopt.allocation.bounds.coverings import WeightedColumns
from coralopt.allocation.bounds.knapsack import (
    allow_copies,
    cheapest_share,
    least_weights,
    raise_to_line,
    several_items,
)
from coralopt.allocation.bounds.routed import SPAN, routed_cover, staircases
from coralopt.allocation.bounds.spared import SparedCover, least_spared
from coralopt.allocation.bounds.surviving import SurvivingCover, surviving_cover
from coralopt.allocation.bounds.unmet import GroupCover, shared_groups
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.side_constraints import SidePrices, open_constraints
from coralopt.types import Floats, Ints


@dataclass(frozen=True, eq=False)
class LagrangianBound:
    """The bound at given capacity prices.

    Attributes:
        bound: USD/h; every allocation costs at least this.
        column_bounds: float64 (N,), USD/h; every allocation with an instance of this column costs at least this.
        weight: float64 (N,), USD/h; cost of a column and its nodes at the capacity prices.
        least: One float64 (K + 1, G + 1) a model phase that needs K replicas: least weight of at least k instances that
            cover s of G steps of its demand; zeros for phases with routes.
        whole: float64 (P,), USD/h; what every covering of the whole demand weighs at least.
    """

    bound: float
    column_bounds: Floats
    weight: Floats
    least: tuple[Floats, ...]
    whole: Floats

    @staticmethod
    def nothing(columns: int) -> LagrangianBound:
        """What holds of any problem: nothing costs less than 0."""
        return LagrangianBound(0.0, np.zeros(columns), np.zeros(columns), (), np.zeros(0))

    def near(self, limit: float) -> WeightedColumns:
        """The columns whose bound is at most ``limit``."""
        near = np.flatnonzero(self.column_bounds <= limit)
        return WeightedColumns(near, self.weight[near], self.least, self.whole)


def lagrangian_bound(
    problem: AllocationProblem,
    columns: Columns,
    capacity_prices: Floats,
    grid: int | None = None,
    side_prices: Floats | None = None,
) -> LagrangianBound:
    """The bound of the module docstring, and what every single column would cost at least.

    Args:
        problem: The problem.
        columns: Its columns.
        capacity_prices: float64 (R, C), USD/h per node.
        grid: Steps of every demand; by default 400,000, or more where there are many instances.
        side_prices: float64 (S,), of the side constraints; 0 when ``None``.
    """
    grid = grid_for(problem, 400_000) if grid is None else grid
    prices = np.maximum(capacity_prices, 0.0)
    burden = problem.usage.astype(np.float64) @ prices.T
    weight = columns.cost + burden[columns.template, columns.region]
    unmet = problem.unmet_prices()
    constant = -problem.segments.worth(prices, np.ones(len(problem.region_names)))
    if side_prices is not None and side_prices.any():
        # Replicas of one phase and what survives stay in its knapsack, whole.
        sides = open_constraints(problem)
        inside = np.array(
            [problem.inside(item) or (item.is_replicas and not problem.counted(item)) for item in sides], dtype=np.bool_
        )
        outside = SidePrices(problem, np.where(inside, 0.0, np.maximum(side_prices, 0.0)))
        terms, relief = outside.terms(columns.template, columns.region, columns.kept), outside.unmet_worth()
        share = scaled_share(np.concatenate([weight, unmet]), np.concatenate([terms, -relief]))
        weight, unmet = np.maximum(weight + share * terms, 0.0), unmet - share * relief
        side = SidePrices(problem, share * outside.prices)
        constant = side.worth() - problem.segments.worth(prices, side.rent_factor())
    unmet = np.maximum(unmet, 0.0)
    # With side prices less must survive of what goes unmet, so that is worth less.
    unmet_usd_h = problem.unmet_usd_h(unmet)
    groups = shared_groups(problem, unmet)
    grouped = {p for group in groups for p in group.phases}
    unmet = _by_worth(problem, columns, weight, unmet)
    steps = np.zeros(len(columns), dtype=np.int64)
    routed = {p for model in problem.routes for p in model.phases}
    covers: list[Floats] = []
    survivors: dict[int, SurvivingCover] = {}
    spared: dict[int, SparedCover] = {}
    whole, spares = np.zeros(len(problem.demand)), np.zeros(len(problem.demand))
    least: list[Floats] = []
    # What is left to cover once one instance is there.
    rests: list[Floats] = []
    for p, demand in enumerate(problem.demand):
        mine = np.flatnonzero(columns.phase == p)
        if demand > 0:
            steps[mine] = grid_steps(problem.throughput[columns.template[mine]], demand, grid)
            if problem.spared[p]:
                share, each = float(problem.spared[p]), float(unmet[p] * demand / grid)
                spared[p] = least_spared(steps[mine], weight[mine], grid, share, each)
                spares[p] = spared[p].least
        if demand <= 0 or p in routed:
            covers.append(np.zeros(grid + 1))
            rests.append(covers[-1])
            least.append(covers[-1][None])
            continue
        tiers = [(factor * unmet[p] * demand / grid, share) for share, factor in problem.tiers_of(p)]
        if p in grouped:
            tiers = [(np.inf, 1.0)]
        cover = _table(columns, mine, steps, weight, grid, tiers)
        raise_to_line(cover, min(_pro_rata(problem, columns, weight, p), tiers[0][0] * grid))
        several = several_items(steps[mine], weight[mine], cover, int(problem.replicas[p]))
        rests.append(several[-2:][0])
        cover = several[-1]
        covers.append(cover)
        least.append(several)
        whole[p] = max(float(cover[grid]), spares[p])
        if problem.surviving[p].any():
            by_region = [mine[columns.region[mine] == r] for r in range(len(problem.region_names))]
            regional = [_table(columns, some, steps, weight, grid) for some in by_region]
            survivors[p] = surviving_cover(regional, (problem.surviving[p] * grid).astype(np.int64))
            whole[p] = max(whole[p], survivors[p].least)
        if p in spared:
            rests[-1] = np.maximum(rests[-1], spared[p].beside[::-1])
    together = [GroupCover.of(group, {p: covers[p] for p in group.phases}) for group in groups]
    for group in groups:
        # Of the whole demand they say nothing; together they weigh what follows.
        whole[list(group.phases)] = 0.0
    tables = [
        {
            name: _table(columns, np.flatnonzero(np.isin(columns.pool, pools)), steps, weight, grid)
            for name, pools in staircases(problem, model).items()
        }
        for model in problem.routes
    ]
    total = constant + float(whole.sum())
    ends = [float(table[grid]) for part in tables for table in part.values() if np.isfinite(table[grid])]
    span = SPAN * (total - constant + sum(ends))
    joint = [
        routed_cover(problem, model, part, unmet_usd_h, span)
        for model, part in zip(problem.routes, tables, strict=True)
    ]
    of_models = [
        max(cover.least, float(spares[list(model.phases)].sum()))
        for model, cover in zip(problem.routes, joint, strict=True)
    ]
    total += sum(of_models) + sum(cover.least for cover in together)
    column_bounds = np.full(len(columns), -np.inf)
    for p, (cover, rest) in enumerate(zip(covers, rests, strict=True)):
        mine = np.flatnonzero(columns.phase == p)
        if np.isfinite(cover[grid]) and p not in routed | grouped:
            column_bounds[mine] = total - whole[p] + weight[mine] + rest[grid - steps[mine]]
    for group, shared in zip(groups, together, strict=True):
        for p in group.phases if np.isfinite(total) else ():
            mine = np.flatnonzero(columns.phase == p)
            column_bounds[mine] = total - shared.least + weight[mine] + shared.beside(p, rests[p], steps[mine])
    for p, surviving in survivors.items():
        for r in range(len(problem.region_names)) if np.isfinite(total) else ():
            mine = np.flatnonzero((columns.phase == p) & (columns.region == r))
            own = total - whole[p] + surviving.with_one(r, steps[mine], weight[mine])
            column_bounds[mine] = np.maximum(column_bounds[mine], own)
    for model, joined, alone in zip(problem.routes, joint, of_models, strict=True):
        for p in model.phases:
            for q in problem.pools.of_phase(p, len(problem.region_names)):
                mine = np.flatnonzero(columns.pool == q)
                if np.isfinite(total):
                    column_bounds[mine] = total - alone + weight[mine] + joined.beside(q, steps[mine])
    # Rounding of the sums above must never lift the bound over a true cost.
    size = (
        abs(constant) if side_prices is None else abs(constant) + float(prices.ravel() @ problem.availability.ravel())
    )
    slack = 1e-9 * (abs(total) + 2 * size) if np.isfinite(total) else 0.0
    return LagrangianBound(total - slack, column_bounds - slack, weight, tuple(least), whole)


def _by_worth(problem: AllocationProblem, columns: Columns, weight: Floats, unmet: Floats) -> Floats:
    """float64 (P,): prices of unmet demand, of phases that go unmet together in proportion to what serving them costs.

    Only their sum counts; in a knapsack of its own a phase without a price would go unmet.
    """
    unmet = unmet.copy()
    for group in problem.unmet_together:
        needed = [p for p in group if problem.demand[p] > 0]
        whole = np.array([_pro_rata(problem, columns, weight, p) for p in needed])
        total = float(sum(unmet[p] * problem.demand[p] for p in needed))
        if len(needed) > 1 and np.isfinite(total) and np.isfinite(whole).all() and whole.sum() > 0:
            unmet[needed] = total * whole / whole.sum() / problem.demand[needed]
    return unmet


def _pro_rata(problem: AllocationProblem, columns: Columns, weight: Floats, phase: int) -> float:
    """Least weight of the demand of a phase if columns could be had in fractions."""
    mine = np.flatnonzero(columns.phase == phase)
    return cheapest_share(weight[mine], problem.throughput[columns.template[mine]] / problem.demand[phase])


def _table(
    columns: Columns,
    mine: Ints,
    steps: Ints,
    weight: Floats,
    grid: int,
    tiers: Sequence[tuple[float, float]] = ((np.inf, 1.0),),
) -> Floats:
    """Least weight of some columns that cover each amount; steps of it may go unmet, (price, share of all steps) each."""
    fresh, kept = mine[~columns.kept[mine]], mine[columns.kept[mine]]
    sizes, weights = steps[fresh], weight[fresh]
    # The last price is for all the rest.
    if np.isfinite(tiers[-1][0]):
        sizes, weights = np.append(sizes, 1), np.append(weights, tiers[-1][0])
    table = least_weights(sizes, weights, grid)
    for price, share in tiers[:-1]:
        allow_copies(table, 1, price, int(np.ceil(share * grid)))
    for k in kept.tolist():
        allow_copies(table, int(steps[k]), float(weight[k]), int(columns.upper[k]))
    return table


def scaled_share(weights: Floats, terms: Floats) -> float:
    """Largest share in [0, 1] of the terms that leaves every weight at 0 or above."""
    falls = np.flatnonzero(terms < 0)
    if not len(falls):
        return 1.0
    return float(min(1.0, (weights[falls] / -terms[falls]).min()))


def grid_steps(throughput: Floats, demand: Floats | float, grid: int) -> Ints:
    """int64 (n,): grid steps that each throughput covers, rounded up, 1 to ``grid``; no demand counts as 1 token/s."""
    # The hair of slack keeps rounding up on the safe side of floating-point division.
    size = np.ceil(throughput / np.where(np.asarray(demand) > 0, demand, 1.0) * grid * (1 + 1e-12))
    return np.asarray(np.clip(size, 1, grid).astype(np.int64))


def grid_for(problem: AllocationProblem, least: int) -> int:
    """Steps of a grid on which even many instances lose little by rounding up: 2,000 a large instance, to a million."""
    served = problem.largest > 0
    count = (problem.demand[served] / problem.largest[served]).max(initial=1.0)
    return int(min(max(least, 2_000 * count), 1_000_000))
