"""``coralopt library``: look into a template library, doubt it, export it, compare two."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coralopt.cli.console import JsonFlag, OptionList, file_to_write, file_to_write_as, parse_options, progress_bar, say
from coralopt.cli.exit_codes import CHECK_FAILED, OK
from coralopt.cli.option_groups import OptionGroup, option, takes_groups
from coralopt.cli.present import CommandOutput, present

if TYPE_CHECKING:
    from coralopt.scenario.resolved import ResolvedScenario
    from coralopt.templates import TemplateLibrary

app = typer.Typer(no_args_is_help=True, help="Look into a template library, check it, export it, compare two.")

LibraryArgument = Annotated[Path, typer.Argument(metavar="LIB", help="A library file of `coralopt templates -o`.")]
ScenarioOption = Annotated[
    str | None,
    typer.Option("--scenario", help="Take prices from here; default: the scenario that the library carries."),
]
PhaseOption = Annotated[
    str | None, typer.Option("--phase", help="Model phase, for example qwen3-32b/prefill; default: all.")
]


@dataclass(frozen=True)
class RankOptions(OptionGroup):
    """Which templates are ranked."""

    region: str | None = option(None, "Prices of this region; default: the cheapest one.")
    nodes: str = option("any", "any, mixed (several GPU types) or pure (one GPU type).")
    gpus: str | None = option(None, "Only these GPU types, for example L40S,H100.")
    limit: int = option(5, "How many of each model phase.", "-n", least=1)


@dataclass(frozen=True)
class CheckOptions(OptionGroup):
    """How a sample is derived anew."""

    solver: str = option("highs", "Any solver; see `coralopt solvers`.")
    formulation: str | None = option(None, "Placement formulation of a MILP: tight or paper.")
    assignments: OptionList = None
    sample: int = option(1000, "Node sets to draw.", least=1)
    seed: int = option(0, "Seed of the draw.", least=0)
    executor: str = option("local", "local or ray.")
    workers: int | None = option(None, "Processes; one a core by default.", least=1)


def _open(path: Path, scenario: str | None) -> tuple[TemplateLibrary, ResolvedScenario]:
    from coralopt.scenario import load_scenario
    from coralopt.templates import library_scenario, load_library

    library = load_library(path)
    return library, library_scenario(library, load_scenario(scenario) if scenario is not None else None)


@app.command()
def info(library: LibraryArgument, json_output: JsonFlag = False) -> None:
    """What LIB holds: scenario, method, digest, templates of each model phase."""
    from coralopt.report.table import make_table, numbers
    from coralopt.templates import content_digest, load_library

    loaded = load_library(library)
    rows = [
        {
            "model_phase": phase.key,
            "node_sets": phase.examined,
            "templates": len(phase),
            "most_stages": int((phase.stage_layers > 0).sum(axis=1).max(initial=0)),
            "lowest_tokens_s": float(phase.throughput.min()) if len(phase) else 0.0,
            "best_tokens_s": float(phase.throughput.max()) if len(phase) else 0.0,
        }
        for phase in loaded.phases
    ]
    document = {
        "library": library,
        "scenario": loaded.scenario,
        "digest": loaded.digest,
        "content": content_digest(loaded),
        "method": loaded.method,
        "configurations": loaded.configurations,
        "templates": len(loaded),
        "phases": rows,
    }
    table = make_table(
        f"{library}: {len(loaded):,} templates of {loaded.scenario}",
        [
            "model phase",
            *numbers("{:,}", "node sets", "templates", "most stages"),
            *numbers("{:,.1f}", "lowest tokens/s", "best tokens/s"),
        ],
        [tuple(row.values()) for row in rows],
    )
    method = ", ".join(f"{name} {value}" for name, value in loaded.method.items() if value) or "unknown"
    line = f"method: {method}; digest {loaded.digest[:16]}; configurations: {', '.join(loaded.configurations)}"
    present(CommandOutput(document, [table], [line]), json_output)


@app.command()
@takes_groups
def top(
    library: LibraryArgument,
    rank: RankOptions,
    phase: PhaseOption = None,
    scenario: ScenarioOption = None,
    json_output: JsonFlag = False,
) -> None:
    """The templates of LIB with the most tokens/s for one USD/h."""
    from coralopt.errors import OptionError
    from coralopt.report.library import stages_text
    from coralopt.report.table import Column, make_table
    from coralopt.templates import rank_templates

    if rank.nodes not in ("any", "mixed", "pure"):
        raise OptionError(f"--nodes {rank.nodes!r}: choose any, mixed or pure")
    loaded, resolved = _open(library, scenario)
    only = None if rank.gpus is None else [name.strip() for name in rank.gpus.split(",")]
    ranked = {
        key: rank_templates(loaded, resolved, key, region=rank.region, mix=rank.nodes, gpus=only, limit=rank.limit)  # type: ignore[arg-type]
        for key in ([phase] if phase is not None else loaded.by_key)
    }
    columns = (
        Column("tokens/s per USD/h", "{:,.2f}"),
        Column("tokens/s", "{:,.1f}"),
        Column("USD/h", "{:,.4f}"),
        *("region", Column("stages (nodes:layers)")),
    )
    document, tables = {}, []
    for key, templates in ranked.items():
        stages = [stages_text(item.placement, loaded.configurations) for item in templates]
        document[key] = [{**asdict(item), "placement": text} for item, text in zip(templates, stages, strict=True)]
        rows = [
            (item.tokens_s_per_usd_h, item.tokens_s, item.price_usd_h, item.region, text)
            for item, text in zip(templates, stages, strict=True)
        ]
        tables.append(make_table(f"{key}: most tokens/s for one USD/h", columns, rows))
    present(CommandOutput(document, tables), json_output)


@app.command()
def spread(
    library: LibraryArgument, phase: PhaseOption = None, scenario: ScenarioOption = None, json_output: JsonFlag = False
) -> None:
    """How finely the throughputs of LIB are graded, with mixed node sets and with one GPU type only."""
    from coralopt.report.table import make_table, numbers
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
    table = make_table(
        "Throughputs offered, and how far one instance overshoots a demand on average",
        [
            "model phase",
            *numbers("{:,}", "levels", "with one GPU type"),
            *numbers("{:.3%}", "overshoot", "with one GPU type"),
        ],
        [tuple(row.values()) for row in rows],
    )
    present(CommandOutput(rows, [table]), json_output)


@app.command()
def plot(
    library: LibraryArgument,
    phase: Annotated[str, typer.Option("--phase", help="Model phase, for example gpt-oss-120b/decode.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Picture: .svg, .png or .pdf.", callback=file_to_write)
    ],
    scenario: ScenarioOption = None,
) -> None:
    """Draw the distribution of throughputs of LIB, mixed against one GPU type."""
    from coralopt.report.library import plot_spread

    loaded, resolved = _open(library, scenario)
    plot_spread(loaded, resolved, phase, output)
    say(f"plot written to {output}")


@app.command()
def export(
    library: LibraryArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="CSV file.", callback=file_to_write_as(".csv"))],
    phase: PhaseOption = None,
    scenario: ScenarioOption = None,
) -> None:
    """Write the templates of LIB as CSV, with prices and stages in words."""
    from coralopt.report.library import export_library

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
    from coralopt.report.table import make_table, numbers
    from coralopt.templates import compare_libraries, load_library

    differences = compare_libraries(load_library(first), load_library(second))
    table = make_table(
        f"{second} against {first}",
        [
            "model phase",
            *numbers("{:,}", "only first", "only second", "equal", "higher", "lower"),
            *numbers("{:.3g}", "largest rise", "largest fall"),
        ],
        [
            (
                *(item.key, item.only_first, item.only_second, item.equal, item.higher, item.lower),
                *(item.largest_rise, item.largest_fall),
            )
            for item in differences
        ],
    )
    code = OK if all(item.same for item in differences) else CHECK_FAILED
    present(CommandOutput(differences, [table], code=code), json_output)


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
    from coralopt.errors import PlanError
    from coralopt.plan import Plan
    from coralopt.report.table import Column, make_table, numbers
    from coralopt.templates import allocation_certificate, phase_bounds, rank_templates, unlimited_tables

    loaded, resolved = _open(library, scenario)
    loaded_plan = None if plan is None else Plan.load(plan)
    if loaded_plan is not None and any(item.unmet_tokens_s for item in loaded_plan.demands):
        raise PlanError(
            f"{plan}: the plan leaves demand unmet, the bound is for all of it; give a plan that serves all"
        )
    tables = unlimited_tables(resolved)
    certificate = allocation_certificate(resolved, tables, grid=grid)
    rows: list[dict[str, object]] = []
    for key, most, region in phase_bounds(resolved, tables):
        best = rank_templates(loaded, resolved, key, limit=1)
        reached = best[0].tokens_s_per_usd_h if best else 0.0
        # Sums in another order may pass the bound by a rounding.
        cheaper = max(0.0, 1 - reached / most) if most > 0 else 0.0
        rows.append({"model_phase": key, "best": reached, "bound": most, "region": region, "cheaper_at_most": cheaper})
    document: dict[str, object] = {"phases": rows, "allocation": certificate}
    lines = ["no library can meet the demands with this availability, not even with fractions of nodes"]
    if certificate.feasible:
        lines = [
            f"no allocation costs less than {certificate.bound_usd_h:,.4f} USD/h, whatever the size of its node sets "
            f"(with nodes in fractions: {certificate.fractional_usd_h:,.4f})"
        ]
    if loaded_plan is not None:
        cost = loaded_plan.cost_usd_h
        saving = max(0.0, 1 - certificate.bound_usd_h / cost) if cost > 0 else 0.0
        document |= {"plan_cost_usd_h": cost, "plan_cheaper_at_most": saving}
        if certificate.feasible:
            lines.append(f"the plan costs {cost:,.4f} USD/h: larger node sets could save at most {saving:.4%}")
    table = make_table(
        f"{library}: most tokens/s for one USD/h, here and for node sets of any size",
        [
            "model phase",
            *numbers("{:,.2f}", "best template", "bound"),
            *(Column("cheaper at most", "{:.2%}"), "region of the bound"),
        ],
        [[row[name] for name in ("model_phase", "best", "bound", "cheaper_at_most", "region")] for row in rows],
    )
    present(CommandOutput(document, [table], lines), json_output)


@app.command()
@takes_groups
def check(
    library: LibraryArgument,
    how: CheckOptions,
    scenario: ScenarioOption = None,
    json_output: JsonFlag = False,
) -> None:
    """Derive a sample of LIB anew with another solver and compare. Exits 1 when something differs."""
    from coralopt.templates import BuildMethod, check_library

    loaded, resolved = _open(library, scenario)
    with progress_bar("templates", quiet=json_output) as progress:
        result = check_library(
            loaded,
            resolved,
            method=BuildMethod(how.solver, how.formulation, parse_options(how.assignments), how.sample, how.seed),
            executor=how.executor,
            workers=how.workers,
            progress=progress,
        )
    lines = [
        f"{result.compared:,} node sets derived anew with {how.solver}, {result.without_template:,} of them without a "
        f"template by both; largest relative difference {result.largest_difference:.1e}",
        *(f"{count:,} more left open: {why}" for why, count in result.open.items()),
        "no difference beyond the gaps" if result.ok else "CHECK FAILED:",
    ]
    violations = [f"  - {violation}" for violation in result.violations]
    code = OK if result.ok else CHECK_FAILED
    present(CommandOutput({**asdict(result), "ok": result.ok}, (), lines, violations, code), json_output)
