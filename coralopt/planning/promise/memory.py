"""What searches found out, kept from one to the next in the cache folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from coralopt.replacing import cache_folder, replacing
from coralopt.types import Json

T = TypeVar("T")


def recalled(
    name: str, read: Callable[[Any], T]
) -> dict[str, T]:  # Any: what a JSON file holds, until read looks at it
    """What was kept under a name, by key; ``read`` makes an entry of its JSON."""
    try:
        stored = json.loads((cache_folder() / "capacities" / f"{name}.json").read_text(encoding="utf-8"))
        return {key: read(entry) for key, entry in stored.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        # Nothing there, or nothing that can be read: it is found out again.
        return {}


def keep(name: str, entries: Mapping[str, Json]) -> None:
    """Keep entries under a name; the order in which they were found out does not show."""
    try:
        with replacing(cache_folder() / "capacities" / f"{name}.json") as temporary:
            temporary.write_text(json.dumps(dict(entries), sort_keys=True), encoding="utf-8")
    except OSError:
        # A cache that cannot be written only costs time.
        return
