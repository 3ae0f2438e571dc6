"""LP and MPS files hold the same problem, bit for bit, for every reader."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.errors import SolverError, UnsupportedError
from coralopt.solving import MilpMatrix, read_model, solve_matrix, write_model
from coralopt.solving.files.write import safe_names
from coralopt.testing.compliance.case import INFINITY, best_by_enumeration, knapsack, matrix

RunCli = Callable[..., Any]


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
        _equal_to_highs(again, path)
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


def _equal_to_highs(read: MilpMatrix, path: Path) -> None:
    """HiGHS's reader, which shares nothing with ours, says the same; a maximum in MPS is a minimum to it."""
    import highspy

    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("small_matrix_value", 1e-12)
    solver.readModel(str(path))
    model = solver.getLp()
    names = list(model.col_names_)
    sign = -1.0 if read.maximize and path.suffix == ".mps" else 1.0
    order = [names.index(name) for name in read.column_names]
    if "objective_constant" in names:
        offset = sign * model.col_cost_[names.index("objective_constant")]
    else:
        offset = model.offset_
    assert offset == read.offset
    for ours, theirs in (
        (sign * read.c, model.col_cost_),
        (read.lower, model.col_lower_),
        (read.upper, model.col_upper_),
    ):
        np.testing.assert_array_equal(ours, np.array(theirs)[order])
    kinds = [model.integrality_[j] == highspy.HighsVarType.kInteger for j in order] if model.integrality_ else []
    np.testing.assert_array_equal(read.integer, np.array(kinds or [False] * len(order)))
    part = model.a_matrix_
    dense = np.zeros((model.num_row_, model.num_col_))
    for j in range(model.num_col_):
        for k in range(part.start_[j], part.start_[j + 1]):
            dense[part.index_[k], j] = part.value_[k]
    rows = [list(model.row_names_).index(name) for name in read.row_names]
    np.testing.assert_array_equal(read.a.toarray(), dense[np.ix_(rows, order)])
    np.testing.assert_array_equal(read.row_lower, np.array(model.row_lower_)[rows])
    np.testing.assert_array_equal(read.row_upper, np.array(model.row_upper_)[rows])


@pytest.mark.parametrize("suffix", ["lp", "mps"])
def test_other_solvers_read_the_files_themselves(suffix: str, tmp_path: Path) -> None:
    """Readable names must be names to SCIP's and Gurobi's own readers, too."""
    model = knapsack(items=8, offset=3.25)
    model = replace(
        model,
        column_names=[f"new[gpt-oss/decode,us-east-2,{j}x1xL4]" for j in range(8)],
        row_names=["capacity[us-east-2,1xL4]", "demand[e2e model]"],
    )
    path = tmp_path / f"model.{suffix}"
    write_model(model, path)
    # A maximum is a minimum of the negated costs in MPS: CBC skips OBJSENSE, GLPK refuses it.
    truth = (best_by_enumeration(model) or 0.0) * (-1 if suffix == "mps" else 1)
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


def _solved_by(program: str, path: Path) -> float:
    """The optimum that a program which reads files by itself prints."""
    out = path.with_suffix(".out")
    free = "--freemps" if path.suffix == ".mps" else "--lp"
    commands = {
        "cbc": ["cbc", str(path), "-ratioGap", "0", "-solve", "-solution", str(out)],
        "glpsol": ["glpsol", free, str(path), "-o", str(out)],
    }
    said = subprocess.run(commands[program], capture_output=True, text=True, check=False)
    line = next((line for line in out.read_text().splitlines() if "bjective" in line), said.stdout)
    found = re.search(r"(?:objective value|= )\s*(-?[\d.e+-]+)", line)
    assert found is not None, said.stdout
    return float(found[1])


@pytest.mark.parametrize("suffix", ["lp", "mps"])
@pytest.mark.parametrize("program", ["cbc", "glpsol"])
def test_cbc_and_glpk_read_the_files(program: str, suffix: str, tmp_path: Path) -> None:
    """Sense, constant, free and integer columns, names: both solve what was written."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    rng = np.random.default_rng(4)
    for k in range(12):
        rows = [
            (rng.integers(-4, 5, 3).tolist(), *sides) for sides in ((-9.0, 20.0), (-INFINITY, 7.5), (-6.0, INFINITY))
        ]
        bounds = [(-3.0, 4.0), (-5.0, -1.0), [(0.0, 1.0), (-2.0, 2.0)][k % 2]]
        model = matrix(
            (rng.integers(-9, 9, 3) / 4).tolist(), rows, bounds, maximize=bool(k % 2), offset=[0.0, -2.5, 7.0][k % 3]
        )
        path = tmp_path / f"model{k}.{suffix}"
        write_model(
            replace(model, column_names=["new[a-b,us-east,1]", "free", "e1"], row_names=["x" * 30, "st", "r 1"]), path
        )
        truth = best_by_enumeration(model)
        assert truth is not None
        # GLPK and CBC minimise the negated costs of a maximum in MPS.
        assert _solved_by(program, path) * (-1 if model.maximize and suffix == "mps" else 1) == pytest.approx(truth)
        assert solve_matrix(read_model(path)).objective == pytest.approx(truth)


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


def test_the_commands_export_and_solve(tmp_path: Path, run_cli: RunCli) -> None:
    """From a scenario to a file and from the file to the same cost."""
    said = run_cli("export", "tiny", "-o", "tiny.lp")
    assert said.returncode == 0, said.stderr
    said = run_cli("solve", "tiny.lp", "--json")
    assert said.returncode == 0, said.stderr
    assert '"objective": 5.588220' in said.stdout
    infeasible = tmp_path / "bad.mps"
    write_model(matrix([1.0], [([1.0], 4.0, INFINITY), ([1.0], -INFINITY, 1.0)], (0.0, 9.0)), infeasible)
    said = run_cli("solve", "bad.mps")
    assert said.returncode == 3
    assert "row0, row1" in said.stderr
    assert run_cli("solve", "absent.lp").returncode == 2


@pytest.mark.parametrize("suffix", ["lp", "mps"])
def test_small_coefficients_are_read(tmp_path: Path, suffix: str) -> None:
    """HiGHS drops coefficients below 1e-9 unless it is told otherwise: another model would come back."""
    path = tmp_path / f"model.{suffix}"
    write_model(matrix([1.0, 1.0], [([1.0, 7.6e-10], 1.0, INFINITY)], [(0.0, INFINITY)] * 2), path)
    assert read_model(path).a.toarray().tolist() == [[1.0, 7.6e-10]]
