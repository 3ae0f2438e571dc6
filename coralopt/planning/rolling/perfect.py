"""The yardstick of plans for bursts: what a system costs that knows a trace ahead and rents for each short window alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coralopt.planning.request import PlanRequest
from coralopt.planning.rolling.adapt import RollingSettings, adapt
from coralopt.planning.rolling.epochs import EpochInputs
from coralopt.planning.warm import WarmState
from coralopt.scenario import scenario_from_mapping
from coralopt.types import Floats


def windows_of(inputs: EpochInputs, epoch_s: float, tokens_s: Floats, window_s: float) -> EpochInputs:
    """Short windows of a trace as epochs, with the nodes and prices of the epoch that each begins in.

    Args:
        inputs: The epochs.
        epoch_s: Length of each, s.
        tokens_s: float64 (W, P), demand of every window, in the scenario's order; those after the last epoch are left out.
        window_s: Length of a window, s.
    """
    epoch = np.floor(np.arange(len(tokens_s)) * window_s / epoch_s + 1e-9).astype(np.int64)
    epoch = epoch[epoch < len(inputs)]
    return EpochInputs(tokens_s[: len(epoch)], inputs.availability[epoch], inputs.price[epoch])


def perfect_cost(request: PlanRequest, windows: EpochInputs) -> float:
    """What the perfect system costs, USD/h: the mean over windows of the least cost of serving each one's own demand.

    Of every window the proven lower bound, for mean requests, with nothing charged for starting; where the pool has too few
    nodes, of the largest share of the demand. No sequence of plans that serves each window in its time costs less.
    """
    document = request.scenario.document
    models = {
        key: {**model, "slo": {**model["slo"], "attainment": "mean"}} for key, model in document["models"].items()
    }
    kept = {name: value for name, value in document.items() if name not in ("start", "transition")}
    scenario = scenario_from_mapping({**kept, "models": models, "running": []})
    mean = replace(request, scenario=scenario, on_infeasible="scale", library=None, warm=WarmState(), settings={})
    bounds = []
    for epoch in adapt(mean, windows, RollingSettings(penalty=0.0)):
        bounds.append(epoch.summary.lower_bound_usd_h)
        if request.progress is not None:
            request.progress("windows of the perfect system", len(bounds), len(windows))
    return float(np.mean(bounds))
