"""The command line application: every command in its place."""

from __future__ import annotations

from typing import Annotated

import typer

from coralopt._version import __version__
from coralopt.cli import (
    adapt,
    bench,
    catalog,
    certify,
    compare,
    doctor,
    follow,
    launch,
    library,
    model,
    new,
    place,
    plan,
    profile,
    reference,
    report,
    scenario,
    show,
    simulate,
    solvers,
    sweep,
    templates,
    throughput,
    verify,
    verify_solvers,
    workload,
)


def make_app() -> typer.Typer:
    """The application with all its commands."""
    app = typer.Typer(
        name="coralopt",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        help="Which GPU nodes to rent and how to split every LLM across them, at provably minimal cost.",
    )
    app.callback()(_root)
    app.command()(new.init)
    app.command()(plan.plan)
    app.command()(compare.compare)
    app.command()(sweep.sweep)
    app.command()(adapt.adapt)
    app.command()(follow.follow)
    app.command()(templates.templates)
    app.command()(place.place)
    app.command()(certify.certify)
    app.command()(verify.verify)
    app.command()(show.show)
    app.command()(report.report)
    app.command()(simulate.simulate)
    app.command()(launch.route)
    app.command()(reference.reference)
    app.command()(profile.profile)
    app.command()(solvers.solvers)
    app.command()(doctor.doctor)
    app.command()(model.export)
    app.command("solve")(model.solve_file)
    app.command("check")(model.check_file)
    app.command("verify-solvers")(verify_solvers.verify_solvers)
    app.add_typer(launch.app, name="launch")
    app.add_typer(scenario.app, name="scenario")
    app.add_typer(catalog.app, name="catalog")
    app.add_typer(library.app, name="library")
    app.add_typer(bench.app, name="bench")
    app.add_typer(workload.app, name="workload")
    app.add_typer(throughput.app, name="throughput")
    return app


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"coralopt {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    pass
