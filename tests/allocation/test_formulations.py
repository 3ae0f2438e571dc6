"""Both formulations, the direct matrix and enumeration must tell the same story."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.allocation import AllocationProblem, matrix_from_arrays
from coralopt.allocation.model import FORMULATIONS
from coralopt.errors import OptionError
from coralopt.solving import MilpMatrix, Reason, SolveOptions, matrix_from_pyomo, solve, solve_matrix
from coralopt.testing.allocation_strategies import allocation_problems, best_by_enumeration

EXACT = SolveOptions(rel_gap=0.0, abs_gap=1e-7)


@settings(max_examples=120, deadline=None)
@given(allocation_problems())
def test_paper_split_and_enumeration_agree(problem: AllocationProblem) -> None:
    """The split form drops the paper's penalty columns; only equal optima on any instance justify that."""
    truth = best_by_enumeration(problem)
    for formulation in FORMULATIONS:
        found = solve(problem, "highs", formulation, EXACT)
        if truth is None:
            assert found.answer is None
            assert found.termination.reason in (Reason.INFEASIBLE, Reason.INFEASIBLE_OR_UNBOUNDED)
        else:
            # Prices are multiples of 1/64, so a costlier answer would be off by far more than this.
            assert found.objective == pytest.approx(float(truth), abs=1e-6)


def _canonical(matrix: MilpMatrix) -> tuple[dict[str, object], dict[str, object]]:
    dense = matrix.a.toarray()
    rows = [name.removesuffix("_ub").removesuffix("_lb") for name in matrix.row_names]
    columns = {
        name: (
            matrix.c[k],
            matrix.lower[k],
            matrix.upper[k],
            bool(matrix.integer[k]),
            tuple(sorted((rows[i], dense[i, k]) for i in np.flatnonzero(dense[:, k]))),
        )
        for k, name in enumerate(matrix.column_names)
    }
    return columns, {name: (matrix.row_lower[i], matrix.row_upper[i]) for i, name in enumerate(rows)}


@settings(max_examples=120, deadline=None)
@given(allocation_problems(max_templates=6, max_regions=3, max_configurations=3, max_phases=3))
def test_direct_matrix_equals_the_compiled_one(problem: AllocationProblem) -> None:
    """Large problems skip Pyomo; that is sound only if both routes give one matrix, coefficient for coefficient."""
    direct = matrix_from_arrays(problem)
    served = {int(problem.phase[int(name[4:].split(",")[0])]) for name in direct.column_names if name[:3] == "new"}
    if any(problem.demand[p] > 0 and p not in served for p in range(len(problem.demand))):
        result = solve_matrix(direct, "highs") if len(direct.c) else None
        assert result is None or result.termination.reason is Reason.INFEASIBLE
        return
    compiled, _ = matrix_from_pyomo(FORMULATIONS["split"].build(problem))
    # Rows whose coefficients are all zero are no rows for the compiler; they hold anyway or make both infeasible.
    columns, rows = _canonical(direct)
    compiled_columns, compiled_rows = _canonical(compiled)
    reachable = {name for column in columns.values() for name, _ in column[4]}  # type: ignore[index]
    assert columns == compiled_columns or all(columns[name] == column for name, column in compiled_columns.items())
    for name in reachable:
        assert rows[name] == compiled_rows[name]


@given(st.just("paper"))
@settings(max_examples=1)
def test_direct_matrix_of_another_formulation_is_refused(name: str) -> None:
    """Silently giving the split matrix under the paper's name would falsify a comparison."""
    problem = AllocationProblem(
        usage=np.ones((1, 1), dtype=np.int16),
        throughput=np.ones(1),
        phase=np.zeros(1, dtype=np.int32),
        demand=np.ones(1),
        availability=np.ones((1, 1), dtype=np.int64),
        price=np.ones((1, 1)),
        running=None,
        penalty=0.0,
        phase_names=("m/decode",),
        region_names=("r",),
        configuration_names=("c",),
    )
    with pytest.raises(OptionError, match="split"):
        matrix_from_arrays(problem, name)
