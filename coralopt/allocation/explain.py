"""Why no allocation meets every demand, in the problem's words.

The elastic problem gives every demand row a shortfall s_m in [0, T_m] and minimises sum_m s_m / T_m, the sum of the
shares that go unserved, over whole instances. Its answer says which model phases fall short and by how much; capacity
rows with too little left for another instance are what binds, those that the linear relaxation prices highest first.

Up to ``MOST_COLUMNS`` columns the elastic problem is solved whole. Above, it holds the columns of least reduced cost in
its linear relaxation, whose optimum still bounds the sum of the shares from below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.reductions import reduce_problem
from coralopt.allocation.relaxation import SHORTFALL, Columns, least_shortfall, reduced_costs, restricted_matrix
from coralopt.solving import Capability, Reason, SolveOptions, get_backend, solve_matrix

#: Most columns of the elastic problem.
MOST_COLUMNS = 3_000
#: Seconds for the elastic problem where the caller set no limit.
SECONDS = 30.0


@dataclass(frozen=True)
class Shortfall:
    """What one model phase cannot get.

    Attributes:
        phase: Model phase name.
        demand_tokens_s: What it needs.
        missing_tokens_s: What is missing, when the sum of the missing shares is smallest.
        reason: ``"no template"``: no node set of the pool can serve it; ``"does not fit"``: no region can host any of
            its templates even once; ``"capacity"``: there are too few nodes for all of it.
        binding: (configuration, region) pairs that its templates need and that have too few nodes left for another
            instance, the scarcest first.
    """

    phase: str
    demand_tokens_s: float
    missing_tokens_s: float
    reason: str
    binding: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        if self.reason == "no template":
            return (
                f"{self.phase}: no node set of the pool can serve it within its SLO "
                f"(demand {self.demand_tokens_s:,.1f} tokens/s); offer larger nodes or loosen the SLO"
            )
        if self.reason == "does not fit":
            return (
                f"{self.phase}: no region offers the nodes of any of its templates "
                f"(demand {self.demand_tokens_s:,.1f} tokens/s); offer more nodes in one region"
            )
        share = 100 * self.missing_tokens_s / self.demand_tokens_s
        names = ", ".join(f"{configuration} in {region}" for configuration, region in self.binding[:6])
        more = f" and {len(self.binding) - 6} more" if len(self.binding) > 6 else ""
        return (
            f"{self.phase} falls short by {self.missing_tokens_s:,.1f} of {self.demand_tokens_s:,.1f} tokens/s "
            f"({share:.1f} %); too few nodes left of: {names or 'every kind'}{more}"
        )


@dataclass(frozen=True)
class Explanation:
    """Why the demands cannot be met together.

    Attributes:
        shortfalls: One entry a model phase that falls short, empty when nothing does.
        missing_share: Sum of the missing shares of these demands: 0.3 is 30 % of one demand.
        least_share: Proven lower bound of that sum over all allocations.
    """

    shortfalls: tuple[Shortfall, ...]
    missing_share: float
    least_share: float

    def __str__(self) -> str:
        if not self.shortfalls:
            return "the pool can meet every demand, if only within rounding"
        lines = ["the pool cannot meet every demand:", *(f"  - {item}" for item in self.shortfalls)]
        if any(item.reason == "capacity" for item in self.shortfalls):
            lines.append("offer more nodes of these, add regions or configurations, or lower the demand")
        return "\n".join(lines)


def explain(problem: AllocationProblem, solver: Any = "highs", options: SolveOptions | None = None) -> Explanation:
    """Solve the elastic problem and say which model phases fall short and what binds.

    Args:
        problem: The allocation problem.
        solver: Name of a MILP back end or a back end itself.
        options: ``time_limit``, ``threads`` and ``seed`` count; the gap is 0.1 % of the missing share.
    """
    asked = options or SolveOptions()
    backend = get_backend(solver)
    lp_solver = backend if Capability.LP_DUALS in backend.capabilities else get_backend("highs")
    reduced = reduce_problem(problem).problem
    # Money does not count here, so a kept instance is like a new one.
    every = Columns.of(replace(reduced, running=None)).without_cost()
    relaxed = least_shortfall(reduced, every, lp_solver)
    demand = reduced.demand
    share = 1.0 / np.where(demand > 0, demand, 1.0)
    least = float((relaxed.shortfall * share).sum())
    chosen = np.arange(len(every), dtype=np.int64)
    whole = len(chosen) <= MOST_COLUMNS
    if not whole:
        # In node terms among equals: many columns have reduced cost 0 where supply is not scarce.
        prices = reduced_costs(reduced, every, relaxed.demand_duals, relaxed.capacity_prices)
        density = reduced.usage.sum(axis=1) / np.maximum(reduced.throughput, 1e-300)
        order = np.lexsort((density[every.template[chosen]], np.round(prices[chosen], 9)))
        chosen = np.union1d(chosen[order[:MOST_COLUMNS]], np.flatnonzero(relaxed.x > 1e-9))
    matrix = restricted_matrix(reduced, every, chosen, share, math.inf, integer=True)
    result = solve_matrix(
        matrix,
        backend,
        SolveOptions(
            rel_gap=1e-3,
            abs_gap=SHORTFALL / 10,
            time_limit=SECONDS if asked.time_limit is None else min(SECONDS, asked.time_limit),
            threads=asked.threads,
            seed=asked.seed,
        ),
    )
    counts = np.zeros(len(chosen), dtype=np.int64)
    if result.x is not None:
        counts = np.rint(result.x[: len(chosen)]).astype(np.int64)
        if whole and result.termination.reason is Reason.OPTIMAL and result.bound is not None:
            least = max(least, result.bound)
    template, region = every.template[chosen], every.region[chosen]
    missing = _missing(reduced, template, counts)
    left = problem.availability.copy()
    np.subtract.at(left, region, reduced.usage[template].astype(np.int64) * counts[:, None])
    shortfalls = []
    for p in np.flatnonzero([lack > 0 for lack in missing]).tolist():
        mine = problem.usage[(problem.phase == p) & (problem.throughput > 0)]
        reason = "no template" if not len(mine) else "capacity" if (reduced.phase == p).any() else "does not fit"
        binding = _binding(problem, mine, left, relaxed.capacity_prices) if reason == "capacity" else ()
        shortfalls.append(
            Shortfall(problem.phase_names[p], float(problem.demand[p]), float(missing[p]), reason, binding)
        )
    total = sum((lack / Fraction(float(demand[p])) for p, lack in enumerate(missing) if lack > 0), Fraction(0))
    return Explanation(tuple(shortfalls), float(total), min(least, float(total)))


def _missing(
    problem: AllocationProblem, template: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> list[Fraction]:
    """Unserved tokens/s of every model phase, exactly."""
    missing = [Fraction(float(demand)) for demand in problem.demand]
    for t, count in zip(template.tolist(), counts.tolist(), strict=True):
        if count:
            missing[int(problem.phase[t])] -= count * Fraction(float(problem.throughput[t]))
    return [max(Fraction(0), lack) for lack in missing]


def _binding(
    problem: AllocationProblem,
    usage: npt.NDArray[np.int16],
    left: npt.NDArray[np.int64],
    capacity_prices: npt.NDArray[np.float64],
) -> tuple[tuple[str, str], ...]:
    """Pairs with too few nodes left for any of the templates that need them, dearest first."""
    needed = usage.min(axis=0, where=usage > 0, initial=np.iinfo(np.int16).max)
    tight = (usage > 0).any(axis=0) & (problem.availability > 0) & (left < needed)
    region, configuration = np.nonzero(tight)
    order = np.argsort(-capacity_prices[region, configuration], kind="stable")
    return tuple((problem.configuration_names[configuration[k]], problem.region_names[region[k]]) for k in order)
