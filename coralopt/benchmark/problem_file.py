"""A problem as one file of plain arrays: how the bench hands an instance to the process that solves it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from coralopt.allocation import Allocation, AllocationProblem
from coralopt.errors import BenchmarkError
from coralopt.placement import Placement, PlacementProblem, Stage

_ARRAYS = {
    "placement": ("values",),
    "allocation": ("usage", "throughput", "phase", "demand", "availability", "price", "running"),
}
_PLAIN = {
    "placement": ("node_set", "configurations", "stages"),
    "allocation": ("penalty", "phase_names", "region_names", "configuration_names"),
}


def save_problem(problem: Any, path: Path) -> None:
    """Write a placement or allocation problem as ``.npz``: arrays and one line of JSON, nothing executable."""
    arrays, plain = _parts(problem)
    np.savez(path, plain=np.frombuffer(json.dumps(plain).encode(), dtype=np.uint8), **arrays)


def load_problem(path: Path) -> Any:
    """Read what :func:`save_problem` wrote.

    Raises:
        BenchmarkError: The file is no problem.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            plain = json.loads(data["plain"].tobytes())
            arrays = {name: data[name] for name in data.files if name != "plain"}
        kind = plain.pop("kind")
        if kind == "placement":
            return PlacementProblem(
                **arrays,
                node_set=tuple(plain["node_set"]),
                configurations=tuple(plain["configurations"]),
                stages=plain["stages"],
            )
        return AllocationProblem(
            **{"running": None, **arrays},
            penalty=plain["penalty"],
            phase_names=tuple(plain["phase_names"]),
            region_names=tuple(plain["region_names"]),
            configuration_names=tuple(plain["configuration_names"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchmarkError(f"{path.name} is no problem file: {error}") from error


def problem_digest(problem: Any) -> str:
    """First 16 hex digits of the SHA-256 of all figures: equal for equal problems."""
    arrays, plain = _parts(problem)
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name};{array.dtype.str};{array.shape};".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def answer_to_plain(answer: Any) -> Any:
    """A placement as ``[[layers, [nodes...]], ...]``, an allocation as ``[[template, region, count], ...]``."""
    if isinstance(answer, Placement):
        return [[stage.layers, list(stage.nodes)] for stage in answer.stages]
    if isinstance(answer, Allocation):
        return [[*place, count] for place, count in answer.to_mapping().items()]
    return None


def answer_from_plain(kind: str, data: Any) -> Any:
    """The inverse of :func:`answer_to_plain`."""
    if kind == "placement":
        return Placement(tuple(Stage(int(layers), tuple(int(n) for n in nodes)) for layers, nodes in data))
    return Allocation.of({(int(t), int(r)): int(n) for t, r, n in data})


def _parts(problem: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    kind = problem.kind
    arrays = {name: getattr(problem, name) for name in _ARRAYS[kind] if getattr(problem, name) is not None}
    return arrays, {"kind": kind, **{name: getattr(problem, name) for name in _PLAIN[kind]}}
