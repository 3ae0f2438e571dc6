"""What a model costs at least, given what its phases do to each other: the cheapest groups that do not surely miss together.

The capacities of groups say what one phase holds by itself. Whatever plan of the family serves a model consists of covers
of its phases at what groups hold at most. Combinations of these are simulated together in the order of their price; those
that surely miss an SLO, however their prefill nodes are cut, are in no plan. The price of the first that does not is a
bound.
"""

from __future__ import annotations

import contextlib
import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coralopt.planning.promise.capacities import PARTS, PRICE_TOLERANCE, Groups, Place
from coralopt.planning.promise.designs import Designs
from coralopt.planning.promise.regions import RegionCosts
from coralopt.planning.promise.workers import OutOfTimeError
from coralopt.types import Floats, Ints

#: Gap of the designs of all models above which what their races left open is settled.
OPEN = 0.01
#: Covers of one phase that are looked at, beginnings of covers that are kept for that, and combinations of one model; more
#: where most of them turn out dearer, since their requests would have to change the region.
MOST_COVERS, MOST_BEGUN, MOST_COMBINED, MOST_ROUTED = 1_000, 50_000, 1_000, 20_000


@dataclass(frozen=True)
class Covers:
    """Covers of one phase at what groups hold at most, cheapest first.

    Attributes:
        prices: USD/h.
        groups: Groups of each.
        below: All covers that cost less are here, USD/h.
    """

    prices: tuple[float, ...]
    groups: tuple[tuple[int, ...], ...]
    below: float


#: Price and groups of covers of all phases of a model together, USD/h.
Combination = tuple[float, tuple[Place, ...]]


def all_together(designs: Designs, price: Sequence[Floats], regions: Mapping[str, RegionCosts]) -> dict[str, float]:
    """What no plan of the family serves each model for less than, USD/h; fewer models where time is over.

    Args:
        designs: Those known of all models; what does not surely miss may become one.
        price: float64 (J,) by model phase, what its groups cost at least wherever they stand, USD/h.
        regions: What groups of models cost whose requests pay for changing the region.
    """
    least: dict[str, float] = {}

    def find_out(model: str, windows: float, settle: bool = False) -> None:
        ceiling, own = designs.ceiling(model), regions.get(model)
        least[model] = least_together(designs, model, price, ceiling, windows, settle, own)

    models, workers = sorted(designs.raced), designs.races.workers
    with contextlib.suppress(OutOfTimeError):
        workers.map(lambda model: find_out(model, designs.windows(model)), models)
        if sum(least.values()) < sum(map(designs.ceiling, models)) * (1 - OPEN):
            models = [model for model in models if least[model] < designs.ceiling(model) * (1 - PRICE_TOLERANCE)]
            workers.map(lambda model: find_out(model, designs.windows_to_settle(model), settle=True), models)
    return least


def least_together(
    designs: Designs,
    model: str,
    price: Sequence[Floats],
    ceiling: float,
    windows: float,
    settle: bool = False,
    regions: RegionCosts | None = None,
) -> float:
    """What no plan of the family serves a model for less than, USD/h; what does not surely miss is raced as a design.

    Args:
        designs: Groups of the model, and who simulates them together.
        model: Asks for a share of its requests.
        price: float64 (J,) by model phase, what its groups cost at least wherever they stand, USD/h.
        ceiling: Larger bounds are of no use, USD/h.
        windows: That may be simulated for the model.
        settle: Whether what neither surely misses nor was seen to hold is raced on, as long as a certificate may take.
        regions: What groups cost where requests pay for changing the region; ``None``: they do not.
    """
    ways = designs.ways[model]
    least = [sum(least_cover(designs.groups[p], price[p]) for p in phases) for phases in ways]
    if not min(least) < ceiling < math.inf:
        return min(ceiling, *least)
    combined: list[Combination] = []
    for phases in ways:
        several, ceiling = combinations(designs, phases, price, ceiling, regions)
        combined += several
    windows += designs.races.windows_of[model]
    bound = math.inf
    for cost, groups in _in_order(combined, regions):
        if cost >= ceiling * (1 - PRICE_TOLERANCE):
            break
        if not designs.room.fits_somewhere(groups):
            continue
        if designs.races.windows_of[model] >= windows:
            return min(bound, cost)
        if designs.surely_miss(model, groups):
            continue
        holds = designs.hold(model, groups)
        # Once something cheaper may hold, only what can be the cheapest design is of use.
        if settle and not holds and (bound == math.inf or designs.price_of(groups).min() < designs.ceiling(model)):
            outcome = designs.settle(model, groups)
            if outcome.misses:
                continue
            holds = outcome.holds
        bound = min(bound, cost)
        if holds:
            break
    return min(bound, ceiling)


def _in_order(combined: Sequence[Combination], regions: RegionCosts | None) -> Iterator[Combination]:
    """Combinations by price, with what requests pay that have to change the region."""
    queue = [(cost, groups, regions is None) for cost, groups in combined]
    heapq.heapify(queue)
    while queue:
        cost, groups, is_final = heapq.heappop(queue)
        if is_final or regions is None:
            yield cost, groups
        else:
            heapq.heappush(queue, (max(cost, regions.least(groups)), groups, True))


def least_cover(groups: Groups, price: Floats) -> float:
    """What the cheapest cover of a phase costs at what groups hold at most, USD/h."""
    return float(groups.covers(groups.most, price)[PARTS])


def combinations(
    designs: Designs,
    phases: tuple[int, ...],
    price: Sequence[Floats],
    ceiling: float,
    regions: RegionCosts | None = None,
) -> tuple[list[Combination], float]:
    """Price and groups of the cheapest covers of all phases of a way; none for less than the second is missing, USD/h."""
    added, prices = 0.0, {p: price[p] for p in phases}
    if regions is not None:
        # Prices with what the cheapest covers pay for changing the region: far fewer combinations are cheap at these.
        first = {p: covers_in_order(designs.groups[p], prices[p], math.inf, 1).groups for p in phases}
        if not all(first.values()):
            return [], ceiling
        added, prices = regions.prices_with(tuple((p, j) for p, own in first.items() for j in own[0]))
    ceiling -= added
    least = [least_cover(designs.groups[p], prices[p]) for p in phases]
    total, several = np.zeros(1), list[Covers]()
    for p, own in zip(phases, least, strict=True):
        covers = covers_in_order(designs.groups[p], prices[p], ceiling - sum(least) + own)
        ceiling = min(ceiling, covers.below + sum(least) - own)
        total = np.add.outer(total, np.array(covers.prices))
        several.append(covers)
    total = total[0]
    cheap = np.argwhere(total < ceiling)
    cheap = cheap[np.argsort(total[tuple(cheap.T)], kind="stable")]
    count = MOST_COMBINED if regions is None else MOST_ROUTED
    if len(cheap) > count:
        ceiling = float(total[tuple(cheap[count])])
    combined = list[Combination]()
    for which in cheap[:count].tolist():
        chosen = tuple((p, j) for p, own, k in zip(phases, several, which, strict=True) for j in own.groups[k])
        combined.append((float(total[tuple(which)]) + added, chosen))
    return combined, ceiling + added


def covers_in_order(groups: Groups, price: Floats, ceiling: float, count: int = MOST_COVERS) -> Covers:
    """Covers of a phase at what groups hold at most, for less than a price.

    Groups that a cover does not need are among them, since they may help another phase; covers of the same instances come
    once, as one group of each template.

    Args:
        groups: Groups of the phase.
        price: float64 (J,), USD/h.
        ceiling: USD/h.
        count: Covers at most.
    """
    rest_price = groups.covers(groups.most, price)
    useful = np.flatnonzero((groups.most > 0) & (price + rest_price[PARTS - groups.most] < ceiling))
    most, own = groups.most[useful], price[useful]
    covers: dict[tuple[int, ...], float] = {}
    # (price with the cheapest rest, price, parts to go, positions in ``useful`` that do not fall)
    queue: list[tuple[float, float, int, tuple[int, ...]]] = [(float(rest_price[PARTS]), 0.0, PARTS, ())]
    while queue and len(covers) < count:
        _, cost, rest, chosen = heapq.heappop(queue)
        if rest == 0:
            covers.setdefault(_merged(groups, useful[list(chosen)]), cost)
        start = chosen[-1] if chosen else 0
        left = np.maximum(rest - most[start:], 0)
        whole = cost + own[start:] + rest_price[left]
        for k in np.flatnonzero(whole < ceiling).tolist():
            entry = float(whole[k]), cost + float(own[start + k]), int(left[k]), (*chosen, start + k)
            heapq.heappush(queue, entry)
        if len(queue) > MOST_BEGUN:
            queue = heapq.nsmallest(MOST_BEGUN // 2, queue)
            ceiling = queue[-1][0]
    below = queue[0][0] if queue else ceiling
    return Covers(tuple(covers.values()), tuple(covers), below)


def _merged(groups: Groups, rows: Ints) -> tuple[int, ...]:
    """The same instances with one group of each template, as far as there are groups of so many."""
    merged: list[int] = []
    for template in np.unique(groups.template[rows]):
        own = rows[groups.template[rows] == template]
        start, end = np.searchsorted(groups.template, [template, template + 1])
        together = start + int(np.searchsorted(groups.count[start:end], groups.count[own].sum()))
        merged += [together] if together < end else own.tolist()
    return tuple(int(j) for j in merged)
