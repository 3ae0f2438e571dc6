"""Length models keep marginals, dependence, and the mix per state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.errors import WorkloadError
from coralopt.workload.generation.lengths import fit_lengths, independent_lengths
from coralopt.workload.traces.statistics import rank_correlation

ALL = np.zeros(40_000, dtype=np.int64)


def _dependent(count: int, correlation: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    normal = random.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], count)
    tokens = np.maximum(np.rint(np.exp(np.array([6.0, 4.0]) + normal)), 1).astype(np.int64)
    return tokens[:, 0], tokens[:, 1]


@pytest.mark.parametrize("correlation", [-0.7, 0.0, 0.5])
def test_quantiles_means_and_dependence(correlation: float) -> None:
    """Samples have the quantiles (2 %), means (2 %) and rank correlation (0.03) of the data."""
    given_tokens, made = _dependent(40_000, correlation, 1)
    model = fit_lengths(given_tokens, made, np.ones((40_000, 1)))
    first, second = model.sample(ALL, np.random.default_rng(2))
    for sample, data in ((first, given_tokens), (second, made)):
        points = [0.05, 0.25, 0.5, 0.75, 0.95]
        assert np.quantile(sample, points) == pytest.approx(np.quantile(data, points), rel=0.03, abs=1)
        assert sample.mean() == pytest.approx(data.mean(), rel=0.02)
    assert rank_correlation(first, second) == pytest.approx(rank_correlation(given_tokens, made), abs=0.03)


def test_dependence_that_no_correlation_sees() -> None:
    """Long answers at both ends of the prompts: rank correlation 0, and still kept by the grid."""
    random = np.random.default_rng(3)
    given_tokens = random.integers(1, 1001, 40_000)
    made = np.where(np.abs(given_tokens - 500) > 250, 900, 10) + random.integers(0, 10, 40_000)
    model = fit_lengths(given_tokens, made, np.ones((40_000, 1)))
    first, second = model.sample(ALL, random)
    middle = np.abs(first - 500) < 150
    assert second[middle].mean() < 100
    assert second[np.abs(first - 500) > 350].mean() > 800


def test_each_state_has_its_own_mix() -> None:
    """Two states with opposite dependence and lengths come back as they were."""
    lows, highs = _dependent(20_000, 0.6, 4), _dependent(20_000, -0.6, 5)
    given_tokens, made = np.concatenate([lows[0], highs[0] * 4]), np.concatenate([lows[1], highs[1]])
    weights = np.repeat(np.eye(2), 20_000, axis=0)
    model = fit_lengths(given_tokens, made, weights)
    for state, data in ((0, lows), (1, (highs[0] * 4, highs[1]))):
        first, second = model.sample(np.full(20_000, state), np.random.default_rng(6))
        # A mixture's cells are coarser than each part's; medians hold to 15 %.
        assert np.median(first) == pytest.approx(np.median(data[0]), rel=0.15)
        assert rank_correlation(first, second) == pytest.approx(rank_correlation(*data), abs=0.1)


def test_atoms_survive() -> None:
    """A length that half of the requests share keeps its weight; Azure's traces have such atoms."""
    tokens = np.where(np.arange(40_000) % 2 == 0, 4096, 1 + np.arange(40_000) // 20)
    model = fit_lengths(tokens, tokens, np.ones((40_000, 1)))
    first, _ = model.sample(ALL, np.random.default_rng(7))
    assert np.mean(first == 4096) == pytest.approx(0.5, abs=0.02)


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=40), st.floats(1, 1e5), st.floats(1, 1e5))
@settings(max_examples=60, deadline=None)
def test_scaled_means_are_exact(tokens: list[int], first: float, second: float) -> None:
    """Stretching hits the wanted means, with every length at least 1."""
    values = np.sort(np.asarray(tokens, dtype=np.float64))
    grid = np.linspace(0, 1, len(values))
    model = independent_lengths(grid, values, values, 1).scaled(first, second)
    assert model.means() == pytest.approx((first, second), rel=1e-6)
    assert model.input_tokens.min() >= 1
    numeric = np.exp(np.interp((np.arange(200_000) + 0.5) / 200_000, grid, np.log(model.input_tokens))).mean()
    assert model.means()[0] == pytest.approx(numeric, rel=0.01)


def test_refusal() -> None:
    """A mean below one token cannot be."""
    with pytest.raises(WorkloadError, match="at least 1"):
        independent_lengths(np.array([0.0, 1.0]), np.array([1.0, 2.0]), np.array([1.0, 2.0]), 1).scaled(0.5, 3)
