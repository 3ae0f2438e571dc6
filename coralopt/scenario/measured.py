"""Files of measured layer times, and how a scenario file takes them in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from coralopt.scenario.mistakes import MistakeList

FORMAT, VERSION = "coralopt-measured", 1


def include_measurements(data: object, file: Path) -> None:
    """Put the content of measured files in the place of their paths, so that the scenario (and a plan) carries it.

    Args:
        data: Content of the scenario file; changed in place.
        file: The scenario file: paths in it are relative to its folder.

    Raises:
        ScenarioError: A file that is named cannot be read or holds no measurements.
    """
    throughput = data.get("throughput") if isinstance(data, dict) else None
    given = throughput.get("measured") if isinstance(throughput, dict) else None
    if given is None or not isinstance(throughput, dict):
        return
    entries = [given] if isinstance(given, str) else given
    if not isinstance(entries, list):
        return
    mistakes = MistakeList(str(file))
    included: list[object] = []
    for position, entry in enumerate(entries):
        if not isinstance(entry, str):
            included.append(entry)
            continue
        path = file.parent / entry
        try:
            included += read_measurements(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            place = ("throughput", "measured", position)
            mistakes.add(place, f"{path}: {reason}", "give the path of a file that `coralopt profile` wrote")
    mistakes.raise_any()
    throughput["measured"] = included


def read_measurements(path: Path) -> list[dict[str, object]]:
    """The measurements of a file, without the single points they were fitted to.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a file of measurements.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
        raise ValueError(f"not a file of measured times ({FORMAT}, version {VERSION})")
    nodes = data.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        raise ValueError("'nodes' must be a list of measured nodes")
    return [{key: value for key, value in node.items() if key not in ("points", "fit_error")} for node in nodes]


def measurements_document(nodes: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """What is written to such a file."""
    return {"format": FORMAT, "version": VERSION, "nodes": list(nodes)}
