"""``coralopt adapt --apply URL``: the plans of epochs, carried out by the servers that run there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from coralopt.cli.console import print_json, say

ApplyTo = Annotated[
    str | None,
    typer.Option(
        "--apply",
        metavar="URL",
        help="Give every epoch's plan to the `coralopt launch` that runs there; without --demand its router's measured "
        "demand is planned for.",
    ),
]
Every = Annotated[float, typer.Option("--every", metavar="SECONDS", help="--apply: length of an epoch, seconds.")]
Floor = Annotated[
    float,
    typer.Option(
        "--floor",
        min=0,
        help="--apply: least demand that is planned for, as a share of the scenario's; keeps quiet models alive.",
    ),
]


def apply_walk(epochs: Iterator[Any], url: str, every_s: float) -> Iterator[Any]:
    """The epochs of a walk, each carried out when its time has come.

    Raises:
        LaunchError: The servers cannot follow a plan; they go on with the one before.
    """
    servers = _servers(url)
    due = time.monotonic()
    for epoch in epochs:
        if not epoch.resumed:
            time.sleep(max(0.0, due - time.monotonic()))
            due = time.monotonic() + every_s
            changes = servers.apply(epoch.plan)
            say(f"epoch {epoch.summary.epoch} runs: {_changes(changes)}")
        yield epoch


def run_loop(
    scenario: Any,
    url: str,
    *,
    every_s: float,
    epochs: int | None,
    forecast: str,
    headroom: float,
    floor: float,
    penalty: float | None,
    inputs: Any,
    solver: str | None,
    options: Mapping[str, Any],
    library: Path | None,
    output: Path | None,
    on_infeasible: Any,
    json_output: bool,
) -> None:
    """Measure, plan and apply until Ctrl-C, or for so many epochs; a line an epoch, or one JSON document at the end."""
    from coralopt.planning import forecast_named
    from coralopt.runtime import follow_demand

    hook = None if forecast == "given" else forecast_named(forecast)
    keys = [phase.key for phase in scenario.model_phases]
    found: list[dict[str, Any]] = []
    say(f"measuring demand at {url}; a plan every {every_s:g} s, Ctrl-C ends it and leaves the servers as they are")
    for epoch in follow_demand(
        scenario,
        _servers(url),
        every_s=every_s,
        epochs=epochs,
        forecast=hook,
        headroom=headroom,
        floor=floor,
        penalty=penalty,
        inputs=inputs,
        solver=solver,
        options=options,
        library=library,
        output=output,
        on_infeasible=on_infeasible,
    ):
        measured = dict(zip(keys, epoch.measured_tokens_s.tolist(), strict=True))
        planned = dict(zip(keys, epoch.planned_tokens_s.tolist(), strict=True))
        found.append(
            {
                "epoch": epoch.epoch,
                "measured_tokens_s": measured,
                "planned_tokens_s": planned,
                "cost_usd_h": None if epoch.plan is None else epoch.plan.provisioning_usd_h,
                "gap": None if epoch.plan is None else epoch.plan.gap,
                "changes": epoch.changes,
                "problem": epoch.problem,
                "remarks": list(epoch.remarks),
            }
        )
        if not json_output:
            wanted = ", ".join(f"{key} {measured[key]:,.1f} measured, {planned[key]:,.1f} planned" for key in keys)
            say(f"epoch {epoch.epoch}: tokens/s: {wanted}")
            if epoch.plan is not None:
                say(f"  plan of {epoch.plan.provisioning_usd_h:,.4f} USD/h, gap {epoch.plan.gap * 100:.3f} %")
            say(f"  {epoch.problem if epoch.changes is None else _changes(epoch.changes)}")
            for remark in epoch.remarks:
                say(f"  {remark}")
    if json_output:
        print_json({"epochs": found})
    elif output is not None:
        say(f"plans and measured demand written to {output}")


def _servers(url: str) -> Any:
    from coralopt.cli.launch import need_runtime_extra

    need_runtime_extra()
    from coralopt.runtime.local.client import RemoteController

    return RemoteController(url, os.environ.get("CORALOPT_API_KEY"))


def _changes(changes: Mapping[str, Any]) -> str:
    words = [f"{what} {', '.join(changes[what])}" for what in ("started", "stopped", "kept") if changes[what]]
    return "; ".join(words) or "nothing runs"
