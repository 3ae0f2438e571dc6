"""Instances: names that replay, draws that repeat, files that hold the same problem, orders that change nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.allocation import solve_allocation
from coralopt.benchmark import expand, load_problem, parse_arm, parse_instance, problem_digest, save_problem
from coralopt.benchmark.arms import Arm, make_arms
from coralopt.benchmark.observe import ObservedAllocation, ObservedBackend
from coralopt.benchmark.problem_file import answer_from_plain, answer_to_plain
from coralopt.errors import BenchmarkError, InfeasibleError
from coralopt.placement import best_placement
from coralopt.solving import get_backend, solve
from coralopt.testing.allocation_strategies import allocation_problems
from coralopt.testing.placement_strategies import placement_problems

#: A gap that a floating-point solver can prove.
PROVABLE = {"rel_gap": 1e-6}


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A template library of this module's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORALOPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("placement:phi4-14b/decode:nodes=4:seed=2", ["placement:phi4-14b/decode:nodes=4:seed=2"]),
        (
            "placement:gpt-oss-*/prefill:nodes=3..4:scenario=core",
            [f"placement:gpt-oss-20b/prefill:nodes={n}:seed=0:scenario=core" for n in (3, 4)],
        ),
        (
            "allocation:extended:columns=1000,10000:supply=scarce:seed=1..2",
            [f"allocation:extended:columns={n}:supply=scarce:seed={s}" for n in (1000, 10000) for s in (1, 2)],
        ),
        ("allocation:tiny:columns=40", ["allocation:tiny:columns=40:supply=ample:seed=0"]),
    ],
)
def test_patterns(pattern: str, names: list[str]) -> None:
    """A pattern stands for what it says, and every name is a pattern for itself."""
    assert [instance.name for instance in expand(pattern)] == names
    for name in names:
        assert parse_instance(name).name == name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nosuch:thing", "no instance"),
        ("placement:*:seed=1", "nodes="),
        ("placement:*:nodes=five", "whole number"),
        ("placement:*:nodes=5..3", "rising"),
        ("placement:nosuch/prefill:nodes=3", "model phase"),
        ("placement:*:knodes=3", "did you mean nodes"),
        ("allocation:tiny:columns=40:supply=plenty", "ample, scarce"),
        ("allocation:tiny:columns", "NAME=VALUE"),
    ],
)
def test_wrong_patterns_say_what_is_wrong(text: str, words: str) -> None:
    """One sentence with the value and the choices."""
    with pytest.raises(BenchmarkError, match=words):
        expand(text)


def test_arms() -> None:
    """Names of arms read back, combinations make sense, nonsense is refused."""
    arms = make_arms(["dp", "highs"], [], [False, True])
    names = [
        "dp",
        "highs/file",
        "highs/paper",
        "highs/paper+reductions",
        "highs/split",
        "highs/split+reductions",
        "highs/tight",
    ]
    assert sorted({arm.name for arm in arms}) == names
    assert all(parse_arm(arm.name) == arm for arm in arms)
    assert [a.name for a in arms if a.takes("placement")] == ["dp", "highs/paper", "highs/tight"]
    assert parse_arm("gurobi/split+restrict=1900") == Arm("gurobi", "split", True, 1900)
    assert parse_arm("gurobi/split+restrict=1900").name == "gurobi/split+restrict=1900"
    for wrong in (
        "highs/split+restrict=",
        "highs/tight+restrict=5",
        "highs/split+restrict=5+reductions",
        "highs",
        "dp/tight",
        "highs/nosuch",
        "highs/tight+reductions",
    ):
        with pytest.raises(BenchmarkError):
            parse_arm(wrong)


def test_draws_repeat_and_have_what_they_say() -> None:
    """The same name is the same problem, digit for digit; another seed is another one."""
    first, again, other = (
        parse_instance(f"placement:llama3-70b/decode:nodes=5:seed={seed}").problem() for seed in (0, 0, 1)
    )
    assert problem_digest(first) == problem_digest(again) != problem_digest(other)
    assert first.nodes == 5
    for supply in ("ample", "scarce"):
        name = f"allocation:tiny:columns=40:supply={supply}:seed=3"
        problem = parse_instance(name).problem()
        assert problem_digest(problem) == problem_digest(parse_instance(name).problem())
        usable = (problem.most_instances() > 0) & ~np.isnan(problem.template_price())
        assert 40 <= usable.sum() <= 40 + problem.shape[1]


@pytest.mark.parametrize("seed", range(2))
def test_scarce_allocations_have_a_solution(seed: int) -> None:
    """The planted allocation makes every scarce instance feasible; less of everything would not do for free."""
    scarce = parse_instance(f"allocation:tiny:columns=40:supply=scarce:seed={seed}").problem()
    assert solve_allocation(scarce).cost_usd_h > 0
    assert scarce.availability.sum() < 32


def test_too_many_columns_are_refused() -> None:
    """The library of the tiny scenario has less than a hundred templates."""
    with pytest.raises(BenchmarkError, match="columns"):
        parse_instance("allocation:tiny:columns=5000").problem()


@settings(max_examples=12, deadline=None)
@given(st.one_of(placement_problems(), allocation_problems()))
def test_problem_files_hold_the_same_problem(problem: object) -> None:
    """Every figure survives the file, NaN prices and running instances included."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.npz"
        save_problem(problem, path)
        assert problem_digest(load_problem(path)) == problem_digest(problem)


def test_a_broken_problem_file_is_refused(tmp_path: Path) -> None:
    """Nothing in it is executed, and what is no problem says so."""
    path = tmp_path / "x.npz"
    np.savez(path, plain=np.frombuffer(b'{"kind": "placement"}', dtype=np.uint8))
    with pytest.raises(BenchmarkError, match="no problem file"):
        load_problem(path)


@settings(max_examples=12, deadline=None)
@given(allocation_problems(), st.integers(1, 5))
def test_permuted_and_observed_allocations_have_the_same_optimum(problem: object, seed: int) -> None:
    """Order changes no optimum; every cost told is of a checked allocation; the answer survives its plain form."""
    plain = solve(problem, "highs", options=PROVABLE)
    told: list[float] = []
    permuted = solve(problem, ObservedBackend(get_backend("highs"), seed, told.append), options=PROVABLE)
    assert permuted.termination.reason == plain.termination.reason
    if plain.answer is None:
        return
    assert permuted.objective == pytest.approx(plain.objective, rel=3e-6, abs=1e-9)
    back = answer_from_plain("allocation", answer_to_plain(permuted.answer))
    assert problem.check(back).objective == permuted.objective  # type: ignore[attr-defined]
    costs: list[float] = []
    try:
        observed = ObservedAllocation.of(problem, costs.append)  # type: ignore[arg-type]
        backend = ObservedBackend(get_backend("highs"), seed, None)
        result = solve_allocation(observed, backend, PROVABLE)
    except InfeasibleError:
        return
    assert result.cost_usd_h == pytest.approx(plain.objective, rel=3e-6, abs=1e-9)
    assert costs
    assert min(costs) == result.cost_usd_h


@settings(max_examples=5, deadline=None)
@given(placement_problems(max_nodes=3, max_layers=3), st.integers(1, 5))
def test_permuted_placements_have_the_same_optimum(problem: object, seed: int) -> None:
    """The same for placements, where each stage count is a model of its own."""
    told: list[float] = []
    backend = ObservedBackend(get_backend("highs"), seed, told.append)
    permuted = best_placement(problem, backend, "tight", PROVABLE)  # type: ignore[arg-type]
    exact = best_placement(problem, "dp")  # type: ignore[arg-type]
    assert permuted.termination.reason == exact.termination.reason
    if exact.answer is not None:
        assert permuted.objective == pytest.approx(exact.objective, rel=3e-6)
        back = answer_from_plain("placement", answer_to_plain(exact.answer))
        assert back == exact.answer
        assert max(told, default=0.0) <= exact.objective * (1 + 1e-5)
