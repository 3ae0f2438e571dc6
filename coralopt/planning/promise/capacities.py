"""What groups of one model phase hold at most and at least, found out only as far as it decides the cheapest cover.

A group is ``count`` equal instances of a template that share a percentage of the phase's traffic. ``most[j]`` percent is
what group j cannot exceed, ``least[j]`` what it was seen to hold. Covers of 100 percent at ``most`` bound the cost from
below, covers at ``least`` are plans.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from coralopt.planning.promise.oracle import PhaseOracle
from coralopt.types import Bools, Floats, Ints, Progress

#: Model phase and group there.
Place = tuple[int, int]
#: Shares of traffic are whole parts of so many.
PARTS = 100
#: A group has at most so many times the instances that its tables ask for, and a few more.
MOST_SPARE, MORE = 2.5, 1
#: Times the demand that groups have room for which are simulated first.
ROOMY = 2.0
#: Replications to settle what one group holds.
HALVES = 6
#: Replications about one phase after which the search for its cheapest cover ends, with a bound all the same.
MOST_REPLICATIONS = 300
#: Every other replication is for a cover at this share of the way from the bound to the cheapest; after a failure farther.
HALFWAY, FARTHER = 0.5, 0.15
#: Covers whose prices differ by a smaller share cost the same.
PRICE_TOLERANCE = 1e-9


@dataclass(eq=False)
class Groups:
    """Groups of one model phase as columns.

    Attributes:
        oracle: Who finds out.
        unit_tokens: Tokens/s of one part of the demand; a few bits are left free, so that sums of parts are exact.
        template: int64 (J,), row of the phase's templates.
        count: int64 (J,), instances.
        most: int64 (J,), parts of the demand that the group holds at most.
        least: int64 (J,), parts that it was seen to hold.
        unclear: int64 (J,), least parts of which replications did not tell; beyond ``most`` where there are none.
        doubtful: int64 (J,), most parts of which replications did not tell; 0 where there are none.
        allowed: int64 (J,), parts that tables and idle times allow.
        tried: int64 (J,), most parts of which many replications did not tell; 0 where there are none.
    """

    oracle: PhaseOracle
    unit_tokens: float
    template: Ints
    count: Ints
    most: Ints
    least: Ints
    unclear: Ints
    doubtful: Ints
    allowed: Ints
    tried: Ints

    @staticmethod
    def of(oracle: PhaseOracle, demand_tokens_s: float, most_instances: Ints, replicas: int = 0) -> Groups:
        """All groups of a phase, with what its throughput tables allow; of a phase for mean requests they hold just that.

        Args:
            oracle: Of the phase.
            demand_tokens_s: Tokens/s that it must serve.
            most_instances: int64 (T,), instances of each template that the pool has room for.
            replicas: Least instances of each group, so that every cover has as many; any where no group has.
        """
        unit = _with_free_bits(demand_tokens_s / PARTS)
        if unit == 0:
            none = np.zeros(0, dtype=np.int64)
            return Groups(oracle, unit, *[none] * 8)
        each = np.where(oracle.too_slow(), 0.0, oracle.templates.throughput) / unit
        wanted = np.ceil(np.divide(MOST_SPARE * PARTS, each, out=np.zeros_like(each), where=each > 0))
        wanted = np.maximum(wanted.astype(np.int64) + MORE, replicas)
        counts = np.where(each > 0, np.minimum(wanted, most_instances), 0)
        template = np.repeat(np.arange(len(each)), counts)
        count = np.arange(len(template)) - np.repeat(np.cumsum(counts) - counts, counts) + 1
        most = np.minimum(PARTS, np.floor(count * each[template])).astype(np.int64)
        some = most > 0
        if (some & (count >= replicas)).any():
            some &= count >= replicas
        template, count, most = template[some], count[some], most[some]
        least = np.zeros_like(most) if oracle.target is not None else most
        unclear, doubtful = np.full_like(most, PARTS + 1), np.zeros_like(most)
        none, allowed = np.zeros_like(most), most.copy()
        return Groups(oracle, unit, template, count, most, least.copy(), unclear, doubtful, allowed, none)

    def covers(self, capacity: Ints, price: Floats) -> Floats:
        """float64 (PARTS + 1,): least price of groups that hold so many parts, any as often as wanted; inf for never.

        Args:
            capacity: ``most`` or ``least``.
            price: float64 (J,), USD/h.
        """
        least = np.zeros(PARTS + 1)
        if self.unit_tokens == 0:
            return least
        cheapest = np.full(PARTS + 1, np.inf)
        np.minimum.at(cheapest, capacity, price)
        cheapest[0] = np.inf
        # A group that holds more does for less.
        cheapest = np.minimum.accumulate(cheapest[::-1])[::-1]
        for parts in range(1, PARTS + 1):
            least[parts] = (cheapest[1 : parts + 1] + least[parts - 1 :: -1][:parts]).min()
        return least

    def settle(self, j: int) -> None:
        """Simulate group j at the most that it may hold, and where it does not, at half of it and so on for a while."""
        low, high = int(self.least[j]), int(min(self.most[j], self.unclear[j] - 1))
        parts = high
        for _ in range(HALVES):
            if self.known[j]:
                return
            if parts <= low:
                # Only what lies above an unclear share is left.
                break
            self.find_out(j, parts)
            if self.least[j] >= parts:
                low = parts
            else:
                high = parts - 1
            parts = (low + high + 1) // 2
        if self.most[j] > max(self.least[j], self.doubtful[j]):
            self.find_out(j, int(self.most[j]))

    def find_out(self, j: int, parts: int, many: bool = False) -> None:
        """Simulate group j at a share of the demand, and note what follows; in many replications where few did not tell."""
        rate = parts * self.oracle.rate(self.unit_tokens)
        verdict = self.oracle.verdict(int(self.template[j]), int(self.count[j]), rate, many)
        # Groups are ordered by template and count.
        start, end = np.searchsorted(self.template, [self.template[j], self.template[j] + 1])
        if verdict == "holds":
            more = slice(j, end)
            least = np.maximum(self.least[more], np.minimum(parts, self.most[more]))
            # What was unclear up to there is so no longer.
            doubted = self.doubtful[more] > least
            self.unclear[more] = np.where(
                self.unclear[more] > least, self.unclear[more], np.where(doubted, least + 1, PARTS + 1)
            )
            self.doubtful[more] = np.where(doubted, self.doubtful[more], 0)
            self.least[more] = least
        elif verdict == "fails":
            fewer = slice(start, j + 1)
            self.most[fewer] = np.minimum(self.most[fewer], parts - 1)
            doubted = self.unclear[fewer] <= self.most[fewer]
            self.doubtful[fewer] = np.where(doubted, np.minimum(self.doubtful[fewer], self.most[fewer]), 0)
        elif many:
            self.tried[j] = max(self.tried[j], parts)
        else:
            self.unclear[j] = min(self.unclear[j], parts)
            self.doubtful[j] = max(self.doubtful[j], parts)

    def of_rows(self, rows: Ints) -> Groups:
        """Some of the groups, as they are now."""
        arrays = (getattr(self, item.name)[rows] for item in fields(self)[2:])
        return Groups(self.oracle, self.unit_tokens, *arrays)

    @cached_property
    def roomy(self) -> Bools:
        """bool (J,): groups whose tables allow :data:`ROOMY` times all traffic."""
        tokens = self.oracle.templates.throughput[self.template] * self.count
        return np.asarray(tokens >= ROOMY * PARTS * self.unit_tokens)

    @property
    def held(self) -> Bools:
        """Groups of which nothing is left to find out about what they hold."""
        return np.asarray(np.minimum(self.most, self.unclear - 1) <= self.least)

    @property
    def known(self) -> Bools:
        """Groups of which nothing at all is left to find out."""
        return np.asarray(self.held & (self.most <= np.maximum(self.least, self.doubtful)))

    def cheapest_covers(
        self, price: Floats, ceiling: float, most: int, room: float = 1.0
    ) -> list[tuple[float, tuple[int, ...]]]:
        """(price, groups) of covers at ``least`` below a price, cheapest first; at most so many, none with a needless group.

        Args:
            price: float64 (J,), USD/h.
            ceiling: USD/h.
            most: Covers.
            room: They hold so many times the demand.
        """
        least = np.floor(self.least / room).astype(np.int64)
        rest_price = self.covers(least, price)
        useful = np.flatnonzero((least > 0) & (price + rest_price[PARTS - least] < ceiling))
        covers: list[tuple[float, tuple[int, ...]]] = []
        # (price with the cheapest rest, price, parts to go, groups: positions in ``useful`` that do not fall)
        queue: list[tuple[float, float, int, tuple[int, ...]]] = [(float(rest_price[PARTS]), 0.0, PARTS, ())]
        while queue and len(covers) < most:
            _, cost, rest, chosen = heapq.heappop(queue)
            if rest == 0:
                covers.append((cost, tuple(int(useful[k]) for k in chosen)))
                continue
            items = useful[chosen[-1] if chosen else 0 :]
            left = np.maximum(rest - least[items], 0)
            whole = cost + price[items] + rest_price[left]
            for k in np.flatnonzero(whole < ceiling).tolist():
                j = int(items[k])
                entry = (*chosen, len(useful) - len(items) + k)
                heapq.heappush(queue, (float(whole[k]), cost + float(price[j]), int(left[k]), entry))
        return covers


def tighten(
    groups: Groups,
    price: Floats,
    slack: float,
    progress: Progress | None = None,
    allowance: float | None = None,
    replications: float = MOST_REPLICATIONS,
    in_vain: float = math.inf,
) -> tuple[float, float]:
    """Find out what decides the cheapest cover of one phase.

    Args:
        groups: The groups; what is found out is noted there.
        price: float64 (J,), USD/h.
        slack: The search ends when the cover at ``least`` costs at most this share above that at ``most``.
        progress: Told how many replications were simulated.
        allowance: Instead, find out whether groups hold the least share at which they could be in a cover that costs at
            most so much more than the cheapest, USD/h.
        replications: The search ends after so many, once there is a cover.
        in_vain: It ends after so many without any.

    Returns:
        (least price at ``most``, least price at ``least``), USD/h: nothing in the family is cheaper than the first, and the
        second is a cover.
    """
    turn, way, before = -1, HALFWAY, groups.oracle.replications
    # Groups that may be in the cover sought; as it gets cheaper, they become few.
    rows = np.flatnonzero(np.isfinite(price))
    while True:
        turn += 1
        near, most = price[rows], groups.most[rows]
        bound, cost = groups.covers(most, near), groups.covers(groups.least[rows], near)
        low, high = float(bound[PARTS]), float(cost[PARTS])
        ceiling = high * (1 - slack) if allowance is None else high * (1 + PRICE_TOLERANCE) + allowance
        if (
            low >= ceiling
            or math.isinf(low)
            or groups.oracle.replications - before >= (in_vain if math.isinf(high) else replications)
        ):
            return low, high
        if progress is not None:
            progress(f"capacities of {groups.oracle.phase.key}", groups.oracle.replications, 0)
        if allowance is None and turn % 2 and math.isfinite(high):
            likely = _likely(groups, rows, _first(cost, near, low + way * (high - low)))
            if likely is not None:
                groups.find_out(*likely)
                way = HALFWAY if groups.least[likely[0]] >= likely[1] else way + FARTHER * (1 - way)
                continue
        # What any cover with the group costs at least, and the least share at which one with it is cheap enough.
        with_group = near + bound[PARTS - most]
        first = _first(bound, near, ceiling)
        rest = groups.of_rows(rows)
        if allowance is None or math.isinf(high):
            # Where replications do not tell of a share that would do, telling of larger ones changes nothing.
            decided = rest.known | (rest.held & (first <= rest.doubtful))
        else:
            # A group beside which the rest alone is a cheap cover may be one in its place: all that it may hold is of use.
            first = np.maximum(first, 1)
            decided = rest.held | (rest.least >= first)
        open_ = (with_group < ceiling) & ~decided
        if not open_.any():
            # The bound may hang on shares of which few replications did not tell.
            parts = np.maximum(first, rest.least + 1)
            doubts = (with_group < ceiling) & (parts <= rest.doubtful) & (parts > rest.tried)
            if allowance is not None or math.isinf(high) or not doubts.any():
                return low, high
            k = int(np.argmin(np.where(doubts, with_group, np.inf)))
            groups.find_out(int(rows[k]), int(parts[k]), many=True)
            continue
        roomy = open_ & groups.roomy[rows] & (most == PARTS)
        if math.isinf(high) and roomy.any():
            # Any cover makes one replication of most others enough; a group with much room is likely one.
            open_ = roomy
        k = int(np.argmin(np.where(open_, with_group, np.inf)))
        at_most = math.isinf(high) or (allowance is not None and first[k] == 1)
        groups.find_out(j := int(rows[k]), _parts(groups, j, int(first[k]), at_most))
        rows = rows[with_group <= max(ceiling, high * (1 + PRICE_TOLERANCE))]


def _first(covers: Floats, price: Floats, ceiling: float) -> Ints:
    """int64: least share at which a group and the cheapest cover of the rest cost less than the ceiling."""
    return np.asarray(PARTS + 1 - np.searchsorted(covers, ceiling - price, side="left"))


def _likely(groups: Groups, rows: Ints, first: Ints) -> tuple[int, int] | None:
    """Of these groups the one that has most room at the share at which it makes a cheap cover, and that share."""
    first = np.maximum(first, 1)
    open_ = (first <= groups.most[rows]) & (first > groups.least[rows]) & (first < groups.unclear[rows])
    if not open_.any():
        return None
    throughput = groups.oracle.templates.throughput[groups.template[rows]]
    k = int(np.argmax(np.where(open_, throughput * groups.count[rows] / first, 0.0)))
    return int(rows[k]), int(first[k])


def _parts(groups: Groups, j: int, first: int, at_most: bool) -> int:
    """The share to simulate group j at: the smallest at which a cheap cover could use it, until that holds; then halves.

    Or else all that it may hold, then halves.
    """
    least, most = int(groups.least[j]), int(groups.most[j])
    if groups.held[j]:
        return max(first, int(groups.doubtful[j]) + 1)
    most = min(most, int(groups.unclear[j]) - 1)
    if at_most:
        return most if least == 0 and most == groups.allowed[j] else (least + most + 1) // 2
    if first > least:
        return min(max(first, 1), most)
    return most if most == least + 1 else (most + least + 1) // 2


def _with_free_bits(value: float) -> float:
    """The next number at least as large that has 30 bits, so that its small multiples are exact."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.ceil(mantissa * 2**30), exponent - 30)
