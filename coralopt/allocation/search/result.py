"""The answer of a search, checked once more, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coralopt.allocation.explain import explain
from coralopt.allocation.problem import Allocation
from coralopt.allocation.reductions import Reduction
from coralopt.allocation.search.context import SearchContext
from coralopt.allocation.search.options import AllocationState
from coralopt.allocation.side_constraints import open_constraints
from coralopt.errors import InfeasibleError, NoSolutionError, WrongAnswerError
from coralopt.solving import Limit, Proof, Solution, formulation_name, relative_gap


@dataclass(frozen=True, eq=False)
class AllocationResult:
    """A checked allocation and how good it is.

    Attributes:
        allocation: In terms of the problem's templates.
        cost_usd_h: Exact re-evaluation, USD/h.
        bound_usd_h: Proven lower bound on every allocation, USD/h.
        gap: (cost - bound) / cost.
        formulation: Formulation the back end solved.
        solver: Back end.
        reductions: What each exact reduction did.
        seconds: Seconds by step: ``reductions``, ``relaxation``, ``lagrangian``, ``rounding``, ``decomposition``,
            ``restricted master``, ``rest``, ``coverings``, ``branching``, ``neighbourhood``, ``fixing``, ``check``;
            ``full model`` without reductions.
        columns: All columns after the reductions.
        survivors: Columns left after fixing when the last integer programme was made.
        relaxation_usd_h: Optimum of the linear relaxation, USD/h.
        lagrangian_usd_h: Lagrangian bound, USD/h.
        solutions: What the back end said each time.
        state: For solving a similar problem next; ``None`` where no prices were found.
        interrupted: Whether Ctrl-C cut the search short.
        proof: What the bound rests on: bounds of our own, or what the back end said where that is higher.
    """

    allocation: Allocation
    cost_usd_h: float
    bound_usd_h: float
    gap: float
    formulation: str
    solver: str
    reductions: tuple[Reduction, ...]
    seconds: Mapping[str, float]
    columns: int
    survivors: int
    relaxation_usd_h: float
    lagrangian_usd_h: float
    solutions: tuple[Solution[Allocation], ...]
    state: AllocationState | None = None
    interrupted: bool = False
    proof: Proof = Proof.OWN_BOUND

    def with_bound(self, bound_usd_h: float, proof: Proof = Proof.OWN_BOUND) -> AllocationResult:
        """The same where another bound holds, too; ``proof`` is what that one rests on."""
        if bound_usd_h <= self.bound_usd_h:
            return self
        bound = min(bound_usd_h, self.cost_usd_h)
        return replace(self, bound_usd_h=bound, gap=relative_gap(self.cost_usd_h, bound), proof=proof)


def was_interrupted(error: NoSolutionError) -> bool:
    """Whether Ctrl-C ended a search before any allocation was known."""
    return getattr(getattr(error.result, "termination", None), "limit", None) is Limit.INTERRUPTED


def infeasible(search: SearchContext) -> InfeasibleError:
    """The error that no allocation meets every demand, with the reasons if they are wanted."""
    if not search.options.explained:
        return InfeasibleError("no allocation meets every demand")
    explanation = explain(search.problem, search.backend, search.solve_options)
    return InfeasibleError(str(explanation), explanation)


def finished(search: SearchContext, columns: int) -> AllocationResult:
    """The best allocation in terms of the whole problem's templates, checked against that problem.

    Args:
        search: A search at its end.
        columns: All columns after the reductions.

    Raises:
        NoSolutionError: There is no allocation.
        WrongAnswerError: It fails its check.
    """
    if search.allocation is None:
        last = search.solutions[-1]
        if search.missed:
            raise NoSolutionError(
                f"solver {search.backend.name!r} found no allocation that holds in exact figures, only one within its "
                f"tolerances: {'; '.join(search.missed[:3])}; ease that, or lower the demand",
                last,
            )
        ease = ", ".join(item.name for item in open_constraints(search.problem)[:6])
        raise NoSolutionError(
            f"solver {search.backend.name!r} found no allocation within its limits "
            f"({last.termination.reason.value}: {last.termination.raw}); raise time_limit, lower the demand"
            + (f", or ease {ease}" if search.problem.side_constraints else ""),
            last,
        )
    allocation = search.reduced.restore(search.allocation)
    check = search.problem.check(allocation)
    if not check.feasible:
        raise WrongAnswerError("the allocation fails its check: " + "; ".join(check.sentences[:5]))
    bound = min(search.proven, check.objective)
    search.lap("check")
    prices = search.capacity_prices
    return AllocationResult(
        allocation=allocation,
        cost_usd_h=check.objective,
        bound_usd_h=bound,
        gap=relative_gap(check.objective, bound),
        formulation=formulation_name(search.options.formulation),
        solver=search.backend.name,
        reductions=search.reduced.reductions,
        seconds=search.seconds,
        columns=columns,
        survivors=search.survivors,
        relaxation_usd_h=search.relaxation_usd_h,
        lagrangian_usd_h=search.lagrangian_usd_h,
        solutions=tuple(search.solutions),
        state=None if prices is None else AllocationState(prices),
        interrupted=search.interrupted,
        proof=search.proof,
    )
