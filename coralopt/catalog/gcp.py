"""Google Cloud's machine types with GPUs, and its price list: hosts are billed by core and GiB, GPUs by the piece."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_COUNTED = re.compile(r"(a2|a3|a4)-(high|ultra|mega)gpu-(\d+)g")
#: Form of the machine type's name -> GPU as SkyPilot calls it.
_GPUS = {"a2-high": "A100", "a2-mega": "A100", "a2-ultra": "A100-80GB", "a3-high": "H100", "a3-mega": "H100-MEGA"}
_GPUS |= {"a3-ultra": "H200", "a4-high": "B200"}
#: ``g2-standard-N``: cores -> L4.
_G2 = {"4": 1, "8": 1, "12": 1, "16": 1, "24": 2, "32": 1, "48": 4, "96": 8}
#: What the price list calls GPUs and cores, memory.
_GPU_SKU = re.compile(r"nvidia (?:tesla )?(l4|a100|a100 80gb|h100 80gb) gpu (?:attached to .* )?running in .*", re.I)
_HOST_SKU = re.compile(r"(?:spot preemptible )?(g2|a2|a3) instance (core|ram) running in .*", re.I)
_TERMS = {"OnDemand": 0, "Preemptible": 1}


@dataclass(frozen=True)
class Machine:
    """A machine type as its parts are billed: the parts' names in the price list -> how many (GPUs, cores, GiB)."""

    name: str
    gpu: str
    gpus: int
    parts: Mapping[str, int]


def gpus_of(machine: str) -> tuple[str, int]:
    """GPU, as SkyPilot calls it, and how many a machine type has; no name and 0 for one without or an unknown one."""
    counted = _COUNTED.fullmatch(machine)
    if counted:
        return _GPUS.get(f"{counted[1]}-{counted[2]}", ""), int(counted[3])
    cores = machine.removeprefix("g2-standard-")
    return ("L4", _G2[cores]) if cores in _G2 and cores != machine else ("", 0)


def _machines() -> Iterator[Machine]:
    """The types whose parts the price list names (Compute Engine's documentation of accelerator-optimised machines)."""
    for cores, count in _G2.items():
        parts = {"l4": count, "g2 core": int(cores), "g2 ram": 4 * int(cores)}
        yield Machine(f"g2-standard-{cores}", "L4", count, parts)
    for form, part, (cores_each, gib_each) in (
        ("a2-high", "a100", (12, 85)),
        ("a2-ultra", "a100 80gb", (12, 170)),
        ("a3-high", "h100 80gb", (26, 234)),
    ):
        for count in (1, 2, 4, 8):
            host = {f"{form[:2]} core": cores_each * count, f"{form[:2]} ram": gib_each * count}
            yield Machine(f"{form}gpu-{count}g", _GPUS[form], count, {part: count, **host})


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
    prices: dict[str, dict[tuple[str, int], float]] = defaultdict(dict)
    for sku in skus:
        name = str(sku["description"])
        gpu, host = _GPU_SKU.fullmatch(name), _HOST_SKU.fullmatch(name)
        term = _TERMS.get(sku["category"]["usageType"])
        if (gpu or host) and term is not None:
            part = gpu[1].lower() if gpu else f"{host[1]} {host[2]}".lower() if host else ""
            for region in sku["serviceRegions"]:
                prices[str(region)][part, term] = _usd_h(sku)
    for region, known in prices.items():
        for machine in _machines():
            on_demand, spot = (_sum(machine, known, term) for term in _TERMS.values())
            if on_demand is not None or spot is not None:
                yield region, machine, on_demand, spot


def _sum(machine: Machine, prices: Mapping[tuple[str, int], float], term: int) -> float | None:
    if any((part, term) not in prices for part in machine.parts):
        return None
    return round(sum(count * prices[part, term] for part, count in machine.parts.items()), 6)


def _usd_h(sku: Mapping[str, Any]) -> float:  # Any: JSON
    """The newest price of one unit and hour."""
    expression = sku["pricingInfo"][-1]["pricingExpression"]
    if expression["usageUnit"] not in ("h", "GiBy.h"):
        raise ValueError(f"{sku['description']}: a price per {expression['usageUnit']}; per hour is known")
    price = expression["tieredRates"][-1]["unitPrice"]
    if price.get("currencyCode", "USD") != "USD":
        raise ValueError(f"{sku['description']}: a price in {price['currencyCode']}; ask the list for USD")
    value = int(price["units"]) + int(price["nanos"]) / 1e9
    if not 0 <= value < float("inf"):
        raise ValueError(f"{sku['description']}: {value} is no price")
    return value
