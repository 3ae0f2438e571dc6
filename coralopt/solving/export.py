"""Models as LP and MPS files with readable names, and back.

The writers are our own because HiGHS's round to 15 digits and rename everything: a file that is to be re-solved elsewhere
must hold the same numbers. Every number is written so that it reads back bit for bit. Reading is HiGHS's.

A row with two different sides is written as two rows, ``name.lo`` and ``name.up``: the range sections of both formats store
differences, which round.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from coralopt.errors import SolverError, UnsupportedError
from coralopt.solving.matrix import MilpMatrix

#: Longest name that LP readers take.
LONGEST_NAME = 255
#: Column fixed at 1 that carries the objective's constant in LP files: some readers take a bare number for a name.
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
    part = target.with_name(target.name + ".part")
    with part.open("w", encoding="ascii", newline="\n") as stream:
        stream.writelines(line + "\n" for line in writers[target.suffix](matrix))
    part.replace(target)


def read_model(path: str | Path) -> MilpMatrix:
    """Read an LP or MPS file.

    Raises:
        SolverError: The file is missing or HiGHS cannot read it.
        UnsupportedError: It has semi-continuous columns.
    """
    import highspy
    from scipy.sparse import csc_array

    source = Path(path)
    if not source.is_file():
        raise SolverError(f"no model file {source}")
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    # By default HiGHS drops coefficients below 1e-9; this is the least that it takes.
    solver.setOptionValue("small_matrix_value", 1e-12)
    # HiGHS reads any text as an LP file without columns.
    nonsense = source.suffix == ".lp" and not re.search(r"(?im)^\s*(min|max)", source.read_text(errors="replace"))
    if nonsense or solver.readModel(str(source)) == highspy.HighsStatus.kError:
        raise SolverError(f"{source} is no LP or MPS file that HiGHS can read; check its suffix and syntax")
    model = solver.getLp()
    kinds = list(model.integrality_)
    if any(kind not in (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger) for kind in kinds):
        raise UnsupportedError(f"{source} has semi-continuous or semi-integer columns; only integer ones are supported")
    rows, columns = model.num_row_, model.num_col_
    part = model.a_matrix_
    a = csc_array(
        (np.array(part.value_), np.array(part.index_, dtype=np.int32), np.array(part.start_, dtype=np.int32)),
        shape=(rows, columns),
    )
    infinity = solver.inf

    def sides(values: Sequence[float]) -> np.ndarray:
        array = np.array(values, dtype=np.float64)
        return np.where(np.abs(array) >= infinity, np.copysign(np.inf, array), array)

    read = MilpMatrix(
        c=np.array(model.col_cost_, dtype=np.float64),
        offset=float(model.offset_),
        a=a,
        row_lower=sides(model.row_lower_),
        row_upper=sides(model.row_upper_),
        lower=sides(model.col_lower_),
        upper=sides(model.col_upper_),
        integer=np.array(
            [kind == highspy.HighsVarType.kInteger for kind in kinds] or [False] * columns, dtype=np.bool_
        ),
        maximize=model.sense_ == highspy.ObjSense.kMaximize,
        column_names=[str(name) for name in model.col_names_] or [f"c{j}" for j in range(columns)],
        row_names=[str(name) for name in model.row_names_] or [f"r{i}" for i in range(rows)],
    )
    return _without_constant_column(read)


def _without_constant_column(matrix: MilpMatrix) -> MilpMatrix:
    """The matrix with a column :data:`CONSTANT` turned back into the objective's constant."""
    if CONSTANT not in matrix.column_names:
        return matrix
    j = list(matrix.column_names).index(CONSTANT)
    if matrix.lower[j] != 1 or matrix.upper[j] != 1 or matrix.a.indptr[j] != matrix.a.indptr[j + 1]:
        return matrix
    rest = np.delete(np.arange(len(matrix.c)), j)
    return replace(
        matrix,
        c=matrix.c[rest],
        offset=matrix.offset + float(matrix.c[j]),
        a=matrix.a[:, rest],
        lower=matrix.lower[rest],
        upper=matrix.upper[rest],
        integer=matrix.integer[rest],
        column_names=[matrix.column_names[int(k)] for k in rest],
    )


def safe_names(names: Sequence[str]) -> list[str]:
    """Names that LP and MPS readers take: ``new[3,us-east-2]`` becomes ``new(3,us_east_2)``; all different."""
    safe: list[str] = []
    seen: dict[str, int] = {}
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_.,()]", "_", name.replace("[", "(").replace("]", ")"))
        if not re.match(r"[A-DF-Za-df-z_]", plain):
            # A leading digit, dot or e reads as a number.
            plain = f"n{plain}"
        plain = plain[: LONGEST_NAME - 10]
        seen[plain] = seen.get(plain, 0) + 1
        safe.append(plain if seen[plain] == 1 else f"{plain}~{seen[plain]}")
    return safe


def _rows(matrix: MilpMatrix) -> Iterator[tuple[int, str, str, float]]:
    """(row, name, sense, right-hand side) of every row of the file; rows without a side are left out."""
    for i, name in enumerate(safe_names(matrix.row_names)):
        low, high = float(matrix.row_lower[i]), float(matrix.row_upper[i])
        if low == high:
            yield i, name, "=", low
            continue
        both = low != -math.inf and high != math.inf
        if low != -math.inf:
            yield i, f"{name}.lo" if both else name, ">=", low
        if high != math.inf:
            yield i, f"{name}.up" if both else name, "<=", high


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


def _lp(matrix: MilpMatrix) -> Iterator[str]:
    names = safe_names(matrix.column_names)
    yield "\\ Written by coralopt"
    yield "Maximize" if matrix.maximize else "Minimize"
    yield " objective:"
    # All columns, also those that cost nothing: readers number them as they come.
    yield from _terms(names, range(len(names)), matrix.c.tolist())
    if matrix.offset:
        yield from _terms([CONSTANT], [0], [matrix.offset])
    yield "Subject To"
    by_row = matrix.a.tocsr()
    for i, name, sense, right in _rows(matrix):
        part = slice(by_row.indptr[i], by_row.indptr[i + 1])
        # Without any term a row would be no expression; a term with coefficient 0 says the same.
        indices, values = by_row.indices[part].tolist() or [0], by_row.data[part].tolist() or [0.0]
        if not names:
            raise UnsupportedError("an LP file cannot hold rows without any column; write MPS")
        yield f" {name}:"
        yield from _terms(names, indices, values)
        yield f"  {sense} {_number(right)}"
    yield "Bounds"
    for name, low, high in zip(names, matrix.lower.tolist(), matrix.upper.tolist(), strict=True):
        if low == -math.inf and high == math.inf:
            yield f" {name} free"
        elif low == high:
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
    yield "End"


def _mps(matrix: MilpMatrix) -> Iterator[str]:
    names = safe_names(matrix.column_names)
    rows = list(_rows(matrix))
    yield "NAME coralopt"
    yield "OBJSENSE"
    yield f"    {'MAX' if matrix.maximize else 'MIN'}"
    yield "ROWS"
    yield " N objective"
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
        yield f" {name} objective {_number(float(matrix.c[j]))}"
        part = slice(matrix.a.indptr[j], matrix.a.indptr[j + 1])
        for i, value in zip(matrix.a.indices[part].tolist(), matrix.a.data[part].tolist(), strict=True):
            for row in of_row.get(i, ()):
                yield f" {name} {row} {_number(value)}"
    if inside:
        yield " MARKER 'MARKER' 'INTEND'"
    yield "RHS"
    if matrix.offset:
        # MPS has the constant of the objective with the opposite sign.
        yield f" RHS objective {_number(-matrix.offset)}"
    for _, name, _, right in rows:
        if right:
            yield f" RHS {name} {_number(right)}"
    yield "BOUNDS"
    for name, low, high, integer in zip(
        names, matrix.lower.tolist(), matrix.upper.tolist(), matrix.integer.tolist(), strict=True
    ):
        if low == -math.inf and high == math.inf:
            yield f" FR BND {name}"
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
    yield "ENDATA"
