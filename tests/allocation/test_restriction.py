"""Fewer columns for licences that stop at a size: still an allocation, still a proven gap."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.allocation import AllocationProblem, AllocationSearchOptions, solve_allocation
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.search.context import SearchContext
from coralopt.allocation.search.options import DEFAULT_OPTIONS
from coralopt.allocation.search.restricted_master import restricted_master
from coralopt.allocation.search.restriction import Restriction
from coralopt.errors import InfeasibleError, LicenseLimitError, NoSolutionError, OptionError
from coralopt.solving import Availability, RawResult
from coralopt.testing.allocation_strategies import allocation_problems, best_by_enumeration
from coralopt.testing.synthetic import synthetic_problem
from coralopt.testing.wrong_backends import Honest


class Limited(Honest):
    """HiGHS with a licence for a few columns only; remembers the largest matrix it was given."""

    name = "limited"
    most = 40
    largest = 0

    def probe(self) -> Availability:
        return dataclasses.replace(super().probe(), size_limit=(self.most, self.most))

    def solve(self, matrix: Any, options: Any, **rest: Any) -> RawResult:
        type(self).largest = max(type(self).largest, matrix.shape[1])
        return super().solve(matrix, options, **rest)


@settings(max_examples=60, deadline=None)
@given(allocation_problems(max_templates=6, max_regions=2), st.integers(1, 6))
def test_the_gap_is_proven_over_all_columns(problem: AllocationProblem, most: int) -> None:
    """However few columns the back end sees, bound <= optimum <= cost holds for the whole problem."""
    truth = best_by_enumeration(problem)
    try:
        found = solve_allocation(problem, options={"rel_gap": 1e-6}, search=AllocationSearchOptions(restrict=most))
    except InfeasibleError:
        assert truth is None
        return
    except NoSolutionError:
        return
    assert truth is not None
    assert found.bound_usd_h <= float(truth) * (1 + 1e-6) + 1e-9
    assert found.cost_usd_h >= float(truth) - 1e-9


def test_no_model_is_larger_than_asked() -> None:
    """The improving search has its own limit of columns per round; the integer programmes keep to restrict."""
    problem = synthetic_problem(max_nodes=2, phases=4, configurations=8, regions=2, supply="ample", nodes=12)
    found = solve_allocation(
        problem, Limited(), {"rel_gap": 1e-9, "time_limit": 20.0}, AllocationSearchOptions(restrict=40)
    )
    assert found.solutions, "the search closed the problem without an integer programme"
    assert all(solution.shape is not None and solution.shape[1] <= 40 for solution in found.solutions)
    assert found.bound_usd_h <= found.cost_usd_h


def test_a_restricted_master_is_no_larger_than_the_licence() -> None:
    """Also where nobody asked for a restriction: the step is only one of several."""
    problem = synthetic_problem(2, 4, 5, 2, "scarce", 16, 1)
    for most, wanted in ((40, None), (25, 25)):
        options = AllocationSearchOptions(restrict=wanted)
        search = SearchContext(problem, Limited(), options, DEFAULT_OPTIONS, time.perf_counter() + 60.0)
        search.reduce(None)
        search.columns = Columns.of(search.small)
        assert len(search.columns) > most
        everything = np.ones(len(search.columns))
        restricted_master(search, [everything], np.arange(len(everything), dtype=np.float64), 1.0)
        assert search.solutions
        assert all(solution.shape is not None and solution.shape[1] <= most for solution in search.solutions)


def test_the_full_model_is_refused_before_it_is_built() -> None:
    """What to do is part of the message."""
    problem = synthetic_problem(max_nodes=3, phases=4, configurations=8, regions=2, supply="ample", nodes=60)
    with pytest.raises(LicenseLimitError, match="restrict=40"):
        solve_allocation(problem, solver=Limited(), search=AllocationSearchOptions(reductions=False))


def test_restrict_needs_the_reductions() -> None:
    """Without the relaxation there is no ranking and no bound."""
    problem = synthetic_problem(max_nodes=2, phases=2, configurations=3, regions=1, supply="ample", nodes=20)
    with pytest.raises(OptionError, match="restrict"):
        solve_allocation(problem, search=AllocationSearchOptions(reductions=False, restrict=10))
    with pytest.raises(OptionError, match="restrict"):
        solve_allocation(problem, search=AllocationSearchOptions(restrict=0))


@pytest.mark.parametrize(("most", "kept", "full"), [(None, [0, 1, 2], False), (4, [0, 1, 2], False), (3, [0, 2], True)])
def test_templates_are_cut_only_where_they_are_too_many(most: int | None, kept: list[int], full: bool) -> None:
    """Those of least column bound stay; template 1 has two columns and the highest."""
    restriction = Restriction(most, np.array([1, 2, 1]), np.array([5.0, 9.0, 7.0]))
    assert restriction.cut(np.arange(3)).tolist() == kept
    assert restriction.full == full
