"""What a source of measured or modelled times must answer: milliseconds for one layer and for what is not a layer."""

from __future__ import annotations

from typing import Protocol

from coralopt.catalog.types import ModelArchitecture, NodeConfiguration
from coralopt.types import Floats


class LayerTimes(Protocol):
    """Times of one model on one node, tensor parallel over all its GPUs."""

    @property
    def provenance(self) -> str:
        """Where the figures come from, one line."""
        ...

    @property
    def most_prompts(self) -> int:
        """Largest batch of prompts for which times are known."""
        ...

    @property
    def most_sequences(self) -> int:
        """Largest decode batch for which times are known."""
        ...

    def prefill_ms(self, prompts: Floats, tokens: float) -> tuple[Floats, Floats]:
        """(one layer, embedding and logits) for a batch of ``prompts`` prompts of ``tokens`` tokens each, ms."""
        ...

    def decode_ms(self, sequences: Floats, context: float) -> tuple[Floats, Floats]:
        """(one layer, embedding and logits) for one token of each of ``sequences`` at ``context`` tokens, ms."""
        ...


class LayerTimeSource(Protocol):
    """Anything that knows layer times of some models on some nodes."""

    name: str

    def covers(self, model: ModelArchitecture, configuration: NodeConfiguration) -> bool:
        """Whether there are figures for this pair."""
        ...

    def times(self, model: ModelArchitecture, configuration: NodeConfiguration) -> LayerTimes:
        """The figures; only for pairs it covers."""
        ...
