"""``coralopt follow``: the plans of epochs, carried out by the servers that run behind a router."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coralopt.cli.adapt import EpochPlanning, present_runs
from coralopt.cli.console import ScenarioArgument, say
from coralopt.cli.epoch_options import EpochOptions, FolderOptions, ForecastOptions
from coralopt.cli.option_groups import OptionGroup, option, takes_groups
from coralopt.cli.present import CommandOutput, present
from coralopt.cli.shared_options import DemandOptions, LibraryOptions, SolverOptions

if TYPE_CHECKING:
    from coralopt.planning import Epoch
    from coralopt.runtime.loop import Servers


@dataclass(frozen=True)
class RouterOptions(OptionGroup):
    """The servers, and how often they are given a plan."""

    router: str = option(
        ..., "The folder of the `coralopt launch start` that is to follow the plans, or its URL.", metavar="DIR|URL"
    )
    every: float = option(300.0, "Length of an epoch, seconds.", metavar="SECONDS")
    floor: float = option(
        0.01, "Least demand that is planned for, as a share of the scenario's; keeps quiet models alive.", least=0
    )


@takes_groups
def follow(
    scenario: ScenarioArgument,
    router: RouterOptions,
    files: FolderOptions,
    epochs: EpochOptions,
    forecast: ForecastOptions,
    solver: SolverOptions,
    limits: DemandOptions,
    library: LibraryOptions,
) -> None:
    """Give every epoch's plan of SCENARIO to running servers; without --demand, for what their router measures."""
    from coralopt.errors import OptionError

    if len(epochs.penalties) > 1 or len(epochs.lengths_s) > 1:
        raise OptionError("several values of --penalty or --epoch are for comparing; servers follow the plans of one")
    if files.restart and epochs.demand is None:
        raise OptionError(
            "--restart is for plans of --demand; measured demand goes on in its folder, or in another one"
        )
    if epochs.perfect:
        raise OptionError("--perfect compares plans with a yardstick; leave it to coralopt adapt")
    epochs.check()
    resolved = epochs.on(limits.on(library.load(scenario)))
    servers = _servers(router.router)
    request = solver.request(resolved, library.library, limits.on_infeasible)
    planning = EpochPlanning(request, forecast, files)
    if epochs.demand is not None:
        case = next(epochs.cases(resolved))
        (planned,) = planning.runs([case])
        present_runs(resolved, epochs, files, [(case, list(_in_time(planned, servers, router.every)))])
        return
    _follow_measured(planning, servers, router, epochs)


def _in_time(epochs: Iterator[Epoch], servers: Servers, every_s: float) -> Iterator[Epoch]:
    """The epochs, each carried out when its time has come.

    Raises:
        LaunchError: The servers cannot follow a plan; they go on with the one before.
    """
    due = time.monotonic()
    for epoch in epochs:
        if not epoch.resumed:
            time.sleep(max(0.0, due - time.monotonic()))
            due = time.monotonic() + every_s
            changes = servers.apply(epoch.plan)
            say(f"epoch {epoch.summary.epoch} runs: {_changes(changes)}")
        yield epoch


def _follow_measured(planning: EpochPlanning, servers: Servers, router: RouterOptions, epochs: EpochOptions) -> None:
    """Measure, plan and apply until Ctrl-C, or for so many epochs; a line an epoch, or one JSON document at the end."""
    from coralopt.planning import LastValue, epoch_inputs, forecast_named
    from coralopt.runtime.loop import LoopSettings, follow_demand

    scenario, files = planning.request.scenario, planning.files
    tables = epochs.supply()
    supply = None if tables == (None, None) else epoch_inputs(scenario, None, *tables)
    keys = [phase.key for phase in scenario.model_phases]
    rows: list[dict[str, object]] = []
    say(
        f"measuring demand at {router.router}; a plan every {router.every:g} s, Ctrl-C ends it and leaves the servers as "
        "they are"
    )
    settings = LoopSettings(
        router.every,
        epochs.epochs,
        forecast_named(planning.forecast.forecast) or LastValue(),
        planning.forecast.headroom,
        router.floor,
        epochs.penalties[0],
        supply,
        files.output,
    )
    for epoch in follow_demand(planning.request, servers, settings):
        measured = dict(zip(keys, epoch.measured_tokens_s.tolist(), strict=True))
        planned = dict(zip(keys, epoch.planned_tokens_s.tolist(), strict=True))
        plan = epoch.plan
        rows.append(
            {
                "epoch": epoch.epoch,
                "measured_tokens_s": measured,
                "planned_tokens_s": planned,
                "cost_usd_h": None if plan is None else plan.provisioning_usd_h,
                "gap": None if plan is None else plan.gap,
                "changes": epoch.changes,
                "problem": epoch.problem,
                "remarks": epoch.remarks,
            }
        )
        if files.json_output:
            continue
        wanted = ", ".join(f"{key} {measured[key]:,.1f} measured, {planned[key]:,.1f} planned" for key in keys)
        say(f"epoch {epoch.epoch}: tokens/s: {wanted}")
        if plan is not None:
            say(f"  plan of {plan.provisioning_usd_h:,.4f} USD/h, gap {plan.gap * 100:.3f} %")
        say(f"  {epoch.problem if epoch.changes is None else _changes(epoch.changes)}")
        for remark in epoch.remarks:
            say(f"  {remark}")
    written = [] if files.output is None else [f"plans and measured demand written to {files.output}"]
    present(CommandOutput({"epochs": rows}, lines=written), files.json_output)


def _servers(url: str) -> Servers:
    from coralopt.cli.launch_options import controller, need_runtime_extra

    need_runtime_extra()
    return controller(url)


def _changes(changes: Mapping[str, list[str]]) -> str:
    words = [f"{what} {', '.join(changes[what])}" for what in ("started", "stopped", "kept") if changes[what]]
    return "; ".join(words) or "nothing runs"
