"""The statistics against closed forms, worked examples, and a slow second computation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coralopt.benchmark.statistics import (
    gap_at,
    gap_steps,
    mean_ratio_interval,
    par10,
    performance_ratios,
    primal_gap,
    primal_integral,
    profile,
    shifted_geometric_mean,
)

SECONDS = st.floats(0.02, 1000.0)


def test_shifted_geometric_mean_by_hand() -> None:
    """(3 + 1) (0 + 1) has the geometric mean 2, minus the shift 1; without a shift times below 1 s count as 1 s."""
    assert shifted_geometric_mean([3.0, 0.0], 1.0) == pytest.approx(1.0)
    assert shifted_geometric_mean([0.001, 100.0], 0.0) == pytest.approx(10.0)
    assert shifted_geometric_mean([90.0, 0.0], 10.0) == pytest.approx(math.sqrt(1000.0) - 10.0)
    assert math.isnan(shifted_geometric_mean([], 1.0))


@given(st.lists(SECONDS, min_size=1, max_size=20), st.sampled_from([1.0, 10.0]))
def test_shifted_geometric_mean_lies_where_it_must(seconds: list[float], shift: float) -> None:
    """It is the product's root, lies between least and arithmetic mean, and equal times give themselves."""
    mean = shifted_geometric_mean(seconds, shift)
    product = math.prod(value + shift for value in seconds) ** (1 / len(seconds)) - shift
    assert mean == pytest.approx(product, rel=1e-9, abs=1e-9)
    assert min(seconds) - 1e-9 <= mean <= sum(seconds) / len(seconds) + 1e-9
    assert shifted_geometric_mean([seconds[0]] * 7, shift) == pytest.approx(seconds[0])


def test_interval_of_a_ratio_of_means() -> None:
    """A fixed factor has no spread; logs of a normal spread have the textbook's interval; seeds add no instances."""
    rng = np.random.default_rng(5)
    first = np.exp(rng.normal(3.0, 1.0, 60)) + 1
    names = [f"instance{k}" for k in range(60)]
    assert mean_ratio_interval(first, 3 * first, names, 0.0) == pytest.approx((3.0, 3.0))
    logs = rng.normal(0.5, 0.4, 60)
    second = first * np.exp(logs)
    low, high = mean_ratio_interval(first, second, names, 0.0)
    half = 1.96 * logs.std() / math.sqrt(60)
    assert (math.log(low), math.log(high)) == pytest.approx((logs.mean() - half, logs.mean() + half), abs=half / 5)
    again = mean_ratio_interval(np.tile(first, 5), np.tile(second, 5), names * 5, 0.0)
    assert again == pytest.approx((low, high))
    assert all(map(math.isnan, mean_ratio_interval([1.0], [2.0], ["one"], 1.0)))


def test_par10_by_hand() -> None:
    """Solved runs count as they are, unsolved ones as ten limits, whatever they took."""
    assert par10([1.0, 30.0, 2.0], [True, False, True], 30.0) == pytest.approx((1 + 300 + 2) / 3)
    assert math.isnan(par10([], [], 30.0))


def test_performance_profile_by_hand() -> None:
    """Two arms, three runs: A takes 1, 4 and fails; B takes 2, 2 and fails too."""
    seconds = np.array([[1.0, 4.0, 10.0], [2.0, 2.0, 10.0]])
    solved = np.array([[True, True, False], [True, True, False]])
    ratios = performance_ratios(seconds, solved)
    assert ratios.tolist() == [[1.0, 2.0, math.inf], [2.0, 1.0, math.inf]]
    shares = profile(ratios, [1.0, 2.0])
    assert shares == pytest.approx(np.array([[1 / 3, 2 / 3], [1 / 3, 2 / 3]]))
    # Below the clock's resolution nobody wins.
    tiny = performance_ratios(np.array([[1e-5], [5e-3]]), np.ones((2, 1), dtype=bool))
    assert tiny.tolist() == [[1.0], [1.0]]


@given(
    st.integers(1, 4).flatmap(
        lambda arms: st.lists(
            st.lists(st.tuples(SECONDS, st.booleans()), min_size=arms, max_size=arms), min_size=1, max_size=8
        )
    )
)
def test_performance_profile_against_counting(runs: list[list[tuple[float, bool]]]) -> None:
    """The share at a factor is what counting run by run gives; it rises with the factor; someone is at 1 if solved."""
    seconds = np.array([[cell[0] for cell in run] for run in runs]).T
    solved = np.array([[cell[1] for cell in run] for run in runs]).T
    factors = [1.0, 1.5, 3.0, 1e9]
    shares = profile(performance_ratios(seconds, solved), factors)
    for arm in range(len(seconds)):
        for k, factor in enumerate(factors):
            count = 0
            for run in runs:
                times = [value for value, done in run if done]
                count += run[arm][1] and run[arm][0] <= factor * min(times) * (1 + 1e-12)
            assert shares[arm, k] == pytest.approx(count / len(runs))
    assert (np.diff(shares, axis=1) >= 0).all()
    assert shares[:, -1] == pytest.approx(solved.mean(axis=1))
    assert (shares[:, 0].sum() > 0) == bool(solved.any())


def test_primal_gap_by_hand() -> None:
    """Berthold's definition: relative to the larger of the two, 1 without a solution or with another sign."""
    assert primal_gap(100.0, 80.0) == pytest.approx(0.2)
    assert primal_gap(80.0, 100.0) == pytest.approx(0.2)
    assert primal_gap(0.0, 0.0) == 0.0
    assert primal_gap(0.0, 5.0) == 1.0
    assert primal_gap(-1.0, 5.0) == 1.0
    assert primal_gap(None, 5.0) == primal_gap(math.nan, 5.0) == 1.0


def test_primal_integral_by_hand() -> None:
    """No answer for 2 s, 50 % off for 3 s, right for the rest of 10 s: 2 + 1.5."""
    steps = gap_steps([[2.0, 200.0], [3.0, 250.0], [5.0, 100.0]], 100.0, "min")
    assert steps == [(0.0, 1.0), (2.0, 0.5), (5.0, 0.0)]  # the worse incumbent in between changes nothing
    assert primal_integral(steps, 10.0) == pytest.approx(3.5)
    assert primal_integral(steps, 3.0) == pytest.approx(2.5)
    assert primal_integral([(0.0, 1.0)], 10.0) == 10.0
    assert [gap_at(steps, second) for second in (0.0, 1.99, 2.0, 7.0)] == [1.0, 1.0, 0.5, 0.0]
    # A claim beyond the best checked answer is no better than it, for either sense.
    assert gap_steps([[1.0, 99.0]], 100.0, "min")[-1] == (1.0, 0.0)
    assert gap_steps([[1.0, 101.0]], 100.0, "max")[-1] == (1.0, 0.0)


@given(st.lists(st.tuples(st.floats(0, 12), st.floats(1, 100)), max_size=8), st.floats(0.5, 10))
def test_primal_integral_against_a_sum_over_a_grid(events: list[tuple[float, float]], limit: float) -> None:
    """The closed form is the area under the step function that ``gap_at`` reads."""
    steps = gap_steps(events, 100.0, "max")
    grid = (np.arange(4000) + 0.5) * limit / 4000
    area = np.mean([gap_at(steps, float(second)) for second in grid]) * limit
    assert primal_integral(steps, limit) == pytest.approx(area, abs=limit * len(steps) / 4000 + 1e-9)
