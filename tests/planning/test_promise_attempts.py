"""Plans whose certificate does not confirm them: what comes in their place, and what the certificates say together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.plan import Plan, PlannedInstance
from coralopt.plan.certificate import LOOKS, SEEDS_APART, CertifiedPhase, interval
from coralopt.plan.verify import verify_plan
from coralopt.planning import CoralPlanner, PlanRequest, certify, certify_again, plan_scenario, prove_bound
from coralopt.planning.promise.certificate import ERRORS, FIRST_SEED, Replications, Shares, refused_by_now
from coralopt.planning.promise.search import PromiseSearch
from coralopt.planning.promise.together import TogetherRaces
from coralopt.planning.promise.workers import OutOfTimeError, Workers
from coralopt.report.promise import certificate_table
from coralopt.scenario import ResolvedScenario, load_scenario, scenario_from_mapping
from coralopt.simulation import GroupSimulator


def small(*models: str, **changes: Any) -> ResolvedScenario:
    """Models of `tiny` on single nodes, 99 % of their requests."""
    document: dict[str, Any] = {**load_scenario("tiny").document, "name": "small"}
    chosen = {
        name: {**document["models"][name], "slo": {**document["models"][name]["slo"], "attainment": 0.99}}
        for name in models or ("gpt-oss-20b",)
    }
    document |= {"models": chosen, "pruning": {"max_nodes": 1, "memory_ratio": 12}, **changes}
    return scenario_from_mapping(document)


def judged(monkeypatch: pytest.MonkeyPatch, share: Callable[[Plan, str, int], float]) -> list[tuple[int, int, str]]:
    """Certificates see this share of a model of a plan in the windows from a seed; returned is (seed, number, model) of all
    windows, in the order of their play."""
    simulated: list[tuple[int, int, str]] = []

    def add(self: Replications, plan: Plan, windows: Sequence[tuple[int, str]], shares: Shares, *_: object) -> None:
        for number, model in windows:
            simulated.append((self.first_seed, number, model))
            for kind in ("prefill", "decode"):
                # A little noise, so that there is an interval.
                value = share(plan, model, self.first_seed) + (1e-4 if number % 2 else -1e-4)
                shares.setdefault((model, kind), []).append(min(1.0, value))

    monkeypatch.setattr(Replications, "add", add)
    return simulated


def nodes(instances: Sequence[PlannedInstance]) -> list[tuple[str, object, int]]:
    return sorted((item.key, tuple(item.nodes().items()), item.count) for item in instances)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Verdicts that the tests share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _shared_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORALOPT_CACHE", str(cache))


@pytest.mark.parametrize(("share", "verdict"), [(0.98, "refuted"), (0.99, "open")])
def test_what_a_certificate_does_not_confirm_is_replaced(
    share: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first plan is not confirmed, the second is: it costs more, its windows have other seeds, and both are told."""
    first = plan_scenario(small(), settings={"certify": False})
    simulated = judged(monkeypatch, lambda plan, model, seed: share if seed == FIRST_SEED else 0.999)
    outcome = CoralPlanner().plan(PlanRequest(small()))
    plan, mark = outcome.plan, outcome.plan.certificate
    assert mark is not None
    assert mark.holds
    assert plan.cost_usd_h > first.cost_usd_h
    assert first.lower_bound_usd_h * (1 - 1e-9) <= plan.lower_bound_usd_h <= plan.cost_usd_h
    assert {phase.attempt for phase in mark.phases} == {2}
    assert [(item.attempt, item.phases[0].verdict, nodes(item.instances)) for item in mark.refused] == [
        (1, verdict, nodes(first.instances))
    ]
    assert {seed for seed, *_ in simulated} == {FIRST_SEED, FIRST_SEED + SEEDS_APART}
    # What surely misses no longer holds the bound down; what windows do not tell does.
    assert (plan.lower_bound_usd_h > first.lower_bound_usd_h) == (verdict == "refuted")
    assert verify_plan(plan).ok
    assert prove_bound(plan) == ()
    assert certify_again(plan) == ()
    # Certified once more it is the same attempt.
    assert certify(plan) == mark
    assert outcome.notes == ()
    assert Plan.model_validate_json(plan.to_json()) == plan
    assert certificate_table(mark).columns[0].header == "attempt"
    # The same search once more, with nothing remembered, ends with the same plan.
    assert plan_scenario(small()).to_json() == plan.to_json()


def test_models_that_were_confirmed_keep_their_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the model that failed gets other instances and further windows."""
    failing = "phi4-14b"
    simulated = judged(monkeypatch, lambda _, model, seed: 0.97 if model == failing and seed == FIRST_SEED else 0.999)
    scenario = small("gpt-oss-20b", failing)
    plan = plan_scenario(scenario)
    mark = plan.certificate
    assert mark is not None
    assert mark.holds
    assert {phase.model: phase.attempt for phase in mark.phases} == {"gpt-oss-20b": 1, failing: 2}
    assert {item.model for item in mark.refused} == {failing}
    assert {model for seed, _, model in simulated if seed != FIRST_SEED} == {failing}
    assert len(simulated) == len(set(simulated)) == 3 * LOOKS[0]
    assert verify_plan(plan).ok
    assert certify_again(plan) == ()


def test_attempts_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is confirmed, the plan that came nearest is told, not the last one; exit code and note say so."""
    shares = dict(
        zip([FIRST_SEED + k * SEEDS_APART for k in range(len(ERRORS))], (0.95, 0.98, 0.96, 0.97), strict=True)
    )
    simulated = judged(monkeypatch, lambda plan, model, seed: shares[seed])
    outcome = CoralPlanner().plan(PlanRequest(small()))
    mark = outcome.plan.certificate
    assert mark is not None
    assert not mark.holds
    assert {phase.attempt for phase in mark.phases} == {2}
    assert len({seed for seed, *_ in simulated}) == len(ERRORS)
    assert outcome.notes == (
        f"of {len(ERRORS)} certified plans this one is nearest to what was asked for; there are no more attempts",
    )
    assert verify_plan(outcome.plan).ok


@pytest.mark.parametrize(
    ("ending", "words", "interrupted"),
    [
        (KeyboardInterrupt, "Ctrl-C came first", True),
        (OutOfTimeError, "the time limit came first", False),
    ],
)
def test_a_further_attempt_that_is_cut_short_leaves_the_first(
    ending: type[BaseException], words: str, interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan and certificate stand, and the note says what ended the search."""
    first = plan_scenario(small(), settings={"certify": False})
    judged(monkeypatch, lambda *_: 0.98)
    run = PromiseSearch._run

    def cut(self: PromiseSearch) -> Any:
        if self.races._refused:
            raise ending
        return run(self)

    monkeypatch.setattr(PromiseSearch, "_run", cut)
    outcome = CoralPlanner().plan(PlanRequest(small(), options={"time_limit": 3600}))
    mark = outcome.plan.certificate
    assert mark is not None
    assert not mark.holds
    assert nodes(outcome.plan.instances) == nodes(first.instances)
    assert outcome.interrupted == interrupted
    assert outcome.notes == (f"of 1 certified plans this one is nearest to what was asked for; {words}",)
    assert verify_plan(outcome.plan).ok


def test_where_nothing_else_is_there_the_first_plan_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool has nodes for just one plan: it is certified once, and not as another attempt again."""
    supply = {"us-east-2": {"configurations": {"1xL40S": 2}}}
    scenario = small(pool={"regions": supply})
    first = plan_scenario(scenario, settings={"certify": False})
    simulated = judged(monkeypatch, lambda *_: 0.98)
    outcome = CoralPlanner().plan(PlanRequest(scenario))
    assert nodes(outcome.plan.instances) == nodes(first.instances)
    assert {seed for seed, *_ in simulated} == {FIRST_SEED}
    assert "no other one was found" in outcome.notes[0]


def test_a_certificate_of_attempts_is_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    """More error than there is, an attempt without one before, other figures, and instances refused that are confirmed."""
    judged(monkeypatch, lambda plan, model, seed: 0.98 if seed == FIRST_SEED else 0.999)
    plan = plan_scenario(small())
    mark = plan.certificate
    assert mark is not None
    refused = mark.refused[0]
    first = refused.phases[0]

    def with_refused(phase: CertifiedPhase) -> dict[str, Any]:
        return {"refused": (refused.model_copy(update={"phases": (phase, *refused.phases[1:])}),)}

    for wrong in (
        {"errors": (1.0, 1.0)},
        {"errors": (0.9,)},
        {"errors": (0.9, 0.05)},
        {"errors": (0.9, 0.09, 0.009)},
        {"errors": (0.0, 1.0)},
        {"refused": ()},
        {"phases": tuple(phase.model_copy(update={"attempt": 1}) for phase in mark.phases)},
        with_refused(first.model_copy(update={"low": first.low + 0.001})),
        with_refused(first.model_copy(update={"attempt": 2})),
        {"refused": (refused.model_copy(update={"phases": mark.phases}),)},
    ):
        assert not verify_plan(plan.with_certificate(mark.model_copy(update=wrong))).ok
    monkeypatch.undo()
    assert any("when simulated again" in line for line in certify_again(plan))


def test_only_models_that_were_not_confirmed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, lambda plan, model, seed: 0.98 if model == "phi4-14b" else 0.999)
    plan = plan_scenario(small("gpt-oss-20b", "phi4-14b"), settings={"certify": False})
    assert refused_by_now(plan) == ()
    mark = certify(plan)
    assert [item.model for item in refused_by_now(plan.with_certificate(mark))] == ["phi4-14b"]


def test_instances_are_refused_in_any_order_and_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan has them in an order of its own, with names and prices of a region."""
    judged(monkeypatch, lambda *_: 0.98)
    plan = plan_scenario(small(), settings={"certify": False})
    refused = refused_by_now(plan.with_certificate(certify(plan)))
    races = TogetherRaces(plan.resolved, GroupSimulator(plan.resolved), [], Workers(), remember=False, refused=refused)
    assert races.refused(plan.instances[::-1]) is not None
    more = plan.instances[0].model_copy(update={"count": plan.instances[0].count + 1})
    assert races.refused((more, *plan.instances[1:])) is None


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.0, 0.002))
def test_attempts_together_are_seldom_wrong(seed: int, below: float) -> None:
    """Plans that all miss what is asked for by a little: over many runs, one is confirmed by any attempt at most so often as
    the error allows. Windows are normal, so Student's t is exact."""
    rng, wrong, runs = np.random.default_rng(seed), 0, 400
    looks = LOOKS[:3]
    for _ in range(runs):
        confirmed = False
        for error in ERRORS:
            windows = rng.normal(0.99 - below, 0.003, looks[-1])
            sharing = len(looks) / error
            lows = [interval(windows[:look].tolist(), math.inf, 0.95, sharing)[0] for look in looks]
            confirmed |= max(lows) >= 0.99
        wrong += confirmed
    # 5 % of the runs are 20; five standard errors more.
    assert wrong <= 20 + 5 * math.sqrt(20)


def test_all_error_is_shared() -> None:
    """No more than all, most of it to the first attempt."""
    assert math.fsum(ERRORS) <= 1
    assert ERRORS[0] >= 0.9
    assert max(LOOKS) < SEEDS_APART
