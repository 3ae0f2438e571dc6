"""``coralopt simulate``: play requests against a plan and say whether it keeps its promise."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coralopt.cli.console import JsonFlag, library_progress, print_json, print_rich, say

if TYPE_CHECKING:
    from coralopt.plan import Plan
    from coralopt.simulation import SimulationResult
    from coralopt.workload import Trace


def simulate(
    plan: Annotated[
        list[str],
        typer.Argument(metavar="PLAN...", help="A plan document; or several as START_S=PLAN, one from each start on."),
    ],
    trace: Annotated[
        Path | None,
        typer.Option(help="Requests (CSV or Parquet: arrival_s, input_tokens, output_tokens, model); else Poisson."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model that all requests of the trace ask for.")] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests/s of each model; a trace is stretched to it. By default as planned for."),
    ] = None,
    duration: Annotated[
        float | None, typer.Option(help="Seconds of arrivals; by default 300, or the whole trace.")
    ] = None,
    epoch: Annotated[
        float | None, typer.Option(help="Length of an epoch in the report, s; by default one a plan.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of arrivals, lengths and noise.")] = 0,
    length_cv: Annotated[
        float, typer.Option("--length-cv", help="Without a trace: coefficient of variation of the lengths.")
    ] = 1.0,
    noise: Annotated[float, typer.Option(help="Coefficient of variation of every stage time.")] = 0.0,
    kv_gb_s: Annotated[
        float | None, typer.Option("--kv-gb-s", help="Bandwidth of KV transfers, GB/s; by default each node's network.")
    ] = None,
    kv_latency_ms: Annotated[float, typer.Option("--kv-latency-ms", help="Latency of a KV transfer, ms.")] = 1.0,
    cold_start: Annotated[
        bool, typer.Option("--cold-start", help="The first plan's nodes must start and load weights, too.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write one row a request, as Parquet.")] = None,
    json_output: JsonFlag = False,
) -> None:
    """Play requests against PLAN: latencies, SLO attainment, goodput, utilisation and cost, beside what it promised."""
    from coralopt.errors import OptionError
    from coralopt.report.simulation import simulation_view
    from coralopt.scenario import scenario_from_mapping
    from coralopt.simulation import SimulationConfig, at_rate, poisson_requests, read_requests
    from coralopt.simulation import simulate as play

    schedule = [_planned(text) for text in plan]
    config = SimulationConfig(
        seed=seed, noise=noise, kv_gb_s=kv_gb_s, kv_latency_ms=kv_latency_ms, warm_start=not cold_start
    )
    requests: Trace
    if trace is not None:
        requests = read_requests(trace, model)
        requests = requests if rate is None else at_rate(requests, rate)
    else:
        if model is not None:
            raise OptionError("--model names the model of a trace's requests; give a --trace, too")
        scenario = scenario_from_mapping(schedule[0][1].scenario, source="the plan's scenario")
        duration = 300.0 if duration is None else duration
        requests = poisson_requests(scenario, rate, duration, seed, length_cv)
    with library_progress(quiet=json_output, title="simulation") as progress:
        result = play(schedule, requests, config=config, duration_s=duration, epoch_s=epoch, progress=progress)
    if output is not None:
        result.save_requests(output)
    if json_output:
        print_json(_document(result))
        return
    print_rich(simulation_view(result))
    if output is not None:
        say(f"{len(result.requests['status']):,} requests written to {output}")


def _planned(text: str) -> tuple[float, Plan]:
    """``"360=b.json"`` -> (360.0, plan); a plain path starts at 0."""
    from coralopt.plan import Plan

    start, separator, path = text.partition("=")
    try:
        return (float(start), Plan.load(path)) if separator else (0.0, Plan.load(text))
    except ValueError:
        # The path itself holds an equals sign.
        return 0.0, Plan.load(text)


def _document(result: SimulationResult) -> dict[str, Any]:
    """Figures for machines; not a number becomes null. Requests go to a file of their own."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        if hasattr(value, "tolist"):
            return plain(value.tolist())
        return None if isinstance(value, float) and value != value else value

    status = result.requests["status"]
    return {
        "window_s": result.window_s,
        "end_s": result.end_s,
        "requests": len(status),
        **{word: int((status == s).sum()) for s, word in enumerate(("never_served", "finished", "rejected"))},
        "attainment": plain(result.attainment),
        "cost_usd": result.cost_usd,
        "cost_usd_h": result.cost_usd_h,
        "events": result.events,
        "outcomes": [plain(dataclasses.asdict(row)) for row in result.outcomes],
        "epochs": plain(result.epochs),
        "instances": plain(result.instances),
        "nodes": plain(result.nodes),
        "epoch_utilisation": plain(result.epoch_utilisation),
        "queues": plain(result.queues),
    }
