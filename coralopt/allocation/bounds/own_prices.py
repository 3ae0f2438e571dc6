r"""Prices that one model phase pays by itself.

The covering knapsack of a phase knows prices of nodes, but not how many there are. For every pi >= 0 on nodes, A of
them there::

    F_m  >=  D_m(pi) - sum_i pi_i A_i,      D_m(pi) = least weight of what covers the demand at w(n) + sum_i pi_i u_i(n)

since a covering that fits uses at most A (a Lagrangian relaxation inside the pricing problem). The master programme's prices
are what all phases pay together; where one phase alone exceeds the pool, prices of its own come near to F_m. A search that
prunes by D_m(pi) then looks at little. The best pi is found by cutting planes: the convex combinations of the coverings met
so far that fit are a linear programme whose dual prices are tried next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coralopt.types import Floats, Ints

#: Share of the best prices so far in the next ones that are tried.
SMOOTHING = 0.4
#: Share of the weight that the last cutting plane may leave.
CLOSE = 1e-3
#: How many steps of the demand are one while prices are looked for.
COARSER = 8
#: Coverings that are kept.
MOST = 80


@dataclass(frozen=True, eq=False)
class OwnItems:
    """Instances that serve one phase.

    Attributes:
        speed: float64 (n,), tokens/s.
        cell: int64 (n, w), cells whose nodes an instance uses; -1 for none.
        amount: float64 (n, w), how many nodes of each.
        room: float64 (R * C,), how many nodes there are.
    """

    speed: Floats
    cell: Ints
    amount: Floats
    room: Floats


@dataclass(frozen=True, eq=False)
class OwnCover:
    """The covering knapsack at prices of a phase's own.

    Attributes:
        paid: float64 (n,), USD/h, what every instance pays.
        least: float64 (G + 1,), USD/h; what serves so many steps of the demand weighs at least, these prices included.
        worth: USD/h, of all there is at these prices.
    """

    paid: Floats
    least: Floats
    worth: float

    @property
    def floor(self) -> float:
        """USD/h; no covering that fits weighs less."""
        return float(self.least[-1]) - self.worth


class OwnPrices:
    """Prices of one phase, the best ones so far kept.

    Args:
        items: Its instances.
        demand: tokens/s.
        best: float64 (R * C,), prices that are good ones among other instances, or at other weights.
    """

    def __init__(self, items: OwnItems, demand: float, best: Floats | None = None) -> None:
        self.items, self.demand = items, demand
        self.best = np.zeros(len(items.room)) if best is None else best
        #: Coverings met, the newest last: instances, how many of each, and the nodes they use.
        self._met: dict[bytes, tuple[Ints, Ints, Floats]] = {}

    def cover(self, weight: Floats, grid: int) -> OwnCover:
        """The knapsack at the best prices so far.

        Args:
            weight: float64 (n,), USD/h, of every instance.
            grid: Steps of the demand.
        """
        return self._at(self.best, weight, grid)

    def raised(self, weight: Floats, grid: int, rounds: int) -> OwnCover:
        """The knapsack at better prices, found in so many rounds at most."""
        coarse = max(1, grid // COARSER)
        best = self._at(self.best, weight, coarse)
        for k in range(rounds):
            value, dual = self._dual(weight)
            if value - best.floor <= CLOSE * (1 + abs(value)):
                break
            # Smoothed prices may bring nothing new.
            prices = dual if k % 4 == 3 else SMOOTHING * self.best + (1 - SMOOTHING) * dual
            cover = self._at(prices, weight, coarse)
            if cover.floor > best.floor:
                best, self.best = cover, prices
        return self._at(self.best, weight, grid)

    def _at(self, prices: Floats, weight: Floats, grid: int) -> OwnCover:
        """The knapsack at some prices, and its covering, which is kept."""
        # Imported here: compiled code is dear to load and most commands never need it.
        from coralopt.allocation.bounds.own_prices_kernel import priced_cover

        items = self.items
        paid, least, members, use = priced_cover(
            items.speed, items.cell, items.amount, weight, prices, self.demand, grid
        )
        some, many = np.unique(members, return_counts=True)
        self._met[some.tobytes() + many.tobytes()] = some, many, use
        while len(self._met) > MOST:
            del self._met[next(iter(self._met))]
        return OwnCover(paid, least, float(prices @ items.room))

    def _dual(self, weight: Floats) -> tuple[float, Floats]:
        """The least weight of convex combinations of coverings met that fit, and the prices of what there is."""
        from coralopt.allocation.bounds.mix_kernel import cheapest_mix

        costs = np.array([weight[some] @ many for some, many, _ in self._met.values()])
        use = np.array([use for _, _, use in self._met.values()])
        cells = np.flatnonzero(use.max(axis=0) > self.items.room)
        over = np.full(len(cells), 10.0 * float(costs.max(initial=1.0)))
        phase = np.zeros(len(costs), dtype=np.int64)
        mix = cheapest_mix(costs, phase, np.ascontiguousarray(use[:, cells]), self.items.room[cells], over)
        prices = np.zeros(len(self.items.room))
        prices[cells] = mix.prices
        return mix.value, prices
