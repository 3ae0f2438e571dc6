"""The core between problems and solvers: options, registry, statuses, and solvers that lie."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csc_array

from coralopt.errors import (
    NoSolutionError,
    OptionError,
    SolverError,
    SolverNotFoundError,
    UnsupportedError,
    WrongAnswerError,
)
from coralopt.solving import (
    Availability,
    Capability,
    Check,
    Limit,
    MilpMatrix,
    RawAnswer,
    RawResult,
    Reason,
    SolveOptions,
    gap_reached,
    get_backend,
    registry,
    relative_gap,
    require_backend,
    solve,
    solve_matrix,
    solver_listing,
    solvers_with,
)
from coralopt.solving.status import gap_met

INF = math.inf


@dataclass(frozen=True)
class Knapsack:
    """Which things to take; the answer is a set of their names."""

    weights: Mapping[str, int]
    worth: Mapping[str, int]
    room: int
    kind: ClassVar[str] = "knapsack"
    sense: ClassVar[str] = "max"
    default_formulation: ClassVar[str] = "plain"

    def formulations(self):
        return {"plain": Plain(), "without starts": PlainWithoutStarts()}

    def check(self, answer):
        weight = sum(self.weights[name] for name in answer)
        broken = (f"the things weigh {weight}, there is room for {self.room}",) if weight > self.room else ()
        return Check(not broken, float(sum(self.worth[name] for name in answer)), broken)


class PlainWithoutStarts:
    name = "without starts"

    def build(self, problem):
        import pyomo.environ as pyo

        model = pyo.ConcreteModel()
        model.take = pyo.Var(list(problem.weights), domain=pyo.Binary)
        model.spare = pyo.Var([0, 1], bounds=(2, 5))  # in no row: must come back as 2
        model.spare[1].fix(4)
        model.room = pyo.Constraint(expr=sum(w * model.take[k] for k, w in problem.weights.items()) <= problem.room)
        model.worth = pyo.Objective(expr=sum(v * model.take[k] for k, v in problem.worth.items()), sense=pyo.maximize)
        return model

    def read(self, problem, value):
        assert (value("spare", 0), value("spare", 1)) == (2, 4)
        return frozenset(name for name in problem.weights if value("take", name) > 0.5)


class Plain(PlainWithoutStarts):
    name = "plain"

    def start(self, problem, answer):
        return {("take", name): float(name in answer) for name in problem.weights}


BAG = Knapsack({"a": 2, "b": 3, "c": 1}, {"a": 5, "b": 4, "c": 3}, 5)  # best: a and b, worth 9


class Double:
    """A back end that says what the test wants it to."""

    name = "double"
    kind = "matrix"
    capabilities = frozenset({Capability.LP, Capability.MILP, Capability.MIP_START})

    def __init__(self, result: RawResult) -> None:
        self.result = result

    def probe(self) -> Availability:
        return Availability(True, "1", "none")

    def solve(self, matrix, options, *, start=None, on_progress=None):
        self.start = start
        return self.result


def raw(x, bound, reason=Reason.OPTIMAL, objective=None, limit=None):
    return RawResult(reason, limit, "said", None if x is None else np.array(x, dtype=float), bound, objective=objective)


MATRIX = MilpMatrix(
    c=np.array([5.0, 4.0, 3.0]),
    offset=0.0,
    a=csc_array(np.array([[2.0, 3.0, 1.0]])),
    row_lower=np.array([-INF]),
    row_upper=np.array([5.0]),
    lower=np.zeros(3),
    upper=np.ones(3),
    integer=np.ones(3, dtype=bool),
    maximize=True,
    column_names=["a", "b", "c"],
    row_names=["room"],
)


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (raw([1, 1, 1], 12), "row room has activity 6"),
        (raw([1, 1, 2], 14), "column c = 2.0 is out of bounds"),
        (raw([1, 0.5, 1], 10), "integer column b"),
        (raw([1, 1, math.nan], 9), "column c has value nan"),
        (raw([1, 1], 9), "2,"),
        (raw([1, 1, 0], 8), "claims the bound 8"),
        (raw([1, 1, 0], 9, objective=9.5), "claims the objective 9.5"),
        (raw([1, 1, 0], 9, objective=math.nan), "claims the objective nan"),
        (raw(None, 9), "gives no solution"),
        (raw(None, 9, Reason.FEASIBLE), "gives no solution"),
    ],
)
def test_lies_of_a_back_end_are_caught(lie, words):
    """Solvers are wrong sometimes: nothing they say is passed on unchecked."""
    with pytest.raises(WrongAnswerError, match=words):
        solve_matrix(MATRIX, Double(lie))


def test_optimal_is_a_proof_not_a_claim():
    """A back end that says optimal with a bound far off has not proven it; one that says feasible may have."""
    far = solve_matrix(MATRIX, Double(raw([1, 0, 1], 10)))
    assert far.termination.reason is Reason.FEASIBLE
    assert far.gap == pytest.approx(0.25)
    assert solve_matrix(MATRIX, Double(raw([1, 0, 1], INF))).gap == INF
    assert solve_matrix(MATRIX, Double(raw([1, 0, 1], math.nan))).bound == INF
    near = solve_matrix(MATRIX, Double(raw([1, 1, 0], 9, Reason.FEASIBLE, limit=Limit.TIME)))
    assert near.termination.reason is Reason.OPTIMAL
    assert near.termination.limit is Limit.TIME
    assert solve_matrix(MATRIX, Double(raw([1, 0, 1], 10)), {"rel_gap": 0.3}).termination.reason is Reason.OPTIMAL


def test_nearly_whole_numbers_are_rounded_before_anything_is_computed():
    """The objective belongs to the rounded answer, not to the solver's."""
    found = solve_matrix(MATRIX, Double(raw([1 - 1e-7, 1 + 1e-7, -1e-8], 9.0000001)))
    assert found.x.tolist() == [1.0, 1.0, 0.0]
    assert not np.signbit(found.x).any()
    assert found.objective == 9.0
    assert found.termination.reason is Reason.OPTIMAL


@pytest.mark.parametrize("reason", [Reason.UNBOUNDED, Reason.INFEASIBLE, Reason.INFEASIBLE_OR_UNBOUNDED])
def test_no_incumbent_where_none_makes_sense(reason):
    """Some solvers hand out 1e20 as the incumbent of an unbounded model; infeasible has no bound at all."""
    found = solve_matrix(MATRIX, Double(raw([1, 1, 0], 9, reason)))
    assert found.x is None
    assert math.isnan(found.objective)
    assert found.gap == INF
    assert found.bound == (None if reason is Reason.INFEASIBLE else INF)


def test_a_feasible_start_exposes_false_claims_and_is_never_lost():
    """A start that holds refutes infeasibility and bounds behind it, and outlives a limit."""
    start = np.array([1.0, 1.0, 0.0])
    with pytest.raises(WrongAnswerError, match="the start is one"):
        solve_matrix(MATRIX, Double(raw(None, math.nan, Reason.INFEASIBLE)), start=start)
    with pytest.raises(WrongAnswerError, match="claims the bound 8"):
        solve_matrix(MATRIX, Double(raw([1, 0, 1], 8)), start=start)
    stopped = solve_matrix(MATRIX, Double(raw(None, 10, Reason.NO_SOLUTION_FOUND, limit=Limit.TIME)), start=start)
    assert (stopped.objective, stopped.bound) == (9.0, 10.0)
    assert stopped.termination.reason is Reason.FEASIBLE
    assert solve_matrix(MATRIX, Double(raw([1, 0, 1], 10)), start=start).objective == 9.0
    wrong = solve_matrix(MATRIX, Double(raw([1, 0, 1], 10)), start=np.ones(3))
    assert wrong.objective == 8.0


def test_solve_reports_the_exact_objective_and_the_steps():
    """The answer is in the problem's words and every number comes from the problem's own check."""
    found = solve(BAG)
    assert found.require_solution() == {"a", "b"}
    assert (found.objective, found.bound, found.gap) == (9.0, 9.0, 0.0)
    assert set(found.seconds) == {"build", "handover", "solve", "check"}
    assert found.shape == (1, 3)
    assert found.requested["rel_gap"] == 1e-4


def test_a_formulation_that_reads_wrongly_is_caught():
    """The check runs on the answer itself, so also a mistake between matrix and answer shows."""

    @dataclass(frozen=True)
    class Wrong(Knapsack):
        def formulations(self):
            reading = Plain()
            reading.read = lambda problem, value: frozenset("abc")
            return {"plain": reading}

    with pytest.raises(WrongAnswerError, match="weigh 6"):
        solve(Wrong(BAG.weights, BAG.worth, BAG.room))


def test_starts_in_the_words_of_the_problem():
    """An answer, or values of variables; whatever the matrix does not hold is ignored, unknown names are not."""
    stopped = Double(raw(None, INF, Reason.NO_SOLUTION_FOUND, limit=Limit.TIME))
    found = solve(BAG, stopped, start=frozenset("ab"))
    assert found.answer == {"a", "b"}
    assert found.termination.reason is Reason.FEASIBLE
    by_name = {("take", "a"): 1, ("take", "b"): 0, ("spare", 0): 3}
    solve(BAG, stopped, start=by_name)
    assert stopped.start[:2].tolist() == [1.0, 0.0]
    assert math.isnan(stopped.start[2])
    with pytest.raises(OptionError, match="'taken'"):
        solve(BAG, stopped, start={("taken", "a"): 1})
    with pytest.raises(OptionError, match="'z'"):
        solve(BAG, stopped, start={("take", "z"): 1})
    with pytest.raises(UnsupportedError, match="cannot express"):
        solve(BAG, stopped, "without starts", start=frozenset("ab"))


def test_no_solution_is_a_result_and_an_error_only_when_required():
    """Limits never raise; asking for the answer anyway does, with the result attached."""
    found = solve(BAG, Double(raw(None, 11, Reason.NO_SOLUTION_FOUND, limit=Limit.TIME)))
    assert (found.answer, found.bound, found.gap) == (None, 11, INF)
    with pytest.raises(NoSolutionError, match="limit: time") as caught:
        found.require_solution()
    assert caught.value.result is found


class Whole:
    """Takes whole knapsacks."""

    name = "whole"
    kind = "knapsack"
    capabilities: ClassVar[frozenset[Any]] = frozenset()

    def __init__(self, *answer: Any) -> None:
        self.answer = answer

    def probe(self) -> Availability:
        return Availability(True, "1", "none")

    def solve_problem(self, problem, options):
        return RawAnswer(*self.answer)


def test_solvers_of_whole_problems_are_checked_the_same_way():
    """No trust here either, and the limit they name is passed on."""
    assert solve(BAG, Whole(Reason.OPTIMAL, frozenset("ab"), 9.0, "")).gap == 0.0
    with pytest.raises(WrongAnswerError, match="weigh 6"):
        solve(BAG, Whole(Reason.OPTIMAL, frozenset("abc"), 12.0, ""))
    with pytest.raises(WrongAnswerError, match="bound 8"):
        solve(BAG, Whole(Reason.OPTIMAL, frozenset("ab"), 8.0, ""))
    with pytest.raises(WrongAnswerError, match="no answer"):
        solve(BAG, Whole(Reason.OPTIMAL, None, 8.0, ""))
    late = solve(BAG, Whole(Reason.FEASIBLE, frozenset("a"), 12.0, "", 0.0, 0, Limit.TIME))
    assert (late.termination.reason, late.termination.limit) == (Reason.FEASIBLE, Limit.TIME)
    assert solve(BAG, Whole(Reason.INFEASIBLE, None, -INF, "")).bound is None
    assert solve(BAG, Whole(Reason.UNBOUNDED, frozenset("a"), INF, "")).answer is None


def test_the_wrong_solver_names_the_right_ones():
    """Nobody should have to guess which solver can."""
    with pytest.raises(UnsupportedError, match=r"takes no knapsack problem.*highs"):
        solve(BAG, "dp")
    with pytest.raises(UnsupportedError, match=r"does not take matrices.*highs"):
        solve_matrix(MATRIX, "dp")
    with pytest.raises(UnsupportedError, match=r"takes no start.*highs"):
        solve(BAG, Whole(Reason.OPTIMAL, frozenset("ab"), 9.0, ""), start=frozenset("a"))

    class OnlyLinear(Double):
        capabilities = frozenset({Capability.LP})

    with pytest.raises(UnsupportedError, match=r"no integer columns.*highs"):
        solve_matrix(MATRIX, OnlyLinear(raw([1, 1, 0], 9)))
    relaxed = replace(MATRIX, integer=np.zeros(3, dtype=bool))
    with pytest.raises(UnsupportedError, match=r"takes no start.*highs"):
        solve_matrix(relaxed, OnlyLinear(raw([1, 1, 0], 9)), start=np.zeros(3))
    with pytest.raises(OptionError, match=r"plain, without starts"):
        solve(BAG, formulation="fancy")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timelimit": 1}, "time_limit"),
        ({"rel_gap": "1"}, "rel_gap"),
        ({"rel_gap": -0.1}, "at least 0"),
        ({"rel_gap": None}, "rel_gap"),
        ({"abs_gap": math.nan}, "abs_gap"),
        ({"time_limit": True}, "time_limit"),
        ({"threads": 0}, "at least 1"),
        ({"threads": 1.5}, "whole number"),
        ({"seed": 2**31}, "seed"),
        ({"node_limit": False}, "node_limit"),
        ({"log": 1}, "true or false"),
        ({"presolve": "on"}, "presolve"),
        ({"focus": "bound"}, "focus is 'bound'"),
        ({"focus": True}, "focus is True"),
        ({"native": 3}, "native"),
    ],
)
def test_wrong_options_are_named(options, words):
    """Option, value and what is allowed; never ignored."""
    with pytest.raises(OptionError, match=words):
        SolveOptions.from_mapping(options)


def test_options_make_the_round_trip():
    """Plans record the options asked for."""
    options = SolveOptions(time_limit=3, native={"a": 1})
    assert SolveOptions.from_mapping(options.to_mapping()) == options


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
def test_gap_formula(objective, bound):
    """One formula everywhere, symmetric in sign, 0 exactly when nothing is left to prove."""
    gap = relative_gap(objective, bound)
    assert gap == relative_gap(-objective, -bound)
    assert (gap == 0) == (objective == bound) or abs(objective - bound) < 1e-300
    assert gap_reached(objective, objective, 0.0, 0.0)
    assert relative_gap(objective, INF) == INF


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"c": np.zeros(2)}, r"c has shape \(2,\)"),
        ({"c": np.array([0.0, INF, 0.0])}, "c of b is inf"),
        ({"upper": np.array([0.0, 0.0, math.nan])}, "upper of c is nan"),
        ({"row_upper": np.array([math.nan])}, "row_upper of room"),
        ({"a": csc_array(np.array([[1.0, math.nan, 1.0]]))}, "coefficient of b in room"),
        ({"a": csc_array((2, 3))}, "shape"),
        ({"offset": math.nan}, "offset"),
    ],
)
def test_matrices_with_holes_are_refused(change, words):
    """HiGHS answers "infeasible" to a NaN cost; the mistake must be named where it is made."""
    with pytest.raises(SolverError, match=words):
        replace(MATRIX, **change)


def plugins(monkeypatch, *points):
    found = [EntryPoint(name, value, registry.GROUP) for name, value in points]
    monkeypatch.setattr(registry, "entry_points", lambda group: found)


def test_listing_shows_broken_plugins_beside_good_ones(monkeypatch):
    """One broken plugin must not hide the others, nor the error message of a missing capability."""
    plugins(monkeypatch, ("highs", "coralopt_highs:HighsBackend"), ("ghost", "no_such_package:Ghost"))
    rows = {row["name"]: row for row in solver_listing()}
    assert rows["highs"]["installed"]
    assert "milp" in rows["highs"]["capabilities"]
    assert not rows["ghost"]["installed"]
    assert "no_such_package" in rows["ghost"]["hint"]
    assert solvers_with(Capability.MILP) == ["highs"]
    with pytest.raises(SolverNotFoundError, match="no_such_package"):
        get_backend("ghost")
    with pytest.raises(SolverNotFoundError, match="did you mean highs"):
        get_backend("higs")


def test_two_plugins_of_one_name_are_an_error(monkeypatch):
    """Which of them answers must not depend on the order of the path."""
    plugins(monkeypatch, ("highs", "coralopt_highs:HighsBackend"), ("highs", "other:Backend"))
    with pytest.raises(SolverError, match="registered twice"):
        get_backend("highs")


def test_missing_packages_say_what_to_install():
    """Absence is an exception with a way out, not a status."""

    class Absent(Double):
        def probe(self) -> Availability:
            return Availability(False, "", "", "install the package absent")

    with pytest.raises(SolverNotFoundError, match="install the package absent"):
        require_backend(Absent(raw([1, 1, 0], 9)))
    for nonsense in (3, Double):
        with pytest.raises(SolverNotFoundError, match="is no solver"):
            get_backend(nonsense)


def test_what_is_installed_is_probed_once():
    """A probe may start programs, and a search asks for its back end hundreds of times."""

    class Counted(Double):
        name, probes = "counted", 0

        def probe(self) -> Availability:
            Counted.probes += 1
            return Availability(True, "1", "")

    for _ in range(3):
        require_backend(Counted(raw([1, 1, 0], 9)))
    assert Counted.probes == 1


def test_importing_the_package_loads_no_solver():
    """`import coralopt.solving` must stay cheap and work where no solver is installed."""
    import subprocess
    import sys

    code = (
        "import sys, coralopt, coralopt.solving; print([m for m in ('highspy', 'pyomo', 'scipy') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_a_gap_is_the_one_asked_for_apart_from_rounding() -> None:
    """Bounds stay a hair below what is proven, those of solvers some 1e-8; a gap of 0 is asked for all the same."""
    assert gap_met(0.0, 0.0)
    assert gap_met(1.0000001e-9, 0.0)
    assert gap_met(0.001 + 1e-12, 0.001)
    assert gap_met(1.25e-8, 0.0)
    assert not gap_met(1e-6, 0.0)
    assert not gap_met(0.0010002, 0.001)
