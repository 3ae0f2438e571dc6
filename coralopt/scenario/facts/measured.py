"""Measured step times that come with a scenario."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MeasuredTimesGrid:
    """Times of one phase of one model on one node configuration.

    Attributes:
        tokens: Prompt lengths or contexts, ascending.
        batch: Prompts or sequences, ascending.
        layer_ms: One layer, ms: a row a token count, a column a batch.
        other_ms: What is not a layer, ms, in the same shape.
    """

    tokens: tuple[float, ...]
    batch: tuple[float, ...]
    layer_ms: tuple[tuple[float, ...], ...]
    other_ms: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class MeasuredNodeTimes:
    """Measured times of one model on one node configuration.

    Attributes:
        model: Name of the model or of its checkpoint.
        configuration: Node configuration.
        weight_format: Format of the weights that were measured.
        measured_with: Engine, versions and device.
        prefill: Whole prompts.
        decode: One token a sequence.
        kv_format: Format of the KV cache that was measured.
        mixed_factor: Layers of measured mixed steps over what prefill and decode times make of them.
    """

    model: str
    configuration: str
    weight_format: str
    measured_with: str
    prefill: MeasuredTimesGrid
    decode: MeasuredTimesGrid
    kv_format: str = "bf16"
    mixed_factor: float = 1.0


@dataclass(frozen=True)
class MeasuredSourceChoice:
    """A throughput source that needs the scenario's own measurements.

    Attributes:
        name: ``"measured"``: these and nothing else; ``"auto"``: these first, then what ``auto`` takes.
        nodes: The measurements.
        host_ms: Longest host times measured, of a step and of a request, ms; ``None`` where none was.
    """

    name: str
    nodes: tuple[MeasuredNodeTimes, ...]
    host_ms: tuple[float | None, float | None] = (None, None)
