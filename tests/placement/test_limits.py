"""Engine limits: the sweep, both formulations and the checker against trying every placement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from coralopt_dp import sweep
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.errors import OptionError, SolverError
from coralopt.placement import (
    ENGINES,
    EngineLimits,
    Placement,
    PlacementProblem,
    Stage,
    best_placement,
    engine_limits,
    throughput_of,
)
from coralopt.testing.placement_strategies import every_placement, placement_problems

GPUS = (1, 2, 1)


def runnable(name: str, placement, gpus) -> bool:
    """Said a second time, plainly."""
    stages = [[c for c, n in enumerate(stage.nodes) for _ in range(n)] for stage in placement.stages]
    nodes = [c for stage in stages for c in stage]
    tp = len({gpus[c] for c in nodes}) == 1
    single = all(len(stage) == 1 for stage in stages)
    copies = len({len(stage) for stage in stages}) == 1 and all(len(set(stage)) == 1 for stage in stages)
    return {"any": True, "same-tp": tp, "one-node-stages": single, "equal-replicas": copies, "vllm": tp and copies}[
        name
    ]


def limited(problem: PlacementProblem, name: str) -> tuple[PlacementProblem, float]:
    """The problem with limits and its optimum by trying everything."""
    gpus = GPUS[: len(problem.configurations)]
    best = max(
        (throughput_of(problem.values, p) for p in every_placement(problem) if runnable(name, p, gpus)), default=0.0
    )
    return replace(problem, limits=engine_limits(name), gpus=gpus), best


@pytest.mark.parametrize("name", sorted(ENGINES))
@settings(max_examples=25, deadline=None)
@given(problem=placement_problems(max_nodes=4, max_layers=5))
def test_sweep_equals_enumeration(name, problem):
    """The optimum among the placements that the engine runs, for every member of the family."""
    problem, best = limited(problem, name)
    solution = best_placement(problem, "dp")
    if best == 0:
        assert solution.answer is None
    else:
        assert solution.objective == best
        assert runnable(name, solution.answer, problem.gpus)
    sets = np.array(list(np.ndindex(*(n + 1 for n in problem.node_set)))[1:], dtype=np.int8)
    family = sweep(problem.values, sets, limits=problem.limits, gpus=problem.gpus)
    assert family.throughput[-1] == best


@pytest.mark.parametrize("formulation", ["tight", "paper"])
@settings(max_examples=12, deadline=None)
@given(problem=placement_problems(max_nodes=4, max_layers=4), name=st.sampled_from(sorted(ENGINES)))
def test_formulations_equal_enumeration(formulation, problem, name):
    """Both integer programmes carry the limits."""
    problem, best = limited(problem, name)
    solution = best_placement(problem, "highs", formulation)
    if best == 0:
        assert solution.answer is None
    else:
        assert solution.objective == pytest.approx(best, rel=1e-4)


@settings(max_examples=30, deadline=None)
@given(problem=placement_problems(max_nodes=4, max_layers=4), name=st.sampled_from(sorted(ENGINES)))
def test_checker_knows_the_limits(problem, name):
    """A placement passes exactly if the engine can run it."""
    bound, _ = limited(problem, name)
    for placement in every_placement(problem):
        assert bound.check(placement).feasible == runnable(name, placement, bound.gpus)


def test_unknown_engine_and_missing_gpu_counts():
    """Names are checked, and same_tp cannot be judged without GPU counts."""
    with pytest.raises(OptionError, match="vllm"):
        engine_limits("nosuch")
    with pytest.raises(SolverError, match="gpus"):
        PlacementProblem(np.ones((1, 3, 1, 2)), (1,), ("a",), limits=EngineLimits(same_tp=True))


def test_what_an_engine_cannot_run_is_said() -> None:
    """One node of each kind counts, too; each stage that mixes kinds is named."""
    mixed = Placement((Stage(2, (1, 1)), Stage(2, (0, 1))))
    words = [violation.text for violation in ENGINES["vllm"].violations(mixed, (4, 2))]
    assert words == [
        "nodes with 2 and 4 GPUs are mixed; the engine needs one TP degree",
        "stages have [2, 1] nodes; the engine needs as many in each",
        "stage 1 mixes configurations; the engine needs equal replicas",
    ]
