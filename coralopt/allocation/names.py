"""Rows and columns of an allocation in the problem's words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.side_constraints import open_constraints
from coralopt.solving import MilpMatrix

_NAME = re.compile(r"(\w+)\[([\d,-]+)\](.*)", re.S)


def readable_names(problem: AllocationProblem, matrix: MilpMatrix) -> MilpMatrix:
    """The matrix with ``new[812,0]`` as ``new[qwen3-32b/decode,us-east-2,1xL4+2x1xA100]``, and rows likewise.

    Templates are told by their nodes, ``2x1xA100`` being two nodes of configuration 1xA100; names that stay alike get the
    template's number.
    """
    sides, groups = open_constraints(problem), problem.unmet_groups()
    places = (problem.region_names, problem.configuration_names)

    def nodes(t: int) -> str:
        used = [(int(problem.usage[t, c]), problem.configuration_names[c]) for c in np.flatnonzero(problem.usage[t])]
        return "+".join(name if count == 1 else f"{count}x{name}" for count, name in used)

    def named(name: str) -> str:
        match = _NAME.fullmatch(name)
        if match is None:
            return name
        kind, index, rest = match[1], [int(part) for part in match[2].split(",")], match[3]
        if kind == "capacity":
            return f"capacity[{places[0][index[0]]},{places[1][index[1]]}]{rest}"
        if kind == "demand":
            return f"demand[{problem.phase_names[index[0]]}]{rest}"
        if kind == "pool":
            return f"pool[{problem.phase_names[index[0]]},{'*' if index[1] < 0 else places[0][index[1]]}]{rest}"
        if kind == "routes":
            return f"routes[{problem.routes[index[0]].model}]{rest}"
        if kind == "mean":
            return f"mean[{problem.routes[index[0]].means[index[1]].name}]{rest}"
        if kind == "flow":
            way = problem.routes[index[0]]
            legs = (
                f"{problem.phase_names[p]}@{'*' if r is None else places[0][r]}" for p, r in way.routes[index[1]].pools
            )
            return f"flow[{'>'.join(legs)}]{rest}"
        if kind in ("largest", "below", "ladder"):
            return f"{kind}[{sides[index[0]].name},{index[1]}]{rest}"
        if kind in ("side", "one_lost"):
            return f"{kind}[{sides[index[0]].name}]{rest}"
        if kind == "shortfall":
            return f"shortfall[{'+'.join(problem.phase_names[p] for p in groups[index[0]][0])}]{rest}"
        if kind == "extra":
            return f"extra[{places[0][index[0]]},{places[1][index[1]]},{index[2]}]{rest}"
        if kind in ("time", "shared"):
            return name
        t, r = index
        further = problem.joint.phase[problem.joint.template == t]
        served = "+".join(problem.phase_names[p] for p in (problem.phase[t], *further))
        return f"{kind}[{served},{places[0][r]},{nodes(t)}]{rest}"

    def unique(plain: Sequence[str]) -> list[str]:
        names = [named(name) for name in plain]
        if len(set(names)) < len(names):
            names = [f"{name}#{number}" for name, number in zip(names, plain, strict=True)]
        return names

    return replace(matrix, column_names=unique(matrix.column_names), row_names=unique(matrix.row_names))
