"""A file read a second time, by a solver's own reader, and what the two make of it side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from coralopt.errors import SolverError, UnsupportedError
from coralopt.solving.backend import ReadingBackend
from coralopt.solving.conditioning import HUGE
from coralopt.solving.matrix import MilpMatrix
from coralopt.solving.registry import require_backend

#: Relative difference of numbers that are read from the same digits.
SAME = 1e-12


def read_again(path: Path, matrix: MilpMatrix, solver: str) -> None:
    """Hold what was read of a file against what a solver's reader makes of it.

    Args:
        path: The file.
        matrix: As our reader took it.
        solver: A back end that reads files: ``highs``.

    Raises:
        SolverError: The other reader refuses the file, or takes it otherwise; names a difference.
        UnsupportedError: The back end reads no files.
        SolverNotFoundError: Unknown or missing solver.
    """
    backend = require_backend(solver)
    if not isinstance(backend, ReadingBackend):
        raise UnsupportedError(f"solver {solver!r} reads no files here; take 'highs'")
    other = backend.read_file(path)
    # Rows without a name get one of their own from every reader.
    names = other.row_names if set(other.row_names) == set(matrix.row_names) else matrix.row_names
    if len(names) != other.shape[0]:
        raise SolverError(f"{path.name}: {matrix.shape[0]} rows by coralopt's reader, {other.shape[0]} by {solver}'s")
    ours, theirs = _facts(matrix, matrix.row_names), _facts(other, names)
    for what in {**ours, **theirs}:
        first, second = ours.get(what, 0.0), theirs.get(what, 0.0)
        if not (first == second or math.isclose(first, second, rel_tol=SAME)):
            raise SolverError(f"{path.name}: {what} is {first:g} by coralopt's reader and {second:g} by {solver}'s")


def _facts(matrix: MilpMatrix, row_names: Sequence[str]) -> dict[str, float]:
    """Everything that a model says, in words, as a number; what is not there is 0."""
    columns, extras = matrix.column_names, matrix.extras
    facts = {"whether it is a maximum": float(matrix.maximize), "the constant": matrix.offset}
    for names, what, values in (
        (columns, "the cost of", matrix.c),
        (columns, "the lower bound of", matrix.lower),
        (columns, "the upper bound of", matrix.upper),
        (columns, "whether whole is", matrix.integer),
        (row_names, "the lower side of row", matrix.row_lower),
        (row_names, "the upper side of row", matrix.row_upper),
    ):
        for name, value in zip(names, values.tolist(), strict=True):
            facts[f"{what} {name}"] = math.copysign(math.inf, value) if abs(value) >= HUGE else float(value)
    for what, table, names in (("row", matrix.a, row_names), ("the product with", extras.quadratic, columns)):
        if table is not None:
            entries = table.tocoo()
            for i, j, value in zip(entries.row.tolist(), entries.col.tolist(), entries.data.tolist(), strict=True):
                facts[f"the coefficient of {columns[j]} in {what} {names[i]}"] = value
    facts |= {f"whether semi-continuous is {columns[j]}": 1.0 for j in extras.semicontinuous}
    facts |= {f"whether there is the set {group.name}": 1.0 for group in extras.sos}
    return facts | {f"whether {row_names[part.row]} is switched": 1.0 for part in extras.indicators}
