"""Both ILPs against enumeration and the dynamic programme, solved through Pyomo's own interface to HiGHS.

That route shares nothing with the matrix bridge of the core, so these tests judge the formulations alone. An answer
counts by its exact re-evaluation, since a MILP solver's own objective is off by its tolerances.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyomo.environ as pyo
import pytest
from coralopt_dp import sweep
from hypothesis import given, settings
from pyomo.contrib.appsi.base import TerminationCondition
from pyomo.contrib.appsi.solvers import Highs

from coralopt.errors import SolverError
from coralopt.placement import PlacementProblem, best_placement
from coralopt.placement.formulations import FORMULATIONS
from coralopt.solving import compile_problem, solve_matrix
from coralopt.testing.placement_strategies import best_by_enumeration, placement_problems


def solved(problem, formulation):
    """Throughput of the formulation's optimum, re-evaluated; 0 when the model is infeasible."""
    model = formulation.build(problem)
    solver = Highs()
    solver.config.load_solution = False
    solver.highs_options = {"mip_rel_gap": 0.0, "mip_abs_gap": 0.0, "threads": 1}
    result = solver.solve(model)
    if result.termination_condition in (TerminationCondition.infeasible, TerminationCondition.infeasibleOrUnbounded):
        return 0.0
    assert result.termination_condition == TerminationCondition.optimal
    result.solution_loader.load_vars()
    placement = formulation.read(problem, lambda name, index: getattr(model, name)[index].value or 0.0)
    check = problem.check(placement)
    assert check.feasible, check.violations
    assert check.objective == pytest.approx(pyo.value(model.objective), rel=1e-5, abs=1e-5)
    return check.objective


@pytest.mark.parametrize("name", sorted(FORMULATIONS))
@settings(max_examples=40, deadline=None)
@given(problem=placement_problems(max_layers=5))
def test_formulation_finds_the_optimum_of_every_stage_count(name, problem):
    """Each formulation, each stage count, tables with and without roles: equal to trying every placement."""
    for stages in problem.stage_counts:
        fixed = replace(problem, stages=stages)
        best, _ = best_by_enumeration(fixed)
        assert solved(fixed, FORMULATIONS[name]) == pytest.approx(best, rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(problem=placement_problems(max_layers=5))
def test_a_placement_is_a_start_of_the_tight_formulation(problem):
    """With the variables of the start fixed the model is left with that placement's throughput."""
    tight = FORMULATIONS["tight"]
    for stages in problem.stage_counts:
        fixed = replace(problem, stages=stages)
        best = best_placement(fixed)
        if best.answer is None:
            continue
        compiled = compile_problem(fixed, tight)
        known = compiled.begin(best.answer)
        assert not np.isnan(known[compiled.matrix.integer]).any()
        lower, upper = (
            np.where(np.isnan(known), side, known) for side in (compiled.matrix.lower, compiled.matrix.upper)
        )
        left = solve_matrix(replace(compiled.matrix, lower=lower, upper=upper), "highs")
        assert left.objective == pytest.approx(best.objective, rel=1e-6)


@settings(max_examples=8, deadline=None)
@given(problem=placement_problems(max_nodes=5, max_stages=5, max_layers=7))
def test_formulations_agree_with_the_dynamic_programme(problem):
    """Larger than enumeration reaches, and long enough for ordered middle stages."""
    counts = problem.stage_counts[-2:]
    nodes = np.array(list(np.ndindex(*(n + 1 for n in problem.node_set)))[1:], dtype=np.int8)
    for stages in counts:
        fixed = replace(problem, stages=stages)
        best = sweep(problem.values, nodes, stages=stages).throughput[-1]
        for formulation in FORMULATIONS.values():
            assert solved(fixed, formulation) == pytest.approx(best, rel=1e-6)


def test_paper_formulation_has_the_printed_size():
    """S L + S K + S L K binaries and 3 S L K linearisation rows: it is the paper's, not a better one."""
    problem = PlacementProblem(np.ones((3, 3, 2, 6)), (2, 2), ("a", "b"), stages=3)
    model = FORMULATIONS["paper"].build(problem)
    S, L, K = 3, 5, 4
    binaries = [v for v in model.component_data_objects(pyo.Var) if v.is_binary()]
    assert len(binaries) == S * L + S * K + S * L * K
    families = (model.z_needs_x, model.z_needs_y, model.x_and_y_give_z)
    assert sum(len(family) for family in families) == 3 * S * L * K
    assert len(model.one_layer_count) + len(model.one_stage) + len(model.all_layers) == S + K + 1


def test_a_node_cannot_sit_where_it_cannot_hold_the_layers():
    """In print the weak node could idle in the big stage; here the model must be infeasible for one stage."""
    values = np.ones((1, 3, 2, 4))
    values[:, :, 1, 3] = 0.0
    problem = PlacementProblem(values, (1, 1), ("big", "small"), stages=1)
    for formulation in FORMULATIONS.values():
        assert solved(problem, formulation) == 0.0


@pytest.mark.parametrize("name", sorted(FORMULATIONS))
def test_a_formulation_wants_a_stage_count(name):
    """The tables depend on it, so a model for all stage counts would not be the paper's."""
    problem = PlacementProblem(np.ones((2, 3, 1, 4)), (1,), ("a",))
    with pytest.raises(SolverError, match="best_placement"):
        FORMULATIONS[name].build(problem)
    with pytest.raises(SolverError, match="1 nodes and 3 layers"):
        FORMULATIONS[name].build(replace(problem, stages=2))
