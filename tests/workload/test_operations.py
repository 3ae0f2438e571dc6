"""Operations on traces: nothing is lost, nothing is made, and rates are what was asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.errors import WorkloadError
from coralopt.workload import (
    Peak,
    Trace,
    assign_models,
    cut,
    cut_epochs,
    epoch_demand,
    mix,
    only_model,
    repeat,
    request_shares,
    scale_to_rate,
    scenario_demand,
    thin,
)

rows = st.lists(
    st.tuples(st.floats(0, 500), st.integers(1, 5000), st.integers(1, 500), st.integers(0, 2)), min_size=1, max_size=60
)


def make(values: list[tuple[float, int, int, int]]) -> Trace:
    """A trace over three models from rows in any order."""
    columns = [np.array(column) for column in zip(*values, strict=True)]
    return Trace.in_order(columns[0], columns[1], columns[2], columns[3], ("a", "b", "c"))


@given(rows, st.floats(4, 700))
@settings(max_examples=50, deadline=None)
def test_epochs_partition_the_trace(values: list[tuple[float, int, int, int]], epoch_s: float) -> None:
    """Every request is in exactly one epoch, at its own time within it."""
    trace = make(values)
    epochs = cut_epochs(trace, epoch_s)
    assert sum(len(epoch) for epoch in epochs) == len(trace)
    assert len(epochs[-1]) > 0
    starts = np.repeat(np.arange(len(epochs)) * epoch_s, [len(epoch) for epoch in epochs])
    times = np.concatenate([epoch.arrival_s for epoch in epochs]) + starts
    assert times == pytest.approx(trace.arrival_s, abs=1e-6)
    assert all(len(epoch) == 0 or 0 <= epoch.last_arrival_s <= epoch_s for epoch in epochs)


@given(rows, st.floats(4, 700), st.booleans())
@settings(max_examples=50, deadline=None)
def test_demand_counts_every_token(values: list[tuple[float, int, int, int]], epoch_s: float, mixed: bool) -> None:
    """Demand times epoch length is the tokens of the epoch, counted here with plain loops."""
    trace = make(values)
    demand = epoch_demand(trace, epoch_s, mixed=mixed)
    epochs = cut_epochs(trace, epoch_s)
    assert len(demand) == len(epochs)
    for number, epoch in enumerate(epochs):
        for column, key in enumerate(demand.keys):
            name, phase = key.split("/")
            lengths = epoch.input_tokens if phase == "prefill" else epoch.output_tokens
            tokens = sum(
                int(length) for length, model in zip(lengths, epoch.model, strict=True) if epoch.models[model] == name
            )
            assert demand.tokens_s[number, column] * epoch_s == pytest.approx(tokens)


@given(rows, st.integers(1, 30), st.floats(1, 60), st.floats(0.05, 1))
@settings(max_examples=50, deadline=None)
def test_demand_of_the_busiest_windows(
    values: list[tuple[float, int, int, int]], windows: int, window_s: float, quantile: float
) -> None:
    """So many of an epoch's windows need no more than its peak, and one fewer would be too few; counted with plain loops."""
    trace = make(values)
    demand = epoch_demand(trace, windows * window_s, peak=Peak(quantile, window_s))
    short = epoch_demand(trace, window_s)
    assert demand.keys == short.keys
    for number, needed in enumerate(demand.tokens_s):
        own = short.tokens_s[number * windows : (number + 1) * windows]
        for column, value in enumerate(needed):
            figures = sorted(own[:, column]) or [0.0]
            assert value in figures
            assert sum(figure <= value for figure in figures) >= quantile * (len(figures) - 1)
            # numpy counts the places between the smallest and the largest.
            assert figures.index(value) <= math.ceil(quantile * (len(figures) - 1))
    with pytest.raises(WorkloadError, match="longer than epochs"):
        epoch_demand(trace, 5.0, peak=Peak(window_s=6.0))
    with pytest.raises(WorkloadError, match="above 0 and at most 1"):
        Peak(1.5)


@given(rows, st.floats(0.01, 1000))
@settings(max_examples=50, deadline=None)
def test_scaling_reaches_the_rate(values: list[tuple[float, int, int, int]], rate_s: float) -> None:
    """After scaling, the rate is the one asked for and order and lengths are untouched."""
    trace = make(values)
    if not trace.rate_s > 1e-6:
        return
    scaled = scale_to_rate(trace, rate_s)
    assert scaled.rate_s == pytest.approx(rate_s, rel=1e-6)
    assert np.array_equal(scaled.input_tokens, trace.input_tokens)


@given(rows, st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_repeat(values: list[tuple[float, int, int, int]], times: int) -> None:
    """So many times the requests, at the same rate, each round like the first."""
    trace = make(values)
    longer = repeat(trace, times)
    assert len(longer) == times * len(trace)
    assert np.array_equal(np.bincount(longer.input_tokens), times * np.bincount(trace.input_tokens))
    if len(trace) > 1 and trace.rate_s > 1e-6 and trace.arrival_s[0] == 0:
        assert longer.rate_s == pytest.approx(trace.rate_s, rel=1e-6)


@given(rows)
@settings(max_examples=50, deadline=None)
def test_mix_and_only_model_are_inverse(values: list[tuple[float, int, int, int]]) -> None:
    """Taking a mixed trace apart gives the parts back."""
    trace = make(values)
    parts = {name: only_model(trace, name) for name in trace.models}
    again = mix(parts)
    assert np.array_equal(again.arrival_s, trace.arrival_s)
    for name, part in parts.items():
        assert np.array_equal(only_model(again, name).input_tokens, part.input_tokens)


def test_thin_and_assign_follow_their_shares() -> None:
    """Within five standard deviations of the binomial, by seed."""
    trace = Trace(np.arange(20_000.0), np.ones(20_000), np.ones(20_000))
    assert abs(len(thin(trace, 0.3, seed=1)) - 6000) < 5 * np.sqrt(20_000 * 0.21)
    assert np.array_equal(thin(trace, 0.3, seed=1).arrival_s, thin(trace, 0.3, seed=1).arrival_s)
    assert np.array_equal(thin(trace, 1.0).arrival_s, trace.arrival_s)
    shared = assign_models(trace, {"a": 8, "b": 2, "c": 0}, seed=1)
    counts = np.bincount(shared.model, minlength=3)
    assert abs(counts[0] - 16_000) < 5 * np.sqrt(20_000 * 0.16)
    assert counts[2] == 0


def test_imbalance_of_the_paper() -> None:
    """Section 5.5: Qwen3 32B alone in core, two models each in extended, receive 80 %."""
    core = {"qwen3-32b": 32.8, "gpt-oss-20b": 20.9, "phi4-14b": 14.7}
    large = request_shares(core, "large-heavy")
    assert large == pytest.approx({"qwen3-32b": 0.8, "gpt-oss-20b": 0.1, "phi4-14b": 0.1})
    small = request_shares(core, "small-heavy")
    assert small["phi4-14b"] == pytest.approx(0.8)
    extended = core | {"qwen3-235b": 235.1, "gpt-oss-120b": 116.8, "llama3-70b": 70.6}
    large = request_shares(extended, "large-heavy")
    assert large["qwen3-235b"] == large["gpt-oss-120b"] == pytest.approx(0.4)
    assert large["llama3-70b"] == pytest.approx(0.05)
    small = request_shares(extended, "small-heavy")
    assert small["phi4-14b"] == small["gpt-oss-20b"] == pytest.approx(0.4)
    assert request_shares({"a": 1}, "large-heavy") == {"a": 1.0}


@given(st.integers(1, 12), st.sampled_from(["balanced", "large-heavy", "small-heavy"]))
@settings(max_examples=50, deadline=None)
def test_shares_sum_to_one(count: int, imbalance: str) -> None:
    """No request is lost, whatever the number of models."""
    shares = request_shares({str(i): float(i) for i in range(count)}, imbalance)
    assert sum(shares.values()) == pytest.approx(1)
    assert len(shares) == count


def test_scenario_demand_gives_the_tokens_back() -> None:
    """Rate times mean length is the tokens/s of the trace."""
    trace = make([(0, 10, 4, 0), (5, 30, 6, 0), (9, 7, 1, 2)])
    found = scenario_demand(trace, 10.0)
    assert set(found) == {"a", "c"}
    assert found["a"]["requests_s"] * found["a"]["input_tokens"] == pytest.approx(4.0)


def test_refusals() -> None:
    """What makes no sense is said in one sentence."""
    trace = Trace([0.0, 1.0], [1, 1], [1, 1])  # type: ignore[arg-type]
    for call, words in (
        (lambda: scale_to_rate(trace, 0), "rate must be positive"),
        (lambda: scale_to_rate(trace.take(slice(0, 1)), 1), "no rate"),
        (lambda: cut(trace, 5, 2), "start < end"),
        (lambda: cut_epochs(trace, 0), "epoch length"),
        (lambda: cut_epochs(trace, 1e-9), "more than"),
        (lambda: thin(trace, 2), "keep"),
        (lambda: repeat(trace, 0), "1 or more"),
        (lambda: repeat(trace, 2, 0.5), "before its last arrival"),
        (lambda: mix({}), "nothing to mix"),
        (lambda: assign_models(trace, {"a": -1}), "shares"),
        (lambda: only_model(trace, "x"), "no model at all"),
        (lambda: request_shares({"a": 1}, "heavy"), "unknown imbalance"),
        (lambda: epoch_demand(trace), "names no model"),
        (lambda: epoch_demand(make([(0, 1, 1, 0)]), models=["a"]), "asks for b, c"),
    ):
        with pytest.raises(WorkloadError, match=words):
            call()
