"""Parts of a model that are no linear rows: in files, in exact checks, as rows, and in processes of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csc_array

from coralopt.errors import SolverError, UnsupportedError, WrongAnswerError
from coralopt.solving import (
    MilpMatrix,
    Proof,
    Reason,
    find_conflict,
    get_backend,
    read_model,
    solve_matrix,
    write_model,
)
from coralopt.solving.extras import Extras, Indicator, SosSet, is_convex
from coralopt.solving.files import check_solution_file, write_solution
from coralopt.testing.compliance.case import INFINITY, matrix

RunCli = Callable[..., Any]


def drawn(seed: int, quadratic: bool) -> MilpMatrix:
    """A random model with every part: x0 semi-continuous, x1 and x2 whole, x3 and x4 binary switches, x5 unbounded."""
    rng = np.random.default_rng(seed)
    bounds = [(1.25, 4.5), (0, 3), (0, 4), (0, 1), (0, 1), (0, INFINITY)]
    bounds[0] = [(1.25, 4.5), (0.0, 4.0), (2.5, 2.5)][seed % 3]
    rows = [
        ([*rng.integers(-3, 4, 5).tolist(), 0], -4, float(rng.integers(0, 9))),
        ([*rng.integers(1, 4, 5).tolist(), 1], 3, 3),
        ([1, 1, 1, 1, 1, 1], -INFINITY, 12),
    ]
    whole = [seed % 2 == 1, True, True, True, True, False]
    programme = matrix(
        (rng.integers(-20, 21, 6) / 4).tolist(), rows, bounds, whole, maximize=bool(seed % 2), offset=float(seed % 3)
    )
    half = np.zeros((6, 6))
    if quadratic:
        factor = rng.integers(-2, 3, (3, 3)).astype(float)
        half[:3, :3] = (factor @ factor.T) * (-1 if programme.maximize else 1) / 4
    sets = (SosSet("pair", 2, (0, 1, 5), (1.0, 2.5, 4.0)), SosSet("one", 1, (2, 1), (-1.0, 3.0)))
    switches = (Indicator(0, 3, 1), Indicator(1, 4, 0))
    return replace(programme, extras=Extras(csc_array(half) if quadratic else None, sets, switches, (0,)))


def other_readers(path: Path) -> dict[str, float]:
    """The optimum by Gurobi's and SCIP's own readers, where they are installed; infinite without a solution."""
    values = {}
    if get_backend("gurobi").probe().installed:
        import gurobipy

        with gurobipy.Env(params={"OutputFlag": 0, "MIPGap": 0}) as environment:
            model = gurobipy.read(str(path), environment)
            model.optimize()
            values["gurobi"] = model.ObjVal if model.SolCount else INFINITY
    if get_backend("scip").probe().installed:
        import pyscipopt

        model = pyscipopt.Model()
        model.hideOutput()
        model.readProblem(str(path))
        model.optimize()
        values["scip"] = model.getObjVal() if model.getNSols() else INFINITY
    return values


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("suffix", ["lp", "mps"])
def test_files_hold_every_part_and_others_read_them_so(tmp_path: Path, seed: int, suffix: str) -> None:
    """What is written is read back, part by part, and Gurobi and SCIP find the same optimum in it."""
    programme = drawn(seed, quadratic=seed % 2 == 0)
    path = tmp_path / f"model.{suffix}"
    write_model(programme, path)
    again = read_model(path)
    for name in ("c", "lower", "upper", "integer"):
        assert (getattr(again, name) == getattr(programme, name)).all(), name
    assert (again.maximize, again.offset) == (programme.maximize, programme.offset)
    wanted, parts = programme.extras, again.extras
    assert (parts.sos, parts.semicontinuous) == (wanted.sos, wanted.semicontinuous)
    assert (parts.quadratic is None) == (wanted.quadratic is None)
    if wanted.quadratic is not None and parts.quadratic is not None:
        assert abs(parts.quadratic - wanted.quadratic).max() == 0
    # A row with two sides is two rows, which one column switches.
    assert {(part.column, part.value) for part in parts.indicators} == {(3, 1), (4, 0)}
    solver = "scip" if wanted.quadratic is not None else "highs"
    if not get_backend(solver).probe().installed:
        return
    result = solve_matrix(again, solver, {"rel_gap": 0.0})
    sign = -1.0 if programme.maximize and suffix == "mps" else 1.0
    for value in other_readers(path).values():
        assert sign * value == pytest.approx(result.objective if result.x is not None else INFINITY, abs=1e-4)
    if result.x is None:
        return
    solution = tmp_path / "model.sol"
    write_solution(solution, result.objective, dict(zip(again.column_names, result.x.tolist(), strict=True)))
    assert check_solution_file(path, solution).holds


PARTS = """Maximize
 obj: x + 2 y + z + [ 2 x^2 + 4 x*y - 2 y ^ 2 ] / 2
Subject To
 r: b = 1 -> x + y <= 3
 s: x + y + z <= 20
Bounds
 2 <= x <= 4
 y <= 5
 z <= 6
Binary
 b
Semi-Continuous
 x
SOS
 sos1: S1 :: y : 1 z : 2
End
"""


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ("x 0\ny 3\nb 1", ""),
        ("x 4\ny 5\nb 0", ""),
        ("x 2\nz 6\nb 1", ""),
        ("x 1.75\n", "column x is 1.75, 2 to 4 is allowed: off by 0.25"),
        ("x 0.5\n", "column x is 0.5, 0 to 0 is allowed: off by 0.5"),
        ("x 2\ny 2\nb 1", "row r is 4"),
        ("y 2\nz 1.5", "set sos1 of kind 1 has too many columns that differ from 0: off by 1.5"),
        ("=obj= 7\nx 2\ny 1\nb 1", ""),
        ("=obj= 5\nx 2\ny 1\nb 1", "states the objective 5, its values have 11"),
    ],
)
def test_solutions_are_checked_exactly(tmp_path: Path, values: str, wrong: str) -> None:
    """At x = 2, y = 1 the objective is 2 + 2 + 4 + 4 - 1 = 11, and every part is held against the values."""
    (tmp_path / "m.lp").write_text(PARTS)
    (tmp_path / "m.sol").write_text(values.replace("=obj= 7", "=obj= 11") + "\n")
    check = check_solution_file(tmp_path / "m.lp", tmp_path / "m.sol", 0.0)
    assert (not check.violations) if not wrong else any(wrong in sentence for sentence in check.violations), check
    if "x 2\ny 1" in values:
        assert check.objective == 11


def test_the_commands_take_such_files(tmp_path: Path, run_cli: RunCli) -> None:
    (tmp_path / "m.lp").write_text(PARTS.replace("[ 2 x^2 + 4 x*y - 2 y ^ 2 ] / 2", "0 b"))
    for arguments, code in (
        (["solve", "m.lp", "--json", "-o", "m.sol"], 0),
        (["check", "m.lp", "m.sol", "--tolerance", "0"], 0),
    ):
        said = run_cli(*arguments)
        assert said.returncode == code, said.stderr
        if "--json" in arguments:
            assert json.loads(said.stdout)["objective"] == pytest.approx(14.0)


def test_what_has_no_exact_rows_is_refused_by_name() -> None:
    """Big-M only with bounds that columns have or rows prove."""
    free = matrix([1, 1], [([1, -1], 0, INFINITY)], (1, INFINITY), integer=False)
    for extras, words in (
        (Extras(semicontinuous=(0,)), "x0"),
        (Extras(sos=(SosSet("s", 1, (0, 1), (1.0, 2.0)),)), "x0"),
        (Extras(quadratic=csc_array(np.diag([1.0, -1.0]))), "convex"),
    ):
        with pytest.raises(UnsupportedError, match=words):
            solve_matrix(replace(free, extras=extras), "highs")
    if get_backend("scip").probe().installed:
        # SCIP's own indicators need no bound.
        semi = replace(free, c=np.array([1.0, 2.0]), extras=Extras(semicontinuous=(0,)))
        assert solve_matrix(semi, "scip").objective == pytest.approx(3.0)
    # The second row proves a bound of the first column; without it there is none.
    rows = [([1, 0], 2, INFINITY), ([-1, 0], -INFINITY, 1)]
    for count, binds in ((2, True), (1, False)):
        switched = matrix([1, -9], rows[:count], [(-INFINITY, INFINITY), (0, 1)], [False, True])
        switched = replace(switched, extras=Extras(indicators=(Indicator(0, 1, 1),)))
        if binds:
            assert solve_matrix(switched, "highs").objective == pytest.approx(-7.0)
        else:
            with pytest.raises(UnsupportedError, match="indicators"):
                solve_matrix(switched, "highs")
    with pytest.raises(UnsupportedError, match="takes no quadratic"):
        solve_matrix(replace(free, extras=Extras(csc_array(np.eye(2)))), "scipy")
    infeasible = matrix([1], [([1], 7, INFINITY)], (2, 4), integer=False)
    with pytest.raises(UnsupportedError, match="linear"):
        find_conflict(replace(infeasible, extras=Extras(semicontinuous=(0,))))


def test_parts_that_do_not_fit_are_refused() -> None:
    plain = matrix([1, 1], [([1, 1], 0, 3)], (0, 4))
    for extras, words in (
        (Extras(semicontinuous=(2,)), "semi-continuous"),
        (Extras(sos=(SosSet("s", 1, (0, 0), (1.0, 2.0)),)), "different"),
        (Extras(sos=(SosSet("s", 1, (0, 1), (2.0, 1.0)),)), "increasing"),
        (Extras(indicators=(Indicator(0, 1, 1),)), "binary"),
        (Extras(quadratic=csc_array(np.array([[0.0, 1.0], [0.0, 0.0]]))), "symmetric"),
        (Extras(quadratic=csc_array(np.eye(3))), "shape"),
    ):
        with pytest.raises(SolverError, match=words):
            replace(plain, extras=extras)
    assert is_convex(csc_array(np.array([[2.0, 2.0], [2.0, 2.0]])), maximize=False)
    assert not is_convex(csc_array(np.array([[2.0, 2.1], [2.1, 2.0]])), maximize=False)
    assert not is_convex(csc_array(np.diag([1.0, 0.0, 2.0])), maximize=True)


def test_starts_isolation_scaling_and_proof() -> None:
    """A start is completed by the added columns; processes get every part; wide figures come back in their units."""
    programme = drawn(2, quadratic=False)
    best = solve_matrix(programme, "highs", {"rel_gap": 0.0})
    assert best.x is not None
    again = solve_matrix(programme, "highs", {"time_limit": 0.0}, start=best.x)
    assert again.termination.reason is Reason.FEASIBLE
    assert again.objective == pytest.approx(best.objective)
    isolated = solve_matrix(programme, "highs", {"isolate": True, "rel_gap": 0.0})
    assert isolated.objective == pytest.approx(best.objective)
    quadratic = matrix([-4e9, -3e9], [([1e-6, 1e-6], -INFINITY, 2e-6)], (0, 5), integer=False)
    quadratic = replace(quadratic, extras=Extras(csc_array(1e9 * np.array([[2.0, 1.0], [1.0, 2.0]]))))
    for options in ({}, {"isolate": True}):
        result = solve_matrix(quadratic, "highs", options)
        assert result.objective == pytest.approx(-4.25e9, rel=1e-6)
        assert result.proof is Proof.DUAL_BOUND


def test_parts_move_with_their_rows_and_columns() -> None:
    """The benchmark's permutations."""
    from coralopt.benchmark.observe import Permutation

    for seed in (0, 1):
        programme = drawn(seed, quadratic=seed == 1)
        order = Permutation.of(programme, 5)
        moved = order.apply(programme)
        solver = "scip" if seed else "highs"
        if get_backend(solver).probe().installed:
            first, second = (solve_matrix(part, solver, {"rel_gap": 1e-6}) for part in (programme, moved))
            assert first.termination.reason is second.termination.reason
            assert first.x is None or first.objective == pytest.approx(second.objective, rel=1e-5)
        x = np.arange(6.0)
        assert moved.objective(x[order.columns]) == pytest.approx(programme.objective(x))


def test_answers_that_break_a_part_are_caught() -> None:
    """A back end that declares sets and drops them is called wrong."""
    from coralopt.solving import Capability

    backend = get_backend("highs")
    backend.capabilities = backend.capabilities | {Capability.SOS}  # type: ignore[misc]
    programme = replace(
        matrix([1, 1], bounds=(0, 2), maximize=True), extras=Extras(sos=(SosSet("s", 1, (0, 1), (1.0, 2.0)),))
    )
    with pytest.raises(WrongAnswerError, match="set s"):
        solve_matrix(programme, backend)
