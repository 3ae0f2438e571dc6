r"""Side constraints: what operators ask for beyond demand and capacity, as named linear rows over the instance counts.

A side constraint adds up a *measure* of all instances within its *scope* (model phases, regions, node configurations)
and holds the sum to at most or at least a bound::

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
quota                   most  ``gpus``       everything, one region or one model's phases; GPUs of one type, over the
                                             configurations that have it
forbidden pair          most  ``instances``  one model phase, instances that use some configuration; 0
surviving an instance   least ``tokens_s``   one model phase, everywhere, less the largest instance (``one_lost``); a share
                                             x of the phase's demand
starting before         most  ``new_nodes``  one region and configuration: nodes of instances that do not run yet; what is
stopping                                     free beside all that run
nodes in use           least ``used_nodes`` one region and configuration; the search's own, see below
======================= ===== ============== =======================================================================

A side constraint names what it measures instead of listing coefficients, so it stays true when templates are dropped,
clipped or cut into parts. Which measures a sense may have is chosen so that the exact reductions hold with any side
constraints:

- *Dominance* replaces an instance by one of the same phase and region with no more nodes of any kind and no less
  throughput. Nodes, GPUs, USD/h and uses of some configuration cannot grow by that, instances stay as many, tokens/s cannot
  fall. So "most" ones measure nodes, GPUs, USD/h or instances, "least" ones instances or tokens/s of all configurations.
  Templates that run stay, so new nodes cannot grow either. Whichever instance is lost, the others give no less.
- *Clipping* T to the demand: one of x T_m with x <= 1 holds by one instance of T >= T_m with and without.
- *Lagrangian bounds*: leaving one out, or moving it into the objective at any price mu >= 0, leaves a bound.
- Nodes in use would break dominance: the search asks for them when it branches on reduced problems
  (:mod:`coralopt.allocation.search.node_counts`), and problems that have such a constraint are not reduced.
- One of "most 0" of instances or nodes is a *ban*: its columns never exist, and no row is left.

Losing the largest instance is not linear: sum T nu - max {T(tau): nu > 0} >= x T_m. Models add columns for the largest
instance, and bounds by coverings know it whole (:mod:`coralopt.allocation.bounds.lagrangian`). Linear programmes and prices
see a row that every allocation meets which survives, :meth:`SideConstraint.linear_coefficients`::

    sum t D / (t + D) nu >= D        D = x T_m,  t = min(T, D)

Let l be the largest t. The others give at least D, so sum t nu >= D + l, and no t is above l: sum t D / (t + D) nu is at
least sum t nu D / (l + D). It is exact for equal instances of D / k tokens/s each. Where only a share y of D must survive,
it holds with y D on the right: the sum is at least (y D + l) D / (l + D) >= y D.

Unmet demand s_m (see :mod:`coralopt.allocation.problem`) counts in a constraint of tokens/s with its share: the planned rest
T_m - s_m must survive, x (T_m - s_m) <= sum T nu over the other regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from coralopt.allocation.joint import Joint
from coralopt.allocation.supply import Segments
from coralopt.errors import SolverError
from coralopt.types import Bools, Floats, Ints

Measure = Literal["instances", "nodes", "new_nodes", "used_nodes", "gpus", "usd_h", "tokens_s"]


@dataclass(frozen=True)
class SideConstraint:
    """One of them; the module docstring has its mathematics.

    Attributes:
        name: What messages and models call it, for example ``"budget"`` or ``"nodes of us-east-2"``; unique.
        sense: ``"most"`` or ``"least"``.
        measure: What one instance adds.
        bound: In units of the measure; for ``"tokens_s"`` a share of the demand of its one phase, 0 to 1.
        phases: Model phases in scope, all when ``None``.
        regions: Regions in scope, all when ``None``.
        configurations: Instances that use any of these, all when ``None``; nodes are counted of these only.
        gpus: For ``"gpus"`` what one node of each of ``configurations`` has, at least 1.
        one_lost: For ``"tokens_s"``: must be left whichever single instance is lost.
    """

    name: str
    sense: Literal["most", "least"]
    measure: Measure
    bound: float
    phases: tuple[int, ...] | None = None
    regions: tuple[int, ...] | None = None
    configurations: tuple[int, ...] | None = None
    gpus: tuple[int, ...] = ()
    one_lost: bool = False

    @property
    def is_ban(self) -> bool:
        """Whether nothing in its scope may run at all."""
        return self.sense == "most" and self.bound == 0 and self.measure in ("instances", "nodes", "gpus")

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

    def lost_region(self, regions: int) -> int | None:
        """The region whose loss it is about: it asks for tokens/s of all others; ``None`` for any other constraint."""
        if self.measure != "tokens_s" or self.regions is None:
            return None
        lost = set(range(regions)) - set(self.regions)
        return lost.pop() if len(lost) == 1 else None

    @property
    def sign(self) -> float:
        """1 for "most", -1 for "least": how its price enters a reduced cost."""
        return 1.0 if self.sense == "most" else -1.0

    def limit(self, problem: Measured) -> float:
        """The right-hand side in the units of the measure."""
        if self.measure != "tokens_s":
            return self.bound
        assert self.phases is not None
        return self.bound * float(problem.demand[self.phases[0]])

    def covers(self, problem: Measured, template: Ints, region: Ints) -> Bools:
        """bool (n,): which pairs are in scope."""
        inside = np.ones(len(template), dtype=np.bool_)
        if self.phases is not None:
            mine = np.isin(problem.phase, self.phases)
            mine[problem.joint.template[np.isin(problem.joint.phase, self.phases)]] = True
            inside &= mine[template]
        if self.regions is not None:
            inside &= np.isin(np.arange(len(problem.price)), self.regions)[region]
        if self.configurations is not None:
            usage, place = usage_once(problem, template)
            inside &= usage[:, list(self.configurations)].max(axis=1, initial=0)[place] > 0
        return inside

    def total(self, problem: Measured, template: Ints, region: Ints, count: Ints) -> float:
        """What so many instances of each (template, region) pair, every pair once, add up to."""
        each = self.coefficients(problem, template, region)
        if self.measure == "new_nodes" and problem.running is not None:
            count = np.maximum(0, count - problem.running[template, region])
        return float(each @ count) - (float(each[count > 0].max(initial=0.0)) if self.one_lost else 0.0)

    def coefficients(self, problem: Measured, template: Ints, region: Ints, kept: Bools | None = None) -> Floats:
        """float64 (n,): what one instance of each (template, region) pair adds; of those ``kept`` no node is new."""
        inside = self.covers(problem, template, region)
        if self.measure == "new_nodes" and kept is not None:
            inside &= ~kept
        if self.measure == "instances":
            # A replica that serves nothing is none.
            counts = inside
            if self.sense == "least":
                counts = (
                    inside
                    & (problem.rates(range(len(problem.demand)) if self.phases is None else self.phases) > 0)[template]
                )
            return counts.astype(np.float64)
        if self.measure == "tokens_s":
            return np.where(inside, problem.rates(self.phases or ())[template], 0.0)
        usage, place = usage_once(problem, template)
        if self.measure == "gpus":
            counted = usage[:, list(self.configurations or ())] @ np.array(self.gpus, dtype=np.float64)
            return np.where(inside, counted[place], 0.0)
        if self.measure in ("nodes", "new_nodes", "used_nodes"):
            usage = usage if self.configurations is None else usage[:, list(self.configurations)]
            return np.where(inside, usage.sum(axis=1, dtype=np.float64)[place], 0.0)
        price = problem.segments.base if self.is_rent else problem.price
        each = usage.astype(np.float64) @ np.nan_to_num(price).T
        return np.where(inside, each[place, region], 0.0)

    def linear_coefficients(self, problem: Measured, template: Ints, region: Ints, kept: Bools | None = None) -> Floats:
        """float64 (n,): those of the linear row that stands for it, with the same bound; see the module docstring."""
        each, limit = self.coefficients(problem, template, region, kept), self.limit(problem)
        if not self.one_lost:
            return each
        counted = np.minimum(each, limit)
        return counted * limit / np.maximum(counted + limit, np.finfo(np.float64).tiny)


def usage_once(problem: Measured, template: Ints) -> tuple[npt.NDArray[np.int16], Ints]:
    """Nodes of the templates of pairs, int16 (k, C), and the place of every pair among them, int64 (n,).

    Few pairs are asked for often, and looking at all templates would take longer than all else.
    """
    if len(template) >= len(problem.usage):
        return problem.usage, template
    templates, place = np.unique(template, return_inverse=True)
    return problem.usage[templates], place


class Measured(Protocol):
    """What side constraints measure, as :class:`coralopt.allocation.AllocationProblem` says it."""

    @property
    def usage(self) -> npt.NDArray[np.int16]:
        """int16 (T, C), nodes of a template."""

    @property
    def throughput(self) -> Floats:
        """float64 (T,), tokens/s of a template."""

    @property
    def phase(self) -> npt.NDArray[np.int32]:
        """int32 (T,), first model phase of a template."""

    @property
    def joint(self) -> Joint:
        """What templates serve beside it."""

    def rates(self, phases: Sequence[int]) -> Floats:
        """float64 (T,), tokens/s of a template in any of these model phases."""

    @property
    def demand(self) -> Floats:
        """float64 (P,), tokens/s."""

    @property
    def price(self) -> Floats:
        """float64 (R, C), USD per node-hour."""

    @property
    def running(self) -> Ints | None:
        """int64 (T, R), instances that run already."""

    @property
    def segments(self) -> Segments:
        """The supply in pieces."""

    @property
    def side_constraints(self) -> tuple[SideConstraint, ...]:
        """All of them, bans too."""


def open_constraints(problem: Measured) -> tuple[SideConstraint, ...]:
    """Those that a model needs a row for: all but bans."""
    return tuple(constraint for constraint in problem.side_constraints if not constraint.is_ban)


def banned(problem: Measured) -> Bools:
    """bool (T, R): pairs that may not run."""
    mask = np.zeros((len(problem.throughput), len(problem.price)), dtype=np.bool_)
    template, region = np.nonzero(~mask)
    for constraint in problem.side_constraints:
        if constraint.is_ban:
            mask |= constraint.covers(problem, template, region).reshape(mask.shape)
    return mask


@dataclass(frozen=True, eq=False)
class SidePrices:
    """Open side constraints at prices of their own, moved into the objective.

    Attributes:
        problem: The problem.
        prices: float64 (S,), USD/h for one more unit of every bound, at least 0.
    """

    problem: Measured
    prices: Floats

    def _priced(self) -> list[tuple[SideConstraint, float]]:
        pairs = zip(open_constraints(self.problem), self.prices.tolist(), strict=True)
        return [(constraint, price) for constraint, price in pairs if price]

    def terms(self, template: Ints, region: Ints, kept: Bools) -> Floats:
        """float64 (n,): what they add to the reduced cost of each (template, region) pair, of those kept or new."""
        total = np.zeros(len(template))
        for constraint, price in self._priced():
            total += constraint.sign * price * constraint.linear_coefficients(self.problem, template, region, kept)
        return total

    def rent_factor(self) -> Floats:
        """float64 (R,): 1 plus the prices of the limits on rent that hold in each region."""
        factor = np.ones(len(self.problem.price))
        for constraint, price in self._priced():
            if constraint.is_rent:
                factor[slice(None) if constraint.regions is None else list(constraint.regions)] += price
        return factor

    def unmet_worth(self) -> Floats:
        """float64 (P,): what a token/s of unmet demand is worth in those of tokens/s, USD/h."""
        worth = np.zeros(len(self.problem.demand))
        for constraint, price in self._priced():
            if constraint.measure == "tokens_s":
                assert constraint.phases is not None
                worth[constraint.phases[0]] += price * constraint.bound
        return worth

    def worth(self) -> float:
        """What their right-hand sides add to a bound, USD/h."""
        terms = (-constraint.sign * price * constraint.limit(self.problem) for constraint, price in self._priced())
        return float(sum(terms))


def refuse_bad_constraints(problem: Measured) -> None:
    """Side constraints that do not fit the problem, or that reductions would not keep.

    Raises:
        SolverError: Says which one and why.
    """
    names = [constraint.name for constraint in problem.side_constraints]
    regions, configurations = problem.price.shape
    for item in problem.side_constraints:
        what = f"side row {item.name!r}"
        if names.count(item.name) > 1:
            raise SolverError(f"{what}: two rows have this name")
        most = ("instances", "nodes", "new_nodes", "gpus", "usd_h")
        allowed = most if item.sense == "most" else ("instances", "tokens_s", "used_nodes")
        if item.measure not in allowed:
            raise SolverError(f"{what}: '{item.sense}' rows measure {', '.join(allowed)}, not {item.measure}")
        if not np.isfinite(item.bound) or item.bound < 0:
            raise SolverError(f"{what}: its bound is {item.bound}; it must be a number of at least 0")
        if item.measure == "tokens_s" and (item.phases is None or len(item.phases) != 1 or item.bound > 1):
            raise SolverError(f"{what}: rows of tokens/s have one model phase and a share of 0 to 1 as bound")
        if item.one_lost and (item.measure != "tokens_s" or item.regions is not None):
            raise SolverError(f"{what}: only tokens/s of all regions can be asked for beside the loss of one instance")
        least = item.sense == "least" and item.measure != "used_nodes"
        if item.configurations is not None and (least or item.measure == "usd_h"):
            raise SolverError(f"{what}: only limits on nodes or instances may name configurations")
        if item.measure == "gpus" and (
            len(item.gpus) != len(item.configurations or ()) or min(item.gpus, default=0) < 1
        ):
            raise SolverError(f"{what}: it counts GPUs, and must say how many each of its configurations has")
        sizes = len(problem.demand), regions, configurations
        for scope, size in zip((item.phases, item.regions, item.configurations), sizes, strict=True):
            if scope is not None and not all(0 <= k < size for k in scope):
                raise SolverError(f"{what}: its scope {scope} must lie in 0..{size - 1}")
