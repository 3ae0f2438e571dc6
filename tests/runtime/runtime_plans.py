"""Small plans, written by hand, for whatever a test is about."""

from __future__ import annotations

from typing import Any

from coralopt.plan import Plan, PlannedDemand, PlannedInstance, PlannedNode, PlannedStage
from coralopt.scenario import scenario_from_mapping

REGION = "us-east-2"
#: Node configurations of the scenario behind every plan here.
CONFIGURATIONS = ("1xL4", "2xL4", "4xL4", "8xL4", "1xL40S", "2xL40S", "4xL40S", "1xA100", "2xA100", "4xA100")
MODEL = {
    "layers": 8,
    "hidden": 256,
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 32,
    "vocab": 512,
    "intermediate": 512,
    "weight_format": "bf16",
    "max_position": 2048,
}

#: (layers, {configuration: (count, tokens/s)})
Stage = tuple[int, dict[str, tuple[int, float]]]


def instance(
    phase: str, *stages: Stage, model: str = "tiny", count: int = 1, batch: int = 2, region: str = REGION
) -> PlannedInstance:
    """An instance from its stages."""
    first, planned = 0, []
    for layers, nodes in stages:
        total = sum(n * speed for n, speed in nodes.values())
        planned.append(
            PlannedStage(
                first_layer=first,
                last_layer=first + layers - 1,
                nodes=tuple(
                    PlannedNode(
                        configuration=name,
                        instance_type=None,
                        count=n,
                        tokens_s=speed,
                        traffic_share=min(1.0, speed / total),
                        batch=batch,
                    )
                    for name, (n, speed) in nodes.items()
                ),
                tokens_s=total,
            )
        )
        first += layers
    used: dict[str, int] = {}
    for _, nodes in stages:
        for name, (n, _) in nodes.items():
            used[name] = used.get(name, 0) + n
    label = "-".join(name if n == 1 else f"{n}of{name}" for name, n in sorted(used.items()))
    return PlannedInstance(
        name=f"{model}-{phase}-{region}-{label}",
        model=model,
        phase=phase,  # type: ignore[arg-type]
        region=region,
        count=count,
        kept=0,
        stages=tuple(planned),
        tokens_s=min(stage.tokens_s for stage in planned),
        price_usd_h=1.0,
    )


def plan(
    *instances: PlannedInstance,
    model: dict[str, Any] | None = None,
    market: str = "on-demand",
    entry: dict[str, Any] | None = None,
) -> Plan:
    """A plan that holds these instances; its demand and money are placeholders. ``entry`` goes beside ``model``."""
    mode = "mixed" if instances[0].phase == "mixed" else "disaggregated"
    prices = {name: {"available": 99, "price_usd_h": 1.0} for name in CONFIGURATIONS}
    scenario = scenario_from_mapping(
        {
            "mode": mode,
            "serving": {"preset": "paper"},
            "models": {
                name: {
                    "model": model or MODEL,
                    "slo": {"ttft_ms": 1000, "tpot_ms": 100, "attainment": "mean"},
                    "demand": {"requests_s": 1, "input_tokens": 100, "output_tokens": 20},
                    **(entry or {}),
                }
                for name in dict.fromkeys(item.model for item in instances)
            },
            "pool": {"regions": {region: {"configurations": prices} for region in {i.region for i in instances}}},
        },
        source="test",
    )
    demands = tuple(
        PlannedDemand(
            model=phase.model.name,
            phase=phase.phase,
            slo_ms=phase.slo_ms,
            demand_tokens_s=phase.demand_tokens_s,
            planned_tokens_s=phase.demand_tokens_s,
            cost_usd_h=1.0,
            throughput_sources={},
        )
        for phase in scenario.model_phases
    )
    document = dict(scenario.document)
    document["pool"] = {**document["pool"], "market": market}
    return Plan(
        planner="test",
        coralopt_version="0",
        solver="none",
        solver_version="0",
        formulation="none",
        status="optimal",
        cost_usd_h=1.0,
        provisioning_usd_h=1.0,
        initialization_usd_h=0.0,
        lower_bound_usd_h=1.0,
        gap=0.0,
        requested_gap=0.0,
        scenario_digest=scenario.digest,
        library_digest="0",
        demands=demands,
        instances=tuple(instances),
        scenario=document,
    )


def golden_plan() -> Plan:
    """Every feature in one plan: uneven layers, two GPUs, PD, several copies, unzipped stages, ragged nodes."""
    return plan(
        instance("prefill", (3, {"1xL4": (1, 900.0)}), (5, {"1xL40S": (1, 900.0)}), count=2),
        instance("prefill", (4, {"2xL4": (2, 9.0)}), (4, {"2xL4": (2, 8.0)})),
        instance("prefill", (2, {"1xL4": (1, 9.0)}), (6, {"2xL4": (1, 8.0)})),
        instance("decode", (8, {"2xL40S": (1, 700.0)})),
    )
