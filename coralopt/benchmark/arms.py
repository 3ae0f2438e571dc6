"""What is compared: an arm is a solver with a formulation, for allocations with or without the exact reductions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coralopt.allocation.formulations import FORMULATIONS as ALLOCATION
from coralopt.errors import BenchmarkError
from coralopt.placement.formulations import FORMULATIONS as PLACEMENT
from coralopt.solving import get_backend, unknown_option

#: Mark of an arm that runs the reductions.
REDUCED = "+reductions"
#: Mark of one that runs them and never hands over more than so many columns.
RESTRICTED = "+restrict="
#: Formulations by kind of problem.
FORMULATIONS = {"placement": tuple(PLACEMENT), "allocation": tuple(ALLOCATION)}


@dataclass(frozen=True)
class Arm:
    """One way to solve instances.

    Attributes:
        solver: Name of a back end.
        formulation: Empty for solvers that take whole problems.
        reductions: Whether ``solve_allocation`` with its exact reductions runs, rather than plain ``solve``.
        restrict: With reductions: most columns that a model may have, for licences that stop at a size.
    """

    solver: str
    formulation: str = ""
    reductions: bool = False
    restrict: int | None = None

    @property
    def name(self) -> str:
        """``dp``, ``highs/tight``, ``scip/split+reductions``, ``gurobi/split+restrict=1900``."""
        tail = f"/{self.formulation}" if self.formulation else ""
        if self.restrict is not None:
            return f"{self.solver}{tail}{RESTRICTED}{self.restrict}"
        return f"{self.solver}{tail}{REDUCED if self.reductions else ''}"

    def takes(self, kind: str) -> bool:
        """Whether the arm makes sense for problems of this kind."""
        if not self.formulation:
            return bool(get_backend(self.solver).kind == kind)
        return self.formulation in FORMULATIONS[kind] and (kind == "allocation" or not self.reductions)


def parse_arm(text: str) -> Arm:
    """The arm of this name.

    Raises:
        BenchmarkError: Unknown formulation, or one where none is taken.
        SolverNotFoundError: No solver of this name is registered.
    """
    solver, _, formulation = text.partition("/")
    formulation, reduced, rest = formulation.partition(REDUCED)
    formulation, restricted, most = formulation.partition(RESTRICTED)
    if restricted and (reduced or not most.isdecimal() or int(most) < 1):
        raise BenchmarkError(f"{text!r}: write {RESTRICTED}N with the most columns that a model may have")
    arm = Arm(solver, formulation, bool(reduced or restricted), int(most) if restricted else None)
    matrix = get_backend(solver).kind == "matrix"
    known = sorted({name for names in FORMULATIONS.values() for name in names})
    if matrix != bool(formulation) or rest or (formulation and formulation not in known):
        raise BenchmarkError(
            f"{text!r} is no arm; write SOLVER/FORMULATION for matrix solvers (formulations: {', '.join(known)}), "
            f"SOLVER alone for those that take whole problems, and {REDUCED} or {RESTRICTED}N behind an allocation arm"
        )
    if not any(arm.takes(kind) for kind in FORMULATIONS):
        raise BenchmarkError(
            f"{text!r}: {REDUCED} is for allocation formulations: {', '.join(FORMULATIONS['allocation'])}"
        )
    return arm


def make_arms(solvers: Sequence[str], formulations: Sequence[str], reductions: Iterable[bool]) -> list[Arm]:
    """All sensible combinations; a placement formulation has no reductions, a whole-problem solver no formulation.

    Raises:
        BenchmarkError: Unknown formulation.
        SolverNotFoundError: No solver of this name is registered.
    """
    known = sorted({name for names in FORMULATIONS.values() for name in names})
    for formulation in formulations:
        if formulation not in known:
            raise BenchmarkError(unknown_option("formulation", formulation, known))
    arms: list[Arm] = []
    wanted = list(reductions)
    for solver in solvers:
        if get_backend(solver).kind != "matrix":
            arms.append(Arm(solver))
            continue
        for formulation in formulations or known:
            if formulation in FORMULATIONS["placement"]:
                arms.append(Arm(solver, formulation))
            if formulation in FORMULATIONS["allocation"]:
                arms += [Arm(solver, formulation, reduced) for reduced in wanted]
    return list(dict.fromkeys(arms))
