"""cuOpt needs a GPU: HiGHS stands in behind its documented types, so that what is handed over and read back is tried."""

from __future__ import annotations

import sys
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from coralopt_cuopt import CuoptBackend
from scipy.sparse import csr_array

from coralopt.errors import OptionError, SolverError
from coralopt.solving import MilpMatrix, solve_matrix
from coralopt.testing.compliance.case import INFINITY, knapsack, matrix

_PARAMETERS = {"time_limit", "log_to_console", "mip_relative_gap", "mip_absolute_gap", "num_cpu_threads", "presolve"}
_PARAMETERS |= {f"{a}_{b}_tolerance" for a in ("absolute", "relative") for b in ("primal", "dual", "gap")}
_PARAMETERS |= {"mip_absolute_tolerance", "mip_relative_tolerance", "mip_integrality_tolerance", "crossover"}
_PARAMETERS |= {"infeasibility_detection", "method"}


class _Status(IntEnum):
    Optimal = 1
    Infeasible = 2
    Unbounded = 3
    FeasibleFound = 4


class _Model:
    """Keeps what its setters are given, as cuOpt's data model does."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("set_"):
            raise AttributeError(name)
        return lambda *values: self.given.update({name.removeprefix("set_"): values})

    def matrix(self) -> MilpMatrix:
        """The data model read back."""
        one = {name: values[0] for name, values in self.given.items()}
        data, indices, offsets = self.given["csr_constraint_matrix"]
        assert (indices.dtype, offsets.dtype, data.dtype) == (np.int32, np.int32, np.float64)
        rows, columns = len(offsets) - 1, len(one["objective_coefficients"])
        return MilpMatrix(
            c=one["objective_coefficients"],
            offset=one["objective_offset"],
            a=csr_array((data, indices, offsets), shape=(rows, columns)).tocsc(),
            row_lower=one["constraint_lower_bounds"],
            row_upper=one["constraint_upper_bounds"],
            lower=one["variable_lower_bounds"],
            upper=one["variable_upper_bounds"],
            integer=one["variable_types"] == "I",
            maximize=one["maximize"],
            column_names=[f"x{j}" for j in range(columns)],
            row_names=[f"row{i}" for i in range(rows)],
        )


class _Settings:
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def get_parameter(self, name: str) -> Any:
        return self.values.get(name, 1)

    def set_parameter(self, name: str, value: Any) -> None:
        if name not in _PARAMETERS:
            raise ValueError("Invalid parameter. Please check documentation")
        self.values[name] = value


def _solve(model: _Model, settings: _Settings) -> SimpleNamespace:
    programme = model.matrix()
    solved = solve_matrix(programme, "highs", {"rel_gap": settings.values["mip_relative_gap"]})
    status = _Status[solved.termination.reason.name.title()]
    x = np.zeros(0) if solved.x is None else solved.x
    mip = bool(programme.integer.any())
    bound = np.nan if solved.bound is None else solved.bound
    return SimpleNamespace(
        get_error_status=lambda: 0,
        get_error_message=lambda: "",
        get_termination_reason=lambda: status.name,
        get_primal_solution=lambda: x,
        get_primal_objective=lambda: solved.objective,
        get_dual_solution=lambda: solved.row_duals,
        get_milp_stats=lambda: {
            "solution_bound": bound,
            "num_nodes": 3,
            "num_simplex_iterations": 5,
        },
        get_lp_stats=lambda: pytest.fail("a MIP") if mip else {"nb_iterations": 7},
    )


@pytest.fixture
def cuopt(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A package in cuOpt's place."""
    package, parent = ModuleType("cuopt.linear_programming"), ModuleType("cuopt")
    vars(package).update(DataModel=_Model, SolverSettings=_Settings, Solve=_solve)
    parameters = ModuleType("cuopt.linear_programming.solver.solver_parameters")
    vars(parameters).update(solver_params=sorted(_PARAMETERS))
    for module in (parent, package, ModuleType("cuopt.linear_programming.solver"), parameters):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("coralopt.solving.plugin.version", lambda name: "26.2.0")
    return SimpleNamespace(package=package)


@pytest.mark.usefixtures("cuopt")
def test_what_is_handed_over_and_read_back() -> None:
    """Ranges, free columns, senses, offsets; bounds of a MIP, prices of an LP; no answer where there is none."""
    for programme in (knapsack(), knapsack(maximize=False, offset=5.0)):
        known, seen = solve_matrix(programme, "highs"), solve_matrix(programme, CuoptBackend())
        assert seen.objective == pytest.approx(known.objective)
        assert seen.bound == pytest.approx(known.bound)
        assert seen.nodes == 3
    rows: list[Any] = [([1.0, 1.0], 1.0, 3.0), ([1.0, -1.0], -INFINITY, 2.0)]
    linear = matrix([2.0, 3.0], rows, [(-INFINITY, 9.0), (0.0, INFINITY)], integer=False)
    known, seen = solve_matrix(linear, "highs"), solve_matrix(linear, CuoptBackend())
    assert seen.row_duals is not None
    assert known.row_duals is not None
    assert seen.row_duals.tolist() == pytest.approx(known.row_duals.tolist())
    impossible = solve_matrix(matrix([1.0], [([1.0], 4.0, 5.0)], (0.0, 3.0)), CuoptBackend())
    assert impossible.termination.reason.name == "INFEASIBLE"


def test_options_and_failures(cuopt: SimpleNamespace) -> None:
    """A wrong option is told by its name; an error of the solver is no answer."""
    with pytest.raises(OptionError, match="no_such"):
        solve_matrix(knapsack(), CuoptBackend(), {"native": {"no_such": 1}})
    failed = SimpleNamespace(get_error_status=lambda: 2, get_error_message=lambda: "out of memory on the GPU")
    cuopt.package.Solve = lambda model, settings: failed
    with pytest.raises(SolverError, match="out of memory on the GPU"):
        solve_matrix(knapsack(), CuoptBackend())
