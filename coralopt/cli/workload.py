"""``coralopt workload``: tables of demand and availability per epoch, beside the commands about traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coralopt.cli.console import JsonFlag, ScenarioArgument
from coralopt.cli.option_groups import takes_groups
from coralopt.cli.present import CommandOutput, present
from coralopt.cli.workload_options import (
    EstimateOptions,
    HourOptions,
    ModelFile,
    OriginOptions,
    OutputOption,
    SortFlag,
    TraceArgument,
    table_to_write,
)
from coralopt.cli.workload_traces import app, read_requests
from coralopt.errors import WorkloadError


@app.command("demand")
def demand(
    trace: TraceArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write epoch,model,phase,tokens_s here.", callback=table_to_write),
    ] = None,
    epoch: Annotated[float, typer.Option(help="Length of an epoch, s; the paper's is 360.")] = 360.0,
    epochs: Annotated[int | None, typer.Option(help="How many; as many as hold every request by default.")] = None,
    model: Annotated[str | None, typer.Option(help="The model, for a trace that names none.")] = None,
    mixed: Annotated[bool, typer.Option("--mixed", help="One phase per model, for scenarios in mode mixed.")] = False,
    sort: SortFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Tokens/s of each model phase in each epoch of TRACE, and the mean demand in a scenario's form."""
    from coralopt.report.workload import demand_by_epoch_table, models_table
    from coralopt.workload import Trace, epoch_demand, scenario_demand, write_demand

    requests = read_requests(trace, sort, json_output).trace
    if model is not None:
        if requests.is_named:
            raise WorkloadError(f"{trace} names its models ({', '.join(requests.models)}); leave --model out")
        columns = (requests.arrival_s, requests.input_tokens, requests.output_tokens, requests.model)
        requests = Trace(*columns, (model,))
    table = epoch_demand(requests, epoch, epochs=epochs, mixed=mixed)
    mean = scenario_demand(requests, len(table) * epoch) if epochs is None else {}
    tables = [demand_by_epoch_table(table, epoch), *([models_table(mean)] if mean else [])]
    rows = [dict(zip(table.keys, row.tolist(), strict=True)) for row in table.tokens_s]
    lines = []
    if output is not None:
        write_demand(table, output)
        lines.append(f"{len(table)} epochs written to {output}")
    present(CommandOutput({"epoch_s": epoch, "epochs": rows, "demand": mean}, tables, lines), json_output)


@app.command("availability")
@takes_groups
def availability(
    scenario: ScenarioArgument,
    output: OutputOption,
    epochs: Annotated[int, typer.Option(help="Number of epochs.")],
    estimate: EstimateOptions,
    hours: HourOptions,
    json_output: JsonFlag = False,
) -> None:
    """Nodes per epoch, region and configuration for the pool of SCENARIO, scaled to an estimated demand."""
    import numpy as np

    from coralopt.plan import Plan
    from coralopt.report.workload import availability_table
    from coralopt.scenario import load_scenario
    from coralopt.workload import PoolHours, PoolScale, write_availability
    from coralopt.workload.series.availability import RULES, UNITS, plan_worth
    from coralopt.workload.series.scenario_pool import scenario_availability

    unit = estimate.unit
    if estimate.rule not in RULES:
        raise WorkloadError(f"unknown rule {estimate.rule!r}; choose {', '.join(RULES)}, or give --headroom")
    if unit not in UNITS:
        raise WorkloadError(f"unknown unit {unit!r}; choose {', '.join(UNITS)}")
    resolved = load_scenario(scenario)
    if estimate.required is not None and estimate.plan is None:
        required = estimate.required
    elif estimate.plan is not None and estimate.required is None:
        required = plan_worth(Plan.load(estimate.plan), resolved.configurations, unit)
    else:
        raise WorkloadError("say how much is needed: --plan plan.json (the nodes that it uses) or --required NUMBER")
    headroom = RULES[estimate.rule] if estimate.headroom is None else estimate.headroom
    offered = scenario_availability(
        resolved,
        epochs,
        PoolScale(required, headroom, unit, estimate.at),
        PoolHours(hours.hours_per_epoch, hours.first_hour, hours.seed),
        hours.generator if hours.hourly is None else hours.hourly,
    )
    write_availability(offered, output)
    nodes = {node.name: node for node in resolved.configurations}
    worth = (offered.count @ np.array([UNITS[unit](nodes[name]) for name in offered.configurations])).sum(axis=1)
    present(
        CommandOutput(
            {"file": output, "required": required, "unit": unit, "available": worth},
            [availability_table(offered, worth, unit, required, nodes)],
            [f"{epochs} epochs written to {output}"],
        ),
        json_output,
    )


@app.command("fit-availability")
@takes_groups
def fit_availability_command(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="Hourly GPU table, CSV or Parquet.")],
    output: ModelFile,
    origin: OriginOptions,
    json_output: JsonFlag = False,
) -> None:
    """Fit a generator of hourly availability to TABLE and write it as a small JSON file."""
    import numpy as np

    from coralopt.report.workload import free_share_table
    from coralopt.workload import fit_availability, read_hourly, save_availability_model

    hourly = read_hourly(table)
    name = origin.name or table.name.split(".")[0]
    model = fit_availability(hourly, name, origin.source or table.name, origin.licence)
    save_availability_model(model, output)
    generated = np.array([model.sample(len(hourly), seed).free_share for seed in range(10)])
    rows: list[dict[str, object]] = [
        {
            "gpu": gpu,
            "mean": float(hourly.free_share[:, g].mean()),
            "generated_mean": float(generated[:, :, g].mean()),
            "std": float(hourly.free_share[:, g].std()),
            "generated_std": float(generated[:, :, g].std()),
        }
        for g, gpu in enumerate(hourly.gpus)
    ]
    lines = [f"availability model written to {output}"]
    present(CommandOutput({"model": output, "gpus": rows}, [free_share_table(rows)], lines), json_output)
