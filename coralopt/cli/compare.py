"""``coralopt compare``: one scenario, several planners, one table."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coralopt.cli.console import JsonFlag, ScenarioArgument, file_to_write, folder_to_write, plain, say
from coralopt.cli.exit_codes import CHECK_FAILED, INTERRUPTED
from coralopt.cli.option_groups import OptionGroup, option, takes_groups
from coralopt.cli.present import CommandOutput, present
from coralopt.cli.shared_options import SolverOptions, TrafficOptions

if TYPE_CHECKING:
    from types import FrameType

    from coralopt.planning.compare import Row
    from coralopt.scenario.resolved import ResolvedScenario
    from coralopt.workload import Trace

DEFAULT = "coral,homo,cauchy,melange,single-best,random,hexgen"
#: Seconds for each plan, and seconds of requests.
TIME_LIMIT_S, DURATION_S = 60.0, 120.0
#: What a row says to machines.
ROW_KEYS = (
    *("label", "share", "demand_met", "cost_usd_h", "bound_usd_h", "above_bound", "own_gap", "tokens_usd"),
    *("verified", "violations", "seconds", "error", "notes", "simulated", "attained"),
)


@dataclass(frozen=True)
class CompareSolver(SolverOptions):
    """The same for every planner, with a limit."""

    time_limit: float | None = option(None, "Seconds for each plan, 60 by default; the best so far is kept.", least=0)


@dataclass(frozen=True)
class CompareTraffic(TrafficOptions):
    """Requests that every plan is simulated with."""

    simulate: bool = option(False, "Simulate the same requests on every plan.")
    duration: float | None = option(None, "Seconds of arrivals without a trace; 120 by default.", least=1)

    @property
    def wanted(self) -> bool:
        """Whether requests are simulated at all: also where an option only makes sense with them."""
        return self.simulate or self.trace is not None or self.model is not None or self.sort or self.rate is not None

    def requests(self, scenario: ResolvedScenario) -> Trace:
        """The requests; what does not fit the scenario is said before anything is planned.

        Raises:
            WorkloadError: The trace cannot be read, or has requests for other models.
        """
        from coralopt.errors import WorkloadError

        trace = self.trace
        if trace is None:
            return replace(self, duration=self.duration or DURATION_S).source().requests(scenario)
        requests = self.source().requests(scenario)
        served = tuple(dict.fromkeys(phase.served for phase in scenario.model_phases))
        if not any(requests.models) and len(served) > 1:
            raise WorkloadError(
                f"{trace}: names no model; say which of {', '.join(served)} its requests ask for (--model)"
            )
        missing = [name for name in requests.models if name and name not in served]
        if missing:
            raise WorkloadError(
                f"{trace}: has requests for {', '.join(missing)}; the scenario has {', '.join(served)}. Rename the "
                "trace's models or plan for them"
            )
        return requests


@dataclass(frozen=True)
class CompareOutput(OptionGroup):
    """Where the comparison goes."""

    plot: Path | None = option(None, "Draw costs and tokens per USD into this file (.svg, .png).", check=file_to_write)
    output: Path | None = option(None, "Write every plan into this folder.", "--output", "-o", check=folder_to_write)
    json_output: JsonFlag = False


@takes_groups
def compare(
    scenario: ScenarioArgument,
    files: CompareOutput,
    solver: CompareSolver,
    traffic: CompareTraffic,
    planners: Annotated[
        str,
        typer.Option(help="Planners by comma; settings behind a colon: homo:homogeneous=node;clip=false."),
    ] = DEFAULT,
    shrink: Annotated[
        bool, typer.Option(help="Where all demand cannot be met, plan for the largest percent of it that can.")
    ] = True,
) -> None:
    """Plan SCENARIO with several planners: cost, lower bound, demand met, tokens per USD, time."""
    from coralopt.errors import OptionError
    from coralopt.plan.bill import throughput_notes
    from coralopt.plan.files import write_text
    from coralopt.planning.compare import Contestant, with_bound
    from coralopt.planning.compare import compare as run
    from coralopt.report.comparison import attainment_table, comparison_table, draw_comparison, require_drawable
    from coralopt.scenario import load_scenario

    contestants = [Contestant.parse(text) for text in planners.split(",") if text.strip()]
    if not contestants:
        raise OptionError(f"--planners {planners!r}: names no planner; the default is {DEFAULT}")
    resolved = load_scenario(scenario)
    options = {"time_limit": TIME_LIMIT_S, **solver.options}
    request = replace(solver.request(resolved), options=options, seed=traffic.seed)
    requests = traffic.requests(resolved) if traffic.wanted else None
    if files.plot is not None:
        require_drawable(files.plot)
    quiet = files.json_output
    kept: list[Row] = []
    with _stop_after_interrupt() as stopped:

        def finished(row: Row) -> Row:
            if requests is not None and row.plan is not None:
                row = _simulated(row, requests, traffic.seed)
            kept.append(row)
            if files.output is not None and row.plan is not None:
                row.plan.save(files.output / str(_file_name(row)))
            if stopped:
                raise KeyboardInterrupt
            return row

        try:
            run(
                request,
                contestants,
                shrink=shrink,
                on_start=lambda label: None if quiet else say(f"{label} ..."),
                on_row=finished,
            )
        except KeyboardInterrupt:
            say("interrupted: the finished rows are kept")
    rows = with_bound(kept)
    lines = [
        f"{row.label}: {line}"
        for row in rows
        for line in (*([row.error] if row.error else []), *row.notes, *row.violations)
    ]
    lines += throughput_notes(row.plan for row in rows if row.plan is not None)
    if rows and not math.isnan(rows[0].bound_usd_h):
        is_for = (
            ""
            if all(phase.attainment is None for phase in resolved.model_phases)
            else (" for plans that hold for the share of requests asked for; the other planners plan for mean requests")
        )
        lines.append(f"lower bound, proven by coral: {rows[0].bound_usd_h:,.4f} USD/h{is_for}")
    document = {
        "scenario": resolved.name,
        "digest": resolved.digest,
        # Plans go to files.
        "rows": [{key: getattr(row, key) for key in ROW_KEYS} | {"file": _file_name(row)} for row in rows],
    }
    if files.output is not None:
        text = json.dumps(plain(document), indent=2, ensure_ascii=False) + "\n"
        write_text(files.output / "comparison.json", text, "the comparison")
    tables = [comparison_table(rows, f"Planners on {resolved.name}")]
    if requests is not None:
        tables.append(attainment_table(rows, "Requests within SLO by model phase, with 95 % interval"))
    present(CommandOutput(document, tables, lines), quiet)
    if files.plot is not None and rows:
        draw_comparison(rows, files.plot, f"{resolved.name}: cost by planner")
    if stopped:
        raise typer.Exit(INTERRUPTED)
    if any(row.plan is not None and not row.verified for row in rows):
        raise typer.Exit(CHECK_FAILED)


@contextmanager
def _stop_after_interrupt() -> Iterator[list[int]]:
    """Remember Ctrl-C: a solver may take it as the wish to stop early, and the next planner must not begin then."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def _simulated(row: Row, requests: Trace, seed: int) -> Row:
    """The row with a simulation of its plan; where it was made for a share of the demand, of that share of the requests,
    drawn by seed."""
    import numpy as np

    from coralopt.report.promise import interval
    from coralopt.report.simulation import outcome_name
    from coralopt.simulation import SimulationConfig
    from coralopt.simulation import simulate as run_simulation
    from coralopt.workload import Trace

    assert row.plan is not None
    if row.share < 1:
        keep = np.random.default_rng(seed).random(len(requests.arrival_s)) < row.share
        requests = Trace(
            requests.arrival_s[keep],
            requests.input_tokens[keep],
            requests.output_tokens[keep],
            requests.model[keep],
            requests.models,
        )
    result = run_simulation(row.plan, requests, config=SimulationConfig(seed=seed))
    goodput = sum(o.goodput_tokens_s for o in result.outcomes if o.kind == "decode")
    figures = {
        "attainment": float(result.attainment),
        "goodput_tokens_s": float(goodput),
        "tokens_usd": float(goodput * 3600 / result.cost_usd_h) if result.cost_usd_h > 0 else math.nan,
        "requests": float(len(requests.arrival_s)),
    }
    attained: dict[str, dict[str, float]] = {}
    for outcome in result.outcomes:
        low, high = interval(outcome.attainment, outcome.requests)
        attained[outcome_name(outcome)] = {
            "attainment": outcome.attainment,
            "low": low,
            "high": high,
            "requests": outcome.requests,
        }
    return replace(row, simulated=figures, attained=attained)


def _file_name(row: Row) -> str | None:
    """Name of the plan's file; ``None`` where there is no plan."""
    if row.plan is None:
        return None
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in row.label) + ".json"
