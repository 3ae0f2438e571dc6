"""``coralopt workload``: request traces, generators, and tables of demand and availability per epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from coralopt.cli.console import JsonFlag, ScenarioArgument, print_json, print_rich, say
from coralopt.errors import WorkloadError

app = typer.Typer(no_args_is_help=True, help="Request traces, generators, demand and availability per epoch.")

TraceArgument = Annotated[
    Path,
    typer.Argument(metavar="TRACE", help="Azure, BurstGPT, Mooncake or plain trace; CSV, JSON lines, Parquet, .gz."),
]
OutputOption = Annotated[
    Path, typer.Option("--output", "-o", help="Write here; .parquet and .gz are understood. The folder is made.")
]
SortFlag = Annotated[bool, typer.Option("--sort", help="Sort a plain trace that is out of order.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Equal seeds give equal results.")]
DurationOption = Annotated[float, typer.Option(help="Length of the trace, s.")]
StartHourOption = Annotated[float, typer.Option(help="Hour of the day at time 0, for a generator with a daily shape.")]
TickFlag = Annotated[
    bool, typer.Option("--tick/--no-tick", help="Keep the clock of the fitted log, such as one stamp every 3 s.")
]
ExactFlag = Annotated[
    bool,
    typer.Option("--exact-rate", help="Exactly rate x duration requests; a bursty trace's rate is random otherwise."),
]


@app.command("list")
def list_generators(json_output: JsonFlag = False) -> None:
    """List the packaged generators."""
    from rich.table import Table

    from coralopt.workload import load_generator, packaged_generators

    generators = [load_generator(name) for name in packaged_generators()]
    rows = []
    for generator in generators:
        given, made = generator.lengths.means()
        rows.append(
            {
                "name": generator.name,
                "rate_s": generator.rate_s,
                "input_tokens": round(given, 1),
                "output_tokens": round(made, 1),
                "states": generator.arrivals.states,
                "interval_cv": generator.arrivals.interval_cv,
                "from": "requests" if "interval_cv" in generator.fitted_to else "published figures",
                "licence": generator.licence,
            }
        )
    if json_output:
        print_json(rows)
        return
    table = Table(title="Packaged generators; `coralopt workload show NAME` names the source")
    heads = ("name", "requests/s", "input tokens", "output tokens", "arrivals", "fitted to", "licence")
    for head in heads:
        table.add_column(head, justify="right" if "s/s" in head or "tokens" in head else "left")
    for row in rows:
        kind = "gamma renewal" if row["states"] == 1 else f"{row['states']}-state chain"
        figures = (f"{row['rate_s']:.4g}", f"{row['input_tokens']}", f"{row['output_tokens']}")
        table.add_row(str(row["name"]), *figures, kind, str(row["from"]), str(row["licence"]))
    print_rich(table)


@app.command("show")
def show(
    generator: Annotated[str, typer.Argument(metavar="GEN", help="Packaged generator or generator file.")],
    json_output: JsonFlag = False,
) -> None:
    """Show a generator: source, arrival model, lengths, and the statistics of the trace behind it."""
    from rich.table import Table

    from coralopt.workload import load_generator
    from coralopt.workload.generation.generator import generator_document

    found = load_generator(generator)
    if json_output:
        print_json(generator_document(found))
        return
    arrivals = found.arrivals
    say(f"{found.name}: {found.source or 'no source given'}")
    say(f"licence: {found.licence or 'not given'}")
    if found.notes:
        say(f"notes: {found.notes}")
    say(f"arrivals: {arrivals.why}")
    states = Table(
        title=f"States; {arrivals.window:.3g} requests a step, own intervals with CV {arrivals.interval_cv:.3f}"
    )
    for head in ("state", "share of time", "rate / mean rate", "mean stay (steps)"):
        states.add_column(head, justify="right")
    for state in range(arrivals.states):
        leave = 1 - arrivals.transitions[state, state]
        stay = f"{1 / leave:.4g}" if leave > 1e-12 else "for ever"
        states.add_row(str(state), f"{arrivals.stationary[state]:.3f}", f"{arrivals.rates[state]:.3f}", stay)
    print_rich(states)
    lengths = Table(title="Token lengths")
    points = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
    for head in ("side", "mean", *(f"p{100 * p:g}" for p in points)):
        lengths.add_column(head, justify="right")
    import numpy as np

    sides = (("input", found.lengths.input_tokens), ("output", found.lengths.output_tokens))
    for (side, values), mean in zip(sides, found.lengths.means(), strict=True):
        quantiles = found.lengths.quantile(values, np.asarray(points))
        lengths.add_row(side, f"{mean:.1f}", *(str(value) for value in quantiles))
    print_rich(lengths)


@app.command("describe")
def describe_trace(trace: TraceArgument, sort: SortFlag = False, json_output: JsonFlag = False) -> None:
    """Print the statistics of TRACE: rate, lengths, burstiness; and its rate and mean lengths by model."""
    from coralopt.workload import describe, scenario_demand

    file = _read(trace, sort, json_output)
    statistics = describe(file.trace)
    named = file.trace.is_named and statistics.span_s > 0
    by_model = scenario_demand(file.trace, statistics.span_s) if named else {}
    if json_output:
        facts = {"file": str(trace), "format": file.format, "failed": file.failed, "out_of_order": file.out_of_order}
        print_json({**facts, **statistics.as_json(), "models": by_model})
        return
    _print_statistics(statistics, f"{trace.name} ({file.format})")
    if by_model:
        _print_demand(by_model)


@app.command("fit")
def fit(
    trace: TraceArgument,
    output: OutputOption,
    name: Annotated[str | None, typer.Option(help="Name of the generator; the file's by default.")] = None,
    source: Annotated[str, typer.Option(help="Where the trace comes from.")] = "",
    licence: Annotated[str, typer.Option(help="Licence of the trace.")] = "",
    model: Annotated[str | None, typer.Option(help="Only the requests of this model.")] = None,
    sort: SortFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Fit a generator to TRACE and write it as a small JSON file."""
    from coralopt.workload import describe, fit_generator, only_model, save_generator

    requests = _read(trace, sort, json_output).trace
    if model is not None:
        requests = only_model(requests, model)
        requests = requests.take(slice(None), float(requests.arrival_s[0]) if len(requests) else 0.0)
    with _progress("fit", json_output) as progress:
        generator = fit_generator(
            requests,
            name or trace.name.split(".")[0],
            source=source or trace.name,
            licence=licence,
            progress=progress,
        )
    save_generator(generator, output)
    drawn = generator.sample(duration_s=describe(requests).span_s, seed=0)
    compared = {"trace": describe(requests).as_json(), "generated": describe(drawn).as_json()}
    if json_output:
        print_json({"generator": str(output), "why": generator.arrivals.why, **compared})
        return
    _print_statistics(describe(requests), trace.name, describe(drawn))
    say(f"arrivals: {generator.arrivals.why}")
    say(f"generator written to {output}")


@app.command("generate")
def generate(
    generator: Annotated[str, typer.Argument(metavar="GEN", help="Packaged generator or generator file.")],
    output: OutputOption,
    rate: Annotated[float | None, typer.Option(help="Requests/s; that of the fitted trace by default.")] = None,
    duration: DurationOption = 3600.0,
    seed: SeedOption = 0,
    model: Annotated[str, typer.Option(help="Model that every request asks for.")] = "",
    start_hour: StartHourOption = 0.0,
    tick: TickFlag = True,
    exact_rate: ExactFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Generate a trace and write it."""
    from coralopt.workload import ArrivalOptions, load_generator

    options = ArrivalOptions(start_hour, tick, exact_rate)
    trace = load_generator(generator).sample(rate, duration, seed, model=model, options=options)
    _finish(trace, output, duration, json_output)


@app.command("mix")
def mix_for_scenario(
    scenario: ScenarioArgument,
    output: OutputOption,
    duration: DurationOption = 1800.0,
    seed: SeedOption = 0,
    imbalance: Annotated[
        str, typer.Option(help="balanced, large-heavy or small-heavy (80 % to a third).")
    ] = "balanced",
    generator: Annotated[
        list[str] | None, typer.Option(metavar="MODEL=GEN", help="Generator of one model; may be repeated.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests/s of all models together.")] = None,
    start_hour: StartHourOption = 0.0,
    tick: TickFlag = True,
    exact_rate: ExactFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Generate one trace for all models of SCENARIO, each from its data set at its rate."""
    from coralopt.scenario import load_scenario
    from coralopt.workload import ArrivalOptions, generate_for_scenario

    trace = generate_for_scenario(
        load_scenario(scenario),
        duration,
        seed,
        imbalance=imbalance,
        generators=dict(_pair(item, "--generator", "MODEL=GEN") for item in generator or []),
        rate_s=rate,
        options=ArrivalOptions(start_hour, tick, exact_rate),
    )
    _finish(trace, output, duration, json_output)


@app.command("convert")
def convert(
    trace: TraceArgument,
    output: OutputOption,
    start: Annotated[float, typer.Option(help="Leave out what arrives before this, s.")] = 0.0,
    end: Annotated[float | None, typer.Option(help="Leave out what arrives from here on, s.")] = None,
    only: Annotated[str | None, typer.Option(help="Only the requests of this model.")] = None,
    keep: Annotated[float | None, typer.Option(help="Keep each request with this probability.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="How many times over.")] = 1,
    rate: Annotated[float | None, typer.Option(help="Scale the clock to this many requests/s.")] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL=SHARE", help="Give requests to models at random by share; may be repeated."),
    ] = None,
    seed: SeedOption = 0,
    sort: SortFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Write TRACE as plain CSV or Parquet; cut, thin, repeat, scale and assign models on the way, in this order."""
    from coralopt import workload

    result = _read(trace, sort, json_output).trace
    if start > 0 or end is not None:
        result = workload.cut(result, start, end if end is not None else float("inf"))
    if only is not None:
        result = workload.only_model(result, only)
    if keep is not None:
        result = workload.thin(result, keep, seed)
    if len(result) == 0:
        raise WorkloadError(f"{trace}: no request is left")
    if repeat > 1:
        result = workload.repeat(result, repeat)
    if rate is not None:
        result = workload.scale_to_rate(result, rate)
    if share:
        shares = dict(_pair(item, "--share", "MODEL=SHARE") for item in share)
        result = workload.assign_models(
            result, {name: _number(value, "--share") for name, value in shares.items()}, seed
        )
    _finish(result, output, None, json_output)


@app.command("demand")
def demand(
    trace: TraceArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write epoch,model,phase,tokens_s here.")
    ] = None,
    epoch: Annotated[float, typer.Option(help="Length of an epoch, s; the paper's is 360.")] = 360.0,
    epochs: Annotated[int | None, typer.Option(help="How many; as many as hold every request by default.")] = None,
    model: Annotated[str | None, typer.Option(help="The model, for a trace that names none.")] = None,
    mixed: Annotated[bool, typer.Option("--mixed", help="One phase per model, for scenarios in mode mixed.")] = False,
    sort: SortFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Tokens/s of each model phase in each epoch of TRACE, and the mean demand in a scenario's form."""
    from rich.table import Table

    from coralopt.workload import Trace, epoch_demand, scenario_demand, write_demand

    requests = _read(trace, sort, json_output).trace
    if model is not None:
        if requests.is_named:
            raise WorkloadError(f"{trace} names its models ({', '.join(requests.models)}); leave --model out")
        columns = (requests.arrival_s, requests.input_tokens, requests.output_tokens, requests.model)
        requests = Trace(*columns, (model,))
    table = epoch_demand(requests, epoch, epochs=epochs, mixed=mixed)
    mean = scenario_demand(requests, len(table) * epoch) if epochs is None else {}
    if output is not None:
        write_demand(table, output)
    if json_output:
        rows = [dict(zip(table.keys, row.tolist(), strict=True)) for row in table.tokens_s]
        print_json({"epoch_s": epoch, "epochs": rows, "demand": mean})
        return
    shown = Table(title=f"Demand in tokens/s, epochs of {epoch:g} s")
    shown.add_column("model phase")
    for position in range(min(len(table), 8)):
        shown.add_column(str(position), justify="right")
    for head in ("lowest", "mean", "highest"):
        shown.add_column(head, justify="right")
    for column, key in enumerate(table.keys):
        values = table.tokens_s[:, column]
        summary = (values.min(), values.mean(), values.max())
        shown.add_row(key, *(f"{value:,.0f}" for value in (*values[:8], *summary)))
    print_rich(shown)
    if mean:
        _print_demand(mean)
    if output is not None:
        say(f"{len(table)} epochs written to {output}")


@app.command("availability")
def availability(
    scenario: ScenarioArgument,
    output: OutputOption,
    epochs: Annotated[int, typer.Option(help="Number of epochs.")],
    plan: Annotated[Path | None, typer.Option(help="Estimated demand: the nodes that this plan uses.")] = None,
    required: Annotated[float | None, typer.Option(help="Estimated demand as a number, in --unit.")] = None,
    rule: Annotated[
        str, typer.Option(help="ample (+300 %), scarce-core (+25 %) or scarce-extended (+75 %).")
    ] = "ample",
    headroom: Annotated[
        float | None, typer.Option(help="Headroom in place of a rule; 0.25: 25 % above the estimate.")
    ] = None,
    unit: Annotated[str, typer.Option(help="What counts: gpus, memory (GiB) or bandwidth (GB/s).")] = "gpus",
    at: Annotated[
        str, typer.Option(help="The headroom holds for the mean over epochs, or the tightest: min.")
    ] = "mean",
    hourly: Annotated[Path | None, typer.Option(help="Hourly GPU table to follow, in place of the generator.")] = None,
    generator: Annotated[str, typer.Option(help="Packaged availability model or a file.")] = "gfs",
    hours_per_epoch: Annotated[float, typer.Option(help="How far the hourly table moves on with each epoch.")] = 1.0,
    first_hour: Annotated[int | None, typer.Option(help="Hour at epoch 0, the same in all regions.")] = None,
    seed: SeedOption = 0,
    json_output: JsonFlag = False,
) -> None:
    """Nodes per epoch, region and configuration for the pool of SCENARIO, scaled to an estimated demand."""
    import numpy as np
    from rich.table import Table

    from coralopt.scenario import load_scenario
    from coralopt.workload import (
        PoolHours,
        PoolScale,
        load_availability_model,
        pool_availability,
        read_hourly,
        write_availability,
    )
    from coralopt.workload.series.availability import RULES, UNITS, plan_worth

    if rule not in RULES:
        raise WorkloadError(f"unknown rule {rule!r}; choose {', '.join(RULES)}, or give --headroom")
    if unit not in UNITS:
        raise WorkloadError(f"unknown unit {unit!r}; choose {', '.join(UNITS)}")
    if (plan is None) == (required is None):
        raise WorkloadError("say how much is needed: --plan plan.json (the nodes that it uses) or --required NUMBER")
    resolved = load_scenario(scenario)
    wanted = required if required is not None else plan_worth(_load_plan(plan), resolved.configurations, unit)
    nodes = {node.name: node for node in resolved.configurations}
    offered = resolved.availability > 0
    pool = {
        region: [name for name, here in zip(nodes, offered[r].tolist(), strict=True) if here]
        for r, region in enumerate(resolved.regions)
    }
    # A generated table is long enough to give each region a stretch of its own.
    span = int(np.ceil(epochs * hours_per_epoch)) + 1 if epochs > 0 and hours_per_epoch > 0 else 1
    table = (
        read_hourly(hourly)
        if hourly is not None
        else load_availability_model(generator).sample(max(4416, span + 24 * len(pool)), seed)
    )
    result = pool_availability(
        table,
        pool,
        epochs,
        PoolScale(wanted, RULES[rule] if headroom is None else headroom, unit, at),
        PoolHours(hours_per_epoch, first_hour, seed),
        nodes=nodes,
    )
    write_availability(result, output)
    worth = np.array([UNITS[unit](nodes[name]) for name in result.configurations])
    totals = (result.count @ worth).sum(axis=1)
    if json_output:
        print_json({"file": str(output), "required": wanted, "unit": unit, "available": totals.tolist()})
        return
    shown = Table(title=f"Nodes of each configuration over all regions; {wanted:,.6g} {unit} needed")
    shown.add_column("epoch", justify="right")
    shown.add_column(f"{unit} available", justify="right")
    shown.add_column("over the estimate", justify="right")
    by_gpu: dict[str, list[int]] = {}
    for position, name in enumerate(result.configurations):
        by_gpu.setdefault(nodes[name].gpu.name, []).append(position)
    for gpu in by_gpu:
        shown.add_column(f"{gpu} GPUs", justify="right")
    gpus = result.count.sum(axis=1) * np.array([nodes[name].count for name in result.configurations])
    for number in range(min(epochs, 24)):
        cells = [f"{gpus[number, positions].sum():,}" for positions in by_gpu.values()]
        shown.add_row(str(number), f"{totals[number]:,.6g}", f"{100 * (totals[number] / wanted - 1):+.0f} %", *cells)
    print_rich(shown)
    say(f"{epochs} epochs written to {output}")


@app.command("fit-availability")
def fit_availability_command(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="Hourly GPU table, CSV or Parquet.")],
    output: OutputOption,
    name: Annotated[str | None, typer.Option(help="Name of the model; the file's by default.")] = None,
    source: Annotated[str, typer.Option(help="Where the table comes from.")] = "",
    licence: Annotated[str, typer.Option(help="Licence of the table.")] = "",
    json_output: JsonFlag = False,
) -> None:
    """Fit a generator of hourly availability to TABLE and write it as a small JSON file."""
    import numpy as np
    from rich.table import Table

    from coralopt.workload import fit_availability, read_hourly, save_availability_model

    hourly = read_hourly(table)
    model = fit_availability(hourly, name or table.name.split(".")[0], source or table.name, licence)
    save_availability_model(model, output)
    rows = []
    drawn = [model.sample(len(hourly), seed).free_share for seed in range(10)]
    for position, gpu in enumerate(hourly.gpus):
        real = hourly.free_share[:, position]
        made = np.array([values[:, position] for values in drawn])
        rows.append(
            {
                "gpu": gpu,
                "mean": float(real.mean()),
                "generated_mean": float(made.mean()),
                "std": float(real.std()),
                "generated_std": float(made.std()),
            }
        )
    if json_output:
        print_json({"model": str(output), "gpus": rows})
        return
    shown = Table(title="Free share: table, and 10 generated ones of its length")
    for head in ("GPU", "mean", "generated", "std", "generated"):
        shown.add_column(head, justify="left" if head == "GPU" else "right")
    for row in rows:
        shown.add_row(str(row["gpu"]), *(f"{value:.3f}" for value in list(row.values())[1:]))
    print_rich(shown)
    say(f"availability model written to {output}")


def _read(path: Path, sort: bool, quiet: bool) -> Any:
    from coralopt.workload import read_trace_file

    with _progress("requests", quiet) as move:
        file = read_trace_file(path, sort=sort or None, progress=lambda _, rows, __: move(f"{rows:,} read", rows, None))
    if file.failed:
        say(f"{file.failed:,} failed requests (0 tokens) left out")
    if file.out_of_order:
        say(f"{file.out_of_order:,} rows out of order were sorted")
    return file


def _finish(trace: Any, output: Path, duration: float | None, json_output: bool) -> None:
    from coralopt.workload import describe, scenario_demand, write_trace

    write_trace(trace, output)
    if len(trace) == 0:
        say(f"an empty trace written to {output}: no request arrives in this time")
        return
    statistics = describe(trace)
    span = duration if duration is not None else trace.last_arrival_s
    by_model = scenario_demand(trace, span) if trace.is_named and span > 0 else {}
    if json_output:
        print_json({"trace": str(output), **statistics.as_json(), "models": by_model})
        return
    _print_statistics(statistics, output.name)
    if by_model:
        _print_demand(by_model)
    say(f"{len(trace):,} requests written to {output}")


def _print_statistics(statistics: Any, title: str, generated: Any = None) -> None:
    from rich.table import Table

    table = Table(title=title)
    table.add_column("statistic")
    table.add_column("trace", justify="right")
    items = [_figures(statistics)]
    if generated is not None:
        table.add_column("generated, seed 0", justify="right")
        items.append(_figures(generated))
    for name, value in items[0].items():
        table.add_row(name, value, *(item.get(name, "-") for item in items[1:]))
    print_rich(table)


def _figures(statistics: Any) -> dict[str, str]:
    lines = {
        "requests": f"{statistics.requests:,}",
        "span, s": f"{statistics.span_s:,.6g}",
        "requests/s": f"{statistics.rate_s:.4g}",
        "CV of intervals (Poisson: 1)": f"{statistics.interval_cv:.3f}",
    }
    for window, value in statistics.count_cv.items():
        lines[f"CV of requests in {window:g} s"] = f"{value:.3f}"
    for window, value in statistics.dispersion.items():
        lines[f"variance / mean of requests in {window:g} s (Poisson: 1)"] = f"{value:.3f}"
    for window, value in statistics.token_cv.items():
        lines[f"CV of input tokens in {window:g} s"] = f"{value:.3f}"
    for side, lengths in (("input", statistics.input_tokens), ("output", statistics.output_tokens)):
        lines[f"{side} tokens, mean"] = f"{lengths.mean:.1f}"
        quantiles = (f"p{100 * p:g} {value:.0f}" for p, value in lengths.quantiles.items())
        lines[f"{side} tokens, quantiles"] = ", ".join((*quantiles, f"max {lengths.largest}"))
    lines["rank correlation of input and output"] = f"{statistics.rank_correlation:.3f}"
    if statistics.tick_s is not None:
        lines["clock of the log, s"] = f"{statistics.tick_s:g}"
    return lines


def _print_demand(by_model: dict[str, dict[str, float]]) -> None:
    from rich.table import Table

    table = Table(title="By model, as in a scenario's demand")
    for head in ("model", "requests_s", "input_tokens", "output_tokens"):
        table.add_column(head, justify="left" if head == "model" else "right")
    for name, values in by_model.items():
        table.add_row(
            name or "(none)", *(f"{value:.4f}" if value < 100 else f"{value:.1f}" for value in values.values())
        )
    print_rich(table)


@contextmanager
def _progress(what: str, quiet: bool) -> Iterator[Any]:
    """A progress bar on standard error; without a total it counts."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn(what),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=None)

        def move(description: str, done: int, total: int | None) -> None:
            progress.update(task, description=description, completed=done, total=total)

        yield move


def _load_plan(path: Path | None) -> Any:
    from coralopt.plan import Plan

    assert path is not None
    return Plan.load(path)


def _pair(item: str, option: str, form: str) -> tuple[str, str]:
    name, separator, value = item.partition("=")
    if not separator or not name or not value:
        raise WorkloadError(f"{option} {item!r}: expected {form}")
    return name, value


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise WorkloadError(f"{option}: {text!r} is no number") from None
