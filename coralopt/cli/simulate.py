"""``coralopt simulate``: simulate requests on a plan and say whether it keeps its promise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coralopt.cli.console import JsonFlag, file_to_write, folder_to_write, keep_apart, progress_bar
from coralopt.cli.option_groups import OptionGroup, option, takes_groups
from coralopt.cli.present import CommandOutput, present
from coralopt.cli.shared_options import TrafficOptions

if TYPE_CHECKING:
    from coralopt.plan import Plan
    from coralopt.simulation import SimulationResult
    from coralopt.workload import Trace

#: Length of an epoch, s (paper, section 5.1).
EPOCH_S = 360.0


@dataclass(frozen=True)
class EpochsOptions(OptionGroup):
    """Plans of several epochs."""

    epochs: Path | None = option(None, "Folder of `coralopt adapt`: its plans one after the other, instead of PLAN.")
    epoch: float | None = option(
        None, "Length of an epoch, s: of the report (by default one a plan), and of --epochs (360)."
    )
    lead: float = option(0.0, "With --epochs: seconds before its epoch that a plan is put into force.")


@dataclass(frozen=True)
class ClusterOptions(OptionGroup):
    """What the simulated cluster is like."""

    panel = "Simulated cluster"

    noise: float = option(0.0, "Coefficient of variation of every stage time.")
    kv_gb_s: float | None = option(None, "Bandwidth of KV transfers, GB/s; by default each node's network.")
    kv_latency_ms: float = option(1.0, "Latency of a KV transfer, ms.")
    routing: str | None = option(None, "weighted-round-robin, least-work or power-of-two; by default the scenario's.")
    order: str | None = option(None, "fifo, hopeless-last or shortest-first; by default the scenario's.")
    admission: str | None = option(None, "reserve or preempt; by default the scenario's.")
    cold_start: bool = option(False, "The first plan's nodes must start and load weights, too.", "--cold-start")


@dataclass(frozen=True)
class SimulationOutput(OptionGroup):
    """Where the result goes."""

    output: Path | None = option(None, "Write one row a request, as Parquet.", "--output", "-o", check=file_to_write)
    plot: Path | None = option(
        None, "Folder for pictures: latency CDFs, goodput per epoch, utilisation.", check=folder_to_write
    )
    json_output: JsonFlag = False


@takes_groups
def simulate(
    traffic: TrafficOptions,
    epochs: EpochsOptions,
    cluster: ClusterOptions,
    files: SimulationOutput,
    plan: Annotated[
        list[str] | None,
        typer.Argument(metavar="PLAN...", help="A plan document; or several as START_S=PLAN, one from each start on."),
    ] = None,
) -> None:
    """Simulate requests on PLAN: what it promised, what happened, and where and why the promise broke."""
    from coralopt.errors import OptionError
    from coralopt.planning.rolling.schedule import load_schedule
    from coralopt.report.simulation import simulation_view
    from coralopt.simulation import SimulationConfig
    from coralopt.simulation import simulate as run_simulation

    if (plan is None) == (epochs.epochs is None):
        raise OptionError("give either plans, or --epochs with the folder of `coralopt adapt`")
    if epochs.lead and epochs.epochs is None:
        raise OptionError("--lead goes with --epochs")
    keep_apart([traffic.trace, *(path for text in plan or () for path in (text, text.partition("=")[2]))], files.output)
    if files.output is not None and files.output.suffix != ".parquet":
        raise OptionError(f"{files.output}: requests are written as .parquet")
    epoch_s = epochs.epoch
    if epochs.epochs is not None:
        epoch_s = EPOCH_S if epoch_s is None else epoch_s
        schedule = load_schedule(epochs.epochs, epoch_s, epochs.lead)
    else:
        schedule = [_planned(text) for text in plan or ()]
    config = SimulationConfig(
        seed=traffic.seed,
        noise=cluster.noise,
        kv_gb_s=cluster.kv_gb_s,
        kv_latency_ms=cluster.kv_latency_ms,
        warm_start=not cluster.cold_start,
        routing=cluster.routing,
        order=cluster.order,
        admission=cluster.admission,
    )
    requests, window_s, words = _requests(traffic, schedule, None if epochs.epochs is None else epoch_s)
    with progress_bar("simulation", quiet=files.json_output) as progress:
        result = run_simulation(
            schedule, requests, config=config, duration_s=window_s, epoch_s=epoch_s, progress=progress
        )
    lines = [f"requests: {words}", *(_remarks(requests) if traffic.trace is not None else ())]
    if files.output is not None:
        result.save_requests(files.output)
        lines.append(f"{len(result.requests['status']):,} requests written to {files.output}")
    if files.plot is not None:
        from coralopt.report.simulation_plots import plot_simulation

        lines += [f"{path} written" for path in plot_simulation(result, files.plot)]
    present(CommandOutput(_document(result) | {"traffic": words}, [simulation_view(result)], lines), files.json_output)


def _planned(text: str) -> tuple[float, Plan]:
    """``"360=b.json"`` -> (360.0, plan); a plain path starts at 0."""
    from coralopt.plan import Plan

    start, separator, path = text.partition("=")
    try:
        return (float(start), Plan.load(path)) if separator else (0.0, Plan.load(text))
    except ValueError:
        # The path itself holds an equals sign.
        return 0.0, Plan.load(text)


def _requests(
    traffic: TrafficOptions, schedule: list[tuple[float, Plan]], epoch_s: float | None
) -> tuple[Trace, float | None, str]:
    """The requests, the seconds of arrivals (``None``: as long as they arrive), and what they are in words.

    Args:
        traffic: What the command line asks for.
        schedule: Plans and when they start, s.
        epoch_s: Length of an epoch where the plans are those of epochs, else ``None``.

    Raises:
        OptionError: Options that do not go together.
    """
    from coralopt.errors import OptionError
    from coralopt.planning.rolling.schedule import schedule_requests
    from coralopt.scenario import scenario_from_mapping

    source = traffic.source()
    if epoch_s is not None and traffic.trace is None:
        if traffic.rate is not None or traffic.duration is not None:
            raise OptionError(
                "--epochs without a --trace simulates each epoch's own demand; leave --rate and --duration out"
            )
        words = f"at each epoch's demand, {len(schedule)} epochs of {epoch_s:g} s, seed {traffic.seed}"
        requests = schedule_requests(schedule, epoch_s, source)
        return requests, epoch_s * len(schedule), f"{traffic.traffic} traffic {words}"
    requests = source.requests(scenario_from_mapping(schedule[0][1].scenario, source="the plan's scenario"))
    window_s = requests.last_arrival_s if source.window_s is None else source.window_s
    late_s = max(start_s for start_s, _ in schedule)
    if epoch_s is None and late_s > 0 and late_s >= window_s:
        raise OptionError(f"a plan begins at {late_s:g} s, after {window_s:g} s of requests; give a longer --duration")
    return requests, source.window_s, source.words


def _remarks(trace: Trace) -> list[str]:
    """A remark on requests that share their instant with the one before: a coarse clock, or rows that came twice."""
    import numpy as np

    same = np.diff(trace.arrival_s) == 0
    if not same.any():
        return []
    columns = (trace.input_tokens, trace.output_tokens, trace.model)
    twice = same & np.all([np.diff(column) == 0 for column in columns], axis=0)
    return [
        f"{int(same.sum()):,} of {len(trace):,} requests arrive at the same instant as the one before, "
        f"{int(twice.sum()):,} of these are equal to it; all are simulated, in the order of the file"
    ]


def _document(result: SimulationResult) -> dict[str, object]:
    """Figures for machines. Requests go to a file of their own."""
    from coralopt.report.simulation import latency_quantiles

    status = result.requests["status"]
    return {
        "window_s": result.window_s,
        "end_s": result.end_s,
        "requests": len(status),
        **{word: int((status == s).sum()) for s, word in enumerate(("never_served", "finished", "rejected"))},
        **{
            name: getattr(result, name)
            for name in (
                *("attainment", "attainment_feasible", "cost_usd", "cost_usd_h", "events", "outcomes", "epochs"),
                *("instances", "nodes", "epoch_utilisation", "queues"),
            )
        },
        "latencies": latency_quantiles(result),
    }
