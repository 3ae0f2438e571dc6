"""What decoding sequences hold at a random moment, and what a KV transfer takes of their time: mean and tail.

A sequence is seen at work in proportion to its answer's length, so what is at work is longer than what arrives. With s
tokens of the prompt and o of the answer, independent (docs/concepts/throughput.md)::

    KV cache that grows:      s + E[o^2] / (2 E[o]),  mean square E[s^2] + 2 E[s] E[o^2] / (2 E[o]) + E[o^3] / (3 E[o])
    set aside for the whole:  s + E[o^2] / E[o],      mean square E[s^2] + 2 E[s] E[o^2] / E[o] + E[o^3] / E[o]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.lengths import LengthPair
from coralopt.types import Floats

#: Quantiles of either length that the share of transfers in time is computed from.
_POINTS = 512


@dataclass(frozen=True)
class Occupancy:
    """What sequences at work hold.

    Attributes:
        context: Tokens that a decoding sequence attends to, mean.
        held: Tokens of KV cache of a sequence, mean.
        spread: Root mean square of ``held`` over its mean.
        score: Normal score of the share of moments that limits must hold in; 0 plans for the mean.
    """

    context: float
    held: float
    spread: float
    score: float

    def mean_within(self, most: Floats, spread: float = 1.0) -> Floats:
        """Mean number m of Poisson sequences whose tail m + score spread sqrt(m) reaches ``most`` and no further."""
        if self.score == 0:
            return most
        half = self.score * spread / 2
        return np.asarray((np.sqrt(np.maximum(most, 0.0) + half**2) - half) ** 2)


def occupancy_of(phase: ModelPhase) -> Occupancy:
    """What decoding sequences of a decode or mixed phase hold.

    Mean planning takes mean prompts and half a mean answer. With an attainment the lengths' distribution counts, and limits
    hold in that share of moments.
    """
    prompt, answer = max(phase.mean_input_tokens, 1.0), max(phase.mean_output_tokens, 1.0)
    if phase.attainment is None:
        return Occupancy(prompt + answer / 2, prompt + answer / 2, 1.0, 0.0)
    lengths = phase.lengths
    reserved = phase.serving.admission == "reserve"
    biased = lengths.output.moment(2) / answer
    aged, aged_square = biased / 2, lengths.output.moment(3) / answer / 3
    written, square = (biased, 3 * aged_square) if reserved else (aged, aged_square)
    square += lengths.input.moment(2) + 2 * prompt * written
    # Below one half a limit need not even hold on the mean; then it holds for the mean.
    score = max(0.0, NormalDist().inv_cdf(phase.attainment))
    return Occupancy(prompt + aged, prompt + written, math.sqrt(square) / (prompt + written), score)


def transfer_tokens(phase: ModelPhase) -> float:
    """Tokens of KV cache, in one layer, whose transfer each later token of an answer must leave time for.

    A request's time per output token is a step and its share of the transfer, so it is in time where
    transfer <= (SLO - step) (o - 1). This is the quantile of s / (o - 1) at the attainment, windows of layers respected and
    what the receiver has in its cache left out; 0 with mean planning, which leaves transfers out.
    """
    if phase.phase != "decode" or phase.attainment is None:
        return 0.0
    model = phase.model
    sliding = model.sliding_layers / model.layers if model.sliding_window else 0.0
    return (1.0 - phase.prefix_hit) * _transfer_tokens(
        phase.lengths, sliding, float(model.sliding_window or 0), phase.attainment
    )


@lru_cache(maxsize=64)
def _transfer_tokens(lengths: LengthPair, sliding: float, window: float, attainment: float) -> float:
    shares = [(i + 0.5) / _POINTS for i in range(_POINTS)]
    prompts = np.maximum(lengths.input.quantile(shares), 1.0)
    later = np.rint(np.maximum(lengths.output.quantile(shares), 1.0)) - 1.0
    kept = (1 - sliding) * prompts + sliding * np.minimum(prompts, window)
    # An answer of one token has no later one, and nothing to be late for.
    with np.errstate(divide="ignore"):
        each = np.where(later[None, :] > 0, kept[:, None] / later[None, :], 0.0)
    return float(np.quantile(each, attainment))
