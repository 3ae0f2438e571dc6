"""``coralopt simulate``: play requests against a plan and say whether it keeps its promise."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coralopt.cli.console import JsonFlag, library_progress, print_json, print_rich, say
from coralopt.cli.traffic import (
    DurationOption,
    LengthCvOption,
    ModelOption,
    RateOption,
    SortOption,
    TraceOption,
    TrafficOption,
    remark_on_ticks,
    traffic_from_options,
    walk_requests,
    walk_schedule,
)

if TYPE_CHECKING:
    from coralopt.plan import Plan
    from coralopt.simulation import SimulationResult

#: Length of an epoch of a walk, s (paper, section 5.1).
EPOCH_S = 360.0


def simulate(
    plan: Annotated[
        list[str] | None,
        typer.Argument(metavar="PLAN...", help="A plan document; or several as START_S=PLAN, one from each start on."),
    ] = None,
    trace: TraceOption = None,
    model: ModelOption = None,
    sort: SortOption = False,
    rate: RateOption = None,
    duration: DurationOption = None,
    epochs: Annotated[
        Path | None, typer.Option(help="Folder of `coralopt adapt`: its plans one after the other, instead of PLAN.")
    ] = None,
    epoch: Annotated[
        float | None,
        typer.Option(help="Length of an epoch, s: of the report (by default one a plan), and of --epochs (360)."),
    ] = None,
    lead: Annotated[
        float, typer.Option(help="With --epochs: seconds before its epoch that a plan is put into force.")
    ] = 0.0,
    traffic: TrafficOption = "poisson",
    seed: Annotated[int, typer.Option(help="Seed of arrivals, lengths and noise.")] = 0,
    length_cv: LengthCvOption = 1.0,
    noise: Annotated[float, typer.Option(help="Coefficient of variation of every stage time.")] = 0.0,
    kv_gb_s: Annotated[
        float | None, typer.Option("--kv-gb-s", help="Bandwidth of KV transfers, GB/s; by default each node's network.")
    ] = None,
    kv_latency_ms: Annotated[float, typer.Option("--kv-latency-ms", help="Latency of a KV transfer, ms.")] = 1.0,
    cold_start: Annotated[
        bool, typer.Option("--cold-start", help="The first plan's nodes must start and load weights, too.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write one row a request, as Parquet.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Folder for pictures: latency CDFs, goodput per epoch, utilisation.")
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Play requests against PLAN: what it promised, what happened, and where and why the promise broke."""
    from coralopt.errors import OptionError
    from coralopt.report.simulation import simulation_view
    from coralopt.scenario import scenario_from_mapping
    from coralopt.simulation import SimulationConfig
    from coralopt.simulation import simulate as play

    if (plan is None) == (epochs is None):
        raise OptionError("give either plans, or --epochs with the folder of `coralopt adapt`")
    if epochs is not None:
        epoch = EPOCH_S if epoch is None else epoch
        schedule = walk_schedule(epochs, epoch, lead)
    else:
        schedule = [_planned(text) for text in plan or ()]
    config = SimulationConfig(
        seed=seed, noise=noise, kv_gb_s=kv_gb_s, kv_latency_ms=kv_latency_ms, warm_start=not cold_start
    )
    if lead and epochs is None:
        raise OptionError("--lead goes with --epochs")
    if epochs is not None and epoch is not None and trace is None:
        if rate is not None or duration is not None:
            raise OptionError(
                "--epochs without a --trace plays each epoch's own demand; leave --rate and --duration out"
            )
        requests, duration, what = walk_requests(schedule, epoch, traffic, seed, length_cv)
    else:
        scenario = scenario_from_mapping(schedule[0][1].scenario, source="the plan's scenario")
        chosen = traffic_from_options(trace, model, rate, duration, traffic, seed, length_cv, sort)
        requests, duration, what = chosen.requests(scenario), chosen.window_s, chosen.words
        window = requests.last_arrival_s if duration is None else duration
        late = max(start for start, _ in schedule)
        if epochs is None and late > 0 and late >= window:
            raise OptionError(f"a plan begins at {late:g} s, after {window:g} s of requests; give a longer --duration")
    with library_progress(quiet=json_output, title="simulation") as progress:
        result = play(schedule, requests, config=config, duration_s=duration, epoch_s=epoch, progress=progress)
    if output is not None:
        result.save_requests(output)
    pictures: tuple[Path, ...] = ()
    if plot is not None:
        from coralopt.report.simulation_plots import plot_simulation

        pictures = plot_simulation(result, plot)
    if json_output:
        print_json(_document(result) | {"traffic": what})
        return
    say(f"requests: {what}")
    remark = remark_on_ticks(requests) if trace is not None else None
    if remark is not None:
        say(remark)
    print_rich(simulation_view(result))
    if output is not None:
        say(f"{len(result.requests['status']):,} requests written to {output}")
    for path in pictures:
        say(f"{path} written")


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
        "attainment_feasible": plain(result.attainment_feasible),
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
