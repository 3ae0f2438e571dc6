"""The allocation problem and its answer: how many of each serving template to deploy in each region."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from coralopt.allocation.joint import Joint, refuse_bad_joint
from coralopt.allocation.routes import ModelRoutes, Pools, pools_of, refuse_bad_routes
from coralopt.allocation.side_constraints import SideConstraint, banned, refuse_bad_constraints
from coralopt.allocation.supply import Segments, SupplyClass, refuse_bad_supply, segments_of
from coralopt.errors import SolverError
from coralopt.solving import AttachedProblem
from coralopt.types import Floats, Ints

Number = TypeVar("Number", np.int16, np.int32, np.int64)


@dataclass(frozen=True, eq=False)
class Allocation:
    """Instances of templates in regions; only the positive counts, sorted by template, then region.

    Attributes:
        template: int64 (k,), rows of ``AllocationProblem.usage``.
        region: int64 (k,).
        count: int64 (k,), the paper's nu.
    """

    template: Ints
    region: Ints
    count: Ints

    @staticmethod
    def of(counts: Mapping[tuple[int, int], int]) -> Allocation:
        """From (template, region) -> count; zeros are left out."""
        items = sorted((place, count) for place, count in counts.items() if count)
        return Allocation(
            template=np.array([place[0] for place, _ in items], dtype=np.int64),
            region=np.array([place[1] for place, _ in items], dtype=np.int64),
            count=np.array([count for _, count in items], dtype=np.int64),
        )

    @staticmethod
    def sum_of(first: Allocation, second: Allocation) -> Allocation:
        """Both together."""
        total = first.to_mapping()
        for place, count in second.to_mapping().items():
            total[place] = total.get(place, 0) + count
        return Allocation.of(total)

    def to_mapping(self) -> dict[tuple[int, int], int]:
        """(template, region) -> count."""
        return {(int(t), int(r)): int(n) for t, r, n in zip(self.template, self.region, self.count, strict=True)}


@dataclass(frozen=True, eq=False)
class AllocationProblem(AttachedProblem[Allocation]):
    """Meet every demand at least cost from what the regions offer (paper section 4.3).

    Beyond the paper: nodes may come in supply classes (:mod:`coralopt.allocation.supply`), named side constraints hold
    (:mod:`coralopt.allocation.side_constraints`), requests may go by routes that have prices
    (:mod:`coralopt.allocation.routes`), and demand may go unmet at a price. Requests that are not served need none
    of their phases, so phases that belong together share one column: with sigma_g in [0, 1] the unmet share of group g the
    demand rows are ``sum T nu + T_m sigma_g(m) >= T_m`` and the cost has ``sum_m price_m T_m sigma_g(m)`` on top.

    Attributes:
        usage: int16 (T, C), nodes of each configuration a template needs, U_c.
        throughput: float64 (T,), tokens/s of a template.
        phase: int32 (T,), model phase a template serves, index into ``demand``.
        demand: float64 (P,), tokens/s, T_m.
        availability: int64 (R, C), nodes, A_r(c).
        price: float64 (R, C), USD per node-hour, p_r(c); NaN only where availability is 0.
        running: int64 (T, R), instances that run already, nu', or ``None``.
        penalty: K, dimensionless: an added instance costs (1 + K) times its price.
        phase_names: P names for messages.
        region_names: R names.
        configuration_names: C names.
        supply: Classes of nodes at prices of their own; the rest of the availability is on demand at ``price``.
        side_constraints: Side constraints.
        unmet_price: float64 (P,), USD/h for one token/s of unmet demand, infinite where all must be met; or ``None``
            when all must be met everywhere.
        unmet_tiers: Of every phase (share of the demand, factor on its price) in the order in which demand goes unmet:
            factors ascend, the last share is 1: the rest. Empty: one price for all. Alike for phases that go together.
        unmet_together: Groups of model phases whose demand goes unmet in equal shares; others go alone.
        routes: Models whose requests may not go from any instance to any other for nothing.
        start_penalty: float64 (T,), K of each template, in place of ``penalty``; or ``None``.
        joint: What templates serve beside their ``phase`` (:mod:`coralopt.allocation.joint`).

    Raises:
        SolverError: The parts do not fit together; says which value, where.
    """

    usage: npt.NDArray[np.int16]
    throughput: Floats
    phase: npt.NDArray[np.int32]
    demand: Floats
    availability: Ints
    price: Floats
    running: Ints | None
    penalty: float
    phase_names: tuple[str, ...]
    region_names: tuple[str, ...]
    configuration_names: tuple[str, ...]
    supply: tuple[SupplyClass, ...] = ()
    side_constraints: tuple[SideConstraint, ...] = ()
    unmet_price: Floats | None = None
    unmet_together: tuple[tuple[int, ...], ...] = ()
    routes: tuple[ModelRoutes, ...] = ()
    start_penalty: Floats | None = None
    joint: Joint = field(default_factory=Joint)
    unmet_tiers: tuple[tuple[tuple[float, float], ...], ...] = ()

    kind: ClassVar[str] = "allocation"
    sense: ClassVar[Literal["min", "max"]] = "min"
    default_formulation: ClassVar[str] = "split"

    def __post_init__(self) -> None:
        self._set("usage", _whole("usage", self.usage, np.int16))
        self._set("throughput", np.asarray(self.throughput, dtype=np.float64))
        self._set("phase", _whole("phase", self.phase, np.int32))
        self._set("demand", np.asarray(self.demand, dtype=np.float64))
        self._set("availability", _whole("availability", self.availability, np.int64))
        self._set("price", np.asarray(self.price, dtype=np.float64))
        if self.running is not None:
            self._set("running", _whole("running", self.running, np.int64))
        if self.usage.ndim != 2:
            raise SolverError(f"usage has shape {self.usage.shape}, expected (templates, configurations)")
        templates, configurations = self.usage.shape
        regions, phases = len(self.region_names), len(self.phase_names)
        for name, array, shape in (
            ("throughput", self.throughput, (templates,)),
            ("phase", self.phase, (templates,)),
            ("demand", self.demand, (phases,)),
            ("availability", self.availability, (regions, configurations)),
            ("price", self.price, (regions, configurations)),
        ):
            if array.shape != shape:
                raise SolverError(f"{name} has shape {array.shape}, expected {shape}")
        if len(self.configuration_names) != configurations:
            raise SolverError(
                f"configuration_names has {len(self.configuration_names)} entries, usage has {configurations} columns"
            )
        if self.running is not None:
            if self.running.shape != (templates, regions):
                raise SolverError(f"running has shape {self.running.shape}, expected {(templates, regions)}")
            if (self.running < 0).any():
                t, r = np.argwhere(self.running < 0)[0]
                raise SolverError(
                    f"running of template {t} in {self.region_names[r]} is {self.running[t, r]}; "
                    "it must not be negative"
                )
        for name, values in (("throughput", self.throughput), ("demand", self.demand)):
            wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
            if len(wrong):
                k = int(wrong[0])
                whose = f"template {k}" if name == "throughput" else self.phase_names[k]
                raise SolverError(f"{name} of {whose} is {values[k]} tokens/s; it must be finite and not negative")
        if self.usage.min(initial=0) < 0 or not self.usage.any(axis=1).all():
            t = int(np.argmax((self.usage < 0).any(axis=1) | ~self.usage.any(axis=1)))
            raise SolverError(
                f"usage of template {t} is {self.usage[t].tolist()}; counts must not be negative, not all 0"
            )
        if templates and (self.phase.min() < 0 or self.phase.max() >= phases):
            t = int(np.argmax((self.phase < 0) | (self.phase >= phases)))
            raise SolverError(f"phase of template {t} is {self.phase[t]}; it must lie in 0..{phases - 1}")
        refuse_bad_joint(self.joint, self.phase, phases)
        if len(self.joint) and (self.start_penalty is not None or any(row.one_lost for row in self.side_constraints)):
            raise SolverError(
                "templates of several phases know neither start costs of their own nor the loss of an instance"
            )
        if self.joint.divided and (self.routes or any(row.measure == "tokens_s" for row in self.side_constraints)):
            raise SolverError(
                "templates whose time is divided know neither routes nor tokens/s that must survive a loss"
            )
        if (self.availability < 0).any():
            r, c = np.argwhere(self.availability < 0)[0]
            raise SolverError(
                f"availability of {self.configuration_names[c]} in {self.region_names[r]} is {self.availability[r, c]}; "
                "it must not be negative"
            )
        bad = np.argwhere((self.availability > 0) & ~(np.isfinite(self.price) & (np.nan_to_num(self.price) >= 0)))
        if len(bad):
            r, c = bad[0]
            raise SolverError(
                f"price of {self.configuration_names[c]} in {self.region_names[r]} is {self.price[r, c]} USD/h; "
                "an available configuration needs a price of at least 0"
            )
        if not np.isfinite(self.penalty) or self.penalty < 0:
            raise SolverError(f"penalty K is {self.penalty}; it must be a number of at least 0")
        if self.start_penalty is not None:
            self._set("start_penalty", np.asarray(self.start_penalty, dtype=np.float64))
            fits = self.start_penalty.shape == (templates,)
            if not fits or not (np.isfinite(self.start_penalty) & (self.start_penalty >= 0)).all():
                raise SolverError(f"start_penalty must be {templates} numbers of at least 0")
        if self.unmet_price is not None:
            self._set("unmet_price", np.asarray(self.unmet_price, dtype=np.float64))
            if self.unmet_price.shape != (phases,) or not (self.unmet_price >= 0).all():
                raise SolverError(
                    f"unmet_price is {self.unmet_price.tolist()}; it must be {phases} numbers of at least 0"
                )
        if self.unmet_tiers:
            self._refuse_bad_tiers()
        together = [p for group in self.unmet_together for p in group]
        if len(set(together)) < len(together) or not all(0 <= p < phases for p in together):
            raise SolverError(f"unmet_together is {self.unmet_together}; each phase of 0..{phases - 1} once at most")
        for group in self.unmet_together:
            if len({bool(np.isfinite(self.unmet_prices()[p])) for p in group}) > 1:
                names = ", ".join(self.phase_names[p] for p in group)
                raise SolverError(f"{names} go unmet together, so all or none of them must have a price")
        if self.joint.divided and self.unmet_price is not None:
            alone = [p for p in range(phases) if p not in together]
            owner = {p: g for g, group in enumerate((*self.unmet_together, *((p,) for p in alone))) for p in group}
            for t, p in zip(self.joint.template.tolist(), self.joint.phase.tolist(), strict=True):
                if owner[p] != owner[int(self.phase[t])]:
                    raise SolverError(f"template {t} divides its time among phases that do not go unmet together")
        refuse_bad_routes(
            self.routes,
            self.demand,
            regions,
            [group for group, _, _ in self.unmet_groups()],
            {p for item in self.side_constraints if item.measure == "tokens_s" for p in item.phases or ()},
        )
        refuse_bad_supply(self, self.region_names, self.configuration_names)
        refuse_bad_constraints(self)

    def _refuse_bad_tiers(self) -> None:
        if self.routes or any(row.measure == "tokens_s" for row in self.side_constraints):
            raise SolverError("unmet_tiers go with phases without routes, and no share of them may be asked to survive")
        fits = len(self.unmet_tiers) == len(self.demand)
        for tiers in self.unmet_tiers:
            factors = [factor for _, factor in tiers]
            fits = fits and bool(tiers) and factors[0] >= 0 and factors == sorted(factors) and tiers[-1][0] == 1
            fits = fits and all(0 < share <= 1 for share, _ in tiers)
        if not fits:
            raise SolverError(f"unmet_tiers is {self.unmet_tiers}; factors must ascend, and the last share be 1")

    def _set(self, name: str, value: object) -> None:
        # The dataclass is frozen; the arrays it was given only change their dtype.
        object.__setattr__(self, name, value)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(templates, regions, configurations, model phases)."""
        return len(self.throughput), *self.price.shape, len(self.demand)

    @property
    def plain(self) -> bool:
        """Whether coverings of its phases, and the nodes that they take, say all of it, but for routes without choice.

        One class of nodes, one phase a template, all demand met, no side constraints but bans, and the loss of an instance
        of phases without routes.
        """
        choice = any(model.has_choice for model in self.routes)
        routed = {p for model in self.routes for p in model.phases}
        simple = (row.is_ban or (row.one_lost and not routed & set(row.phases or ())) for row in self.side_constraints)
        return not (self.supply or choice or self.unmet_price is not None or len(self.joint)) and all(simple)

    @cached_property
    def penalties(self) -> Floats:
        """float64 (T,): K of each template."""
        return np.full(len(self.throughput), self.penalty) if self.start_penalty is None else self.start_penalty

    @cached_property
    def largest(self) -> Floats:
        """float64 (P,): tokens/s of the largest instance of each model phase; 0 where there is none."""
        largest = np.zeros(len(self.demand))
        np.maximum.at(largest, self.phase, self.throughput)
        return largest

    @cached_property
    def spared(self) -> Floats:
        """float64 (P,): share of each demand that must be served whichever single instance is lost."""
        share = np.zeros(len(self.demand))
        for row in self.side_constraints:
            if row.one_lost and row.phases is not None:
                share[list(row.phases)] = np.maximum(share[list(row.phases)], row.bound)
        return share

    @cached_property
    def replicas(self) -> Ints:
        """int64 (P,): least number of instances of each phase."""
        least = np.zeros(len(self.demand), dtype=np.int64)
        for row in self.side_constraints:
            if row.is_replicas and row.phases is not None:
                least[row.phases[0]] = max(int(least[row.phases[0]]), math.ceil(row.bound))
        return least

    @cached_property
    def surviving(self) -> Floats:
        """float64 (P, R): share of each demand that must be left without each region, where coverings know it whole.

        They do for phases without routes that are served whole.
        """
        regions = len(self.region_names)
        share = np.zeros((len(self.demand), regions))
        routed = {p for model in self.routes for p in model.phases}
        for row in self.side_constraints if regions > 1 else ():
            p, lost = (row.phases or (0,))[0], row.lost_region(regions)
            whole = self.demand[p] > 0 and p not in routed and np.isinf(self.unmet_prices()[p])
            if lost is not None and whole:
                share[p, lost] = max(share[p, lost], row.bound)
        return share

    def inside(self, row: SideConstraint) -> bool:
        """Whether coverings meet a side constraint by themselves, so that no row or price asks for it."""
        lost = row.lost_region(len(self.region_names))
        if row.is_replicas:
            p = (row.phases or (0,))[0]
            routed = any(p in model.phases for model in self.routes)
            return bool(self.demand[p] > 0) and not routed and not self.surviving[p].any()
        return row.one_lost or (
            lost is not None and bool(self.surviving[(row.phases or (0,))[0], lost] >= row.bound > 0)
        )

    def counted(self, row: SideConstraint) -> bool:
        """Whether it asks for replicas of a phase that may lose a region: those coverings do not count, so they pay."""
        return row.is_replicas and bool(self.surviving[(row.phases or (0,))[0]].any())

    def unstarted(self) -> AllocationProblem:
        """Where money does not count it hardly matters what runs already: without it, but where it decides what fits."""
        starts = any(row.measure == "new_nodes" for row in self.side_constraints)
        return self if starts else replace(self, running=None)

    @property
    def adds_up(self) -> bool:
        """Whether all but demand allows at most so much of sums over instances: rows like capacity.

        Where nodes of a kind have several prices, limits on rent are no such sums, and what may be lost, or is asked for at
        least, is settled sooner by programmes over the columns.
        """
        routed = {p for model in self.routes for p in model.phases}
        known = (row.sense == "most" or self.inside(row) or self.counted(row) for row in self.side_constraints)
        dearer = bool(self.supply) and any(row.is_rent or row.sense == "least" for row in self.side_constraints)
        spared = {p for row in self.side_constraints if row.one_lost for p in row.phases or ()}
        both = spared & set(np.flatnonzero(self.surviving.any(axis=1)).tolist())
        unmet = set(np.flatnonzero(np.isfinite(self.unmet_prices())).tolist())
        return not dearer and all(known) and not (spared & routed or both or unmet & (spared | routed))

    def rates(self, phases: Sequence[int]) -> Floats:
        """float64 (T,): tokens/s of a template in any of these model phases."""
        rates = np.where(np.isin(self.phase, phases), self.throughput, 0.0)
        inside = np.isin(self.joint.phase, phases)
        np.add.at(rates, self.joint.template[inside], self.joint.throughput[inside])
        return rates

    def with_throughputs(self, change: Callable[[Floats, npt.NDArray[np.int32]], Floats]) -> AllocationProblem:
        """With other throughputs: ``change`` makes them of tokens/s and model phases, entry by entry."""
        joint = replace(self.joint, throughput=change(self.joint.throughput, self.joint.phase))
        return replace(self, throughput=change(self.throughput, self.phase), joint=joint)

    @cached_property
    def pools(self) -> Pools:
        """Where throughput adds up: one pool a model phase, or one for each of its regions where routes say so."""
        return pools_of(self.routes, self.demand, len(self.region_names))

    def leading_phases(self) -> Ints:
        """int64 (g,): model phases with demand, of those that routes or unmet demand tie together only the first."""
        tied = {p for model in self.routes for p in model.phases[1:]}
        for group, _, _ in self.unmet_groups():
            tied |= set([p for p in group if self.demand[p] > 0][1:])
        return np.array([p for p in np.flatnonzero(self.demand > 0).tolist() if p not in tied], dtype=np.int64)

    def needed_phases(self) -> tuple[int, ...]:
        """Model phases with demand that every request must pass, ascending."""
        optional = {p for model in self.routes for p in set(model.phases) - set(model.necessary)}
        return tuple(p for p in np.flatnonzero(self.demand > 0).tolist() if p not in optional)

    def scaled(self, demand: Floats, factor: float) -> AllocationProblem:
        """With this demand, which is so many times the present one."""
        return replace(self, demand=demand, routes=tuple(model.scaled(factor) for model in self.routes))

    @cached_property
    def segments(self) -> Segments:
        """The supply in pieces of one price each."""
        return segments_of(self)

    def unmet_prices(self) -> Floats:
        """float64 (P,): USD/h for one token/s of unmet demand, infinite where all must be met."""
        return np.full(len(self.demand), np.inf) if self.unmet_price is None else self.unmet_price

    def unmet_usd_h(self, prices: Floats | None = None) -> Floats:
        """float64 (P,): USD/h for all demand of a phase, infinite where it must be met; at other ``prices`` if given."""
        prices = self.unmet_prices() if prices is None else prices
        usd_h, priced = np.full(len(prices), np.inf), np.isfinite(prices)
        usd_h[priced] = prices[priced] * self.demand[priced]
        return usd_h

    def tiers_of(self, phase: int) -> tuple[tuple[float, float], ...]:
        """(share of the demand, factor on its price), cheapest first."""
        return self.unmet_tiers[phase] if self.unmet_tiers else ((1.0, 1.0),)

    def unmet_groups(self) -> tuple[tuple[tuple[int, ...], float, float], ...]:
        """Groups of model phases whose demand may go unmet, USD/h of all of it, the share at this price; a column each."""
        price = self.unmet_prices()
        grouped = {p for group in self.unmet_together for p in group}
        groups = [*self.unmet_together, *((p,) for p in range(len(self.demand)) if p not in grouped)]
        return tuple(
            (group, factor * float(sum(price[p] * self.demand[p] for p in group)), share)
            for group in sorted(groups)
            if group and np.isfinite(price[group[0]])
            for share, factor in self.tiers_of(group[0])
        )

    def template_price(self) -> Floats:
        """float64 (T, R): p_r(tau) at list prices, USD/h; NaN where a needed configuration has no price in the region."""
        known = np.nan_to_num(self.price, nan=0.0)
        total = self.usage.astype(np.float64) @ known.T
        missing = (self.usage > 0).astype(np.float64) @ np.isnan(self.price).astype(np.float64).T > 0
        return np.where(missing, np.nan, total)

    def most_instances(self) -> Ints:
        """int64 (T, R): instances of one template that the region's availability alone would allow; 0 where banned."""
        templates, regions = len(self.throughput), len(self.region_names)
        most = np.full((templates, regions), np.iinfo(np.int64).max, dtype=np.int64)
        for c in range(self.usage.shape[1]):
            used = np.flatnonzero(self.usage[:, c])
            if len(used):
                fit = self.availability[:, c][None, :] // self.usage[used, c].astype(np.int64)[:, None]
                most[used] = np.minimum(most[used], fit)
        if any(row.is_ban for row in self.side_constraints):
            most[banned(self)] = 0
        return most


def _whole(name: str, values: npt.ArrayLike, dtype: type[Number]) -> npt.NDArray[Number]:
    """``values`` as whole numbers of ``dtype``; NaN, fractions and numbers too large are refused by name."""
    array = np.asarray(values)
    if array.dtype == dtype:
        return array
    with np.errstate(invalid="ignore"):
        whole: npt.NDArray[Number] = array.astype(dtype)
    wrong = np.argwhere(whole != array)
    if len(wrong):
        place = tuple(int(k) for k in wrong[0])
        raise SolverError(f"{name}{list(place)} is {array[place]}; it must be a whole number within {np.dtype(dtype)}")
    return whole
