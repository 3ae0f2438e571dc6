"""The cheapest plans at what groups and designs were seen to hold, and a lower bound by what they hold at most."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from coralopt.allocation import (
    AllocationProblem,
    AllocationSearchOptions,
    Explanation,
    fewest_gpus,
    solve_or_serve_less,
)
from coralopt.errors import InfeasibleError, NoSolutionError
from coralopt.planning.promise.capacities import PARTS, PRICE_TOLERANCE, Groups, Place
from coralopt.planning.promise.columns import GroupColumns
from coralopt.planning.promise.cover_search import CoverSearch
from coralopt.planning.promise.designs import Design, Designs
from coralopt.planning.promise.group_plan import GroupPlan
from coralopt.planning.promise.refusals import Refusals
from coralopt.planning.request import PlanRequest
from coralopt.templates import TemplateLibrary
from coralopt.types import Floats

#: Further replications a phase in search of any cover, and as many in search of groups that the pool has room for.
FURTHER = 100
#: Ways to serve all models that are tried, at most.
MOST_WAYS = 60
#: Allocations at what groups hold at most, at most; how many may come without a rise of the bound that is worth them;
#: columns of one.
MOST_BOUNDS, WORTH, PATIENCE, MOST_COLUMNS = 40, 1e-3, 4, 20_000


@dataclass(eq=False)
class CheapestPlans:
    """Plans of groups of which each serves a model phase, and of designs of which each serves a model.

    Attributes:
        request: What to plan.
        base: The allocation problem over single templates.
        library: These templates.
        price: float64 (J,) a model phase, USD/h of each group wherever it is cheapest.
        covers: Closes the covers of phases; has the groups.
        designs: Of each model; has the ways in which it may be served.
        refusals: What to say where nothing holds a phase.
        chosen: Designs that plans may have.
        replications_left: For groups that the pool has room for.
        node_prices: float64 (R, C), USD/h of a node beside its price, of the last allocation at what groups hold at most.
    """

    request: PlanRequest
    base: AllocationProblem
    library: TemplateLibrary
    price: Sequence[Floats]
    covers: CoverSearch
    designs: Designs
    refusals: Refusals
    chosen: Sequence[Design] = ()
    replications_left: float = field(init=False)
    node_prices: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.replications_left = FURTHER * len(self.groups)
        self.node_prices = np.zeros(self.base.availability.shape)

    @property
    def groups(self) -> Sequence[Groups]:
        """Groups of every model phase."""
        return self.covers.groups

    @property
    def gap(self) -> float:
        """The gap that is asked for, as a share of the cost."""
        return self.request.solve_options.rel_gap or 0.0

    def plan(self, cuts: frozenset[Place]) -> GroupPlan:
        """The cheapest plan at what groups were seen to hold, without those that were cut."""
        prices, designs = self.open_(cuts)
        ways = self._ways(designs)
        self._look(prices, ways, may_refuse=not cuts)
        while True:
            try:
                return self.by_ways(prices, designs)
            except (InfeasibleError, NoSolutionError):
                # What was looked at finds no room: look at what the best of all would take.
                best = GroupColumns.of(
                    self.base, self.library, self.groups, "most", [price < math.inf for price in prices]
                )
                before = self.covers.replications
                if not self.covers.settle(self._solve(best).places):
                    raise
                spent = self.covers.replications - before
                self.replications_left -= int(spent.sum())
                if self.replications_left < 0:
                    raise self.refusals.in_vain(int(np.argmax(spent))) from None

    def without(self, cuts: frozenset[Place]) -> GroupPlan | None:
        """The cheapest plan without these groups, ``None`` where there is none."""
        try:
            return self.plan(cuts)
        except (InfeasibleError, NoSolutionError):
            return None

    def by_ways(self, prices: Sequence[Floats], designs: Sequence[Design]) -> GroupPlan:
        """The cheapest plan at what groups were seen to hold, every model served in one way, or by one of its designs.

        Raises:
            InfeasibleError, NoSolutionError: There is none.
        """
        covers = [groups.covers(groups.least, price) for groups, price in zip(self.groups, prices, strict=True)]
        least = {design.model: design.price for design in sorted(designs, key=lambda item: -item.price)}
        combined: list[tuple[float, list[int]]] = [(sum(least.values()), [])]
        for ways in self._ways(designs):
            # The cheapest of all are among those of the cheapest so far.
            longer = (
                (cost + sum(float(covers[p][PARTS]) for p in way), [*phases, *way])
                for cost, phases in combined
                for way in ways
            )
            combined = heapq.nsmallest(MOST_WAYS, longer)
        best: GroupPlan | None = None
        failure: InfeasibleError | NoSolutionError | None = None
        for cost, phases in combined:
            # Without scarce nodes the first is the best; its reasons are given where nothing can be met.
            if (best is not None and cost >= best.cost_usd_h) or (failure is not None and math.isinf(cost)):
                break
            enough = cost * (1 + self.gap + PRICE_TOLERANCE)
            # Mostly there is room for groups of which each phase has its cheapest cover.
            for dearer in (enough - cost, math.inf) if math.isfinite(cost) else (math.inf,):
                columns = GroupColumns.of(
                    self.base,
                    self.library,
                    self.groups,
                    "least",
                    [
                        (price + cover[PARTS - groups.least] <= cover[PARTS] + dearer)
                        & (price < math.inf)
                        & (p in phases)
                        for p, (groups, price, cover) in enumerate(zip(self.groups, prices, covers, strict=True))
                    ],
                    [design.groups for design in designs],
                )
                try:
                    plan = self._solve(columns, seen=True)
                except (InfeasibleError, NoSolutionError) as error:
                    if math.isinf(dearer):
                        failure = failure or error
                    continue
                if best is None or plan.cost_usd_h < best.cost_usd_h:
                    best = plan
                if plan.cost_usd_h <= enough:
                    break
        if best is None:
            assert failure is not None
            raise failure
        gpus = np.array([host.count for host in self.request.scenario.configurations])
        options = self.request.solve_options
        result = fewest_gpus(best.columns.problem, best.served.result, gpus, self.request.backend, options)
        return replace(best, served=replace(best.served, result=result))

    def _look(self, prices: Sequence[Floats], ways: Sequence[tuple[tuple[int, ...], ...]], may_refuse: bool) -> None:
        """Find out what decides the cheapest covers of these ways to serve models.

        Raises:
            ScenarioError: Not even idle instances meet an SLO for the share of requests asked for.
            NoSolutionError: They do, but no group was seen to.
        """
        known = self.covers.tighten({p: prices[p] for p in itertools.chain(*itertools.chain(*ways))})
        for several in ways if may_refuse else ():
            # Nothing holds, or nothing was seen to hold for long: maybe nothing can.
            for end in (0, 1) if len(several) == 1 else (0,):
                hopeless = [[p for p in way if math.isinf(known[p][end])] for way in several]
                if all(hopeless):
                    self.refusals.check_slo(hopeless[0][0])
        unseen = [p for p, (low, high) in known.items() if low < high == math.inf]
        covers = self.covers.workers.map(lambda p: self.covers.tighten_one(p, prices[p], FURTHER, FURTHER), unseen)
        in_vain = {p for p, (_, high) in zip(unseen, covers, strict=True) if math.isinf(high)}
        for several in ways:
            if all(in_vain & set(way) for way in several):
                raise self.refusals.in_vain(min(in_vain & set(several[0])))
        if unseen:
            # What holds them was seen late; cheaper groups may, too.
            self.covers.tighten({p: prices[p] for p in unseen if p not in in_vain})

    def bound(self, cost: float) -> float:
        """A lower bound on every plan of the family, USD/h; groups that decide it are simulated."""
        bound_usd_h, worth, in_vain = 0.0, 0.0, 0
        for _ in range(MOST_BOUNDS):
            pairs = list(zip(self.groups, self.price, strict=True))
            least = [groups.covers(groups.most, price) for groups, price in pairs]
            floor, others = self.designs.least([float(bound[PARTS]) for bound in least])
            bound_usd_h = min(cost, max(floor, bound_usd_h))
            held, _ = self.designs.least(self.costs(held=True))
            if bound_usd_h >= cost * (1 - self.gap) or cost <= held * (1 + self.gap + PRICE_TOLERANCE):
                # Phases do not want each other's nodes, so an allocation would say the same.
                return bound_usd_h
            # What a plan with each group costs at least.
            with_group = [
                price + bound[PARTS - groups.most] + rest
                for (groups, price), bound, rest in zip(pairs, least, others, strict=True)
            ]
            ceiling = min(cost, _smallest(np.concatenate(with_group), MOST_COLUMNS))
            columns = GroupColumns.of(
                self.base, self.library, self.groups, "most", [prices <= ceiling for prices in with_group]
            )
            try:
                plan = self._solve(columns)
            except (InfeasibleError, NoSolutionError):
                # Nothing cheaper than the plan there is, or than what was left out.
                return max(bound_usd_h, ceiling)
            if plan.served.result.state is not None:
                self.node_prices = plan.served.result.state.capacity_prices
            bound_usd_h = max(bound_usd_h, min(ceiling, plan.served.result.bound_usd_h))
            if bound_usd_h >= worth:
                worth, in_vain = bound_usd_h * (1 + WORTH), -1
            in_vain += 1
            if bound_usd_h >= cost * (1 - self.gap) or in_vain >= PATIENCE:
                break
            if not self.tighten_there(plan) and not self.covers.settle(plan.places):
                break
        return bound_usd_h

    def tighten_there(self, plan: GroupPlan) -> bool:
        """Close covers in the regions where a plan has them; whether anything was simulated."""
        regions = plan.served.result.allocation.region.tolist()
        where = {p: region for own, region in zip(plan.chosen, regions, strict=True) for p, _ in own}
        return self.covers.tighten_there({p: self.designs.price[p][:, region] for p, region in where.items()})

    def costs(self, held: bool) -> list[float]:
        """Price of the cheapest groups of each phase that were seen to hold it, or that may, USD/h."""
        pairs = zip(self.groups, self.price, strict=True)
        return [float(groups.covers(groups.least if held else groups.most, price)[PARTS]) for groups, price in pairs]

    def _solve(self, columns: GroupColumns, seen: bool = False) -> GroupPlan:
        options = self.request.solve_options
        try:
            served = solve_or_serve_less(
                columns.problem, "explain", self.request.backend, options, AllocationSearchOptions()
            )
        except InfeasibleError as error:
            reason = error.explanation
            if not isinstance(reason, Explanation):
                raise
            if reason.needed and seen:
                # Others than these groups may cost less.
                within = ", ".join(reason.needed)
                raise InfeasibleError(f"no groups that were simulated meet every demand within {within}") from error
            # Groups that were not looked at yet may hold less.
            raise InfeasibleError(str(reason.optimistic()), reason.optimistic()) from error
        return GroupPlan(served, columns, self.chosen)

    def open_(self, cuts: frozenset[Place]) -> tuple[list[Floats], list[Design]]:
        """Prices of groups that may stand by themselves, infinite for others and for those that were cut; designs.

        Where a region or an instance may fail a part has to survive, so groups of designs stand by themselves.
        """
        designs = [design for design in self.chosen if not cuts & set(design.groups)]
        designed = set(itertools.chain(*(self.designs.ways[design.model] for design in designs)))
        apart = any(item.measure == "tokens_s" for item in self.base.side_constraints)
        open_ = {place for design in designs for place in design.groups if apart}
        prices = [price.copy() for price in self.price]
        for p in itertools.chain(*designed):
            prices[p] = np.full_like(self.price[p], math.inf)
        for p, j in open_:
            prices[p][j] = self.price[p][j]
        for p, j in cuts:
            prices[p][j] = math.inf
        return prices, [] if apart else designs

    def _ways(self, designs: Sequence[Design]) -> list[tuple[tuple[int, ...], ...]]:
        """Ways of the models that have none of these designs."""
        designed = {design.model for design in designs}
        return [ways for model, ways in self.designs.ways.items() if model not in designed]


def _smallest(values: Floats, count: int) -> float:
    """The largest of so many smallest values, infinite where there are no more."""
    return float(np.partition(values, count)[count]) if len(values) > count else math.inf
