"""Files of measured layer times, and how a scenario file takes them in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from coralopt.catalog import find_model, node_configurations
from coralopt.replacing import cache_folder
from coralopt.scenario.explain import explain
from coralopt.scenario.file.serving import MeasuredNode
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
    if not isinstance(data, dict):
        return
    throughput = data.get("throughput")
    _include_named(throughput, file)
    if throughput is None or (isinstance(throughput, dict) and throughput.get("source", "auto") == "auto"):
        _include_built(data)


def _include_named(throughput: object, file: Path) -> None:
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
            nodes = read_measurements(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            place = ("throughput", "measured", position)
            mistakes.add(place, f"{path}: {reason}", "give the path of a file that `coralopt profile` wrote")
            continue
        for number, node in enumerate(nodes):
            try:
                MeasuredNode.model_validate(node)
            except ValidationError as error:
                within = MistakeList(f"{path}: nodes[{number}]")
                explain(error, node, within, MeasuredNode)
                within.raise_any()
        included += nodes
    mistakes.raise_any()
    throughput["measured"] = included


def built_folder() -> Path:
    """Where files of built times lie; scenarios take what concerns them from there."""
    return cache_folder() / "throughput"


def _include_built(data: dict[str, object]) -> None:
    """Add the times that ``coralopt throughput build`` left in the user's cache for what the scenario names."""
    folder = built_folder()
    models, pool = data.get("models"), data.get("pool")
    if not os.access(folder, os.R_OK) or not isinstance(models, Mapping) or not isinstance(pool, Mapping):
        return
    names = {word for key, entry in models.items() for word in _names(key, entry)}
    regions = pool.get("regions")
    supplies = (
        [entry.get("configurations") for entry in regions.values() if isinstance(entry, Mapping)]
        if isinstance(regions, Mapping)
        else []
    )
    nodes = {str(name) for supply in supplies if isinstance(supply, Mapping | list) for name in supply}
    nodes |= (
        set(node_configurations()) if "all" in [supply for supply in supplies if isinstance(supply, str)] else set()
    )
    throughput = data.get("throughput")
    given = throughput.get("measured") or [] if isinstance(throughput, Mapping) else []
    if not isinstance(given, list):
        # Validation says what is wrong with it.
        return
    known = {_key(node) for node in given if isinstance(node, Mapping)}
    taken = list(given)
    for path in sorted(folder.glob("*.json")):
        try:
            built = read_measurements(path)
        except (OSError, ValueError):
            # A cache may be damaged or gone at any time; figures then come from elsewhere, and plans say so.
            continue
        taken += [
            node
            for node in built
            if str(node.get("model")) in names and str(node.get("configuration")) in nodes and _key(node) not in known
        ]
    if taken:
        data["throughput"] = {**(throughput if isinstance(throughput, Mapping) else {}), "measured": taken}


def _names(key: object, entry: object) -> Iterator[str]:
    """Every name under which times of a model may be kept."""
    yield str(key)
    for word in (entry.get("model") or key, entry.get("hf_id")) if isinstance(entry, Mapping) else ():
        if isinstance(word, str):
            yield word
            known = find_model(word)
            yield from () if known is None else (known.hf_id, known.measured_as or known.hf_id)


def _key(node: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(str(node.get(name)) for name in ("model", "configuration", "weight_format", "kv_format"))


def read_measurements(path: Path) -> list[dict[str, object]]:
    """The measurements of a file, without the single points they were fitted to.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a file of measurements.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
        raise ValueError(f"not a file of measured times ({FORMAT}, version {VERSION})")
    nodes = data.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        raise ValueError("'nodes' must be a list of measured nodes")
    return [{key: value for key, value in node.items() if key not in ("points", "fit_error")} for node in nodes]


def measurements_document(nodes: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """What is written to such a file."""
    return {"format": FORMAT, "version": VERSION, "nodes": list(nodes)}
