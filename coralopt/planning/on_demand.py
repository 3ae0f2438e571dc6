"""Planning with templates on demand: prices of nodes, node sets that pay at them, an allocation, and prices again.

Every round adds the node sets that are worth their price, places them optimally, allocates over all templates so far,
adds node sets that differ by a node from those used as long as that helps, and takes the prices of capacity from that
allocation to the next round. The bound counts whole nodes in node sets of any size at the same prices
(:class:`coralopt.templates.certificate.AnySizeBounds`), in pipelines of up to N_max stages, so the gap that is told is
proven over every template that there could be.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from coralopt.allocation import (
    Allocation,
    AllocationProblem,
    AllocationSearchOptions,
    explain,
)
from coralopt.allocation.search.upper_limits import rent_limit
from coralopt.errors import InfeasibleError, NoSolutionError, OptionError
from coralopt.machine import cores
from coralopt.planning.on_demand_bound import BRANCHES, RAISES, BoundSearch, DemandSteps
from coralopt.planning.on_demand_objective import LeastCost, Objective, RatedAllocation
from coralopt.planning.request import PlanRequest
from coralopt.templates import (
    AffordableInstances,
    AffordableNodes,
    AnySizeBounds,
    InstancePrices,
    NodeSetFamily,
    PricedNodes,
    PricedPipeline,
    TemplateLibrary,
    build_library,
    library_digest,
    parts_of,
    with_templates,
)
from coralopt.throughput import ThroughputTables
from coralopt.types import Floats

#: Most rounds.
ROUNDS = 8
#: Share of the gap that an allocation may have to the best one of the templates made so far.
OWN = 0.25
#: Seconds that one search of an allocation may take while prices are still looked for, if those take no longer, and then;
#: its share of the time left, and nodes of its tree. A share of the cost that is not worth another search.
QUICK_S, SEARCH_S, SHARE, TREE_NODES, LITTLE = 2.0, 40.0, 0.4, 10, 1e-4
#: Parts at most of all node sets that a cheaper allocation could use, where these are all made: some 0.1 s; and once
#: better prices of capacity leave fewer, those that a second places, for a share of the time left, and at most.
QUICK_PARTS, PARTS_A_SECOND, PARTS_SHARE, MOST_PARTS = 1e6, 6e6, 0.6, 150e6

#: Templates, and an allocation of them.
Best = tuple[TemplateLibrary, RatedAllocation]
#: The allocation problem over a library.
ProblemOf = Callable[[TemplateLibrary], AllocationProblem]


class OnDemandSearch:
    """The cheapest allocation over templates made on demand, and a bound over node sets of any size.

    Args:
        request: What to plan.
        tables: The scenario's throughput tables.
        problem_of: The allocation problem over a library; demand may have a price at which it goes unmet.
        search: How each allocation is searched.
        objective: What is looked for; "cost" and "bound" are in its terms.

    Raises:
        LibraryError: The scenario lets nodes serve, or cost, other than the bound counts.
        OptionError: A share of requests is asked for, or a library is given.
    """

    def __init__(
        self,
        request: PlanRequest,
        tables: Sequence[ThroughputTables],
        problem_of: ProblemOf,
        search: AllocationSearchOptions,
        objective: Objective = LeastCost(),
    ) -> None:
        scenario = self.scenario = request.scenario
        instead = "give `templates: every`, and lower pruning.max_nodes where that is too many"
        if request.library is not None:
            raise OptionError(f"{request.library}: templates on demand need no library file; {instead}")
        if any(phase.attainment is not None for phase in scenario.model_phases):
            raise OptionError(f"templates on demand are for mean requests (`attainment: mean`); {instead}")
        self.request, self.tables, self.problem_of, self.search = request, tables, problem_of, search
        self.objective = objective
        self.library: TemplateLibrary | None = None
        self.families = [
            NodeSetFamily(scenario, phase, table.values)
            for phase, table in zip(scenario.model_phases, tables, strict=True)
        ]
        self.begin: Best | None = None
        problem = problem_of(self._place())
        #: The limit on the rent of everything, if there is one.
        self.rent_limit = rent_limit(problem)
        self.bounds = AnySizeBounds(scenario, tables, objective.terms(problem))
        self.bound = BoundSearch(self.bounds, DemandSteps.of(objective, request.solve_options.rel_gap))
        self.state = search.state
        limit = request.solve_options.time_limit
        self.deadline = math.inf if limit is None else time.perf_counter() + limit
        #: When it ends if no allocation is known by then.
        self.first_by = self.deadline
        #: Seconds that prices of node sets took last.
        self.pricing_s = 0.0

    def begin_with(self, other: OnDemandSearch, best: Best) -> None:
        """Begin with the templates of another search, and an allocation of them that solves this problem, too."""
        self.families, self.library, self.begin = other.families, other.library, best
        self.pricing_s = other.pricing_s

    def run(self) -> tuple[Best, float]:
        """Templates, an allocation of them, and a bound over node sets of any size.

        Raises:
            InfeasibleError: The demand cannot be met with the templates made.
            NoSolutionError: The time limit passed before any allocation was known.
        """
        # These prices only begin the rounds: the bound holds at any.
        duals, fractional, *_, feasible = self.bounds.column_generation(1e-3)
        if fractional > self.bounds.most_usd_h and not self.search.explained:
            raise self._nothing(False)
        if not feasible:
            duals = np.zeros_like(duals)
        best: Best | None = None
        if self.begin is not None and self._is_over(self.begin, self.pricing_s):
            best = self._allocate(None, max(QUICK_S, self.pricing_s))
        for number in range(1, ROUNDS + 1):
            if best is not None and self._is_over(best, self.pricing_s):
                break
            self._progress("templates on demand", number, ROUNDS)
            before = best, self.bound.value * (1 + LITTLE)
            # Where nodes cost nothing, no node set is worth its price without that of the supply.
            charged = self.bounds.supply.is_charged
            fresh = number == 1 and charged and duals.any() and self._price(np.zeros_like(duals))
            fresh = self._price(duals) or fresh
            if fresh or number == 1:
                best = self._allocate(best, max(QUICK_S, self.pricing_s))
            if self._is_reached(best) or self._is_over(best):
                break
            prices = None if self.state is None else self._with_capacity(self.state.capacity_prices)
            moved = fresh and (best is not before[0] or self.bound.value > before[1])
            shared = self.bound.shared() if best is None and feasible else None
            if shared is not None:
                # What is cheapest for each demand does not fit beside the others: prices of the supply they share.
                prices, moved = shared, True
            if prices is not None and not np.array_equal(prices, duals) and moved:
                duals = prices
            else:
                break
        best = self._close(best, QUICK_PARTS)
        self._raise_bound(best)
        best = self._improve(best)
        left_s = self.deadline - time.perf_counter()
        best = self._close(best, min(MOST_PARTS, PARTS_A_SECOND * PARTS_SHARE * max(0.0, left_s)))
        if best is None and self._is_over(best) and not self._is_hopeless():
            raise NoSolutionError(
                "the time limit passed before any allocation of templates made on demand was known", None
            )
        if best is None:
            raise self._nothing(feasible and not self._is_hopeless())
        return self._settled(best), min(max(self.bound.value, fractional), best[1].value)

    def _nothing(self, feasible: bool) -> InfeasibleError:
        """That there is no allocation; with reasons, which the templates so far have, where they are wanted."""
        message = f"no allocation of the templates made on demand {self.objective.wanted}" + (
            "" if feasible else "; nor could any node sets with this availability"
        )
        if not self.search.explained:
            return InfeasibleError(message)
        explanation = explain(self.problem_of(self._place()), self.request.backend, self.request.solve_options)
        return InfeasibleError(f"{message}\n{explanation}", explanation)

    def _settled(self, best: Best) -> Best:
        """With every large node set that is used in its best placement, not in the one that it was priced in."""
        library, answer = best
        for t in np.unique(answer.allocation.template).tolist():
            self.families[library.phase[t]].add([library.usage[t].tolist()])
        larger = self._place()
        return larger, answer.in_terms_of(_same_allocation(library, answer.allocation, larger))

    def _with_capacity(self, mu: Floats) -> Floats:
        """Dual prices with those of capacity that an allocation was searched with; limits keep theirs."""
        return self.bounds.supply.with_capacity(np.maximum(mu, 0.0), self.bound.best_duals)

    def _price(self, duals: Floats) -> bool:
        """Node sets and the bound at these prices of capacity; whether any node set is new."""
        started = time.perf_counter()
        fresh = self._add(self.bound.price(duals))
        self.pricing_s = time.perf_counter() - started
        return fresh

    def _add(self, priced: PricedNodes) -> bool:
        """Add the node sets that are worth their prices; whether any is new."""

        def pipelines(several: list[InstancePrices]) -> list[PricedPipeline]:
            return [pipeline for price in several for pipeline in price.pipelines()]

        with ThreadPoolExecutor(cores()) as threads:
            # Compiled code lets other threads run; results do not depend on them.
            worth = threads.map(pipelines, priced.instances)
            fresh = [family.add_pipelines(some) for family, some in zip(self.families, worth, strict=True)]
        return any(fresh)

    def _progress(self, stage: str, number: int, most: int) -> None:
        if self.request.progress is not None:
            self.request.progress(stage, number, most)

    def _raise_bound(self, best: Best | None) -> None:
        """Better prices of nodes: those of all the supply, then those that shares of unmet demand ask for."""
        if best is None:
            return
        value = best[1].value
        self.bound.add_used(best[0], best[1].allocation)
        if self._is_reached(best) or self._is_over(best, self.pricing_s):
            return
        enough = self.objective.enough(value, self.request.solve_options.rel_gap)
        for number, priced in enumerate(self.bound.towards(value, enough), start=1):
            self._progress("bound over node sets of any size", number, RAISES + BRANCHES)
            self._add(priced)
            if self._is_over(best, self.pricing_s):
                return

    def _improve(self, best: Best | None) -> Best | None:
        """The best allocation, and those over templates near the ones it uses, as long as that is cheaper."""
        while best is not None and not self._is_reached(best) and not self._is_over(best):
            library, used = best[0], np.unique(best[1].allocation.template)
            price = self.bounds.supply.list_usd_h.min(axis=0)
            near = [self.families[library.phase[t]].add_near(library.usage[t].astype(np.int64), price) for t in used]
            before, best = best, self._allocate(best, SEARCH_S)
            if best is None or not any(near) or best[1].value >= before[1].value * (1 - LITTLE):
                break
        return best

    def _close(self, best: Best | None, most_parts: float) -> Best | None:
        """All node sets that a cheaper allocation could use, where these are few: its bound is then one over all of them.

        Raises:
            InfeasibleError: No allocation of any node sets meets the demand.
        """
        if self._is_reached(best) or self._is_over(best) or self.bound.best is None:
            return best
        ceiling = math.inf if best is None else best[1].value
        limits = AffordableInstances(self.bounds, self.bound.best, ceiling).limits()
        supply, left = self.bounds.supply, most_parts
        several = []
        for m, (family, most) in enumerate(zip(self.families, limits, strict=True)):
            offer = AffordableNodes(supply.prices(self.bound.best_duals, m), supply.nodes, most, left)
            rows = family.affordable(offer)
            if rows is None:
                return best
            several.append(rows)
            left -= parts_of(rows)
        for family, rows in zip(self.families, several, strict=True):
            family.add_affordable(rows)
        library = self._place()
        start = self._start(best, library)
        search = replace(self.search, state=self.state, start=start)
        left_s = min(SEARCH_S, self.deadline - time.perf_counter())
        options = replace(self.request.solve_options, time_limit=max(0.1, left_s))
        try:
            answer = self.objective.solve(self.problem_of(library), self.request.backend, options, search)
        except NoSolutionError:
            return best
        self.bound.value = max(self.bound.value, min(answer.bound, ceiling))
        return (library, answer) if best is None or answer.value < best[1].value else best

    def _is_reached(self, best: Best | None) -> bool:
        """Whether the gap asked for is proven."""
        gap = self.request.solve_options.rel_gap
        return best is not None and self.objective.gap(best[1].value, self.bound.value) <= gap

    def _allocate(self, best: Best | None, most_s: float) -> Best | None:
        """The cheaper of ``best`` and an allocation over all templates so far, searched for ``most_s`` seconds at most."""
        library = self._place()
        start = self._start(best, library)
        # A tree proves something about these templates only: what counts is a good allocation, and the bound over all.
        limits = replace(self.search.limits, tree_nodes=TREE_NODES)
        search = replace(self.search, state=self.state, start=start, explained=False, limits=limits)
        seconds = min(most_s, max(0.1, SHARE * (self.deadline - time.perf_counter())))
        options = self.request.solve_options
        options = replace(options, time_limit=seconds, rel_gap=OWN * options.rel_gap)
        try:
            answer = self.objective.solve(self.problem_of(library), self.request.backend, options, search)
        except (InfeasibleError, NoSolutionError):
            return best
        self.state = answer.state or self.state
        return (library, answer) if best is None or answer.value < best[1].value else best

    def _start(self, best: Best | None, library: TemplateLibrary) -> Allocation | None:
        """The best allocation so far, in terms of this library."""
        known = best or self.begin
        return self.search.start if known is None else _same_allocation(known[0], known[1].allocation, library)

    def _place(self) -> TemplateLibrary:
        """All templates so far: those of new node sets are placed, and join the others."""
        fresh = [family.fresh_rows() for family in self.families]
        library = build_library(self.scenario, self.tables, node_sets=fresh)
        if self.library is None:
            self.library = replace(library, digest=library_digest(self.scenario, self.tables))
        else:
            parts = zip(self.library.phases, library.phases, strict=True)
            self.library = replace(self.library, phases=tuple(with_templates(*pair) for pair in parts))
        whole = [
            replace(with_templates(phase, family.large(phase.key)), examined=len(family))
            for phase, family in zip(self.library.phases, self.families, strict=True)
        ]
        return replace(self.library, phases=tuple(whole))

    def _is_hopeless(self) -> bool:
        """Whether no allocation of any node sets is worth anything."""
        return self.bound.value >= self.objective.worst

    def _is_over(self, best: Best | None, needed_s: float = 0.0) -> bool:
        """Whether the time limit leaves less than is needed, or nothing can be had."""
        if best is None and self._is_hopeless():
            return True
        return time.perf_counter() + needed_s >= (self.first_by if best is None else self.deadline)


def _same_allocation(library: TemplateLibrary, allocation: Allocation, larger: TemplateLibrary) -> Allocation:
    """The allocation in terms of a library that has all of these templates."""
    rows = np.column_stack([larger.phase, larger.usage]).astype(np.int64)
    place = {row.tobytes(): t for t, row in enumerate(rows)}
    old = np.column_stack([library.phase, library.usage]).astype(np.int64)[allocation.template]
    template = [place[row.tobytes()] for row in old]
    parts = zip(template, allocation.region.tolist(), allocation.count.tolist(), strict=True)
    return Allocation.of({(t, r): count for t, r, count in parts})
