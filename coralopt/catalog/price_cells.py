"""What rows of price files hold, whoever wrote them: prices, counts, and the GPUs of instance types known by name."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import cache

from coralopt.catalog.gcp import gpus_of
from coralopt.catalog.loaders import offers
from coralopt.numbers import read_number

#: Azure: sizes without "Standard_" -> their GPUs.
_AZURE = {
    **{"NC4as_T4_v3": "1xT4", "NC8as_T4_v3": "1xT4", "NC16as_T4_v3": "1xT4", "NC64as_T4_v3": "4xT4"},
    **{"NC6s_v3": "1xV100", "NC12s_v3": "2xV100", "NC24s_v3": "4xV100", "NC24rs_v3": "4xV100"},
    **{"NC24ads_A100_v4": "1xA100", "NC48ads_A100_v4": "2xA100", "NC96ads_A100_v4": "4xA100"},
    **{"ND96asr_v4": "8xA100-40", "ND96amsr_A100_v4": "8xA100", "ND96isr_H100_v5": "8xH100"},
    "ND96is_H100_v5": "8xH100",
    **{"NC40ads_H100_v5": "1xH100", "NCC40ads_H100_v5": "1xH100", "NC80adis_H100_v5": "2xH100"},
    **{"ND96isr_H200_v5": "8xH200", "ND96isr_MI300X_v5": "8xMI300X", "ND96is_MI300X_v5": "8xMI300X"},
    "ND128isr_NDR_GB200_v6": "4xGB200",
}
#: Region, GPU, GPUs, instance type, and (on demand, spot, quota).
PriceRow = tuple[str, str, int, str, tuple[float | None, float | None, int | None]]


@cache
def _types() -> Mapping[str | None, str]:
    """Instance types of AWS, Azure and Google Cloud that are known by name -> node configuration."""
    listed = {offer.instance_type: offer.configuration for offer in offers().values()}
    return listed | {f"Standard_{size}": nodes for size, nodes in _AZURE.items()}


def gpus_of_type(kind: str) -> tuple[str, int]:
    """GPU, as SkyPilot calls it, and count of an instance type; no name and 0 for an unknown one."""
    count, _, gpu = _types().get(kind, "").partition("x")
    return ("A100-80" if gpu == "A100" else gpu, int(count)) if count else gpus_of(kind)


def read_amount(text: str) -> float | None:
    """A price or a count; ``None`` where nothing is said.

    Raises:
        ValueError: No number, negative, or infinite.
    """
    if not text:
        return None
    with contextlib.suppress(ValueError):
        if 0 <= (value := read_number(text)) < float("inf"):
            return value
    raise ValueError(f"{text} is neither a price nor a count; give a plain number from 0 on, like 1030.5")


def read_gpus(text: str) -> int:
    """GPUs of a node; 0 for a part of one, as SkyPilot's catalogs have them.

    Raises:
        ValueError: As :func:`read_amount`, or a fraction above 1.
    """
    count = read_amount(text) or 0.0
    if count > 1 and count != int(count):
        raise ValueError(f"{text} is no number of GPUs; give a whole one")
    return int(count)


def read_quota(text: str) -> int | None:
    """Most nodes that one may have; ``None`` where nothing is said.

    Raises:
        ValueError: Not a whole number from 0 on.
    """
    if text and not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text} is no quota; give a whole number of nodes from 0 on")
    return int(text) if text else None
