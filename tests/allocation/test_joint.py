"""Templates that serve several model phases: formulations, reductions, bounds and search against trying everything."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.allocation import (
    Allocation,
    AllocationProblem,
    AllocationSearchOptions,
    Joint,
    SideConstraint,
    solve_allocation,
)
from coralopt.allocation.bounds.relaxation import SHORTFALL, dual_bound, reduced_costs, solve_relaxation
from coralopt.allocation.model import FORMULATIONS
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.model.split import split_matrix
from coralopt.allocation.search.options import SearchLimits
from coralopt.errors import InfeasibleError, SolverError
from coralopt.solving import SolveOptions, matrix_from_pyomo, solve
from coralopt.testing.allocation_strategies import best_by_enumeration, divided_problems, joint_problems

EXACT = SolveOptions(rel_gap=0.0)


@settings(max_examples=25, deadline=None)
@given(joint_problems())
def test_formulations_reductions_and_search_find_the_best(problem: AllocationProblem) -> None:
    """Every way to an answer agrees with trying all counts."""
    truth = best_by_enumeration(problem)
    for formulation in FORMULATIONS:
        solution = solve(problem, "highs", formulation, EXACT)
        assert (solution.answer is None) == (truth is None)
        if truth is not None:
            assert solution.objective == pytest.approx(float(truth), rel=1e-6, abs=1e-6)
    for limits in (SearchLimits(), SearchLimits(direct_columns=0, many_templates=0)):
        search = AllocationSearchOptions(explained=False, limits=limits)
        if truth is None:
            with pytest.raises(InfeasibleError):
                solve_allocation(problem, "highs", EXACT, search)
        else:
            result = solve_allocation(problem, "highs", EXACT, search)
            assert result.cost_usd_h == pytest.approx(float(truth), rel=1e-6, abs=1e-6)
            assert result.bound_usd_h <= float(truth) * (1 + 1e-9)
            assert result.gap <= 1e-6


@settings(max_examples=25, deadline=None)
@given(joint_problems())
def test_the_relaxation_is_a_bound_at_its_own_and_at_worse_prices(problem: AllocationProblem) -> None:
    """Weak duality holds at any prices, so that an early end of the column generation proves nothing wrong."""
    truth = best_by_enumeration(problem)
    columns = Columns.of(problem)
    if truth is None or not len(columns):
        return
    relaxation = solve_relaxation(problem, columns, "highs")
    assert (relaxation.shortfall <= SHORTFALL).all()
    for factor in (1.0, 0.5, 3.0):
        worse = replace(relaxation, demand_duals=factor * relaxation.demand_duals)
        prices = reduced_costs(problem, columns, worse.demand_duals, worse.capacity_prices)
        assert dual_bound(problem, columns, worse, prices) <= float(truth) + 1e-6


@pytest.mark.parametrize("problems", [joint_problems(), divided_problems()], ids=["at once", "divided"])
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_direct_matrix_has_the_entries_of_the_compiled_one(
    problems: st.SearchStrategy[AllocationProblem], data: st.DataObject
) -> None:
    """Two routes to the same rows, coefficient for coefficient."""
    problem = data.draw(problems)
    direct, built = split_matrix(problem), FORMULATIONS["split"].build(problem)
    if hasattr(built, "nothing_serves"):
        return
    compiled, _ = matrix_from_pyomo(built)

    def entries(matrix: object) -> set[tuple[str, str, float]]:
        cells = matrix.a.tocoo()  # type: ignore[attr-defined]
        names = matrix.row_names, matrix.column_names  # type: ignore[attr-defined]
        return {
            (names[0][i].removesuffix("_lb").removesuffix("_ub"), names[1][j], value)
            for i, j, value in zip(cells.row.tolist(), cells.col.tolist(), cells.data.tolist(), strict=True)
            if value
        }

    assert entries(direct) == entries(compiled)


def _pair() -> AllocationProblem:
    """A template of phase 0, one of phase 1, and one node that serves both."""
    return AllocationProblem(
        usage=np.ones((3, 1), dtype=np.int16),
        throughput=np.array([10.0, 10.0, 4.0]),
        phase=np.array([0, 1, 0], dtype=np.int32),
        demand=np.array([4.0, 5.0]),
        availability=np.array([[4]]),
        price=np.array([[1.0]]),
        running=None,
        penalty=0.0,
        phase_names=("a/mixed", "b/mixed"),
        region_names=("r",),
        configuration_names=("1xGPU",),
        joint=Joint(np.array([2]), np.array([1], dtype=np.int32), np.array([5.0])),
    )


def test_one_node_that_serves_both_is_paid_once() -> None:
    """Two nodes without sharing, one with it."""
    problem = _pair()
    assert solve_allocation(problem).cost_usd_h == 1.0
    assert solve_allocation(replace(problem, joint=Joint())).cost_usd_h == 2.0
    short = problem.with_throughputs(lambda tokens_s, phase: np.where(phase == 1, np.minimum(tokens_s, 4.9), tokens_s))
    check = short.check(Allocation.of({(2, 0): 1}))
    assert [(item.kind, item.subject) for item in check.violations] == [("demand", "b/mixed")]


def test_side_constraints_see_every_phase_of_a_shared_node() -> None:
    """A ban of either model bans the node they share; it is a replica of both."""
    problem = _pair()
    both = tuple(SideConstraint(f"replicas {p}", "least", "instances", 1.0, (p,)) for p in range(2))
    assert solve_allocation(replace(problem, side_constraints=both)).cost_usd_h == 1.0
    two = (SideConstraint("replicas", "least", "instances", 2.0, (1,)),)
    assert solve_allocation(replace(problem, side_constraints=two)).cost_usd_h == 2.0
    for p in range(2):
        most = SideConstraint("most", "most", "nodes", 1.0, (p,))
        assert solve_allocation(replace(problem, side_constraints=(most,))).cost_usd_h == 1.0
    survives = SideConstraint("survives", "least", "tokens_s", 0.5, (1,))
    assert solve_allocation(replace(problem, side_constraints=(survives,))).cost_usd_h == 1.0


@pytest.mark.parametrize(
    ("template", "phase", "tokens_s", "message"),
    [
        ([2, 2], [1, 1], [1.0, 1.0], "joint: template 2 serves phase 1 twice"),
        ([2], [0], [1.0], "joint: template 2 serves phase 0 twice"),
        ([2, 0], [1, 1], [1.0, 1.0], r"joint: templates must ascend within 0\.\.2"),
        ([3], [1], [1.0], r"joint: templates must ascend within 0\.\.2"),
        ([2], [2], [1.0], "joint: template 2 serves phase 2 at 1.0 tokens/s"),
        ([2], [1], [np.nan], "joint: template 2 serves phase 1 at nan tokens/s"),
        ([2], [1, 0], [1.0], "joint: template, phase and throughput have different lengths"),
    ],
)
def test_bad_entries_are_refused(template: list[int], phase: list[int], tokens_s: list[float], message: str) -> None:
    """A wrong entry would serve nobody or somebody twice."""
    joint = Joint(np.array(template), np.array(phase, dtype=np.int32), np.array(tokens_s))
    with pytest.raises(SolverError, match=message):
        replace(_pair(), joint=joint)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_chosen_templates_keep_their_entries(seed: int) -> None:
    """Parts of a problem look entries up by template, in any order and more than once."""
    rng = np.random.default_rng(seed)
    template = np.sort(rng.integers(0, 6, int(rng.integers(0, 9))))
    joint = Joint(template, np.arange(len(template), dtype=np.int32), rng.random(len(template)))
    chosen = rng.integers(0, 6, int(rng.integers(0, 5)))
    some = joint.some(chosen)
    expected = [(k, p) for k, t in enumerate(chosen) for p in np.flatnonzero(template == t)]
    assert list(zip(some.template.tolist(), some.phase.tolist(), strict=True)) == expected
    assert (some.throughput == joint.throughput[some.phase]).all()
