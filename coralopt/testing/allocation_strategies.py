"""Hypothesis strategies for allocation problems, broken allocations, an oracle that tries everything.

They are public: anyone who writes a formulation, a reduction or a bound can hold it against them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from coralopt.allocation import Allocation, AllocationProblem, Joint
from coralopt.testing.instances import random_routes, random_variants, with_random_means
from coralopt.types import Ints

#: What rows of a linear programme have to spare, so that rounded sums are feasible.
SLACK = 1e-9


@st.composite
def allocation_problems(
    draw: st.DrawFn,
    max_templates: int = 4,
    max_regions: int = 2,
    max_configurations: int = 2,
    max_phases: int = 2,
    max_nodes: int = 2,
    max_available: int = 4,
    running: bool | None = None,
) -> AllocationProblem:
    """Small problems with every trait that matters: ties, running instances, no demand, scarce and infeasible pools.

    Tokens/s and prices are multiples of 1/4, so that sums are exact in floating point whatever their order.

    Args:
        draw: Given by Hypothesis.
        max_templates: Largest T.
        max_regions: Largest R.
        max_configurations: Largest C.
        max_phases: Largest P.
        max_nodes: Most nodes of one configuration in a template.
        max_available: Most nodes of one configuration in a region.
        running: Whether instances run already; ``None`` draws it.
    """
    templates, regions, configurations, phases = (
        draw(st.sampled_from(range(most, 0, -1)))
        for most in (max_templates, max_regions, max_configurations, max_phases)
    )
    # The entries come from a seed: drawn one by one they would be nearly all equal, which tests nothing.
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    usage = rng.integers(0, max_nodes + 1, (templates, configurations)).astype(np.int16)
    empty = usage.sum(axis=1) == 0
    usage[empty, rng.integers(0, configurations, int(empty.sum()))] = 1
    # Few levels make ties and dominance common, many make optima unique.
    levels = draw(st.sampled_from((40, 8, 3)))
    throughput = rng.integers(1, levels + 1, templates) / 4.0
    throughput[rng.random(templates) < draw(st.sampled_from((0.0, 0.0, 0.2)))] = 0.0
    demand = rng.integers(1, draw(st.sampled_from((2, 4, 8))) * levels, phases) / 4.0
    demand[rng.random(phases) < draw(st.sampled_from((0.0, 0.0, 0.4)))] = 0.0
    availability = rng.integers(0, max_available + 1, (regions, configurations))
    price = rng.integers(1, 30, (regions, configurations)) / 4.0
    price[(availability == 0) & (rng.random(price.shape) < 0.5)] = np.nan
    now: Ints | None = None
    if draw(st.booleans()) if running is None else running:
        now = rng.integers(0, 3, (templates, regions)) * (rng.random((templates, regions)) < 0.6)
    return AllocationProblem(
        usage=usage,
        throughput=throughput,
        phase=rng.integers(0, phases, templates).astype(np.int32),
        demand=demand,
        availability=availability,
        price=price,
        running=now,
        penalty=draw(st.sampled_from((0.0, 0.25, 2.0))),
        phase_names=tuple(f"model{p}/decode" for p in range(phases)),
        region_names=tuple(f"region{r}" for r in range(regions)),
        configuration_names=tuple(f"{c + 1}xGPU" for c in range(configurations)),
    )


@st.composite
def joint_problems(draw: st.DrawFn, divided: bool = False) -> AllocationProblem:
    """Small problems some of whose templates serve several model phases at once, or divide their time among them."""
    problem = draw(allocation_problems(max_templates=4, max_phases=3, max_available=3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    entries = [
        (t, p, rng.integers(0, 9) / 4.0)
        for t, own in enumerate(problem.phase.tolist())
        for p in range(len(problem.demand))
        if p != own and rng.random() < 0.6
    ]
    template, phase, throughput = (np.array(part) for part in zip(*entries, strict=True)) if entries else ((), (), ())
    joint = Joint(
        np.asarray(template, dtype=np.int64),
        np.asarray(phase, dtype=np.int32),
        np.asarray(throughput, dtype=np.float64),
        divided,
    )
    return replace(problem, joint=joint)


@st.composite
def divided_problems(draw: st.DrawFn) -> AllocationProblem:
    """Some of them with demand that may go unmet, all of it together."""
    problem = draw(joint_problems(divided=True))
    if not draw(st.booleans()):
        return problem
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    price = rng.integers(1, 200, len(problem.demand)) / np.maximum(problem.demand, 0.25)
    return replace(problem, unmet_price=price, unmet_together=(tuple(range(len(problem.demand))),))


@st.composite
def routed_problems(draw: st.DrawFn, unmet: bool = False) -> AllocationProblem:
    """Small problems whose first phases are one model's prefill, decode and mixed instances, with random routes.

    Args:
        draw: Given by Hypothesis.
        unmet: Whether requests may go unserved at a price.
    """
    problem = draw(allocation_problems(max_templates=4, max_regions=2, max_phases=3, max_available=3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    demand = np.maximum(problem.demand, 0.25)
    phases = len(demand)
    routes = random_routes(rng, min(phases, int(rng.integers(1, 4))), len(problem.region_names))
    if draw(st.booleans()):
        routes = with_random_means(rng, routes)
    price = rng.integers(1, 200, phases) / demand if unmet else None
    return replace(
        problem,
        demand=demand,
        routes=(routes,),
        unmet_price=price,
        unmet_together=(routes.phases,) if unmet else (),
    )


@st.composite
def varied_problems(draw: st.DrawFn) -> AllocationProblem:
    """Small problems of one model with two or three variants, of which a mean quality is asked for."""
    size = draw(st.integers(3, 5))
    problem = draw(allocation_problems(max_templates=5, max_regions=2, max_phases=size, max_available=2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    demand = np.maximum(problem.demand, 0.25)
    routes = random_variants(rng, len(demand), len(problem.region_names))
    return replace(problem, demand=demand, routes=(routes,))


def flow_by_linear_programme(problem: AllocationProblem, allocation: Allocation) -> float | None:
    """USD/h of routes and unmet demand of an allocation by a general solver; ``None`` where some requests find no way."""
    from scipy.optimize import linprog

    routes = [(model, route) for model in problem.routes for route in model.routes]
    groups = problem.unmet_groups()
    costs = [route.usd_h for _, route in routes] + [price for _, price, _ in groups]
    rows, limits = [], []
    for p, region in zip(problem.pools.phase.tolist(), problem.pools.region.tolist(), strict=True):
        mine = (problem.phase[allocation.template] == p) & ((allocation.region == region) | (region < 0))
        given = float((problem.throughput[allocation.template] * allocation.count)[mine].sum())
        routed = any(p in model.phases for model in problem.routes)
        need = [float((p, None if region < 0 else region) in route.pools) for _, route in routes]
        spare = [0.0 if routed else -float(p in group) for group, _, _ in groups]
        rows.append([problem.demand[p] * value for value in (*need, *spare)])
        limits.append(given if routed else given - problem.demand[p])
    for model in problem.routes:
        rows.append(
            [-float(owner is model) for owner, _ in routes]
            + [-float(model.phases[0] in group) for group, _, _ in groups]
        )
        limits.append(-1.0)
        for mean in model.means:
            terms = iter(mean.terms())
            rows.append([-float(next(terms)) if owner is model else 0.0 for owner, _ in routes] + [0.0] * len(groups))
            limits.append(0.0)
    optimum = linprog(costs, A_ub=np.array(rows), b_ub=np.array(limits) + SLACK, bounds=(0, 1))
    # Without the slack, which at high prices saves more than a millionth.
    return float(optimum.fun - SLACK * optimum.ineqlin.marginals.sum()) if optimum.status == 0 else None


def best_with_routes(problem: AllocationProblem) -> float | None:
    """Least cost in USD/h by trying all counts, each with its best flow; ``None`` when none serves. Tiny problems only."""
    return _best_of_all_counts(problem, flow_by_linear_programme)


def best_with_divided_time(problem: AllocationProblem) -> float | None:
    """The same where templates divide their time, each number of instances with its best shares of time."""
    return _best_of_all_counts(problem, time_by_linear_programme)


def time_by_linear_programme(problem: AllocationProblem, allocation: Allocation) -> float | None:
    """0 where some shares of time serve every demand, by SciPy; the price of what is unmet where there is one."""
    from scipy.optimize import linprog

    gives: dict[int, dict[int, float]] = {
        t: {int(problem.phase[t]): float(problem.throughput[t])} for t in allocation.template.tolist()
    }
    joint = problem.joint
    for t, p, rate in zip(joint.template.tolist(), joint.phase.tolist(), joint.throughput.tolist(), strict=True):
        if t in gives:
            gives[t][p] = rate
    items = list(allocation.to_mapping().items())
    places = [(k, p) for k, ((t, _), _) in enumerate(items) for p in gives[t]]
    groups = problem.unmet_groups()
    rows = [[float(k == own) for own, _ in places] + [0.0] * len(groups) for k in range(len(items))]
    limits = [float(count) for _, count in items]
    for p, wanted in enumerate(problem.demand.tolist()):
        served = [-gives[items[k][0][0]][q] if q == p else 0.0 for k, q in places]
        rows.append(served + [-wanted if p in group else 0.0 for group, _, _ in groups])
        limits.append(-wanted)
    costs = [0.0] * len(places) + [price for _, price, _ in groups]
    if not costs:
        return None if problem.demand.any() else 0.0
    bounds = [(0, None)] * len(places) + [(0, most) for _, _, most in groups]
    optimum = linprog(costs, A_ub=np.array(rows), b_ub=np.array(limits) + SLACK, bounds=bounds)
    # Without the slack, which at high prices saves more than a millionth.
    return float(optimum.fun - SLACK * optimum.ineqlin.marginals.sum()) if optimum.status == 0 else None


def _best_of_all_counts(
    problem: AllocationProblem, rest: Callable[[AllocationProblem, Allocation], float | None]
) -> float | None:
    """Least rent and ``rest`` of it over all counts."""
    templates, regions, _, _ = problem.shape
    bare = replace(
        problem,
        demand=np.zeros_like(problem.demand),
        routes=(),
        unmet_price=None,
        unmet_together=(),
        unmet_tiers=(),
        joint=Joint(),
    )
    pairs = [(t, r) for t in range(templates) for r in range(regions) if problem.most_instances()[t, r]]
    best = math.inf

    def visit(position: int, counts: dict[tuple[int, int], int]) -> None:
        nonlocal best
        allocation = Allocation.of(counts)
        check = bare.check(allocation)
        if not check.feasible or check.objective >= best:
            return
        if position == len(pairs):
            flow = rest(problem, allocation)
            best = best if flow is None else min(best, check.objective + flow)
            return
        for count in range(int(problem.most_instances()[pairs[position]]) + 1):
            visit(position + 1, {**counts, pairs[position]: count})

    visit(0, {})
    return None if math.isinf(best) else best


def best_by_enumeration(problem: AllocationProblem) -> Fraction | None:
    """Least cost in USD/h over all allocations, exactly; ``None`` when none meets the demand. Tiny problems only."""
    templates, regions, _, _ = problem.shape
    penalty = Fraction(float(problem.penalty))
    pairs: list[tuple[dict[int, Fraction], int, list[int], Fraction, int]] = []
    gives: list[dict[int, Fraction]] = [
        {p: Fraction(rate)} for p, rate in zip(problem.phase.tolist(), problem.throughput.tolist(), strict=True)
    ]
    joint = problem.joint
    for t, p, rate in zip(joint.template.tolist(), joint.phase.tolist(), joint.throughput.tolist(), strict=True):
        gives[t][p] = Fraction(rate)
    for t in range(templates):
        for r in range(regions):
            usage = problem.usage[t].tolist()
            if all(n <= problem.availability[r, c] for c, n in enumerate(usage)):
                price = sum((n * Fraction(float(problem.price[r, c])) for c, n in enumerate(usage) if n), Fraction(0))
                now = 0 if problem.running is None else int(problem.running[t, r])
                pairs.append((gives[t], r, usage, price, now))
    left = problem.availability.tolist()
    missing = [Fraction(float(d)) for d in problem.demand]
    best: list[Fraction | None] = [None]

    def visit(position: int, cost: Fraction) -> None:
        if best[0] is not None and cost >= best[0]:
            return
        if all(m <= 0 for m in missing):
            best[0] = cost
            return
        if position == len(pairs):
            return
        rates, r, usage, price, now = pairs[position]
        count = 0
        while True:
            visit(position + 1, cost + price * (count + max(0, count - now) * penalty))
            useful = any(missing[p] > 0 and speed > 0 for p, speed in rates.items())
            if not useful or any(n > left[r][c] for c, n in enumerate(usage)):
                break
            count += 1
            for p, speed in rates.items():
                missing[p] -= speed
            for c, n in enumerate(usage):
                left[r][c] -= n
        for p, speed in rates.items():
            missing[p] += count * speed
        for c, n in enumerate(usage):
            left[r][c] += count * n

    visit(0, Fraction(0))
    return best[0]


def least_shortfall_by_enumeration(problem: AllocationProblem) -> Fraction:
    """Least sum over model phases of the unserved share of the demand, exactly. Tiny problems only."""
    templates, regions, configurations, _ = problem.shape
    wanted = [Fraction(float(d)) for d in problem.demand]
    pairs = [
        (int(problem.phase[t]), r, problem.usage[t].tolist(), Fraction(float(problem.throughput[t])))
        for t in range(templates)
        for r in range(regions)
        if all(problem.usage[t, c] <= problem.availability[r, c] for c in range(configurations))
    ]
    left = problem.availability.tolist()
    missing = list(wanted)

    def visit(position: int) -> Fraction:
        if position == len(pairs):
            return sum((max(Fraction(0), m) / d for m, d in zip(missing, wanted, strict=True) if d > 0), Fraction(0))
        p, r, usage, speed = pairs[position]
        count = 0
        best = visit(position + 1)
        while best > 0 and missing[p] > 0 and speed > 0 and all(n <= left[r][c] for c, n in enumerate(usage)):
            count += 1
            missing[p] -= speed
            for c, n in enumerate(usage):
                left[r][c] -= n
            best = min(best, visit(position + 1))
        missing[p] += count * speed
        for c, n in enumerate(usage):
            left[r][c] += count * n
        return best

    return visit(0)


@st.composite
def corrupted(draw: st.DrawFn, problem: AllocationProblem, allocation: Allocation) -> Allocation:
    """``allocation`` with one thing broken that any checker must see, whatever the problem."""
    templates, regions, _, _ = problem.shape
    counts = allocation.count.copy()
    kinds = ["stranger", "abroad", "ragged"]
    if len(counts):
        kinds += ["negative", "crowd", "fraction", "twice"]
    kind = draw(st.sampled_from(kinds))
    k = draw(st.integers(0, len(counts) - 1)) if len(counts) else 0
    one = np.ones(1, dtype=np.int64)
    if kind == "stranger":
        return _appended(allocation, templates, 0)
    if kind == "abroad":
        return _appended(allocation, 0, regions)
    if kind == "ragged":
        return replace(allocation, count=np.concatenate([counts, one]))
    if kind == "twice":
        return _appended(allocation, int(allocation.template[k]), int(allocation.region[k]))
    if kind == "fraction":
        return replace(allocation, count=counts + np.where(np.arange(len(counts)) == k, 0.5, 0.0))
    counts[k] = -1 if kind == "negative" else int(problem.availability.sum()) + 1
    return replace(allocation, count=counts)


def _appended(allocation: Allocation, template: int, region: int) -> Allocation:
    return Allocation(
        template=np.append(allocation.template, template),
        region=np.append(allocation.region, region),
        count=np.append(allocation.count, 1),
    )
