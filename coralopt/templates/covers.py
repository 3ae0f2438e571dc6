r"""The least price of all instances of a model phase together, from the prices of one instance; and which these are.

Instances serve whole steps, of which the demand has G (:mod:`coralopt.templates.instance_prices`). Beside the demand,
operators may ask for a number of instances, and for what is left when one instance, or all of one region, is lost:

*One instance.* With t the steps of the largest one, the others serve at least x G, and G - t. So the price is the least over
t of one[t] + F_t(max(x G, G - t)), where F_t(s) covers s steps by instances of at most t: adding instances in ascending
order, F_t comes from F_t-1 in one pass. An instance of more than G steps counts as one of G: beside it the others serve
x G all the same.

*One region.* Let a_r be the steps of region r, e_r(a) their least price there, and M the largest a_r: what is left is
sum a_r - M >= x G. Shares x <= 1/2 hold exactly where sum min(a_r, (1 - x) G) >= G: no region counts for more than what may
be lost. For larger ones sum min(a_r, M) >= max(G, x G + M) holds at that M; the least price over M is searched by halving
intervals, in which the cap is the upper end and the sum that of the lower one. Both are joins over the regions.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from coralopt.templates.instance_prices import InstancePrices, PricedPipeline
from coralopt.types import Floats

#: Intervals of the largest region's steps that are halved at most.
HALVED = 24
#: A share of a step, lost where shares are no whole steps.
ROUNDED = 1e-6


@dataclass(frozen=True)
class CoverRules:
    """What the instances of a model phase do beside serving its demand.

    Attributes:
        replicas: So many instances at least.
        spared: Share of the demand that is left whichever instance is lost.
        surviving: Share of the demand that is left whichever region is lost.
    """

    replicas: int = 0
    spared: float = 0.0
    surviving: float = 0.0


def any_instances(one: Floats) -> Floats:
    """float64 (G + 1,): least price of any number of instances with at least t steps together; ``one[t]`` of one."""
    from coralopt.templates.certificate_kernels import cover_demand

    every = np.zeros(len(one))
    cover_demand(one, every)
    return every


def several_instances(one: Floats, least: int) -> list[Floats]:
    """float64 (G + 1,) by k: least price of k instances or more with at least t steps together; ``one[t]`` of one instance.

    For k up to ``least``, or up to where one more costs what the cheapest instance costs, and so does every further one.
    """
    from coralopt.templates.certificate_kernels import one_more

    tables = [any_instances(one)]
    cheapest = float(one[1:].min())
    while len(tables) <= least:
        more = np.empty(len(one))
        one_more(one, tables[-1], more)
        if np.array_equal(more, tables[-1] + cheapest):
            break
        tables.append(more)
    return tables


@dataclass(frozen=True)
class CheaperInstances:
    """Some instances that cost less than others: those that run already.

    Attributes:
        region: Index of their region.
        steps: Steps of the demand that one serves.
        usd_h: Its price, USD/h.
        count: How many there are.
    """

    region: int
    steps: int
    usd_h: float
    count: int


def least_prices(
    regions: Sequence[InstancePrices], grid: int, rules: CoverRules, cheaper: Sequence[CheaperInstances] = ()
) -> Floats:
    """float64 (G + 1,): least price of all instances that serve t steps; of all G, as the rules want them.

    Rules know of cheaper instances that there are any number of them.
    """
    if not regions:
        return np.zeros(grid + 1)
    one = np.min([np.minimum(price.one, price.every) for price in regions], axis=0)
    least = any_instances(one)
    for item in cheaper:
        for _ in range(min(item.count, math.ceil(grid / item.steps))):
            shifted = np.concatenate([np.zeros(item.steps), least[: grid + 1 - item.steps]])
            least = np.minimum(least, item.usd_h + shifted)
    least[0] = 0.0
    if rules == CoverRules():
        return least
    if cheaper:
        regions = [_with_cheaper(price, cheaper) for price in regions]
        one = np.min([np.minimum(price.one, price.every) for price in regions], axis=0)
    if rules.replicas > 0:
        least = np.maximum(least, _of_several(one, rules.replicas))
    if rules.spared > 0:
        least[-1] = max(least[-1], _largest(one, rules.spared)[0])
    if rules.surviving > 0:
        least[-1] = max(least[-1], _amounts(regions, rules.surviving)[0])
    return least


def _of_several(one: Floats, replicas: int) -> Floats:
    """float64 (G + 1,): least price of so many instances or more with at least t steps together."""
    tables = several_instances(one, replicas)
    further = replicas + 1 - len(tables)
    return tables[-1] + further * float(one[1:].min()) if further > 0 else tables[-1]


def _with_cheaper(price: InstancePrices, cheaper: Sequence[CheaperInstances]) -> InstancePrices:
    one = price.one.copy()
    for item in cheaper:
        if item.region == price.region:
            one[1 : item.steps + 1] = np.minimum(one[1 : item.steps + 1], item.usd_h)
    return replace(price, one=one, every=np.minimum(price.every, any_instances(one)))


def cheapest_cover(
    regions: Sequence[InstancePrices], rules: CoverRules, steps: int | None = None
) -> list[tuple[int, PricedPipeline]]:
    """(region, instance) of the instances that serve the whole demand as the rules want them, at the least price.

    Where there are several rules, as that one wants them which costs most; of ``steps`` of the demand, as the replicas.
    """
    one = np.min([price.one for price in regions], axis=0)
    if steps is not None:
        return _replicas_cover(regions, one[: steps + 1], rules.replicas)
    cover = _replicas_cover(regions, one, rules.replicas)
    if not (rules.spared or rules.surviving):
        return cover
    price = float(_of_several(one, rules.replicas)[-1])
    if rules.spared > 0:
        spared, largest = _largest(one, rules.spared)
        if price < spared < math.inf:
            price, rest = spared, max(len(one) - 1 - largest, _steps(rules.spared, one))
            few = one.copy()
            few[largest + 1 :] = math.inf
            cover = [_instance(regions, largest), *_cover(regions, few, rest)]
    if rules.surviving > 0:
        surviving, amounts = _amounts(regions, rules.surviving)
        if price < surviving < math.inf:
            cover = [
                instance
                for region, steps in zip(regions, amounts, strict=True)
                for instance in _cover([region], region.one, steps)
            ]
    return cover


def _replicas_cover(regions: Sequence[InstancePrices], one: Floats, least: int) -> list[tuple[int, PricedPipeline]]:
    tables = several_instances(one, least)
    left, cover, steps = len(one) - 1, list[tuple[int, PricedPipeline]](), np.arange(1, len(one))
    # First those that only their number asks for, each of which is the cheapest there is.
    beside = [np.zeros(len(one))] * (least + 1 - len(tables)) + tables[-2::-1]
    while left > 0 or len(cover) < least:
        rest = beside[len(cover)] if len(cover) < len(beside) else tables[0]
        t = int((one[1:] + rest[np.maximum(left - steps, 0)]).argmin()) + 1
        if len(cover) >= least + 1 - len(tables):
            left = max(left - t, 0)
        cover.append(_instance(regions, t))
    return cover


def _cover(regions: Sequence[InstancePrices], one: Floats, left: int) -> list[tuple[int, PricedPipeline]]:
    """The cheapest instances of so many steps together; ``one[t]``: price of one that they may be."""
    every, steps, cover = any_instances(one[: left + 1]) if left else one, np.arange(1, len(one)), []
    while left > 0:
        t = int((one[1:] + every[np.maximum(left - steps, 0)]).argmin()) + 1
        cover.append(_instance(regions, t))
        left -= t
    return cover


def _instance(regions: Sequence[InstancePrices], t: int) -> tuple[int, PricedPipeline]:
    """The cheapest instance of t steps, and its region."""
    price = min(regions, key=lambda price: float(price.one[t]))
    # The price of t steps may be that of an instance of more.
    exact = int(np.searchsorted(price.one, price.one[t], side="right")) - 1
    return price.region, price.cheapest(np.array([exact]))[0]


def _steps(share: float, one: Floats) -> int:
    return math.ceil(share * (len(one) - 1) - ROUNDED)


def _largest(one: Floats, share: float) -> tuple[float, int]:
    """Least price of instances of which a share of the demand is left without the largest, and steps of that one."""
    from coralopt.templates.certificate_kernels import cover_without_one

    return cover_without_one(one, _steps(share, one))


def _amounts(regions: Sequence[InstancePrices], share: float) -> tuple[float, list[int]]:
    """Least price of instances of which a share of the demand is left without any region, and steps of each region."""
    tables, grid = [price.every for price in regions], len(regions[0].every) - 1
    beside = _steps(share, tables[0])
    if 2 * beside <= grid:
        return _join(tables, grid - beside, grid)

    def within(low: int, high: int) -> tuple[float, int, int, list[int]]:
        """Where the largest region serves ``low`` to ``high`` steps."""
        price, amounts = _join(tables, high, max(grid, beside + low))
        return price, low, high, amounts

    several = [within(max(1, beside // max(len(tables) - 1, 1)), grid)]
    for _ in range(HALVED):
        price, low, high, amounts = several[0]
        wide = max(amounts, default=0)
        if not math.isfinite(price) or low >= high or (wide and sum(amounts) - wide >= beside):
            break
        heapq.heappop(several)
        middle = (low + high) // 2
        heapq.heappush(several, within(low, middle))
        heapq.heappush(several, within(middle + 1, high))
    return several[0][0], several[0][3]


def _join(tables: Sequence[Floats], most: int, total: int) -> tuple[float, list[int]]:
    """Least price of so many steps in all regions together, of which each counts for ``most`` at most; steps of each."""
    from coralopt.templates.certificate_kernels import join_tables

    partial = [np.concatenate([[0.0], np.full(total, math.inf)])]
    for table in tables:
        partial.append(np.empty(total + 1))
        join_tables(partial[-2], table[: most + 1], partial[-1])
    left, amounts = total, []
    if not math.isfinite(partial[-1][total]):
        return math.inf, [0] * len(tables)
    for before, table in zip(partial[-2::-1], reversed(tables), strict=True):
        steps = np.arange(min(most, left) + 1)
        taken = int((before[left - steps] + table[steps]).argmin())
        amounts.append(taken)
        left -= taken
    return float(partial[-1][total]), amounts[::-1]
