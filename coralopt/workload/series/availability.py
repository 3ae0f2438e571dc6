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
from coralopt.errors import Mistake, WorkloadError
from coralopt.types import Floats, Ints
from coralopt.workload.series.epochs import EpochAvailability
from coralopt.workload.traces.files import read_rows, refuse

if TYPE_CHECKING:
    from coralopt.plan import Plan

HOURLY_COLUMNS = ("hour", "gpu_model", "requested_gpus", "fleet_gpus", "effective_capacity", "free_frac")

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
    source = Path(path)
    mistakes: list[Mistake] = []
    found: dict[str, dict[int, float]] = {}
    capacity: dict[str, float] = {}
    for place, row in read_rows(source, HOURLY_COLUMNS):
        try:
            hour, share = int(row["hour"]), float(row["free_frac"])
            size = float(row["effective_capacity"])
        except ValueError:
            mistakes.append(Mistake(place, "hour, effective_capacity and free_frac must be numbers", str(dict(row))))
            continue
        gpu = row["gpu_model"]
        if not (0 <= hour < 10_000_000 and 0 <= share <= 1 and 0 < size < math.inf and gpu):
            problem = "hour must be at least 0, free_frac 0 to 1, effective_capacity positive, gpu_model not empty"
            mistakes.append(Mistake(place, problem, str(dict(row))))
        elif hour in found.setdefault(gpu, {}):
            mistakes.append(Mistake(place, f"hour {hour} of {gpu} again"))
        elif capacity.setdefault(gpu, size) != size:
            mistakes.append(Mistake(place, f"effective_capacity of {gpu} is {size:g}, but was {capacity[gpu]:g} above"))
        else:
            found[gpu][hour] = share
    refuse(str(source), mistakes)
    if not found:
        raise WorkloadError(f"{source}: no rows below the header")
    hours = 1 + max(max(values) for values in found.values())
    for gpu, values in found.items():
        if len(values) < hours:
            first = next(hour for hour in range(hours) if hour not in values)
            mistakes.append(Mistake(gpu, f"{hours - len(values)} of {hours} hours are missing, the first is {first}"))
    refuse(str(source), mistakes)
    shares = np.array([[values[hour] for values in found.values()] for hour in range(hours)])
    return HourlyAvailability(tuple(found), np.array([capacity[gpu] for gpu in found]), shares)


def pool_availability(
    hourly: HourlyAvailability,
    pool: Mapping[str, Sequence[str]],
    epochs: int,
    *,
    required: float,
    headroom: float = RULES["ample"],
    unit: str = "gpus",
    at: str = "mean",
    hours_per_epoch: float = 1.0,
    first_hour: int | None = None,
    seed: int = 0,
    gpu_of_trace: Mapping[str, str] | None = None,
    nodes: Mapping[str, NodeConfiguration] | None = None,
) -> EpochAvailability:
    """Nodes that can be rented per region, configuration and epoch, scaled to an estimated demand (paper, section 5.1).

    Each region follows the hourly table from an hour of its own. One factor for the whole pool, the least that does,
    brings its total to ``(1 + headroom) * required``. The free GPUs of a type are split evenly over regions and, inside a
    region, over its configurations with that GPU; from the largest node down, GPUs that do not fill a node go to the next
    smaller one.

    Args:
        hourly: Free GPUs by hour.
        pool: Region -> node configurations that it offers.
        epochs: Number of epochs.
        required: Estimated demand in ``unit``: what a plan for this demand uses.
        headroom: 0.25 is 25 % above the estimate; see ``RULES``.
        unit: What is counted: ``gpus``, ``memory`` (GiB) or ``bandwidth`` (1e9 bytes/s).
        at: Whether the ``mean`` over the epochs or the tightest epoch (``min``) has that headroom.
        hours_per_epoch: How far the hourly table moves on with each epoch.
        first_hour: Hour of the table at epoch 0, the same in every region; drawn by ``seed`` for each region if ``None``.
        seed: Chooses the regions' hours.
        gpu_of_trace: GPU of the configurations -> GPU of the table; by default ``GPU_OF_TRACE``, and equal names.
        nodes: Configurations by name, for those that the catalog does not have.

    Raises:
        WorkloadError: A value out of range, a GPU that follows no GPU of the table, or a table that is too short.
    """
    _check_rule(epochs, required, headroom, unit, at, hours_per_epoch)
    regions = tuple(pool)
    names = tuple(dict.fromkeys(name for offered in pool.values() for name in offered))
    if not names:
        raise WorkloadError("the pool offers no node configuration")
    own = nodes or {}
    configurations = [own[name] if name in own else parse_configuration(name) for name in names]
    columns = _columns(hourly, configurations, gpu_of_trace)
    span = math.ceil((epochs - 1) * hours_per_epoch) + 1
    if span > len(hourly):
        raise WorkloadError(f"{epochs} epochs need {span} hours but the table has {len(hourly)}")
    latest = len(hourly) - span
    if first_hour is not None and not 0 <= first_hour <= latest:
        raise WorkloadError(f"the first hour must be 0 to {latest} for {epochs} epochs, not {first_hour}")
    starts = (
        np.random.default_rng(seed).integers(0, latest + 1, len(regions))
        if first_hour is None
        else np.full(len(regions), first_hour)
    )
    hours = (np.arange(epochs) * hours_per_epoch).astype(np.int64)
    free = np.zeros((epochs, len(regions), len(names)))
    for r, region in enumerate(regions):
        offered = set(pool[region])
        siblings = Counter(node.gpu.name for node in configurations if node.name in offered)
        for c, node in enumerate(configurations):
            if node.name in offered:
                share = len(regions) * siblings[node.gpu.name]
                free[:, r, c] = hourly.free_gpus[starts[r] + hours, columns[c]] / share
    worth = np.array([UNITS[unit](node) for node in configurations])
    return EpochAvailability(regions, names, _scaled(free, configurations, worth, (1 + headroom) * required, at))


def _scaled(
    free: Floats,
    nodes: Sequence[NodeConfiguration],
    worth: Floats,
    target: float,
    at: str,
) -> Ints:
    """Whole nodes (E, R, C) from GPUs (E, R, C) times the least factor that makes them worth ``target`` or more."""

    def total(factor: float) -> float:
        per_epoch = (_whole_nodes(free * factor, nodes) @ worth).sum(axis=1)
        return float(per_epoch.mean() if at == "mean" else per_epoch.min())

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
    for instance in plan.instances:
        for name, count in instance.nodes().items():
            if name not in nodes:
                raise WorkloadError(f"the plan uses {name}, which the scenario's pool does not have")
            total += instance.count * count * UNITS[unit](nodes[name])
    return total


def _check_rule(epochs: int, required: float, headroom: float, unit: str, at: str, hours_per_epoch: float) -> None:
    if not 1 <= epochs <= 1_000_000:
        raise WorkloadError(f"the number of epochs must be 1 to 1,000,000, not {epochs}")
    for name, value in (("estimated demand", required), ("hours per epoch", hours_per_epoch)):
        if not (math.isfinite(value) and value > 0):
            raise WorkloadError(f"the {name} must be positive and finite, not {value:g}")
    if not (math.isfinite(headroom) and headroom > -1):
        raise WorkloadError(f"the headroom must be above -1, not {headroom:g}; 0.25 is 25 % above the estimate")
    if unit not in UNITS:
        raise WorkloadError(f"unknown unit {unit!r}; choose {', '.join(UNITS)}")
    if at not in ("mean", "min"):
        raise WorkloadError(f"the headroom holds at 'mean' or 'min' over the epochs, not at {at!r}")


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
