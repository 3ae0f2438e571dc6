"""A problem as one file of plain arrays: how the bench hands an instance to the process that solves it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coralopt.allocation import Allocation, AllocationProblem
from coralopt.benchmark.files import ModelFile
from coralopt.errors import BenchmarkError
from coralopt.placement import Placement, PlacementProblem, Stage

#: What the bench solves, and what comes of it.
BenchProblem = PlacementProblem | AllocationProblem | ModelFile
BenchAnswer = Placement | Allocation | Mapping[str, float]

#: Kind -> its class, its arrays, and its plain fields.
_FIELDS: Mapping[str, tuple[type[BenchProblem], tuple[str, ...], tuple[str, ...]]] = {
    "placement": (PlacementProblem, ("values",), ("node_set", "configurations", "stages")),
    "allocation": (
        AllocationProblem,
        ("usage", "throughput", "phase", "demand", "availability", "price", "running"),
        ("penalty", "phase_names", "region_names", "configuration_names"),
    ),
    "file": (ModelFile, ("text",), ("file_name",)),
}


def save_problem(problem: BenchProblem, path: Path) -> None:
    """Write a problem as ``.npz``: arrays and one line of JSON, nothing executable."""
    arrays, plain = _parts(problem)
    np.savez(path, plain=np.frombuffer(json.dumps(plain).encode(), dtype=np.uint8), **arrays)


def load_problem(path: Path) -> BenchProblem:
    """Read what :func:`save_problem` wrote.

    Raises:
        BenchmarkError: The file is no problem.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            plain = json.loads(data["plain"].tobytes())
            arrays = {name: data[name] for name in data.files if name != "plain"}
        kind, optional, names = _FIELDS[plain["kind"]]
        absent = {name: None for name in optional if name == "running"}
        fields = {name: tuple(plain[name]) if isinstance(plain[name], list) else plain[name] for name in names}
        return kind(**{**absent, **arrays, **fields})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchmarkError(f"{path.name} is no problem file: {error}") from error


def problem_digest(problem: BenchProblem) -> str:
    """First 16 hex digits of the SHA-256 of all figures: equal for equal problems."""
    arrays, plain = _parts(problem)
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name};{array.dtype.str};{array.shape};".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def answer_to_plain(answer: BenchAnswer | None) -> list[list[object]] | None:
    """A placement as ``[[layers, [nodes...]], ...]``, an allocation as ``[[template, region, count], ...]``.

    Values of a model's columns other than 0 are ``[[name, value], ...]``.
    """
    if isinstance(answer, Placement):
        return [[stage.layers, list(stage.nodes)] for stage in answer.stages]
    if isinstance(answer, Allocation):
        return [[*place, count] for place, count in answer.to_mapping().items()]
    return None if answer is None else [[name, value] for name, value in answer.items()]


# Any: what answer_to_plain wrote, read from JSON; the kind decides what comes of it.
def answer_from_plain(kind: str, data: Any) -> Any:
    """The inverse of :func:`answer_to_plain`."""
    if kind == "placement":
        return Placement(tuple(Stage(int(layers), tuple(int(n) for n in nodes)) for layers, nodes in data))
    if kind == "file":
        return dict(data)
    return Allocation.of({(int(t), int(r)): int(n) for t, r, n in data})


# Any: an array; numpy's stubs take the names of savez for its options.
def _parts(problem: BenchProblem) -> tuple[dict[str, Any], dict[str, object]]:
    _, names, plain = _FIELDS[problem.kind]
    arrays = {name: getattr(problem, name) for name in names if getattr(problem, name) is not None}
    return arrays, {"kind": problem.kind, **{name: getattr(problem, name) for name in plain}}
