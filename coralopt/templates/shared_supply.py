r"""What all instances share: nodes in classes of prices, and limits on nodes, GPUs and rent; at dual prices.

With u nodes of a configuration used in a region, their classes cost a convex, piecewise linear amount, the cheapest first.
Let mu >= 0 be the price of such a node above its cheapest class, and lambda >= 0 that of every limit ``sum a u <= b``.
Moved into the objective (Lagrange), a node of phase m costs::

    (1 + sum of the lambda of rent limits) p_min  +  mu  +  K p  +  sum over the limits of m of lambda a

and the supply earns, over classes k with n_k nodes at p_k::

    sum_k n_k max(0, mu - (1 + sum of the lambda of rent limits) (p_k - p_min))  +  sum lambda b

The least price of all demands less what the supply earns is a lower bound at any such prices. Where the objective is not
money, the 1 in front of p_min and of the classes' prices is 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from coralopt.scenario.facts.operations import RentLimits
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates.kept import KeptInstances
from coralopt.types import Floats, Ints

#: Price of a GPU of a node that costs nothing, as a share of the cheapest price that is above 0; the bound is lower by that.
HAIR = 1e-9


@dataclass(frozen=True, eq=False)
class SharedLimit:
    """A limit on what instances use together.

    Attributes:
        each: float64 (R, C), what one node adds to it.
        most: Its right side, in nodes, GPUs or USD/h.
        phases: Model phases whose nodes count; every one when ``None``.
        is_rent: Whether it is on rent at the prices of classes; ``each`` is then 1 where rent counts.
    """

    each: Floats
    most: float
    phases: tuple[int, ...] | None = None
    is_rent: bool = False

    def has(self, phase: int) -> bool:
        """Whether nodes of a model phase count."""
        return self.phases is None or phase in self.phases


class SharedSupply:
    """Nodes and limits of a scenario, and what they are worth at dual prices.

    Dual prices are one vector, float64 (R C + L,): mu of every region and configuration, and lambda of every limit.

    Args:
        scenario: Prices, availability, classes, limits.
        charged: Whether money counts. Else it does in limits on rent only.
    """

    def __init__(self, scenario: ResolvedScenario, charged: bool = True) -> None:
        self.is_charged, self._charged = charged, 1.0 if charged else 0.0
        self._gpus = np.array([float(host.count) for host in scenario.configurations])
        self.sold = (scenario.availability > 0) & np.isfinite(scenario.price_usd_h)
        #: float64 (R, C), nodes.
        self.nodes = np.where(self.sold, scenario.availability, 0).astype(np.float64)
        self.limits = tuple(_limits(scenario))
        listed = np.where(self.sold, scenario.price_usd_h, math.inf)
        pieces = _pieces(scenario, self.sold)
        base = listed.copy()
        for (cell, usd_h), count in pieces.items():
            if count > 0:
                base.ravel()[cell] = min(base.ravel()[cell], usd_h)
        # Of what starting costs by template the bounds know the time before weights are loaded.
        start = scenario.operations.start
        penalty = scenario.initialization_penalty if start is None else start.boot_s / start.interval_s
        self._rent, self._started = base, self._charged * penalty * scenario.price_usd_h
        self._started[~self.sold] = 0.0
        dearer_by = [(cell, usd_h - float(base.ravel()[cell]), count) for (cell, usd_h), count in pieces.items()]
        #: Nodes (R, C) of the cheapest class; and cell, surcharge in USD/h and nodes of the dearer ones.
        self.first = np.zeros(base.shape)
        for cell, surcharge, count in dearer_by:
            self.first.ravel()[cell] += count if surcharge == 0 else 0
        dearer = [piece for piece in dearer_by if piece[1] > 0 and piece[2] > 0]
        self.cell: Ints = np.array([cell for cell, _, _ in dearer], dtype=np.int64)
        self.surcharge: Floats = np.array([surcharge for _, surcharge, _ in dearer])
        self.count: Floats = np.array([float(count) for _, _, count in dearer])

    @property
    def price(self) -> Floats:
        """float64 (R, C), least cost of a node, USD/h, its share of the initialization penalty included; infinite where
        it cannot be had."""
        with np.errstate(invalid="ignore"):
            return self._sold_at(self._rent * self._charged + self._started)

    @property
    def list_usd_h(self) -> Floats:
        """float64 (R, C), rent of a node in its cheapest class, USD/h; infinite where it cannot be had."""
        return self._rent

    @property
    def charges(self) -> Floats:
        """float64 (E,), what a node of each dearer class costs above the cheapest one, USD/h."""
        return self.surcharge * self._charged

    @property
    def free_of_charge(self) -> Floats:
        """float64 (R C + L,), dual prices of 0."""
        return np.zeros(self.nodes.size + len(self.limits))

    def capacity(self, duals: Floats) -> Floats:
        """float64 (R, C), mu."""
        return duals[: self.nodes.size].reshape(self.nodes.shape)

    def with_capacity(self, mu: Floats, duals: Floats | None = None) -> Floats:
        """Dual prices with these of capacity; those of the limits are 0, or as given."""
        return np.concatenate([mu.ravel(), (self.free_of_charge if duals is None else duals)[self.nodes.size :]])

    def above_zero(self, duals: Floats) -> Floats:
        """Dual prices at which every node costs something: of instances that cost nothing none is the least.

        A hair for every GPU makes that one the least which has fewest.
        """
        price, mu = self.price + self.capacity(duals), self.capacity(duals)
        if not (price == 0).any():
            return duals
        hair = HAIR * price.min(initial=1.0, where=price > 0)
        return self.with_capacity(mu + np.where(price == 0, hair * self._gpus, 0.0), duals)

    def _sold_at(self, price: Floats) -> Floats:
        return np.where(self.sold, price, math.inf)

    def prices(self, duals: Floats, phase: int) -> Floats:
        """float64 (R, C), USD/h of a node of a model phase at dual prices."""
        with np.errstate(invalid="ignore"):
            price = self._sold_at(self._rent * self._rent_factor(duals) + self._started + self.capacity(duals))
        for limit, dual in zip(self.limits, duals[self.nodes.size :].tolist(), strict=True):
            if dual > 0 and not limit.is_rent and limit.has(phase):
                price = price + dual * limit.each
        return price

    def kept_usd_h(self, duals: Floats, phase: int, kept: KeptInstances) -> float:
        """USD/h of one of these instances at dual prices: that of its nodes, without what starting them costs."""
        price = self.prices(duals, phase)[kept.region] - self._started[kept.region]
        return float(kept.nodes @ np.where(kept.nodes > 0, price, 0.0))

    def credit(self, kept: KeptInstances) -> float:
        """USD/h that starting all of these instances costs: what they save at most."""
        return kept.count * float(kept.nodes @ self._started[kept.region])

    def worth(self, duals: Floats) -> float:
        """What the supply earns at dual prices, USD/h."""
        above = duals[self.cell] - self.surcharge * self._rent_factor(duals).ravel()[self.cell]
        limits = np.array([limit.most for limit in self.limits])
        earned = duals[: self.nodes.size] @ self.first.ravel() + np.maximum(0.0, above) @ self.count
        return float(earned + duals[self.nodes.size :] @ limits)

    @property
    def whole_usd_h(self) -> float:
        """What all nodes together cost, started anew, USD/h: no allocation costs more."""
        return self.usd_h(self.nodes) + float(self.charges @ self.count)

    def usd_h(self, usage: Floats) -> float:
        """What nodes (R, C) cost at least, USD/h."""
        return float((usage * np.where(usage > 0, self.price, 0.0)).sum())

    def rows(self, phase: int, usage: Floats) -> Floats:
        """float64 (R C + L,), what nodes (R, C) of a model phase take of capacity and limits."""
        rent = np.where(usage > 0, self._rent, 0.0)
        taken = [
            float((limit.each * (rent if limit.is_rent else 1.0) * usage).sum()) if limit.has(phase) else 0.0
            for limit in self.limits
        ]
        return np.concatenate([usage.ravel(), taken])

    def dearer_rows(self) -> Floats:
        """float64 (R C + L, E), what a node of each dearer class gives to capacity, and takes of limits on rent."""
        rows = np.zeros((self.nodes.size + len(self.limits), len(self.cell)))
        rows[self.cell, np.arange(len(self.cell))] = -1.0
        for place, limit in enumerate(self.limits, start=self.nodes.size):
            if limit.is_rent:
                rows[place] = limit.each.ravel()[self.cell] * self.surcharge
        return rows

    def most(self) -> Floats:
        """float64 (R C + L,), right sides: nodes of the cheapest classes, and limits."""
        return np.concatenate([self.first.ravel(), [limit.most for limit in self.limits]])

    def _rent_factor(self, duals: Floats) -> Floats:
        factor = np.full(self.nodes.shape, self._charged)
        for limit, dual in zip(self.limits, duals[self.nodes.size :].tolist(), strict=True):
            if limit.is_rent:
                factor = factor + dual * limit.each
        return factor


def _pieces(
    scenario: ResolvedScenario, sold: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
) -> dict[tuple[int, float], int]:
    """(cell, USD/h) -> nodes; where an availability is below what its classes hold, reserved nodes stay longest."""
    left = np.where(sold, scenario.availability, 0)
    names = [configuration.name for configuration in scenario.configurations]
    pieces: dict[tuple[int, float], int] = {}

    def add(cell: int, usd_h: float, count: int) -> None:
        pieces[cell, usd_h] = pieces.get((cell, usd_h), 0) + count
        left.ravel()[cell] -= count

    for held in sorted(scenario.operations.classes, key=lambda held: held.name != "reserved"):
        if held.configuration in names and held.region in scenario.regions:
            cell = scenario.regions.index(held.region) * len(names) + names.index(held.configuration)
            add(cell, held.usd_h, min(held.nodes, int(left.ravel()[cell])))
    for cell in np.flatnonzero(sold).tolist():
        add(cell, float(scenario.price_usd_h.ravel()[cell]), int(left.ravel()[cell]))
    return pieces


def _limits(scenario: ResolvedScenario) -> Iterator[SharedLimit]:
    """Limits on the whole plan, on regions and on models."""
    operations, everywhere = scenario.operations, np.ones(scenario.availability.shape)
    yield from _of(scenario, operations.limits, everywhere)
    for region, limits in operations.regions:
        here = np.zeros_like(everywhere)
        here[scenario.regions.index(region)] = 1.0
        yield from _of(scenario, limits, here)
    for model, rules in operations.models:
        mine = tuple(p for p, phase in enumerate(scenario.model_phases) if phase.served == model)
        yield from _of(scenario, rules.limits, everywhere, mine)


def _of(
    scenario: ResolvedScenario, limits: RentLimits, each: Floats, phases: Sequence[int] | None = None
) -> Iterator[SharedLimit]:
    mine = None if phases is None else tuple(phases)
    if limits.max_nodes is not None:
        yield SharedLimit(each, float(limits.max_nodes), mine)
    if limits.max_usd_h is not None and mine is None:
        yield SharedLimit(each, limits.max_usd_h, is_rent=True)
    elif limits.max_usd_h is not None:
        # A model's rent is counted at list prices.
        yield SharedLimit(
            np.where(np.isfinite(scenario.price_usd_h), scenario.price_usd_h, 0.0), limits.max_usd_h, mine
        )
    for gpu, count in limits.max_gpus:
        held = np.array([float(host.count) if host.gpu.name == gpu else 0.0 for host in scenario.configurations])
        yield SharedLimit(each * held, float(count), mine)
