"""Every reduction keeps the optimum, and the map back names the original templates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from coralopt.allocation import AllocationProblem, reduce_problem
from coralopt.allocation.reductions.availability import reachable
from coralopt.allocation.reductions.clip import clipped
from coralopt.allocation.reductions.dominance import _undominated_by_rows, _undominated_in_phase, undominated
from coralopt.testing.allocation_strategies import allocation_problems, best_by_enumeration
from coralopt.testing.synthetic import synthetic_problem
from coralopt.types import Bools


def selected(problem: AllocationProblem, mask: Bools) -> AllocationProblem:
    return replace(
        problem,
        usage=problem.usage[mask],
        throughput=problem.throughput[mask],
        phase=problem.phase[mask],
        running=None if problem.running is None else problem.running[mask],
    )


STEPS: dict[str, Callable[[AllocationProblem], AllocationProblem]] = {
    "availability": lambda problem: selected(problem, reachable(problem)),
    "clip": clipped,
    "dominance": lambda problem: selected(problem, undominated(problem)),
    "chain": lambda problem: reduce_problem(problem).problem,
}


@pytest.mark.parametrize("name", STEPS)
@settings(max_examples=120, deadline=None)
@given(problem=allocation_problems(max_templates=5))
def test_keeps_the_optimum(name: str, problem: AllocationProblem) -> None:
    """A reduction that loses the optimum would make every bound after it a lie; infeasible must stay infeasible."""
    assert best_by_enumeration(STEPS[name](problem)) == best_by_enumeration(problem)


@settings(max_examples=150, deadline=None)
@given(problem=allocation_problems(max_templates=8, max_configurations=3))
def test_drops_only_what_another_template_replaces(problem: AllocationProblem) -> None:
    """Every dropped template has a rival among the kept ones, so of two equal ones one stays; running ones stay."""
    keep = undominated(problem)
    for t in np.flatnonzero(~keep):
        assert problem.running is None or not problem.running[t].any()
        assert any(
            problem.phase[k] == problem.phase[t]
            and (problem.usage[k] <= problem.usage[t]).all()
            and problem.throughput[k] >= problem.throughput[t]
            for k in np.flatnonzero(keep)
        )


def test_complete_library_loses_every_dominated_template() -> None:
    """Where the library is closed under removing a node, looking one node down finds all there is to drop."""
    problem = synthetic_problem(max_nodes=4, phases=1, configurations=4)
    problem = clipped(problem)
    keep = undominated(problem)
    usage, speed = problem.usage, problem.throughput
    for t in range(len(speed)):
        smaller = (usage <= usage[t]).all(axis=1) & (usage != usage[t]).any(axis=1)
        assert keep[t] == (not (speed[smaller] >= speed[t]).any())


@settings(max_examples=100, deadline=None)
@given(problem=allocation_problems(max_templates=8, max_configurations=3, max_phases=1))
def test_both_ways_of_looking_up_node_sets_agree(problem: AllocationProblem) -> None:
    """Pools with too many configurations for one 64-bit key take the second way; it must drop the same ones."""
    args = (problem.usage, problem.throughput)
    assert (_undominated_in_phase(*args) == _undominated_by_rows(*args)).all()


def test_wide_pools_take_the_exact_way() -> None:
    """40 configurations with counts up to 3 do not fit one key; wrapping around would drop templates at random."""
    usage = np.zeros((41, 40), dtype=np.int16)
    usage[np.arange(40), np.arange(40)] = 3
    usage[40, 0] = 2
    keep = _undominated_in_phase(usage, np.full(41, 5.0))
    assert keep.tolist() == [False] + [True] * 40


@settings(max_examples=60, deadline=None)
@given(problem=allocation_problems())
def test_reports_and_maps_back(problem: AllocationProblem) -> None:
    """Users read the report, and plans name original templates."""
    reduced = reduce_problem(problem)
    assert [step.name for step in reduced.reductions] == ["availability", "clip", "dominance"]
    assert all(step.after <= step.before and step.seconds >= 0 for step in reduced.reductions)
    assert (reduced.problem.usage == problem.usage[reduced.kept]).all()
    assert (reduced.problem.throughput <= problem.throughput[reduced.kept]).all()
