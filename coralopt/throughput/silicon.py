"""Layer times interpolated between kernels measured on GPUs (packaged table, made by ``silicon_import``)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np

from coralopt.catalog import models
from coralopt.catalog.types import ModelArchitecture, NodeConfiguration
from coralopt.throughput.grid import GridTimes, TimeGrid
from coralopt.types import Floats

#: GPU type of the catalog -> name of the measured system.
SYSTEMS = {
    **{"L40S": "l40s", "A100": "a100_sxm", "H100": "h100_sxm", "H200": "h200_sxm", "B200": "b200_sxm"},
    **{"GB200": "gb200", "RTXPRO6000": "rtx_pro_6000_server"},
}


@dataclass(frozen=True, eq=False)
class SiliconTimes(GridTimes):
    """Measured times of one model on one node."""

    #: False where aiconfigurator itself only estimates (gpt-oss on A100).
    measured: bool


class SiliconSource:
    """Measured kernels interpolated by aiconfigurator: the paper's models on L40S, A100, H100, H200 and B200."""

    name = "silicon"

    def covers(self, model: ModelArchitecture, configuration: NodeConfiguration) -> bool:
        return _key(model, configuration) in _table()

    def times(self, model: ModelArchitecture, configuration: NodeConfiguration) -> SiliconTimes:
        return _table()[_key(model, configuration)]


def _key(model: ModelArchitecture, configuration: NodeConfiguration) -> tuple[str, str, str, int]:
    # Attention was measured over 16-bit caches.
    system = SYSTEMS.get(configuration.gpu.name, "") if model.kv_format == "bf16" else ""
    return model.measured_as or model.hf_id, model.weight_format, system, configuration.count


@lru_cache(maxsize=1)
def _table() -> dict[tuple[str, str, str, int], SiliconTimes]:
    import pyarrow.parquet as pq

    with resources.files("coralopt.throughput").joinpath("data/silicon.parquet").open("rb") as stream:
        # Reading a table by its path also loads what reads folders of files.
        table = pq.ParquetFile(stream).read(use_threads=False)
    columns = {
        name: table.column(name).to_pylist() for name in ("model", "weights", "system", "phase", "version", "note")
    }
    number: dict[str, Floats] = {
        name: np.asarray(table.column(name), dtype=np.float64)
        for name in ("tp", "tokens", "batch", "per_layer_ms", "nonlayer_ms")
    }
    names = {model.hf_id: model.measured_as or model.hf_id for model in models().values()}
    groups: dict[tuple[str, str, str, int], dict[str, list[int]]] = {}
    of_row = zip(*(columns[name] for name in ("model", "weights", "system", "phase")), number["tp"], strict=True)
    for row, (model, weights, system, phase, tp) in enumerate(of_row):
        groups.setdefault((names[model], weights, system, int(tp)), {}).setdefault(phase, []).append(row)
    result = {}
    for key, phases in groups.items():
        if set(phases) != {"prefill", "decode"}:
            continue
        grids = {}
        for phase, rows in phases.items():
            tokens, batch = np.unique(number["tokens"][rows]), np.unique(number["batch"][rows])
            shape = (len(tokens), len(batch))
            at = (np.searchsorted(tokens, number["tokens"][rows]), np.searchsorted(batch, number["batch"][rows]))
            tables = {}
            for name in ("per_layer_ms", "nonlayer_ms"):
                grid = np.full(shape, np.nan)
                grid[at] = number[name][rows]
                tables[name] = grid
            grids[phase] = TimeGrid(tokens, batch, tables["per_layer_ms"], tables["nonlayer_ms"])
        first = phases["decode"][0]
        note = f" ({columns['note'][first]})" if columns["note"][first] else ""
        measured = "estimate" not in note
        # An estimate must not go about as silicon in plans.
        kind = "silicon" if measured else "vendor estimate"
        line = f"{kind}: aiconfigurator 0.12.0, {columns['version'][first]}{note}"
        result[key] = SiliconTimes(line, grids["prefill"], grids["decode"], measured)
    return result
