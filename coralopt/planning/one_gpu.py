"""What a plan would cost with one GPU type for all models: the comparison of its bill."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coralopt.errors import InfeasibleError, NoSolutionError, ScenarioError
from coralopt.plan.bill import OneGpuRent
from coralopt.planning.coral import CoralPlanner
from coralopt.planning.promise.search import asks_for_shares
from coralopt.planning.request import PlanOutcome, PlanRequest

#: A comparison need not be exact: relative gap, and seconds for each GPU type.
GAP, SECONDS = 0.01, 10.0


def cheapest_of_one_gpu(request: PlanRequest, outcome: PlanOutcome) -> OneGpuRent | None:
    """The cheapest plan of coral with one GPU type: every type in turn, the others taken out of the pool.

    For mean requests that is a second or so a type; where a share of requests is asked for, as long as the plan itself.

    Args:
        request: What was planned.
        outcome: The plan, whose templates and tables serve again.

    Returns:
        ``None`` where there is nothing to compare: one type in the pool, or a plan that does not meet the whole demand.
    """
    scenario, nodes = request.scenario, request.scenario.availability.max(axis=0) > 0
    gpus = np.array([configuration.gpu.name for configuration in scenario.configurations])
    names = tuple(dict.fromkeys(gpus[nodes].tolist()))
    if len(names) < 2 or outcome.plan.on_infeasible != "met":
        return None
    options = {**request.options, "rel_gap": GAP}
    if not asks_for_shares(scenario):
        options["time_limit"] = min(request.solve_options.time_limit or SECONDS, SECONDS)
    settings = {**request.settings, "certify": False}
    request = replace(request, options=options, on_infeasible="explain", warm=outcome.warm, settings=settings)
    rents: dict[str, float] = {}
    for name in names:
        supply = scenario.with_supply(np.where(gpus == name, scenario.availability, 0), scenario.price_usd_h)
        try:
            plan = CoralPlanner().plan(replace(request, scenario=supply)).plan
        except (InfeasibleError, NoSolutionError, ScenarioError):
            continue
        rents[name] = plan.provisioning_usd_h + plan.egress_usd_h
    gpu = min(rents, key=lambda name: rents[name], default=None)
    return OneGpuRent(gpu, float("nan") if gpu is None else rents[gpu], names, GAP)
