"""Hypothesis strategies for allocation problems with supply classes, side constraints, unmet demand, and an oracle for them.

The oracle enumerates whole allocations and adds up every node at its own price, so it shares nothing with the floor's
formulas for classes, rows and shortfall.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
from hypothesis import reject
from hypothesis import strategies as st

from coralopt.allocation import AllocationProblem, SideConstraint, SupplyClass
from coralopt.errors import SolverError
from coralopt.testing.allocation_strategies import allocation_problems
from coralopt.testing.instances import random_routes, starting_rows

KINDS = (
    "supply",
    "budget",
    "region",
    "model",
    "replicas",
    "survive",
    "ban",
    "quota",
    "instances",
    "shortfall",
    "spare",
    "starts",
    "loads",
    "cases",
)


@st.composite
def operated_problems(
    draw: st.DrawFn, kinds: tuple[str, ...] = KINDS, max_templates: int = 3, max_available: int = 3
) -> AllocationProblem:
    """Tiny problems with some of what operators ask for; figures are multiples of 1/4 or 1/8, so that sums are exact.

    Args:
        draw: Given by Hypothesis.
        kinds: What may occur.
        max_templates: Largest T.
        max_available: Most nodes of one configuration in a region.
    """
    problem = draw(allocation_problems(max_templates=max_templates, max_available=max_available))
    chosen = [kind for kind in kinds if draw(st.booleans())] or [draw(st.sampled_from(kinds))]
    _, regions, configurations, phases = problem.shape
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows: list[SideConstraint] = []
    supply: list[SupplyClass] = []
    shape = problem.price.shape
    if "supply" in chosen:
        reserved = rng.integers(0, problem.availability + 1)
        rest = problem.availability - reserved
        spot = rng.integers(0, rest + 1)
        supply = [
            SupplyClass("reserved", reserved, np.zeros(shape)),
            SupplyClass("spot", spot, rng.integers(0, 30, shape) / 4.0),
        ]
    for name in chosen:
        phase, region = int(rng.integers(phases)), int(rng.integers(regions))
        whole = float(rng.integers(0, 9))
        if name == "budget":
            rows.append(SideConstraint("budget", "most", "usd_h", float(rng.integers(0, 160)) / 4.0))
        elif name == "region":
            rows.append(SideConstraint("nodes of region", "most", "nodes", whole, regions=(region,)))
            rows.append(SideConstraint("rent of region", "most", "usd_h", rng.integers(0, 80) / 4.0, regions=(region,)))
        elif name == "model":
            rows.append(SideConstraint("nodes of model", "most", "nodes", whole, phases=(phase,)))
            rows.append(SideConstraint("USD/h of model", "most", "usd_h", rng.integers(0, 80) / 4.0, phases=(phase,)))
        elif name == "replicas":
            rows.append(SideConstraint("replicas", "least", "instances", float(rng.integers(0, 4)), phases=(phase,)))
        elif name == "survive":
            share = float(rng.choice([0.25, 0.5, 1.0]))
            for lost in range(regions):
                others = tuple(r for r in range(regions) if r != lost)
                rows.append(SideConstraint(f"without region {lost}", "least", "tokens_s", share, (phase,), others))
        elif name == "spare":
            for p in {phase, int(rng.integers(phases))}:
                share = float(rng.choice([0.5, 1.0]))
                rows.append(SideConstraint(f"without one of {p}", "least", "tokens_s", share, (p,), one_lost=True))
        elif name == "starts" and problem.running is not None:
            rows += starting_rows(problem.running, problem.usage, problem.availability)
        elif name == "ban":
            where = (region,) if rng.random() < 0.3 else None
            kinds_of = (int(rng.integers(configurations)),)
            rows.append(SideConstraint("forbidden", "most", "instances", 0.0, (phase,), where, kinds_of))
        elif name == "quota":
            some = tuple(c for c in range(configurations) if rng.random() < 0.7) or (0,)
            gpus = tuple(int(n) for n in rng.integers(1, 5, len(some)))
            where = (region,) if rng.random() < 0.5 else None
            rows.append(SideConstraint("quota", "most", "gpus", whole, None, where, some, gpus))
        elif name == "instances":
            some = None if rng.random() < 0.5 else (phase,)
            rows.append(SideConstraint("instances", "most", "instances", float(rng.integers(1, 6)), some))
    loads = rng.choice([0.0, 0.25, 2.0], problem.shape[0]) if "loads" in chosen else None
    unmet = None
    together: tuple[tuple[int, ...], ...] = ()
    if "shortfall" in chosen:
        unmet = np.where(rng.random(phases) < 0.7, rng.integers(0, 40, phases) / 8.0, np.inf)
        if phases > 1 and np.isfinite(unmet).all() and rng.random() < 0.7:
            together = ((0, 1),)
    tiers: tuple[tuple[tuple[float, float], ...], ...] = ()
    if "cases" in chosen and not any(row.measure == "tokens_s" for row in rows):
        unmet = (
            np.where(rng.random(phases) < 0.8, rng.integers(1, 160, phases) / 8.0, np.inf) if unmet is None else unmet
        )
        # Of demand 1/4, 1/2 and 1 at some probability each; shares and probabilities are eighths.
        tiers = (((0.5, 0.125), (0.25, float(rng.integers(1, 8)) / 8), (1.0, 1.0)),) * phases
    # Most pools of the plain strategy cannot meet the demand as it is.
    demand = problem.demand / draw(st.sampled_from((1.0, 2.0, 4.0)))
    return replace(
        problem,
        demand=demand,
        supply=tuple(supply),
        side_constraints=tuple(rows),
        unmet_price=unmet,
        unmet_together=together,
        start_penalty=loads,
        unmet_tiers=tiers,
    )


@st.composite
def routed_operated_problems(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS) -> AllocationProblem:
    """The same where the requests of one model go by routes, all of its phases unmet together."""
    problem = draw(operated_problems(tuple(kind for kind in kinds if kind != "cases"), max_templates=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    phases, regions = len(problem.demand), len(problem.region_names)
    routes = random_routes(rng, phases, regions)
    unmet = problem.unmet_price
    if unmet is not None and not np.isfinite(unmet[list(routes.phases)]).all():
        unmet = np.where(np.isfinite(unmet), unmet, 1.0)
    try:
        return replace(
            problem,
            demand=np.maximum(problem.demand, 0.25),
            routes=(routes,),
            unmet_price=unmet,
            unmet_together=() if unmet is None else (routes.phases,),
        )
    except SolverError:
        # Some rows go with no routes around their phase.
        reject()


def allocations_within(problem: AllocationProblem) -> Iterator[dict[tuple[int, int], int]]:
    """Every allocation that the nodes allow, as (template, region) -> count. Tiny problems only."""
    templates, regions, _, _ = problem.shape
    pairs = [
        (t, r)
        for t in range(templates)
        for r in range(regions)
        if all(n <= problem.availability[r, c] for c, n in enumerate(problem.usage[t].tolist()))
    ]
    left = problem.availability.tolist()
    counts: dict[tuple[int, int], int] = {}

    def visit(position: int) -> Iterator[dict[tuple[int, int], int]]:
        if position == len(pairs):
            yield counts
            return
        t, r = pairs[position]
        usage = problem.usage[t].tolist()
        taken = 0
        while True:
            counts[t, r] = taken
            yield from visit(position + 1)
            if any(n > left[r][c] for c, n in enumerate(usage)):
                break
            taken += 1
            for c, n in enumerate(usage):
                left[r][c] -= n
        for c, n in enumerate(usage):
            left[r][c] += taken * n
        counts[t, r] = 0

    yield from visit(0)


def operated_cost(problem: AllocationProblem, counts: dict[tuple[int, int], int]) -> Fraction | None:
    """Cost in USD/h of one allocation within the nodes, exactly; ``None`` when a demand or side constraint is missed."""
    _, regions, configurations, phases = problem.shape
    used = np.zeros((regions, configurations), dtype=np.int64)
    cost = Fraction(0)
    running = [(t, r, n) for (t, r), n in counts.items() if n]
    listed = {}
    for t, r, n in running:
        used[r] += problem.usage[t].astype(np.int64) * n
        price = sum((k * Fraction(float(problem.price[r, c])) for c, k in enumerate(problem.usage[t].tolist()) if k), 0)
        listed[t, r] = Fraction(price)
        now = 0 if problem.running is None else int(problem.running[t, r])
        k = problem.penalty if problem.start_penalty is None else float(problem.start_penalty[t])
        cost += max(0, n - now) * listed[t, r] * Fraction(k)
    rent = []
    for r in range(regions):
        total = Fraction(0)
        for c in range(configurations):
            # Every single node at its own price, the cheapest first.
            single: list[float] = []
            for item in problem.supply:
                single += [float(item.price[r, c])] * int(item.nodes[r, c])
            single += [float(problem.price[r, c])] * (int(problem.availability[r, c]) - len(single))
            total += sum((Fraction(price) for price in sorted(single)[: int(used[r, c])]), Fraction(0))
        rent.append(total)
    cost += sum(rent, Fraction(0))
    shares: list[Fraction] = []
    for p in range(phases):
        speeds = {r: Fraction(0) for r in range(regions)}
        for t, r, n in running:
            if problem.phase[t] == p:
                speeds[r] += n * Fraction(float(problem.throughput[t]))
        level, survives = sum(speeds.values(), Fraction(0)), True
        for row in problem.side_constraints:
            if row.measure == "tokens_s" and row.phases == (p,) and row.regions is not None and row.bound > 0:
                left = sum((speeds[r] for r in row.regions), Fraction(0))
                survives = survives and left >= Fraction(row.bound) * Fraction(float(problem.demand[p]))
                level = min(level, left / Fraction(row.bound))
            if row.one_lost and row.phases == (p,) and row.bound > 0:
                # Whichever one of them goes, one after the other.
                own = [
                    Fraction(float(problem.throughput[t]))
                    for t, _, n in running
                    if problem.phase[t] == p
                    for _ in range(n)
                ]
                for k in range(len(own)):
                    left = sum(own[:k] + own[k + 1 :], Fraction(0))
                    survives = survives and left >= Fraction(row.bound) * Fraction(float(problem.demand[p]))
                    level = min(level, left / Fraction(row.bound))
        unmet = max(Fraction(0), Fraction(float(problem.demand[p])) - level)
        shares.append(unmet / Fraction(float(problem.demand[p])) if problem.demand[p] > 0 else Fraction(0))
        strict = problem.unmet_price is None or np.isinf(problem.unmet_price[p])
        if strict and (unmet > 0 or not survives):
            return None
    if problem.unmet_price is not None:
        for p in range(phases):
            share = shares[p]
            for group in problem.unmet_together:
                if p in group:
                    share = max(shares[other] for other in group)
            whole = Fraction(float(problem.demand[p]))
            if share and not problem.unmet_tiers:
                cost += share * whole * Fraction(float(problem.unmet_price[p]))
            elif share:
                # What is missing in each case, at its probability: the cases are the upper ends of the tiers.
                size, seen = Fraction(1), Fraction(0)
                for width, factor in problem.unmet_tiers[p]:
                    chance, seen = Fraction(factor) - seen, Fraction(factor)
                    lack = max(Fraction(0), size - (1 - share))
                    cost += chance * lack * whole * Fraction(float(problem.unmet_price[p]))
                    size -= Fraction(width)
    for row in problem.side_constraints:
        inside = [
            (t, r, n)
            for t, r, n in running
            if (row.phases is None or problem.phase[t] in row.phases)
            and (row.regions is None or r in row.regions)
            and (row.configurations is None or any(problem.usage[t, c] for c in row.configurations))
        ]
        if row.measure == "tokens_s":
            continue
        if row.measure == "usd_h" and row.phases is None:
            total = sum((rent[r] for r in range(regions) if row.regions is None or r in row.regions), Fraction(0))
        elif row.measure == "usd_h":
            total = sum((n * listed[t, r] for t, r, n in inside), Fraction(0))
        elif row.measure == "gpus":
            each = dict(zip(row.configurations or (), row.gpus, strict=True))
            total = Fraction(sum(n * int(problem.usage[t, c]) * k for t, _, n in inside for c, k in each.items()))
        elif row.measure == "new_nodes":
            assert row.configurations is not None
            assert problem.running is not None
            fresh = [(t, max(0, n - int(problem.running[t, r]))) for t, r, n in inside]
            total = Fraction(sum(n * int(problem.usage[t, c]) for t, n in fresh for c in row.configurations))
        elif row.measure == "nodes":
            total = Fraction(sum(n * int(problem.usage[t].sum()) for t, _, n in inside))
        else:
            total = Fraction(sum(n for t, _, n in inside if row.sense == "most" or problem.throughput[t] > 0))
        if total > Fraction(row.bound) if row.sense == "most" else total < Fraction(row.bound):
            return None
    return cost


def countable_cells(problem: AllocationProblem, rng: np.random.Generator) -> tuple[int, ...]:
    """A configuration in one region or in all of them."""
    configurations, cell = problem.price.shape[1], int(rng.integers(problem.price.size))
    everywhere = tuple(range(cell % configurations, problem.price.size, configurations))
    return everywhere if rng.integers(2) else (cell,)


def best_operated_by_enumeration(problem: AllocationProblem) -> Fraction | None:
    """Least cost over all allocations, exactly; ``None`` when there is none."""
    costs = (operated_cost(problem, counts) for counts in allocations_within(problem))
    return min((cost for cost in costs if cost is not None), default=None)


def largest_factor_by_enumeration(problem: AllocationProblem) -> Fraction | None:
    """Largest share of all demands, at most 1, that some allocation serves; ``None`` when other rows cannot be met."""
    best: Fraction | None = None
    free = replace(problem, unmet_price=None)
    wanted = [p for p in range(len(problem.demand)) if problem.demand[p] > 0]
    for counts in allocations_within(problem):
        levels = []
        for p in wanted:
            speeds: dict[int, Fraction] = {}
            for (t, r), n in counts.items():
                if problem.phase[t] == p:
                    speeds[r] = speeds.get(r, Fraction(0)) + n * Fraction(float(problem.throughput[t]))
            level = sum(speeds.values(), Fraction(0))
            for row in problem.side_constraints:
                if row.one_lost and row.phases == (p,) and row.bound > 0:
                    largest = max(
                        (problem.throughput[t] for (t, _), n in counts.items() if n and problem.phase[t] == p),
                        default=0,
                    )
                    level = min(
                        level, (sum(speeds.values(), Fraction(0)) - Fraction(float(largest))) / Fraction(row.bound)
                    )
                if row.measure == "tokens_s" and row.phases == (p,) and row.regions is not None and row.bound > 0:
                    level = min(
                        level, sum((speeds.get(r, Fraction(0)) for r in row.regions), Fraction(0)) / Fraction(row.bound)
                    )
            levels.append(level / Fraction(float(problem.demand[p])))
        factor = min([Fraction(1), *levels])
        if best is not None and factor <= best:
            continue
        # The other rows do not know the demand: hold them against an idle problem.
        idle = replace(free, demand=np.zeros_like(problem.demand))
        if operated_cost(idle, counts) is not None:
            best = factor
    return best
