"""What the base does for plugins: rows in the forms of solvers, statuses, names of options, the time of several runs."""

from __future__ import annotations

import math
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csc_array

from coralopt.errors import LicenseLimitError, SolverError
from coralopt.solving import Job, Limit, MilpMatrix, RawResult, Reason, SolveOptions, named_options, statuses
from coralopt.solving.plugin import SizeLimited
from coralopt.solving.rows import by_sense, kinds_of_rows, members, row_terms, with_infinity
from coralopt.testing.compliance.case import INFINITY, matrix

SIDES = st.tuples(st.integers(-3, 3), st.integers(0, 3)).flatmap(
    lambda drawn: st.sampled_from(
        [
            (float(drawn[0]), float(drawn[0] + drawn[1])),
            (-INFINITY, float(drawn[0])),
            (float(drawn[0]), INFINITY),
            (-INFINITY, INFINITY),
        ]
    )
)
ROWS = st.lists(st.tuples(st.lists(st.integers(-2, 2), min_size=3, max_size=3), SIDES), max_size=6)


def programme(rows: list[tuple[list[int], tuple[float, float]]]) -> MilpMatrix:
    return matrix([1, 1, 1], [(terms, *sides) for terms, sides in rows], (-2, 2))


@given(ROWS, st.lists(st.integers(-2, 2), min_size=3, max_size=3))
def test_rows_of_every_form_say_the_same(rows: list[tuple[list[int], tuple[float, float]]], point: list[int]) -> None:
    own, x = programme(rows), np.array(point, dtype=float)
    activity = [sum(c * x[j] for j, c in zip(*terms, strict=True)) for terms in row_terms(own)]
    assert activity == (own.a @ x).tolist()
    holds = [low <= value <= high for value, (_, (low, high)) in zip(activity, rows, strict=True)]

    one_sided = np.ones(len(rows), dtype=bool)
    for sense, positions, sides in by_sense(own):
        for i, side in zip(positions, sides, strict=True):
            one_sided[i] &= {"=": activity[i] == side, ">": activity[i] >= side, "<": activity[i] <= side}[sense]
    assert one_sided.tolist() == holds

    finite = with_infinity(own, 1e20)
    assert np.isfinite([finite.row_lower, finite.row_upper]).all()
    low, high = finite.row_lower, finite.row_upper
    says = {"E": activity == low, "R": (low <= activity) & (activity <= high), "N": np.ones(len(rows), dtype=bool)}
    says |= {"L": activity <= high, "G": activity >= low}
    kinds = kinds_of_rows(finite, 1e20)
    assert [bool(says[kind][i]) for i, kind in enumerate(kinds)] == holds
    assert all((kind == "N") == (sides == (-INFINITY, INFINITY)) for kind, (_, sides) in zip(kinds, rows, strict=True))


def test_terms_of_some_rows() -> None:
    own = programme([([1, 0, 2], (0.0, 1.0)), ([0, 0, 0], (0.0, 1.0)), ([0, -1, 0], (0.0, 1.0))])
    assert list(row_terms(own, [2, 1])) == [([1], [-1.0]), ([], [])]


def test_members_of_a_conflict() -> None:
    assert members("row", [4, 7], [True, False], [1, 1]) == [
        ("row", 4, "lower"),
        ("row", 4, "upper"),
        ("row", 7, "upper"),
    ]
    assert members("column", [], [], []) == []


def test_statuses_by_a_solvers_own_words() -> None:
    read = statuses({Reason.OPTIMAL: "done gap", Limit.TIME: "late", Reason.NO_SOLUTION_FOUND: "unsure"})
    assert read == {
        "done": (Reason.OPTIMAL, None),
        "gap": (Reason.OPTIMAL, None),
        "late": (Reason.NO_SOLUTION_FOUND, Limit.TIME),
        "unsure": (Reason.NO_SOLUTION_FOUND, None),
    }


@pytest.mark.parametrize(("presolve", "expected"), [(None, {}), (True, {"Pre": -1}), (False, {"Pre": 0})])
def test_switches_have_the_solvers_own_values(presolve: bool | None, expected: dict[str, int]) -> None:
    options = SolveOptions(presolve=presolve, time_limit=math.inf)
    assert named_options(options, {"time_limit": "Time"}, presolve=("Pre", -1, 0)) == expected


def test_a_second_run_gets_all_the_time_that_is_left() -> None:
    """The time of the first run counts once, also where the second one asks how much is left."""
    job = Job(programme([]), SolveOptions(time_limit=10.0, node_limit=7))
    job.solve_seconds = 6.0
    job.without_presolve(None)
    assert job.options == SolveOptions(time_limit=4.0, presolve=False)
    assert job.time_left == 4.0
    with job.solving():
        time.sleep(0.01)
    assert 3.0 < (job.time_left or 0.0) < 4.0


def test_what_a_start_says() -> None:
    own = MilpMatrix(
        *(np.zeros(3), 0.0, csc_array((0, 3)), np.zeros(0), np.zeros(0), np.zeros(3), np.ones(3)),
        *(np.ones(3, dtype=bool), False, ["a", "b", "c"], []),
    )
    positions, values = Job(own, SolveOptions(), start=np.array([1.0, np.nan, 0.0])).known_start
    assert (positions.tolist(), values.tolist()) == ([0, 2], [1.0, 0.0])
    assert [len(part) for part in Job(own, SolveOptions()).known_start] == [0, 0]


class Refusing(SizeLimited):
    name = "refusing"
    free_limit = (5, 2)
    refusal = "(?i)too large"

    def run(self, job: Job) -> RawResult:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("raised", "expected", "words"),
    [
        (
            ArithmeticError("Too large: buy more"),
            LicenseLimitError,
            "'refusing' is size-limited here .2 columns x 5 rows",
        ),
        (ZeroDivisionError("too large"), LicenseLimitError, "this model has 3 columns x 1 rows; use solver 'highs'"),
        (ArithmeticError("no memory"), SolverError, "^Solver failed: no memory$"),
        (KeyError("too large"), KeyError, "too large"),
    ],
)
def test_what_a_size_limited_solver_raises(raised: Exception, expected: type[Exception], words: str) -> None:
    """A refusal for the size, another failure of the solver, and what is none of its errors."""
    job = Job(programme([([1, 0, 2], (0.0, 1.0))]), SolveOptions())
    with pytest.raises(expected, match=words), Refusing().failures(job, "Solver", ArithmeticError):
        raise raised


def test_ctrl_c_at_any_line_of_a_running_solve_stops_the_solver(interrupt_at) -> None:
    """The solver ends by itself once it is told, and the caller hears of it; before it runs, Ctrl-C is one."""
    told, came, line = [], True, 0
    while came:
        line += 1
        job, stop = Job(programme([]), SolveOptions()), threading.Event()
        job.stop = stop.set
        with interrupt_at(line, lambda code: code is Job.in_thread.__code__) as has_come:
            try:
                told.append(job.in_thread(lambda stop=stop: stop.wait(0.3)))
            except KeyboardInterrupt:
                told.append(None)
            came = has_come()
    assert told[-1] is False
    first = told.index(True)
    assert first > 3
    assert set(told[:first]) == {None}
    assert set(told[first:-1]) == {True}
