"""Why no allocation meets every demand and every side constraint, in the problem's words.

The elastic problem gives every demand row and every side constraint that asks for "least" a share of it that may be
missing, and minimises the sum of these shares over whole instances; those that ask for "most" always hold with
nothing rented. Its answer says which model phases fall short and by how much; capacity rows with too little left for
another instance are what binds, those that the linear relaxation prices highest first, and so are side constraints
with too little left.

Side constraints in conflict: one after the other is left out for good if demand and capacity cannot be met without it
either (a deletion filter, Chinneck and Dravnieks 1991). What remains conflicts with demand and capacity: one of them has
to go. Whether that is enough beside all others is asked for each of them.

Up to ``MOST_COLUMNS`` columns the elastic problem is solved whole. Above, it holds the columns of least reduced cost in
its linear relaxation, whose optimum still bounds the sum of the shares from below.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from coralopt.allocation.bounds.relaxation import SHORTFALL, Relaxation, least_shortfall, reduced_costs
from coralopt.allocation.check import unmet_demand
from coralopt.allocation.least_bound import least_bound
from coralopt.allocation.model.assembler import assemble
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.reductions import reduce_problem
from coralopt.allocation.side_constraints import SideConstraint, banned, open_constraints
from coralopt.errors import SolverError
from coralopt.solving import Backend, Capability, MatrixResult, Reason, SolveOptions, get_backend, heeded, solve_matrix
from coralopt.types import Floats, Ints

#: Most columns of the elastic problem.
MOST_COLUMNS = 3_000
#: Seconds for the elastic problem where the caller set no limit.
SECONDS = 30.0


def _told(tokens_s: float) -> str:
    """A rate in words: to a tenth, and what is less than one to two digits."""
    return f"{tokens_s:,.1f}" if tokens_s >= 1 else f"{tokens_s:.2g}"


def _rounded_up(bound: float) -> str:
    """A bound in words that is no smaller than it."""
    return f"{bound:,.0f}" if bound == int(bound) else f"{math.ceil(bound * 10_000) / 10_000:,.4f}"


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
        used_up: Names of side constraints that leave no room for another of its instances.
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
                f"{self.phase}: no node set of the pool can serve it with its memory and within its SLO "
                f"(demand {_told(self.demand_tokens_s)} tokens/s); offer larger nodes or loosen the SLO"
            )
        if self.reason == "forbidden":
            return (
                f"{self.phase}: every node set that could serve it is forbidden "
                f"(demand {_told(self.demand_tokens_s)} tokens/s)"
            )
        if self.reason == "does not fit":
            return (
                f"{self.phase}: no region offers the nodes of any of its templates "
                f"(demand {_told(self.demand_tokens_s)} tokens/s); offer more nodes in one region"
            )
        share = 100 * self.missing_tokens_s / self.demand_tokens_s
        names = ", ".join(f"{configuration} in {region}" for configuration, region in self.binding[:6])
        more = f" and {len(self.binding) - 6} more" if len(self.binding) > 6 else ""
        causes = [f"too few nodes left of: {names}{more}"] if names else []
        causes += [f"used up: {', '.join(self.used_up)}"] if self.used_up else []
        return (
            f"{self.phase} falls short by {_told(self.missing_tokens_s)} of {_told(self.demand_tokens_s)} tokens/s "
            f"({share:.1f} %); {'; '.join(causes) or 'too few nodes left of: every kind'}"
        )


@dataclass(frozen=True)
class MissedConstraint:
    """A side constraint that asks for "least" and does not get it.

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
        missing_share: Sum of the missing shares of these demands and side constraints: 0.3 is 30 % of one demand.
        least_share: Proven lower bound of that sum over all allocations.
        missed: "Least" side constraints that are not reached.
        conflict: Names of the side constraints that conflict with demand and capacity; empty when these alone cannot be met.
        irreducible: Whether no one of ``conflict`` is there for nothing, proven.
        enough: Those of ``conflict`` without which, and with all other side constraints, everything can be met, proven.
        decided: Whether that is known of each of them; time may end before.
        eased: Name -> a bound with which everything can be met beside all others, for those of ``enough`` of which one is
            known: within 0.01 % of the least such bound, unless time ended before or there were many columns.
        needed: Name -> proven: with a smaller bound than that not everything can be met.
        broken: Where nothing is missing: what the nearest allocation breaks in exact figures, by less than any solver sees.
    """

    shortfalls: tuple[Shortfall, ...]
    missing_share: float
    least_share: float
    missed: tuple[MissedConstraint, ...] = ()
    conflict: tuple[str, ...] = ()
    irreducible: bool = True
    enough: tuple[str, ...] = ()
    decided: bool = True
    broken: tuple[str, ...] = ()
    eased: Mapping[str, float] = field(default_factory=dict)
    needed: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def of_limit(name: str, enough: float, needed: float) -> Explanation:
        """Where one limit alone is in the way: a bound that is enough, and one below which none is."""
        return Explanation((), 0.0, 0.0, conflict=(name,), enough=(name,), eased={name: enough}, needed={name: needed})

    def optimistic(self) -> Explanation:
        """The same of a problem that promises more than instances keep: what is enough for it may not be."""
        return replace(self, eased={})

    def _of_limit(self, name: str) -> str:
        needed = f"less than {math.floor(self.needed[name] * 10_000) / 10_000:,.4f} is not"
        if name not in self.eased:
            return f"not every demand can be met within {name}: {needed} enough"
        return f"every demand can be met, but not within {name}: {_rounded_up(self.eased[name])} is enough, {needed}"

    def __str__(self) -> str:
        if self.needed:
            return "\n".join(self._of_limit(name) for name in self.needed)
        if not self.shortfalls and not self.missed:
            broken = f": {'; '.join(self.broken)}" if self.broken else ""
            return f"the pool can meet every demand, if only within rounding{broken}"
        items = [*self.shortfalls, *self.missed]
        lines = ["the pool cannot meet every demand:", *(f"  - {item}" for item in items)]
        if self.conflict:
            if self.enough:
                names = (
                    f"{name} ({_rounded_up(self.eased[name])} is enough)" if name in self.eased else name
                    for name in self.enough
                )
                lines.append(
                    f"demand and nodes would do without these options together; ease any one of: {', '.join(names)}"
                )
            else:
                which = "at least one of these has" if self.irreducible else "some of these have"
                others = "and others as well" if self.decided else "maybe others as well"
                lines.append(
                    f"options conflict with demand and nodes; {which} to be eased, {others}: {', '.join(self.conflict)}"
                )
        elif any(item.reason == "capacity" for item in self.shortfalls):
            lines.append("offer more nodes of these, add regions or configurations, or lower the demand")
        return "\n".join(lines)


def explain(
    problem: AllocationProblem, solver: Backend | str = "highs", options: SolveOptions | None = None
) -> Explanation:
    """Solve the elastic problem and say which model phases fall short and what binds.

    Args:
        problem: The allocation problem.
        solver: Name of a MILP back end or a back end itself.
        options: ``time_limit``, ``threads`` and ``seed`` count; the gap is 0.1 % of the missing share.

    Where the solver errs on the elastic problem, whose figures may lie far apart, HiGHS answers: every shortfall is counted
    exactly, whoever says it.
    """
    options, backend = options or SolveOptions(), get_backend(solver)
    try:
        return _explained(problem, backend, options)
    except SolverError:
        if backend.name == "highs":
            raise
        return _explained(problem, get_backend("highs"), options)


def _explained(problem: AllocationProblem, backend: Backend, options: SolveOptions) -> Explanation:
    lp_solver = backend if Capability.LP_DUALS in backend.capabilities else get_backend("highs")
    deadline = time.perf_counter() + (SECONDS if options.time_limit is None else min(SECONDS, options.time_limit))
    small = reduce_problem(problem).problem
    # Money counts in limits only, so a kept instance is like a new one.
    columns = Columns.of(small.unstarted()).without_cost()
    relaxation = least_shortfall(small, columns, lp_solver)
    least = float(relaxation.shortfall.sum())
    chosen = _nearest(small, columns, relaxation)
    whole = len(chosen) == len(columns)
    result = _elastic(small, columns, chosen, backend, options, deadline)
    counts = np.zeros(len(chosen), dtype=np.int64)
    if result.x is not None:
        counts = np.rint(result.x[: len(chosen)]).astype(np.int64)
        if whole and result.termination.reason is Reason.OPTIMAL and result.bound is not None:
            least = max(least, result.bound)
    template, region = columns.template[chosen], columns.region[chosen]
    planned = columns.allocation(counts, chosen)
    unserved = _unserved(small, planned)
    left = problem.availability.copy()
    np.subtract.at(left, region, small.usage[template].astype(np.int64) * counts[:, None])
    tight = _used_up(small, template, region, planned)
    shortfalls = []
    for p in np.flatnonzero([lack > 0 for lack in unserved]).tolist():
        if problem.demand[p] <= 0 or np.isfinite(problem.unmet_prices()[p]):
            continue
        able = problem.rates((p,)) > 0
        mine = problem.usage[able]
        reason = "no template" if not len(mine) else "capacity" if small.rates((p,)).any() else "does not fit"
        if len(mine) and banned(problem)[able].all():
            reason = "forbidden"
        binding = _binding(problem, mine, left, relaxation.capacity_prices) if reason == "capacity" else ()
        lack = min(unserved[p], Fraction(float(problem.demand[p])))
        shortfalls.append(
            Shortfall(
                problem.phase_names[p],
                float(problem.demand[p]),
                float(lack),
                reason,
                binding,
                tuple(item.name for item in tight if item.phases is None or p in item.phases),
            )
        )
    missed = _missed(small, planned)
    total = sum((item.missing_tokens_s / item.demand_tokens_s for item in shortfalls), 0.0)
    total += sum(item.missing / item.asked for item in missed)
    # What is missing by less than the back ends' tolerances conflicts with nothing that they could tell.
    seen = total > SHORTFALL
    # Where all that this allocation misses is one side constraint, everything can be met without that one. Limits that it
    # uses up are worth a question first.
    alone = missed[0].name if len(missed) == 1 and not shortfalls else None
    likely = tuple(item.name for item in tight)
    found = _conflict(problem, alone, likely, lp_solver, backend, options, deadline) if seen else _Conflict()
    eased = {}
    for item in problem.side_constraints:
        if item.name in found.enough and time.perf_counter() < deadline:
            bound = least_bound(problem, item, lp_solver, backend, options, deadline)
            if bound is not None:
                eased[item.name] = bound
    broken = () if shortfalls or missed else small.check(planned).sentences[:3]
    return Explanation(
        tuple(shortfalls),
        total,
        min(least, total),
        missed,
        found.names,
        found.irreducible,
        found.enough,
        found.decided,
        broken,
        eased,
    )


def _nearest(problem: AllocationProblem, columns: Columns, relaxation: Relaxation) -> Ints:
    """The columns that take part in an elastic problem: all, or those of least small cost."""
    chosen = np.arange(len(columns), dtype=np.int64)
    if len(chosen) <= MOST_COLUMNS:
        return chosen
    # In node terms among equals: many columns have small cost 0 where supply is not scarce.
    prices = reduced_costs(
        problem, columns, relaxation.demand_duals, relaxation.capacity_prices, relaxation.side_prices
    )
    density = problem.usage.sum(axis=1) / np.maximum(problem.throughput, 1e-300)
    order = np.lexsort((density[columns.template], np.round(prices, 9)))
    return np.union1d(chosen[order[:MOST_COLUMNS]], np.flatnonzero(relaxation.x > 1e-9))


def _elastic(
    problem: AllocationProblem,
    columns: Columns,
    chosen: Ints,
    backend: Backend,
    options: SolveOptions,
    deadline: float,
) -> MatrixResult:
    rows = len(problem.pools) + sum(item.sense == "least" for item in open_constraints(problem))
    matrix = assemble(problem, columns, chosen, slack=np.ones(rows))
    elastic_options = SolveOptions(
        rel_gap=1e-3,
        abs_gap=SHORTFALL / 10,
        time_limit=max(1.0, deadline - time.perf_counter()),
        threads=options.threads,
        seed=options.seed,
    )
    return heeded(solve_matrix(matrix, backend, elastic_options))


@dataclass(frozen=True)
class _Conflict:
    """Side constraints, bans too, that demand and capacity cannot do with; see :class:`Explanation`."""

    names: tuple[str, ...] = ()
    irreducible: bool = True
    enough: tuple[str, ...] = ()
    decided: bool = True


def _conflict(
    problem: AllocationProblem,
    alone: str | None,
    likely: tuple[str, ...],
    lp_solver: Backend,
    backend: Backend,
    options: SolveOptions,
    deadline: float,
) -> _Conflict:
    """What conflicts, and what is enough: the side constraint ``alone``, if there is one; the ``likely`` come first."""

    def meets(constraints: list[SideConstraint]) -> bool | None:
        """Whether demand and these side constraints can be met together; ``None`` when that is not known."""
        eased = reduce_problem(replace(problem, side_constraints=tuple(constraints)).unstarted()).problem
        columns = Columns.of(eased).without_cost()
        relaxation = least_shortfall(eased, columns, lp_solver)
        if (relaxation.shortfall > SHORTFALL).any():
            return False
        if time.perf_counter() > deadline:
            return None
        chosen = _nearest(eased, columns, relaxation)
        # Whether anything is missing is known sooner than how much.
        limit = max(1.0, deadline - time.perf_counter())
        any_of_them = SolveOptions(time_limit=limit, threads=options.threads, seed=options.seed)
        result = heeded(solve_matrix(assemble(eased, columns, chosen), backend, any_of_them))
        if result.x is not None:
            return True
        refused = result.termination.reason in (Reason.INFEASIBLE, Reason.INFEASIBLE_OR_UNBOUNDED)
        return False if refused and len(chosen) == len(columns) else None

    if not problem.side_constraints or meets([]) is False:
        return _Conflict()
    every = problem.side_constraints
    answers: dict[str, bool | None] = {} if alone is None else {alone: True}

    def ask(item: SideConstraint) -> None:
        """Whether all others can be met without this one."""
        if item.name not in answers:
            answers[item.name] = meets([other for other in every if other is not item])

    for item in every:
        if item.name in likely and time.perf_counter() <= deadline:
            ask(item)
    kept, proven = list(every), True
    for item in every:
        # Without such a one all others can be met, so it is part of any conflict.
        if answers.get(item.name):
            continue
        answer, rest = None, [other for other in kept if other is not item]
        if time.perf_counter() <= deadline:
            if len(kept) == len(every):
                ask(item)
            answer = answers[item.name] if len(kept) == len(every) else meets(rest)
        if answer is False:
            kept = rest
        proven = proven and answer is not None
    if proven:
        for item in kept:
            ask(item)
    names = tuple(item.name for item in kept)
    enough = tuple(name for name in names if answers.get(name))
    return _Conflict(names, proven, enough, all(answers.get(name) is not None for name in names))


def _used_up(problem: AllocationProblem, template: Ints, region: Ints, planned: Allocation) -> list[SideConstraint]:
    """ "Most" constraints with too little left for the smallest instance in their scope."""
    items = []
    for item in open_constraints(problem):
        if item.sense == "most":
            each = item.coefficients(problem, template, region)
            least = each[each > 0].min(initial=np.inf)
            total = item.total(problem, planned.template, planned.region, planned.count)
            if np.isfinite(least) and item.limit(problem) - total < least:
                items.append(item)
    return items


def _missed(problem: AllocationProblem, planned: Allocation) -> tuple[MissedConstraint, ...]:
    missed = []
    for item in open_constraints(problem):
        if item.sense == "least":
            limit = item.limit(problem)
            lack = limit - item.total(problem, planned.template, planned.region, planned.count)
            if lack > SHORTFALL * limit:
                missed.append(MissedConstraint(item.name, limit, lack))
    return tuple(missed)


def _unserved(problem: AllocationProblem, allocation: Allocation) -> list[Fraction]:
    """Unserved tokens/s of every model phase, exactly; of phases with routes what finds no way through them."""
    return unmet_demand(
        replace(problem, unmet_price=None, side_constraints=()),
        [(t, r, n) for (t, r), n in allocation.to_mapping().items()],
    )


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
