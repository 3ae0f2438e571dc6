"""Compiled loops of the workload floor; imported only when they run."""

from __future__ import annotations

import math

import numpy as np

from coralopt.compiling import compiled
from coralopt.types import Floats, Ints


@compiled()
def walk(cumulative: Floats, first: int, uniform: Floats) -> Ints:
    """States of the chain, one a window, from cumulative transition rows and uniform numbers."""
    path = np.empty(len(uniform), dtype=np.int64)
    state = first
    for step in range(len(uniform)):
        path[step] = state
        following = 0
        while following < cumulative.shape[1] - 1 and uniform[step] >= cumulative[state, following]:
            following += 1
        state = following
    return path


@compiled()
def expectation(logs: Floats, start: Floats, transitions: Floats) -> tuple[Floats, Floats, float]:
    """Forward and backward pass.

    Args:
        logs: float64 (n, k), log density of window t in state j, up to a term that depends on t alone.
        start: float64 (k,), law of the first state.
        transitions: float64 (k, k).

    Returns:
        State probabilities (n, k), expected transitions (k, k), and the log likelihood up to those terms.
    """
    windows, states = logs.shape
    density = np.empty((windows, states))
    posterior = np.empty((windows, states))
    likelihood = 0.0
    for t in range(windows):
        top = logs[t].max()
        total = 0.0
        for j in range(states):
            density[t, j] = math.exp(logs[t, j] - top)
            ahead = start[j]
            if t > 0:
                ahead = 0.0
                for i in range(states):
                    ahead += posterior[t - 1, i] * transitions[i, j]
            posterior[t, j] = ahead * density[t, j]
            total += posterior[t, j]
        for j in range(states):
            posterior[t, j] /= total
        likelihood += math.log(total) + top
    pairs = np.zeros((states, states))
    after = np.ones(states)
    before = np.empty(states)
    for t in range(windows - 1, -1, -1):
        if t < windows - 1:
            # after[j]: chance of what follows window t + 1, given state j there, up to a factor.
            total = 0.0
            for i in range(states):
                before[i] = 0.0
                for j in range(states):
                    before[i] += transitions[i, j] * density[t + 1, j] * after[j]
                total += posterior[t, i] * before[i]
            for i in range(states):
                for j in range(states):
                    pairs[i, j] += posterior[t, i] * transitions[i, j] * density[t + 1, j] * after[j] / total
            scale = before.max()
            for i in range(states):
                after[i] = before[i] / scale
        total = 0.0
        for i in range(states):
            before[i] = posterior[t, i] * after[i]
            total += before[i]
        # Filtered until here; from now on smoothed. Window t - 1 does not look at it again.
        for i in range(states):
            posterior[t, i] = before[i] / total
    return posterior, pairs, likelihood
