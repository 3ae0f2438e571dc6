"""What is compared: an arm is a solver with a formulation, for allocations with or without the exact reductions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coralopt.allocation.model import FORMULATIONS as ALLOCATION
from coralopt.errors import BenchmarkError
from coralopt.placement.formulations import FORMULATIONS as PLACEMENT
from coralopt.solving import get_backend, unknown_option

#: Formulations by kind of problem; a model in a file has one, itself.
FORMULATIONS = {"placement": tuple(PLACEMENT), "allocation": tuple(ALLOCATION), "file": ("file",)}


@dataclass(frozen=True)
class Arm:
    """One way to solve instances.

    Attributes:
        solver: Name of a back end.
        formulation: Empty for solvers that take whole problems.
        reductions: Whether ``solve_allocation`` with its exact reductions runs, rather than plain ``solve``.
        restrict: With reductions: most columns that a model may have, for licences that stop at a size.
        arrays: Without reductions: whether the matrix comes straight from the arrays rather than through Pyomo.
    """

    solver: str
    formulation: str = ""
    reductions: bool = False
    restrict: int | None = None
    arrays: bool = False

    @property
    def name(self) -> str:
        """``dp``, ``highs/tight``, ``highs/file``, ``scip/split+reductions``, ``gurobi/split+restrict=1900``."""
        if not self.formulation:
            return self.solver
        way = "+arrays" if self.arrays else "+reductions" if self.reductions else ""
        if self.restrict is not None:
            way = f"+restrict={self.restrict}"
        return f"{self.solver}/{self.formulation}{way}"

    def takes(self, kind: str) -> bool:
        """Whether the arm makes sense for problems of this kind."""
        if not self.formulation:
            return bool(get_backend(self.solver).kind == kind)
        return self.formulation in FORMULATIONS[kind] and (kind == "allocation" or not (self.reductions or self.arrays))


def parse_arm(text: str) -> Arm:
    """The arm of this name.

    Raises:
        BenchmarkError: Unknown formulation, one where none is taken, or an unknown way behind the plus sign.
        SolverNotFoundError: No solver of this name is registered.
    """
    solver, _, rest = text.partition("/")
    formulation, plus, way = rest.partition("+")
    known = sorted({name for names in FORMULATIONS.values() for name in names})
    if (get_backend(solver).kind == "matrix") != bool(formulation) or (formulation and formulation not in known):
        raise BenchmarkError(
            f"{text!r} is no arm; write SOLVER/FORMULATION for matrix solvers (formulations: {', '.join(known)}) and "
            "SOLVER alone for those that take whole problems"
        )
    restricted, _, most = way.partition("restrict=")
    if not plus:
        arm = Arm(solver, formulation)
    elif way == "reductions":
        arm = Arm(solver, formulation, reductions=True)
    elif way == "arrays":
        arm = Arm(solver, formulation, arrays=True)
    elif not restricted and most.isdecimal() and int(most) > 0:
        arm = Arm(solver, formulation, reductions=True, restrict=int(most))
    else:
        raise BenchmarkError(f"{text!r}: behind the plus sign stands reductions, restrict=N or arrays, not {way!r}")
    if plus and not arm.takes("allocation"):
        raise BenchmarkError(
            f"{text!r}: +{way} is for allocation formulations: {', '.join(FORMULATIONS['allocation'])}"
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
            if formulation in (*FORMULATIONS["placement"], *FORMULATIONS["file"]):
                arms.append(Arm(solver, formulation))
            if formulation in FORMULATIONS["allocation"]:
                arms += [Arm(solver, formulation, reduced) for reduced in wanted]
    return list(dict.fromkeys(arms))
