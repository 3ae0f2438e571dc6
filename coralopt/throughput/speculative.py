"""Times of speculative decoding: k tokens are proposed for each sequence, one pass checks them, a mean of a are kept.

With V(b, x) the time of a pass over k + 1 tokens of each of b sequences at x tokens of context (as a mixed step computes
prompts, :func:`coralopt.throughput.layer_times.mixed_ms`) and D(b, x) one decode step of the draft model on the same node::

    time per token of an answer = (V(b, x) + k D(b, x)) / a

The draft stands beside the output head. Host time and hops are counted for every token, not for every step. Steps of a
model with LoRA adapters take a factor longer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from coralopt.catalog.types import ModelArchitecture, NodeConfiguration, Speculative
from coralopt.throughput.layer_times import LayerTimes, LayerTimeSource, SlowerTimes, mixed_ms
from coralopt.types import Floats


class SpeculatingSource:
    """The times of another source; of speculative decoding those of a token of an answer; slower with adapters.

    Args:
        inner: Times of plain steps.
    """

    def __init__(self, inner: LayerTimeSource) -> None:
        self.inner, self.name = inner, inner.name

    def covers(self, model: ModelArchitecture, configuration: NodeConfiguration) -> bool:
        draft = None if model.speculative is None else model.speculative.draft
        return self.inner.covers(model, configuration) and (draft is None or self.inner.covers(draft, configuration))

    def times(self, model: ModelArchitecture, configuration: NodeConfiguration) -> LayerTimes:
        if model.adapters is not None:
            return SlowerTimes(self.times(replace(model, adapters=None), configuration), model.adapters.step_factor)
        if model.speculative is None:
            return self.inner.times(model, configuration)
        plain = self.inner.times(replace(model, speculative=None), configuration)
        draft = model.speculative.draft
        return SpeculativeTimes(
            plain, model.speculative, None if draft is None else self.inner.times(draft, configuration)
        )


@dataclass(frozen=True)
class SpeculativeTimes:
    """The module docstring has the formula.

    Attributes:
        plain: Times of the model itself.
        how: Proposed and kept tokens.
        draft: Times of the draft model.
    """

    plain: LayerTimes
    how: Speculative
    draft: LayerTimes | None
    _passes: dict[bytes, tuple[Floats, Floats]] = field(default_factory=dict, compare=False)

    @property
    def provenance(self) -> str:
        """As of the plain times, and how many tokens a step makes."""
        return f"{self.plain.provenance}; speculative decoding, {self.how.acceptance_length:g} tokens a step"

    @property
    def most_prompts(self) -> int:
        """As of the plain times."""
        return self.plain.most_prompts

    @property
    def most_sequences(self) -> int:
        """As of the plain times, and of the draft's."""
        most = self.plain.most_sequences
        return most if self.draft is None else min(most, self.draft.most_sequences)

    def prefill_ms(self, prompts: Floats, tokens: float) -> tuple[Floats, Floats]:
        """As of the plain times."""
        return self.plain.prefill_ms(prompts, tokens)

    def decode_ms(self, sequences: Floats, context: float) -> tuple[Floats, Floats]:
        """(one layer, embedding, logits and draft) for one token of each answer, ms."""
        key = sequences.tobytes()
        if key not in self._passes:
            # What does not depend on the context, once for all.
            self._passes[key] = mixed_ms(self.plain, sequences, 1.0, sequences * self.how.tokens)
        whole, head = self._passes[key]
        layer, other = self.plain.decode_ms(sequences, context)
        layer = whole + layer - self.plain.decode_ms(sequences, 1.0)[0]
        other = np.maximum(head, other)
        if self.draft is not None and self.how.draft is not None:
            own, rest = self.draft.decode_ms(sequences, context)
            other = other + self.how.tokens * (self.how.draft.layers * own + rest)
        return layer / self.how.acceptance_length, other / self.how.acceptance_length
