"""The columns of the split formulation: new and kept instances of (template, region) pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.types import Bools, Floats, Ints


@dataclass(frozen=True, eq=False)
class PoolEntries:
    """Entries of columns in the rows of pools, by column.

    Attributes:
        column: int64 (M,).
        phase: int64 (M,).
        pool: int64 (M,).
        tokens_s: float64 (M,).
    """

    column: Ints
    phase: Ints
    pool: Ints
    tokens_s: Floats

    @staticmethod
    def of(problem: AllocationProblem, template: Ints, region: Ints) -> PoolEntries:
        """Of columns of these templates and regions; every column's first phase, then what joint templates add."""
        more = problem.joint.some(template)
        column = np.concatenate([np.arange(len(template)), more.template])
        phase = np.concatenate([problem.phase[template], more.phase]).astype(np.int64)
        tokens_s = np.concatenate([problem.throughput[template], more.throughput])
        return PoolEntries(column, phase, problem.pools.of(phase, region[column]), tokens_s)


@dataclass(frozen=True, eq=False)
class Columns:
    """All columns of the split formulation, the new ones first.

    Attributes:
        template: int64 (N,).
        region: int64 (N,).
        phase: int64 (N,), first model phase of the template.
        pool: int64 (N,), pool that an instance adds to by it.
        cost: float64 (N,), USD/h of one instance, the penalty included.
        upper: float64 (N,), running instances for a kept column, what the region's availability allows for a new one.
        kept: bool (N,).
        phases: P.
        served: What an instance serves, its first phase and further ones.
        paid: Whether money counts; surcharges of supply classes and prices of unmet demand are 0 otherwise.
    """

    template: Ints
    region: Ints
    phase: Ints
    pool: Ints
    cost: Floats
    upper: Floats
    kept: Bools
    phases: int
    served: PoolEntries
    paid: bool = True

    def __len__(self) -> int:
        return len(self.template)

    @staticmethod
    def of(problem: AllocationProblem) -> Columns:
        """The usable columns of a problem, worked out once."""
        known = _KNOWN.get(problem)
        if known is None:
            known = _KNOWN[problem] = Columns._of(problem)
        return known

    @staticmethod
    def _of(problem: AllocationProblem) -> Columns:
        fits = problem.most_instances()
        template, region, rent, fresh = usable(problem, fits)
        runs = np.zeros(len(template), dtype=np.int64) if problem.running is None else problem.running[template, region]
        kept = np.flatnonzero(runs > 0)
        most = fits[template, region].astype(np.float64)
        template, region = np.concatenate([template, template[kept]]), np.concatenate([region, region[kept]])
        served = PoolEntries.of(problem, template, region)
        return Columns(
            template=template,
            region=region,
            phase=served.phase[: len(template)],
            pool=served.pool[: len(template)],
            cost=np.concatenate([fresh, rent[kept]]),
            upper=np.concatenate([most, np.minimum(runs[kept].astype(np.float64), most[kept])]),
            kept=np.arange(len(template)) >= len(most),
            phases=len(problem.demand),
            served=served,
        )

    def without_cost(self) -> Columns:
        """The same columns, all for free: what is left to minimise is shortfall."""
        return replace(self, cost=np.zeros(len(self)), paid=False)

    def usd_h(self, problem: AllocationProblem, counts: Ints) -> float:
        """What so many instances by column cost, nodes at the prices of their classes; unmet demand and transfers apart."""
        nodes = self.nodes(problem, counts).ravel().astype(np.float64)
        return float(self.cost @ counts) + problem.segments.surcharges(nodes)

    def nodes(self, problem: AllocationProblem, counts: Ints) -> Ints:
        """int64 (R, C), nodes that so many instances by column use."""
        nodes, some = np.zeros(problem.price.shape, dtype=np.int64), np.flatnonzero(counts)
        np.add.at(nodes, self.region[some], problem.usage[self.template[some]].astype(np.int64) * counts[some, None])
        return nodes

    def least(self, values: Floats, most: int, among: Bools | None = None) -> list[Ints]:
        """Of every model phase the ``most`` columns of least value, in that order; only those of ``among`` if given."""
        wanted = np.ones(len(self), dtype=np.bool_) if among is None else among
        served = self.served
        parts = (served.column[(served.phase == p) & wanted[served.column]] for p in range(self.phases))
        return [mine[np.argsort(values[mine], kind="stable")[:most]] for mine in parts]

    def allocation(self, counts: Ints, chosen: Ints | None = None) -> Allocation:
        """The allocation of so many instances by column, or by chosen column."""
        total: dict[tuple[int, int], int] = {}
        for k in np.flatnonzero(counts).tolist():
            column = k if chosen is None else chosen[k]
            place = int(self.template[column]), int(self.region[column])
            total[place] = total.get(place, 0) + int(counts[k])
        return Allocation.of(total)

    def of_pairs(self, allocation: Allocation | None) -> Bools:
        """bool (N,): columns of the (template, region) pairs of an allocation."""
        mask = np.zeros(len(self), dtype=np.bool_)
        for t, r in allocation.to_mapping() if allocation is not None else ():
            mask |= (self.template == t) & (self.region == r)
        return mask

    def counts(self, allocation: Allocation) -> Ints:
        """int64 (N,): an allocation by column: kept ones as far as instances run, the rest new."""
        counts = np.zeros(len(self), dtype=np.int64)
        for (t, r), count in allocation.to_mapping().items():
            # The new column stands ahead of the kept one.
            for k in np.flatnonzero((self.template == t) & (self.region == r))[::-1].tolist():
                counts[k] = min(count, int(self.upper[k])) if self.kept[k] else count
                count -= int(counts[k])
        return counts


#: Columns of the problems that are in use.
_KNOWN: WeakKeyDictionary[AllocationProblem, Columns] = WeakKeyDictionary()


def usable(problem: AllocationProblem, most: Ints | None = None) -> tuple[Ints, Ints, Floats, Floats]:
    """(template, region) pairs that have a price, fit at least once and are not banned, and what they cost.

    Args:
        problem: The problem.
        most: Its ``most_instances()``, where they are at hand.

    Returns:
        Template and region of every pair; USD/h of an instance that runs already, at the lowest price of its nodes;
        and of a new one, K times the list price on top.
    """
    price = problem.template_price()
    most = problem.most_instances() if most is None else most
    template, region = np.nonzero((most > 0) & ~np.isnan(price))
    listed, penalty = price[template, region], problem.penalties[template]
    if not problem.supply:
        return template, region, listed, (1 + penalty) * listed
    rent = (problem.usage.astype(np.float64) @ np.nan_to_num(problem.segments.base).T)[template, region]
    return template, region, rent, rent + penalty * listed


def joined(parts: Sequence[Ints]) -> Ints:
    """All positions of several parts, sorted, each once."""
    return np.unique(np.concatenate(list(parts)))
