"""``coralopt workload``: request traces and the generators fitted to them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coralopt.cli.console import JsonFlag, ScenarioArgument, parse_pairs, progress_bar, say
from coralopt.cli.option_groups import takes_groups
from coralopt.cli.present import CommandOutput, present
from coralopt.cli.workload_options import (
    ConvertOptions,
    DrawOptions,
    GeneratorArgument,
    MixOptions,
    ModelFile,
    OriginOptions,
    OutputOption,
    SortFlag,
    TraceArgument,
)
from coralopt.errors import WorkloadError

if TYPE_CHECKING:
    from rich.table import Table

    from coralopt.workload import Trace, TraceFile

#: :mod:`coralopt.cli.workload` adds the others.
app = typer.Typer(no_args_is_help=True, help="Request traces, generators, demand and availability per epoch.")


@app.command("list")
def list_generators(json_output: JsonFlag = False) -> None:
    """List the packaged generators."""
    from coralopt.report.workload import generators_table
    from coralopt.workload import load_generator, packaged_generators

    rows: list[dict[str, object]] = []
    for generator in map(load_generator, packaged_generators()):
        input_tokens, output_tokens = generator.lengths.means()
        rows.append(
            {
                "name": generator.name,
                "rate_s": generator.rate_s,
                "input_tokens": round(input_tokens, 1),
                "output_tokens": round(output_tokens, 1),
                "states": generator.arrivals.states,
                "interval_cv": generator.arrivals.interval_cv,
                "from": "requests" if "interval_cv" in generator.fitted_to else "published figures",
                "licence": generator.licence,
            }
        )
    present(CommandOutput(rows, [generators_table(rows)]), json_output)


@app.command("show")
def show(generator: GeneratorArgument, json_output: JsonFlag = False) -> None:
    """Show a generator: source, arrival model, lengths, and the statistics of the trace behind it."""
    from coralopt.report.workload import generator_tables
    from coralopt.workload import load_generator
    from coralopt.workload.generation.generator import generator_document

    loaded = load_generator(generator)
    lines = [
        f"{loaded.name}: {loaded.source or 'no source given'}",
        f"licence: {loaded.licence or 'not given'}",
        *([f"notes: {loaded.notes}"] if loaded.notes else []),
        f"arrivals: {loaded.arrivals.why}",
    ]
    present(CommandOutput(generator_document(loaded), generator_tables(loaded), lines), json_output)


@app.command("describe")
def describe_trace(trace: TraceArgument, sort: SortFlag = False, json_output: JsonFlag = False) -> None:
    """Print the statistics of TRACE: rate, lengths, burstiness; and its rate and mean lengths by model."""
    file = read_requests(trace, sort, json_output)
    document, tables = _description(file.trace, None, f"{trace.name} ({file.format})")
    facts = {"file": trace, "format": file.format, "failed": file.failed, "out_of_order": file.out_of_order}
    present(CommandOutput({**facts, **document}, tables), json_output)


@app.command("prefix-hits")
def measure_prefix_hits(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="Mooncake trace with block hashes; JSON lines, .gz.")],
    cache: Annotated[
        list[int] | None,
        typer.Option("--cache", min=1, help="Tokens that the caches hold; may be repeated. Any number by default."),
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Measure which share of prompt tokens a prefix cache holds: `prefix_hit` of a scenario's demand."""
    from dataclasses import asdict

    from coralopt.report.workload import prefix_hits_table
    from coralopt.workload import prefix_hits

    by_cache = [prefix_hits(trace, tokens) for tokens in (*(cache or ()), None)]
    title = f"{by_cache[0].requests:,} requests, {by_cache[0].input_tokens:,} prompt tokens"
    document = [{**asdict(item), "prefix_hit": item.prefix_hit} for item in by_cache]
    present(CommandOutput(document, [prefix_hits_table(by_cache, title)]), json_output)


@app.command("classes")
def classes(
    trace: TraceArgument,
    inputs: Annotated[
        list[int] | None, typer.Option("--input", help="Longest prompt of a class, tokens; may be repeated.")
    ] = None,
    outputs: Annotated[
        list[int] | None, typer.Option("--output", help="Longest answer of a class, tokens; may be repeated.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only the requests of this model.")] = None,
    sort: SortFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Tell the requests of TRACE apart by their lengths: `classes` of a scenario's demand, with rates and quantiles."""
    import yaml

    from coralopt.workload import only_model, request_classes

    requests = read_requests(trace, sort, json_output).trace
    requests = requests if model is None else only_model(requests, model)
    document = {"classes": request_classes(requests, inputs or (), outputs or ())}
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=110).rstrip()
    present(CommandOutput(document, [text]), json_output)


@app.command("fit")
@takes_groups
def fit(
    trace: TraceArgument,
    output: ModelFile,
    origin: OriginOptions,
    model: Annotated[str | None, typer.Option(help="Only the requests of this model.")] = None,
    sort: SortFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Fit a generator to TRACE and write it as a small JSON file."""
    from coralopt.report.workload import statistics_table
    from coralopt.workload import describe, fit_generator, only_model, save_generator

    requests = read_requests(trace, sort, json_output).trace
    if model is not None:
        requests = only_model(requests, model)
        requests = requests.take(slice(None), float(requests.arrival_s[0]) if len(requests) else 0.0)
    with progress_bar("fit", quiet=json_output) as progress:
        generator = fit_generator(
            requests,
            origin.name or trace.name.split(".")[0],
            source=origin.source or trace.name,
            licence=origin.licence,
            progress=progress,
        )
    save_generator(generator, output)
    statistics = describe(requests)
    generated = describe(generator.sample(duration_s=statistics.span_s, seed=0))
    why = generator.arrivals.why
    document = {
        "generator": output,
        "why": why,
        "trace": statistics.as_json(),
        "generated": generated.as_json(),
    }
    lines = [f"arrivals: {why}", f"generator written to {output}"]
    present(CommandOutput(document, [statistics_table(statistics, trace.name, generated)], lines), json_output)


@app.command("generate")
@takes_groups
def generate(
    generator: GeneratorArgument,
    output: OutputOption,
    draw: DrawOptions,
    rate: Annotated[float | None, typer.Option(help="Requests/s; that of the fitted trace by default.")] = None,
    model: Annotated[str, typer.Option(help="Model that every request asks for.")] = "",
    json_output: JsonFlag = False,
) -> None:
    """Generate a trace and write it."""
    from coralopt.workload import load_generator

    trace = load_generator(generator).sample(rate, draw.duration, draw.seed, model=model, options=draw.arrivals)
    _finish(trace, output, draw.duration, json_output)


@app.command("mix")
@takes_groups
def mix_for_scenario(
    scenario: ScenarioArgument,
    output: OutputOption,
    draw: MixOptions,
    imbalance: Annotated[
        str, typer.Option(help="balanced, large-heavy or small-heavy (80 % to a third).")
    ] = "balanced",
    generator: Annotated[
        list[str] | None, typer.Option(metavar="MODEL=GEN", help="Generator of one model; may be repeated.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests/s of all models together.")] = None,
    json_output: JsonFlag = False,
) -> None:
    """Generate one trace for all models of SCENARIO, each from its data set at its rate."""
    from coralopt.scenario import load_scenario
    from coralopt.workload import generate_for_scenario

    trace = generate_for_scenario(
        load_scenario(scenario),
        draw.duration,
        draw.seed,
        imbalance=imbalance,
        generators=parse_pairs("--generator", generator, "MODEL=GEN", WorkloadError),
        rate_s=rate,
        options=draw.arrivals,
    )
    _finish(trace, output, draw.duration, json_output)


@app.command("convert")
@takes_groups
def convert(
    trace: TraceArgument,
    output: OutputOption,
    steps: ConvertOptions,
    sort: SortFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Write TRACE as plain CSV or Parquet; cut, thin, repeat, scale and assign models on the way, in this order."""
    from coralopt import workload

    result = read_requests(trace, sort, json_output).trace
    if steps.start > 0 or steps.end is not None:
        result = workload.cut(result, steps.start, steps.end if steps.end is not None else float("inf"))
    if steps.only is not None:
        result = workload.only_model(result, steps.only)
    if steps.keep is not None:
        result = workload.thin(result, steps.keep, steps.seed)
    if len(result) == 0:
        raise WorkloadError(f"{trace}: no request is left")
    if steps.repeat > 1:
        result = workload.repeat(result, steps.repeat)
    if steps.rate is not None:
        result = workload.scale_to_rate(result, steps.rate)
    if steps.share:
        pairs = parse_pairs("--share", steps.share, "MODEL=SHARE", WorkloadError)
        result = workload.assign_models(result, {name: _share(text) for name, text in pairs.items()}, steps.seed)
    _finish(result, output, None, json_output)


def read_requests(path: Path, sort: bool, quiet: bool) -> TraceFile:
    """A trace file; says what was left out of it and sorted."""
    from coralopt.workload import read_trace_file

    with progress_bar("requests", quiet=quiet) as progress:
        file = read_trace_file(path, sort=sort or None, progress=progress)
    if file.failed:
        say(f"{file.failed:,} failed requests (0 tokens) left out")
    if file.out_of_order:
        say(f"{file.out_of_order:,} rows out of order were sorted")
    return file


def _description(trace: Trace, duration_s: float | None, title: str) -> tuple[dict[str, object], list[Table]]:
    """A trace's statistics, and what each model asks for; both for machines and as tables."""
    from coralopt.report.workload import models_table, statistics_table
    from coralopt.workload import describe, scenario_demand

    statistics = describe(trace)
    span_s = statistics.span_s if duration_s is None else duration_s
    models = scenario_demand(trace, span_s) if trace.is_named and span_s > 0 else {}
    tables = [statistics_table(statistics, title), *([models_table(models)] if models else [])]
    return {**statistics.as_json(), "models": models}, tables


def _finish(trace: Trace, output: Path, duration_s: float | None, json_output: bool) -> None:
    from coralopt.workload import write_trace

    write_trace(trace, output)
    if len(trace) == 0:
        say(f"an empty trace written to {output}: no request arrives in this time")
        return
    document, tables = _description(trace, trace.last_arrival_s if duration_s is None else duration_s, output.name)
    lines = [f"{len(trace):,} requests written to {output}"]
    present(CommandOutput({"trace": output, **document}, tables, lines), json_output)


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise WorkloadError(f"--share: {text!r} is no number") from None
