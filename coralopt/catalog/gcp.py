"""Google Cloud's machine types with GPUs, and its price list: hosts are billed by core and GiB, GPUs by the piece."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: Form of the machine type's name -> GPU as SkyPilot calls it; its part in the price list, the host's cores and GiB for
#: each GPU, and which counts there are (Compute Engine's documentation of accelerator-optimised machines). The slices of
#: A4 and A4X are whole machines, no host is billed beside them.
_FORMS = {
    "a2-highgpu": ("A100", "a100", (12, 85), (1, 2, 4, 8)),
    "a2-megagpu": ("A100", "", (0, 0), ()),
    "a2-ultragpu": ("A100-80GB", "a100 80gb", (12, 170), (1, 2, 4, 8)),
    "a3-highgpu": ("H100", "h100 80gb", (26, 234), (1, 2, 4, 8)),
    "a3-megagpu": ("H100-MEGA", "h100 80gb mega", (26, 234), (8,)),
    "a3-ultragpu": ("H200", "h200 141gb", (28, 369), (8,)),
    "a4-highgpu": ("B200", "a4 b200 (1 slice)", (0, 0), (8,)),
    "a4x-highgpu": ("GB200", "a4x gb200 (1 slice)", (0, 0), (4,)),
}
#: The hosts of these forms are billed under names of their own.
_HOSTS = {"a3-megagpu": "a3plus", "a3-ultragpu": "a3ultra"}
#: Types that are named by cores -> GPU, its part, GiB for each core, and GPUs by cores.
_BY_CORES = {
    "g2-standard": ("L4", "l4", 4.0, {"4": 1, "8": 1, "12": 1, "16": 1, "24": 2, "32": 1, "48": 4, "96": 8}),
    "g4-standard": ("RTXPRO6000", "rtx 6000 96gb", 3.75, {"48": 1, "96": 2, "192": 4, "384": 8}),
}
#: Words of the price list that tell no part from another.
_IDLE = re.compile(r"spot preemptible | attached to spot preemptible vms|nvidia |tesla | gpu\b| instance\b")
#: The same GPU by region and term.
_ALIASES = {"h100 80gb plus": "h100 80gb mega", "h100 mega 80gb": "h100 80gb mega"}
#: Unit of a price -> how many of the parts' units (GPUs, cores, GiB) it is for.
_UNITS = {"h": 1.0, "GiBy.h": 1.0, "GBy.h": 1e9 / 2**30}


@dataclass(frozen=True)
class Machine:
    """A machine type as its parts are billed: the parts' names in the price list -> how many (GPUs, cores, GiB)."""

    name: str
    gpu: str
    gpus: int
    parts: Mapping[str, float]


def gpus_of(machine: str) -> tuple[str, int]:
    """GPU, as SkyPilot calls it, and how many a machine type has; no name and 0 for one without or an unknown one."""
    form, _, size = machine.rpartition("-")
    if form in _FORMS and re.fullmatch(r"\d+g", size):
        return _FORMS[form][0], int(size[:-1])
    gpu, _, _, counts = _BY_CORES.get(form, ("", "", 0.0, {}))
    return (gpu, counts[size]) if size in counts else ("", 0)


def _machines() -> Iterator[Machine]:
    """The types whose parts the price list names."""
    for series, (gpu, part, gib_each, sizes) in _BY_CORES.items():
        for cores, count in sizes.items():
            host = {f"{series[:2]} core": float(cores), f"{series[:2]} ram": gib_each * int(cores)}
            yield Machine(f"{series}-{cores}", gpu, count, {part: count, **host})
    for form, (gpu, part, (cores_each, gib_each), counts) in _FORMS.items():
        name = _HOSTS.get(form, form[:2])
        for count in counts:
            host = {f"{name} core": cores_each * count, f"{name} ram": gib_each * count} if cores_each else {}
            yield Machine(f"{form}-{count}g", gpu, count, {part: count, **host})


def read_skus(
    skus: Iterable[Mapping[str, Any]],
) -> Iterator[tuple[str, Machine, float | None, float | None]]:  # Any: JSON
    """Prices of whole machines from the SKUs of Compute Engine, as the Cloud Billing API lists them.

    Args:
        skus: With ``description``, ``category.usageType``, ``serviceRegions`` and ``pricingInfo``.

    Yields:
        Region, machine type, USD/h on demand and as spot; ``None`` where a part has no such price.

    Raises:
        KeyError, TypeError, ValueError: A SKU of a part lacks something, or is not in USD.
    """
    machines = list(_machines())
    parts = {part for machine in machines for part in machine.parts}
    prices: dict[str, dict[tuple[str, bool], float]] = defaultdict(dict)
    for sku in skus:
        # Reservations, commitments, sole tenancy and scheduled workloads (DWS) have other words before "running in".
        name = str(sku["description"]).lower().partition(" running in ")[0]
        part = _IDLE.sub("", name)
        part = _ALIASES.get(part, part)
        if part in parts and sku["category"]["usageType"] in ("OnDemand", "Preemptible"):
            # Some spot prices are filed as on demand: the name says what they are.
            spot = "spot preemptible" in name or sku["category"]["usageType"] == "Preemptible"
            for region in sku["serviceRegions"] if (price := _usd_h(sku)) else ():
                prices[str(region)][part, spot] = price
    for region, known in prices.items():
        for machine in machines:
            on_demand, spot = (_sum(machine, known, term) for term in (False, True))
            if on_demand is not None or spot is not None:
                yield region, machine, on_demand, spot


def _sum(machine: Machine, prices: Mapping[tuple[str, bool], float], spot: bool) -> float | None:
    if any((part, spot) not in prices for part in machine.parts):
        return None
    return round(sum(count * prices[part, spot] for part, count in machine.parts.items()), 6)


def _usd_h(sku: Mapping[str, Any]) -> float:  # Any: JSON
    """The newest price of one unit and hour."""
    expression = sku["pricingInfo"][-1]["pricingExpression"]
    if expression["usageUnit"] not in _UNITS:
        raise ValueError(f"{sku['description']}: a price per {expression['usageUnit']}; per hour is known")
    price = expression["tieredRates"][-1]["unitPrice"]
    if price.get("currencyCode", "USD") != "USD":
        raise ValueError(f"{sku['description']}: a price in {price['currencyCode']}; ask the list for USD")
    value = int(price.get("units", 0)) + int(price.get("nanos", 0)) / 1e9
    if not 0 <= value < float("inf"):
        raise ValueError(f"{sku['description']}: {value} is no price")
    return value / _UNITS[expression["usageUnit"]]
