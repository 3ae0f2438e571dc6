"""``coralopt plan``: from a scenario to a checked plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
from coralopt.cli.placing import ExecutableBy, OnInfeasibleOption, UnmetPriceOption, with_rules
from coralopt.cli.plan_by import plan_by
from coralopt.cli.plan_simulate import plan_by_simulation
from coralopt.cli.traffic import (
    DurationOption,
    LengthCvOption,
    ModelOption,
    RateOption,
    SortOption,
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
    on_infeasible: OnInfeasibleOption = "explain",
    budget: Annotated[float | None, typer.Option(metavar="USD_H", help="Most rent, USD/h.")] = None,
    min_replicas: Annotated[int | None, typer.Option(help="Least instances of every model phase.")] = None,
    survive_region_loss: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of every demand left when any one region is lost.")
    ] = None,
    forbid: Annotated[
        list[str] | None, typer.Option(metavar="MODEL:GPU", help="A GPU or configuration not to use; may be repeated.")
    ] = None,
    unmet_price: UnmetPriceOption = None,
    library: Annotated[Path | None, typer.Option(help="Template library file; the cache directory by default.")] = None,
    executable_by: ExecutableBy = None,
    pipelines: Annotated[bool, typer.Option(help="Draw every instance's pipeline.")] = False,
    planner: Annotated[str, typer.Option(help="Planner; see docs/planners.md.")] = "coral",
    planner_option: Annotated[
        list[str] | None,
        typer.Option("--planner-option", metavar="NAME=VALUE", help="Setting of another planner; may be repeated."),
    ] = None,
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
    sort: SortOption = False,
    rate: RateOption = None,
    duration: DurationOption = None,
    traffic: TrafficOption = "poisson",
    seed: Annotated[int, typer.Option(min=0, help="Seed of what --simulate or a --planner draws.")] = 0,
    length_cv: LengthCvOption = 1.0,
    json_output: JsonFlag = False,
) -> None:
    """Plan SCENARIO: which nodes to rent and how to split every model, at proven cost."""
    from coralopt.errors import OptionError
    from coralopt.plan.verify import verify_plan
    from coralopt.planning import parse_forbidden, plan_with_report
    from coralopt.report import plan_view
    from coralopt.scenario import load_scenario, with_operations

    options = parse_options(option, time_limit=time_limit, rel_gap=rel_gap)
    resolved = with_operations(
        with_rules(load_scenario(scenario), executable_by),
        budget_usd_h=budget,
        min_replicas=min_replicas,
        survive_region_loss=survive_region_loss,
        forbidden=parse_forbidden(forbid or []),
        unmet_usd_mtok=unmet_price,
    )
    if simulate:
        if formulation != "split" or not reductions or restrict is not None or on_infeasible != "explain":
            raise OptionError(
                "--simulate plans with the default formulation and all reductions, and for the whole demand; leave out "
                "--formulation, --no-reductions, --restrict and --on-infeasible"
            )
        if planner != "coral":
            raise OptionError("--simulate corrects plans of coral; for others see coralopt compare --simulate")
        plan_by_simulation(
            resolved,
            traffic_from_options(trace, model, rate, duration, traffic, seed, length_cv, sort),
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
    if planner != "coral":
        if on_infeasible != "explain":
            raise OptionError("--on-infeasible is for the planner coral; others tell what share they cannot serve")
        plan_by(
            planner,
            resolved,
            settings=parse_options(planner_option),
            solver=solver,
            options=options,
            library=library,
            seed=seed,
            output=output,
            pipelines=pipelines,
            json_output=json_output,
        )
        return
    if planner_option:
        raise OptionError("--planner-option is for other planners than coral; give --planner")
    with library_progress(quiet=json_output) as progress:
        document, report = plan_with_report(
            resolved,
            solver=solver,
            options=options,
            formulation=formulation,
            reductions=reductions,
            restrict=restrict,
            on_infeasible=on_infeasible,  # type: ignore[arg-type]
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
                "violations": list(verification.sentences),
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
    for violation in verification.sentences:
        say(f"  - {violation}")
    if not verification.ok:
        raise typer.Exit(1)
