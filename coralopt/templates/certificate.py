"""How much cheaper could any node set be, of whatever size? A proven bound beyond N_max and rho.

With nodes in fractions, no token/s costs less than kappa (:mod:`coralopt.templates.cheapest_token`). With dual prices
mu >= 0 on scarce nodes, p_c + mu_c takes the place of p_c: that is the pricing problem of a column generation over all node
sets of any size, and its master gives a bound on a whole allocation.

Fractions of nodes make that bound weak where a demand needs few nodes. A second bound counts whole ones
(:mod:`coralopt.templates.instance_prices`). With duals it stays one (Lagrange); both are computed and the larger is told.

A model whose requests may pass in several ways (mixed, or prefill and decode; variants) pays the least over all splits of
its demand: for fractions the cheapest way, for whole nodes a (min, +) product of the ways' prices over the steps. Demand may
go unmet at a price (:mod:`coralopt.templates.unmet`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce

import numpy as np

from coralopt.errors import LibraryError
from coralopt.machine import cores
from coralopt.scenario.facts.operations import ModelRules
from coralopt.scenario.resolved import ResolvedScenario, ways_of
from coralopt.templates.cheapest_token import SAFE, regional_tokens, unlimited_tables
from coralopt.templates.covers import CheaperInstances, CoverRules, cheapest_cover, least_prices
from coralopt.templates.demand_columns import DemandBlock, DemandColumn, DemandProgramme
from coralopt.templates.instance_prices import InstancePrices, min_plus, regional_prices
from coralopt.templates.kept import kept_instances
from coralopt.templates.shared_supply import SharedSupply
from coralopt.templates.unmet import (
    DemandTerms,
    UnmetShares,
    least_fraction,
    least_with_unmet,
    leaving_together,
)
from coralopt.templates.unmet_branches import SharePrices
from coralopt.throughput import ThroughputTables
from coralopt.types import Floats

#: Times as many steps of a demand where it is cut finer.
FINER = 4
#: All of a demand.
ALL = Fraction(1)


@dataclass(frozen=True)
class AllocationCertificate:
    """A bound on the cost of any allocation from any library, of node sets of any size.

    Attributes:
        bound_usd_h: No allocation that meets the demands within the availability costs less, USD/h, initialization
            penalty included where nothing runs yet.
        fractional_usd_h: The part of it that the column generation alone proves, with nodes in fractions, USD/h.
        rounds: Rounds of the column generation.
        columns: Columns made.
        feasible: Whether the demands can be met at all with nodes in fractions.
        capacity_prices: float64 (R, C), the duals, USD/h per node.
    """

    bound_usd_h: float
    fractional_usd_h: float
    rounds: int
    columns: int
    feasible: bool
    capacity_prices: Floats


@dataclass(frozen=True, eq=False)
class PricedNodes:
    """Least prices over node sets of any size, at dual prices.

    Attributes:
        duals: Prices of nodes and limits; see :class:`coralopt.templates.shared_supply.SharedSupply`.
        bound_usd_h: No allocation costs less, USD/h.
        instances: By model phase, the prices of instances in the regions that are cheapest for some of them.
        every: By model phase, float64 (G + 1,): least price of all instances that serve so many steps, USD/h.
    """

    duals: Floats
    bound_usd_h: float
    instances: list[list[InstancePrices]]
    every: list[Floats]


class AnySizeBounds:
    """Bounds over node sets of any size on the cost of all that a scenario needs.

    Args:
        scenario: Demands, prices, availability.
        tables: From :func:`unlimited_tables`, or for as many stages as are wanted: the bounds hold for those.
        terms: What is to be served where that is not all of every demand: with demand cases, or at a price of the rest.

    Raises:
        LibraryError: The scenario lets nodes serve, or cost, other than the bound counts.
    """

    def __init__(
        self, scenario: ResolvedScenario, tables: Sequence[ThroughputTables], terms: DemandTerms | None = None
    ) -> None:
        _refuse(scenario, terms is None)
        self.tables = [_allowed(scenario, p, table) for p, table in enumerate(tables)]
        needed = np.array([phase.needed_tokens_s for phase in scenario.model_phases])
        self.demand = needed if terms is None else terms.tokens_s
        rules = dict(scenario.operations.models)
        #: What the instances of each phase do beside serving its demand.
        self.rules = [
            _rules_of(rules[phase.served], phase.demand_tokens_s > 0) if phase.served in rules else CoverRules()
            for phase in scenario.model_phases
        ]
        # The phases that a request may pass: for each model, one way or several; and replicas without demand.
        idle = [p for p, several in enumerate(self.rules) if several.replicas > 0 and self.demand[p] == 0]
        needed_ways = (tuple(ways) for ways in ways_of(scenario).values() if self.demand[list(ways[0])].all())
        self.ways = (*needed_ways, *(((p,),) for p in idle))
        #: Models that leave equal shares unmet, and at what cost. What then survives a loss is counted for nothing.
        self.together = leaving_together(self.ways, () if terms is None else terms.unmet)
        for p in (p for _, group in self.together if group is not None for p in group.phases):
            self.rules[p] = CoverRules(self.rules[p].replicas)
        #: Those of which some may go unmet, as indices.
        self.groups_unmet = [g for g, (_, unmet) in enumerate(self.together) if unmet is not None]
        #: What whole nodes are counted for: where there is no demand, any instance will do.
        self.counted = self.demand.copy()
        for p in idle:
            values = self.tables[p].values
            self.counted[p] = values.min(initial=float(values.max()) or 1.0, where=values > 0)
        #: Nodes and limits that all phases share.
        self.supply = SharedSupply(scenario, terms is None or terms.charged)
        #: The linear programme over ways to serve demand.
        self.programme = DemandProgramme(len(self.demand), self.ways, self.together, self.supply)
        #: No allocation costs more, what goes unmet included: a bound above it says that there is none.
        self.most_usd_h = self.supply.whole_usd_h + sum(
            float(unmet.cost(np.ones(1))[0]) for _, unmet in self.together if unmet is not None
        )
        #: What runs already, by phase.
        self.kept = kept_instances(scenario, self.tables)
        # Phases whose demands are cut into equally many steps, since they add up step by step; and the steps of each.
        self.groups = [
            group for models, unmet in self.together for group in self._phases_cut_alike(models, unmet is not None)
        ]
        self.steps = np.zeros(len(self.demand), dtype=np.int64)
        #: Configurations of each phase whose nodes are counted within an instance.
        self.scarce: list[list[int]] = [[] for _ in self.demand]

    def _phases_cut_alike(self, models: Sequence[int], share_unmet: bool) -> list[tuple[int, ...]]:
        ways = [way for model in models for way in self.ways[model]]
        if len(ways) == 1 and not share_unmet:
            return [(p,) for p in ways[0]]
        return [tuple({p for way in ways for p in way})]

    def whole_nodes(self, duals: Floats, grid: int, most: int = 0, short: float = 0.0) -> PricedNodes:
        """The bound that counts whole nodes, and what it is made of.

        Args:
            duals: Prices of nodes and limits, at least 0; see :class:`coralopt.templates.shared_supply.SharedSupply`.
            grid: Steps of each demand.
            most: Steps at most, where the cheapest instances serve a whole demand by rounding only. Later calls begin
                with as many.
            short: Share of the demand by which they may fall short before it is cut finer.
        """
        prices: list[list[InstancePrices]] = [[] for _ in self.demand]

        def cut(group: tuple[int, ...]) -> tuple[int, int]:
            """Steps to begin with, and the most."""
            # What may be lost takes the square of the steps, and many times that where more than half of it survives.
            lost = max(max(self.rules[m].surviving, min(self.rules[m].spared, 0.5)) for m in group)
            finest = most if lost == 0 else min(most, grid * (FINER if lost <= 0.5 else 1))
            return max(grid, min(finest, int(self.steps[list(group)].max()))), finest

        def price(job: tuple[int, int]) -> None:
            prices[job[0]] = self._fitting_prices(job[0], duals, job[1])

        pending = {group: cut(group) for group in self.groups}
        with ThreadPoolExecutor(cores()) as threads:
            while pending:
                # Compiled code lets other threads run, and what takes longest goes first; results do not depend on them.
                jobs = sorted(((m, pending[group][0]) for group in pending for m in group), key=lambda job: -job[1])
                list(threads.map(price, jobs))
                finer = {}
                for group, (steps, finest) in pending.items():
                    self.steps[list(group)] = steps
                    served = min((self._served(m, prices[m]) for m in group if _serves(prices[m])), default=1.0)
                    if steps * FINER <= finest and served < 1 - short:
                        finer[group] = steps * FINER, finest
                pending = finer
        every = [self.least_prices(m, prices[m], duals, self.rules[m]) for m in range(len(prices))]
        bound = self.lagrangian(duals, [self.least_of(together, every) for together in self.together])
        priced = PricedNodes(duals, bound, prices, every)
        if self.supply.is_charged:
            return priced
        # What is worth more than the supply cannot be had, whatever the scale of the duals.
        return replace(priced, bound_usd_h=max(bound, self.shares(priced).least_usd_h))

    def _fitting_prices(self, m: int, duals: Floats, steps: int) -> list[InstancePrices]:
        """Prices of instances of a phase; those of its cheapest cover use no more nodes than their region has.

        Counting nodes takes long, so only configurations are counted of which they would use more.
        """
        if not self.counted[m] > 0:
            return []
        while True:
            nodes, each = {c: self.supply.nodes[:, c] for c in self.scarce[m]}, self.rules[m].surviving > 0
            demand, at = float(self.counted[m]), self.supply.prices(duals, m)
            prices = regional_prices(self.tables[m].values, at, demand, steps, nodes, each=each)
            cover = cheapest_cover(prices, self.rules[m]) if _serves(prices) else []
            beyond = [np.flatnonzero(pipeline.node_set > self.supply.nodes[region]) for region, pipeline in cover]
            fresh = {c for some in beyond for c in some.tolist()}.difference(self.scarce[m])
            if not fresh:
                return prices
            self.scarce[m] += sorted(fresh)

    def least_prices(self, m: int, prices: Sequence[InstancePrices], duals: Floats, rules: CoverRules) -> Floats:
        """float64 (G + 1,): least price of what serves t steps of a phase's demand, some of which may run already."""
        if not prices and self.counted[m] > 0 and not self.kept[m]:
            return np.append(0.0, np.full(int(self.steps[m]), math.inf))
        # Later calls may cut a demand finer than these prices.
        grid, cheaper = len(prices[0].one) - 1 if prices else int(self.steps[m]), []
        for kept in self.kept[m] if prices else ():
            steps = min(kept.tokens_s / prices[0].step_tokens_s * (1 + SAFE), grid)
            usd_h = self.supply.kept_usd_h(duals, m, kept)
            if steps > 0 and math.isfinite(usd_h):
                cheaper.append(CheaperInstances(kept.region, math.ceil(steps), usd_h, kept.count))
        return least_prices(prices, grid, rules, cheaper)

    def _served(self, m: int, regions: Sequence[InstancePrices]) -> float:
        """The share of what is asked of a phase that its cheapest instances serve without rounding."""
        rules, demand = self.rules[m], float(self.counted[m])
        cover = [(r, pipeline.tokens_s(self.tables[m].values)) for r, pipeline in cheapest_cover(regions, rules)]
        total, by_region = sum(tokens_s for _, tokens_s in cover), dict.fromkeys((r for r, _ in cover), 0.0)
        for r, tokens_s in cover:
            by_region[r] += tokens_s
        share = total / demand
        if rules.spared > 0:
            share = min(share, (total - max(tokens_s for _, tokens_s in cover)) / (rules.spared * demand))
        if rules.surviving > 0:
            share = min(share, (total - max(by_region.values())) / (rules.surviving * demand))
        return share

    def covers(self, priced: PricedNodes) -> list[DemandColumn]:
        """What each model phase uses where :meth:`whole_nodes` finds the least price of all its demand."""
        return [column for m in range(len(self.demand)) for column in self._cover(m, priced)]

    def _cover(self, m: int, priced: PricedNodes, share: Fraction = ALL) -> Iterator[DemandColumn]:
        """What a model phase uses at the least price of a share of its demand, if anything."""
        regions = priced.instances[m]
        steps = math.ceil(share * (len(regions[0].one) - 1)) if regions else 0
        if not steps or all(math.isinf(price.one[steps]) for price in regions):
            return
        usage, tokens_s = np.zeros(self.supply.nodes.shape), 0.0
        for region, pipeline in cheapest_cover(regions, self.rules[m], steps if share < 1 else None):
            usage[region] += pipeline.node_set
            tokens_s += pipeline.tokens_s(self.tables[m].values)
        if tokens_s > 0:
            # What serves the demand by rounding only takes more of the same.
            yield self.column(m, usage * max(1.0, float(share) * float(self.demand[m]) / tokens_s))

    def shares(self, priced: PricedNodes) -> SharePrices:
        """The bound as a function of the shares that models leave unmet."""
        rest, prices = 0.0, []
        for models, unmet in self.together:
            if unmet is None:
                rest += self.least_of((models, None), priced.every)
                continue
            served = self._served_prices(models, priced.every)
            cost = unmet.cost(1.0 - np.arange(len(served)) / (len(served) - 1))
            prices.append((served, cost))
        worth = self.supply.worth(priced.duals)
        if self.supply.is_charged:
            return SharePrices(rest - worth, tuple(served + cost for served, cost in prices))
        left = self.worth_left(priced.duals, priced.every)
        return SharePrices(0.0, tuple(np.where(served <= left, cost, math.inf) for served, cost in prices))

    def block(self, priced: PricedNodes, group: int, share: Fraction) -> DemandBlock:
        """The least price of models that leave a share unmet, in their cheapest ways."""
        models, unmet = self.together[group]
        assert unmet is not None
        columns: list[DemandColumn] = []
        for model in models:
            way = min(self.ways[model], key=lambda way: sum(_at(priced.every[p], 1 - share) for p in way))
            columns += [column for p in way for column in self._cover(p, priced, 1 - share)]
        return DemandBlock(group, share, tuple(columns), float(unmet.cost(np.array([float(share)]))[0]))

    def column(self, m: int, usage: Floats) -> DemandColumn:
        """Nodes (R, C) that serve all the demand of a model phase, and what they cost."""
        return DemandColumn(m, usage, self.supply.usd_h(usage))

    def fractional(self, duals: Floats, least: Floats) -> float:
        """The bound with nodes in fractions if nothing runs, USD/h; ``least``: float64 (M,), kappa of each phase."""
        prices = [d * k if d else 0.0 for d, k in zip(self.demand, least, strict=True)]
        every = []
        for models, unmet in self.together:
            usd_h = sum(min(sum(prices[p] for p in way) for way in self.ways[model]) for model in models)
            every.append(usd_h if unmet is None else least_fraction(usd_h, unmet))
        return self.lagrangian(duals, every)

    def least_of(self, together: tuple[Sequence[int], UnmetShares | None], every: Sequence[Floats]) -> float:
        """USD/h of all demand of some models; ``every``: (G + 1,) of each phase, least price of so many steps."""
        models, unmet = together
        several = [self.ways[model] for model in models]
        if unmet is None and all(len(ways) == 1 for ways in several):
            return sum(float(every[p][-1]) for ways in several for p in ways[0])
        served = self._served_prices(models, every)
        return float(served[-1]) if unmet is None else least_with_unmet(served, unmet)

    def worth_left(self, duals: Floats, every: Sequence[Floats]) -> float:
        """What the supply is worth at most to models of which some may go unmet."""
        idle = sum(self.least_of(together, every) for together in self.together if together[1] is None)
        return self.supply.worth(duals) * (1 + SAFE) - idle

    def _served_prices(self, models: Sequence[int], every: Sequence[Floats]) -> Floats:
        """float64 (G + 1,): USD/h of what serves so many steps of some models whose demands are cut alike."""
        ways = (self.ways[model] for model in models)
        by_model = [reduce(min_plus, (np.sum([every[p] for p in way], axis=0) for way in several)) for several in ways]
        return np.asarray(np.sum(by_model, axis=0))

    def lagrangian(self, duals: Floats, every: Sequence[float]) -> float:
        """Least prices of all models at dual prices, less what the supply earns at these."""
        return (sum(every) - self.supply.worth(duals)) * (1 - SAFE)

    def column_generation(
        self, tolerance: float = 1e-6, on_round: Callable[[int, float], None] | None = None
    ) -> tuple[Floats, float, int, int, bool]:
        """Prices of nodes and limits, the bound in USD/h, rounds, columns, and whether demands can be met."""
        columns: dict[tuple[int, int, bytes], DemandColumn] = {}

        def add(duals: Floats) -> Floats:
            """Columns that are best at these duals; float64 (M,), the least cost of a token/s of each phase."""
            least = np.full(len(self.demand), math.inf)
            at = [self.supply.prices(duals, m) for m in range(len(self.demand))]
            with ThreadPoolExecutor(cores()) as threads:
                several = list(threads.map(lambda table, price: regional_tokens(table.values, price), self.tables, at))
            for m, (table, tokens) in enumerate(zip(self.tables, several, strict=True)):
                for r, token in tokens:
                    least[m] = min(least[m], token.usd_h)
                    usage = np.zeros(self.supply.nodes.shape)
                    usage[r] = token.usage(table.values) * self.demand[m]
                    columns.setdefault((m, r, usage[r].tobytes()), self.column(m, usage))
            return least

        duals = self.supply.above_zero(self.supply.free_of_charge)
        if not self.ways:
            return duals, 0.0, 0, 0, True
        least = add(duals)
        bound = self.fractional(duals, least)
        if not math.isfinite(bound):
            return duals, math.inf, 0, len(columns), False
        for rounds in range(1, 201):
            if on_round is not None:
                on_round(rounds, bound)
            mix = self.programme.solve(list(columns.values()))
            objective, short, duals = mix.usd_h, mix.short, self.supply.above_zero(mix.duals)
            known, least = len(columns), add(duals)
            bound = max(bound, self.fractional(duals, least))
            if len(columns) == known:
                # No column costs less than the master says.
                break
            if bound >= objective * (1 - tolerance) and (short <= 0 or bound > self.most_usd_h):
                break
        credit = sum(self.supply.credit(kept) for several in self.kept for kept in several)
        return duals, max(bound - credit, 0.0), rounds, len(columns), short <= 1e-9


def _rules_of(rules: ModelRules, has_demand: bool) -> CoverRules:
    if not has_demand:
        return CoverRules(rules.min_replicas)
    return CoverRules(rules.min_replicas, rules.survive_instance_loss, rules.survive_region_loss)


def _allowed(scenario: ResolvedScenario, p: int, table: ThroughputTables) -> ThroughputTables:
    """The table of a model phase without the nodes that its model must not use."""
    rules = dict(scenario.operations.models).get(scenario.model_phases[p].served)
    forbidden = [c for c, name in enumerate(table.configurations) if rules is not None and name in rules.forbidden]
    if not forbidden:
        return table
    values = table.values.copy()
    values[:, :, forbidden] = 0.0
    return replace(table, values=values)


def _at(every: Floats, share: Fraction) -> float:
    """The least price of a share of the demand."""
    return float(every[math.ceil(share * (len(every) - 1))])


def _serves(regions: Sequence[InstancePrices]) -> bool:
    """Whether the whole demand can be served."""
    return any(math.isfinite(price.one[-1]) for price in regions)


def _refuse(scenario: ResolvedScenario, whole: bool) -> None:
    """Refuse what the bounds do not hold for; ``whole``: all of every demand is to be served."""
    reason = None
    if scenario.placement.budget_units is not None:
        reason = "is for latency budgets of SLO / S; this scenario's are free"
    elif scenario.sharing.models > 1:
        reason = "counts whole nodes for each model; in this scenario models share nodes"
    elif scenario.models_in_classes:
        reason = "counts instances for each class of requests; in this scenario they share their time"
    elif scenario.operations.cases and whole:
        reason = "is for one demand; this scenario has demand cases"
    if reason is not None:
        raise LibraryError(f"the bound over node sets of any size {reason}")


def allocation_certificate(
    scenario: ResolvedScenario,
    tables: Sequence[ThroughputTables] | None = None,
    *,
    tolerance: float = 1e-6,
    grid: int = 1000,
    on_round: Callable[[int, float], None] | None = None,
) -> AllocationCertificate:
    """Bound the cost of any allocation from below by column generation over all node sets of any size.

    A column serves one model phase in one region with fractions of nodes; pricing is :func:`cheapest_token` at prices plus
    the duals of the capacity rows. The bound is the Lagrangian one, valid whatever the tolerance of the solver.

    Args:
        scenario: Demands, prices, availability.
        tables: From :func:`unlimited_tables`.
        grid: Steps of each demand in the bound that counts whole nodes; 0 leaves that bound out.
        tolerance: Relative distance between master and bound to stop at.
        on_round: Called with (round, bound in USD/h).

    Raises:
        LibraryError: As :class:`AnySizeBounds`.
    """
    bounds = AnySizeBounds(scenario, unlimited_tables(scenario) if tables is None else tables)
    duals, fractional, rounds, columns, feasible = bounds.column_generation(tolerance, on_round)
    bound = max(fractional, bounds.whole_nodes(duals, grid).bound_usd_h) if grid > 0 and rounds else fractional
    return AllocationCertificate(bound, fractional, rounds, columns, feasible, bounds.supply.capacity(duals))
