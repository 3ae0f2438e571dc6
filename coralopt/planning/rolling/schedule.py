"""The plans that a run over epochs left in a folder, put into force one after the other, and requests for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from coralopt.errors import OptionError
from coralopt.plan import Plan
from coralopt.scenario import scenario_from_mapping
from coralopt.workload import Trace, Traffic


def load_schedule(folder: Path, epoch_s: float, lead_s: float = 0.0) -> list[tuple[float, Plan]]:
    """(start in s, plan) of every epoch that ``coralopt adapt -o`` left in a folder, each put into force ``lead_s`` ahead.

    Raises:
        OptionError: No finished epoch there, one is missing, or the length of an epoch is not positive.
        PlanError: A plan cannot be read.
    """
    if not (math.isfinite(epoch_s) and epoch_s > 0):
        raise OptionError(f"--epoch {epoch_s!r}: give a positive number of seconds")
    if not 0 <= lead_s < epoch_s:
        raise OptionError(f"--lead {lead_s!r}: give 0 or more seconds, less than an epoch of {epoch_s:g}")
    files = sorted(file for file in folder.glob("epoch-*.json") if not file.stem.endswith("-changes"))
    if not files:
        raise OptionError(f"{folder}: holds no epoch-0000.json; give the folder that `coralopt adapt -o` wrote")
    for e, file in enumerate(files):
        if file.name != f"epoch-{e:04d}.json":
            raise OptionError(f"{folder}: epoch-{e:04d}.json is missing; run `coralopt adapt` again")
    return [(max(0.0, e * epoch_s - lead_s), Plan.load(file)) for e, file in enumerate(files)]


def schedule_requests(schedule: Sequence[tuple[float, Plan]], epoch_s: float, traffic: Traffic) -> Trace:
    """Generated requests of every epoch at its own demand, one epoch after the other; each draws from a seed of its own."""
    parts = []
    for e, (_, plan) in enumerate(schedule):
        scenario = scenario_from_mapping(plan.scenario, source=f"the scenario of epoch {e}")
        seed = int(np.random.SeedSequence([traffic.seed, e]).generate_state(1)[0])
        parts.append((e * epoch_s, replace(traffic, duration_s=epoch_s, seed=seed).requests(scenario)))
    names = tuple(dict.fromkeys(name for _, part in parts for name in part.models))
    positions = [np.array([names.index(name) for name in part.models], dtype=np.int32) for _, part in parts]
    return Trace.in_order(
        np.concatenate([part.arrival_s + start_s for start_s, part in parts]),
        np.concatenate([part.input_tokens for _, part in parts]),
        np.concatenate([part.output_tokens for _, part in parts]),
        np.concatenate([position[part.model] for position, (_, part) in zip(positions, parts, strict=True)]),
        names,
    )
