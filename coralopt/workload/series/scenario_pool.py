"""The availability of a scenario's own pool, epoch by epoch."""

from __future__ import annotations

import math
from pathlib import Path

from coralopt.scenario.resolved import ResolvedScenario
from coralopt.workload.series.availability import PoolHours, PoolScale, pool_availability, read_hourly
from coralopt.workload.series.availability_model import load_availability_model
from coralopt.workload.series.epochs import EpochAvailability

#: Hours of the cluster trace behind the packaged model; a generated table is at least as long.
TRACE_HOURS = 4416


def scenario_availability(
    scenario: ResolvedScenario, epochs: int, scale: PoolScale, hours: PoolHours, source: Path | str = "gfs"
) -> EpochAvailability:
    """Nodes by epoch, region and configuration, for the regions and configurations that the scenario offers.

    Args:
        scenario: Its pool says which configurations each region has.
        epochs: Number of epochs.
        scale: What the pool is to be worth.
        hours: Which hours the epochs follow; its seed also draws a generated table.
        source: An hourly table (a path), or the name or file of an availability model (a text).

    Raises:
        WorkloadError: As :func:`coralopt.workload.pool_availability`; a file that cannot be read.
    """
    nodes = {node.name: node for node in scenario.configurations}
    pool = {
        region: [name for name, here in zip(nodes, row, strict=True) if here]
        for region, row in zip(scenario.regions, (scenario.availability > 0).tolist(), strict=True)
    }
    if isinstance(source, Path):
        table = read_hourly(source)
    else:
        # A generated table is long enough to give each region a stretch of its own.
        span = math.ceil(epochs * hours.per_epoch) + 1 if epochs > 0 else 1
        table = load_availability_model(source).sample(max(TRACE_HOURS, span + 24 * len(pool)), hours.seed)
    return pool_availability(table, pool, epochs, scale, hours, nodes=nodes)
