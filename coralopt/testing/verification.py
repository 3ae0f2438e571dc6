"""Every solver against every other on random problems: do they agree, and how long do they take?

An *arm* is one way to an answer: a solver with a formulation, the array route, the reductions, the dynamic programme, and
plain enumeration where the instance is small enough. All arms of an instance must agree: on the exact objective of their
checked answers, or on infeasibility. Figures of the instances are such that no tolerance is needed. An answer that its arm
does not prove (out of time, or missed a row by tolerances and was repaired) is counted apart, and must fit the others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coralopt.allocation import AllocationProblem, solve_allocation
from coralopt.errors import CoraloptError, InfeasibleError
from coralopt.placement import PlacementProblem
from coralopt.solving import (
    Backend,
    Capability,
    Reason,
    Solution,
    SolveOptions,
    compile_problem,
    heeded,
    solve,
    solve_compiled,
    solver_listing,
)
from coralopt.templates.executors import Executor, InProcess, ProcessPool
from coralopt.testing.instances import (
    allocation_instance,
    is_wide,
    placement_instance,
    problem_from_json,
    problem_to_json,
)

#: What every arm is asked for: closer than two different objectives of these instances can be.
OPTIONS = SolveOptions(rel_gap=1e-6, abs_gap=1e-6, time_limit=120.0)
#: Proven gap below which an answer is the optimum: different objectives of these instances differ by more.
PROVEN = 1e-5
INFEASIBLE = "infeasible"
Problem = PlacementProblem | AllocationProblem


@dataclass(frozen=True)
class Unproven:
    """A checked answer whose optimality was not proven.

    Attributes:
        objective: Exact.
        bound: What the arm says of the optimum.
        words: How it ended.
    """

    objective: float
    bound: float
    words: str

    def __str__(self) -> str:
        return f"{self.objective} with the bound {self.bound}, not proven: {self.words}"

    def fits(self, optimum: float) -> bool:
        """Whether the optimum, another arm's, is between objective and bound, up to the gap that all are asked for."""
        slack = PROVEN * abs(optimum)
        return min(self.objective, self.bound) - slack <= optimum <= max(self.objective, self.bound) + slack


#: What an arm may say: the exact objective, ``"infeasible"``, an answer without proof, or an error in words.
Said = float | str | Unproven


@dataclass(frozen=True)
class ArmAnswer:
    """What one arm said of one instance.

    Attributes:
        arm: Its name.
        said: What it said.
        seconds: Wall time; models are built once for all solvers, apart from this.
    """

    arm: str
    said: Said
    seconds: float

    @property
    def as_json(self) -> float | str:
        """What it said as a file says it."""
        return self.said if isinstance(self.said, float) else str(self.said)


@dataclass(frozen=True)
class InstanceVerdict:
    """All answers to one instance.

    Attributes:
        kind: ``"placement"`` or ``"allocation"``.
        seed: Of the instance; -1 for one from a file.
        answers: One an arm.
    """

    kind: str
    seed: int
    answers: tuple[ArmAnswer, ...]

    @property
    def agree(self) -> bool:
        """Whether all arms say the same; where figures are wide, up to the gap that every arm was asked for."""
        said = {answer.said for answer in self.answers}
        if said == {INFEASIBLE}:
            return True
        figures = [figure for figure in said if isinstance(figure, float)]
        if not figures or any(isinstance(answer, str) for answer in said):
            return False
        same = len(figures) == 1 or (self.seed >= 0 and is_wide(self.seed))
        close = max(figures) - min(figures) <= PROVEN * max(map(abs, figures))
        return same and close and all(answer.fits(figures[0]) for answer in said if isinstance(answer, Unproven))


def milp_solvers() -> list[str]:
    """Installed matrix solvers that take integer programmes; the plain ``pyomo`` without a name is none."""
    return [
        row["name"]
        for row in solver_listing()
        if row["installed"] and Capability.MILP.value in row["capabilities"] and row["name"] != "pyomo"
    ]


def verify_instance(problem: Problem, solvers: Sequence[str | Backend], seed: int = -1) -> InstanceVerdict:
    """Ask every arm about one problem."""
    answers = []
    for name, ask in _arms(problem, solvers):
        begun = time.perf_counter()
        try:
            said: Said = ask()
        except InfeasibleError:
            said = INFEASIBLE
        except CoraloptError as error:
            said = f"{type(error).__name__}: {error}"
        answers.append(ArmAnswer(name, said, time.perf_counter() - begun))
    return InstanceVerdict(problem.kind, seed, tuple(answers))


def verify_seed(kind: str, seed: int, solvers: Sequence[str]) -> InstanceVerdict:
    """Ask every arm about the instance of a seed."""
    problem: Problem = placement_instance(seed) if kind == "placement" else allocation_instance(seed)
    return verify_instance(problem, solvers, seed)


def verify_seeds(
    kind: str, seeds: Iterable[int], solvers: Sequence[str], workers: int = 1
) -> Iterator[InstanceVerdict]:
    """Verdicts as they come; in the order of the seeds with one worker."""
    executor: Executor = InProcess() if workers == 1 else ProcessPool(workers)
    for _, verdict in executor.run(_verify_task, (kind, solvers), list(seeds)):
        yield verdict


def _verify_task(context: tuple[str, Sequence[str]], seed: int) -> InstanceVerdict:
    kind, solvers = context
    return verify_seed(kind, seed, solvers)


def save_case(verdict: InstanceVerdict, folder: Path) -> Path:
    """Write a disagreement as a file that :func:`load_case` reads; its path."""
    problem = placement_instance(verdict.seed) if verdict.kind == "placement" else allocation_instance(verdict.seed)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{verdict.kind}-{verdict.seed}.json"
    data = {
        "seed": verdict.seed,
        "problem": problem_to_json(problem),
        "answers": {answer.arm: answer.as_json for answer in verdict.answers},
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(data, indent=1), encoding="utf-8")
    part.replace(path)
    return path


def load_case(path: Path) -> tuple[Problem, int]:
    """The problem of a saved case and the seed it is from.

    Raises:
        CoraloptError: The file is missing or holds no problem.
    """
    try:
        case = json.loads(path.read_text(encoding="utf-8"))
        return problem_from_json(case["problem"]), int(case["seed"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CoraloptError(f"{path} is no saved case: {error}; give a file that verify-solvers wrote") from error


def _arms(problem: Problem, solvers: Sequence[str | Backend]) -> Iterator[tuple[str, Callable[[], Said]]]:
    if isinstance(problem, PlacementProblem):
        yield "dp", partial(_said, lambda: solve(problem, "dp", options=OPTIONS))
    # Figures of every size are cut to ranges before they are compiled.
    ranged = isinstance(problem, PlacementProblem) and problem.within(problem.ceiling) is not None
    compiled = {name: None if ranged else compile_problem(problem, name) for name in problem.formulations()}
    for solver in solvers:
        name = solver if isinstance(solver, str) else solver.name
        for formulation, model in compiled.items():
            ask: Callable[[], Solution[Any]] = (
                partial(_in_ranges, problem, solver, formulation)
                if model is None
                else partial(solve_compiled, problem, model, solver, OPTIONS)
            )
            yield f"{name}/{formulation}", partial(_said, ask)
        if isinstance(problem, AllocationProblem):
            yield f"{name}/arrays", partial(_said, partial(solve, problem, solver, "split", OPTIONS, route="arrays"))
            yield f"{name}/reductions", partial(_reduced, problem, solver)


def _said(ask: Callable[[], Solution[Any]]) -> Said:
    result = heeded(ask())
    if result.termination.reason is Reason.INFEASIBLE:
        return INFEASIBLE
    if result.answer is None or result.bound is None:
        return f"{result.termination}"
    # An exact re-evaluation may fall behind a claim by a solver's tolerances, and what it calls optimal be feasible here.
    proven = result.gap <= PROVEN
    return result.objective if proven else Unproven(result.objective, result.bound, result.termination.raw)


def _in_ranges(problem: Problem, solver: str | Backend, formulation: str) -> Solution[Any]:
    assert isinstance(problem, PlacementProblem)
    return solve(problem, solver, formulation, OPTIONS)


def _reduced(problem: AllocationProblem, solver: str | Backend) -> Said:
    result = solve_allocation(problem, solver, OPTIONS)
    proven = result.gap <= PROVEN
    return result.cost_usd_h if proven else Unproven(result.cost_usd_h, result.bound_usd_h, "out of time")
