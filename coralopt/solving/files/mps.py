"""A strict reader of MPS files, fixed and free: what it does not know, or what readers take differently, is refused.

Rules where the format has several customs: the first ``N`` row is the objective, other ``N`` rows bind nothing; a right-hand
side of the objective is minus its constant (to all but GLPK); ``RANGES`` of an ``E`` row go up from the right-hand side when
positive, down when negative. Names have no spaces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from coralopt.solving.conditioning import HUGE
from coralopt.solving.files.draft import Draft, ModelText, Number

#: Name of the objective row that tells this reader that the costs of a maximum are written with the other sign.
NEGATED = "minus_objective"
_SENSES = {"MAX": True, "MAXIMIZE": True, "MAXIMISE": True, "MIN": False, "MINIMIZE": False, "MINIMISE": False}
_SIDES = {"N": (-math.inf, math.inf), "E": (0, 0), "L": (-math.inf, 0), "G": (0, math.inf)}
#: Bound type -> (sides that it gives a value, sides that it gives what stands here).
_BOUNDS: dict[str, tuple[tuple[str, ...], dict[str, Number]]] = {
    "LO": (("lower",), {}),
    "LI": (("lower",), {}),
    "UP": (("upper",), {}),
    "UI": (("upper",), {}),
    "FX": (("lower", "upper"), {}),
    "FR": ((), {"lower": -math.inf, "upper": math.inf}),
    "MI": ((), {"lower": -math.inf}),
    "PL": ((), {"upper": math.inf}),
    "BV": ((), {"lower": 0, "upper": 1}),
    "SC": (("upper",), {}),
    "SI": (("upper",), {}),
}
_BEHIND = ("RHS", "RANGES", "BOUNDS", "SOS", "QUADOBJ", "QMATRIX", "INDICATORS", "ENDATA")
_ORDER = ("NAME", "OBJSENSE", "ROWS", "COLUMNS", *_BEHIND)
_AFTER = {"COLUMNS": "ROWS", **dict.fromkeys(_BEHIND, "COLUMNS")}


def read_mps(source: ModelText) -> Draft:
    """The model of an MPS file.

    Raises:
        SolverError: A line is no MPS, contradicts another one, or may be read in two ways.
        UnsupportedError: A section or a kind of bound that is not linear or not known.
    """
    return _Mps(source).read()


@dataclass
class _Mps:
    source: ModelText
    draft: Draft = field(init=False)
    kinds: dict[str, str] = field(default_factory=dict)
    objective: str = ""
    #: Whether columns are between INTORG and INTEND, and those that were.
    inside: bool = False
    marked: set[int] = field(default_factory=set)
    #: The sense given; the column at hand and its rows so far.
    sense: str = ""
    last: str = ""
    given: set[str] = field(default_factory=set)
    #: Section -> the name of its one vector; what has a right-hand side or a range.
    vectors: dict[str, str] = field(default_factory=dict)
    right: dict[str, Number] = field(default_factory=dict)
    ranges: dict[str, Number] = field(default_factory=dict)
    #: Section -> entries of the quadratic objective.
    products: dict[str, dict[tuple[int, int], Number]] = field(default_factory=dict)

    def read(self) -> Draft:
        source = self.source
        self.draft = Draft(source)
        seen: list[str] = []
        for line in source.lines():
            words = line.split()
            if not words or line[0] == "*":
                continue
            if "ENDATA" in seen:
                source.doubt("after-end", "there is more after ENDATA")
                break
            if not line[0].isspace():
                self._open(words, seen)
            elif not seen:
                raise source.refuse(f"{words[0]!r} stands before any section; this is no MPS file")
            elif any(word[0] == "$" for word in words):
                raise source.refuse("a word begins with $, which is a comment for some readers; take it out")
            else:
                getattr(self, f"_{seen[-1].lower()}")(words)
        if "ENDATA" not in seen:
            source.doubt("no-end", "the file ends without ENDATA: it may be cut off")
            if "COLUMNS" not in seen:
                raise source.refuse("there is no section COLUMNS; this is no MPS file")
        return self._finished()

    def _open(self, words: list[str], seen: list[str]) -> None:
        """Begin a section."""
        source, section = self.source, words[0].upper()
        if section not in _ORDER:
            raise source.refuse(f"section {' '.join(words)!r} is not supported (only {', '.join(_ORDER)})", True)
        if section in seen:
            raise source.refuse(f"section {section} is there twice")
        if section in _AFTER and _AFTER[section] not in seen:
            raise source.refuse(f"section {section} stands before {_AFTER[section]}")
        if section == "OBJSENSE" and "COLUMNS" in seen:
            raise source.refuse("section OBJSENSE stands after COLUMNS")
        if self.inside:
            raise source.refuse("integer columns are not closed by a marker INTEND")
        if seen[-1:] == ["OBJSENSE"] and not self.sense:
            raise source.refuse("section OBJSENSE says neither MAX nor MIN")
        seen.append(section)
        if section == "OBJSENSE" and len(words) > 1:
            self._objsense(words[1:])
        elif len(words) > 1 and section != "NAME":
            raise source.refuse(f"{' '.join(words[1:])!r} stands behind {section}; data lines begin with a space")

    def _name(self, words: list[str]) -> None:
        raise self.source.refuse(f"{' '.join(words)!r} stands under NAME")

    def _objsense(self, words: list[str]) -> None:
        word = words[0].upper()
        if len(words) != 1 or word not in _SENSES or self.sense:
            raise self.source.refuse(f"{' '.join(words)!r} is no sense of the objective: MAX or MIN, once")
        self.sense, self.draft.maximize = word, _SENSES[word]

    def _rows(self, words: list[str]) -> None:
        if len(words) != 2 or words[0].upper() not in _SIDES:
            raise self.source.refuse(f"{' '.join(words)!r} is no row: one of N, E, L, G and a name without spaces")
        kind, name = words[0].upper(), words[1]
        if name in self.kinds:
            raise self.source.refuse(f"row {name!r} is there already")
        self.kinds[name] = kind
        if kind != "N":
            self.draft.new_row(name, *_SIDES[kind])
        elif not self.objective:
            self.objective = name

    def _columns(self, words: list[str]) -> None:
        source, draft = self.source, self.draft
        if len(words) > 1 and words[1].strip("'\"").upper() == "MARKER":
            self._marker(words)
            return
        if len(words) not in (3, 5):
            raise source.refuse(
                f"{len(words)} words; a column, a row and a number, or two of each (no spaces in names)"
            )
        name = words[0]
        if name != self.last and name in draft.columns:
            raise source.refuse(f"column {name!r} was there before; its lines must follow one another")
        column = draft.new_column(name)
        if name != self.last:
            self.last, self.given = name, set()
            if self.inside:
                draft.integer.add(column)
                self.marked.add(column)
        for row, word in zip(words[1::2], words[2::2], strict=True):
            value = source.figure(word)
            if row in self.given:
                raise source.refuse(f"column {name!r} has two entries in row {row!r}")
            self.given.add(row)
            if self._kind(row) != "N":
                draft.entries[draft.rows[row]][column] = value
            elif row == self.objective:
                draft.cost[column] = value

    def _marker(self, words: list[str]) -> None:
        kind = words[-1].strip("'\"").upper()
        if len(words) != 3 or kind not in ("INTORG", "INTEND"):
            raise self.source.refuse(f"marker {' '.join(words)!r} is not supported (only INTORG, INTEND)", True)
        if self.inside == (kind == "INTORG"):
            raise self.source.refuse(f"marker {kind} where integer columns {'are' if self.inside else 'are not'} open")
        self.inside = kind == "INTORG"

    def _kind(self, row: str) -> str:
        if row not in self.kinds:
            raise self.source.refuse(f"row {row!r} is not in ROWS")
        return self.kinds[row]

    def _one_vector(self, section: str, name: str) -> None:
        if self.vectors.setdefault(section, name) != name:
            raise self.source.refuse(f"{section} has two vectors, {self.vectors[section]!r} and {name!r}; keep one")

    def _values(self, section: str, words: list[str], values: dict[str, Number]) -> None:
        """Pairs of a row and a number, with or without the vector's name before them."""
        if not 2 <= len(words) <= 5:
            raise self.source.refuse(f"{len(words)} words; one or two rows, each with a number (no spaces in names)")
        self._one_vector(section, words.pop(0) if len(words) % 2 else "")
        for row, word in zip(words[::2], words[1::2], strict=True):
            self._kind(row)
            if row in values:
                raise self.source.refuse(f"row {row!r} has two numbers in {section}")
            values[row] = self.source.figure(word)

    def _rhs(self, words: list[str]) -> None:
        self._values("RHS", words, self.right)

    def _ranges(self, words: list[str]) -> None:
        self._values("RANGES", words, self.ranges)
        for row in words[::2]:
            if self.kinds[row] == "N":
                raise self.source.refuse(f"row {row!r} is of kind N and has no range")

    def _bounds(self, words: list[str]) -> None:
        source, draft, kind = self.source, self.draft, words[0].upper()
        if kind not in _BOUNDS:
            raise source.refuse(f"bound type {words[0]!r} is not supported (only {', '.join(_BOUNDS)})", True)
        valued, fixed = _BOUNDS[kind]
        rest, value = words[1:], ""
        named = len(rest) == 2 and rest[1] in draft.columns
        if valued or len(rest) == 3 or (len(rest) == 2 and not named):
            value = rest.pop() if rest else ""
        if not 1 <= len(rest) <= 2 or (valued and not value):
            raise source.refuse(
                f"{' '.join(words)!r} is no bound: a type, a vector, a column{', a number' * bool(valued)}"
            )
        self._one_vector("BOUNDS", rest[0] if len(rest) == 2 else "")
        column = draft.column(rest[-1])
        unused = source.number(value) if value and not valued else 0
        if unused not in (0, fixed.get("upper", 0)) and abs(unused) < HUGE:
            raise source.refuse(f"bound type {kind} has the number {value}; it takes none")
        for side in valued:
            draft.set_bound(side, column, source.figure(value) if kind == "FX" else source.bound(value, side))
        for side, limit in fixed.items():
            draft.set_bound(side, column, limit)
        if kind in ("BV", "LI", "UI", "SI"):
            draft.integer.add(column)
        if kind in ("SC", "SI"):
            draft.semicontinuous.add(column)

    def _sos(self, words: list[str]) -> None:
        if len(words) == 2 and words[0].upper() in ("S1", "S2") and words[0] not in self.draft.columns:
            self.draft.new_set(words[1], words[0])
        elif len(words) == 2 and self.draft.sets:
            self.draft.set_member(*words)
        else:
            raise self.source.refuse(f"{' '.join(words)!r} is neither S1 or S2 and a set, nor a column and its weight")

    def _entry(self, words: list[str]) -> tuple[int, int, Number]:
        if len(words) != 3:
            raise self.source.refuse(f"{' '.join(words)!r} is no entry of the objective: two columns and a number")
        return self.draft.column(words[0]), self.draft.column(words[1]), self.source.figure(words[2])

    def _quadobj(self, words: list[str]) -> None:
        i, j, value = self._entry(words)
        if self.products.setdefault("QUADOBJ", {}).setdefault((min(i, j), max(i, j)), value) is not value:
            raise self.source.refuse("these two columns have an entry already; QUADOBJ is one triangle")

    def _qmatrix(self, words: list[str]) -> None:
        i, j, value = self._entry(words)
        if self.products.setdefault("QMATRIX", {}).setdefault((i, j), value) is not value:
            raise self.source.refuse("these two columns have an entry already")

    def _indicators(self, words: list[str]) -> None:
        if len(words) != 4 or words[0].upper() != "IF" or self._kind(words[1]) == "N":
            raise self.source.refuse(f"{' '.join(words)!r} is no indicator: IF, a row, a column, 0 or 1")
        self.draft.column(words[2])
        self.draft.switch(self.draft.rows[words[1]], words[2], words[3])

    def _finished(self) -> Draft:
        source, draft = self.source, self.draft
        if not self.objective:
            raise source.refuse("there is no row of kind N, so no objective")
        for row, value in self.right.items():
            if row == self.objective:
                draft.offset = -value
            elif self.kinds[row] != "N":
                low, high = _SIDES[self.kinds[row]]
                draft.sides[draft.rows[row]] = (low + value, high + value)
        for row, size in self.ranges.items():
            i, kind = draft.rows[row], self.kinds[row]
            if i in draft.switches:
                raise source.refuse(f"row {row!r} has a range and an indicator, which some readers let bind always")
            low, high = draft.sides[i]
            if kind == "L" or (kind == "E" and size < 0):
                draft.sides[i] = (high - abs(size), high)
            else:
                draft.sides[i] = (low, low + abs(size))
        if len(self.products) > 1:
            raise source.refuse("the quadratic objective is there twice, as QUADOBJ and as QMATRIX")
        for section, entries in self.products.items():
            for (i, j), value in entries.items():
                if section == "QMATRIX" and entries.get((j, i), 0) != value:
                    first, second = (list(draft.columns)[k] for k in (i, j))
                    raise source.refuse(f"QMATRIX is not symmetric: {first!r} and {second!r}")
                draft.quadratic[min(i, j), max(i, j)] = value
        for column, high in draft.upper.items():
            if high < 0 and draft.lower.get(column, 0) == 0:
                given = "the lower bound 0" if column in draft.lower else "no lower bound"
                draft.doubt_column("negative-upper", column, f"has {given} and the upper bound {high}")
                draft.lower[column] = -math.inf
        for column in sorted(self.marked - set(draft.upper)):
            draft.doubt_column("integer-bounds", column, "is integer and has no upper bound")
        if self.objective == NEGATED and not draft.maximize:
            draft.maximize, draft.offset = True, -draft.offset
            draft.cost = {column: -value for column, value in draft.cost.items()}
            draft.quadratic = {pair: -value for pair, value in draft.quadratic.items()}
        draft.examine_parts()
        return draft
