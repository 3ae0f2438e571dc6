r"""Classes of supply: reserved, spot and on-demand nodes of one configuration in one region.

Equal nodes are equal to a serving instance, whoever rents them out, so which node is of which class is no decision of
its own: the cheapest are taken first. What u nodes of configuration c in region r cost together is a convex function of
u, its slopes the prices of the classes in ascending order. With q the lowest price, A_1 nodes at that price, and the other
classes k with A_k nodes at q + s_k::

    u <= A_1 + sum_k extra_k,   0 <= extra_k <= A_k,   cost q u + sum_k s_k extra_k

``extra`` needs no integrality: at whole u some optimum has whole ``extra``, since the slopes ascend. A reserved node has
price 0, for it is paid already; a spot node has its spot price plus the price of preemptions.

At capacity prices lambda >= 0 of these rows every extra_k is at 0 or A_k, so that the rows are worth::

    lambda A_1 + sum_k A_k max(0, lambda - s_k)

instead of lambda A: the only thing that bounds have to know about classes. The initialization penalty stays on the list
price of a node, whichever class it comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

import numpy as np

from coralopt.errors import SolverError
from coralopt.types import Floats, Ints

#: What nodes that belong to no other class are called.
ON_DEMAND = "on-demand"


@dataclass(frozen=True, eq=False)
class SupplyClass:
    """Some of the available nodes, at a price of their own.

    Attributes:
        name: ``"reserved"``, ``"spot"`` or any other name but ``"on-demand"``.
        nodes: int64 (R, C), nodes of this class; part of the problem's availability.
        price: float64 (R, C), USD per node-hour; only where ``nodes`` is above 0 it counts.
    """

    name: str
    nodes: Ints
    price: Floats


class SupplyTerms(Protocol):
    """What the regions offer, as :class:`coralopt.allocation.AllocationProblem` says it."""

    @property
    def availability(self) -> Ints:
        """int64 (R, C), nodes."""

    @property
    def price(self) -> Floats:
        """float64 (R, C), USD per node-hour on demand."""

    @property
    def supply(self) -> tuple[SupplyClass, ...]:
        """Classes of nodes at prices of their own."""


@dataclass(frozen=True, eq=False)
class Segments:
    """The convex cost of the nodes of every region and configuration, in pieces.

    Attributes:
        base: float64 (R, C), lowest price, USD per node-hour; NaN where nothing is sold.
        first: int64 (R, C), nodes at that price.
        cell: int64 (E,), region times C plus configuration of every dearer piece.
        nodes: int64 (E,), nodes of the piece.
        surcharge: float64 (E,), its price above the lowest, USD per node-hour.
    """

    base: Floats
    first: Ints
    cell: Ints
    nodes: Ints
    surcharge: Floats

    def worth(self, capacity_prices: Floats, rent_factor: Floats) -> float:
        """USD/h: what the capacity rows subtract from a Lagrangian bound at these prices.

        Args:
            capacity_prices: float64 (R, C), USD/h per node, at least 0.
            rent_factor: float64 (R,), 1 plus the prices of the rent limits that hold in a region.
        """
        paid = float((capacity_prices * self.first).sum())
        if len(self.cell):
            factor = rent_factor[self.cell // self.base.shape[1]]
            above = np.maximum(0.0, capacity_prices.ravel()[self.cell] - self.surcharge * factor)
            paid += float(above @ self.nodes)
        return paid

    def surcharges(self, used: Floats) -> float:
        """USD/h that nodes cost above their lowest price.

        Args:
            used: float64 (R * C,), nodes.
        """
        left, total = used - self.first.ravel(), 0.0
        # The pieces of a cell ascend.
        for cell, nodes, surcharge in zip(
            self.cell.tolist(), self.nodes.tolist(), self.surcharge.tolist(), strict=True
        ):
            taken = min(max(float(left[cell]), 0.0), nodes)
            left[cell] -= taken
            total += taken * surcharge
        return total


def segments_of(offer: SupplyTerms) -> Segments:
    """The pieces of a supply; one each where it has no classes."""
    none = np.zeros(0, dtype=np.int64)
    if not offer.supply:
        return Segments(offer.price, offer.availability, none, none, np.zeros(0))
    base, first = offer.price.copy(), offer.availability.copy()
    dearer: list[tuple[int, int, float]] = []
    for r, c in np.argwhere(sum(item.nodes for item in offer.supply) > 0).tolist():
        pieces = pieces_of(offer, r, c)
        base[r, c] = lowest = pieces[0][1]
        first[r, c] = sum(nodes for _, price, nodes in pieces if price == lowest)
        dearer += [(r * base.shape[1] + c, nodes, price - lowest) for _, price, nodes in pieces if price > lowest]
    return Segments(
        base,
        first,
        np.array([cell for cell, _, _ in dearer], dtype=np.int64),
        np.array([nodes for _, nodes, _ in dearer], dtype=np.int64),
        np.array([surcharge for _, _, surcharge in dearer], dtype=np.float64),
    )


def pieces_of(offer: SupplyTerms, region: int, configuration: int) -> list[tuple[str, float, int]]:
    """(class, USD per node-hour, nodes) of one region and configuration, cheapest first; classes without nodes left out."""
    place = region, configuration
    pieces = [(item.name, float(item.price[place]), int(item.nodes[place])) for item in offer.supply]
    rest = int(offer.availability[place]) - sum(nodes for _, _, nodes in pieces)
    pieces.append((ON_DEMAND, float(offer.price[place]), rest))
    return sorted((piece for piece in pieces if piece[2] > 0), key=lambda piece: piece[1])


def taken(pieces: Sequence[tuple[str, float, int]], used: int) -> list[tuple[str, float, int]]:
    """(class, USD per node-hour, nodes taken) when ``used`` nodes are taken from the pieces, cheapest first."""
    parts = []
    for name, price, nodes in pieces:
        count = min(used, nodes)
        if count > 0:
            parts.append((name, price, count))
            used -= count
    return parts


def left_over(offer: SupplyTerms, used: Ints) -> tuple[SupplyClass, ...]:
    """The classes once ``used`` nodes, int64 (R, C), are taken from them, cheapest first."""
    nodes = {item.name: item.nodes.copy() for item in offer.supply}
    for r, c in np.argwhere(used > 0).tolist() if offer.supply else ():
        for name, _, count in taken(pieces_of(offer, r, c), int(used[r, c])):
            if name != ON_DEMAND:
                nodes[name][r, c] -= count
    return tuple(replace(item, nodes=nodes[item.name]) for item in offer.supply)


def rent_by_region(offer: SupplyTerms, used: Sequence[Sequence[int]]) -> list[Fraction]:
    """USD/h of the nodes used in every region, exactly; nodes beyond what is available cost the list price."""
    totals = []
    for r, counts in enumerate(used):
        total = Fraction(0)
        for c, count in enumerate(counts):
            parts = taken(pieces_of(offer, r, c), count) if count else []
            total += sum((nodes * Fraction(price) for _, price, nodes in parts), Fraction(0))
            beyond, listed = count - sum(nodes for _, _, nodes in parts), float(offer.price[r, c])
            total += beyond * Fraction(0 if np.isnan(listed) else listed)
        totals.append(total)
    return totals


def refuse_bad_supply(offer: SupplyTerms, regions: Sequence[str], configurations: Sequence[str]) -> None:
    """Classes that do not fit what is offered.

    Raises:
        SolverError: Says which value, where.
    """
    shape = offer.price.shape
    total = np.zeros(shape, dtype=np.int64)
    names = [item.name for item in offer.supply]
    for item in offer.supply:
        if not item.name or item.name == ON_DEMAND or names.count(item.name) > 1:
            raise SolverError(f"supply class {item.name!r} needs a name of its own, other than {ON_DEMAND!r}")
        if item.nodes.shape != shape or item.price.shape != shape:
            raise SolverError(f"supply class {item.name!r} has shapes {item.nodes.shape} and {item.price.shape}")
        bad = (item.nodes < 0) | ((item.nodes > 0) & ~(np.isfinite(item.price) & (np.nan_to_num(item.price) >= 0)))
        if bad.any():
            r, c = np.argwhere(bad)[0]
            raise SolverError(
                f"{item.name} {configurations[c]} in {regions[r]}: {item.nodes[r, c]} nodes at "
                f"{item.price[r, c]} USD/h; both must be numbers of at least 0"
            )
        total += item.nodes
    if (total > offer.availability).any():
        r, c = np.argwhere(total > offer.availability)[0]
        raise SolverError(
            f"{total[r, c]} nodes of {configurations[c]} in {regions[r]} belong to supply "
            f"classes, but {offer.availability[r, c]} are available in all"
        )
