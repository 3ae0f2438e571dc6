"""Tables per epoch: demand per model phase, availability and prices per region and node configuration.

Each table is a CSV or Parquet file with one row an entry:

* demand: ``epoch,model,phase,tokens_s``
* availability: ``epoch,region,configuration,count``
* prices: ``epoch,region,configuration,usd_h``

Epochs count from 0 without holes. An entry that appears in one epoch must appear in all of them, so that nothing is
ever assumed silently.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coralopt.errors import WorkloadError
from coralopt.types import Floats, Ints
from coralopt.workload.files.checks import positive
from coralopt.workload.files.tables import name_cell, number_cell, shown
from coralopt.workload.series.table import SeriesTable, key_cells

PHASES = ("prefill", "decode", "mixed")


def _phase_cell(text: str) -> str:
    if name_cell(text) not in PHASES:
        raise ValueError(f"must be {', '.join(PHASES[:-1])} or {PHASES[-1]}, not {shown(text)}")
    return text


DEMAND = SeriesTable(
    "epoch",
    {"model": name_cell, "phase": _phase_cell},
    "tokens_s",
    number_cell("must be a number of tokens/s, at least 0"),
)
AVAILABILITY = SeriesTable(
    "epoch",
    key_cells("region", "configuration"),
    "count",
    number_cell("must be a whole number of nodes, at least 0", whole=True, most=2**53),
)
PRICES = SeriesTable(
    "epoch",
    key_cells("region", "configuration"),
    "usd_h",
    number_cell("must be a price in USD per node-hour, at least 0"),
)


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


@dataclass(frozen=True)
class Peak:
    """Demand of the busiest short windows of an epoch in the place of its mean: bursts are shorter than epochs.

    Attributes:
        quantile: Share of an epoch's windows that need no more, above 0 and at most 1; of each model phase by itself.
        window_s: Length of a window, s.
    """

    quantile: float = 0.99
    window_s: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.quantile <= 1:
            raise WorkloadError(f"the quantile of windows is {self.quantile:g}; it must be above 0 and at most 1")
        positive("window length", self.window_s)


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
    """Read a table ``epoch,model,phase,tokens_s``; raises as :meth:`SeriesTable.read` does."""
    values, keys, _ = DEMAND.read(path)
    return EpochDemand(tuple("/".join(key) for key in keys), values)


def read_availability(path: str | Path) -> EpochAvailability:
    """Read a table ``epoch,region,configuration,count``; raises as :meth:`SeriesTable.read` does."""
    regions, configurations, count = _read_grid(AVAILABILITY, path, absent=0.0)
    return EpochAvailability(regions, configurations, count.astype(np.int64))


def read_prices(path: str | Path) -> EpochPrices:
    """Read a table ``epoch,region,configuration,usd_h``; raises as :meth:`SeriesTable.read` does."""
    return EpochPrices(*_read_grid(PRICES, path, absent=np.nan))


def write_demand(demand: EpochDemand, path: str | Path) -> None:
    """Write a demand table (CSV, CSV.gz or Parquet by the name), atomically."""
    DEMAND.write(path, [tuple(key.rsplit("/", 1)) for key in demand.keys], demand.tokens_s)


def write_availability(availability: EpochAvailability, path: str | Path) -> None:
    """Write an availability table (CSV, CSV.gz or Parquet by the name), atomically; every pair is written."""
    pairs = [
        (region, configuration) for region in availability.regions for configuration in availability.configurations
    ]
    AVAILABILITY.write(path, pairs, availability.count.reshape(len(availability), -1))


def _read_grid(table: SeriesTable, path: str | Path, absent: float) -> tuple[tuple[str, ...], tuple[str, ...], Floats]:
    """Regions, configurations and float64 (epochs, regions, configurations); ``absent`` for pairs without rows."""
    values, pairs, _ = table.read(path)
    regions, configurations = (tuple(dict.fromkeys(pair[position] for pair in pairs)) for position in (0, 1))
    dense = np.full((len(values), len(regions), len(configurations)), absent)
    for position, (region, configuration) in enumerate(pairs):
        dense[:, regions.index(region), configurations.index(configuration)] = values[:, position]
    return regions, configurations, dense


def _check(what: str, values: Floats | Ints, shape: tuple[int, ...], nan: bool = False) -> None:
    if values.ndim != 1 + len(shape) or values.shape[1:] != shape:
        raise WorkloadError(f"{what} per epoch: expected an array of shape (epochs, {shape}), found {values.shape}")
    broken = (values < 0) | np.isinf(values) | (np.isnan(values) & (not nan))
    if broken.any():
        raise WorkloadError(f"{what} per epoch: {values[broken][0]} at {tuple(int(i) for i in np.argwhere(broken)[0])}")
