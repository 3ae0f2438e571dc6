"""Plans that are simulated until they keep their promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from coralopt import Plan, load_scenario, scenario_from_mapping
from coralopt.errors import InfeasibleError, OptionError
from coralopt.plan.verify import verify_plan
from coralopt.planning import (
    PlanRequest,
    VerifiedPlanning,
    VerifiedSettings,
    plan_verified,
    simulate_again,
)
from coralopt.workload import Traffic, write_trace

TRAFFIC = Traffic(duration_s=60.0, seed=2)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> VerifiedPlanning:
    """`tiny`, verified for 90 %."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORALOPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        return plan_verified(PlanRequest(load_scenario("tiny")), TRAFFIC, VerifiedSettings(0.9, rounds=8))


def test_the_cheapest_that_passed(found: VerifiedPlanning) -> None:
    """The plan passed, none that passed costs less, and the paper's plan, the first, fails."""
    assert found.verified
    assert not found.rounds[0].passed
    assert set(found.rounds[0].headroom.values()) == {(0.0, 0.0)}
    assert found.plan.cost_usd_h == min(item.cost_usd_h for item in found.rounds if item.passed)
    mark = found.plan.simulated
    assert mark is not None
    assert all(row.attainment >= 0.9 for row in mark.phases)
    assert found.result.cost_usd_h == pytest.approx(found.plan.provisioning_usd_h)


def test_it_holds_when_looked_at_again(found: VerifiedPlanning, tmp_path: Path) -> None:
    """The file verifies, and playing the requests again gives the same; what was tampered with is found."""
    found.plan.save(tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    assert plan == found.plan
    assert verify_plan(plan).ok
    assert simulate_again(plan) == ()
    assert plan.simulated is not None
    first, *rest = plan.simulated.phases
    prettier = plan.simulated.model_copy(update={"phases": (first.model_copy(update={"attainment": 1.0}), *rest)})
    assert any("simulated again" in line for line in simulate_again(plan.model_copy(update={"simulated": prettier})))
    other = plan.simulated.model_copy(update={"seed": 3})
    assert any("not the requests" in line for line in simulate_again(plan.model_copy(update={"simulated": other})))


def test_a_failed_plan_is_never_called_verified() -> None:
    """One round that fails: the plan comes back marked as failed, and fails when simulated again."""
    failed = plan_verified(PlanRequest(load_scenario("tiny")), TRAFFIC, VerifiedSettings(0.999, rounds=1))
    assert not failed.verified
    assert failed.plan.simulated is not None
    assert not failed.plan.simulated.passed
    assert any("fails its own simulation" in line for line in simulate_again(failed.plan))


def test_a_pool_without_room_ends_the_search(tiny_plan: Plan) -> None:
    """Headroom that the pool cannot give is taken back halfway; without any room the plan stays failed."""
    document = dict(load_scenario("tiny").document)
    used: dict[str, int] = {}
    for item in tiny_plan.instances:
        for name, count in item.nodes().items():
            used[name] = used.get(name, 0) + count * item.count
    tight = scenario_from_mapping({**document, "pool": {"regions": {"us-east-2": {"configurations": used}}}})
    failed = plan_verified(PlanRequest(tight), TRAFFIC, VerifiedSettings(0.99, rounds=6))
    assert not failed.verified
    assert any(item.cost_usd_h != item.cost_usd_h for item in failed.rounds)
    less = dict(list(used.items())[:1])
    smaller = {**document, "pool": {"regions": {"us-east-2": {"configurations": less}}}}
    with pytest.raises(InfeasibleError):
        plan_verified(PlanRequest(scenario_from_mapping(smaller)), TRAFFIC)


def test_a_trace_file(tmp_path: Path) -> None:
    """Simulated from a file; playing again needs the file, by whatever name."""
    scenario = load_scenario("tiny")
    write_trace(TRAFFIC.requests(scenario), tmp_path / "t.csv")
    made = plan_verified(PlanRequest(scenario), Traffic("trace", tmp_path / "t.csv"), VerifiedSettings(0.3, rounds=2))
    assert made.verified
    with pytest.raises(OptionError, match=r"t\.csv"):
        simulate_again(made.plan)
    assert simulate_again(made.plan, tmp_path / "t.csv") == ()
    head, *rows = (tmp_path / "t.csv").read_text().splitlines()
    (tmp_path / "falls.csv").write_text("\n".join([head, *reversed(rows)]) + "\n")
    assert simulate_again(made.plan, tmp_path / "falls.csv") == ()  # sorted, the same requests


@pytest.mark.parametrize("wrong", [{"target": 0.0}, {"target": 1.1}, {"over": "some"}, {"rounds": 0}])
def test_bad_figures(wrong: dict[str, object]) -> None:
    """Refused before anything is planned."""
    with pytest.raises(OptionError):
        VerifiedSettings(**wrong)  # type: ignore[arg-type]
