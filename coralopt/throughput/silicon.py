"""Layer times interpolated between kernels measured on GPUs (packaged table, made by ``silicon_import``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from coralopt.catalog import models
from coralopt.catalog.types import ModelArchitecture, NodeConfiguration
from coralopt.throughput.grid import GridTimes, TimeGrid
from coralopt.types import Ints

#: GPU type of the catalog -> name of the measured system.
SYSTEMS = {
    **{"L40S": "l40s", "A100": "a100_sxm", "H100": "h100_sxm", "H200": "h200_sxm", "B200": "b200_sxm"},
    **{"GB200": "gb200", "RTXPRO6000": "rtx_pro_6000_server"},
}
_WORDS = ("model", "weights", "system", "phase", "version", "note")
_NUMBERS = ("tp", "tokens", "batch", "per_layer_ms", "nonlayer_ms")
#: Model as measured, format of its weights, measured system, GPUs.
_Key = tuple[str, str, str, int]


@dataclass(frozen=True, eq=False)
class SiliconTimes(GridTimes):
    """Measured times of one model on one node."""

    #: False where aiconfigurator itself only estimates (gpt-oss on A100).
    measured: bool


class SiliconSource:
    """Measured kernels interpolated by aiconfigurator: the paper's models on L40S, A100, H100, H200 and B200."""

    name = "silicon"

    def covers(self, model: ModelArchitecture, configuration: NodeConfiguration) -> bool:
        return _key(model, configuration) in _table().rows

    def times(self, model: ModelArchitecture, configuration: NodeConfiguration) -> SiliconTimes:
        return _times(_key(model, configuration))


def _key(model: ModelArchitecture, configuration: NodeConfiguration) -> _Key:
    # Attention was measured over 16-bit caches.
    system = SYSTEMS.get(configuration.gpu.name, "") if model.kv_format == "bf16" else ""
    return model.measured_as or model.hf_id, model.weight_format, system, configuration.count


@dataclass(frozen=True, eq=False)
class _Table:
    """The packaged table: its columns, and the rows of every model and node that has prefill and decode times."""

    columns: Mapping[str, npt.NDArray[Any]]
    rows: Mapping[_Key, Mapping[str, Ints]]


@cache
def _table() -> _Table:
    import pyarrow.parquet as pq

    with resources.files("coralopt.throughput").joinpath("data/silicon.parquet").open("rb") as stream:
        # Reading a table by its path also loads what reads folders of files.
        table = pq.ParquetFile(stream, read_dictionary=list(_WORDS)).read(use_threads=False).combine_chunks()
    columns, words = {name: np.asarray(table.column(name)) for name in _NUMBERS}, {}
    for name in _WORDS:
        entries = table.column(name).chunk(0)
        columns[name], words[name] = np.asarray(entries.indices), entries.dictionary.to_pylist()
    names = {model.hf_id: model.measured_as or model.hf_id for model in models().values()}
    # Rows of one model, node and phase are alike in all of these.
    alike = np.stack([columns[name] for name in ("model", "weights", "system", "tp", "phase")], axis=1)
    order = np.lexsort(alike.T[::-1])
    cuts = np.flatnonzero((np.diff(alike[order], axis=0) != 0).any(axis=1)) + 1
    rows: dict[_Key, dict[str, Ints]] = {}
    for group in np.split(order, cuts):
        model, weights, system, tp, phase = alike[group[0]].tolist()
        key = names[words["model"][model]], words["weights"][weights], words["system"][system], tp
        rows.setdefault(key, {})[words["phase"][phase]] = group
    for name in ("version", "note"):
        columns[name] = np.array(words[name], dtype=object)[columns[name]]
    return _Table(columns, {key: phases for key, phases in rows.items() if set(phases) == {"prefill", "decode"}})


@cache
def _times(key: _Key) -> SiliconTimes:
    column, phases = _table().columns, _table().rows[key]
    first = phases["decode"].min()
    note = f" ({column['note'][first]})" if column["note"][first] else ""
    measured = "estimate" not in note
    # An estimate must not go about as silicon in plans.
    kind = "silicon" if measured else "vendor estimate"
    line = f"{kind}: aiconfigurator 0.12.0, {column['version'][first]}{note}"
    return SiliconTimes(line, _grid(phases["prefill"]), _grid(phases["decode"]), measured)


def _grid(rows: Ints) -> TimeGrid:
    tokens, row = np.unique(_table().columns["tokens"][rows].astype(np.float64), return_inverse=True)
    batch, place = np.unique(_table().columns["batch"][rows].astype(np.float64), return_inverse=True)
    times = np.full((2, len(tokens), len(batch)), np.nan)
    for grid, name in zip(times, ("per_layer_ms", "nonlayer_ms"), strict=True):
        grid[row, place] = _table().columns[name][rows]
    return TimeGrid(tokens, batch, times[0], times[1])
