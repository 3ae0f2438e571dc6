r"""Side rows: what operators ask for beyond demand and capacity, as named linear rows over the instance counts.

A row adds up a *measure* of all instances within its *scope* (model phases, regions, node configurations) and holds the
sum to at most or at least a bound::

    sum_{(tau, r) in scope} a(tau, r) nu[tau, r]  <=  b      (sense "most")
    sum_{(tau, r) in scope} a(tau, r) nu[tau, r]  >=  b      (sense "least")

======================= ===== ============== =======================================================================
asked for               sense measure a      scope and bound
======================= ===== ============== =======================================================================
budget                  most  ``usd_h``      everything; USD/h of rent, every node at the price of its supply class
region limit            most  ``nodes``,     one region; nodes, or USD/h of rent
                              ``usd_h``
model limit             most  ``nodes``,     the model's phases; nodes, or USD/h at *list* prices: which model gets the
                              ``usd_h``      cheaper ones of equal nodes is not decided
replicas                least ``instances``  one model phase; that many serving instances
surviving a region      least ``tokens_s``   one model phase, all regions but one; a share x of the phase's demand
forbidden pair          most  ``instances``  one model phase, instances that use some configuration; 0
======================= ===== ============== =======================================================================

A row names what it measures instead of listing coefficients, so it stays true when templates are dropped, clipped or
cut into parts. Which measures a sense may have is chosen so that the exact reductions hold with any side rows:

- *Dominance* replaces an instance by one of the same phase and region with no more nodes of any kind and no less
  throughput. Nodes, USD/h and uses of some configuration cannot grow by that, instances stay as many, tokens/s cannot
  fall. So "most" rows measure nodes, USD/h or instances, "least" rows instances or tokens/s of all configurations.
- *Clipping* T to the demand: a row of x T_m with x <= 1 holds by one instance of T >= T_m with and without.
- *Lagrangian bounds*: leaving a row out, or moving it into the objective at any price mu >= 0, leaves a bound.
- A row "most 0" of instances or nodes is a *ban*: its columns never exist, and no row is left.

Unmet demand s_m (see :mod:`coralopt.allocation.problem`) counts in a row of tokens/s with its share: the planned rest
T_m - s_m must survive, x (T_m - s_m) <= sum T nu over the other regions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from coralopt.errors import SolverError
from coralopt.types import Bools, Floats, Ints

if TYPE_CHECKING:
    from coralopt.allocation.problem import AllocationProblem


Measure = Literal["instances", "nodes", "usd_h", "tokens_s"]


@dataclass(frozen=True)
class SideRow:
    """One row; the module docstring has its mathematics.

    Attributes:
        name: What messages and models call it, for example ``"budget"`` or ``"nodes of us-east-2"``; unique.
        sense: ``"most"`` or ``"least"``.
        measure: What one instance adds.
        bound: In units of the measure; for ``"tokens_s"`` a share of the demand of the row's one phase, 0 to 1.
        phases: Model phases in scope, all when ``None``.
        regions: Regions in scope, all when ``None``.
        configurations: Instances that use any of these, all when ``None``; nodes are counted of these only.
    """

    name: str
    sense: Literal["most", "least"]
    measure: Measure
    bound: float
    phases: tuple[int, ...] | None = None
    regions: tuple[int, ...] | None = None
    configurations: tuple[int, ...] | None = None

    @property
    def is_ban(self) -> bool:
        """Whether nothing in its scope may run at all."""
        return self.sense == "most" and self.bound == 0 and self.measure in ("instances", "nodes")

    @property
    def is_rent(self) -> bool:
        """Whether it limits rent at the prices of supply classes, not list prices."""
        return self.measure == "usd_h" and self.phases is None

    @property
    def is_replicas(self) -> bool:
        """Whether it asks for instances of one model phase, wherever they are."""
        return (
            self.sense == "least"
            and self.measure == "instances"
            and self.phases is not None
            and len(self.phases) == 1
            and self.regions is None
        )

    @property
    def sign(self) -> float:
        """1 for "most", -1 for "least": how its price enters a reduced cost."""
        return 1.0 if self.sense == "most" else -1.0

    def limit(self, problem: AllocationProblem) -> float:
        """The right-hand side in the units of the measure."""
        if self.measure != "tokens_s":
            return self.bound
        assert self.phases is not None
        return self.bound * float(problem.demand[self.phases[0]])

    def covers(self, problem: AllocationProblem, template: Ints, region: Ints) -> Bools:
        """bool (n,): which pairs are in scope."""
        _, regions, _, phases = problem.shape
        inside = np.ones(len(template), dtype=np.bool_)
        if self.phases is not None:
            inside &= np.isin(np.arange(phases), self.phases)[problem.phase[template]]
        if self.regions is not None:
            inside &= np.isin(np.arange(regions), self.regions)[region]
        if self.configurations is not None:
            inside &= problem.usage[:, list(self.configurations)].max(axis=1, initial=0)[template] > 0
        return inside

    def coefficients(self, problem: AllocationProblem, template: Ints, region: Ints) -> Floats:
        """float64 (n,): what one instance of each (template, region) pair adds."""
        inside = self.covers(problem, template, region)
        if self.measure == "instances":
            # A replica that serves nothing is none.
            counts = inside if self.sense == "most" else inside & (problem.throughput[template] > 0)
            return counts.astype(np.float64)
        if self.measure == "tokens_s":
            return np.where(inside, problem.throughput[template], 0.0)
        if self.measure == "nodes":
            usage = problem.usage if self.configurations is None else problem.usage[:, list(self.configurations)]
            return np.where(inside, usage.sum(axis=1, dtype=np.float64)[template], 0.0)
        from coralopt.allocation.supply import segments

        price = segments(problem).base if self.is_rent else problem.price
        each = problem.usage.astype(np.float64) @ np.nan_to_num(price).T
        return np.where(inside, each[template, region], 0.0)


def open_rows(problem: AllocationProblem) -> tuple[SideRow, ...]:
    """The rows that a model needs: all but bans."""
    return tuple(row for row in problem.rows if not row.is_ban)


def banned(problem: AllocationProblem) -> Bools:
    """bool (T, R): pairs that may not run."""
    templates, regions, _, _ = problem.shape
    found = np.zeros((templates, regions), dtype=np.bool_)
    every = np.arange(templates, dtype=np.int64)
    for row in problem.rows:
        if row.is_ban:
            for r in range(regions):
                found[:, r] |= row.covers(problem, every, np.full(templates, r, dtype=np.int64))
    return found


def row_terms(problem: AllocationProblem, template: Ints, region: Ints, prices: Floats) -> Floats:
    """float64 (n,): what the side rows at these prices add to the reduced cost of each pair.

    Args:
        problem: The problem.
        template: int64 (n,).
        region: int64 (n,).
        prices: float64 (S,), at least 0, one for each of :func:`open_rows`.
    """
    total = np.zeros(len(template))
    for row, price in zip(open_rows(problem), prices.tolist(), strict=True):
        if price > 0:
            total += row.sign * price * row.coefficients(problem, template, region)
    return total


def rent_factor(problem: AllocationProblem, prices: Floats) -> Floats:
    """float64 (R,): 1 plus the prices of the limits on rent that hold in each region."""
    factor = np.ones(len(problem.region_names))
    for row, price in zip(open_rows(problem), prices.tolist(), strict=True):
        if row.is_rent:
            factor[slice(None) if row.regions is None else list(row.regions)] += price
    return factor


def shortfall_worth(problem: AllocationProblem, prices: Floats) -> Floats:
    """float64 (P,): what a token/s of unmet demand is worth in the rows of tokens/s at these prices, USD/h."""
    worth = np.zeros(len(problem.demand))
    for row, price in zip(open_rows(problem), prices.tolist(), strict=True):
        if row.measure == "tokens_s":
            assert row.phases is not None
            worth[row.phases[0]] += price * row.bound
    return worth


def rows_worth(problem: AllocationProblem, prices: Floats) -> float:
    """What the right-hand sides of the side rows add to a bound at these prices, USD/h."""
    return float(
        sum(
            -row.sign * price * row.limit(problem)
            for row, price in zip(open_rows(problem), prices.tolist(), strict=True)
        )
    )


def refuse_bad_rows(problem: AllocationProblem) -> None:
    """Rows that do not fit the problem, or that reductions would not keep.

    Raises:
        SolverError: Says which row and why.
    """
    names = [row.name for row in problem.rows]
    _, regions, configurations, phases = problem.shape
    for row in problem.rows:
        what = f"side row {row.name!r}"
        if names.count(row.name) > 1:
            raise SolverError(f"{what}: two rows have this name")
        allowed = ("instances", "nodes", "usd_h") if row.sense == "most" else ("instances", "tokens_s")
        if row.measure not in allowed:
            raise SolverError(f"{what}: '{row.sense}' rows measure {', '.join(allowed)}, not {row.measure}")
        if not np.isfinite(row.bound) or row.bound < 0:
            raise SolverError(f"{what}: its bound is {row.bound}; it must be a number of at least 0")
        if row.measure == "tokens_s" and (row.phases is None or len(row.phases) != 1 or row.bound > 1):
            raise SolverError(f"{what}: rows of tokens/s have one model phase and a share of 0 to 1 as bound")
        if row.configurations is not None and (row.sense == "least" or row.measure == "usd_h"):
            raise SolverError(f"{what}: only limits on nodes or instances may name configurations")
        for scope, most in ((row.phases, phases), (row.regions, regions), (row.configurations, configurations)):
            if scope is not None and not all(0 <= k < most for k in scope):
                raise SolverError(f"{what}: its scope {scope} must lie in 0..{most - 1}")
