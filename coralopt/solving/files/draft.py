"""A model while it is read from a file: its numbers as doubles or exact, and what is refused, with its line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Literal, cast

import numpy as np

from coralopt.errors import SolverError, UnsupportedError
from coralopt.solving.conditioning import HUGE
from coralopt.solving.extras import Extras, Indicator, SosSet
from coralopt.solving.matrix import MilpMatrix

#: A float; a Fraction where the numbers are exact, which computes and compares like one.
Number = float

#: What readers of different solvers take differently: name -> how this one reads it once it is allowed.
ALLOWANCES: Mapping[str, str] = MappingProxyType(
    {
        "integer-bounds": "an MPS integer column without an upper bound has none (others: 1)",
        "negative-upper": "a column with a negative upper bound and lower bound 0 or none has no lower bound (others: 0)",
        "huge-figures": "a bound of at least 1e20 is none (others: a number)",
        "no-end": "a file without its last line is whole",
        "after-end": "what stands behind the last line of a model is no part of it",
    }
)
#: Bounds of at least this size are none by the custom of both formats.
INFINITE = 1e30
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INFINITY = re.compile(r"[+-]?inf(inity)?", re.I)


@dataclass
class ModelText:
    """The text of a model file, and the words in which something of it is refused.

    Attributes:
        name: Of the file, for messages.
        text: Its content.
        allow: Keys of :data:`ALLOWANCES`.
        exact: Whether numbers are fractions, as they stand in the file, instead of doubles.
        line: Number of the line at hand.
    """

    name: str
    text: str
    allow: frozenset[str] = frozenset()
    exact: bool = False
    line: int = 0

    def lines(self) -> Iterator[str]:
        """Every line, counted."""
        for number, line in enumerate(re.split(r"\r\n|\r|\n", self.text), 1):
            self.line = number
            yield line

    def refuse(self, reason: str, unsupported: bool = False) -> SolverError:
        """The error for what stands in the line at hand."""
        kind = UnsupportedError if unsupported else SolverError
        return kind(f"{self.name}, line {self.line}: {reason}")

    def doubt(self, kind: str, reason: str) -> None:
        """Refuse what readers take differently, unless it is allowed."""
        if kind not in self.allow:
            raise self.refuse(f"{reason}; allow {kind!r} to read it so: {ALLOWANCES[kind]}")

    def number(self, word: str) -> Number:
        """A finite number; every digit counts."""
        if not _NUMBER.fullmatch(word):
            raise self.refuse(f"{word!r} is not a number")
        value = float(word)
        if math.isinf(value) or (value == 0 and word != "0" and re.search(r"[1-9]", re.split("[eE]", word)[0])):
            raise self.refuse(f"{word} is out of the range of floating-point numbers")
        return cast("float", Fraction(word)) if self.exact else value

    def figure(self, word: str) -> Number:
        """A number that no solver takes for infinite: a coefficient or a side of a row."""
        value = self.number(word)
        if abs(value) >= HUGE:
            raise self.refuse(f"{word} counts as infinite for most solvers; choose other units, or leave it out")
        return value

    def bound(self, word: str, side: str) -> Number:
        """The ``"lower"`` or ``"upper"`` bound of a column, infinite where there is none."""
        weak = -math.inf if side == "lower" else math.inf
        infinite = _INFINITY.fullmatch(word) is not None
        value = math.copysign(math.inf, -1 if word[0] == "-" else 1) if infinite else self.number(word)
        if abs(value) < HUGE:
            return value
        if value * weak < 0:
            raise self.refuse(f"{side} bound {word}: no number lies beyond it")
        if not infinite and abs(value) < INFINITE:
            self.doubt("huge-figures", f"{side} bound {word} is infinite for some solvers only")
        return weak


@dataclass
class Draft:
    """Columns, rows and entries read so far.

    Attributes:
        source: Where from.
        columns: Name -> position.
        rows: Name -> position.
        cost: Objective coefficients.
        offset: Constant of the objective.
        maximize: Sense of the objective.
        integer: Positions of integer columns.
        lower: Position -> lower bound as it is given; 0 where it is not.
        upper: Position -> upper bound as it is given; infinite where it is not.
        where: Position -> line that is named when the bounds of the column are refused.
        sides: (lower, upper) of every row.
        entries: A row -> column -> coefficient.
        quadratic: (i, j) with i <= j -> q: the objective has q x_i x_j more, half of it where i = j.
        sets: Special ordered sets: name, kind, (weight, position) of its columns.
        switches: Row -> (column, value): it binds only where the column has that value.
        semicontinuous: Positions of columns that are 0 or within their bounds.
    """

    source: ModelText
    columns: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    cost: dict[int, Number] = field(default_factory=dict)
    offset: Number = 0
    maximize: bool = False
    integer: set[int] = field(default_factory=set)
    lower: dict[int, Number] = field(default_factory=dict)
    upper: dict[int, Number] = field(default_factory=dict)
    where: dict[int, int] = field(default_factory=dict)
    sides: list[tuple[Number, Number]] = field(default_factory=list)
    entries: list[dict[int, Number]] = field(default_factory=list)
    quadratic: dict[tuple[int, int], Number] = field(default_factory=dict)
    sets: list[tuple[str, Literal[1, 2], list[tuple[Number, int]]]] = field(default_factory=list)
    switches: dict[int, tuple[int, Literal[0, 1]]] = field(default_factory=dict)
    semicontinuous: set[int] = field(default_factory=set)

    def column(self, name: str) -> int:
        """Position of a column that is there.

        Raises:
            SolverError: It is in no row and not in the objective.
        """
        if name not in self.columns:
            raise self.source.refuse(f"column {name!r} is in no row and not in the objective")
        return self.columns[name]

    def new_column(self, name: str) -> int:
        """Position of a column, which is added where it is new."""
        column = self.columns.setdefault(name, len(self.columns))
        self.where.setdefault(column, self.source.line)
        return column

    def new_row(self, name: str, lower: Number, upper: Number) -> int:
        if name in self.rows:
            raise self.source.refuse(f"row {name!r} is there already")
        self.sides.append((lower, upper))
        self.entries.append({})
        self.rows[name] = len(self.entries) - 1
        return len(self.entries) - 1

    def set_bound(self, side: str, column: int, value: Number) -> None:
        """Give a column one bound; a second one must say the same."""
        known = self.lower if side == "lower" else self.upper
        self.where[column] = self.source.line
        if known.setdefault(column, value) != value:
            name = list(self.columns)[column]
            raise self.source.refuse(f"column {name!r} has the {side} bound {known[column]} already")

    def new_set(self, name: str, kind: str) -> None:
        if any(name == other for other, _, _ in self.sets):
            raise self.source.refuse(f"set {name!r} is there already")
        self.sets.append((name, 1 if kind[1:] == "1" else 2, []))

    def set_member(self, name: str, weight: str) -> None:
        """Add a column to the last set."""
        group, _, members = self.sets[-1]
        column, value = self.column(name), self.source.number(weight)
        if any(value == known or column == other for known, other in members):
            raise self.source.refuse(f"set {group!r} has column {name!r} or the weight {weight} twice")
        members.append((value, column))

    def switch(self, row: int, name: str, value: str) -> None:
        """Let a row bind only where a binary column has a value."""
        if value not in ("0", "1"):
            raise self.source.refuse(f"a row can hold where a binary column is 0 or 1, not {value}")
        if row in self.switches:
            raise self.source.refuse("a row has two indicators")
        self.switches[row] = (self.new_column(name), 1 if value == "1" else 0)

    def examine_parts(self) -> None:
        """Refuse switches that are not binary, and semi-continuous columns that readers take differently."""
        for column, _ in self.switches.values():
            low, high = self.lower.get(column, 0), self.upper.get(column, math.inf)
            if column not in self.integer or low < 0 or high > 1:
                self._refuse_column(column, "switches a row and is not binary")
        for column in self.semicontinuous:
            low, high = self.lower.get(column, 0), self.upper.get(column, math.inf)
            if not 0 <= low <= high or not high:
                self._refuse_column(
                    column, f"is semi-continuous from {low} to {high}; some readers need 0 <= lower <= upper"
                )

    def _refuse_column(self, column: int, reason: str) -> None:
        self.source.line = self.where[column]
        raise self.source.refuse(f"column {list(self.columns)[column]!r} {reason}")

    def doubt_column(self, kind: str, column: int, reason: str) -> None:
        """Refuse what readers take differently of a column, with its line."""
        self.source.line = self.where[column]
        self.source.doubt(kind, f"column {list(self.columns)[column]!r} {reason}")

    def bounds(self) -> Iterator[tuple[str, Number, Number]]:
        """(name, lower, upper) of every column."""
        return ((name, self.lower.get(j, 0), self.upper.get(j, math.inf)) for name, j in self.columns.items())

    def matrix(self) -> MilpMatrix:
        """The same in floating-point numbers; coefficients that cancel out are gone."""
        from scipy.sparse import csc_array

        def column(values: Iterable[Number]) -> np.ndarray:
            return np.array([float(value) for value in values], dtype=np.float64)

        count = len(self.columns)
        triples = [(i, j, float(v)) for i, row in enumerate(self.entries) for j, v in row.items() if v]
        rows, columns, values = zip(*triples, strict=True) if triples else ((), (), ())
        limits = list(self.bounds())
        return MilpMatrix(
            c=column(self.cost.get(j, 0) for j in range(count)),
            offset=float(self.offset),
            a=csc_array((column(values), (np.array(rows, int), np.array(columns, int))), (len(self.rows), count)),
            row_lower=column(low for low, _ in self.sides),
            row_upper=column(high for _, high in self.sides),
            lower=column(low for _, low, _ in limits),
            upper=column(high for _, _, high in limits),
            integer=np.isin(np.arange(count), list(self.integer)),
            maximize=self.maximize,
            column_names=list(self.columns),
            row_names=list(self.rows),
            extras=self._extras(count),
        )

    def _extras(self, count: int) -> Extras:
        from scipy.sparse import csc_array

        sets = []
        for name, kind, members in self.sets:
            weights, columns = zip(*sorted(members), strict=True) if members else ((), ())
            sets.append(SosSet(name, kind, columns, tuple(map(float, weights))))
        triples = [(i, j, float(q)) for (i, j), q in self.quadratic.items() if q]
        triples += [(j, i, q) for i, j, q in triples if i != j]
        quadratic = None
        if triples:
            rows, columns, values = zip(*triples, strict=True)
            quadratic = csc_array((np.array(values), (np.array(rows), np.array(columns))), (count, count))
        switches = tuple(Indicator(row, column, value) for row, (column, value) in sorted(self.switches.items()))
        return Extras(quadratic, tuple(sets), switches, tuple(sorted(self.semicontinuous)))
