"""How long requests are: quantiles of both sides, and a copula that ties them to each other and to the arrivals.

A copula is the joint law of ranks. This one is a grid: the unit square of (rank of the prompt, rank of the answer) is
cut into equal cells and each cell has a probability, uniform inside. There is one grid a state of the arrival model,
since in real traces the mix of requests shifts with the load (Azure's conversation trace: answers get shorter in busy
minutes). A Gaussian copula would keep one correlation; the grid also keeps dependence that is not monotone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from coralopt.errors import WorkloadError
from coralopt.types import Floats, Ints
from coralopt.workload.files.documents import Numbers

#: Probabilities of the stored quantiles: every percent, and finer where the tail carries much of the mean.
PROBABILITIES = (0.0, 0.001, 0.005, *(p / 100 for p in range(1, 100)), 0.995, 0.999, 0.9995, 0.9999, 1.0)
#: Cells a side of the copula's grid.
CELLS = 10
#: Seed of the order among requests of equal length.
_SEED = 7


@dataclass(frozen=True, eq=False)
class LengthModel:
    """Joint law of prompt length, answer length and arrival state.

    Attributes:
        probabilities: float64 (q,), rising from 0 to 1.
        input_tokens: float64 (q,), quantiles of prompt lengths in tokens, never falling, at least 1.
        output_tokens: float64 (q,), the same of answers.
        copula: float64 (k, c, c), for each state the probability of (cell of the prompt's rank, cell of the answer's
            rank); sums to 1 for each state.
    """

    probabilities: Annotated[Floats, Numbers(ge=0, le=1, least=2)]
    input_tokens: Annotated[Floats, Numbers(ge=1)]
    output_tokens: Annotated[Floats, Numbers(ge=1)]
    copula: Annotated[Floats, Numbers(3, ge=0, le=1, least=1)]

    def sample(self, states: Ints, random: np.random.Generator) -> tuple[Ints, Ints]:
        """Prompt and answer lengths in tokens of requests that arrive in these states: int64 (n,) each."""
        count, cells = len(states), self.copula.shape[1]
        cumulative = np.cumsum(self.copula.reshape(len(self.copula), -1), axis=1)
        uniform = random.random(count)
        cell = np.zeros(count, dtype=np.int64)
        for state in range(len(cumulative)):
            rows = states == state
            cell[rows] = np.searchsorted(cumulative[state][:-1], uniform[rows], side="right")
        inside = random.random((2, count))
        first, second = (cell // cells + inside[0]) / cells, (cell % cells + inside[1]) / cells
        return self.quantile(self.input_tokens, first), self.quantile(self.output_tokens, second)

    def quantile(self, values: Floats, rank: Floats) -> Ints:
        """Token lengths at these ranks (0 to 1): log-linear between the stored quantiles, whole, at least 1."""
        tokens = np.exp(np.interp(rank, self.probabilities, np.log(values)))
        return np.maximum(np.rint(tokens), 1).astype(np.int64)

    def means(self) -> tuple[float, float]:
        """Mean prompt and answer length in tokens, before rounding."""
        return _mean(self.probabilities, self.input_tokens), _mean(self.probabilities, self.output_tokens)

    def scaled(self, input_tokens: float, output_tokens: float) -> LengthModel:
        """The same shape with these mean lengths in tokens.

        Raises:
            WorkloadError: A mean below 1.
        """
        if not (input_tokens >= 1 and output_tokens >= 1 and np.isfinite(input_tokens * output_tokens)):
            raise WorkloadError(f"mean lengths must be at least 1 token, not {input_tokens:g} and {output_tokens:g}")
        return replace(
            self,
            input_tokens=_with_mean(self.probabilities, self.input_tokens, input_tokens),
            output_tokens=_with_mean(self.probabilities, self.output_tokens, output_tokens),
        )

    def inconsistencies(self, states: int) -> Iterator[tuple[str, str]]:
        """(field, what is wrong) where the parts do not go together, or not with an arrival model of so many states."""
        points = self.probabilities
        if points[0] != 0 or points[-1] != 1 or (np.diff(points) <= 0).any():
            yield "probabilities", "must rise from 0 to 1"
        for name in ("input_tokens", "output_tokens"):
            values = getattr(self, name)
            if len(values) != len(points):
                yield name, f"{len(values)} quantiles for {len(points)} probabilities"
            elif (np.diff(values) < 0).any():
                yield name, "quantiles must not fall"
        cells = self.copula.shape[-1]
        if self.copula.shape != (states, cells, cells):
            yield "copula", f"must be {states} square grids of one size, one a state"
        elif cells == 0 or (abs(self.copula.sum(axis=(1, 2)) - 1) > 1e-2).any():
            yield "copula", "every grid must sum to 1"


def fit_lengths(input_tokens: Ints, output_tokens: Ints, state_weights: Floats) -> LengthModel:
    """Quantiles and grid copula of these requests.

    Args:
        input_tokens: int64 (n,), at least 1.
        output_tokens: int64 (n,), at least 1.
        state_weights: float64 (n, k), probability that request i arrived in state j.
    """
    probabilities = np.asarray(PROBABILITIES)
    quantiles = [
        np.quantile(tokens, probabilities, method="inverted_cdf").astype(np.float64)
        for tokens in (input_tokens, output_tokens)
    ]
    random = np.random.default_rng(_SEED)
    cells = [_rank_cells(tokens, random) for tokens in (input_tokens, output_tokens)]
    states = state_weights.shape[1]
    grid = np.empty((states, CELLS, CELLS))
    flat = cells[0] * CELLS + cells[1]
    for state in range(states):
        weights = np.bincount(flat, weights=state_weights[:, state], minlength=CELLS * CELLS)
        law = weights / weights.sum() if weights.sum() > 0 else np.full_like(weights, CELLS**-2)
        grid[state] = law.reshape(CELLS, CELLS)
    return LengthModel(probabilities, quantiles[0], quantiles[1], grid)


def independent_lengths(probabilities: Floats, input_tokens: Floats, output_tokens: Floats, states: int) -> LengthModel:
    """Lengths known by their quantiles alone, tied to nothing."""
    return LengthModel(probabilities, input_tokens, output_tokens, np.ones((states, 1, 1)))


def _rank_cells(tokens: Ints, random: np.random.Generator) -> Ints:
    """Cell of each request's rank; requests of equal length share the cells they span at random."""
    order = np.lexsort((random.random(len(tokens)), tokens))
    ranks = np.empty(len(tokens), dtype=np.int64)
    ranks[order] = np.arange(len(tokens))
    return ranks * CELLS // len(tokens)


def _mean(probabilities: Floats, values: Floats) -> float:
    """Mean of the log-linear quantile function: the logarithmic mean of its ends on each piece."""
    low, high = values[:-1], values[1:]
    ratio = np.log(high / low)
    safe = np.where(ratio > 1e-9, ratio, 1.0)
    piece = np.where(ratio > 1e-9, (high - low) / safe, low)
    return float(np.diff(probabilities) @ piece)


def _with_mean(probabilities: Floats, values: Floats, mean: float) -> Floats:
    """Values times one factor, cut at 1 token, with this mean; the factor is found by bisection."""
    low, high = 0.0, 2.0 * mean / _mean(probabilities, values) + 1.0
    for _ in range(200):
        middle = (low + high) / 2
        if _mean(probabilities, np.maximum(values * middle, 1.0)) < mean:
            low = middle
        else:
            high = middle
    result: Floats = np.maximum(values * high, 1.0)
    return result
