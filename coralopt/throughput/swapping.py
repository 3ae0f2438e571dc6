"""Models that take turns on one node with all of their requests, the weights of one at a time on the GPUs.

A *turn* of a model: the weights before it go and its own come (vLLM's sleep mode, which forgets the KV cache), then all
requests that wait are served together to their end; those that come meanwhile wait for the next turn (a gate). With b
requests a turn takes::

    turn(b) = swap + P(b) longest(b) + K(b) step(b)

    P(b)  steps that carry the prompts, each as many tokens as a step may have: b prompts of mean length over step_tokens - b
    K(b)  steps that decode: the mean of the longest of b answers, by the distribution of their lengths
    step(b), longest(b)  times of a step that decodes b sequences, without and with prompts

In a cycle ``C = sum of the turns`` each model serves b requests, so turns are to :mod:`coralopt.throughput.steps` what
steps are, with a whole answer for a sequence's tokens. A request that just missed the gate has its first token after
C + P(b) longest(b), which is within the time to first token; a mean answer takes at most P(b) longest(b) + its own steps,
which is within its tokens' times. An engine that is away keeps some memory of the GPUs; the rest is the present one's.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from coralopt.catalog.types import GIB, NodeConfiguration
from coralopt.scenario.facts.facts import Sharing
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.lengths import LengthDistribution, LengthSpread
from coralopt.throughput.layer_times import LayerTimes, mixed_ms
from coralopt.throughput.nodes import batch_grid, cache_bytes
from coralopt.throughput.steps import NodeSteps, long_tokens
from coralopt.types import Floats

#: Points of the distribution of answers at which the longest of several is averaged.
_POINTS = 256


def swap_ms(phase: ModelPhase, sharing: Sharing) -> float:
    """Time for the weights of another model to go and those of this one to come, ms: measured, or both at the given rate.

    Those that go are counted as large as its own; over a cycle each comes and goes once.
    """
    measured = dict(sharing.swap_s).get(phase.served)
    if measured is not None:
        return 1e3 * measured
    return 2.0 * phase.model.weight_bytes / ((sharing.swap_gb_s or 1.0) * 1e6)


def longest_answers(answers: LengthDistribution, batch: Floats) -> Floats:
    """float64 (n,): mean length of the longest of so many answers, tokens; at least the mean length."""
    return np.asarray(max(1.0, answers.mean) * np.maximum(1.0, _longest(answers.spread, tuple(batch.tolist()))))


@lru_cache(maxsize=256)
def _longest(spread: LengthSpread, batch: tuple[float, ...]) -> Floats:
    shares = (np.arange(_POINTS) + 0.5) / _POINTS
    one = LengthDistribution(1.0, spread)
    return np.array([float(one.quantile((shares ** (1.0 / count)).tolist()).mean()) for count in batch])


def swap_steps(phase: ModelPhase, configuration: NodeConfiguration, times: LayerTimes, sharing: Sharing) -> NodeSteps:
    """Turns of a mixed phase on a node that holds all of its layers while they last."""
    model, batch = phase.model, batch_grid(times.most_sequences)
    prompt, answer = max(phase.mean_input_tokens, 1.0), max(phase.mean_output_tokens, 1.0)
    computed, context = max(phase.computed_tokens, 1.0), prompt + answer
    carried = np.minimum(np.maximum(phase.serving.step_tokens - batch, 1.0), batch * computed)
    passes = np.ceil(batch * computed / carried)

    def whole(layer_ms: Floats, other_ms: Floats) -> Floats:
        return np.asarray(np.maximum.accumulate(phase.serving.host_step_ms + other_ms + layer_ms * model.layers))

    step = whole(*times.decode_ms(batch, context))
    carrying = np.maximum(step, whole(*mixed_ms(times, batch, context, carried)))
    prompts_ms = np.maximum.accumulate(passes * carrying)
    turn = swap_ms(phase, sharing) + prompts_ms + longest_answers(phase.lengths.output, batch) * step
    within = phase.prefill_budget_ms - prompts_ms
    within[prompts_ms / answer + step > phase.decode_budget_ms] = -1.0
    return NodeSteps(
        batch=batch,
        ms=turn,
        longest_ms=turn,
        within_ms=phase.prefill_budget_ms,
        longest_within_ms=np.minimum.accumulate(within),
        tokens_each=answer,
        fixed_bytes=phase.serving.reserve_gib * GIB * configuration.count
        + model.layers * model.layer_bytes
        + model.end_bytes(1),
        bytes_each=cache_bytes(model, configuration, context) * model.layers,
        least_bytes=cache_bytes(model, configuration, long_tokens(phase)) * model.layers,
    )
