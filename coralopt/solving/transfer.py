"""Requests and results of isolated solves as plain files: numpy arrays without pickle, and JSON."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np

from coralopt.solving.backend import Basis, RawResult
from coralopt.solving.extras import Extras, Indicator, SosSet
from coralopt.solving.matrix import LazyNames, MilpMatrix
from coralopt.solving.options import SolveOptions
from coralopt.solving.status import Limit, Reason
from coralopt.types import Floats

_VECTORS = ("c", "row_lower", "row_upper", "lower", "upper", "integer")
#: Share of a time limit that all before the solver itself may take: conditioning, the start of a process, the way there.
HANDOVER_SHARE = 0.6
_SPARSE = ("data", "indices", "indptr")
_ANSWERS = ("x", "row_duals", "reduced_costs")


def write_request(
    folder: Path,
    matrix: MilpMatrix,
    solver: str,
    options: SolveOptions,
    start: Floats | Basis | None,
    begun: float = math.inf,
) -> None:
    """``matrix.npz`` and ``request.json``; names stay behind, no back end needs them.

    The time limit counts from ``begun``, seconds of ``time.time``, or from when the matrix is read where that is later.
    """
    arrays = {name: getattr(matrix, name) for name in _VECTORS}
    arrays.update(data=matrix.a.data, indices=matrix.a.indices, indptr=matrix.a.indptr)
    if isinstance(start, Basis):
        arrays.update(basis_columns=start.columns, basis_rows=start.rows)
    elif start is not None:
        arrays["start"] = start
    extras = matrix.extras
    if extras.quadratic is not None:
        arrays.update({f"q_{name}": getattr(extras.quadratic, name) for name in _SPARSE})
    np.savez(folder / "matrix.npz", **arrays)
    # The parent enforces memory limits on any solver.
    plain = replace(options, isolate=False, memory_limit=None).to_mapping()
    request = {
        "begun": begun,
        "solver": solver,
        "options": plain,
        "offset": matrix.offset,
        "maximize": matrix.maximize,
        "sos": [astuple(group) for group in extras.sos],
        "indicators": [astuple(part) for part in extras.indicators],
        "semicontinuous": extras.semicontinuous,
    }
    _write_json(folder / "request.json", request)


def read_request(folder: Path) -> tuple[MilpMatrix, str, SolveOptions, Floats | Basis | None]:
    """What :func:`write_request` wrote."""
    from scipy.sparse import csc_array

    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    with np.load(folder / "matrix.npz", allow_pickle=False) as arrays:
        held = {name: arrays[name] for name in arrays.files}
    rows, columns = len(held["row_lower"]), len(held["c"])
    quadratic = None
    if "q_data" in held:
        quadratic = csc_array(tuple(held[f"q_{name}"] for name in _SPARSE), shape=(columns, columns))
    extras = Extras(
        quadratic,
        tuple(SosSet(name, kind, tuple(places), tuple(weights)) for name, kind, places, weights in request["sos"]),
        tuple(Indicator(*part) for part in request["indicators"]),
        tuple(request["semicontinuous"]),
    )
    matrix = MilpMatrix(
        **{name: held[name] for name in _VECTORS},
        offset=request["offset"],
        a=csc_array((held["data"], held["indices"], held["indptr"]), shape=(rows, columns)),
        maximize=request["maximize"],
        column_names=LazyNames([(columns, "c{}".format)]),
        row_names=LazyNames([(rows, "r{}".format)]),
        extras=extras,
    )
    start = Basis(held["basis_columns"], held["basis_rows"]) if "basis_rows" in held else held.get("start")
    options = SolveOptions.from_mapping(request["options"])
    if options.time_limit is not None:
        # The way here counts as solving, up to a share.
        spent = min(max(0.0, time.time() - request["begun"]), HANDOVER_SHARE * options.time_limit)
        options = replace(options, time_limit=options.time_limit - spent)
    return matrix, request["solver"], options, start


def write_result(folder: Path, result: RawResult) -> None:
    """``answer.npz`` and, last, ``result.json``: when that exists, everything does."""
    arrays = {name: getattr(result, name) for name in _ANSWERS if getattr(result, name) is not None}
    if result.basis is not None:
        arrays.update(basis_columns=result.basis.columns, basis_rows=result.basis.rows)
    if result.pool:
        arrays["pool"] = np.stack(result.pool)
    np.savez(folder / "answer.npz", **arrays)
    plain = {
        "reason": result.reason.value,
        "limit": None if result.limit is None else result.limit.value,
        "raw": result.raw,
        "bound": result.bound,
        "nodes": result.nodes,
        "iterations": result.iterations,
        "effective": dict(result.effective),
        "handover_seconds": result.handover_seconds,
        "solve_seconds": result.solve_seconds,
        "start_accepted": result.start_accepted,
        "objective": result.objective,
    }
    _write_json(folder / "result.json", plain)


def result_from(folder: Path) -> RawResult:
    """What :func:`write_result` wrote."""
    # Whatever JSON holds; RawResult is what it was written from.
    plain: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    with np.load(folder / "answer.npz", allow_pickle=False) as arrays:
        plain.update({name: arrays[name] if name in arrays.files else None for name in _ANSWERS})
        if "basis_rows" in arrays.files:
            plain["basis"] = Basis(arrays["basis_columns"], arrays["basis_rows"])
        plain["pool"] = tuple(arrays["pool"]) if "pool" in arrays.files else ()
    limit = plain.pop("limit")
    return RawResult(reason=Reason(plain.pop("reason")), limit=None if limit is None else Limit(limit), **plain)


def write_incumbent(folder: Path, x: Floats) -> None:
    """``incumbent.npy``, whole or not at all."""
    part = folder / "incumbent.part.npy"
    np.save(part, np.asarray(x, dtype=np.float64), allow_pickle=False)
    part.replace(folder / "incumbent.npy")


def write_error(folder: Path, error: BaseException) -> None:
    """``error.json``: what the back end raised."""
    _write_json(folder / "error.json", {"kind": type(error).__name__, "message": str(error)})


def _write_json(path: Path, data: Mapping[str, object]) -> None:
    part = path.with_suffix(".part")
    # Bounds may be infinite or NaN, which Python's JSON writes and reads.
    part.write_text(json.dumps(data), encoding="utf-8")
    part.replace(path)
