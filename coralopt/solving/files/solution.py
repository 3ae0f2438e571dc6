"""Solutions as files, and whether one solves a model: in exact fractions, from the digits of both files.

No floating-point number is involved, no solver, and no matrix: what is checked is what stands in the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from coralopt.errors import OptionError, SolverError
from coralopt.replacing import replacing
from coralopt.solving.files.draft import Draft, ModelText, Number
from coralopt.solving.files.read import read_draft, text_of

_OBJECTIVE = re.compile(r"(?:=obj=|objective(?: value)?\s*[:=]?|#\s*objective(?: value)?\s*[:=])\s*(\S+)", re.I)
_NONE = re.compile(r"=(infeas|unbd|unkn)=|no solution available|infeasible|unbounded", re.I)
_SKIPPED = re.compile(r"#|model status|optimal|feasible|solution status|$", re.I)


@dataclass(frozen=True)
class FileCheck:
    """What a solution file is worth.

    Attributes:
        objective: Of its values, recomputed.
        stated: The objective that it states itself, if it does.
        violations: Everything that is off by more than the tolerance, a sentence each.
        largest: Largest violation of a bound, a row or integrality, tolerance or not.
        tolerance: Violations up to this times max(1, |side|) pass.
    """

    objective: Fraction
    stated: Fraction | None
    violations: tuple[str, ...]
    largest: Fraction
    tolerance: Fraction

    @property
    def holds(self) -> bool:
        return not self.violations


def write_solution(path: str | Path, objective: float, values: Mapping[str, float]) -> None:
    """Write values by column name with all their digits; columns left out are 0."""
    lines = [f"=obj= {objective!r}", *(f"{name} {value!r}" for name, value in values.items())]
    with replacing(Path(path)) as part:
        part.write_text("\n".join(lines) + "\n", encoding="utf-8")


def check_solution_file(
    model: str | Path, solution: str | Path, tolerance: float = 1e-6, allow: Iterable[str] = ()
) -> FileCheck:
    """Hold a solution file against a model file.

    Args:
        model: LP or MPS file, see :func:`coralopt.solving.read_model`.
        solution: Lines of a column's name and its value, as MIPLIB, SCIP, Gurobi and HiGHS write them; 0 where left out.
        tolerance: Largest violation of bounds, rows, integrality and the stated objective, times max(1, |side|).
        allow: What the model may leave open.

    Raises:
        SolverError: One of the files cannot be read, or the solution file holds no solution, or figures without bounds.
        OptionError: The tolerance is negative or not finite.
    """
    if not 0 <= tolerance < float("inf"):
        raise OptionError(f"tolerance {tolerance}: give a number from 0 on, such as 1e-6")
    draft = read_draft(model, allow, exact=True)
    values, stated = _read_solution(Path(solution))
    check = _check(draft, values, stated, Fraction(tolerance))
    try:
        [float(value) for value in (check.objective, check.largest)]
    except OverflowError as error:
        reason = "its objective or a violation is beyond the range of floating-point numbers"
        raise SolverError(f"{Path(solution).name}: {reason}") from error
    return check


def _check(draft: Draft, values: Mapping[str, Fraction], stated: Fraction | None, limit: Fraction) -> FileCheck:
    wrong = [f"column {name!r} is not in the model" for name in values if name not in draft.columns]
    x = [values.get(name, Fraction(0)) for name in draft.columns]
    largest = Fraction(0)
    for subject, value, low, high in _parts(draft, x):
        side = low if value < low else high
        if low <= value <= high:
            continue
        off = abs(value - Fraction(side))
        largest = max(largest, off)
        if off > limit * max(Fraction(1), abs(Fraction(side))):
            wrong.append(
                f"{subject} is {_plain(value)}, {_plain(low)} to {_plain(high)} is allowed: off by {_plain(off)}"
            )
    for name, j in draft.columns.items():
        off = abs(x[j] - round(x[j])) if j in draft.integer else Fraction(0)
        largest = max(largest, off)
        if off > limit:
            wrong.append(f"integer column {name} is {_plain(x[j])}: off by {_plain(off)} from a whole number")
    for name, kind, members in draft.sets:
        inside = [abs(x[j]) for _, j in sorted(members)]
        # The least that has to become 0: all outside of the best window.
        off = min(
            (max([*inside[:k], *inside[k + kind :]], default=Fraction(0)) for k in range(len(inside))),
            default=Fraction(0),
        )
        largest = max(largest, off)
        if off > limit:
            wrong.append(f"set {name} of kind {kind} has too many columns that differ from 0: off by {_plain(off)}")
    quadratic = (Fraction(q) * x[i] * x[j] / (1 + (i == j)) for (i, j), q in draft.quadratic.items())
    objective = (
        Fraction(draft.offset)
        + sum(quadratic, Fraction(0))
        + sum((Fraction(c) * x[j] for j, c in draft.cost.items()), Fraction(0))
    )
    if stated is not None and abs(stated - objective) > limit * max(Fraction(1), abs(objective)):
        wrong.append(f"the file states the objective {_plain(stated)}, its values have {_plain(objective)}")
    return FileCheck(objective, stated, tuple(wrong), largest, limit)


def _parts(draft: Draft, x: list[Fraction]) -> Iterable[tuple[str, Fraction, Number, Number]]:
    """(what, its value, lower, upper) of every bound and row."""
    for j, ((name, low, high), value) in enumerate(zip(draft.bounds(), x, strict=True)):
        # A semi-continuous column is held against what is nearer, 0 or its bounds.
        zero = j in draft.semicontinuous and abs(value) < low - value
        yield f"column {name}", value, *((0, 0) if zero else (low, high))
    for (name, i), (low, high) in zip(draft.rows.items(), draft.sides, strict=True):
        switch = draft.switches.get(i)
        if switch is None or round(x[switch[0]]) == switch[1]:
            yield f"row {name}", sum((Fraction(v) * x[j] for j, v in draft.entries[i].items()), Fraction(0)), low, high


def _plain(value: Number | Fraction) -> str:
    """Twelve digits; more would not be read."""
    try:
        return f"{float(value):.12g}"
    except OverflowError:
        return "a number without end"


def _read_solution(path: Path) -> tuple[dict[str, Fraction], Fraction | None]:
    """Values by column, and the objective that the file states."""
    source = ModelText(path.name, text_of(path, "solution"), exact=True)
    values: dict[str, Fraction] = {}
    stated: Fraction | None = None
    # HiGHS writes the columns between two headings, and rows and duals behind them.
    sections = re.search(r"^# Columns \d+", source.text, re.M) is not None
    inside = not sections
    for line in source.lines():
        words = line.split()
        if sections and words[:1] == ["#"] and words[1:]:
            inside = words[1] == "Columns" and not values
            continue
        objective = _OBJECTIVE.fullmatch(" ".join(words))
        if objective and not values:
            stated = Fraction(source.number(objective[1]))
        elif len(words) <= 2 and _NONE.match(line.strip()) and not values:
            raise SolverError(f"{path.name}, line {source.line}: {line.strip()!r}: the file holds no solution")
        elif (not values and _SKIPPED.match(line)) or not words or words[0] == "#" or not inside:
            continue
        elif len(words) not in (2, 3) or (len(words) == 3 and not words[2].startswith("(obj:")):
            raise source.refuse(f"{line.strip()!r} is no column and its value")
        elif words[0] in values:
            raise source.refuse(f"column {words[0]!r} has two values")
        else:
            values[words[0]] = Fraction(source.number(words[1]))
    if not values and stated is None and not sections:
        raise SolverError(f"{path.name} holds no values; give lines of a column's name and its value")
    return values, stated
