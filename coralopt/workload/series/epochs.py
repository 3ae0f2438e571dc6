"""Tables per epoch: demand per model phase, availability and prices per region and node configuration.

Each table is a CSV or Parquet file with one row an entry:

* demand: ``epoch,model,phase,tokens_s``
* availability: ``epoch,region,configuration,count``
* prices: ``epoch,region,configuration,usd_h``

Epochs count from 0 without holes. An entry that appears in one epoch must appear in all of them, so that nothing is
ever assumed silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coralopt.errors import Mistake, WorkloadError
from coralopt.types import Bools, Floats, Ints
from coralopt.workload.traces.files import read_rows, refuse, write_columns

DEMAND_COLUMNS = ("epoch", "model", "phase", "tokens_s")
AVAILABILITY_COLUMNS = ("epoch", "region", "configuration", "count")
PRICE_COLUMNS = ("epoch", "region", "configuration", "usd_h")
PHASES = ("prefill", "decode", "mixed")

#: A typing slip must not ask for the memory of a million epochs.
_MOST_EPOCHS = 1_000_000
_MOST_ENTRIES = 500_000_000


@dataclass(frozen=True, eq=False)
class EpochDemand:
    """Demand of every model phase in every epoch.

    Attributes:
        keys: P model phase keys, ``"qwen3-32b/prefill"``.
        tokens_s: float64 (E, P), required throughput in tokens/s: input tokens for prefill, output tokens otherwise.
    """

    keys: tuple[str, ...]
    tokens_s: Floats

    def __len__(self) -> int:
        return len(self.tokens_s)

    def __post_init__(self) -> None:
        _check("demand", self.tokens_s, (len(self.keys),))


@dataclass(frozen=True, eq=False)
class EpochAvailability:
    """Nodes that can be rented in every epoch, the paper's A_r(c).

    Attributes:
        regions: R region names.
        configurations: C node configuration names.
        count: int64 (E, R, C); 0 for a pair that the table never names.
    """

    regions: tuple[str, ...]
    configurations: tuple[str, ...]
    count: Ints

    def __len__(self) -> int:
        return len(self.count)

    def __post_init__(self) -> None:
        _check("availability", self.count, (len(self.regions), len(self.configurations)))


@dataclass(frozen=True, eq=False)
class EpochPrices:
    """Node prices in every epoch, the paper's p_r(c).

    Attributes:
        regions: R region names.
        configurations: C node configuration names.
        usd_h: float64 (E, R, C), USD per node-hour; NaN for a pair that the table never names.
    """

    regions: tuple[str, ...]
    configurations: tuple[str, ...]
    usd_h: Floats

    def __len__(self) -> int:
        return len(self.usd_h)

    def __post_init__(self) -> None:
        _check("prices", self.usd_h, (len(self.regions), len(self.configurations)), nan=True)


def read_demand(path: str | Path) -> EpochDemand:
    """Read a table ``epoch,model,phase,tokens_s``.

    Raises:
        WorkloadError: Lists every mistake: unknown columns, bad or negative numbers, unknown phases, double entries,
            epochs that are missing, entries that are missing in some epoch.
    """
    source = Path(path)
    entries, pairs = _read(source, DEMAND_COLUMNS, _tokens, _phase)
    keys = tuple(f"{model}/{phase}" for model, phase in pairs)
    return EpochDemand(keys, entries)


def read_availability(path: str | Path) -> EpochAvailability:
    """Read a table ``epoch,region,configuration,count``; raises as :func:`read_demand` does."""
    entries, pairs = _read(Path(path), AVAILABILITY_COLUMNS, _count, None)
    regions, configurations, dense = _grid(entries, pairs, absent=0.0)
    return EpochAvailability(regions, configurations, dense.astype(np.int64))


def read_prices(path: str | Path) -> EpochPrices:
    """Read a table ``epoch,region,configuration,usd_h``; raises as :func:`read_demand` does."""
    entries, pairs = _read(Path(path), PRICE_COLUMNS, _price, None)
    return EpochPrices(*_grid(entries, pairs, absent=np.nan))


def write_demand(demand: EpochDemand, path: str | Path) -> None:
    """Write a demand table (CSV, CSV.gz or Parquet by the name), atomically."""
    pairs = [key.rsplit("/", 1) for key in demand.keys]
    _write(Path(path), DEMAND_COLUMNS, [(model, phase) for model, phase in pairs], demand.tokens_s)


def write_availability(availability: EpochAvailability, path: str | Path) -> None:
    """Write an availability table (CSV, CSV.gz or Parquet by the name), atomically; every pair is written."""
    pairs = [(r, c) for r in availability.regions for c in availability.configurations]
    _write(Path(path), AVAILABILITY_COLUMNS, pairs, availability.count.reshape(len(availability), -1))


def write_prices(prices: EpochPrices, path: str | Path) -> None:
    """Write a price table (CSV, CSV.gz or Parquet by the name), atomically; pairs without a price are left out."""
    pairs = [(r, c) for r in prices.regions for c in prices.configurations]
    values = prices.usd_h.reshape(len(prices), -1)
    priced = ~np.any(np.isnan(values), axis=0)
    _write(
        Path(path),
        PRICE_COLUMNS,
        [p for p, keep in zip(pairs, priced.tolist(), strict=True) if keep],
        values[:, priced],
    )


def _write(path: Path, columns: Sequence[str], pairs: Sequence[tuple[str, str]], values: npt.NDArray[Any]) -> None:
    epochs = len(values)
    first, second = ([pair[i] for pair in pairs] * epochs for i in (0, 1))
    data = (np.repeat(np.arange(epochs), len(pairs)), first, second, np.ascontiguousarray(values).ravel())
    write_columns(path, dict(zip(columns, data, strict=True)))


def _read(
    path: Path,
    columns: Sequence[str],
    parse: Callable[[str], float],
    check_second: Callable[[str], None] | None,
) -> tuple[Floats, list[tuple[str, str]]]:
    """Dense float64 (E, pairs) and the pairs in order of first appearance."""
    mistakes: list[Mistake] = []
    found: dict[tuple[int, str, str], float] = {}
    first_place: dict[tuple[int, str, str], str] = {}
    pairs: dict[tuple[str, str], int] = {}
    for place, row in read_rows(path, columns):
        first, second = row[columns[1]], row[columns[2]]
        before = len(mistakes)
        for name, text in ((columns[1], first), (columns[2], second)):
            if not text:
                mistakes.append(Mistake(place, f"{name} is empty"))
        for name, text, reader in (
            (columns[0], row[columns[0]], _epoch),
            (columns[2], second, check_second),
            (columns[3], row[columns[3]], parse),
        ):
            if reader is not None and (text or name != columns[2]):
                try:
                    reader(text)
                except ValueError as error:
                    mistakes.append(Mistake(place, f"{name} {error}, not {text!r}"))
        if len(mistakes) > before:
            continue
        entry = (_epoch(row[columns[0]]), first, second)
        if entry in found:
            mistakes.append(Mistake(place, f"epoch {entry[0]}, {first}, {second} again", f"first {first_place[entry]}"))
            continue
        found[entry], first_place[entry] = parse(row[columns[3]]), place
        pairs.setdefault((first, second), len(pairs))
    refuse(str(path), mistakes)
    if not found:
        raise WorkloadError(f"{path}: no rows; expected {','.join(columns)} below the header")
    epochs = 1 + max(epoch for epoch, _, _ in found)
    if epochs * len(pairs) > max(10 * len(found), 1000) or epochs * len(pairs) > _MOST_ENTRIES:
        raise WorkloadError(
            f"{path}: {epochs} epochs of {len(pairs)} entries need {epochs * len(pairs)} rows but there are {len(found)}; "
            "epochs count from 0 without holes"
        )
    values = np.full((epochs, len(pairs)), np.nan)
    for (epoch, first, second), value in found.items():
        values[epoch, pairs[first, second]] = value
    refuse(str(path), list(_holes(values, list(pairs))))
    return values, list(pairs)


def _holes(values: Floats, pairs: Sequence[tuple[str, str]]) -> Iterable[Mistake]:
    missing: Bools = np.isnan(values)
    empty: Bools = np.all(missing, axis=1)
    for epoch in np.flatnonzero(empty):
        yield Mistake(f"epoch {epoch}", "no rows", "epochs count from 0 without holes")
    for epoch, pair in np.argwhere(missing & ~empty[:, None]):
        yield Mistake(
            f"epoch {epoch}", f"no row for {', '.join(pairs[pair])}", "other epochs have one; write 0 for none"
        )


def _grid(
    values: Floats, pairs: Sequence[tuple[str, str]], absent: float
) -> tuple[tuple[str, ...], tuple[str, ...], Floats]:
    regions = {region: None for region, _ in pairs}
    configurations = {configuration: None for _, configuration in pairs}
    rows, columns = list(regions), list(configurations)
    dense = np.full((len(values), len(rows), len(columns)), absent)
    for position, (region, configuration) in enumerate(pairs):
        dense[:, rows.index(region), columns.index(configuration)] = values[:, position]
    return tuple(rows), tuple(columns), dense


def _epoch(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) >= _MOST_EPOCHS:
        raise ValueError("must be a whole number from 0")
    return int(text)


def _phase(text: str) -> None:
    if text not in PHASES:
        raise ValueError(f"must be {', '.join(PHASES[:-1])} or {PHASES[-1]}")


def _tokens(text: str) -> float:
    return _number(text, "must be a number of tokens/s, at least 0")


def _price(text: str) -> float:
    return _number(text, "must be a price in USD per node-hour, at least 0")


def _count(text: str) -> float:
    words = "must be a whole number of nodes, at least 0"
    value = _number(text, words)
    if value != np.floor(value) or value > 2**53:
        raise ValueError(words)
    return value


def _number(text: str, words: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(words) from None
    if not np.isfinite(value) or value < 0:
        raise ValueError(words)
    return value


def _check(what: str, values: npt.NDArray[Any], shape: tuple[int, ...], nan: bool = False) -> None:
    if values.ndim != 1 + len(shape) or values.shape[1:] != shape:
        raise WorkloadError(f"{what} per epoch: expected an array of shape (epochs, {shape}), found {values.shape}")
    broken = (values < 0) | np.isinf(values) | (np.isnan(values) & (not nan))
    if broken.any():
        raise WorkloadError(f"{what} per epoch: {values[broken][0]} at {tuple(int(i) for i in np.argwhere(broken)[0])}")
