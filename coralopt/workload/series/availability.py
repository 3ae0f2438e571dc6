"""Free GPUs hour by hour, and what they mean for a pool: nodes per region, configuration and epoch.

The figures behind it are of the GPU cluster trace that the paper uses (GFS, section 5.1): free share of each of six GPU
types over 4,416 hours. :func:`read_hourly` reads that table, :class:`AvailabilityModel` makes tables like it from a
packaged fit, :func:`pool_availability` turns either into the availability of a scenario's pool.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coralopt.catalog import parse_configuration
from coralopt.catalog.types import NodeConfiguration
from coralopt.errors import WorkloadError
from coralopt.types import Floats, Ints
from coralopt.workload.files.checks import positive, random_of
from coralopt.workload.files.tables import number_cell
from coralopt.workload.series.epochs import EpochAvailability
from coralopt.workload.series.table import SeriesTable, key_cells

if TYPE_CHECKING:
    from coralopt.plan import Plan

HOURLY = SeriesTable(
    "hour",
    key_cells("gpu_model"),
    "free_frac",
    number_cell("must be a share from 0 to 1", most=1.0),
    "effective_capacity",
    number_cell("must be a positive number of GPUs", above=True),
    ("hour", "gpu_model", "requested_gpus", "fleet_gpus", "effective_capacity", "free_frac"),
)

#: Headroom over the estimated demand of each rule. Scarce: the paper's section 5.1 (25 % in core, 75 % in extended).
#: Ample is "high enough for every method" there; four times the estimate is this project's reading.
RULES: dict[str, float] = {"ample": 3.0, "scarce-core": 0.25, "scarce-extended": 0.75}

#: GPU of the catalog -> GPU type of the trace it follows. The paper does not say which; this is this project's choice by
#: class and generation. The trace hides two names behind "GPU-series".
GPU_OF_TRACE: dict[str, str] = {
    "H100": "H800",
    "H200": "H800",
    "B200": "H800",
    "A100": "A100-SXM4-80GB",
    "A10G": "A10",
    "L40S": "GPU-series-2",
    "L4": "GPU-series-1",
}

#: What a node is worth when a pool is scaled to a demand.
UNITS: dict[str, Callable[[NodeConfiguration], float]] = {
    "gpus": lambda node: float(node.count),
    "memory": lambda node: node.count * node.gpu.memory_gib,
    "bandwidth": lambda node: node.count * node.gpu.bandwidth_gb_s,
}


@dataclass(frozen=True, eq=False)
class HourlyAvailability:
    """Free GPUs by hour.

    Attributes:
        gpus: G GPU types, as the table names them.
        capacity: float64 (G,), GPUs in all.
        free_share: float64 (H, G), share of them that is free in each hour, 0 to 1.
    """

    gpus: tuple[str, ...]
    capacity: Floats
    free_share: Floats

    def __len__(self) -> int:
        return len(self.free_share)

    @property
    def free_gpus(self) -> Floats:
        """float64 (H, G), GPUs that are free."""
        return self.free_share * self.capacity


def read_hourly(path: str | Path) -> HourlyAvailability:
    """Read ``hour,gpu_model,requested_gpus,fleet_gpus,effective_capacity,free_frac``.

    Raises:
        WorkloadError: Lists every mistake: values out of range, hours that are missing or appear twice, a capacity that
            changes.
    """
    shares, keys, capacity = HOURLY.read(path)
    return HourlyAvailability(tuple(gpu for (gpu,) in keys), capacity, shares)


@dataclass(frozen=True)
class PoolScale:
    """How much a pool offers: the least factor that makes it worth ``(1 + headroom) * required``.

    Attributes:
        required: Estimated demand in ``unit``: what a plan for this demand uses.
        headroom: 0.25 is 25 % above the estimate; see ``RULES``.
        unit: What is counted: ``gpus``, ``memory`` (GiB) or ``bandwidth`` (1e9 bytes/s).
        at: Whether the ``mean`` over the epochs or the tightest epoch (``min``) has that headroom.

    Raises:
        WorkloadError: A value out of range.
    """

    required: float
    headroom: float = RULES["ample"]
    unit: str = "gpus"
    at: str = "mean"

    def __post_init__(self) -> None:
        positive("estimated demand", self.required)
        if not (math.isfinite(self.headroom) and self.headroom > -1):
            raise WorkloadError(
                f"the headroom must be above -1, not {self.headroom:g}; 0.25 is 25 % above the estimate"
            )
        if self.unit not in UNITS:
            raise WorkloadError(f"unknown unit {self.unit!r}; choose {', '.join(UNITS)}")
        if self.at not in ("mean", "min"):
            raise WorkloadError(f"the headroom holds at 'mean' or 'min' over the epochs, not at {self.at!r}")


@dataclass(frozen=True)
class PoolHours:
    """Which hours of the hourly table each region follows.

    Attributes:
        per_epoch: How far the table moves on with each epoch, hours.
        first: Hour of the table at epoch 0, the same in every region; drawn by ``seed`` for each region if ``None``.
        seed: Chooses the regions' hours.

    Raises:
        WorkloadError: ``per_epoch`` is not positive.
    """

    per_epoch: float = 1.0
    first: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        positive("hours per epoch", self.per_epoch)

    def of(self, regions: int, epochs: int, hours: int) -> Ints:
        """int64 (regions, epochs): hours of a table that has so many.

        Raises:
            WorkloadError: The table is too short.
        """
        span = math.ceil((epochs - 1) * self.per_epoch) + 1
        if span > hours:
            raise WorkloadError(f"{epochs} epochs need {span} hours but the table has {hours}")
        latest = hours - span
        if self.first is not None and not 0 <= self.first <= latest:
            raise WorkloadError(f"the first hour must be 0 to {latest} for {epochs} epochs, not {self.first}")
        drawn = random_of(self.seed).integers(0, latest + 1, regions)
        starts = drawn if self.first is None else np.full(regions, self.first)
        return np.asarray(starts[:, None] + (np.arange(epochs) * self.per_epoch).astype(np.int64))


def pool_availability(
    hourly: HourlyAvailability,
    pool: Mapping[str, Sequence[str]],
    epochs: int,
    scale: PoolScale,
    hours: PoolHours = PoolHours(),
    *,
    gpu_of_trace: Mapping[str, str] | None = None,
    nodes: Mapping[str, NodeConfiguration] | None = None,
) -> EpochAvailability:
    """Nodes that can be rented per region, configuration and epoch, scaled to an estimated demand (paper, section 5.1).

    Each region follows the hourly table from an hour of its own. One factor for the whole pool, the least that does,
    brings its total to the wanted one. The free GPUs of a type are split evenly over regions and, inside a region, over
    its configurations with that GPU; from the largest node down, GPUs that do not fill a node go to the next smaller one.

    Args:
        hourly: Free GPUs by hour.
        pool: Region -> node configurations that it offers.
        epochs: Number of epochs.
        scale: What the pool is to be worth.
        hours: Which hours the epochs follow.
        gpu_of_trace: GPU of the configurations -> GPU of the table; by default ``GPU_OF_TRACE``, and equal names.
        nodes: Configurations by name, for those that the catalog does not have.

    Raises:
        WorkloadError: A value out of range, a GPU that follows no GPU of the table, or a table that is too short.
    """
    if not 1 <= epochs <= 1_000_000:
        raise WorkloadError(f"the number of epochs must be 1 to 1,000,000, not {epochs}")
    regions = tuple(pool)
    names = tuple(dict.fromkeys(name for offered in pool.values() for name in offered))
    if not names:
        raise WorkloadError("the pool offers no node configuration")
    own = nodes or {}
    configurations = [own[name] if name in own else parse_configuration(name) for name in names]
    columns = _columns(hourly, configurations, gpu_of_trace)
    followed = hours.of(len(regions), epochs, len(hourly))
    free = np.zeros((epochs, len(regions), len(names)))
    for r, region in enumerate(regions):
        offered = set(pool[region])
        siblings = Counter(node.gpu.name for node in configurations if node.name in offered)
        for c, node in enumerate(configurations):
            if node.name in offered:
                share = len(regions) * siblings[node.gpu.name]
                free[:, r, c] = hourly.free_gpus[followed[r], columns[c]] / share
    return EpochAvailability(regions, names, _scaled(free, configurations, scale))


def _scaled(free: Floats, nodes: Sequence[NodeConfiguration], scale: PoolScale) -> Ints:
    """Whole nodes (E, R, C) from GPUs (E, R, C) times the least factor that makes them worth enough."""
    worth = np.array([UNITS[scale.unit](node) for node in nodes])
    target = (1 + scale.headroom) * scale.required

    def total(factor: float) -> float:
        per_epoch = (_whole_nodes(free * factor, nodes) @ worth).sum(axis=1)
        return float(per_epoch.mean() if scale.at == "mean" else per_epoch.min())

    high = 1e-6
    while total(high) < target:
        high *= 2
        if high > 1e12:
            raise WorkloadError(
                "no node of the pool is ever free in these hours, so no factor reaches the demand; choose other hours "
                "(another seed or first hour)"
            )
    low = high / 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if total(middle) >= target else (middle, high)
    return _whole_nodes(free * high, nodes)


def _whole_nodes(free: Floats, nodes: Sequence[NodeConfiguration]) -> Ints:
    """Nodes from GPUs: from the largest node of a GPU type down, GPUs that fill no node go to the next smaller one."""
    whole = np.zeros(free.shape, dtype=np.int64)
    carry: dict[str, Floats] = {}
    for column in sorted(range(len(nodes)), key=lambda c: -nodes[c].count):
        node = nodes[column]
        # Nodes that a region does not offer have no GPUs there, and hand on what the larger ones left.
        offered = free[:, :, column].max(axis=0) > 0
        at_hand = free[:, :, column] + carry.get(node.gpu.name, 0.0)
        # A sum of shares may fall short of a whole number by rounding alone.
        whole[:, :, column] = np.where(offered, np.floor(at_hand / node.count + 1e-9), 0)
        carry[node.gpu.name] = np.maximum(at_hand - whole[:, :, column] * node.count, 0.0)
    return whole


def plan_worth(plan: Plan, configurations: Sequence[NodeConfiguration], unit: str = "gpus") -> float:
    """What the nodes of a plan are worth in ``unit`` (see ``UNITS``): an estimate of the demand that it serves.

    Raises:
        WorkloadError: The plan uses a configuration that is not among these.
    """
    nodes = {node.name: node for node in configurations}
    total = 0.0
    for (_, name), count in plan.rented_nodes().items():
        if name not in nodes:
            raise WorkloadError(f"the plan uses {name}, which the scenario's pool does not have")
        total += count * UNITS[unit](nodes[name])
    return total


def _columns(
    hourly: HourlyAvailability, nodes: Sequence[NodeConfiguration], gpu_of_trace: Mapping[str, str] | None
) -> list[int]:
    followed = {**GPU_OF_TRACE, **{gpu: gpu for gpu in hourly.gpus}, **(gpu_of_trace or {})}
    lost = sorted({node.gpu.name for node in nodes if followed.get(node.gpu.name) not in hourly.gpus})
    if lost:
        raise WorkloadError(
            f"no availability for {', '.join(lost)}: say which GPU of the table each follows; "
            f"it has {', '.join(hourly.gpus)}"
        )
    return [hourly.gpus.index(followed[node.gpu.name]) for node in nodes]
