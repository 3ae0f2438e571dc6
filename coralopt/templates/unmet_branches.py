r"""A bound where some demand may go unmet, by branching on the shares that models leave.

At dual prices k the cost of everything is at least ``r_k + sum_i f_ki(s_i)``, where group i of models leaves the share s_i
unmet: f_ki is the least price of what serves the rest, and the price of s_i (:mod:`coralopt.templates.unmet`). Its least
value is the Lagrangian bound, which stays below the best cost where one of two shares s_i is best at some prices and the
other one at others: no single prices tell that a mix of both is no plan. Over a box B of shares, though, nothing costs less
than::

    max over k  of  r_k + sum_i min over s in B_i of f_ki(s)

and the least of it over boxes that cover all shares bounds every allocation. Boxes are halved, the one of the least bound
first, where that raises the bound of both halves most.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from coralopt.templates.cheapest_token import SAFE
from coralopt.types import Floats

#: Boxes that are halved at most, and how near bounds are the same.
MOST_HALVED, SAME = 300, 1e-9
#: Above every share: that of boxes without an upper end.
BEYOND = Fraction(2)
#: Shares so near each other are one.
SINGLE = Fraction(1, 10**9)


@dataclass(frozen=True, eq=False)
class SharePrices:
    """What everything costs at least at some dual prices, by the shares that groups of models leave.

    Attributes:
        rest_usd_h: What all else costs, less the worth of the supply, USD/h.
        usd_h: By group, float64 (G + 1,): what it costs where it serves t of G steps and leaves the rest.
    """

    rest_usd_h: float
    usd_h: tuple[Floats, ...]

    @property
    def least_usd_h(self) -> float:
        """The bound, of any shares."""
        return (self.rest_usd_h + sum(float(usd_h.min()) for usd_h in self.usd_h)) * (1 - SAFE)

    def least(self, group: int, low: Fraction, high: Fraction) -> tuple[float, Fraction]:
        """The least cost of a group that leaves a share from ``low`` to below ``high``, and the share."""
        usd_h = self.usd_h[group]
        grid = len(usd_h) - 1
        # What leaves a share s serves (1 - s) G steps, rounded up.
        fewest = max(0, math.floor((1 - high) * grid) + 1)
        most = min(grid, math.ceil((1 - low) * grid))
        t = fewest + int(usd_h[fewest : most + 1].argmin())
        return float(usd_h[t]), max(low, Fraction(grid - t, grid))


@dataclass(frozen=True, eq=False)
class ShareBox:
    """Shares that groups of models may leave, and what is known of them.

    Attributes:
        bound_usd_h: Nothing that leaves such shares costs less.
        low, high: Of every group, the least share, and one that all are below.
        best: Index of the dual prices that say so.
        usd_h: float64 (K, n), least costs at all dual prices.
        share: By dual prices, the shares of all groups at which they are.
    """

    bound_usd_h: float
    low: tuple[Fraction, ...]
    high: tuple[Fraction, ...]
    best: int
    usd_h: Floats
    share: tuple[tuple[Fraction, ...], ...]

    def holds(self, group: int, share: Fraction) -> bool:
        """Whether a group may leave such a share."""
        return self.low[group] <= share < self.high[group]


class ShareBranches:
    """The bound over all shares at some dual prices.

    Args:
        groups: How many groups leave shares.
    """

    def __init__(self, groups: int) -> None:
        self.prices: list[SharePrices] = []
        #: Boxes that together have all shares, as (low, high).
        self._boxes = [((Fraction(0),) * groups, (BEYOND,) * groups)]

    def least(self, enough_usd_h: float) -> ShareBox:
        """The box of the least bound, after others were halved; bounds beyond ``enough_usd_h`` are not raised."""
        several = [self._box(low, high) for low, high in self._boxes]
        boxes = [(box.bound_usd_h, number, box) for number, box in enumerate(several)]
        heapq.heapify(boxes)
        for number in range(MOST_HALVED):
            box = boxes[0][2]
            halves = None if box.bound_usd_h >= enough_usd_h else self._halved(box)
            if halves is None:
                break
            heapq.heappop(boxes)
            for side, half in enumerate(halves):
                heapq.heappush(boxes, (half.bound_usd_h, len(several) + 2 * number + side, half))
        self._boxes = [(box.low, box.high) for *_, box in boxes]
        return boxes[0][2]

    def halve(self, box: ShareBox, group: int, middle: Fraction) -> None:
        """Put two boxes in the place of one: the shares below ``middle``, and the others."""
        self._boxes.remove((box.low, box.high))
        self._boxes += [(box.low, _with(box.high, group, middle)), (_with(box.low, group, middle), box.high)]

    def _box(
        self, low: tuple[Fraction, ...], high: tuple[Fraction, ...], parent: ShareBox | None = None, group: int = 0
    ) -> ShareBox:
        """A box; of one whose parent is given, only what is known of one group is new."""
        several = range(len(low)) if parent is None else (group,)
        usd_h = np.empty((len(self.prices), len(low))) if parent is None else parent.usd_h.copy()
        shares = [list(low) for _ in self.prices] if parent is None else [list(row) for row in parent.share]
        for k, prices in enumerate(self.prices):
            for i in several:
                usd_h[k, i], shares[k][i] = prices.least(i, low[i], high[i])
        total = np.array([prices.rest_usd_h for prices in self.prices]) + usd_h.sum(axis=1)
        best = int(total.argmax())
        return ShareBox(float(total[best]) * (1 - SAFE), low, high, best, usd_h, tuple(map(tuple, shares)))

    def _halved(self, box: ShareBox) -> tuple[ShareBox, ShareBox] | None:
        """The halves that raise the bound most; ``None`` where no prices tell that another share of a group is better."""
        best: tuple[ShareBox, ShareBox] | None = None
        for group, shares in enumerate(zip(*box.share, strict=True)):
            least, most = min(shares), max(shares)
            if least == most:
                continue
            # Between two whole numbers of steps, so that neither half has both shares.
            grid = max(len(prices.usd_h[group]) for prices in self.prices) - 1
            middle = min(most, 1 - Fraction(math.floor((1 - (least + most) / 2) * grid), grid))
            halves = (
                self._box(box.low, _with(box.high, group, middle), box, group),
                self._box(_with(box.low, group, middle), box.high, box, group),
            )
            if best is None or _bounds(halves) > _bounds(best):
                best = halves
        # Where the shares that are best at the best prices cost no more at any, no halves help.
        if best is None or self._at(box.share[box.best]) <= box.bound_usd_h + SAME * abs(box.bound_usd_h):
            return None
        return best

    def _at(self, shares: tuple[Fraction, ...]) -> float:
        """The bound of single shares."""
        return self._box(shares, tuple(share + SINGLE for share in shares)).bound_usd_h


def _with(shares: tuple[Fraction, ...], group: int, share: Fraction) -> tuple[Fraction, ...]:
    return (*shares[:group], share, *shares[group + 1 :])


def _bounds(halves: tuple[ShareBox, ShareBox]) -> list[float]:
    return sorted(half.bound_usd_h for half in halves)
