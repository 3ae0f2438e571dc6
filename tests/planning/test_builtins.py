"""Built-in scenarios of single freedoms: the plan of each uses its freedom, holds when recomputed, and is simulated."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coralopt import Plan, load_scenario, plan_scenario, verify_plan
from coralopt.planning import expected_shares


def _sends_caches(plan: Plan) -> bool:
    return any(flow.gb_s > 0 and flow.usd_h > 0 for flow in plan.flows)


def _obeys_rules(plan: Plan) -> bool:
    committed = {item.node_class for item in plan.node_classes}
    return "committed" in committed and "limits.max_gpus.L40S" in {item.option for item in plan.options if item.binding}


def _swaps_weights(plan: Plan) -> bool:
    return any(item.shared is not None and item.shared.way == "swapping" for item in plan.instances)


def _hits_caches(plan: Plan) -> bool:
    return all(demand.prefix_hit == 0.374 for demand in plan.demands if demand.phase == "prefill")


@pytest.mark.parametrize(
    ("name", "uses"),
    [
        ("routes", _sends_caches),
        ("operator", _obeys_rules),
        ("swapping", _swaps_weights),
        ("prefix", _hits_caches),
    ],
)
def test_scenario_of_a_freedom_uses_it(name: str, uses: Callable[[Plan], bool]) -> None:
    """Proven, recomputed, and most requests within their SLOs."""
    plan = plan_scenario(load_scenario(name))
    assert plan.gap <= 1.001e-3
    assert uses(plan)
    assert verify_plan(plan).sentences == ()
    assert min(expected_shares(plan).values()) > 0.6
