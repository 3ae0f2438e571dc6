"""Fit the packaged generators and show them beside the traces.

    python benchmarks/workload_fit.py --data FOLDER            # table: trace against 20 generated ones
    python benchmarks/workload_fit.py --data FOLDER --write    # and write coralopt/workload/data

FOLDER holds ``traces/`` and ``availability/`` as described in docs/workload.md. Without it nothing can be fitted;
coralopt itself needs none of it. Same input, same bytes.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.special import gammaln, logsumexp

from coralopt.types import Floats
from coralopt.workload import Generator, describe, fit_generator, read_hourly, read_trace, save_generator
from coralopt.workload.generation.arrivals import ArrivalModel, stationary_law
from coralopt.workload.generation.kernels import expectation
from coralopt.workload.generation.lengths import LengthModel, independent_lengths
from coralopt.workload.series.availability_model import fit_availability, save_availability_model
from coralopt.workload.traces.statistics import TraceStatistics

PACKAGE_DATA = Path(__file__).resolve().parents[1] / "coralopt" / "workload" / "data"
SPLITWISE = "Patel et al., Splitwise, ISCA 2024"
AZURE_2023 = "Azure LLM inference trace 2023, {} (AzurePublicDataset @ b469a113ce, whole file); " + SPLITWISE
MOONCAKE = "Mooncake FAST'25 release, {} (kvcache-ai/Mooncake @ 3b5a594133, whole file); Qin et al., FAST 2025"
GFS = (
    "hourly GPU demand of the GFS cluster trace (alibaba/clusterdata @ 7a6c496e4f, cluster-trace-v2026-spot-gpu; hourly "
    "table of sultanul-ovi/GPU-Cluster-Spot-Resource-Dataset-Analysis @ 3a727e58ba); 4,416 hours, six GPU types"
)
TRACES = {
    "azure-code-2023": ("azure_code_2023", AZURE_2023.format("code"), "CC-BY-4.0", ""),
    "azure-conv-2023": ("azure_conv_2023", AZURE_2023.format("conversation"), "CC-BY-4.0", ""),
    "mooncake-conversation": (
        "mooncake_conversation",
        MOONCAKE.format("conversation_trace.jsonl"),
        "Apache-2.0",
        "The log has one stamp every 3 s; generated arrivals keep it unless told otherwise.",
    ),
    "mooncake-synthetic": (
        "mooncake_synthetic",
        MOONCAKE.format("synthetic_trace.jsonl"),
        "Apache-2.0",
        "Arrivals were made by Mooncake's authors, not observed.",
    ),
}
SAMPLES = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with traces/ and availability/")
    parser.add_argument("--write", action="store_true", help="write coralopt/workload/data")
    arguments = parser.parse_args()
    generators = []
    for name, (file, source, licence, notes) in TRACES.items():
        trace = read_trace(arguments.data / "traces" / f"{file}.csv.gz", sort=True)
        generator = fit_generator(trace, name, source=source, licence=licence, notes=notes)
        generators.append(generator)
        compare(name, describe(trace), generator)
    generators += from_published_figures(arguments.data / "traces")
    for generator in generators:
        Console().print(
            f"{generator.name}: mean lengths {np.round(generator.lengths.means(), 1)}; {generator.arrivals.why}"
        )
    hourly = read_hourly(arguments.data / "availability" / "gfs_hourly_by_gpu.csv.gz")
    licence = "hourly table MIT; the trace behind it has no licence file (its README: research or study purpose)"
    availability = fit_availability(hourly, "gfs", source=GFS, licence=licence)
    if arguments.write:
        PACKAGE_DATA.mkdir(exist_ok=True)
        for generator in generators:
            save_generator(generator, PACKAGE_DATA / f"{generator.name}.generator.json")
        save_availability_model(availability, PACKAGE_DATA / "gfs.availability.json")
        Console().print(f"written to {PACKAGE_DATA}")


def compare(name: str, real: TraceStatistics, generator: Generator) -> None:
    """One table: the trace, the median and the range of generated ones as long as it."""
    drawn = [describe(generator.sample(duration_s=real.span_s, seed=seed)) for seed in range(SAMPLES)]
    table = Table(title=f"{name}: trace against {SAMPLES} generated ones of the same length")
    for head in ("statistic", "trace", "median", "lowest", "highest"):
        table.add_column(head, justify="left" if head == "statistic" else "right")
    rows = [figures(item) for item in drawn]
    for key, value in figures(real).items():
        values = [row[key] for row in rows]
        table.add_row(key, *(f"{v:.4g}" for v in (value, float(np.median(values)), min(values), max(values))))
    Console(width=100).print(table)


def figures(item: TraceStatistics) -> dict[str, float]:
    """The statistics of the table by name."""
    named = {"requests/s": item.rate_s, "interval CV": item.interval_cv, "rank correlation": item.rank_correlation}
    named |= {f"dispersion {w:g} s": value for w, value in item.dispersion.items()}
    named |= {f"token CV {w:g} s": value for w, value in item.token_cv.items()}
    for side, lengths in (("input", item.input_tokens), ("output", item.output_tokens)):
        named |= {
            f"{side} mean": lengths.mean,
            f"{side} p50": lengths.quantiles[0.5],
            f"{side} p99": lengths.quantiles[0.99],
        }
    return named


def from_published_figures(folder: Path) -> list[Generator]:
    """Generators of data sets of which only figures are at hand, not the requests."""
    published = json.loads((folder / "published_stats_2024_burstgpt.json").read_text())
    quantiles = published["published_quantiles"]
    generators = [burstgpt(folder, published, quantiles["burstgpt1_first_59999"])]
    for kind in ("code", "conv"):
        figures_2024 = quantiles[f"azure_{kind}_2024"]
        cv = figures_2024["gamma_shape_from_median_over_mean"] ** -0.5
        generators.append(
            Generator(
                name=f"azure-{kind}-2024",
                source=f"published quantiles of the Azure LLM inference trace 2024, {kind}, "
                f"{figures_2024['rows']:,} requests in a week; Stojkovic et al., DynamoLLM, HPCA 2025",
                licence="CC-BY-4.0",
                notes="Made from published figures, not from requests: mean and a few quantiles of lengths (log-linear "
                "between), mean and median interval on a weekday. The dependence of lengths, the daily cycle (weekday "
                f"peak to trough {figures_2024['weekday_peak_to_trough']:g}) and longer bursts are missing.",
                rate_s=figures_2024["rate_rps"],
                arrivals=ArrivalModel(
                    cv,
                    1.0,
                    np.ones(1),
                    np.ones((1, 1)),
                    why="gamma renewal: its shape follows from the published ratio of median to mean interval",
                ),
                lengths=published_lengths(figures_2024["input"], figures_2024["output"], 1),
                fitted_to={"requests": figures_2024["rows"], "published": figures_2024},
            )
        )
    return generators


def burstgpt(folder: Path, published: dict[str, Any], lengths: dict[str, Any]) -> Generator:
    """BurstGPT: lengths from published quantiles, arrivals from the tokens of each minute of its first week."""
    tokens = np.zeros(7 * 24 * 60)
    with gzip.open(folder / "burstgpt1_week1_minute_tokens.csv.gz", "rt") as text:
        for row in csv.DictReader(text):
            if int(row["minute"]) < len(tokens):
                tokens[int(row["minute"])] = float(row["total_tokens"])
    with (folder / "burstgpt1_daily.csv").open() as text:
        week = list(csv.DictReader(text))[:7]
    requests = sum(int(day["req"]) for day in week)
    mean_length = sum(int(day["tok"]) for day in week) / requests
    joint = published_lengths(lengths["input"], lengths["output"], 1)
    prompt, answer = joint.sample(np.zeros(200_000, dtype=np.int64), np.random.default_rng(0))
    length_cv = float(np.std(prompt + answer) / np.mean(prompt + answer))
    counts, transitions, criteria = fit_compound_chain(tokens, mean_length, length_cv)
    window = float(stationary_law(transitions) @ counts)
    states = len(counts)
    why = (
        f"{states}-state chain over {len(tokens):,} minutes, tokens compound Poisson with gamma lengths (mean "
        f"{mean_length:.1f}, CV {length_cv:.2f}) in each state; least BIC of 1 to {max(criteria)} states"
    )
    return Generator(
        name="burstgpt",
        source="published figures of BurstGPT: quantiles of the first 59,999 requests, tokens of each minute of the first "
        "week, requests a day; Wang et al., BurstGPT, KDD 2025 (HPMLL/BurstGPT)",
        licence="CC-BY-4.0",
        notes="Made from published figures, not from requests: mean and a few quantiles of lengths (log-linear between); "
        "the rate a minute is inferred from its tokens. The dependence of lengths and all below one minute are missing; "
        "the daily cycle is part of the chain, so it shrinks with the clock when the rate is raised.",
        rate_s=requests / (7 * 86400),
        arrivals=ArrivalModel(1.0, window, counts / window, transitions, why=why),
        lengths=published_lengths(lengths["input"], lengths["output"], states),
        fitted_to={
            "requests": requests,
            "rate_s": requests / (7 * 86400),
            "minute_token_cv": float(tokens.std() / tokens.mean()),
            "minute_idle_share": float(np.mean(tokens == 0)),
            "published": lengths,
        },
    )


def fit_compound_chain(tokens: Floats, mean_length: float, length_cv: float) -> tuple[Floats, Floats, dict[int, float]]:
    """Hidden chain over tokens a minute: a Poisson number of requests with gamma lengths in each state."""
    shape = length_cv**-2
    most = int(3 * tokens.max() / mean_length) + 20
    number = np.arange(most + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Density of the sum of n lengths at the tokens seen; no request makes no token, and only that.
        size = number[1:] * shape
        logs = (size - 1) * np.log(tokens[:, None]) - tokens[:, None] * shape / mean_length
        logs = logs - gammaln(size) + size * np.log(shape / mean_length)
    idle = tokens == 0
    table = np.full((len(tokens), most + 1), -np.inf)
    table[~idle, 1:] = logs[~idle]
    table[idle, 0] = 0.0
    table -= gammaln(number + 1)
    best: tuple[float, Floats, Floats] | None = None
    criteria = {}
    for states in (1, 2, 3, 4, 5, 6, 7, 8):
        rates = np.quantile(tokens / mean_length, (np.arange(states) + 0.5) / states) + 0.05 * (1 + np.arange(states))
        transitions = np.full((states, states), 0.1 / max(1, states - 1))
        np.fill_diagonal(transitions, 0.9 if states > 1 else 1.0)
        start, last = np.full(states, 1 / states), -np.inf
        for _ in range(60):
            density, expected = np.empty((len(tokens), states)), np.empty((len(tokens), states))
            for state in range(states):
                terms = table + number * np.log(rates[state])
                total = logsumexp(terms, axis=1)
                density[:, state] = total - rates[state]
                expected[:, state] = np.exp(terms - total[:, None]) @ number
            posterior, pairs, likelihood = expectation(density, start, transitions)
            start = posterior[0]
            rates = np.maximum((posterior * expected).sum(axis=0) / posterior.sum(axis=0), 1e-6)
            pairs += 1e-3 / states
            transitions = pairs / pairs.sum(axis=1, keepdims=True)
            if likelihood - last < 1e-6 * abs(likelihood):
                break
            last = likelihood
        criteria[states] = float(-2 * likelihood + states * states * np.log(len(tokens)))
        if best is None or criteria[states] < best[0]:
            order = np.argsort(rates)
            best = (criteria[states], rates[order], transitions[np.ix_(order, order)])
        elif states > 2 and criteria[states] > criteria[states - 1] > best[0]:
            break
    assert best is not None
    return best[1], best[2], criteria


def published_lengths(inputs: dict[str, Any], outputs: dict[str, Any], states: int) -> LengthModel:
    """Lengths from quantiles and means; both sides on one grid of probabilities."""
    curves = [published_quantiles(side) for side in (inputs, outputs)]
    grid = np.unique(np.concatenate([points for points, _ in curves]))
    values = [np.exp(np.interp(grid, points, np.log(tokens))) for points, tokens in curves]
    return independent_lengths(grid, values[0], values[1], states)


def published_quantiles(side: dict[str, Any]) -> tuple[Floats, Floats]:
    """Quantiles that pass through the published ones and have the published mean.

    The free number is the shortest length. Where even 1 token leaves the mean too high, the 99.9 % quantile is put a third
    of the way (in logarithms) from the 99 % quantile to the maximum, since the longest of millions of requests is far
    beyond a straight line, and the 70 % quantile is free; if that is not enough, the 99.9 % quantile too.
    """
    known = {float(p): float(v) for p, v in side["q"].items()} | {1.0: float(side["max"])}

    def mean(extra: dict[float, float]) -> float:
        points = dict(sorted((known | extra).items()))
        p, v = np.array(list(points)), np.array(list(points.values()))
        return independent_lengths(p, v, v, 1).means()[0]

    def solve(at: float, low: float, high: float, fixed: dict[float, float]) -> float:
        for _ in range(200):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if mean(fixed | {at: middle}) < side["mean"] else (low, middle)
        return high

    extra = {0.0: solve(0.0, 1.0, known[0.5], {})}
    if abs(mean(extra) / side["mean"] - 1) > 1e-3:
        extra = {0.0: 1.0, 0.999: (known[0.99] ** 2 * known[1.0]) ** (1 / 3)}
        extra[0.7] = solve(0.7, known[0.5], known[0.9], extra)
    if abs(mean(extra) / side["mean"] - 1) > 1e-3:
        extra[0.999] = solve(0.999, known[0.99], known[1.0], extra)
    if abs(mean(extra) / side["mean"] - 1) > 1e-3:
        raise SystemExit(f"no quantile function through {side} has its mean")
    points = dict(sorted((known | extra).items()))
    return np.array(list(points)), np.array(list(points.values()))


if __name__ == "__main__":
    main()
