"""Measured times of any model on any measured system, made by aiconfigurator-core and kept as files of measured times."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from coralopt.catalog.checkpoints import Config
from coralopt.catalog.types import ModelArchitecture, NodeConfiguration
from coralopt.errors import CoraloptError
from coralopt.throughput.aiconfigurator_rows import rows_of_model
from coralopt.throughput.silicon import SYSTEMS


def measured_times(
    model: ModelArchitecture, configuration: NodeConfiguration, config: Config | None = None
) -> dict[str, object]:
    """Times of one model on one node in the form that files and scenarios hold, provenance included.

    Args:
        model: The model; scenarios find the times by its name, its checkpoint and its formats.
        configuration: The node.
        config: The model's ``config.json``.

    Raises:
        CoraloptError: The GPU is no measured system, or :func:`rows_of_model` has no figures.
    """
    system = SYSTEMS.get(configuration.gpu.name)
    if system is None:
        raise CoraloptError(f"{configuration.gpu.name} is no measured system; there are {', '.join(SYSTEMS)}")
    rows = list(rows_of_model(model, system, configuration.count, config))
    built = datetime.now(UTC).date().isoformat()
    return {
        "model": model.measured_as or model.hf_id,
        "configuration": configuration.name,
        "weight_format": model.weight_format,
        **({"kv_format": model.kv_format} if model.kv_format != "bf16" else {}),
        "measured_with": f"kernels of {system}, interpolated by aiconfigurator 0.12.0 ({rows[0]['version']}), built {built}",
        **{phase: _grid([row for row in rows if row["phase"] == phase]) for phase in ("prefill", "decode")},
    }


def _grid(rows: Sequence[dict[str, str | int | float]]) -> dict[str, object]:
    tokens, batch = (sorted({float(row[key]) for row in rows}) for key in ("tokens", "batch"))
    at = {(float(row["tokens"]), float(row["batch"])): row for row in rows}
    layer, other = ([[at[n, b][key] for b in batch] for n in tokens] for key in ("per_layer_ms", "nonlayer_ms"))
    return {"tokens": tokens, "batch": batch, "layer_ms": layer, "other_ms": other}
