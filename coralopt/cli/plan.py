"""``coralopt plan``: from a scenario to a checked plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

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
from coralopt.cli.plan_simulate import plan_by_simulation
from coralopt.cli.traffic import (
    DurationOption,
    LengthCvOption,
    ModelOption,
    RateOption,
    TraceOption,
    TrafficOption,
    traffic_from_options,
)


def plan(
    scenario: ScenarioArgument,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the plan document here.")] = None,
    solver: Annotated[str | None, typer.Option(help="MILP back end; see `coralopt solvers`.")] = None,
    formulation: Annotated[str, typer.Option(help="Allocation formulation: split or paper.")] = "split",
    option: OptionList = None,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds for the allocation; the best plan so far is kept.")
    ] = None,
    rel_gap: Annotated[float | None, typer.Option(help="Proven relative gap to stop at.")] = None,
    reductions: Annotated[bool, typer.Option(help="Exact reductions ahead of the solver.")] = True,
    restrict: Annotated[
        int | None, typer.Option(help="Most columns to hand to the solver at once, for licences that stop at a size.")
    ] = None,
    library: Annotated[Path | None, typer.Option(help="Template library file; the cache directory by default.")] = None,
    pipelines: Annotated[bool, typer.Option(help="Draw every instance's pipeline.")] = False,
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="Play requests against the plan and correct it until it keeps its promise."),
    ] = False,
    attainment: Annotated[
        float, typer.Option(help="With --simulate: share of the requests of each model phase that must meet its SLO.")
    ] = 0.99,
    attainment_of: Annotated[
        str,
        typer.Option(help="With --simulate: all requests, or the possible ones that some node could serve in time."),
    ] = "all",
    rounds: Annotated[int, typer.Option(help="With --simulate: most plans to make and play.")] = 16,
    trace: TraceOption = None,
    model: ModelOption = None,
    rate: RateOption = None,
    duration: DurationOption = None,
    traffic: TrafficOption = "poisson",
    seed: Annotated[int, typer.Option(help="With --simulate: seed of the requests.")] = 0,
    length_cv: LengthCvOption = 1.0,
    json_output: JsonFlag = False,
) -> None:
    """Plan SCENARIO: which nodes to rent and how to split every model, at proven cost."""
    from coralopt.errors import OptionError
    from coralopt.plan.verify import verify_plan
    from coralopt.planners import plan_with_report
    from coralopt.report import plan_view
    from coralopt.scenario import load_scenario

    options: dict[str, Any] = parse_options(option)
    if time_limit is not None:
        options["time_limit"] = time_limit
    if rel_gap is not None:
        options["rel_gap"] = rel_gap
    resolved = load_scenario(scenario)
    if simulate:
        if formulation != "split" or not reductions or restrict is not None:
            raise OptionError(
                "--simulate plans with the default formulation and all reductions; leave those options out"
            )
        plan_by_simulation(
            resolved,
            traffic_from_options(trace, model, rate, duration, traffic, seed, length_cv),
            target=attainment,
            over=attainment_of,
            rounds=rounds,
            solver=solver,
            options=options,
            library=library,
            output=output,
            pipelines=pipelines,
            json_output=json_output,
        )
        return
    if trace is not None:
        raise OptionError("a --trace is played with --simulate only")
    with library_progress(quiet=json_output) as progress:
        document, report = plan_with_report(
            resolved,
            solver=solver,
            options=options,
            formulation=formulation,
            reductions=reductions,
            restrict=restrict,
            library=library,
            progress=progress,
        )
    verification = verify_plan(document)
    if output is not None:
        document.save(output)
    if json_output:
        print_json(
            {
                "plan": document.model_dump(mode="json"),
                "verified": verification.ok,
                "violations": list(verification.violations),
                "seconds": dict(report.seconds),
                "templates": report.templates,
                "node_sets": report.node_sets,
                "library_reused": report.library_reused,
            }
        )
    else:
        print_rich(plan_view(document, pipelines=pipelines))
        origin = "read from the library" if report.library_reused else f"from {report.node_sets:,} node sets"
        say(
            f"{report.templates:,} templates {origin}; seconds: "
            + ", ".join(f"{name} {value:.2f}" for name, value in report.seconds.items())
        )
        say("checked: every figure recomputed" if verification.ok else "CHECK FAILED:")
        if output is not None:
            say(f"plan written to {output}")
    for violation in verification.violations:
        say(f"  - {violation}")
    if not verification.ok:
        raise typer.Exit(1)
