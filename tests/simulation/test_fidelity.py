"""Distances of latency distributions, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coralopt.errors import CoraloptError
from coralopt.simulation.fidelity import deviation

LATENCIES = arrays(np.float64, st.integers(2, 40), elements=st.floats(0.1, 1e4))


@given(LATENCIES, st.floats(0.1, 3.0))
def test_a_scaled_distribution(real: np.ndarray, factor: float) -> None:
    """All latencies times f: every percentile is off by f - 1, and so is every request."""
    off = deviation(real, real * factor)
    for value in (off.latency, off.request, abs(off.bias)):
        assert value == pytest.approx(abs(factor - 1), abs=1e-9)
    assert np.sign(off.bias) == np.sign(factor - 1) or abs(factor - 1) < 1e-9


@given(LATENCIES, st.randoms())
def test_order_matters_to_requests_only(real: np.ndarray, draw: object) -> None:
    """The CDFs of a shuffled trace are equal, its requests are not."""
    other = real.copy()
    draw.shuffle(other)  # type: ignore[attr-defined]
    off = deviation(real, other)
    assert (off.latency, off.cdf, off.bias) == (0.0, 0.0, 0.0)
    assert (off.request == 0) == bool((other == real).all())


def test_cdfs_that_do_not_meet() -> None:
    """Four latencies at 1 and four at 3: between the two the CDFs are 1 apart, at the last one 0."""
    off = deviation(np.full(4, 1.0), np.full(4, 3.0))
    assert (off.cdf, off.latency, off.real_ms, off.simulated_ms) == (0.5, 2.0, (1.0, 1.0, 1.0), (3.0, 3.0, 3.0))


def test_what_cannot_be_compared() -> None:
    """Requests without a latency are left out; other traces, nothing left and zero latencies are errors."""
    assert deviation(np.array([1.0, np.nan, 2.0]), np.array([1.0, 5.0, 2.0])).requests == 2
    for real, simulated, text in (
        ([1.0, 2.0], [1.0], "not the same trace"),
        ([1.0, np.nan], [np.nan, 1.0], "two at least"),
        ([0.0, 1.0], [1.0, 1.0], "positive"),
    ):
        with pytest.raises(CoraloptError, match=text):
            deviation(np.array(real), np.array(simulated))
