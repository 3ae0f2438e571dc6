"""The paper's planner behind the interface that all planners share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coralopt.planning.coral import plan_with_report
from coralopt.planning.request import PlanOutcome, PlanRequest, setting


class CoralPlanner:
    """Template library and allocation together, at proven cost (paper, sections 4.2 and 4.3)."""

    name = "coral"
    summary = "nodes of several kinds in one replica, all models together, to proven least cost"
    source = "the paper, section 4"
    settings: Mapping[str, Any] = {"formulation": "split", "reductions": True}

    def plan(self, request: PlanRequest) -> PlanOutcome:
        """As :func:`coralopt.planning.plan_with_report`."""
        plan, report = plan_with_report(
            request.scenario,
            solver=request.solver,
            options=request.options,
            formulation=setting(self, request, "formulation"),
            reductions=bool(setting(self, request, "reductions")),
            library=request.library,
            progress=request.progress,
        )
        return PlanOutcome(plan, report.seconds, plan.gap)
