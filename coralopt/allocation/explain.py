"""Why no allocation meets every demand and every side row, in the problem's words.

The elastic problem gives every demand row and every side row that asks for "least" a share of it that may be missing, and
minimises the sum of these shares over whole instances; rows that ask for "most" always hold with nothing rented. Its
answer says which model phases fall short and by how much; capacity rows with too little left for another instance are
what binds, those that the linear relaxation prices highest first, and so are side rows with too little left.

Side rows in conflict: one after the other is left out for good if demand and capacity cannot be met without it either (a
deletion filter, Chinneck and Dravnieks 1991). What remains conflicts with demand and capacity, and leaving out any one
of them would do.

Up to ``MOST_COLUMNS`` columns the elastic problem is solved whole. Above, it holds the columns of least reduced cost in
its linear relaxation, whose optimum still bounds the sum of the shares from below.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from coralopt.allocation.bounds.relaxation import SHORTFALL, Columns, least_shortfall, reduced_costs, restricted_matrix
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.reductions import reduce_problem
from coralopt.allocation.side_constraints import SideRow, banned, open_rows
from coralopt.solving import Capability, MatrixResult, Reason, SolveOptions, get_backend, heeded, solve_matrix
from coralopt.types import Floats, Ints

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
            its templates even once; ``"forbidden"``: bans leave none of them; ``"capacity"``: there are too few nodes
            for all of it.
        binding: (configuration, region) pairs that its templates need and that have too few nodes left for another
            instance, the scarcest first.
        used_up: Names of side rows that leave no room for another of its instances.
    """

    phase: str
    demand_tokens_s: float
    missing_tokens_s: float
    reason: str
    binding: tuple[tuple[str, str], ...]
    used_up: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.reason == "no template":
            return (
                f"{self.phase}: no node set of the pool can serve it within its SLO "
                f"(demand {self.demand_tokens_s:,.1f} tokens/s); offer larger nodes or loosen the SLO"
            )
        if self.reason == "forbidden":
            return (
                f"{self.phase}: every node set that could serve it is forbidden "
                f"(demand {self.demand_tokens_s:,.1f} tokens/s)"
            )
        if self.reason == "does not fit":
            return (
                f"{self.phase}: no region offers the nodes of any of its templates "
                f"(demand {self.demand_tokens_s:,.1f} tokens/s); offer more nodes in one region"
            )
        share = 100 * self.missing_tokens_s / self.demand_tokens_s
        names = ", ".join(f"{configuration} in {region}" for configuration, region in self.binding[:6])
        more = f" and {len(self.binding) - 6} more" if len(self.binding) > 6 else ""
        causes = [f"too few nodes left of: {names}{more}"] if names else []
        causes += [f"used up: {', '.join(self.used_up)}"] if self.used_up else []
        return (
            f"{self.phase} falls short by {self.missing_tokens_s:,.1f} of {self.demand_tokens_s:,.1f} tokens/s "
            f"({share:.1f} %); {'; '.join(causes) or 'too few nodes left of: every kind'}"
        )


@dataclass(frozen=True)
class MissedRow:
    """A side row that asks for "least" and does not get it.

    Attributes:
        name: Its name.
        asked: Instances, or tokens/s.
        missing: How much of that is missing.
    """

    name: str
    asked: float
    missing: float

    def __str__(self) -> str:
        return f"{self.name}: {self.missing:,.6g} of {self.asked:,.6g} are missing"


@dataclass(frozen=True)
class Explanation:
    """Why the demands cannot be met together.

    Attributes:
        shortfalls: One entry a model phase that falls short, empty when nothing does.
        missing_share: Sum of the missing shares of these demands and rows: 0.3 is 30 % of one demand.
        least_share: Proven lower bound of that sum over all allocations.
        missed: "Least" side rows that are not reached.
        conflict: Names of the side rows that conflict with demand and capacity; empty when these alone cannot be met.
        irreducible: Whether leaving out any one row of ``conflict`` would do, proven.
    """

    shortfalls: tuple[Shortfall, ...]
    missing_share: float
    least_share: float
    missed: tuple[MissedRow, ...] = ()
    conflict: tuple[str, ...] = ()
    irreducible: bool = True

    def __str__(self) -> str:
        if not self.shortfalls and not self.missed:
            return "the pool can meet every demand, if only within rounding"
        items = [*self.shortfalls, *self.missed]
        lines = ["the pool cannot meet every demand:", *(f"  - {item}" for item in items)]
        if self.conflict:
            which = "ease any one of" if self.irreducible else "ease some of"
            lines.append(
                f"demand and nodes would do without these options together; {which}: {', '.join(self.conflict)}"
            )
        elif any(item.reason == "capacity" for item in self.shortfalls):
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
    deadline = time.perf_counter() + (SECONDS if asked.time_limit is None else min(SECONDS, asked.time_limit))
    reduced = reduce_problem(problem).problem
    # Money counts in limits only, so a kept instance is like a new one.
    every = Columns.of(replace(reduced, running=None)).without_cost()
    relaxed = least_shortfall(reduced, every, lp_solver)
    least = float(relaxed.shortfall.sum())
    chosen = _nearest(reduced, every, relaxed)
    whole = len(chosen) == len(every)
    result = _elastic(reduced, every, chosen, backend, asked, deadline)
    counts = np.zeros(len(chosen), dtype=np.int64)
    if result.x is not None:
        counts = np.rint(result.x[: len(chosen)]).astype(np.int64)
        if whole and result.termination.reason is Reason.OPTIMAL and result.bound is not None:
            least = max(least, result.bound)
    template, region = every.template[chosen], every.region[chosen]
    missing = _missing(reduced, template, counts)
    left = problem.availability.copy()
    np.subtract.at(left, region, reduced.usage[template].astype(np.int64) * counts[:, None])
    tight = _used_up(reduced, template, region, counts)
    shortfalls = []
    for p in np.flatnonzero([lack > 0 for lack in missing]).tolist():
        if problem.demand[p] <= 0 or np.isfinite(problem.unmet_price()[p]):
            continue
        able = (problem.phase == p) & (problem.throughput > 0)
        mine = problem.usage[able]
        reason = "no template" if not len(mine) else "capacity" if (reduced.phase == p).any() else "does not fit"
        if len(mine) and banned(problem)[able].all():
            reason = "forbidden"
        binding = _binding(problem, mine, left, relaxed.capacity_prices) if reason == "capacity" else ()
        lack = min(missing[p], Fraction(float(problem.demand[p])))
        shortfalls.append(
            Shortfall(
                problem.phase_names[p],
                float(problem.demand[p]),
                float(lack),
                reason,
                binding,
                tuple(row.name for row in tight if row.phases is None or p in row.phases),
            )
        )
    missed = _missed(reduced, template, region, counts)
    total = sum((item.missing_tokens_s / item.demand_tokens_s for item in shortfalls), 0.0)
    total += sum(item.missing / item.asked for item in missed)
    conflict, irreducible = _conflict(problem, lp_solver, backend, asked, deadline)
    return Explanation(tuple(shortfalls), total, min(least, total), missed, conflict, irreducible)


def _nearest(problem: AllocationProblem, every: Columns, relaxed: Any) -> Ints:
    """The columns that take part in an elastic problem: all, or those of least reduced cost."""
    chosen = np.arange(len(every), dtype=np.int64)
    if len(chosen) <= MOST_COLUMNS:
        return chosen
    # In node terms among equals: many columns have reduced cost 0 where supply is not scarce.
    prices = reduced_costs(problem, every, relaxed.demand_duals, relaxed.capacity_prices, relaxed.side_prices)
    density = problem.usage.sum(axis=1) / np.maximum(problem.throughput, 1e-300)
    order = np.lexsort((density[every.template], np.round(prices, 9)))
    return np.union1d(chosen[order[:MOST_COLUMNS]], np.flatnonzero(relaxed.x > 1e-9))


def _elastic(
    problem: AllocationProblem,
    every: Columns,
    chosen: Ints,
    backend: Any,
    asked: SolveOptions,
    deadline: float,
) -> MatrixResult:
    rows = len(problem.demand) + sum(row.sense == "least" for row in open_rows(problem))
    matrix = restricted_matrix(problem, every, chosen, np.ones(rows), integer=True)
    options = SolveOptions(
        rel_gap=1e-3,
        abs_gap=SHORTFALL / 10,
        time_limit=max(1.0, deadline - time.perf_counter()),
        threads=asked.threads,
        seed=asked.seed,
    )
    return heeded(solve_matrix(matrix, backend, options))


def _conflict(
    problem: AllocationProblem, lp_solver: Any, backend: Any, asked: SolveOptions, deadline: float
) -> tuple[tuple[str, ...], bool]:
    """Side rows, bans too, that demand and capacity cannot do with, and whether each is needed for that, proven."""

    def meets(rows: list[SideRow]) -> bool | None:
        """Whether demand and these rows can be met together; ``None`` when that is not known."""
        eased = reduce_problem(replace(problem, rows=tuple(rows), running=None)).problem
        every = Columns.of(eased).without_cost()
        relaxed = least_shortfall(eased, every, lp_solver)
        if (relaxed.shortfall > SHORTFALL).any():
            return False
        if time.perf_counter() > deadline:
            return None
        chosen = _nearest(eased, every, relaxed)
        found = _elastic(eased, every, chosen, backend, asked, deadline)
        if found.x is not None and found.objective <= SHORTFALL:
            return True
        return False if len(chosen) == len(every) and (found.bound or 0.0) > SHORTFALL / 2 else None

    if not problem.rows or meets([]) is False:
        return (), True
    kept, proven = list(problem.rows), True
    for row in problem.rows:
        if time.perf_counter() > deadline:
            return tuple(row.name for row in kept), False
        rest = [other for other in kept if other is not row]
        answer = meets(rest)
        if answer is False:
            kept = rest
        proven = proven and answer is not None
    return tuple(row.name for row in kept), proven


def _used_up(
    problem: AllocationProblem,
    template: Ints,
    region: Ints,
    counts: Ints,
) -> list[SideRow]:
    """ "Most" rows with too little left for the smallest instance in their scope."""
    found = []
    for row in open_rows(problem):
        if row.sense == "most":
            each = row.coefficients(problem, template, region)
            least = each[each > 0].min(initial=np.inf)
            if np.isfinite(least) and row.limit(problem) - float(each @ counts) < least:
                found.append(row)
    return found


def _missed(
    problem: AllocationProblem,
    template: Ints,
    region: Ints,
    counts: Ints,
) -> tuple[MissedRow, ...]:
    found = []
    for row in open_rows(problem):
        if row.sense == "least":
            limit = row.limit(problem)
            lack = limit - float(row.coefficients(problem, template, region) @ counts)
            if lack > SHORTFALL * limit:
                found.append(MissedRow(row.name, limit, lack))
    return tuple(found)


def _missing(problem: AllocationProblem, template: Ints, counts: Ints) -> list[Fraction]:
    """Unserved tokens/s of every model phase, exactly."""
    missing = [Fraction(float(demand)) for demand in problem.demand]
    for t, count in zip(template.tolist(), counts.tolist(), strict=True):
        if count:
            missing[int(problem.phase[t])] -= count * Fraction(float(problem.throughput[t]))
    return [max(Fraction(0), lack) for lack in missing]


def _binding(
    problem: AllocationProblem,
    usage: npt.NDArray[np.int16],
    left: Ints,
    capacity_prices: Floats,
) -> tuple[tuple[str, str], ...]:
    """Pairs with too few nodes left for any of the templates that need them, dearest first."""
    needed = usage.min(axis=0, where=usage > 0, initial=np.iinfo(np.int16).max)
    tight = (usage > 0).any(axis=0) & (problem.availability > 0) & (left < needed)
    region, configuration = np.nonzero(tight)
    order = np.argsort(-capacity_prices[region, configuration], kind="stable")
    return tuple((problem.configuration_names[configuration[k]], problem.region_names[region[k]]) for k in order)
