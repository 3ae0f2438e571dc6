"""Arrival models against closed forms, and the fit against models it should find again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.errors import WorkloadError
from coralopt.workload.generation.arrivals import ArrivalModel, ArrivalOptions, even_hours, stationary_law
from coralopt.workload.generation.arrivals_fit import daily_shape, fit_arrivals, fit_chain
from coralopt.workload.generation.kernels import expectation
from coralopt.workload.traces.statistics import dispersion, find_tick, interval_cv, per_window

ONE = np.ones(1), np.ones((1, 1))
TWO = ArrivalModel(1.0, 1.0, np.array([0.2, 2.6]), np.array([[0.98, 0.02], [0.04, 0.96]]))


def test_poisson_process() -> None:
    """One state and exponential intervals: interval CV 1 and variance / mean 1 in every window."""
    times, _ = ArrivalModel(1.0, 1.0, *ONE).sample(20.0, 5000.0, np.random.default_rng(1))
    assert len(times) == pytest.approx(100_000, abs=5 * np.sqrt(100_000))
    assert interval_cv(times) == pytest.approx(1, abs=0.02)
    for window in (0.5, 5.0, 50.0):
        assert dispersion(per_window(times, window)) == pytest.approx(1, abs=0.35 if window > 10 else 0.1)


@pytest.mark.parametrize("cv", [0.3, 2.0])
def test_gamma_renewal(cv: float) -> None:
    """Intervals have the CV asked for; counts over long windows have variance / mean CV^2 (renewal theory)."""
    times, _ = ArrivalModel(cv, 1.0, *ONE).sample(20.0, 20_000.0, np.random.default_rng(2))
    assert interval_cv(times) == pytest.approx(cv, rel=0.03)
    assert dispersion(per_window(times, 20.0)) == pytest.approx(cv**2, rel=0.15)


def test_renewal_starts_in_equilibrium() -> None:
    """The first arrival of a very bursty process is not a burst: over seeds the rate is right from the start."""
    model = ArrivalModel(4.0, 1.0, *ONE)
    early = [np.count_nonzero(model.sample(1.0, 4.0, np.random.default_rng(s))[0] < 4.0) for s in range(4000)]
    assert np.mean(early) == pytest.approx(4.0, abs=5 * np.std(early) / np.sqrt(len(early)))


def test_modulated_poisson_process() -> None:
    """Variance / mean of counts against the closed form from the chain's autocovariance."""
    times, states = TWO.sample(1.0, 400_000.0, np.random.default_rng(3))
    law, gap = TWO.stationary, 1 - 0.02 - 0.04
    assert law @ TWO.rates == pytest.approx(1.0)
    variance = float(law @ (TWO.rates - 1) ** 2)
    for width in (1, 10, 60):
        # Window counts are Poisson given the rates, whose covariance at lag h is variance * gap**h.
        lags = np.arange(1, width)
        spread = width + 2 * float(np.sum((width - lags) * gap**lags))
        assert dispersion(per_window(times, float(width))) == pytest.approx(1 + variance * spread / width, rel=0.08)
    assert np.mean(states == 1) == pytest.approx(law[1] * 2.6, abs=0.02)


@given(
    rate=st.floats(0.01, 50),
    duration=st.floats(0.1, 300),
    cv=st.floats(0.2, 5),
    seed=st.integers(0, 1000),
    tick=st.one_of(st.none(), st.floats(0.5, 20)),
    hour=st.floats(0, 30),
)
@settings(max_examples=60, deadline=None)
def test_samples_are_valid(rate: float, duration: float, cv: float, seed: int, tick: float | None, hour: float) -> None:
    """Sorted, inside the duration, one state each, and equal for equal seeds, for any parameters."""
    shape = np.linspace(0.5, 1.5, 24)
    model = ArrivalModel(cv, 2.0, TWO.rates, TWO.transitions, tick, shape)
    times, states = model.sample(rate, duration, np.random.default_rng(seed), ArrivalOptions(hour))
    again, _ = model.sample(rate, duration, np.random.default_rng(seed), ArrivalOptions(hour))
    assert np.array_equal(times, again)
    assert len(states) == len(times)
    assert (np.diff(times) >= 0).all()
    assert len(times) == 0 or (times[0] >= 0 and times[-1] < duration)


def test_rate_follows_the_day() -> None:
    """Requests of each hour are in proportion to the shape, from any start hour, and the daily mean is the rate."""
    shape = np.concatenate([np.full(12, 0.5), np.full(12, 1.5)])
    model = ArrivalModel(1.0, 1.0, *ONE, shape=shape)
    times, _ = model.sample(2.0, 2 * 86_400.0, np.random.default_rng(4), ArrivalOptions(6.0))
    counts = per_window(np.append(times, 2 * 86_400.0), 3600.0)[:24]
    assert counts.sum() == pytest.approx(2 * 86_400, rel=0.02)
    assert counts == pytest.approx(7200 * np.roll(shape, -6), rel=0.12)


@given(st.floats(0, 400), st.floats(0, 400), st.sampled_from([24, 168]))
@settings(max_examples=50, deadline=None)
def test_even_hours_against_a_sum(hours: float, start: float, period: int) -> None:
    """The integral of the shape equals a fine Riemann sum."""
    shape = 0.5 + np.arange(period) % 7 / 6
    grid = start + (np.arange(20_000) + 0.5) * hours / 20_000
    expected = shape[(grid % period).astype(int)].mean() * hours
    assert even_hours(shape, np.array([hours]), start)[0] == pytest.approx(expected, abs=0.02 + 1e-3 * hours)


def test_expectation_against_all_paths() -> None:
    """Forward-backward equals the sum over every path of a small chain."""
    random = np.random.default_rng(5)
    logs = random.normal(size=(6, 3))
    start, transitions = random.dirichlet(np.ones(3)), random.dirichlet(np.ones(3), size=3)
    posterior, pairs, likelihood = expectation(logs, start, transitions)
    total, own, steps = 0.0, np.zeros((6, 3)), np.zeros((3, 3))
    for path in itertools.product(range(3), repeat=6):
        weight = start[path[0]] * np.exp(sum(logs[t, s] for t, s in enumerate(path)))
        for before, after in itertools.pairwise(path):
            weight *= transitions[before, after]
        total += weight
        for t, state in enumerate(path):
            own[t, state] += weight
        for before, after in itertools.pairwise(path):
            steps[before, after] += weight
    assert likelihood == pytest.approx(np.log(total))
    assert posterior == pytest.approx(own / total)
    assert pairs == pytest.approx(steps / total)


def test_fit_finds_a_chain_again() -> None:
    """Two states come out of a two-state trace with the same rates and stays, and likelihood never falls."""
    times, _ = TWO.sample(1.0, 30_000.0, np.random.default_rng(6))
    rates, transitions, _ = fit_chain(per_window(times, 1.0), 2)
    assert rates == pytest.approx(TWO.rates, rel=0.1)
    assert np.diag(transitions) == pytest.approx([0.98, 0.96], abs=0.01)
    assert stationary_law(transitions) @ transitions == pytest.approx(stationary_law(transitions))
    fit = fit_arrivals(times)
    assert fit.model.states == 2
    assert fit.model.interval_cv == pytest.approx(1, abs=0.1)
    assert fit.state_weights.sum(axis=1) == pytest.approx(1)


def test_fit_prefers_the_simple_model() -> None:
    """A renewal trace is answered with one state and its CV."""
    times, _ = ArrivalModel(0.5, 1.0, *ONE).sample(3.0, 3000.0, np.random.default_rng(7))
    fit = fit_arrivals(times)
    assert fit.model.states == 1
    assert fit.model.interval_cv == pytest.approx(0.5, rel=0.1)
    assert fit.model.why.startswith("gamma renewal")


def test_fit_sees_the_clock_of_the_log() -> None:
    """Stamps every 3 s, some a millisecond early, are found and come out again."""
    times, _ = TWO.sample(4.0, 3000.0, np.random.default_rng(8))
    ticked = np.floor(times / 3) * 3
    jitter = np.sort(np.maximum(ticked - 0.001 * (np.random.default_rng(9).random(len(ticked)) < 0.1), 0))
    assert find_tick(jitter) == pytest.approx(3.0, abs=0.002)
    assert find_tick(times) is None
    model = fit_arrivals(jitter).model
    made, _ = model.sample(len(times) / 3000.0, 3000.0, np.random.default_rng(1))
    assert find_tick(made) == pytest.approx(3.0, rel=0.01)
    free, _ = model.sample(len(times) / 3000.0, 3000.0, np.random.default_rng(1), ArrivalOptions(keep_tick=False))
    assert find_tick(free) is None


def test_fit_learns_the_day() -> None:
    """Three days of a daily rhythm give its shape; one day gives none."""
    shape = 1 + 0.8 * np.sin(np.arange(24) * 2 * np.pi / 24)
    times, _ = ArrivalModel(1.0, 1.0, *ONE, shape=shape).sample(0.2, 3 * 86_400.0, np.random.default_rng(10))
    found = fit_arrivals(times).model.shape
    assert found is not None
    assert found == pytest.approx(shape, abs=0.15)
    assert daily_shape(times[times < 86_400]) is None
    assert len(daily_shape(np.linspace(0, 15 * 86_400, 5000))) == 168  # type: ignore[arg-type]


def test_refusals() -> None:
    """Too little data, and requests for more than memory holds, are said."""
    with pytest.raises(WorkloadError, match="too few"):
        fit_arrivals(np.arange(50.0))
    with pytest.raises(WorkloadError, match="too few"):
        fit_arrivals(np.zeros(500))
    for rate, duration in ((0.0, 1.0), (1.0, -1.0), (np.nan, 1.0), (1e9, 1e9)):
        with pytest.raises(WorkloadError):
            TWO.sample(rate, duration, np.random.default_rng(0))
