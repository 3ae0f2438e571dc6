"""Plans for a share of requests under quotas and limits, against the same said as supply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coralopt.errors import InfeasibleError
from coralopt.plan import Plan
from coralopt.plan.verify import verify_plan
from coralopt.planning import plan_scenario
from coralopt.scenario import scenario_from_mapping

ENGINE: dict[str, Any] = {"initialization_penalty": 0.1, "serving": {"preset": "engine"}}
OSS = {
    "slo": {"ttft_ms": 1440, "tpot_ms": 39, "attainment": 0.99},
    "demand": {"requests_s": 2, "dataset": "azure-code"},
}


def planned(models: dict[str, Any], region: dict[str, Any], max_nodes: int = 1, **changes: Any) -> Plan:
    """A plan in one region."""
    document = {"name": "limits", "models": models, "pool": {"regions": {"us-east-2": region}}, **ENGINE, **changes}
    document["pruning"] = {"max_nodes": max_nodes, "memory_ratio": 12}
    plan = plan_scenario(scenario_from_mapping(document), settings={"certify": False})
    assert verify_plan(plan).ok
    assert plan.unconfirmed == ()
    return plan


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Verdicts that the tests share: where a limit is stated does not change what a group holds."""
    return tmp_path_factory.mktemp("verdicts")


@pytest.fixture(scope="module")
def scarce(verdicts: Path) -> Plan:
    """The plan for a supply of one L40S."""
    supply = {"4xA10G": 16, "1xL40S": 1, "1xA10G": 16, "2xL4": 16}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORALOPT_CACHE", str(verdicts))
        return planned({"gpt-oss-20b": OSS}, {"configurations": supply})


@pytest.mark.parametrize("place", ["plan", "region", "model"])
def test_a_quota_of_one_gpu_is_a_supply_of_one(
    place: str, verdicts: Path, scarce: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Designs did not know of it, and the plan of groups that did cost 14.70 USD/h in place of 4.58."""
    monkeypatch.setenv("CORALOPT_CACHE", str(verdicts))
    limits = {"limits": {"max_gpus": {"L40S": 1}}}
    kinds = ["4xA10G", "4xL40S", "1xL40S", "1xA10G", "2xL40S", "2xL4"]
    limited = planned(
        {"gpt-oss-20b": OSS | (limits if place == "model" else {})},
        {"available": 16, "configurations": kinds} | (limits if place == "region" else {}),
        **(limits if place == "plan" else {}),
    )
    assert limited.cost_usd_h == pytest.approx(scarce.cost_usd_h)
    assert limited.gap == pytest.approx(0.0, abs=1e-6)
    assert scarce.gap == pytest.approx(0.0, abs=1e-6)
    assert sum(i.count * n for i in limited.instances for kind, n in i.nodes().items() if "L40S" in kind) <= 1


def test_a_budget_below_every_plan_claims_nothing_that_no_plan_shows(
    verdicts: Path, scarce: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What groups could hold at best costs at least so much; for how much a plan holds is not known then."""
    monkeypatch.setenv("CORALOPT_CACHE", str(verdicts))
    supply, rent = {"4xA10G": 16, "1xL40S": 1, "1xA10G": 16, "2xL4": 16}, scarce.provisioning_usd_h
    with pytest.raises(InfeasibleError, match=r"^not every demand can be met within limits.max_usd_h: ") as caught:
        planned({"gpt-oss-20b": OSS}, {"configurations": supply}, limits={"max_usd_h": 0.9 * rent})
    assert "is enough" not in str(caught.value)
    # Less than any node costs: the message named no limit at all.
    with pytest.raises(InfeasibleError, match=r"no instance of gpt-oss-20b/prefill is within limits\.max_usd_h"):
        planned({"gpt-oss-20b": OSS}, {"configurations": supply}, limits={"max_usd_h": 0.5})
    assert 0.9 * rent < caught.value.explanation.needed["limits.max_usd_h"] <= rent * (1 + 1e-9)


@pytest.mark.slow
def test_a_budget_on_nodes_of_two_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each model alone would take the nodes that the other one needs; the bound counts what both of them take."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    models = {
        "phi4-14b": {
            "slo": {"ttft_ms": 1020, "tpot_ms": 78, "attainment": 0.99},
            "demand": {"requests_s": 1, "dataset": "azure-conv"},
        },
        "gpt-oss-20b": {
            "slo": {"ttft_ms": 765, "tpot_ms": 24, "attainment": 0.95},
            "demand": {"requests_s": 3, "dataset": "azure-code"},
        },
    }
    region = {"available": 8, "configurations": ["2xL40S", "1xA10G", "4xL40S", "2xL4"]}
    plan = planned(models, region, limits={"max_gpus": {"L40S": 4}})
    assert plan.gap <= 1e-3
    assert plan.cost_usd_h <= 21.67


@pytest.mark.slow
def test_bounds_of_scarce_nodes_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five allocations left a gap of 12.9 %: each had another cover that failed once it was simulated."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    models = {
        "qwen3-32b": {
            "slo": {"ttft_ms": 2000, "tpot_ms": 80, "attainment": 0.95},
            "demand": {"requests_s": 7, "dataset": "azure-conv"},
            "mode": "auto",
        },
        "gpt-oss-20b": {
            "slo": {"ttft_ms": 900, "tpot_ms": 30, "attainment": 0.99},
            "demand": {"requests_s": 10, "dataset": "azure-conv"},
        },
    }
    region = {"available": 4, "configurations": ["4xA10G", "1xA10G", "2xL40S", "1xL40S"]}
    assert planned(models, region, max_nodes=2).gap <= 1e-3
