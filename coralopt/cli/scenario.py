"""``coralopt scenario``: list, print and check scenarios, and the schemas of the files."""

from __future__ import annotations

import typer

from coralopt.cli.console import JsonFlag, ScenarioArgument, print_json
from coralopt.cli.new import new_scenario
from coralopt.cli.present import CommandOutput, present

app = typer.Typer(no_args_is_help=True, help="Built-in scenarios, checking a scenario file, file schemas.")


@app.command("list")
def list_scenarios(json_output: JsonFlag = False) -> None:
    """List the built-in scenarios."""
    from coralopt.report.table import make_table
    from coralopt.scenario import builtin_scenarios, load_scenario

    rows = []
    for name in builtin_scenarios():
        resolved = load_scenario(name)
        rows.append(
            {
                "name": name,
                "model_phases": len(resolved.model_phases),
                "configurations": len(resolved.configurations),
                "regions": len(resolved.regions),
                "description": str(resolved.document.get("description") or "").strip(),
            }
        )
    heads = ("name", "model phases", "configurations", "regions", "description")
    table = make_table("Built-in scenarios", heads, [tuple(row.values()) for row in rows])
    present(CommandOutput(rows, [table]), json_output)


app.command("new")(new_scenario)


@app.command("check")
def check(scenario: ScenarioArgument, json_output: JsonFlag = False) -> None:
    """Check SCENARIO: every mistake at once, and whether some node can meet each SLO."""
    from coralopt.scenario import load_scenario

    resolved = load_scenario(scenario)
    # What looks at tables costs half a second to import: a file with mistakes is refused without it.
    from coralopt.templates import check_slos, scenario_tables

    check_slos(resolved, scenario_tables(resolved))
    line = f"{resolved.name}: no mistakes; digest {resolved.digest[:16]}"
    present(CommandOutput({"scenario": resolved.name, "ok": True, "digest": resolved.digest}, [line]), json_output)


@app.command("show")
def show(scenario: ScenarioArgument) -> None:
    """Print the validated document of SCENARIO as JSON, every default filled in."""
    from coralopt.scenario import load_scenario

    print_json(load_scenario(scenario).document)


@app.command("schema")
def schema() -> None:
    """Print the JSON schema of scenario files."""
    from coralopt.scenario import scenario_schema

    print_json(scenario_schema())


@app.command("plan-schema")
def plan_schema_command() -> None:
    """Print the JSON schema of plan documents."""
    from coralopt.plan import plan_schema

    print_json(plan_schema())
