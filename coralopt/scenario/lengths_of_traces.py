"""Lengths of the requests of a trace, as quantiles in the place of the trace's path."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from coralopt.scenario.mistakes import MistakeList

#: Shares of requests whose lengths stand for the trace.
_SHARES = (0.01, *(0.02 * k for k in range(1, 50)), 0.99, 0.995, 0.999, 1.0)
_SIDES = {"input": "input_tokens", "output": "output_tokens"}


def include_traces(data: object, file: Path) -> None:
    """Put quantiles in the place of the traces that ``models.*.demand.lengths.trace`` names, so that a plan carries them.

    Args:
        data: Content of the scenario file; changed in place.
        file: The scenario file: paths in it are relative to its folder.

    Raises:
        ScenarioError: A trace that is named cannot be read or has no lengths.
    """
    models = data.get("models") if isinstance(data, Mapping) else None
    mistakes = MistakeList(str(file))
    for key, model in models.items() if isinstance(models, Mapping) else ():
        demand = model.get("demand") if isinstance(model, Mapping) else None
        lengths = demand.get("lengths") if isinstance(demand, dict) else None
        if (
            demand is None
            or not isinstance(lengths, Mapping)
            or set(lengths) != {"trace"}
            or not isinstance(lengths["trace"], str)
        ):
            continue
        path = file.parent / lengths["trace"]
        try:
            demand["lengths"] = _quantiles(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            place = ("models", key, "demand", "lengths", "trace")
            mistakes.add(place, f"{path}: {reason}", "give a CSV file with the columns input_tokens and output_tokens")
    mistakes.raise_any()


def _quantiles(path: Path) -> dict[str, object]:
    """Both sides of the section ``lengths``.

    Raises:
        OSError: The file cannot be read.
        ValueError: It has no such columns, no rows, or something else than whole numbers above 0 there.
    """
    with path.open(encoding="utf-8", newline="") as text:
        rows = csv.DictReader(text)
        if not set(_SIDES.values()) <= set(rows.fieldnames or ()):
            raise ValueError("no columns input_tokens and output_tokens")
        columns: dict[str, list[int]] = {side: [] for side in _SIDES}
        for row in rows:
            for side, column in _SIDES.items():
                value = row[column] or ""
                if not (value.isascii() and value.isdecimal()) or not 0 < int(value) <= 10**8:
                    raise ValueError(f"line {rows.line_num}: {column} is {value[:30]!r}, not a whole number above 0")
                columns[side].append(int(value))
    if not columns["input"]:
        raise ValueError("no requests")
    return {
        side: {"quantiles": {f"{share:g}": float(np.quantile(values, share)) for share in _SHARES}}
        for side, values in columns.items()
    }
