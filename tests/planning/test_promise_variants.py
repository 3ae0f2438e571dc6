"""Models with variants for a share of requests: one variant serves all of them, the cheapest that is good enough."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coralopt.errors import ScenarioError
from coralopt.plan import Plan
from coralopt.plan.verify import verify_plan
from coralopt.planning import certify_again, plan_scenario, prove_bound
from coralopt.planning.promise.capacities import Groups
from coralopt.planning.promise.designs import Designs
from coralopt.planning.promise.room import Room
from coralopt.planning.promise.together import TogetherRaces
from coralopt.scenario import ResolvedScenario, load_scenario, scenario_from_mapping

#: Variant -> its quality, and what the model itself is called with its weights.
VARIANTS: dict[str, tuple[float, dict[str, Any]]] = {
    "bf16": (1.0, {}),
    "fp8": (0.99, {"weight_format": "fp8"}),
    "fp8-kv8": (0.97, {"weight_format": "fp8", "kv_format": "fp8"}),
}


def of_variants(least: float | None = None, **model: Any) -> ResolvedScenario:
    """phi4-14b in three variants, 97 % of its requests."""
    demand: dict[str, Any] = {"requests_s": 6, "dataset": "azure-conv"}
    variants = {name: {**facts, "quality": quality} for name, (quality, facts) in VARIANTS.items()}
    return _scenario(
        {"variants": variants, "demand": demand if least is None else {**demand, "min_quality": least}} | model
    )


def _scenario(model: dict[str, Any]) -> ResolvedScenario:
    document: dict[str, Any] = {**load_scenario("tiny").document, "name": "variants"}
    own = {"model": "phi4-14b", "slo": {"ttft_ms": 1200, "tpot_ms": 60, "attainment": 0.97}, **model}
    document |= {"models": {"chat": own}, "pruning": {"max_nodes": 1, "memory_ratio": 12}}
    return scenario_from_mapping(document)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plan]:
    """The plan of each variant as the model itself."""
    demand = {"requests_s": 6, "dataset": "azure-conv"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORALOPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        plans = {
            name: plan_scenario(_scenario({**facts, "demand": demand}), settings={"certify": False})
            for name, (_, facts) in VARIANTS.items()
        }
    assert len({plan.cost_usd_h for plan in plans.values()}) == len(VARIANTS), "each quality has an answer of its own"
    return plans


@pytest.mark.parametrize("least", [None, 0.98, 0.995])
def test_the_cheapest_variant_that_is_good_enough_serves_all(
    least: float | None, alone: dict[str, Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many plans as there are variants, and the least of those whose quality is enough: the same cost and instances."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    plan = plan_scenario(of_variants(least))
    enough = [name for name, (quality, _) in VARIANTS.items() if quality >= (least or 0.0)]
    best = min(enough, key=lambda name: alone[name].cost_usd_h)
    assert plan.cost_usd_h == pytest.approx(alone[best].cost_usd_h)
    assert plan.lower_bound_usd_h <= min(alone[name].cost_usd_h for name in enough) + 1e-9
    assert plan.gap <= 0.02
    assert {mode.model: mode.share for mode in plan.modes} == {f"chat.{name}": float(name == best) for name in VARIANTS}
    assert plan.certificate is not None
    assert plan.certificate.holds
    assert {phase.model for phase in plan.certificate.phases} == {f"chat.{best}"}
    assert verify_plan(plan).ok
    assert prove_bound(plan) == ()
    assert certify_again(plan) == ()
    # What another variant is said to have been certified with is not true.
    phases = tuple(phase.model_copy(update={"model": "chat.bf16x"}) for phase in plan.certificate.phases)
    other = plan.model_copy(update={"certificate": plan.certificate.model_copy(update={"phases": phases})})
    assert not verify_plan(other).ok


def test_no_variant_has_a_least_share() -> None:
    """One variant serves all requests, so no other one can have a part of them."""
    demand = {"requests_s": 6, "dataset": "azure-conv", "min_shares": {"bf16": 0.1}}
    with pytest.raises(ScenarioError, match="min_shares: one variant serves all requests"):
        of_variants(demand=demand)


def test_a_variant_that_is_not_good_enough_alone_is_in_no_design() -> None:
    """A mean over all requests is not reached by a single variant below it, though a mix with a better one reaches it."""
    variants = [phase.variant for phase in of_variants(0.98).model_phases]
    assert [variant.may_serve_all for variant in variants if variant is not None] == [True] * 4 + [False] * 2
    first = variants[0]
    assert first is not None
    assert dataclasses.replace(first, quality=0.98, least_quality=0.98).may_serve_all
    for least, good in ((0.995, 1), (0.98, 2), (None, 3)):
        scenario = of_variants(least)
        groups = cast("list[Groups]", [SimpleNamespace(unit_tokens=1.0) for _ in scenario.model_phases])
        designs = Designs(scenario, groups, (), cast("TogetherRaces", None), cast("Room", None))
        assert designs.ways == {"chat": tuple((2 * k, 2 * k + 1) for k in range(good))}
