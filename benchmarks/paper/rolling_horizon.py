"""What the scripts on rolling horizons share: requests of an experiment, demand and plans of its epochs, simulation."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coralopt import Plan, load_scenario, scenario_from_mapping
from coralopt.planning import PlanRequest, RollingSettings, adapt, epoch_inputs
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.simulation import SimulationConfig, SimulationResult, simulate
from coralopt.types import Ints
from coralopt.workload import Trace, Traffic, epoch_demand

#: Node initialization, s, from which K follows (the paper's K is this over the interval; 6 minutes there).
INITIALIZATION_S = 360.0

Rooms = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class SimulatedHorizon:
    """Plans epoch by epoch, and what became of the requests.

    Attributes:
        plans: One an epoch.
        result: What became of the requests.
        initialization_usd_h: Mean over the epochs after the first of the cost of starting, USD/h.
        cost_usd_h: Mean over the same epochs of the planned cost, initialization included, USD/h.
        started: Instances started in these epochs.
    """

    plans: tuple[Plan, ...]
    result: SimulationResult
    initialization_usd_h: float
    cost_usd_h: float
    started: int


def setup(name: str, rooms: Rooms | None = None, factors: Mapping[str, float] | None = None) -> ResolvedScenario:
    """A built-in scenario with this headroom, and each model's rate times its factor."""
    document = copy.deepcopy(dict(load_scenario(name).document))
    for model, factor in (factors or {}).items():
        document["models"][model]["demand"]["requests_s"] *= factor
    if rooms:
        document["headroom"] = {key: dict(room) for key, room in rooms.items()}
    return scenario_from_mapping(document, source=name)


def requests_of(scenario: ResolvedScenario, kind: str, minutes: float, seed: int) -> Trace:
    """The requests of an experiment."""
    return Traffic(kind, duration_s=60 * minutes, seed=seed).requests(scenario)


def simulate_horizon(
    scenario: ResolvedScenario,
    trace: Trace,
    epoch_s: float,
    epochs: int,
    penalty: float,
    config: SimulationConfig | None = None,
    lead_s: float = 0.0,
) -> SimulatedHorizon:
    """Plan every epoch for what arrives in it, and simulate the requests."""
    demand = epoch_demand(trace, epoch_s, epochs=epochs, models=[m.model.name for m in scenario.model_phases][::2])
    inputs = epoch_inputs(scenario, demand)
    planned = list(adapt(PlanRequest(scenario, options={"time_limit": 60.0}), inputs, RollingSettings(penalty)))
    schedule = [(max(0.0, e * epoch_s - lead_s), epoch.plan) for e, epoch in enumerate(planned)]
    result = simulate(schedule, trace, config=config, duration_s=epoch_s * epochs, epoch_s=epoch_s)
    # The first epoch starts from nothing in every system.
    later = planned[1:] or planned
    return SimulatedHorizon(
        tuple(epoch.plan for epoch in planned),
        result,
        float(np.mean([epoch.summary.initialization_usd_h for epoch in later])),
        float(np.mean([epoch.summary.cost_usd_h for epoch in later])),
        sum(epoch.summary.start for epoch in later),
    )


def goodput(result: SimulationResult) -> tuple[float, float]:
    """(generated tokens/s of requests that met their decode SLO, and of those that met both)."""
    tokens: Ints = result.requests["output_tokens"]
    decode = result.requests["met_tpot"]
    both = decode & result.requests["met_ttft"]
    return float(tokens[decode].sum()) / result.window_s, float(tokens[both].sum()) / result.window_s
