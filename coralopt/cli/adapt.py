"""``coralopt adapt``: a plan for every epoch, and what changes from one to the next."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from coralopt.cli.adapt_apply import ApplyTo, Every, Floor, apply_walk, run_loop
from coralopt.cli.console import (
    JsonFlag,
    OptionList,
    ScenarioArgument,
    library_progress,
    parse_options,
    print_json,
    print_rich,
    say,
)
from coralopt.cli.placing import ExecutableBy, OnInfeasibleOption, UnmetPriceOption, with_rules


def adapt(
    scenario: ScenarioArgument,
    demand: Annotated[
        Path | None,
        typer.Option(help="Table epoch,model,phase,tokens_s; or a request trace (arrival time, input, output tokens)."),
    ] = None,
    epoch: Annotated[
        str,
        typer.Option(
            metavar="S[,S...]", help="Epoch length of a trace, s; several print cost and churn against the interval."
        ),
    ] = "3600",
    initialization: Annotated[
        float | None,
        typer.Option(metavar="S", min=0, help="Node initialization time; K is this over the epoch length of a trace."),
    ] = None,
    sort: Annotated[bool, typer.Option("--sort", help="Sort a trace whose times fall.")] = False,
    trace_model: Annotated[str | None, typer.Option(help="The model of a trace that names none.")] = None,
    availability: Annotated[Path | None, typer.Option(help="Table epoch,region,configuration,count.")] = None,
    prices: Annotated[Path | None, typer.Option(help="Table epoch,region,configuration,usd_h.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs to walk through; all by default.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for plans and changes; goes on where it stopped.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew in a folder that holds a walk.")] = False,
    forecast: Annotated[
        str, typer.Option(help="given, last, mean:EPOCHS, seasonal:EPOCHS, or module:function of your own.")
    ] = "given",
    headroom: Annotated[float, typer.Option(min=0, help="Share added to the forecast, e.g. 0.1.")] = 0.0,
    penalty: Annotated[
        str | None,
        typer.Option(metavar="K[,K...]", help="Initialization penalty; several print churn against cost."),
    ] = None,
    solver: Annotated[str | None, typer.Option(help="MILP back end; see `coralopt solvers`.")] = None,
    option: OptionList = None,
    time_limit: Annotated[float | None, typer.Option(help="Seconds for each epoch's allocation.")] = None,
    rel_gap: Annotated[float | None, typer.Option(help="Proven relative gap to stop at.")] = None,
    on_infeasible: OnInfeasibleOption = "explain",
    budget: Annotated[float | None, typer.Option(metavar="USD_H", help="Most rent in every epoch, USD/h.")] = None,
    unmet_price: UnmetPriceOption = None,
    library: Annotated[Path | None, typer.Option(help="Template library file; the cache directory by default.")] = None,
    executable_by: ExecutableBy = None,
    apply: ApplyTo = None,
    every: Every = 300.0,
    floor: Floor = 0.01,
    json_output: JsonFlag = False,
) -> None:
    """Walk SCENARIO through epochs: keep what runs where that is cheaper, charge K for what is started."""
    from coralopt.errors import OptionError
    from coralopt.planning import adapt as walk
    from coralopt.planning import epoch_inputs, forecast_named, is_demand_table, read_demand_or_trace
    from coralopt.scenario import load_scenario, with_operations
    from coralopt.templates import obtain_library
    from coralopt.workload import read_availability, read_prices

    options = parse_options(option, time_limit=time_limit, rel_gap=rel_gap)
    penalties = _penalties(penalty)
    if len(penalties) > 1 and output is not None:
        raise OptionError("several values of --penalty are for comparing; --output takes the plans of one")
    if len(penalties) > 1 and apply is not None:
        raise OptionError("several values of --penalty are for comparing; --apply carries out the plans of one")
    hook = forecast_named(forecast)
    resolved = with_operations(
        with_rules(load_scenario(scenario), executable_by), budget_usd_h=budget, unmet_usd_mtok=unmet_price
    )
    if apply is not None and demand is None:
        supply = None
        if availability is not None or prices is not None:
            tables = (
                None if availability is None else read_availability(availability),
                None if prices is None else read_prices(prices),
            )
            supply = epoch_inputs(resolved, None, *tables)
        run_loop(
            resolved,
            apply,
            every_s=every,
            epochs=epochs,
            forecast=forecast,
            headroom=headroom,
            floor=floor,
            penalty=penalties[0],
            inputs=supply,
            solver=solver,
            options=options,
            library=library,
            output=output,
            on_infeasible=on_infeasible,
            json_output=json_output,
        )
        return
    lengths = _numbers("--epoch", epoch, 1.0, 1e7)
    by_length = len(lengths) > 1
    cut = demand is not None and not is_demand_table(demand)
    if not cut and (by_length or initialization is not None or trace_model is not None):
        raise OptionError("--epoch, --initialization and --trace-model are for a trace in --demand; tables have epochs")
    if by_length and (len(penalties) > 1 or penalty or output or availability or prices or epochs):
        raise OptionError(
            "several values of --epoch compare adjustment intervals over one trace: leave out --penalty, --output, "
            "--epochs and the tables"
        )
    if by_length and apply is not None:
        raise OptionError("several values of --epoch are for comparing; --apply carries out the plans of one")
    if penalty is not None and initialization is not None:
        raise OptionError("--initialization gives K, and so does --penalty; choose one")
    offered = None if availability is None else read_availability(availability)
    priced = None if prices is None else read_prices(prices)
    cases: list[tuple[float, Any, float | None]] = []
    for length in lengths:
        needed = None if demand is None else read_demand_or_trace(demand, resolved, length, trace_model, sort)
        for remark in () if needed is None or json_output else needed.remarks:
            say(f"note: {remark}")
        count = epochs
        if cut and needed is not None and epochs is None:
            # A trace is as long as it is; the tables beside it may end earlier.
            count = min(len(table) for table in (needed.demand, offered, priced) if table is not None)
        inputs = epoch_inputs(resolved, None if needed is None else needed.demand, offered, priced, count)
        seconds = 360.0 if by_length and initialization is None else initialization
        cases += [(length, inputs, k if seconds is None else seconds / length) for k in penalties]
    with library_progress(quiet=json_output) as progress:
        templates, _ = obtain_library(resolved, library, progress=progress)
    walks = []
    for length, inputs, k in cases:
        found = []
        started = time.perf_counter()
        epochs_to_come = walk(
            resolved,
            inputs,
            penalty=k,
            forecast=hook,
            forecast_name=forecast,
            headroom=headroom,
            solver=solver,
            options=options,
            library=templates,
            output=output,
            restart=restart,
            on_infeasible=on_infeasible,  # type: ignore[arg-type]
        )
        for planned in epochs_to_come if apply is None else apply_walk(epochs_to_come, apply, every):
            found.append(planned)
            if not json_output:
                _tell(planned, len(inputs), time.perf_counter() - started, len([e for e in found if not e.resumed]))
        walks.append((length, resolved.initialization_penalty if k is None else k, found))
    if json_output:
        print_json(
            {
                "walks": [
                    {
                        "penalty": k,
                        "epoch_s": length if cut else None,
                        "mean": _means([item.summary for item in found]),
                        "epochs": [asdict(item.summary) | {"resumed": item.resumed} for item in found],
                    }
                    for length, k, found in walks
                ]
            }
        )
        return
    print_rich(_epoch_table(walks[0][2], walks[0][1]) if len(walks) == 1 else _churn_table(walks, by_length))
    if output is not None:
        say(f"plans and changes written to {output}")


def _penalties(text: str | None) -> list[float | None]:
    if text is None:
        return [None]
    return list(_numbers("--penalty", text, 0.0, 1000.0))


def _numbers(option: str, text: str, least: float, most: float) -> list[float]:
    from coralopt.errors import OptionError

    values = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = -1.0
        if not least <= value <= most:
            raise OptionError(f"{option} {text!r}: {part!r} is not a number from {least:g} to {most:g}")
        values.append(value)
    return values


def _tell(epoch: Any, total: int, seconds: float, made: int) -> None:
    item = epoch.summary
    if epoch.resumed:
        say(f"epoch {item.epoch} of {total}: already there")
        return
    left = (total - 1 - item.epoch) * seconds / max(1, made)
    say(
        f"epoch {item.epoch} of {total}: {item.cost_usd_h:,.4f} USD/h, gap {item.gap * 100:.3f} %, "
        f"+{item.start} -{item.stop} ={item.keep}, {item.seconds:.2f} s"
        + (f"; about {left:.0f} s left" if left else "")
    )


def _means(summaries: list[Any]) -> dict[str, float]:
    count = max(1, len(summaries))
    names = (
        "cost_usd_h",
        "provisioning_usd_h",
        "initialization_usd_h",
        "start",
        "stop",
        "keep",
        "started_usd_h",
        "seconds",
    )
    means = {name: sum(getattr(item, name) for item in summaries) / count for name in names}
    return means | {
        "largest_gap": max((item.gap for item in summaries), default=0.0),
        "least_served_share": min((item.served_share for item in summaries), default=1.0),
    }


def _epoch_table(found: list[Any], penalty: float) -> Any:
    from rich.table import Table

    table = Table(title=f"Epochs, K = {penalty:g}")
    for head in (
        "epoch",
        "cost USD/h",
        "provisioning",
        "initialization",
        "gap %",
        "instances",
        "nodes",
        "start",
        "stop",
        "keep",
        "served %",
        "seconds",
    ):
        table.add_column(head, justify="right")
    for epoch in found:
        item = epoch.summary
        table.add_row(
            str(item.epoch),
            f"{item.cost_usd_h:,.4f}",
            f"{item.provisioning_usd_h:,.4f}",
            f"{item.initialization_usd_h:,.4f}",
            f"{item.gap * 100:.4f}",
            str(item.instances),
            str(item.nodes),
            str(item.start),
            str(item.stop),
            str(item.keep),
            f"{item.served_share * 100:.1f}",
            f"{item.seconds:.2f}",
        )
    mean = _means([epoch.summary for epoch in found])
    table.add_section()
    table.add_row(
        "mean",
        f"{mean['cost_usd_h']:,.4f}",
        f"{mean['provisioning_usd_h']:,.4f}",
        f"{mean['initialization_usd_h']:,.4f}",
        "",
        "",
        "",
        f"{mean['start']:.1f}",
        f"{mean['stop']:.1f}",
        f"{mean['keep']:.1f}",
        "",
        f"{mean['seconds']:.2f}",
    )
    return table


def _churn_table(walks: list[tuple[float, float, list[Any]]], by_length: bool) -> Any:
    from rich.table import Table

    table = Table(title="Churn against cost, means over epochs after the first")
    for head in (
        *(["epoch s"] if by_length else []),
        "K",
        "cost USD/h",
        "provisioning",
        "initialization",
        "started USD/h",
        "start",
        "stop",
        "keep",
        "seconds",
    ):
        table.add_column(head, justify="right")
    for length, k, found in walks:
        # Epoch 0 starts everything, whatever K is.
        mean = _means([epoch.summary for epoch in found[1:]] or [epoch.summary for epoch in found])
        table.add_row(
            *([f"{length:g}"] if by_length else []),
            f"{k:g}",
            f"{mean['cost_usd_h']:,.4f}",
            f"{mean['provisioning_usd_h']:,.4f}",
            f"{mean['initialization_usd_h']:,.4f}",
            f"{mean['started_usd_h']:,.4f}",
            f"{mean['start']:.2f}",
            f"{mean['stop']:.2f}",
            f"{mean['keep']:.2f}",
            f"{mean['seconds']:.2f}",
        )
    return table
