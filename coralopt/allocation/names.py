"""Rows and columns of an allocation in the problem's words."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.side_constraints import open_rows
from coralopt.solving import MilpMatrix

_NAME = re.compile(r"(\w+)\[([\d,]+)\](.*)", re.S)


def readable_names(problem: AllocationProblem, matrix: MilpMatrix) -> MilpMatrix:
    """The matrix with ``new[812,0]`` as ``new[qwen3-32b/decode,us-east-2,1xL4+2x1xA100]``, and rows likewise.

    Templates are told by their nodes, ``2x1xA100`` being two nodes of configuration 1xA100; names that stay alike get the
    template's number.
    """
    sides, groups = open_rows(problem), problem.unmet_groups()
    places = (problem.region_names, problem.configuration_names)

    def nodes(t: int) -> str:
        used = [(int(problem.usage[t, c]), problem.configuration_names[c]) for c in np.flatnonzero(problem.usage[t])]
        return "+".join(name if count == 1 else f"{count}x{name}" for count, name in used)

    def named(name: str) -> str:
        found = _NAME.fullmatch(name)
        if found is None:
            return name
        kind, index, rest = found[1], [int(part) for part in found[2].split(",")], found[3]
        if kind == "capacity":
            return f"capacity[{places[0][index[0]]},{places[1][index[1]]}]{rest}"
        if kind == "demand":
            return f"demand[{problem.phase_names[index[0]]}]{rest}"
        if kind == "side":
            return f"side[{sides[index[0]].name}]{rest}"
        if kind == "shortfall":
            return f"shortfall[{'+'.join(problem.phase_names[p] for p in groups[index[0]][0])}]{rest}"
        if kind == "extra":
            return f"extra[{places[0][index[0]]},{places[1][index[1]]},{index[2]}]{rest}"
        t, r = index
        return f"{kind}[{problem.phase_names[problem.phase[t]]},{places[0][r]},{nodes(t)}]{rest}"

    columns = [named(name) for name in matrix.column_names]
    if len(set(columns)) < len(columns):
        columns = [f"{name}#{plain}" for name, plain in zip(columns, matrix.column_names, strict=True)]
    rows = [named(name) for name in matrix.row_names]
    if len(set(rows)) < len(rows):
        rows = [f"{name}#{plain}" for name, plain in zip(rows, matrix.row_names, strict=True)]
    return replace(matrix, column_names=columns, row_names=rows)
