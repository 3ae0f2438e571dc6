"""What every engine's profile shares: what to measure, and the file that comes of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coralopt.catalog import node_configurations
from coralopt.catalog.types import ModelArchitecture, NodeConfiguration
from coralopt.errors import CoraloptError
from coralopt.machine import cpu_model
from coralopt.plan.files import write_text
from coralopt.profiling.fit import PHASES, Fit, Point, fit_points, mixed_layers
from coralopt.scenario.measured import measurements_document
from coralopt.throughput import LayerTimeSource
from coralopt.throughput.grid import GridTimes, TimeGrid
from coralopt.throughput.layer_times import mixed_ms
from coralopt.throughput.roofline import efficiency_of, head_ms, pair_ms


@dataclass(frozen=True)
class ProfileOptions:
    """What to measure.

    Attributes:
        layers: Layer counts j of the truncated models, two or more.
        prompts: Batches of prompts.
        prompt_tokens: Prompt lengths.
        sequences: Decode batches.
        contexts: Contexts of decode.
        repeats: Measured repeats of every point; the median counts.
        device: ``"cpu"`` or ``"cuda"`` (torch).
        tensor_parallel: GPUs of the node (vLLM only).
        threads: CPU threads; ``None``: the engine's default.
        timeout_s: Longest wait for one run of the engine, s.
    """

    layers: tuple[int, ...]
    prompts: tuple[int, ...] = (1, 2, 4)
    prompt_tokens: tuple[int, ...] = (128, 512, 2048)
    sequences: tuple[int, ...] = (1, 8, 32, 128)
    contexts: tuple[int, ...] = (512, 2048)
    repeats: int = 5
    device: str = "cpu"
    tensor_parallel: int = 1
    threads: int | None = None
    timeout_s: float = 3600.0

    @property
    def mixed(self) -> list[tuple[int, int, int, int]]:
        """Mixed steps: sequences, their context, tokens of a prompt, tokens of it before them; torch only."""
        context, prompt = max(self.contexts), sorted(self.prompt_tokens)[len(self.prompt_tokens) // 2]
        counts = sorted(self.sequences)[len(self.sequences) // 2], max(self.sequences)
        return [(count, context, prompt, history) for count in dict.fromkeys(counts) for history in (0, prompt)]

    def __post_init__(self) -> None:
        for name in ("layers", "prompts", "prompt_tokens", "sequences", "contexts"):
            values = getattr(self, name)
            if not values or any(value < 1 for value in values) or len(set(values)) != len(values):
                raise CoraloptError(f"{name} is {list(values)}; give different whole numbers, 1 or more")
        if len(self.layers) < 2:
            raise CoraloptError(f"layers is {list(self.layers)}; two counts at least tell a layer from what is not one")


def default_layers(model: ModelArchitecture) -> tuple[int, ...]:
    """A few layer counts: few for any GPU, apart enough for a slope; even, so that alternating kinds stay paired."""
    return tuple(sorted({min(count, model.layers) for count in (2, 4, 8)}))


def compare_with(
    source: LayerTimeSource, model: ModelArchitecture, configuration: NodeConfiguration, node: Mapping[str, Any]
) -> dict[str, tuple[float, float]] | None:
    """How far a source's layer times are from the measured ones.

    Returns:
        Phase -> (mean of (source - measured) / measured, mean of its absolute value) over the grid; ``None`` when the
        source has no figures.
    """
    if not source.covers(model, configuration):
        return None
    times = source.times(model, configuration)
    result = {}
    for phase in PHASES:
        grid, ask = node[phase], times.prefill_ms if phase == "prefill" else times.decode_ms
        batch = np.array(grid["batch"], dtype=np.float64)
        modelled = np.array([ask(batch, float(tokens))[0] for tokens in grid["tokens"]])
        off = modelled / np.array(grid["layer_ms"]) - 1
        result[str(phase)] = (float(off.mean()), float(np.abs(off).mean()))
    return result


def measured_node(
    model: ModelArchitecture, configuration: str, measured_with: str, points: Sequence[Point], engine: bool = False
) -> dict[str, Any]:
    """Fit both phases and put them into the form that files and scenarios hold.

    Mixed steps become one factor on what :func:`coralopt.throughput.layer_times.mixed_ms` makes of both phases.

    Args:
        model: The model.
        configuration: The node configuration.
        measured_with: For the record.
        points: Measured times.
        engine: Whether a whole engine was measured, whose host time is in what is not a layer. It is told apart: of a step
            what the shortest decode step takes besides its layers and, on nodes of the catalog, its output head; of a
            request what the shortest prompt takes beyond that.

    Raises:
        CoraloptError: The points cannot be fitted; see :func:`fit_points`.
    """
    fits: dict[str, Fit] = {phase: fit_points(points, phase) for phase in PHASES}
    grids = {phase: fit.to_document() for phase, fit in fits.items()}
    node = node_configurations().get(configuration)
    told: dict[str, float] = {}
    if engine:
        alone = {phase: fit.other_ms[0][0] for phase, fit in fits.items()}
        head = 0.0 if node is None else float(head_ms(model, node, efficiency_of(node, "decode"), np.ones(1))[0])
        step = max(0.0, alone["decode"] - head)
        told = {"host_step_ms": step, "host_request_ms": max(0.0, alone["prefill"] - alone["decode"])}
        for phase, host in (("decode", step), ("prefill", step + told["host_request_ms"])):
            grids[phase]["other_ms"] = [[max(0.0, ms - host) for ms in row] for row in fits[phase].other_ms]
    layers = mixed_layers(points)
    if layers:
        times = GridTimes("", *(TimeGrid(*(np.array(values) for values in grids[phase].values())) for phase in PHASES))
        ratios = []
        for point, ms in layers.items():
            earlier = 0.0 if node is None else pair_ms(model, node) * point.prompt * point.history
            expected, _ = mixed_ms(
                times, np.array([point.batch * 1.0]), point.tokens, np.array([point.prompt * 1.0]), earlier
            )
            ratios.append(ms / float(expected[0]))
        told["mixed_factor"] = float(np.median(ratios))
    return {
        "model": model.hf_id if "/" in model.hf_id else model.name,
        "configuration": configuration,
        "weight_format": model.weight_format,
        "measured_with": measured_with,
        **grids,
        **told,
        "fit_error": {phase: fit.error for phase, fit in fits.items()},
        "points": [asdict(point) for point in points],
    }


def save_measurements(path: str | Path, node: dict[str, Any]) -> int:
    """Write a measured node; into a file that is there already, beside its other nodes or in the place of its own.

    Returns:
        How many nodes the file holds now.

    Raises:
        CoraloptError: The file is there and holds something else, or cannot be written.
    """
    nodes: list[dict[str, Any]] = []
    target = Path(path)
    if target.exists():
        try:
            document = json.loads(target.read_text(encoding="utf-8"))
            nodes = document["nodes"]
            if document != measurements_document(nodes):
                raise ValueError("other keys")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CoraloptError(f"{target}: is there and is no file of measured times; it is left alone") from error
    key = _key(node)
    nodes = [other for other in nodes if _key(other) != key] + [node]
    text = json.dumps(measurements_document(nodes), indent=1) + "\n"
    write_text(target, text, "the measured times")
    return len(nodes)


def _key(node: dict[str, Any]) -> tuple[object, ...]:
    return node["model"], node["configuration"], node["weight_format"], node.get("kv_format")


def machine() -> str:
    """The CPU of this machine, for the record."""
    return f"{cpu_model() or 'CPU'}, {os.cpu_count()} cores"
