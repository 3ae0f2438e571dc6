r"""The one assembler of allocation matrices: full, restricted to some columns, elastic, or with one common share unserved.

::

    sum U_c nu - sum_k extra[r,c,k]                        <= A_r,1(c)       capacity of every region r, configuration c
    sum T nu + T_m sigma[g(m)] (+ T_m omega) + e[q]        >= T_m            demand of every model phase m without routes
    (sum T nu - T_m sum_k f[k] + e[q]) / T_m               >= 0              every pool q of a phase m with routes
    sum_k f[k] + sigma[g] (+ omega)                        >= 1              routes k of every model that has them
    sum a nu (+ s_k extra) (+ b sigma) (+ b omega) (+ e)   <= or >= b        every side constraint
    sum_k (v_k - V) f[k]                                   >= 0              every mean over the requests of a model
    sum t D / (t + D) nu + ...                             >= D              one that holds with any one instance lost,
                                                                             t = min(T, D), D = x T_m: a linear row,
    sum t nu - sum_i (l_i - l_i-1) largest[i] + ...        >= D              and what it stands for
    nu <= U largest[i],  largest[i+1] <= largest[i]                          instances of the i-th least value l_i of t
    sum_p time[nu,p]                                       <= nu             columns that divide their time: T_p time[nu,p]
                                                                             goes to phase p, T time[nu,p] from their own

Columns, in this order: instances nu; ``largest``, whether an instance of this throughput or above is there, unless instances
may be split; ``time``, instances' worth of time for a further model phase; ``flow`` f, the share of a model's requests on a
route; ``extra``, nodes of the dearer supply classes at their surcharge; ``shortfall`` sigma, the unmet share of a group of
phases at its price; ``omega``, one share of *every* demand that is not served; the elastic slack e, what is missing of a
pool or of a side constraint that asks for "least".

:mod:`coralopt.allocation.model.pyomo_rows` says the same to Pyomo, in code of its own; tests hold both equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from coralopt.allocation.model.columns import Columns, PoolEntries
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.side_constraints import SideConstraint, open_constraints, usage_once
from coralopt.solving import LazyNames, MilpMatrix
from coralopt.types import Floats, Ints


def assemble(
    problem: AllocationProblem,
    columns: Columns,
    chosen: Ints | None = None,
    *,
    integer: bool = True,
    slack: Floats | None = None,
    unserved: Literal["by group", "common"] = "by group",
) -> MilpMatrix:
    """The matrix over the chosen columns, which become columns 0..k-1.

    Its rows are R * C capacities, Q pools, one row a model with routes, S side constraints, one row a mean, and ladders.

    Args:
        problem: The problem.
        columns: Its columns.
        chosen: int64 (k,), those that take part; all when ``None``.
        integer: Whether instances are whole.
        slack: float64 (Q + L,), price of missing the whole of a pool or of a "least" side constraint; nothing may be
            missed when ``None``. Unmet demand with a price of its own may be, at that price, in any case.
        unserved: ``"common"`` leaves the same share of every demand unserved, at cost 1 for all of it, instead of what
            the problem allows.
    """
    from scipy.sparse import csr_array

    chosen = np.arange(len(columns), dtype=np.int64) if chosen is None else chosen
    rows = _Rows(problem)
    t, r, kept = columns.template[chosen], columns.region[chosen], columns.kept[chosen]
    # Sparse and in 32 bits: at a million columns the dense table alone would take 160 MiB.
    nodes, position = usage_once(problem, t)
    usage = csr_array(nodes.astype(np.float64))[position]
    k, c = np.repeat(np.arange(len(t), dtype=np.int32), np.diff(usage.indptr)), usage.indices
    upper = np.full(len(t), np.inf)
    if problem.running is not None:
        # A new column's own capacity rows bound it; only kept ones need their running count.
        upper[kept] = problem.running[t[kept], r[kept]]

    def instances(column: int) -> str:
        return f"{'kept' if kept[column] else 'new'}[{t[column]},{r[column]}]"

    first = rows.add(columns.cost[chosen], upper, instances)
    rows.enter(r.astype(np.int32)[k] * rows.configurations + c, k + np.int32(first), usage.data)
    served = PoolEntries.of(problem, t, r)
    whole_time = slice(None, len(t) if problem.joint.divided else None)
    rows.enter(rows.pool + served.pool[whole_time], first + served.column[whole_time], served.tokens_s[whole_time])
    for row, item in rows.sides:
        values = item.linear_coefficients(problem, t, r, kept)
        used = np.flatnonzero(values)
        rows.enter(np.full(len(used), row), first + used, values[used])
    if integer:
        for side, (_, item) in enumerate(rows.sides):
            if item.one_lost and item.limit(problem):
                _add_largest(rows, side, item, t, columns.upper[chosen])
    whole = rows.columns
    if problem.joint.divided:
        _add_time(rows, first, served, len(t))
    _add_flows(rows, columns.paid)
    _add_supply(rows, columns.paid)
    groups = problem.unmet_groups() if unserved == "by group" else ((tuple(range(len(problem.demand))), 1.0, 1.0),)
    for g, (phases, price, most) in enumerate(groups):
        paid = price if columns.paid or unserved == "common" else 0.0
        name = f"shortfall[{g}]" if unserved == "by group" else "unserved_share"
        place = rows.add(np.array([paid]), np.array([most]), [name])
        for p in phases:
            if p not in rows.routed:
                rows.enter([rows.pool + problem.pools.at((p, None))], [place], [problem.demand[p]])
        for row, model in rows.routes:
            if model.phases[0] in phases:
                rows.enter([row], [place], [1.0])
        for row, item in [*rows.sides, *rows.one_lost]:
            if (
                item.measure == "tokens_s"
                and item.limit(problem)
                and item.phases is not None
                and item.phases[0] in phases
            ):
                rows.enter([row], [place], [item.limit(problem)])
    if slack is not None:
        _add_slack(rows, slack)
    return rows.matrix(integer_columns=whole if integer else 0)


def shortfall_units(problem: AllocationProblem) -> Floats:
    """float64 (Q + L,): what a share of 1 missing is in its column: of every pool, then "least" side constraint.

    The whole demand in tokens/s, or 1 where the pool's row is in shares of it already.
    """
    limits = [item.limit(problem) for item in open_constraints(problem) if item.sense == "least"]
    units = np.concatenate([problem.demand[problem.pools.phase] / pool_units(problem), limits])
    return np.where(units > 0, units, 1.0)


def pool_units(problem: AllocationProblem) -> Floats:
    """float64 (Q,): what the rows of pools are divided by: the phase's demand where routes decide, else 1."""
    tied = np.isin(problem.pools.phase, [p for model in problem.routes for p in model.phases])
    return np.where(tied, problem.demand[problem.pools.phase], 1.0)


class _Rows:
    """Rows of the problem, and the columns and entries given so far."""

    def __init__(self, problem: AllocationProblem) -> None:
        _, regions, self.configurations, _ = problem.shape
        pools, models = problem.pools, len(problem.routes)
        self.problem = problem
        #: Number of the first pool's row, (row, model with routes), (row, side constraint), and phases with routes.
        self.pool = regions * self.configurations
        self.routes = list(enumerate(problem.routes, self.pool + len(pools)))
        self.sides = list(enumerate(open_constraints(problem), self.pool + len(pools) + models))
        #: (row, side constraint) of those that hold with any one instance lost, where instances are whole.
        self.one_lost: list[tuple[int, SideConstraint]] = []
        self.routed = {p for model in problem.routes for p in model.phases}
        #: Row of the first mean of each model with routes.
        counts = [len(model.means) for model in problem.routes]
        means, firsts = sum(counts), np.cumsum([self.pool + len(pools) + models + len(self.sides), *counts])
        self.means = [int(row) for row in firsts[:-1]]
        limits = np.array([item.limit(problem) for _, item in self.sides], dtype=np.float64)
        most = np.array([item.sense == "most" for _, item in self.sides], dtype=np.bool_)
        capacity = problem.segments.first.ravel().astype(np.float64)
        self.lower = np.concatenate(
            [
                np.full(self.pool, -np.inf),
                pools.need,
                np.ones(models),
                np.where(most, -np.inf, limits),
                np.zeros(means),
            ]
        )
        free = np.full(len(pools) + models, np.inf)
        self.upper = np.concatenate([capacity, free, np.where(most, limits, np.inf), np.full(means, np.inf)])
        self.names = [f"capacity[{r},{c}]" for r in range(regions) for c in range(self.configurations)]
        self.names += [
            f"pool[{p},{r}]" if p in self.routed else f"demand[{p}]"
            for p, r in zip(pools.phase.tolist(), pools.region.tolist(), strict=True)
        ]
        self.names += [f"routes[{g}]" for g in range(models)] + [f"side[{i}]" for i in range(len(self.sides))]
        self.names += [f"mean[{g},{i}]" for g, count in enumerate(counts) for i in range(count)]
        self.units = np.ones(len(self.names))
        self.units[self.pool : self.pool + len(pools)] = pool_units(problem)
        self._costs: list[Floats] = []
        self._uppers: list[Floats] = []
        self._names: list[tuple[int, Callable[[int], str]]] = []
        self.columns = 0
        self._entries: list[tuple[Ints | list[int], Ints | list[int], Floats | list[float]]] = []

    def add(self, costs: Floats, uppers: Floats, names: Callable[[int], str] | list[str]) -> int:
        """Add columns from 0 to their upper bounds, with names or what makes them; the number of the first one."""
        self._costs.append(costs)
        self._uppers.append(uppers)
        self._names.append((len(costs), names.__getitem__ if isinstance(names, list) else names))
        self.columns += len(costs)
        return self.columns - len(costs)

    def at_most_0(self, names: list[str]) -> int:
        """Add rows that must not exceed 0; the number of the first one."""
        return self.more(names, -np.inf, 0.0)

    def more(self, names: list[str], lower: float, upper: float) -> int:
        """Add rows of these limits; the number of the first one."""
        each, first = np.ones(len(names)), len(self.names)
        self.lower, self.upper = np.append(self.lower, lower * each), np.append(self.upper, upper * each)
        self.units = np.append(self.units, each)
        self.names += names
        return first

    def enter(self, rows: Ints | list[int], columns: Ints | list[int], values: Floats | list[float]) -> None:
        self._entries.append((rows, columns, values))

    def matrix(self, integer_columns: int) -> MilpMatrix:
        from scipy.sparse import csc_array

        kinds = (np.int32, np.int32, np.float64)
        parts = zip(kinds, zip(*self._entries, strict=True), strict=True)
        rows, columns, values = (np.concatenate([np.asarray(item, kind) for item in part]) for kind, part in parts)
        self._entries.clear()
        # Pools with routes in shares of their demand: beside their 0, tokens/s would leave no room for rounding.
        values /= self.units[rows]
        count = self.columns
        return MilpMatrix(
            c=np.concatenate(self._costs),
            offset=0.0,
            a=csc_array((values, (rows, columns)), shape=(len(self.names), count)),
            row_lower=self.lower,
            row_upper=self.upper,
            lower=np.zeros(count),
            upper=np.concatenate(self._uppers),
            integer=np.arange(count) < integer_columns,
            maximize=False,
            column_names=LazyNames(self._names),
            row_names=self.names,
        )


def _add_largest(rows: _Rows, side: int, item: SideConstraint, template: Ints, upper: Floats) -> None:
    """A row without what the largest instance gives, and a ladder over the throughputs of one model phase.

    Args:
        rows: Where to add it; instances are its first columns.
        side: Number of the side constraint.
        item: The side constraint.
        template: int64 (k,), of every instance column.
        upper: float64 (k,), most instances of each.
    """
    problem, limit = rows.problem, item.limit(rows.problem)
    speed = problem.throughput[template]
    mine = np.flatnonzero((problem.phase[template] == (item.phases or ())[0]) & (speed > 0))
    if not len(mine):
        return
    # One instance that gives all of it is as good as any other that does.
    levels, level = np.unique(np.minimum(speed[mine], limit), return_inverse=True)
    first = rows.add(np.zeros(len(levels)), np.ones(len(levels)), [f"largest[{side},{i}]" for i in range(len(levels))])
    row = rows.more([f"one_lost[{side}]"], limit, np.inf)
    rows.one_lost.append((row, item))
    rows.enter(np.full(len(mine), row), mine, levels[level])
    rows.enter(np.full(len(levels), row), first + np.arange(len(levels)), -np.diff(levels, prepend=0.0))
    below = rows.at_most_0([f"below[{side},{k}]" for k in range(len(mine))]) + np.arange(len(mine))
    rows.enter(below, mine, np.ones(len(mine)))
    rows.enter(below, first + level, -enough_copies(problem, item, speed[mine], upper[mine]))
    ladder = rows.at_most_0([f"ladder[{side},{i}]" for i in range(len(levels) - 1)]) + np.arange(len(levels) - 1)
    rows.enter(ladder, first + np.arange(1, len(levels)), np.ones(len(levels) - 1))
    rows.enter(ladder, first + np.arange(len(levels) - 1), -np.ones(len(levels) - 1))


def _add_time(rows: _Rows, first: int, served: PoolEntries, columns: int) -> None:
    """Time of instances that goes to further model phases instead of their first; together no more than there is.

    Args:
        rows: Where to add it.
        first: Number of the first instance column.
        served: Entries of all instance columns, those of their first model phases ahead.
        columns: How many of these there are.
    """
    own, more = served.pool[:columns], slice(columns, None)
    k, phase, pool = served.column[more], served.phase[more], served.pool[more]
    names = [f"time[{i},{p}]" for i, p in zip(k.tolist(), phase.tolist(), strict=True)]
    place = rows.add(np.zeros(len(k)), np.full(len(k), np.inf), names) + np.arange(len(k))
    rows.enter(rows.pool + pool, place, served.tokens_s[more])
    rows.enter(rows.pool + own[k], place, -served.tokens_s[k])
    divided = np.unique(k)
    shared = rows.at_most_0([f"shared[{i}]" for i in divided.tolist()])
    rows.enter(shared + np.searchsorted(divided, k), place, np.ones(len(k)))
    rows.enter(shared + np.arange(len(divided)), first + divided, -np.ones(len(divided)))


def enough_copies(problem: AllocationProblem, item: SideConstraint, speed: Floats, most: Floats) -> Floats:
    """float64 (k,): so many instances of one template in one region are never too few where any one may be lost.

    One more is superfluous, unless another constraint counts instances of the phase or where they are.
    """
    phase = (item.phases or ())[0]
    others = (row for row in open_constraints(problem) if row.sense == "least" and not row.one_lost)
    if any(phase in (row.phases or (phase,)) for row in others):
        return most
    demand = problem.demand[phase]
    return np.asarray(np.minimum(most, np.maximum(np.ceil(demand / speed), np.ceil(item.bound * demand / speed) + 1)))


def _add_flows(rows: _Rows, paid: bool) -> None:
    """Shares of requests on every route."""
    problem = rows.problem
    for g, (row, model) in enumerate(rows.routes):
        costs = np.array([route.usd_h if paid else 0.0 for route in model.routes])
        place = rows.add(costs, np.ones(len(costs)), [f"flow[{g},{k}]" for k in range(len(costs))])
        for k, route in enumerate(model.routes, place):
            rows.enter([row], [k], [1.0])
            for pool in route.pools:
                rows.enter([rows.pool + problem.pools.at(pool)], [k], [-problem.demand[pool[0]]])
        for own, mean in enumerate(model.means, rows.means[g]):
            terms = np.array(mean.terms(), dtype=np.float64)
            used = np.flatnonzero(terms)
            rows.enter(np.full(len(used), own), place + used, terms[used])


def _add_supply(rows: _Rows, paid: bool) -> None:
    """Nodes of the dearer supply classes: more capacity, dearer, in limits on rent at their surcharge."""
    pieces = rows.problem.segments
    names = [
        f"extra[{cell // rows.configurations},{cell % rows.configurations},{k}]" for k, cell in enumerate(pieces.cell)
    ]
    costs = pieces.surcharge if paid else np.zeros(len(names))
    places = rows.add(costs, pieces.nodes.astype(np.float64), names) + np.arange(len(names))
    rows.enter(pieces.cell, places, -np.ones(len(names)))
    for row, item in rows.sides:
        if item.is_rent:
            inside = np.isin(pieces.cell // rows.configurations, item.regions) if item.regions is not None else True
            used = np.flatnonzero((pieces.surcharge > 0) & inside)
            rows.enter(np.full(len(used), row), places[used], pieces.surcharge[used])


def _add_slack(rows: _Rows, prices: Floats) -> None:
    """What may be missing, in units of its row; of demand that may go unmet at a price nothing is."""
    problem, pools = rows.problem, rows.problem.pools
    # Rows of pools are divided by their units in the end.
    units = np.concatenate([pool_units(problem), np.ones(len(prices) - len(pools))])
    upper = np.full(len(prices), np.inf)
    upper[: len(pools)][np.isfinite(problem.unmet_prices())[pools.phase]] = 0.0
    names = [f"missing[{k}]" for k in range(len(prices))]
    places = rows.add(prices / shortfall_units(problem), upper, names) + np.arange(len(prices))
    least = [(row, item) for row, item in rows.sides if item.sense == "least"]
    rows.enter([*range(rows.pool, rows.pool + len(pools)), *(row for row, _ in least)], places, units)
    for (_, item), place in zip(least, places[len(pools) :].tolist(), strict=True):
        same = [row for row, other in rows.one_lost if other is item]
        rows.enter(same, [place] * len(same), [1.0] * len(same))
    for row, item in [*rows.sides, *rows.one_lost]:
        if item.measure == "tokens_s" and item.bound and item.phases is not None:
            # Of what is missing nothing must survive the loss of a region.
            for pool in pools.of_phase(item.phases[0], len(problem.region_names)):
                rows.enter([row], [int(places[pool])], [item.bound * units[pool]])
