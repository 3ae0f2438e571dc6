"""``coralopt library``: look into a template library, doubt it, export it, compare two."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from coralopt.cli.console import (
    JsonFlag,
    OptionList,
    parse_options,
    print_json,
    print_rich,
    progress_bar,
    say,
)

app = typer.Typer(no_args_is_help=True, help="Look into a template library, check it, export it, compare two.")

LibraryArgument = Annotated[Path, typer.Argument(metavar="LIB", help="A library file of `coralopt templates -o`.")]
ScenarioOption = Annotated[
    str | None,
    typer.Option("--scenario", help="Take prices from here; default: the scenario that the library carries."),
]
PhaseOption = Annotated[
    str | None, typer.Option("--phase", help="Model phase, for example qwen3-32b/prefill; default: all.")
]


def _open(path: Path, scenario: str | None) -> tuple[Any, Any]:
    from coralopt.scenario import load_scenario
    from coralopt.templates import library_scenario, load_library

    library = load_library(path)
    return library, library_scenario(library, load_scenario(scenario) if scenario is not None else None)


@app.command()
def info(library: LibraryArgument, json_output: JsonFlag = False) -> None:
    """What LIB holds: scenario, method, digest, templates of each model phase."""
    from rich.table import Table

    from coralopt.templates import content_digest, load_library

    loaded = load_library(library)
    rows = []
    for phase in loaded.phases:
        stages = (phase.stage_layers > 0).sum(axis=1)
        rows.append(
            {
                "model_phase": phase.key,
                "node_sets": phase.examined,
                "templates": len(phase),
                "most_stages": int(stages.max(initial=0)),
                "lowest_tokens_s": float(phase.throughput.min()) if len(phase) else 0.0,
                "best_tokens_s": float(phase.throughput.max()) if len(phase) else 0.0,
            }
        )
    facts = {
        "library": str(library),
        "scenario": loaded.scenario,
        "digest": loaded.digest,
        "content": content_digest(loaded),
        "method": dict(loaded.method),
        "configurations": list(loaded.configurations),
        "templates": len(loaded),
    }
    if json_output:
        print_json({**facts, "phases": rows})
        return
    table = Table(title=f"{library}: {len(loaded):,} templates of {loaded.scenario}")
    table.add_column("model phase")
    for head in ("node sets", "templates", "most stages", "lowest tokens/s", "best tokens/s"):
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(str(row["model_phase"]), *(f"{row[n]:,}" for n in ("node_sets", "templates", "most_stages")),
                      *(f"{row[n]:,.1f}" for n in ("lowest_tokens_s", "best_tokens_s")))  # fmt: skip
    print_rich(table)
    method = ", ".join(f"{name} {value}" for name, value in loaded.method.items() if value) or "unknown"
    say(f"method: {method}; digest {loaded.digest[:16]}; configurations: {', '.join(loaded.configurations)}")


@app.command()
def top(
    library: LibraryArgument,
    phase: PhaseOption = None,
    region: Annotated[str | None, typer.Option(help="Prices of this region; default: the cheapest one.")] = None,
    nodes: Annotated[str, typer.Option(help="any, mixed (several GPU types) or pure (one GPU type).")] = "any",
    gpus: Annotated[str | None, typer.Option(help="Only these GPU types, for example L40S,H100.")] = None,
    limit: Annotated[int, typer.Option("-n", min=1, help="How many of each model phase.")] = 5,
    scenario: ScenarioOption = None,
    json_output: JsonFlag = False,
) -> None:
    """The templates of LIB with the most tokens/s for one USD/h."""
    from rich.table import Table

    from coralopt.errors import OptionError
    from coralopt.report import stages_text
    from coralopt.templates import rank_templates

    if nodes not in ("any", "mixed", "pure"):
        raise OptionError(f"--nodes {nodes!r}: choose any, mixed or pure")
    loaded, resolved = _open(library, scenario)
    only = None if gpus is None else [name.strip() for name in gpus.split(",")]
    document: dict[str, Any] = {}
    for key in [phase] if phase is not None else loaded.by_key:
        ranked = rank_templates(loaded, resolved, key, region=region, mix=nodes, gpus=only, limit=limit)  # type: ignore[arg-type]
        document[key] = [
            {**asdict(item), "placement": stages_text(item.placement, loaded.configurations)} for item in ranked
        ]
    if json_output:
        print_json(document)
        return
    for key, ranked_rows in document.items():
        table = Table(title=f"{key}: most tokens/s for one USD/h")
        for head in ("tokens/s per USD/h", "tokens/s", "USD/h"):
            table.add_column(head, justify="right")
        table.add_column("region")
        table.add_column("stages (nodes:layers)", overflow="fold")
        for row in ranked_rows:
            table.add_row(f"{row['tokens_s_per_usd_h']:,.2f}", f"{row['tokens_s']:,.1f}", f"{row['price_usd_h']:,.4f}",
                          row["region"], row["placement"].replace("[", "\\["))  # fmt: skip
        print_rich(table)


@app.command()
def spread(
    library: LibraryArgument, phase: PhaseOption = None, scenario: ScenarioOption = None, json_output: JsonFlag = False
) -> None:
    """How finely the throughputs of LIB are graded, with mixed node sets and with one GPU type only."""
    from rich.table import Table

    from coralopt.templates import throughput_spread

    loaded, resolved = _open(library, scenario)
    rows = []
    for key in [phase] if phase is not None else loaded.by_key:
        everything, pure = throughput_spread(loaded, resolved, key)
        rows.append(
            {
                "model_phase": key,
                "levels": everything.levels,
                "levels_one_gpu_type": pure.levels,
                "overshoot": everything.overshoot,
                "overshoot_one_gpu_type": pure.overshoot,
            }
        )
    if json_output:
        print_json(rows)
        return
    table = Table(title="Throughputs offered, and how far one instance overshoots a demand on average")
    table.add_column("model phase")
    for head in ("levels", "with one GPU type", "overshoot", "with one GPU type"):
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(str(row["model_phase"]), f"{row['levels']:,}", f"{row['levels_one_gpu_type']:,}",
                      f"{row['overshoot']:.3%}", f"{row['overshoot_one_gpu_type']:.3%}")  # fmt: skip
    print_rich(table)


@app.command()
def plot(
    library: LibraryArgument,
    phase: Annotated[str, typer.Option("--phase", help="Model phase, for example gpt-oss-120b/decode.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Picture: .svg, .png or .pdf.")],
    scenario: ScenarioOption = None,
) -> None:
    """Draw the distribution of throughputs of LIB, mixed against one GPU type."""
    from coralopt.report import plot_spread

    loaded, resolved = _open(library, scenario)
    plot_spread(loaded, resolved, phase, output)
    say(f"plot written to {output}")


@app.command()
def export(
    library: LibraryArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="CSV file.")],
    phase: PhaseOption = None,
    scenario: ScenarioOption = None,
) -> None:
    """Write the templates of LIB as CSV, with prices and stages in words."""
    from coralopt.report import export_library

    loaded, resolved = _open(library, scenario)
    count = export_library(loaded, resolved, output, None if phase is None else [phase])
    say(f"{count:,} templates written to {output}")


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(metavar="LIB", help="A library file.")],
    second: Annotated[Path, typer.Argument(metavar="OTHER", help="Another one.")],
    json_output: JsonFlag = False,
) -> None:
    """Compare two libraries: node sets that only one has, throughputs that differ. Exits 1 when they differ."""
    from rich.table import Table

    from coralopt.templates import compare_libraries, load_library

    found = compare_libraries(load_library(first), load_library(second))
    if json_output:
        print_json([asdict(item) for item in found])
    else:
        table = Table(title=f"{second} against {first}")
        table.add_column("model phase")
        for head in ("only first", "only second", "equal", "higher", "lower", "largest rise", "largest fall"):
            table.add_column(head, justify="right")
        for item in found:
            table.add_row(item.key, *(f"{n:,}" for n in (item.only_first, item.only_second, item.equal, item.higher,
                          item.lower)), f"{item.largest_rise:.3g}", f"{item.largest_fall:.3g}")  # fmt: skip
        print_rich(table)
    if not all(item.same for item in found):
        raise typer.Exit(1)


@app.command()
def bound(
    library: LibraryArgument,
    plan: Annotated[
        Path | None, typer.Option(help="A plan of the scenario, to hold its cost against the bound.")
    ] = None,
    grid: Annotated[int, typer.Option(min=0, help="Steps of each demand; more are slower and tighter.")] = 1000,
    scenario: ScenarioOption = None,
    json_output: JsonFlag = False,
) -> None:
    """How much cheaper than LIB could node sets of any size be? A proven answer, for templates and for a whole plan."""
    from rich.table import Table

    from coralopt.errors import LibraryError, PlanError
    from coralopt.plan import Plan
    from coralopt.templates import allocation_certificate, phase_bounds, rank_templates, unlimited_tables

    loaded, resolved = _open(library, scenario)
    if resolved.placement.budget_units is not None:
        raise LibraryError("the bound is for latency budgets of SLO / S; this library's are free")
    loaded_plan = None if plan is None else Plan.load(plan)
    if loaded_plan is not None and any(item.unmet_tokens_s for item in loaded_plan.demands):
        raise PlanError(
            f"{plan}: the plan leaves demand unmet, the bound is for all of it; give a plan that serves all"
        )
    tables = unlimited_tables(resolved)
    rows = []
    for key, most, region in phase_bounds(resolved, tables):
        best = rank_templates(loaded, resolved, key, limit=1)
        reached = best[0].tokens_s_per_usd_h if best else 0.0
        # Sums in another order may pass the bound by a rounding.
        cheaper = max(0.0, 1 - reached / most) if most > 0 else 0.0
        rows.append({"model_phase": key, "best": reached, "bound": most, "region": region, "cheaper_at_most": cheaper})
    certificate = allocation_certificate(resolved, tables, grid=grid)
    document: dict[str, Any] = {"phases": rows, "allocation": asdict(certificate)}
    if loaded_plan is not None:
        cost = loaded_plan.cost_usd_h
        document["plan_cost_usd_h"] = cost
        document["plan_cheaper_at_most"] = max(0.0, 1 - certificate.bound_usd_h / cost) if cost > 0 else 0.0
    if json_output:
        print_json(document)
        return
    table = Table(title=f"{library}: most tokens/s for one USD/h, here and for node sets of any size")
    table.add_column("model phase")
    for head in ("best template", "bound", "cheaper at most"):
        table.add_column(head, justify="right")
    table.add_column("region of the bound")
    for row in rows:
        table.add_row(str(row["model_phase"]), f"{row['best']:,.2f}", f"{row['bound']:,.2f}",
                      f"{row['cheaper_at_most']:.2%}", str(row["region"]))  # fmt: skip
    print_rich(table)
    if not certificate.feasible:
        say("no library can meet the demands with this availability, not even with fractions of nodes")
        return
    say(
        f"no allocation costs less than {certificate.bound_usd_h:,.4f} USD/h, whatever the size of its node sets "
        f"(with nodes in fractions: {certificate.fractional_usd_h:,.4f})"
    )
    if loaded_plan is not None:
        say(
            f"the plan costs {loaded_plan.cost_usd_h:,.4f} USD/h: larger node sets could save at most "
            f"{document['plan_cheaper_at_most']:.4%}"
        )


@app.command()
def check(
    library: LibraryArgument,
    solver: Annotated[str, typer.Option(help="Any solver; see `coralopt solvers`.")] = "highs",
    formulation: Annotated[str | None, typer.Option(help="Placement formulation of a MILP: tight or paper.")] = None,
    option: OptionList = None,
    sample: Annotated[int, typer.Option(min=1, help="Node sets to draw.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw.")] = 0,
    executor: Annotated[str, typer.Option(help="local or ray.")] = "local",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one a core by default.")] = None,
    scenario: ScenarioOption = None,
    json_output: JsonFlag = False,
) -> None:
    """Derive a sample of LIB anew with another solver and compare. Exits 1 when something differs."""
    from coralopt.templates import check_library

    loaded, resolved = _open(library, scenario)
    with progress_bar(quiet=json_output) as progress:
        result = check_library(
            loaded,
            resolved,
            solver=solver,
            formulation=formulation,
            options=parse_options(option),
            sample=sample,
            seed=seed,
            executor=executor,
            workers=workers,
            progress=progress,
        )
    if json_output:
        print_json({**asdict(result), "ok": result.ok})
    else:
        say(
            f"{result.compared:,} node sets derived anew with {solver}, {result.without_template:,} of them without a "
            f"template by both; largest relative difference {result.largest_difference:.1e}"
        )
        for why, count in result.open.items():
            say(f"{count:,} more left open: {why}")
        say("no difference beyond the gaps" if result.ok else "CHECK FAILED:")
    for violation in result.violations:
        say(f"  - {violation}")
    if not result.ok:
        raise typer.Exit(1)
