"""A machine without a solver: said before solving, with what to install; nothing else suffers."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from typing import Any

import numpy as np
import pytest

from coralopt.errors import SolverNotFoundError
from coralopt.solving import SolveOptions, get_backend, require_backend, solver_listing
from coralopt.testing.compliance.case import knapsack


@pytest.mark.parametrize(
    ("solver", "package", "module"), [("scip", "pyscipopt", "pyscipopt"), ("gurobi", "gurobipy", "gurobipy")]
)
def test_a_missing_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, solver: str, package: str, module: str
) -> None:
    """In the listing, at the command line and in Python alike."""

    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("coralopt.solving.plugin.version", absent)
    monkeypatch.setitem(sys.modules, module, None)
    row = next(row for row in solver_listing() if row["name"] == solver)
    assert not row["installed"]
    assert f"coralopt[{solver}]" in row["hint"]
    with pytest.raises(SolverNotFoundError, match="not installed"):
        require_backend(solver)
    with pytest.raises(SolverNotFoundError, match=rf"coralopt\[{solver}\]"):
        get_backend(solver).solve(knapsack(items=3), SolveOptions())


def test_importing_and_planning_touch_no_other_solver() -> None:
    """`import coralopt` must stay quick, and a plan by HiGHS must not wake Gurobi's licence check."""
    code = (
        "import sys, coralopt\n"
        "assert not {'highspy', 'pyscipopt', 'gurobipy', 'pyomo'} & set(sys.modules)\n"
        "import coralopt_highs, coralopt_scip, coralopt_gurobi, coralopt_pyomo\n"
        "from coralopt.solving import solver_names\n"
        "solver_names()\n"
        "assert not {'highspy', 'pyscipopt', 'gurobipy'} & set(sys.modules)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [("pyomo:nosuch", "no solver 'nosuch'"), ("pyomo:cbc", "install"), ("highs:cbc", "colon"), ("scp", "scip")],
)
def test_wrong_names_are_told(name: str, words: str) -> None:
    """Behind the colon stands what Pyomo knows; only `pyomo` takes one."""
    if name == "pyomo:cbc" and get_backend(name).probe().installed:
        pytest.skip("cbc is installed here")
    with pytest.raises(SolverNotFoundError, match=words):
        require_backend(name)


def test_singleton_rows_have_prices_in_scip() -> None:
    """SCIP turns rows of one column into bounds and forgets their prices; the back end gives them back."""
    pytest.importorskip("pyscipopt")
    from coralopt.solving import solve_matrix
    from coralopt.testing.compliance.case import matrix

    rows: list[Any] = [([2.0, 0.0], 4.0, 7.0), ([1.0, 1.0], 1.0, np.inf)]
    found = solve_matrix(matrix([5.0, 1.0], rows, (0.0, 9.0), integer=False), "scip")
    assert found.row_duals is not None
    assert found.row_duals.tolist() == pytest.approx([2.5, 0.0])
