"""Packaged generators against the traces they stand for; both must fail when they drift apart.

The figures of the real traces were computed once from the whole public files (sources in the generators) by another
program; where the files themselves are at hand, in ``../shared/data`` or below ``CORALOPT_TRACE_DATA``, the generators are
compared with them, and fitted again.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import coralopt.workload
from coralopt.errors import WorkloadError
from coralopt.scenario import load_scenario, scenario_from_mapping
from coralopt.workload import (
    ArrivalOptions,
    Generator,
    TraceStatistics,
    describe,
    epoch_demand,
    fit_generator,
    generate_for_scenario,
    load_generator,
    model_loads,
    packaged_generators,
    read_trace,
    save_generator,
)
from coralopt.workload.generation.arrivals import ArrivalModel
from coralopt.workload.generation.generator import generator_document

DATA = Path(os.environ.get("CORALOPT_TRACE_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
SEEDS = 9
EXACT = ArrivalOptions(exact_rate=True)

#: Whole public files: Azure LLM inference 2023 (CC-BY-4.0), Mooncake FAST'25 (Apache-2.0). Computed by other code.
REAL: dict[str, dict[str, float]] = {
    "azure-code-2023": {
        "rate": 2.5667, "in_mean": 2047.8, "in_p50": 1469.0, "in_p90": 5187.6, "in_p95": 7303.3, "in_p99": 7436.0,
        "out_mean": 27.9, "out_p50": 13.0, "out_p90": 55.0, "out_p95": 90.0, "out_p99": 251.46,
        "interval_cv": 13.1513, "dispersion_1": 13.1864, "dispersion_10": 71.6415, "dispersion_60": 163.9647,
    },
    "azure-conv-2023": {
        "rate": 5.5304, "in_mean": 1154.7, "in_p50": 1020.0, "in_p90": 2734.5, "in_p95": 4083.0, "in_p99": 4142.0,
        "out_mean": 211.1, "out_p50": 129.0, "out_p90": 424.0, "out_p95": 451.0, "out_p99": 601.0,
        "interval_cv": 1.0942, "dispersion_1": 1.3851, "dispersion_10": 3.857, "dispersion_60": 16.1283,
    },
    "mooncake-conversation": {
        "rate": 3.4015, "in_mean": 12035.1, "in_p50": 6909.0, "in_p90": 27367.0, "in_p95": 39550.5, "in_p99": 85400.4,
        "out_mean": 342.6, "out_p50": 350.0, "out_p90": 597.0, "out_p95": 698.0, "out_p99": 1118.5,
        "interval_cv": 3.0337, "dispersion_1": 7.8976, "dispersion_10": 2.0988, "dispersion_60": 2.9521,
    },
    "mooncake-synthetic": {
        "rate": 3.9069, "in_mean": 15325.5, "in_p50": 11587.0, "in_p90": 38611.2, "in_p95": 48904.6, "in_p99": 66456.2,
        "out_mean": 149.1, "out_p50": 69.0, "out_p90": 389.0, "out_p95": 519.0, "out_p99": 768.1,
        "interval_cv": 1.0113, "dispersion_1": 1.0889, "dispersion_10": 1.1778, "dispersion_60": 1.1916,
    },
}  # fmt: skip
SPAN_S = {
    "azure-code-2023": 3435.9,
    "azure-conv-2023": 3501.7,
    "mooncake-conversation": 3537.0,
    "mooncake-synthetic": 1022.0,
}
#: Largest |ln(generated / real)|.
LIMITS = {"rate": 0.10, "mean": 0.06, "quantile": 0.10, "interval_cv": 0.20, "dispersion": 0.20}


def figures(item: TraceStatistics) -> dict[str, float]:
    """The figures of ``REAL`` for one trace."""
    found = {"rate": item.rate_s, "interval_cv": item.interval_cv}
    found |= {f"dispersion_{window:g}": value for window, value in item.dispersion.items()}
    for side, lengths in (("in", item.input_tokens), ("out", item.output_tokens)):
        found[f"{side}_mean"] = lengths.mean
        found |= {f"{side}_p{100 * p:g}": value for p, value in lengths.quantiles.items()}
    return found


def drift(generator: Generator, real: dict[str, float], span_s: float) -> list[str]:
    """Figures in which generated traces are further from the real one than the limits allow.

    The variance of counts is itself uncertain in one trace: 17 windows of 60 s say little. So its limit grows by the
    standard deviation that it has between generated traces of the same length.
    """
    drawn = [figures(describe(generator.sample(duration_s=span_s, seed=seed))) for seed in range(SEEDS)]
    found = []
    for name, value in real.items():
        logs = np.log([item[name] for item in drawn])
        kind = "quantile" if "_p" in name else name.split("_")[0] if name.startswith("disp") else name
        limit = LIMITS["mean" if name.endswith("mean") else kind]
        if kind == "dispersion":
            limit += float(logs.std(ddof=1))
        if abs(float(np.median(logs)) - np.log(value)) > limit:
            found.append(f"{name}: generated {np.exp(np.median(logs)):.4g}, real {value:.4g}, limit {limit:.2f}")
    return found


@pytest.mark.parametrize("name", list(REAL))
def test_generators_match_the_published_traces(name: str) -> None:
    """Lengths and burstiness of what ships are those of the real traces."""
    assert drift(load_generator(name), REAL[name], SPAN_S[name]) == []


@pytest.mark.parametrize("what", ["rate", "lengths", "bursts"])
def test_drift_is_noticed(what: str) -> None:
    """The comparison above fails for a generator that is off: 25 % in rate, 15 % in lengths, or Poisson arrivals."""
    generator = load_generator("azure-code-2023")
    if what == "rate":
        generator = replace(generator, rate_s=generator.rate_s * 1.25)
    elif what == "lengths":
        generator = generator.with_mean_lengths(2047.8 * 1.15, 27.9)
    else:
        generator = replace(
            generator,
            arrivals=ArrivalModel(1.0, 1.0, np.ones(1), np.ones((1, 1))),
            lengths=replace(generator.lengths, copula=generator.lengths.copula[2:3]),
        )
    assert drift(generator, REAL["azure-code-2023"], SPAN_S["azure-code-2023"])


@pytest.mark.parametrize("name", list(REAL))
def test_generators_match_the_files(name: str) -> None:
    """The same against the files, read with this project's own reader; and a new fit gives the packaged one."""
    path = DATA / "traces" / f"{name.replace('-', '_')}.csv.gz"
    if not path.is_file():
        pytest.skip(f"the trace is not at hand: {path}")
    trace = read_trace(path, sort=True)
    statistics = describe(trace)
    own = {key: value for key, value in figures(statistics).items() if key in REAL[name]}
    assert own == pytest.approx(REAL[name], rel=0.03)
    assert drift(load_generator(name), own, statistics.span_s) == []
    fresh = generator_document(fit_generator(trace, name))
    packaged = generator_document(load_generator(name))
    assert fresh["lengths"]["input_tokens"] == packaged["lengths"]["input_tokens"]
    assert fresh["arrivals"]["rates"] == pytest.approx(packaged["arrivals"]["rates"], rel=1e-3, abs=1e-6)


def test_load_and_lengths_move_together() -> None:
    """Azure conversation: in busy minutes answers are shorter (correlation -0.90 in the trace); samples keep that."""
    trace = load_generator("azure-conv-2023").sample(duration_s=4 * 3600, seed=1)
    minute = (trace.arrival_s // 60).astype(int)
    requests = np.bincount(minute)
    mean = np.bincount(minute, weights=trace.output_tokens) / requests
    assert np.corrcoef(requests, mean)[0, 1] < -0.8


def test_burstgpt_matches_its_published_figures() -> None:
    """Quantiles and means of the first 59,999 requests; tokens a minute: CV 1.318 and 38 % of minutes idle."""
    generator = load_generator("burstgpt")
    trace = generator.sample(duration_s=28 * 86_400, seed=0)
    for tokens, mean, median, p90, p99 in (
        (trace.input_tokens, 374.06, 74, 1291, 3023),
        (trace.output_tokens, 122.32, 14, 401, 757),
    ):
        assert tokens.mean() == pytest.approx(mean, rel=0.03)
        assert np.quantile(tokens, [0.5, 0.9, 0.99]) == pytest.approx([median, p90, p99], rel=0.07)
    minutes = np.bincount((trace.arrival_s // 60).astype(int), trace.input_tokens + trace.output_tokens, 28 * 1440)
    assert minutes.std() / minutes.mean() == pytest.approx(1.318, rel=0.25)
    assert np.mean(minutes == 0) == pytest.approx(0.383, abs=0.08)


@pytest.mark.parametrize(
    ("name", "rate", "given", "made"), [("azure-code-2024", 27.8, 2511, 23), ("azure-conv-2024", 45.1, 1632, 106)]
)
def test_azure_2024_matches_its_published_figures(name: str, rate: float, given: float, made: float) -> None:
    """Means, rate, and the ratio of median to mean interval that the gamma shape was read from."""
    trace = load_generator(name).sample(duration_s=1200, seed=0)
    assert trace.rate_s == pytest.approx(rate, rel=0.1)
    assert trace.input_tokens.mean() == pytest.approx(given, rel=0.03)
    assert trace.output_tokens.mean() == pytest.approx(made, rel=0.05)
    intervals = np.diff(trace.arrival_s)
    published = {"azure-code-2024": 2.34 / 19.06, "azure-conv-2024": 1.37 / 15.33}[name]
    assert np.median(intervals) / intervals.mean() == pytest.approx(published, rel=0.15)


def test_every_packaged_generator_names_source_and_licence() -> None:
    """Figures without a source may not ship."""
    assert len(packaged_generators()) >= 7
    for name in packaged_generators():
        generator = load_generator(name)
        assert generator.source
        assert generator.licence
        assert generator.name == name


def test_seed_rate_and_exact_rate() -> None:
    """Equal seeds give equal traces; exact_rate gives exactly the requests asked for, inside the duration."""
    generator = load_generator("azure-code-2023")
    one, two = generator.sample(10, 300, 5), generator.sample(10, 300, 5)
    assert np.array_equal(one.arrival_s, two.arrival_s)
    assert np.array_equal(one.output_tokens, two.output_tokens)
    assert not np.array_equal(one.arrival_s, generator.sample(10, 300, 6).arrival_s)
    for seed in range(5):
        exact = generator.sample(10, 300, seed, options=EXACT)
        assert len(exact) == 3000
        assert exact.last_arrival_s < 300
    rates = [len(generator.sample(10, 3000, seed)) / 3000 for seed in range(60)]
    assert np.mean(rates) == pytest.approx(10, abs=5 * np.std(rates) / np.sqrt(60))


def test_generator_files_come_back(tmp_path: Path) -> None:
    """A saved generator makes the same traces."""
    generator = load_generator("mooncake-conversation")
    save_generator(generator, tmp_path / "g.json")
    again = load_generator(tmp_path / "g.json")
    assert np.array_equal(again.sample(3, 100, 1).arrival_s, generator.sample(3, 100, 1).arrival_s)
    # Packaged documents are what saving writes: seven digits, whole numbers without a point, numbers on one line.
    packaged = Path(coralopt.workload.__file__).parent / "data" / "mooncake-conversation.generator.json"
    assert (tmp_path / "g.json").read_bytes() == packaged.read_bytes()


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("format",), "other", "format: must be 'coralopt-generator', not 'other'"),
        (("version",), 2, "version: must be 1, not 2"),
        (("arrivals", "transitions"), [[1], [0, 1]], "arrivals.transitions: rows must be of one length"),
        (("arrivals", "rates"), [1] * 65, "arrivals.rates: List should have at most 64 items"),
        (("lengths", "input_tokens"), [0.5], "lengths.input_tokens.0: Input should be greater than or equal to 1"),
        (("rate_s",), -1, "rate_s"),
        (("extra",), 1, "extra"),
        (("arrivals", "rates"), [1, 2, 3], "arrivals.transitions: must be 3 rows"),
        (("arrivals", "transitions"), [[0.5, 0.4], [0.5, 0.5]], "every row must sum to 1"),
        (("arrivals", "shape"), [1, 2], "24 or 168"),
        (("lengths", "probabilities"), [0, 0.5], "must rise from 0 to 1"),
        (("lengths", "input_tokens"), [5, 4], "quantiles for"),
        (("lengths", "copula"), [[[1]]], "one a state"),
    ],
)
def test_broken_generator_files(tmp_path: Path, path: tuple[str, ...], value: object, words: str) -> None:
    """A doctored file is refused with the place that is wrong."""
    document = generator_document(load_generator("mooncake-conversation"))
    target = document
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = value
    (tmp_path / "g.json").write_text(json.dumps(document))
    with pytest.raises(WorkloadError) as caught:
        load_generator(tmp_path / "g.json")
    assert words in str(caught.value)


def test_scenario_loads_have_the_scenario_demand() -> None:
    """Rate times mean length of each load is the scenario's demand in tokens/s, phase by phase."""
    scenario = load_scenario("core")
    loads = {load.name: load for load in model_loads(scenario)}
    for item in scenario.model_phases:
        load = loads[item.model.name]
        given, made = load.generator.lengths.means()
        mean = given if item.phase == "prefill" else made
        assert load.rate_s * mean == pytest.approx(item.demand_tokens_s, rel=1e-6)


def test_scenario_loads_of_token_rates() -> None:
    """Token rates that imply two request rates are both met."""
    document = {
        "models": {
            "batch": {
                "model": "phi4-14b",
                "slo": {"prefill_ms": 5000, "decode_ms": 200},
                "demand": {
                    "prefill_tokens_s": 20000, "decode_tokens_s": 900, "input_tokens": 4000, "output_tokens": 600,
                },
            }
        },
        "pool": {"regions": {"us-east-2": {"available": 8, "configurations": ["1xL40S"]}}},
    }  # fmt: skip
    (load,) = model_loads(scenario_from_mapping(document))
    assert load.rate_s == pytest.approx(5)
    assert load.generator.lengths.means() == pytest.approx((4000, 180))


def test_scenario_trace_and_imbalance() -> None:
    """The mixed trace asks for every model at its share, and its mean demand is near the scenario's."""
    scenario = load_scenario("core")
    trace = generate_for_scenario(scenario, 1800, 1, imbalance="large-heavy", options=EXACT)
    counts = np.bincount(trace.model) / 1800
    assert dict(zip(trace.models, counts, strict=True)) == pytest.approx(
        {"qwen3-32b": 24, "gpt-oss-20b": 3, "phi4-14b": 3}
    )
    even = generate_for_scenario(scenario, 1800, 1, options=EXACT)
    demand = epoch_demand(even, 1800.0, epochs=1)
    for item in scenario.model_phases:
        assert demand.tokens_s[0, demand.keys.index(item.key)] == pytest.approx(item.demand_tokens_s, rel=0.15)
    with pytest.raises(WorkloadError, match="no model nosuch"):
        generate_for_scenario(scenario, 10, 1, generators={"nosuch": "burstgpt"})
