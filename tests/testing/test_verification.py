"""Verification at scale: it agrees where it should, finds liars, and what it saves replays."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coralopt.allocation import Joint, SideConstraint, SupplyClass
from coralopt.cli.verify_solvers import verify_solvers
from coralopt.errors import CoraloptError
from coralopt.solving import Limit, Reason, Termination
from coralopt.testing import verification
from coralopt.testing.instances import (
    ALLOCATION_TRAITS,
    PLACEMENT_TRAITS,
    allocation_instance,
    is_wide,
    placement_instance,
    problem_from_json,
    problem_to_json,
)
from coralopt.testing.verification import (
    ArmAnswer,
    InstanceVerdict,
    Unproven,
    load_case,
    milp_solvers,
    save_case,
    verify_seed,
    verify_seeds,
)
from coralopt.testing.wrong_backends import ClaimedOptimum, WrongBound

RunCli = Callable[..., Any]


@pytest.mark.parametrize("first", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["placement", "allocation"])
def test_all_installed_solvers_agree(kind: str, first: bool) -> None:
    """A small sample of the ten thousand in docs/solvers.md, one of every trait, and another."""
    traits = len(PLACEMENT_TRAITS if kind == "placement" else ALLOCATION_TRAITS)
    for verdict in verify_seeds(kind, range(traits) if first else range(traits, 2 * traits), milp_solvers()):
        assert verdict.agree, verdict


def test_figures_of_every_size_agree() -> None:
    """Tokens/s over twelve orders of magnitude in one table: a fifth of the seeds."""
    assert is_wide(36)
    values = placement_instance(39).values
    assert values.max() > 1e9 * values[values > 0].min()
    for kind, seeds in (("placement", (36, 37, 39, 127)), ("allocation", (36, 38, 41))):
        for seed in seeds:
            verdict = verify_seed(kind, seed, ["highs"])
            assert verdict.agree, verdict


def test_templates_of_several_phases_agree() -> None:
    """One seed of six has some, at once or with divided time."""
    problems = {seed: allocation_instance(seed) for seed in (40, 43, 44)}
    assert [(len(p.joint) > 0, p.joint.divided) for p in problems.values()] == [
        (True, False),
        (True, True),
        (True, False),
    ]
    for seed in problems:
        verdict = verify_seed("allocation", seed, ["highs"])
        assert verdict.agree, verdict


def test_workers_change_nothing() -> None:
    """Spread over processes, the same instances get the same answers."""
    one, two = (
        {
            verdict.seed: [(answer.arm, answer.said) for answer in verdict.answers]
            for verdict in verify_seeds("placement", range(4), ["highs"], workers)
        }
        for workers in (1, 2)
    )
    assert one == two


def test_traits_are_what_they_say() -> None:
    """Instances cover what has broken solvers before."""
    for seed, trait in enumerate(PLACEMENT_TRAITS):
        assert trait != "one node" or placement_instance(seed).nodes == 1
    kinds = {trait: allocation_instance(seed) for seed, trait in enumerate(ALLOCATION_TRAITS)}
    assert (kinds["no demand"].demand == 0).any() or len(kinds["no demand"].demand) == 1
    assert kinds["running"].running is not None
    assert kinds["huge"].throughput.max() > 1e5


@pytest.mark.parametrize("liar", [ClaimedOptimum, WrongBound])
def test_a_liar_is_found(liar: type) -> None:
    """A solver that is wrong on some of twenty instances must not pass."""
    kinds = ("allocation", "placement")
    assert any(not verify_seed(kind, seed, [liar()]).agree for kind in kinds for seed in range(20))


def assert_same(value: object, other: object) -> None:
    """Equal bit for bit, through tuples and dataclasses of arrays."""
    assert type(value) is type(other)
    if isinstance(value, np.ndarray):
        assert value.dtype == other.dtype
        np.testing.assert_array_equal(value, other)
    elif is_dataclass(value):
        for item in fields(value):
            assert_same(getattr(value, item.name), getattr(other, item.name))
    elif isinstance(value, tuple):
        assert len(value) == len(other)
        for one, two in zip(value, other, strict=True):
            assert_same(one, two)
    else:
        assert value == other


def test_a_relaxation_that_scip_calls_infeasible_is_solved() -> None:
    """Nodes are too few, which a relaxation with 4.7e10 beside 1 is to tell; it always has a solution."""
    assert {answer.said for answer in verify_seed("allocation", 1000123, ["scip"]).answers} == {"infeasible"}


@pytest.mark.parametrize("seed", [1000344, 1000479, 1000932, 1003363])
def test_a_bound_missed_in_a_high_range_is_none_of_a_lower_one(seed: int) -> None:
    """In the range of the largest figures the answer is 1e-6 of them: HiGHS's bound of 0 there is within its tolerances."""
    verdict = verify_seed("placement", seed, ["highs"])
    assert verdict.agree, verdict
    assert not any(isinstance(answer.said, Unproven) for answer in verdict.answers)


@pytest.mark.parametrize(
    ("said", "agree"),
    [
        ([2.0, Unproven(1.5, 2.5, "out of time")], True),
        ([2.0, Unproven(1.5, 1.9, "out of time")], False),
        ([2.0, Unproven(2.1, 2.5, "out of time")], False),
        ([Unproven(1.5, 2.5, "out of time")], False),
        (["infeasible", Unproven(1.5, 2.5, "out of time")], False),
        ([2.0, "SolverError: no"], False),
    ],
)
def test_an_answer_without_proof_must_fit_the_others(said: list[float | str | Unproven], agree: bool) -> None:
    """Its objective on one side of the optimum, its bound on the other; somebody must prove one."""
    answers = tuple(ArmAnswer(f"arm {k}", one, 0.0) for k, one in enumerate(said))
    assert InstanceVerdict("placement", 0, answers).agree is agree


def test_what_is_infeasible_is_explained_where_the_solver_errs_on_the_explanation() -> None:
    """Shares of demands eleven orders of magnitude apart: SCIP's objective of the elastic problem is not its solution's."""
    assert {answer.said for answer in verify_seed("allocation", 1004173, ["scip"]).answers} == {"infeasible"}


def test_an_objective_of_no_round_figures_is_compared_exactly() -> None:
    """Time divided between phases beside a price of unmet demand: 65.95, no multiple of 1/512."""
    verdict = verify_seed("allocation", 1001474, ["highs"])
    assert verdict.agree, verdict


@pytest.mark.parametrize("kind", ["placement", "allocation"])
def test_an_interrupted_solver_ends_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C that a solver takes for itself is no answer to compare."""
    ended = Termination(Reason.FEASIBLE, Limit.INTERRUPTED, "userinterrupt")
    monkeypatch.setattr(verification, "solve_compiled", lambda *_: SimpleNamespace(termination=ended))
    with pytest.raises(KeyboardInterrupt):
        verify_seed(kind, 4, ["highs"])


@pytest.mark.parametrize("seed", range(9))
def test_problems_survive_json(seed: int) -> None:
    """A saved disagreement must be the same problem, bit for bit."""
    for problem in (placement_instance(seed), allocation_instance(seed)):
        assert_same(problem, problem_from_json(json.loads(json.dumps(problem_to_json(problem)))))


def test_operators_terms_survive_json() -> None:
    """So must supply classes, side rows and prices of unmet demand."""
    plain = allocation_instance(0)
    spot = SupplyClass("spot", np.minimum(plain.availability, 1), np.full(plain.price.shape, 0.5))
    rows = (
        SideConstraint("budget", "most", "usd_h", 20.0),
        SideConstraint("replicas", "least", "instances", 1.0, (0,)),
    )
    price = np.full(len(plain.demand), np.inf)
    price[0] = 3.0
    problem = replace(plain, supply=(spot,), side_constraints=rows, unmet_price=price, unmet_together=((0,),))
    assert_same(problem, problem_from_json(json.loads(json.dumps(problem_to_json(problem)))))
    shared = Joint(np.array([0, 1]), np.array([1, 0], dtype=np.int32), np.array([2.5, 0.25]))
    plain = next(
        p for p in map(allocation_instance, range(100)) if len(p.demand) == 2 and p.phase[:2].tolist() == [0, 1]
    )
    problem = replace(plain, joint=shared, routes=(), start_penalty=None, side_constraints=())
    assert_same(problem, problem_from_json(json.loads(json.dumps(problem_to_json(problem)))))


def test_saved_cases_load_and_foreign_files_do_not(tmp_path: Path) -> None:
    """Replay starts from the file alone."""
    verdict = verify_seed("allocation", 3, ["highs"])
    problem, seed = load_case(save_case(verdict, tmp_path))
    assert seed == 3
    np.testing.assert_array_equal(problem.usage, allocation_instance(3).usage)
    (tmp_path / "foreign.json").write_text("{}")
    with pytest.raises(CoraloptError, match="no saved case"):
        load_case(tmp_path / "foreign.json")


def test_the_command_counts_and_replays(tmp_path: Path, run_cli: RunCli) -> None:
    """What docs/solvers.md shows, small."""
    run = partial(run_cli, "verify-solvers", "--solver", "highs", "--json")

    said = run("--instances", "5", "--allocations", "3")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["instances"] == {"placement": 5, "allocation": 3}
    path = save_case(verify_seed("placement", 4, ["highs"]), tmp_path)
    said = run("--replay", str(path))
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["agree"]
    refused = run("--solver", "dp")
    assert refused.returncode == 2
    assert "dp: it takes no integer programmes" in refused.stderr


def test_ctrl_c_that_a_back_end_took_for_itself_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A solve that is over at that moment answers as if nothing had happened."""

    def one_by_one(*arguments: Any) -> Iterator[InstanceVerdict]:
        for seed in range(3):
            with suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(5)
            yield verify_seed("placement", seed, ["highs"])

    monkeypatch.setattr(verification, "verify_seeds", one_by_one)
    before = signal.getsignal(signal.SIGINT)
    verify_solvers(instances=3, allocations=0, solver=["highs"], json_output=True)
    said = json.loads(capsys.readouterr().out)
    assert said["stopped"]
    assert said["instances"] == {"placement": 1}
    assert signal.getsignal(signal.SIGINT) is before
