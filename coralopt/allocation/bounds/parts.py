r"""Coverings that fit, region by region: exact where every region has few nodes.

Regions share nothing in a covering but the demand. A *part* is what a covering has in one region r: a multiset of instances
on nodes u <= A_r. With W_r(s) the least weight of a part of r that serves s, the lightest covering of phase m that fits is
a minimum over how the demand is split (a min-plus convolution)::

    F_m = min { sum_r W_r(s_r) : sum_r s_r >= T_m }

Which parts there are does not depend on prices: of all parts on the same nodes the fastest counts, and none that serves no
more than another one on fewer nodes. At prices a part weighs::

    w(u) = sum_c v_c u_c + sum_k mu_k f_k(s_k(u))

with v what a node weighs and f_k the rounding of cut k (module ``cuts``). Here a cut counts the nodes of a whole part. That
is at least what its instances count one by one, since f_k is superadditive, and every allocation still satisfies the cut:
the parts of all phases fit together. Amounts are rounded up to whole steps, once a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coralopt.allocation.bounds.cuts import SupplyCut
from coralopt.allocation.bounds.lagrangian import grid_steps
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.side_constraints import open_constraints
from coralopt.types import Floats, Ints

#: Combinations of nodes that a region may have, and nodes of a kind.
MOST_STATES, MOST_NODES = 200_000, np.iinfo(np.uint8).max
#: How far above the covering knapsack's weight is looked at first, as a share, and by what it grows.
FIRST, GROWTH = 1e-4, 4.0
#: Measures of side constraints that the nodes of a part tell.
TOLD_BY_NODES = ("nodes", "gpus", "usd_h")


@dataclass(frozen=True, eq=False)
class PartPrices:
    """What parts of one model phase weigh.

    Attributes:
        node: float64 (R, C), USD/h per node.
        cuts: Cuts on the supply, each with its price, USD/h.
        most: int64 (R, C), nodes that a covering may use.
        least: float64 (G' + 1,), USD/h; what serves so many steps of the demand weighs at least, whether it fits or not.
    """

    node: Floats
    cuts: Sequence[tuple[SupplyCut, float]]
    most: Ints
    least: Floats


@dataclass(frozen=True, eq=False)
class LightestCovering:
    """The lightest covering of a phase that fits.

    Attributes:
        weight: USD/h; it weighs no less, nor does any other.
        counts: Column -> instances of it; none where all coverings are heavier.
    """

    weight: float
    counts: Mapping[int, int]


def node_adds(problem: AllocationProblem) -> Floats:
    """float64 (S, P, R, C): what a node of every phase adds to the side constraints that nodes tell; 0 for cuts."""
    rows = []
    for item in open_constraints(problem):
        each = np.zeros((len(problem.demand), *problem.price.shape))
        phases = slice(None) if item.phases is None else list(item.phases)
        regions = slice(None) if item.regions is None else list(item.regions)
        price = np.nan_to_num(problem.segments.base if item.is_rent else problem.price)
        kinds = np.zeros(problem.price.shape[1])
        kinds[slice(None) if item.configurations is None else list(item.configurations)] = item.gpus or 1.0
        value = np.zeros_like(price)
        value[regions] = (price if item.measure == "usd_h" else np.ones_like(price))[regions] * kinds
        if not isinstance(item, SupplyCut):
            each[phases] = value
        rows.append(each)
    return np.array(rows).reshape(len(rows), len(problem.demand), *problem.price.shape)


class RegionParts:
    """The parts of all phases, of each from when it is first needed.

    Args:
        problem: A problem for which :meth:`known` holds.
        columns: Its columns.
    """

    def __init__(self, problem: AllocationProblem, columns: Columns) -> None:
        self.problem, self.columns = problem, columns
        self._regions = [_States.of(there) for there in problem.availability.astype(np.int64)]
        self._parts: dict[int, list[_Parts]] = {}

    @staticmethod
    def known(problem: AllocationProblem, columns: Columns) -> bool:
        """Whether nodes tell what a part costs and adds to every side constraint, and regions have few enough."""
        sides = all(item.sense == "most" and item.measure in TOLD_BY_NODES for item in open_constraints(problem))
        simple = problem.start_penalty is None and not columns.kept.any() and not problem.routes
        states = (problem.availability.astype(np.float64) + 1).prod(axis=1)
        few = states.max(initial=1.0) <= MOST_STATES and problem.availability.max(initial=0) <= MOST_NODES
        return bool(sides and simple and few)

    def lightest(self, phase: int, prices: PartPrices, grid: int, near: tuple[float, float]) -> LightestCovering:
        """The lightest covering of a phase that fits.

        Args:
            phase: The model phase.
            prices: What its parts weigh.
            grid: Steps of its demand on which amounts are rounded up.
            near: What a covering weighs at least, and how far above that is looked at first, USD/h.
        """
        rest = prices.least[(grid - np.arange(grid + 1)) * (len(prices.least) - 1) // grid]
        fronts: list[_Front] = []
        for r, parts in enumerate(self._of_phase(phase)):
            part, weight = parts.front(r, prices)
            steps = grid_steps(parts.speed[part], float(self.problem.demand[phase]), grid)
            fronts.append(_Front(parts, part, np.where(parts.speed[part] > 0, steps, 0), weight))
        floor, reach = near[0], max(near[1], FIRST * (1 + near[0]))
        while True:
            lightest = _put_together(fronts, rest, floor + reach)
            if lightest.counts or np.isinf(reach):
                return lightest
            reach = reach * GROWTH if reach <= floor else np.inf

    def _of_phase(self, phase: int) -> list[_Parts]:
        if phase not in self._parts:
            columns = self.columns
            mine = np.flatnonzero((columns.phase == phase) & (self.problem.throughput[columns.template] > 0))
            self._parts[phase] = [
                _Parts.of(self.problem, columns, mine[columns.region[mine] == r], states)
                for r, states in enumerate(self._regions)
            ]
        return self._parts[phase]


@dataclass(frozen=True, eq=False)
class _States:
    """All combinations of nodes of a region: state k has ``digits[k]`` of ``kinds``, and k is the sum of their strides."""

    kinds: Ints
    stride: Ints
    digits: npt.NDArray[np.uint8]

    @staticmethod
    def of(there: Ints) -> _States:
        kinds = np.flatnonzero(there > 0)
        base = there[kinds] + 1
        stride = np.append(np.cumprod(base[:0:-1])[::-1], 1)[: len(base)].astype(np.int64)
        states = np.arange(int(base.prod()), dtype=np.int64)
        return _States(kinds, stride, (states[:, None] // stride % base).astype(np.uint8))


@dataclass(frozen=True, eq=False)
class _Parts:
    """Parts of one phase in one region, those that serve most first, the empty one last.

    Attributes:
        states: The combinations of nodes of the region.
        state: int64 (n,), that of every part.
        use: uint8 (n, c), its nodes.
        speed: float64 (n,), tokens/s.
        choice: int64 (states,), the item added last in every state, -1 for none.
        item_state: int64 (k,), states of the items.
        item_column: int64 (k,), columns of these.
    """

    states: _States
    state: Ints
    use: npt.NDArray[np.uint8]
    speed: Floats
    choice: Ints
    item_state: Ints
    item_column: Ints

    @staticmethod
    def of(problem: AllocationProblem, columns: Columns, mine: Ints, states: _States) -> _Parts:
        """All of some columns of the region."""
        from coralopt.allocation.bounds.parts_kernel import fastest_parts, needed_parts

        usage = problem.usage[columns.template[mine]][:, states.kinds]
        speed = problem.throughput[columns.template[mine]].astype(np.float64)
        code = usage.astype(np.int64) @ states.stride
        # Of templates on the same nodes the fastest.
        order = np.lexsort((-speed, code))
        order = order[np.append(True, code[order][1:] != code[order][:-1])[: len(order)]]
        best, choice = np.full(len(states.digits), -np.inf), np.full(len(states.digits), -1, dtype=np.int64)
        best[0] = 0.0
        fastest_parts(states.digits, usage[order].astype(np.uint8), code[order], speed[order], best, choice)
        fastest = best.copy()
        state = np.flatnonzero(needed_parts(states.digits, states.stride, best))
        state = state[np.argsort(-fastest[state], kind="stable")]
        return _Parts(states, state, states.digits[state], fastest[state], choice, code[order], mine[order])

    def front(self, region: int, prices: PartPrices) -> tuple[Ints, Floats]:
        """int64 (n,): parts that none that serves as much undercuts, those that serve least first; and what they weigh."""
        from coralopt.allocation.bounds.parts_kernel import lightest_parts

        kinds, cuts = self.states.kinds, [item for item in prices.cuts if item[0].regions == (region,)]
        weights = np.zeros((len(cuts), prices.node.shape[1]), dtype=np.int64)
        for k, (cut, _) in enumerate(cuts):
            weights[k, list(cut.configurations or ())] = cut.gpus
        of_cuts = (
            np.ascontiguousarray(weights[:, kinds]),
            np.array([cut.divisor for cut, _ in cuts], dtype=np.int64),
            np.array([cut.remainder for cut, _ in cuts], dtype=np.int64),
            np.array([price for _, price in cuts], dtype=np.float64),
        )
        front, weight = np.empty(len(self.state), dtype=np.int64), np.empty(len(self.state))
        node, most = prices.node[region, kinds], prices.most[region, kinds]
        count = lightest_parts(self.use, node, most, of_cuts, front, weight)
        return front[:count][::-1].copy(), weight[:count][::-1].copy()

    def members(self, part: int) -> list[int]:
        """The columns of its instances."""
        state, members = int(self.state[part]), list[int]()
        while state > 0:
            item = int(self.choice[state])
            members.append(int(self.item_column[item]))
            state -= int(self.item_state[item])
        return members


@dataclass(frozen=True, eq=False)
class _Front:
    """Parts of a region that none that serves as much undercuts, those that serve least first.

    Attributes:
        parts: All parts of the region.
        part: int64 (n,), which of them these are.
        steps: int64 (n,), steps of the demand that they serve.
        weight: float64 (n,), USD/h.
    """

    parts: _Parts
    part: Ints
    steps: Ints
    weight: Floats


def _put_together(fronts: Sequence[_Front], rest: Floats, limit: float) -> LightestCovering:
    """The lightest covering of one part a region; none where all are heavier than the limit."""
    # Imported here: compiled code is dear to load and most commands never need it.
    from coralopt.allocation.bounds.parts_kernel import with_region

    grid = len(rest) - 1
    table = np.full(grid + 1, np.inf)
    table[0] = 0.0
    taken: list[tuple[Ints, Ints]] = []
    for front in fronts:
        came, choice = np.zeros(grid + 1, dtype=np.int64), np.zeros(grid + 1, dtype=np.int64)
        table = with_region(table, rest, limit, (front.steps, front.weight), came, choice)
        taken.append((came, choice))
    if not table[grid] <= limit or np.isinf(table[grid]):
        return LightestCovering(limit, {})
    counts, amount = dict[int, int](), grid
    for front, (came, choice) in zip(reversed(fronts), reversed(taken), strict=True):
        part = int(choice[amount])
        amount = int(came[amount])
        for column in front.parts.members(int(front.part[part])):
            counts[column] = counts.get(column, 0) + 1
    return LightestCovering(float(table[grid]), counts)
