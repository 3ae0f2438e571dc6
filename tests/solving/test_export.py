"""LP and MPS files hold the same problem, bit for bit, for every reader."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.errors import SolverError, UnsupportedError
from coralopt.solving import MilpMatrix, read_model, write_model
from coralopt.solving.export import safe_names
from coralopt.testing.compliance.case import INFINITY, best_by_enumeration, knapsack, matrix


@st.composite
def models(draw: st.DrawFn) -> MilpMatrix:
    """Every kind of bound and side, with numbers that need all their digits."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    columns, rows = int(rng.integers(1, 6)), int(rng.integers(0, 5))

    def number() -> float:
        return float(rng.choice([rng.normal() * 10.0 ** rng.integers(-6, 7), rng.integers(-9, 10), 1 / 3]))

    def pair() -> tuple[float, float]:
        low, high = sorted((number(), number()))
        return [(low, high), (low, INFINITY), (-INFINITY, high), (high, high), (-INFINITY, INFINITY), (0.0, INFINITY)][
            int(rng.integers(0, 6))
        ]

    lines = []
    for _ in range(rows):
        sides = pair()
        if sides == (-INFINITY, INFINITY):
            sides = (0.0, INFINITY)
        lines.append(([number() if rng.random() < 0.7 else 0.0 for _ in range(columns)], *sides))
    return matrix(
        [number() if rng.random() < 0.8 else 0.0 for _ in range(columns)],
        lines,
        [pair() for _ in range(columns)],
        integer=rng.random(columns) < 0.5,
        maximize=bool(rng.integers(0, 2)),
        offset=number(),
    )


@pytest.mark.parametrize("suffix", ["lp", "mps"])
@settings(max_examples=150, deadline=None)
@given(model=models())
def test_files_read_back_bit_for_bit(suffix: str, model: MilpMatrix) -> None:
    """Not one digit is lost; rows with two sides come back as two rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model.{suffix}"
        write_model(model, path)
        again = read_model(path)
    assert list(again.column_names) == list(model.column_names)
    for name in ("c", "lower", "upper", "integer"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name), err_msg=name)
    assert (again.maximize, again.offset) == (model.maximize, model.offset)
    dense, wanted = again.a.toarray(), model.a.toarray()
    found: dict[str, tuple[float, float]] = {}
    for i, name in enumerate(again.row_names):
        plain = name.removesuffix(".lo").removesuffix(".up")
        np.testing.assert_array_equal(dense[i], wanted[list(model.row_names).index(plain)])
        low, high = found.get(plain, (-INFINITY, INFINITY))
        found[plain] = (max(low, again.row_lower[i]), min(high, again.row_upper[i]))
    for i, name in enumerate(model.row_names):
        assert found[name] == (model.row_lower[i], model.row_upper[i])


@pytest.mark.parametrize("suffix", ["lp", "mps"])
def test_other_solvers_read_the_files_themselves(suffix: str, tmp_path: Path) -> None:
    """Readable names must be names to SCIP's and Gurobi's own readers, too."""
    from dataclasses import replace

    model = knapsack(items=8, offset=3.25)
    model = replace(
        model,
        column_names=[f"new[gpt-oss/decode,us-east-2,{j}x1xL4]" for j in range(8)],
        row_names=["capacity[us-east-2,1xL4]", "demand[e2e model]"],
    )
    path = tmp_path / f"model.{suffix}"
    write_model(model, path)
    truth = best_by_enumeration(model)
    scip = pytest.importorskip("pyscipopt").Model()
    scip.hideOutput()
    scip.readProblem(str(path))
    scip.optimize()
    assert scip.getObjVal() == pytest.approx(truth)
    assert {variable.name for variable in scip.getVars()} >= set(safe_names(model.column_names))
    gurobipy = pytest.importorskip("gurobipy")
    with gurobipy.Env(params={"OutputFlag": 0}) as environment, gurobipy.read(str(path), environment) as gurobi:
        gurobi.optimize()
        assert gurobi.ObjVal == pytest.approx(truth)


def test_names_stay_different() -> None:
    """Two names that look alike to a reader must not become one."""
    names = safe_names(["a-b", "a_b", "a b", "1x", "e5", "x" * 400, "x" * 401])
    assert len(set(names)) == 7
    assert all(len(name) <= 255 and not name[0].isdigit() for name in names)


def test_wrong_files_are_told(tmp_path: Path) -> None:
    """Suffix, absence, nonsense: one clear sentence each."""
    with pytest.raises(UnsupportedError, match=r"\.lp or \.mps"):
        write_model(knapsack(items=3), tmp_path / "model.txt")
    with pytest.raises(SolverError, match="no model file"):
        read_model(tmp_path / "absent.lp")
    (tmp_path / "bad.lp").write_text("this is no model")
    with pytest.raises(SolverError, match="no LP or MPS file"):
        read_model(tmp_path / "bad.lp")


def test_the_commands_export_and_solve(tmp_path: Path) -> None:
    """From a scenario to a file and from the file to the same cost."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "coralopt", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    said = run("export", "tiny", "-o", "tiny.lp")
    assert said.returncode == 0, said.stderr
    said = run("solve", "tiny.lp", "--json")
    assert said.returncode == 0, said.stderr
    assert '"objective": 5.588220' in said.stdout
    infeasible = tmp_path / "bad.mps"
    write_model(matrix([1.0], [([1.0], 4.0, INFINITY), ([1.0], -INFINITY, 1.0)], (0.0, 9.0)), infeasible)
    said = run("solve", "bad.mps")
    assert said.returncode == 3
    assert "row0, row1" in said.stderr
    assert run("solve", "absent.lp").returncode == 2


@pytest.mark.parametrize("suffix", ["lp", "mps"])
def test_small_coefficients_are_read(tmp_path: Path, suffix: str) -> None:
    """HiGHS drops coefficients below 1e-9 unless it is told otherwise: another model would come back."""
    path = tmp_path / f"model.{suffix}"
    write_model(matrix([1.0, 1.0], [([1.0, 7.6e-10], 1.0, INFINITY)], [(0.0, INFINITY)] * 2), path)
    assert read_model(path).a.toarray().tolist() == [[1.0, 7.6e-10]]
