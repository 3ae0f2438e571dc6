"""Tables with one row for each step of time and each key: read into one dense array, written from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from coralopt.errors import Mistake, WorkloadError
from coralopt.types import Bools, Floats, Ints
from coralopt.workload.files.tables import name_cell, read_rows, refuse, step_cell, write_columns

_MOST_ENTRIES = 500_000_000


@dataclass(frozen=True)
class SeriesTable:
    """One kind of table: steps count from 0 without holes, and a key of one step is a key of all of them.

    Attributes:
        step: Column of the step, ``"epoch"``.
        keys: Columns that name an entry, and what reads their cells.
        value: Column of the figures.
        read_value: Reads its cells; raises :class:`ValueError` in words.
        constant: Column of a figure that belongs to the key, the same in every step; ``None``: there is none.
        read_constant: Reads its cells.
        columns: All columns in order, where there are more than these; the others are not looked at.
    """

    step: str
    keys: Mapping[str, Callable[[str], str]]
    value: str
    read_value: Callable[[object], float]
    constant: str | None = None
    read_constant: Callable[[object], float] | None = None
    columns: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", self.columns or (self.step, *self.keys, self.value))

    def read(self, source: str | Path) -> tuple[Floats, list[tuple[str, ...]], Floats]:
        """Dense float64 (steps, K), the K keys in order of first appearance, and the figures (K,) that are constant.

        Raises:
            WorkloadError: Lists every mistake: unknown columns, cells that cannot be read, double entries, a figure that
                changes, steps that are missing, entries that are missing in some step.
        """
        path = Path(source)
        mistakes: list[Mistake] = []
        values: dict[tuple[int, tuple[str, ...]], float] = {}
        places: dict[tuple[int, tuple[str, ...]], str] = {}
        constants: dict[tuple[str, ...], float] = {}
        readers: dict[str, Callable[[str], object]] = {self.step: step_cell, **self.keys, self.value: self.read_value}
        if self.constant is not None and self.read_constant is not None:
            readers[self.constant] = self.read_constant
        for place, row in read_rows(path, self.columns):
            cells: dict[str, object] = {}
            for column, reader in readers.items():
                try:
                    cells[column] = reader(row[column])
                except ValueError as error:
                    mistakes.append(Mistake(place, f"{column} {error}"))
            if len(cells) < len(readers):
                continue
            key = tuple(row[column] for column in self.keys)
            entry = (int(row[self.step]), key)
            name = ", ".join(key)
            constant = float(row[self.constant]) if self.constant is not None else 0.0
            if entry in values:
                mistakes.append(Mistake(place, f"{self.step} {entry[0]}, {name} again", f"first {places[entry]}"))
            elif constants.setdefault(key, constant) != constant:
                was = constants[key]
                mistakes.append(Mistake(place, f"{self.constant} of {name} is {constant:g}, but was {was:g} above"))
            else:
                values[entry], places[entry] = self.read_value(row[self.value]), place
        refuse(str(path), mistakes)
        return self._dense(path, values, list(constants)), list(constants), np.array(list(constants.values()))

    def _dense(
        self, path: Path, values: Mapping[tuple[int, tuple[str, ...]], float], keys: Sequence[tuple[str, ...]]
    ) -> Floats:
        if not values:
            raise WorkloadError(f"{path}: no rows; expected {','.join(self.columns)} below the header")
        steps = 1 + max(step for step, _ in values)
        size = steps * len(keys)
        if size > max(10 * len(values), 1000) or size > _MOST_ENTRIES:
            raise WorkloadError(
                f"{path}: {steps} {self.step}s of {len(keys)} entries need {size} rows but there are {len(values)}; "
                f"{self.step}s count from 0 without holes"
            )
        dense = np.full((steps, len(keys)), np.nan)
        position = {key: k for k, key in enumerate(keys)}
        for (step, key), value in values.items():
            dense[step, position[key]] = value
        refuse(str(path), list(self._holes(dense, keys)))
        return dense

    def _holes(self, dense: Floats, keys: Sequence[tuple[str, ...]]) -> Iterator[Mistake]:
        missing: Bools = np.isnan(dense)
        empty: Bools = np.all(missing, axis=1)
        for step in np.flatnonzero(empty):
            yield Mistake(f"{self.step} {step}", "no rows", f"{self.step}s count from 0 without holes")
        for step, key in np.argwhere(missing & ~empty[:, None]):
            hint = f"other {self.step}s have one; write 0 for none"
            yield Mistake(f"{self.step} {step}", f"no row for {', '.join(keys[key])}", hint)

    def write(self, path: str | Path, keys: Sequence[tuple[str, ...]], values: Floats | Ints) -> None:
        """Write values (steps, K) of K keys: CSV, CSV.gz or Parquet by the name, atomically."""
        steps = len(values)
        named = ([key[position] for key in keys] * steps for position in range(len(self.keys)))
        data = (np.repeat(np.arange(steps), len(keys)), *named, np.ascontiguousarray(values).ravel())
        write_columns(Path(path), dict(zip(self.columns, data, strict=True)))


def key_cells(*columns: str) -> dict[str, Callable[[str], str]]:
    """Key columns whose cells may be any text that is not empty."""
    return dict.fromkeys(columns, name_cell)
