"""A matrix in rows and binary columns where a back end does not take sets, indicators or semi-continuous columns itself.

Exact, not big-M by guess: every bound comes from the columns' own bounds or is proven from the rows, and where there is
none the part is refused by name. A quadratic objective has no such rows: it is taken as it is, or refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from coralopt.errors import UnsupportedError
from coralopt.solving.backend import Capability
from coralopt.solving.certificate import implied_bounds
from coralopt.solving.extras import Extras, Indicator, is_convex
from coralopt.solving.matrix import MilpMatrix, rows_of_terms
from coralopt.types import Floats

#: Says that a back end lacks something, and which capability has it.
Refusal = Callable[[str, Capability], UnsupportedError]


@dataclass(frozen=True, eq=False)
class Linearised:
    """What is handed over: the matrix asked for, and added columns behind its own.

    Attributes:
        matrix: With the parts that the back end takes.
        added: Of every added column, its value at a solution of the matrix asked for; NaN where that says nothing.
    """

    matrix: MilpMatrix
    added: tuple[Callable[[Floats], float], ...] = ()

    def start(self, start: Floats | None) -> Floats | None:
        """The start with the added columns."""
        if start is None or not self.added:
            return start
        return np.concatenate([start, [value(start) for value in self.added]])

    def original(self, x: Floats) -> Floats:
        """The values without the added columns."""
        return x[: len(x) - len(self.added)]


def linearised(matrix: MilpMatrix, able: frozenset[Capability], refuse: Refusal) -> Linearised:
    """The matrix for a back end of these capabilities.

    Raises:
        UnsupportedError: A part that it neither takes nor rows can say; names it.
    """
    extras = matrix.extras
    if not extras:
        return Linearised(matrix)
    if extras.quadratic is not None and Capability.MIQP not in able:
        if Capability.QP not in able:
            raise refuse("takes no quadratic objective", Capability.QP)
        if matrix.is_mip:
            raise refuse("takes no quadratic objective beside integer columns and the like", Capability.MIQP)
        if not is_convex(extras.quadratic, matrix.maximize):
            raise refuse("takes a quadratic objective only where it is convex", Capability.MIQP)
    needs = {Capability.SOS: extras.sos, Capability.INDICATOR: extras.indicators}
    native = {capability for capability, parts in needs.items() if parts and capability in able}
    semi = tuple(j for j in extras.semicontinuous if Capability.SEMICONTINUOUS not in able or matrix.lower[j] < 0)
    draft = _Draft(matrix, refuse, Capability.INDICATOR in able)
    for j in semi:
        draft.semicontinuous(j)
    if Capability.SOS not in native:
        for group in extras.sos:
            draft.one_of(group.name, group.columns, group.kind)
    if Capability.INDICATOR not in native:
        for indicator in extras.indicators:
            draft.indicator(indicator.row, indicator.column, indicator.value)
    kept = replace(
        extras,
        sos=extras.sos if Capability.SOS in native else (),
        indicators=extras.indicators if Capability.INDICATOR in native else (),
        semicontinuous=tuple(sorted(set(extras.semicontinuous) - set(semi))),
    )
    return Linearised(draft.matrix(kept), tuple(draft.added))


@dataclass
class _Draft:
    """The matrix with columns and rows that are added behind its own."""

    source: MilpMatrix
    refuse: Refusal
    #: Whether the back end takes indicators, which need no bounds.
    switchable: bool
    lower: Floats = field(init=False)
    upper: Floats = field(init=False)
    row_lower: Floats = field(init=False)
    row_upper: Floats = field(init=False)
    #: Bounds that hold whatever the parts say; rows prove those that columns lack.
    least: Floats = field(init=False)
    most: Floats = field(init=False)
    added: list[Callable[[Floats], float]] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    switched: list[Indicator] = field(default_factory=list)
    rows: list[tuple[str, Mapping[int, float], float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        source = self.source
        self.row_lower, self.row_upper = source.row_lower.copy(), source.row_upper.copy()
        free = [indicator.row for indicator in source.extras.indicators]
        self.row_lower[free], self.row_upper[free] = -math.inf, math.inf
        self.lower, self.upper = source.lower.copy(), source.upper.copy()
        semi = list(source.extras.semicontinuous)
        self.lower[semi], self.upper[semi] = np.minimum(self.lower[semi], 0.0), np.maximum(self.upper[semi], 0.0)
        hull = replace(source, lower=self.lower, upper=self.upper, row_lower=self.row_lower, row_upper=self.row_upper)
        self.least, self.most = implied_bounds(hull)

    def binary(self, name: str, value: Callable[[Floats], float]) -> int:
        """Position of a new binary column, whose value follows from the others'."""
        self.columns.append(name)
        self.added.append(value)
        return len(self.source.c) + len(self.columns) - 1

    def linked(self, j: int, switches: Sequence[int], low: float, high: float) -> None:
        """Rows by which column ``j`` is 0 where no switch is on, and within its bounds where one is."""
        name = self.source.column_names[j]
        for side, limit in (("low", low), ("high", high)):
            sides = (0.0, math.inf) if side == "low" else (-math.inf, 0.0)
            if math.isinf(limit):
                if not self.switchable or len(switches) > 1:
                    words = f"needs finite bounds of {name}, which is semi-continuous or in a set; rows prove none"
                    raise self.refuse(words, Capability.SEMICONTINUOUS)
                self.switched.append(Indicator(self.source.shape[0] + len(self.rows), switches[0], 0))
                limit = 0.0
            self.rows.append((f"{name}.{side}.{len(self.rows)}", {j: 1.0, **dict.fromkeys(switches, -limit)}, *sides))

    def semicontinuous(self, j: int) -> None:
        """Column ``j`` is 0 or within its bounds."""
        low, high = float(self.source.lower[j]), min(float(self.source.upper[j]), float(self.most[j]))
        if self.source.integer[j]:
            low, high = math.ceil(low), math.floor(high) if math.isfinite(high) else high
        if low > high:
            self.lower[j] = self.upper[j] = 0.0
        elif not low <= 0 <= high:
            switch = self.binary(f"{self.source.column_names[j]}.on", lambda x: _switch(x, [j], lambda _: True))
            self.linked(j, [switch], low, high)

    def one_of(self, name: str, columns: Sequence[int], kind: int) -> None:
        """Switches, one a place where the ``kind`` columns side by side may begin; at most one is on."""
        count = len(columns) - kind + 1
        if count <= 1:
            return

        def value_of(k: int) -> Callable[[Floats], float]:
            return lambda x: _switch(x, columns, lambda first: min(first, count - 1) == k)

        switches = [self.binary(f"{name}.{k}", value_of(k)) for k in range(count)]
        for place, j in enumerate(columns):
            low, high = min(float(self.least[j]), 0.0), max(float(self.most[j]), 0.0)
            self.linked(j, switches[max(0, place - kind + 1) : place + 1], low, high)
        self.rows.append((f"{name}.one", dict.fromkeys(switches, 1.0), -math.inf, 1.0))

    def indicator(self, row: int, column: int, value: int) -> None:
        """The row where the column has the value, and no more than the columns' bounds say elsewhere."""
        source = self.source
        name, by_row = source.row_names[row], source.a[[row]].tocsr()
        places, values = by_row.indices, by_row.data
        ends = np.stack([values * self.least[places], values * self.most[places]])
        reach = float(ends.min(axis=0).sum()), float(ends.max(axis=0).sum())
        for side, limit, end in (("low", source.row_lower[row], reach[0]), ("high", source.row_upper[row], reach[1])):
            if math.isinf(limit) or (end >= limit if side == "low" else end <= limit):
                continue
            if not math.isfinite(end):
                raise self.refuse(
                    f"takes no indicators, and columns of {name} have no bound that the rows prove",
                    Capability.INDICATOR,
                )
            # limit where the column has the value, end where it has the other one.
            terms = dict(zip(places.tolist(), values.tolist(), strict=True))
            on, off = (limit, end) if value else (end, limit)
            terms[column] = terms.get(column, 0.0) - float(on - off)
            sides = (float(off), math.inf) if side == "low" else (-math.inf, float(off))
            self.rows.append((f"{name}.{side}", terms, *sides))

    def matrix(self, kept: Extras) -> MilpMatrix:
        """The matrix with what was added; the parts that are kept are the back end's."""
        from scipy.sparse import vstack

        source, columns = self.source, len(self.source.c) + len(self.columns)
        native = [indicator.row for indicator in kept.indicators]
        self.row_lower[native], self.row_upper[native] = source.row_lower[native], source.row_upper[native]
        own = list(kept.semicontinuous)
        self.lower[own], self.upper[own] = source.lower[own], source.upper[own]
        above = source.a.copy()
        above.resize((source.shape[0], columns))
        below = rows_of_terms([terms for _, terms, _, _ in self.rows], columns)
        zeros, ones = np.zeros(len(self.columns)), np.ones(len(self.columns))
        if kept.quadratic is not None:
            quadratic = kept.quadratic.copy()
            quadratic.resize((columns, columns))
            kept = replace(kept, quadratic=quadratic)
        kept = replace(kept, indicators=(*kept.indicators, *self.switched))
        return replace(
            source,
            c=np.concatenate([source.c, zeros]),
            a=vstack([above, below]).tocsc(),
            row_lower=np.concatenate([self.row_lower, [low for _, _, low, _ in self.rows]]),
            row_upper=np.concatenate([self.row_upper, [high for _, _, _, high in self.rows]]),
            lower=np.concatenate([self.lower, zeros]),
            upper=np.concatenate([self.upper, ones]),
            integer=np.concatenate([source.integer, ones > 0]),
            column_names=[*source.column_names, *self.columns],
            row_names=[*source.row_names, *(name for name, *_ in self.rows)],
            extras=kept,
        )


def _switch(x: Floats, columns: Sequence[int], on: Callable[[int], bool]) -> float:
    """1 where the first of the columns that differs from 0 says so, 0 elsewhere, NaN where one is unknown."""
    values = x[list(columns)]
    if np.isnan(values).any():
        return math.nan
    nonzero = np.flatnonzero(values)
    return float(bool(len(nonzero)) and on(int(nonzero[0])))
