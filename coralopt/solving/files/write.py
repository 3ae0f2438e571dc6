"""Models as LP and MPS files with readable names.

The writers are our own because solvers' round to 15 digits and rename everything: a file that is to be re-solved elsewhere
must hold the same numbers. Every number is written so that it reads back bit for bit. In MPS a maximum is written as a
minimum of the negated costs, with an objective row whose name tells our reader: some readers skip the section OBJSENSE, some
refuse it.

A row with two different sides is written as two rows, ``name.lo`` and ``name.up``: the range sections of both formats store
differences, which round.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coralopt.errors import UnsupportedError
from coralopt.replacing import replacing
from coralopt.solving.files.draft import INFINITE
from coralopt.solving.files.lp_tokens import RESERVED
from coralopt.solving.files.mps import NEGATED
from coralopt.solving.matrix import MilpMatrix

if TYPE_CHECKING:
    from scipy.sparse import csc_array

#: Longest name that LP readers take.
LONGEST_NAME = 255
#: Column fixed at 1 that carries the objective's constant: some readers of LP take a bare number for a name, and those of
#: MPS do not agree on the sign of a right-hand side of the objective.
CONSTANT = "objective_constant"
_WIDTH = 200


def write_model(matrix: MilpMatrix, path: str | Path) -> None:
    """Write ``matrix`` as free MPS (``.mps``) or CPLEX LP (``.lp``), whole or not at all.

    Raises:
        UnsupportedError: Another suffix.
    """
    target = Path(path)
    writers = {".lp": _lp, ".mps": _mps}
    if target.suffix not in writers:
        raise UnsupportedError(f"cannot write {target.name}: use the suffix .lp or .mps")
    with replacing(target) as part, part.open("w", encoding="ascii", newline="\n") as stream:
        stream.writelines(line + "\n" for line in writers[target.suffix](matrix))


def safe_names(names: Sequence[str], taken: Sequence[str] = ()) -> list[str]:
    """Names that LP and MPS readers take: ``new[3,us-east-2]`` becomes ``new(3,us_east_2)``; all different."""
    safe: list[str] = []
    seen = dict.fromkeys(taken, 1)
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_.,()]", "_", name.replace("[", "(").replace("]", ")"))
        if plain.count("(") != plain.count(")"):
            plain = re.sub(r"[()]", "_", plain)
        if not re.match(r"[A-DF-Za-df-z_]", plain) or RESERVED.fullmatch(plain):
            # A leading digit, dot or e reads as a number, words of the LP format as such.
            plain = f"n{plain}"
        plain = plain if len(plain) <= LONGEST_NAME - 10 else re.sub(r"[()]", "_", plain)[: LONGEST_NAME - 10]
        seen[plain] = seen.get(plain, 0) + 1
        safe.append(plain if seen[plain] == 1 else f"{plain}~{seen[plain]}")
    return safe


def _rows(matrix: MilpMatrix) -> Iterator[tuple[int, str, str, float]]:
    """(row, name, sense, right-hand side) of every row of the file; rows without a side are left out."""
    names = safe_names(matrix.row_names, ("objective", NEGATED))
    taken = set(names)
    for i, name in enumerate(names):
        low, high = float(matrix.row_lower[i]), float(matrix.row_upper[i])
        if low == high:
            yield i, name, "=", low
            continue
        both = low != -math.inf and high != math.inf
        if low != -math.inf:
            yield i, _of_two(name, ".lo", taken) if both else name, ">=", low
        if high != math.inf:
            yield i, _of_two(name, ".up", taken) if both else name, "<=", high


def _of_two(name: str, side: str, taken: set[str]) -> str:
    """The name of one of two rows that a row becomes."""
    return name + side + "~" * (name + side in taken)


def _number(value: float) -> str:
    """Shortest text that reads back as the same double."""
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def _terms(names: Sequence[str], indices: Sequence[int], values: Sequence[float]) -> Iterator[str]:
    """A linear expression in lines of bounded width."""
    line = ""
    for index, value in zip(indices, values, strict=True):
        term = f"{'-' if value < 0 else '+'} {_number(abs(value))} {names[index]} "
        if len(line) + len(term) > _WIDTH:
            yield " " + line
            line = ""
        line += term
    yield " " + line


def _triangle(quadratic: csc_array) -> Iterator[tuple[int, int, float]]:
    """(i, j, entry) with i <= j."""
    entries = quadratic.tocoo()
    for i, j, q in zip(entries.row.tolist(), entries.col.tolist(), entries.data.tolist(), strict=True):
        if i <= j:
            yield i, j, q


def _lp(matrix: MilpMatrix) -> Iterator[str]:
    names, extras = safe_names(matrix.column_names, (CONSTANT,)), matrix.extras
    yield "\\ Written by coralopt"
    yield "Maximize" if matrix.maximize else "Minimize"
    yield " objective:"
    # All columns, also those that cost nothing: readers number them as they come.
    yield from _terms(names, range(len(names)), matrix.c.tolist())
    if matrix.offset:
        yield from _terms([CONSTANT], [0], [matrix.offset])
    if extras.quadratic is not None:
        yield "  + ["
        for i, j, q in _triangle(extras.quadratic):
            value, product = (q, f"{names[i]} ^2") if i == j else (2 * q, f"{names[i]} * {names[j]}")
            yield f"  {'-' if value < 0 else '+'} {_number(abs(value))} {product}"
        yield "  ] / 2"
    yield "Subject To"
    switches = {part.row: f"{names[part.column]} = {part.value} -> " for part in extras.indicators}
    by_row = matrix.a.tocsr()
    for i, name, sense, right in _rows(matrix):
        part = slice(by_row.indptr[i], by_row.indptr[i + 1])
        # Without any term a row would be no expression; a term with coefficient 0 says the same.
        indices, values = by_row.indices[part].tolist() or [0], by_row.data[part].tolist() or [0.0]
        if not names:
            raise UnsupportedError("an LP file cannot hold rows without any column; write MPS")
        yield f" {name}: {switches.get(i, '')}"
        yield from _terms(names, indices, values)
        yield f"  {sense} {_number(right)}"
    yield "Bounds"
    for j, (name, low, high) in enumerate(zip(names, matrix.lower.tolist(), matrix.upper.tolist(), strict=True)):
        if low == -math.inf and high == math.inf:
            yield f" {name} free"
        elif low == high and j not in extras.semicontinuous:
            yield f" {name} = {_number(low)}"
        else:
            left = "-inf" if low == -math.inf else _number(low)
            yield f" {left} <= {name}" + ("" if high == math.inf else f" <= {_number(high)}")
    if matrix.offset:
        yield f" {CONSTANT} = 1"
    integers = [name for name, integer in zip(names, matrix.integer, strict=True) if integer]
    if integers:
        yield "General"
        yield from (f" {name}" for name in integers)
    if extras.semicontinuous:
        yield "Semi-Continuous"
        yield from (f" {names[j]}" for j in extras.semicontinuous)
    if extras.sos:
        yield "SOS"
    for name, group in zip(safe_names([group.name for group in extras.sos]), extras.sos, strict=True):
        yield f" {name}: S{group.kind} ::"
        yield from (f"  {names[j]} : {_number(w)}" for j, w in zip(group.columns, group.weights, strict=True))
    yield "End"


def _mps(matrix: MilpMatrix) -> Iterator[str]:
    names, extras = safe_names(matrix.column_names, (CONSTANT,)), matrix.extras
    rows = list(_rows(matrix))
    objective, sign = (NEGATED, -1.0) if matrix.maximize else ("objective", 1.0)
    yield "NAME coralopt FREE"
    yield "ROWS"
    yield f" N {objective}"
    letters = {"=": "E", ">=": "G", "<=": "L"}
    of_row: dict[int, list[str]] = {}
    for i, name, sense, _ in rows:
        yield f" {letters[sense]} {name}"
        of_row.setdefault(i, []).append(name)
    yield "COLUMNS"
    inside = False
    for j, name in enumerate(names):
        if bool(matrix.integer[j]) != inside:
            inside = not inside
            yield f" MARKER 'MARKER' '{'INTORG' if inside else 'INTEND'}'"
        # Every column is declared, if only by a coefficient of 0.
        yield f" {name} {objective} {_number(sign * float(matrix.c[j]))}"
        part = slice(matrix.a.indptr[j], matrix.a.indptr[j + 1])
        for i, value in zip(matrix.a.indices[part].tolist(), matrix.a.data[part].tolist(), strict=True):
            for row in of_row.get(i, ()):
                yield f" {name} {row} {_number(value)}"
    if inside:
        yield " MARKER 'MARKER' 'INTEND'"
    if matrix.offset:
        yield f" {CONSTANT} {objective} {_number(sign * matrix.offset)}"
    yield "RHS"
    for _, name, _, right in rows:
        if right:
            yield f" RHS {name} {_number(right)}"
    switches = {part.column for part in extras.indicators}
    yield "BOUNDS"
    for j, (name, low, high, integer) in enumerate(
        zip(names, matrix.lower.tolist(), matrix.upper.tolist(), matrix.integer.tolist(), strict=True)
    ):
        if j in extras.semicontinuous:
            yield f" LO BND {name} {_number(low)}"
            yield f" SC BND {name} {_number(min(high, INFINITE))}"
            continue
        if low == -math.inf and high == math.inf:
            yield f" FR BND {name}"
            continue
        if j in switches and low < high:
            # Some readers take a switch only when it is called binary.
            yield f" BV BND {name}"
            continue
        if low == high:
            yield f" FX BND {name} {_number(low)}"
            continue
        if low == -math.inf:
            yield f" MI BND {name}"
        elif low or integer:
            # Some readers give integer columns without bounds the upper bound 1.
            yield f" LO BND {name} {_number(low)}"
        if high != math.inf:
            yield f" UP BND {name} {_number(high)}"
        elif integer:
            yield f" PL BND {name}"
    if matrix.offset:
        yield f" FX BND {CONSTANT} 1"
    if extras.sos:
        yield "SOS"
    for name, group in zip(safe_names([group.name for group in extras.sos]), extras.sos, strict=True):
        yield f" S{group.kind} {name}"
        yield from (f" {names[j]} {_number(w)}" for j, w in zip(group.columns, group.weights, strict=True))
    if extras.quadratic is not None:
        yield "QUADOBJ"
        yield from (f" {names[i]} {names[j]} {_number(sign * q)}" for i, j, q in _triangle(extras.quadratic))
    if extras.indicators:
        yield "INDICATORS"
    for switch in extras.indicators:
        yield from (f" IF {row} {names[switch.column]} {switch.value}" for row in of_row.get(switch.row, ()))
    yield "ENDATA"
