"""``coralopt compare``: one scenario, several planners, one table."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coralopt.cli.console import JsonFlag, OptionList, ScenarioArgument, parse_options, print_json, print_rich, say
from coralopt.cli.exit_codes import CHECK_FAILED, INTERRUPTED

if TYPE_CHECKING:
    from types import FrameType

    from coralopt.planning.compare import Row
    from coralopt.scenario.resolved import ResolvedScenario
    from coralopt.workload import Trace

DEFAULT = "coral,homo,cauchy,melange,single-best,random,hexgen"


def compare(
    scenario: ScenarioArgument,
    planners: Annotated[
        str,
        typer.Option(help="Planners by comma; settings behind a colon: homo:homogeneous=node;clip=false."),
    ] = DEFAULT,
    solver: Annotated[str | None, typer.Option(help="MILP back end for all; see `coralopt solvers`.")] = None,
    option: OptionList = None,
    time_limit: Annotated[float, typer.Option(min=0, help="Seconds for each plan; the best so far is kept.")] = 60.0,
    shrink: Annotated[
        bool, typer.Option(help="Where all demand cannot be met, plan for the largest percent of it that can.")
    ] = True,
    simulate: Annotated[bool, typer.Option(help="Play the same requests against every plan.")] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Requests to play (CSV or Parquet); by default Poisson at the demand.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model that all requests of the trace ask for.")] = None,
    sort: Annotated[bool, typer.Option("--sort", help="Sort a plain trace whose times fall.")] = False,
    duration: Annotated[float, typer.Option(min=1, help="Seconds of arrivals without a trace.")] = 120.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random planners, requests and simulation.")] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Draw costs and tokens per USD into this file (.svg, .png).")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write every plan into this folder.")] = None,
    json_output: JsonFlag = False,
) -> None:
    """Plan SCENARIO with several planners: cost, lower bound, demand met, tokens per USD, time."""
    from coralopt.errors import OptionError
    from coralopt.planning import PlanRequest
    from coralopt.planning.compare import Contestant, with_bound
    from coralopt.planning.compare import compare as run
    from coralopt.report.comparison import comparison_table, draw_comparison, require_drawable
    from coralopt.scenario import load_scenario

    contestants = [Contestant.parse(text) for text in planners.split(",") if text.strip()]
    if not contestants:
        raise OptionError(f"--planners {planners!r}: names no planner; the default is {DEFAULT}")
    options: dict[str, Any] = {"time_limit": time_limit, **parse_options(option)}
    resolved = load_scenario(scenario)
    wanted = simulate or trace is not None or model is not None or sort
    requests = _requests(resolved, trace, model, sort, duration, seed) if wanted else None
    if plot is not None:
        require_drawable(plot)
    rows: list[Row] = []
    with _stop_after_interrupt() as stopped:

        def finished(row: Row) -> Row:
            if requests is not None and row.plan is not None:
                row = replace(row, simulated=_played(row, requests, seed))
            rows.append(row)
            if output is not None and row.plan is not None:
                output.mkdir(parents=True, exist_ok=True)
                row.plan.save(output / f"{_file_name(row.label)}.json")
            if stopped:
                raise KeyboardInterrupt
            return row

        try:
            run(
                PlanRequest(resolved, solver, options, seed=seed),
                contestants,
                shrink=shrink,
                on_start=lambda label: None if json_output else say(f"{label} ..."),
                on_row=finished,
            )
        except KeyboardInterrupt:
            say("interrupted: the finished rows are kept")
    rows = with_bound(rows)
    if json_output:
        print_json({"scenario": resolved.name, "digest": resolved.digest, "rows": [_plain(row) for row in rows]})
    else:
        print_rich(comparison_table(rows, f"Planners on {resolved.name}"))
        for row in rows:
            for line in (*([row.error] if row.error else []), *row.notes, *row.violations):
                say(f"{row.label}: {line}")
        bound = rows[0].bound_usd_h if rows else math.nan
        if not math.isnan(bound):
            say(f"lower bound, proven by coral: {bound:,.4f} USD/h")
    if plot is not None and rows:
        draw_comparison(rows, plot, f"{resolved.name}: cost by planner")
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


def _requests(
    scenario: ResolvedScenario, trace: Path | None, model: str | None, sort: bool, duration: float, seed: int
) -> Trace:
    """The requests to play; what does not fit the scenario is said before anything is planned.

    Raises:
        WorkloadError: The trace cannot be read, or has requests for other models.
    """
    from coralopt.errors import WorkloadError
    from coralopt.workload import Traffic

    if trace is None:
        return Traffic("poisson", None, model, None, duration, seed, sort=sort).requests(scenario)
    found = Traffic("trace", trace, model, sort=sort).requests(scenario)
    served = tuple(dict.fromkeys(phase.model.name for phase in scenario.model_phases))
    if not any(found.models) and len(served) > 1:
        raise WorkloadError(f"{trace}: names no model; say which of {', '.join(served)} its requests ask for (--model)")
    missing = [name for name in found.models if name and name not in served]
    if missing:
        raise WorkloadError(
            f"{trace}: has requests for {', '.join(missing)}; the scenario has {', '.join(served)}. Rename the trace's "
            "models or plan for them"
        )
    return found


def _played(row: Row, requests: Trace, seed: int) -> dict[str, float]:
    """The requests against a plan; where it was made for a share of the demand, that share of them, drawn by seed."""
    import numpy as np

    from coralopt.simulation import SimulationConfig
    from coralopt.simulation import simulate as play
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
    result = play(row.plan, requests, config=SimulationConfig(seed=seed))
    goodput = sum(o.goodput_tokens_s for o in result.outcomes if o.kind == "decode")
    return {
        "attainment": float(result.attainment),
        "goodput_tokens_s": float(goodput),
        "tokens_usd": float(goodput * 3600 / result.cost_usd_h) if result.cost_usd_h > 0 else math.nan,
        "requests": float(len(requests.arrival_s)),
    }


def _file_name(label: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in label)


def _plain(row: Row) -> dict[str, Any]:
    """A row for machines; plans go to files."""
    keys = (
        "label share demand_met cost_usd_h bound_usd_h above_bound own_gap tokens_usd verified violations seconds error "
        "notes simulated"
    )
    found = {key: getattr(row, key) for key in keys.split()}
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in found.items()}
