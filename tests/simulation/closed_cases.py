"""Cases small enough that theory, or a pencil, knows the answer."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from simulation_cases import SimulationCase

from coralopt.scenario.facts.serving import PAPER_SERVING
from coralopt.simulation.config import SimulationConfig
from coralopt.simulation.layout import Blueprint
from coralopt.simulation.state import DECODE, MIXED, NODE, PHASES
from coralopt.simulation.times import FunctionTimes, TimeTables
from coralopt.types import Floats, Ints

#: One stage takes 10 ms, whatever is in the micro-batch.
CONSTANT = FunctionTimes(
    prefill=lambda n, tokens: (10.0 + 0 * n, 0 * n), decode=lambda n, context: (10.0 + 0 * n, 0 * n)
)


#: One stage takes 1 ms a prompt token, or 10 ms a decode step.
BY_LENGTH = FunctionTimes(
    prefill=lambda n, tokens: (1.0 * n * tokens, 0 * n), decode=lambda n, context: (10.0 + 0 * n, 0 * n)
)


def tables_of(times: FunctionTimes) -> TimeTables:
    """Stage times of the one model on the one node configuration."""
    tables = TimeTables(200)
    tables.index(SimpleNamespace(name="m"), SimpleNamespace(name="c"), lambda *_: times)  # type: ignore[arg-type]
    return tables


def instance_of(phase: int, stages: int = 1, batch: int = 1, capacity: int = 10**9, link: float = 1e12) -> Blueprint:
    """One node a stage that holds one layer of a byte a token."""
    nodes = np.zeros(stages, dtype=NODE)
    nodes["stage"], nodes["layers"], nodes["weight"] = np.arange(stages), 1, 1.0
    nodes["capacity"], nodes["kv_full"], nodes["kv_copies"] = capacity, 1.0, 1.0
    nodes["batch"], nodes["limit"], nodes["budget_ms"] = batch, (stages + 1) * batch, 1e9
    nodes["prefill_table"], nodes["decode_table"], nodes["mixed_factor"], nodes["link"] = 0, 1, 1.0, link
    if phase == DECODE:
        nodes["limit"] = stages * batch
    name = PHASES[phase]
    return Blueprint(
        (name,), name, "m0", phase, "r0", nodes, (1,) * stages, ("c",) * stages, ("n",) * stages, 1.0, 1.0, 0.0
    )


def case_of(
    blueprints: list[Blueprint],
    arrival: Floats,
    inputs: int | Ints = 10,
    outputs: int | Ints = 1,
    config: SimulationConfig | None = None,
    times: FunctionTimes = CONSTANT,
    **serving: object,
) -> SimulationCase:
    """Requests of one model to instances that serve from the start; ``serving`` departs from the paper's."""
    n, count = len(arrival), len(blueprints)
    return SimulationCase(
        models=1,
        mixed=(float(blueprints[0].phase == MIXED),),
        blueprints=tuple(blueprints),
        ready_s=(0.0,) * count,
        drain_s=(math.inf,) * count,
        arrival_s=arrival,
        input_tokens=np.full(n, inputs),
        output_tokens=np.full(n, outputs),
        model=np.zeros(n, dtype=np.int64),
        config=config or SimulationConfig(kv_latency_ms=0.0),
        tables=tables_of(times),
        serving=replace(PAPER_SERVING, **serving),  # type: ignore[arg-type]
    )
