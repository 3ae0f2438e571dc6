"""Request traces, generators and tables of availability, for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from rich.table import Table

from coralopt.catalog.types import NodeConfiguration
from coralopt.report.table import Column, make_table, numbers
from coralopt.types import Floats
from coralopt.workload import EpochAvailability, EpochDemand, Generator, PrefixHits, TraceStatistics
from coralopt.workload.traces.statistics import QUANTILES

#: Most epochs that a table shows.
SHOWN_EPOCHS = 24
#: Epochs that are columns of a table.
DEMAND_COLUMNS = 8


def generators_table(rows: Iterable[Mapping[str, object]]) -> Table:
    """The packaged generators, a row each."""
    columns: tuple[Column | str, ...] = (
        "name",
        Column("requests/s", "{:.4g}"),
        *numbers("{}", "input tokens", "output tokens"),
        *("arrivals", "fitted to", "licence"),
    )
    names = ("name", "rate_s", "input_tokens", "output_tokens")
    kinds = ("gamma renewal" if row["states"] == 1 else f"{row['states']}-state chain" for row in rows)
    return make_table(
        "Packaged generators; `coralopt workload show NAME` names the source",
        columns,
        [
            (*(row[name] for name in names), kind, row["from"], row["licence"])
            for row, kind in zip(rows, kinds, strict=True)
        ],
    )


def generator_tables(generator: Generator) -> list[Table]:
    """The states of a generator's arrivals, and its token lengths."""
    arrivals = generator.arrivals
    states = []
    for state in range(arrivals.states):
        leave = 1 - arrivals.transitions[state, state]
        stay = f"{1 / leave:.4g}" if leave > 1e-12 else "for ever"
        states.append((state, arrivals.stationary[state], arrivals.rates[state], stay))
    sides = (("input", generator.lengths.input_tokens), ("output", generator.lengths.output_tokens))
    lengths = [
        (side, mean, *generator.lengths.quantile(values, np.asarray(QUANTILES)))
        for (side, values), mean in zip(sides, generator.lengths.means(), strict=True)
    ]
    return [
        make_table(
            f"States; {arrivals.window:.3g} requests a step, own intervals with CV {arrivals.interval_cv:.3f}",
            [
                Column("state", "{}"),
                *numbers("{:.3f}", "share of time", "rate / mean rate"),
                Column("mean stay (steps)", "{}"),
            ],
            states,
        ),
        make_table(
            "Token lengths",
            [Column("side", "{}"), Column("mean", "{:.1f}"), *numbers("{}", *(f"p{100 * p:g}" for p in QUANTILES))],
            lengths,
        ),
    ]


def statistics_table(statistics: TraceStatistics, title: str, generated: TraceStatistics | None = None) -> Table:
    """A trace in figures; beside it one that a generator made."""
    figures = [_figures(item) for item in (statistics, generated) if item is not None]
    heads = ("trace", "generated, seed 0")[: len(figures)]
    rows = [(name, *(item.get(name) for item in figures)) for name in figures[0]]
    return make_table(title, ["statistic", *numbers("{}", *heads)], rows)


def _figures(statistics: TraceStatistics) -> dict[str, str]:
    lines = {
        "requests": f"{statistics.requests:,}",
        "span, s": f"{statistics.span_s:,.6g}",
        "requests/s": f"{statistics.rate_s:.4g}",
        "CV of intervals (Poisson: 1)": f"{statistics.interval_cv:.3f}",
    }
    for text, by_window in (
        ("CV of requests in {:g} s", statistics.count_cv),
        ("variance / mean of requests in {:g} s (Poisson: 1)", statistics.dispersion),
        ("CV of input tokens in {:g} s", statistics.token_cv),
    ):
        lines |= {text.format(window): f"{value:.3f}" for window, value in by_window.items()}
    for side, lengths in (("input", statistics.input_tokens), ("output", statistics.output_tokens)):
        lines[f"{side} tokens, mean"] = f"{lengths.mean:.1f}"
        quantiles = (f"p{100 * p:g} {value:.0f}" for p, value in lengths.quantiles.items())
        lines[f"{side} tokens, quantiles"] = ", ".join((*quantiles, f"max {lengths.largest}"))
    lines["rank correlation of input and output"] = f"{statistics.rank_correlation:.3f}"
    if statistics.tick_s is not None:
        lines["clock of the log, s"] = f"{statistics.tick_s:g}"
    return lines


def prefix_hits_table(by_cache: Sequence[PrefixHits], title: str) -> Table:
    """What prompts find in caches of several sizes."""
    columns: tuple[Column | str, ...] = (
        "cache, tokens",
        Column("prefix_hit", "{:.4f}"),
        Column("requests that find some", "{:.1%}"),
    )
    rows = [
        (
            "any number" if item.cache_tokens is None else f"{item.cache_tokens:,}",
            item.prefix_hit,
            item.hit_requests / item.requests,
        )
        for item in by_cache
    ]
    return make_table(title, columns, rows)


def models_table(demand: Mapping[str, Mapping[str, float]]) -> Table:
    """Rate and mean lengths by model, in the words of a scenario's demand."""
    return make_table(
        "By model, as in a scenario's demand",
        ["model", *numbers("{}", "requests_s", "input_tokens", "output_tokens")],
        [
            (name or "(none)", *(f"{value:.4f}" if value < 100 else f"{value:.1f}" for value in figures.values()))
            for name, figures in demand.items()
        ],
    )


def demand_by_epoch_table(demand: EpochDemand, epoch_s: float) -> Table:
    """Tokens/s of each model phase in the first epochs, and over all of them."""
    shown = min(len(demand), DEMAND_COLUMNS)
    heads = (*map(str, range(shown)), "lowest", "mean", "highest")
    rows = [
        (key, *values[:shown], values.min(), values.mean(), values.max())
        for key, values in zip(demand.keys, demand.tokens_s.T, strict=True)
    ]
    return make_table(
        f"Demand in tokens/s, epochs of {epoch_s:g} s", ["model phase", *numbers("{:,.0f}", *heads)], rows
    )


def availability_table(
    offered: EpochAvailability, worth: Floats, unit: str, required: float, nodes: Mapping[str, NodeConfiguration]
) -> Table:
    """What a pool offers in its first epochs: its worth, and GPUs by type.

    Args:
        offered: Nodes by epoch, region and configuration.
        worth: float64 (E,), what they are worth in each epoch, in ``unit``.
        unit: What is counted.
        required: How much of it is needed.
        nodes: The configurations by name.
    """
    by_gpu: dict[str, list[int]] = {}
    for position, name in enumerate(offered.configurations):
        by_gpu.setdefault(nodes[name].gpu.name, []).append(position)
    gpus = offered.count.sum(axis=1) * np.array([nodes[name].count for name in offered.configurations])
    rows = [
        (
            epoch,
            worth[epoch],
            100 * (worth[epoch] / required - 1),
            *(gpus[epoch, positions].sum() for positions in by_gpu.values()),
        )
        for epoch in range(min(len(worth), SHOWN_EPOCHS))
    ]
    columns = (
        Column("epoch", "{}"),
        Column(f"{unit} available", "{:,.6g}"),
        Column("over the estimate", "{:+.0f} %"),
        *numbers("{:,}", *(f"{gpu} GPUs" for gpu in by_gpu)),
    )
    return make_table(f"Nodes of each configuration over all regions; {required:,.6g} {unit} needed", columns, rows)


def free_share_table(rows: Sequence[Mapping[str, object]]) -> Table:
    """Mean and deviation of the free share of each GPU type: a table's, and those of generated ones."""
    return make_table(
        "Free share: table, and 10 generated ones of its length",
        ["GPU", *numbers("{:.3f}", "mean", "generated", "std", "generated")],
        [tuple(row.values()) for row in rows],
    )
