"""What a source of measured or modelled times must answer: milliseconds for one layer and for what is not a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from coralopt.catalog.types import ModelArchitecture, NodeConfiguration
from coralopt.throughput.grid import GridTimes
from coralopt.throughput.roofline import RooflineTimes
from coralopt.types import Floats

#: Prefill is measured from so many tokens on. A shorter pass takes no longer than a decode step of as many sequences.
SHORT_PASS = 64


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


@dataclass(frozen=True)
class SlowerTimes:
    """Other times, all multiplied by a factor: steps of a model with LoRA adapters.

    Attributes:
        plain: Times of the model itself.
        factor: What they are multiplied by.
    """

    plain: LayerTimes
    factor: float

    @property
    def provenance(self) -> str:
        """As of the plain times, and the factor."""
        return f"{self.plain.provenance}; with adapters, {self.factor:g} times as long"

    @property
    def most_prompts(self) -> int:
        """As of the plain times."""
        return self.plain.most_prompts

    @property
    def most_sequences(self) -> int:
        """As of the plain times."""
        return self.plain.most_sequences

    def prefill_ms(self, prompts: Floats, tokens: float) -> tuple[Floats, Floats]:
        """(one layer, embedding and logits), ms."""
        layer, other = self.plain.prefill_ms(prompts, tokens)
        return self.factor * layer, self.factor * other

    def decode_ms(self, sequences: Floats, context: float) -> tuple[Floats, Floats]:
        """(one layer, embedding and logits), ms."""
        layer, other = self.plain.decode_ms(sequences, context)
        return self.factor * layer, self.factor * other


def mixed_factor(times: LayerTimes) -> float:
    """Measured mixed steps over what :func:`mixed_ms` puts together, layers only; 1 where none were measured."""
    if isinstance(times, SlowerTimes):
        return mixed_factor(times.plain)
    return times.mixed_factor if isinstance(times, GridTimes) else 1.0


def mixed_ms(
    times: LayerTimes, sequences: Floats, context: float, prompt_tokens: Floats, earlier_ms: Floats | float = 0.0
) -> tuple[Floats, Floats]:
    """(one layer, embedding and logits) for one pass that decodes a token of each sequence and computes prompts, ms.

    One pass over all tokens, as prefill takes it, and the attention of the decoding sequences to their contexts: what a
    decode step at that context takes longer than one at a single token. Weights are read and kernels launched once.

    Args:
        times: Layer times; every source gives the parts, so that the simulator can sample them.
        sequences: float64 (n,), at least 1: sequences that decode.
        context: Their mean context, tokens.
        prompt_tokens: float64 (n,), above 0: tokens of prompts in the same pass.
        earlier_ms: Attention of these tokens to what earlier passes computed of their prompts, ms of a layer.
    """
    layer, other = times.decode_ms(sequences, context)
    tokens = sequences + prompt_tokens
    if isinstance(times, RooflineTimes):
        whole, head = times.prefill_ms(np.ones(len(tokens)), tokens)
    else:
        passes = [times.prefill_ms(np.ones(1), float(n)) for n in tokens]
        whole, head = (np.array([float(part[k][0]) for part in passes]) for k in (0, 1))
    short = (tokens < SHORT_PASS) & (tokens <= times.most_sequences)
    if short.any():
        whole[short] = np.minimum(whole[short], times.decode_ms(tokens[short], 1.0)[0])
    whole = whole + earlier_ms
    return (whole + layer - times.decode_ms(sequences, 1.0)[0]) * mixed_factor(times), np.maximum(other, head)


class LayerTimeSource(Protocol):
    """Anything that knows layer times of some models on some nodes."""

    name: str

    def covers(self, model: ModelArchitecture, configuration: NodeConfiguration) -> bool:
        """Whether there are figures for this pair."""
        ...

    def times(self, model: ModelArchitecture, configuration: NodeConfiguration) -> LayerTimes:
        """The figures; only for pairs it covers."""
        ...
