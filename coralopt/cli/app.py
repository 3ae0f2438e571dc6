"""The command line application: every command in its place."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from coralopt._version import __version__

#: Commands in the order of the help screen: name -> (module of ``coralopt.cli``, function; ``app`` is a group of commands).
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("new", "init"),
    "plan": ("plan", "plan"),
    "compare": ("compare", "compare"),
    "sweep": ("sweep", "sweep"),
    "adapt": ("adapt", "adapt"),
    "follow": ("follow", "follow"),
    "templates": ("templates", "templates"),
    "place": ("place", "place"),
    "certify": ("certify", "certify"),
    "verify": ("verify", "verify"),
    "show": ("show", "show"),
    "report": ("report", "report"),
    "simulate": ("simulate", "simulate"),
    "route": ("launch", "route"),
    "reference": ("reference", "reference"),
    "profile": ("profile", "profile"),
    "solvers": ("solvers", "solvers"),
    "doctor": ("doctor", "doctor"),
    "export": ("model", "export"),
    "solve": ("model", "solve_file"),
    "check": ("model", "check_file"),
    "verify-solvers": ("verify_solvers", "verify_solvers"),
    "launch": ("launch", "app"),
    "scenario": ("scenario", "app"),
    "catalog": ("catalog", "app"),
    "library": ("library", "app"),
    "bench": ("bench", "app"),
    "workload": ("workload", "app"),
    "throughput": ("throughput", "app"),
}


def make_app(first: str | None = None) -> typer.Typer:
    """The application with all its commands, or with one.

    Args:
        first: First word of the command line. If it is a command, no other is loaded: that takes a fifth of a second.
    """
    app = typer.Typer(
        name="coralopt",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        help="Which GPU nodes to rent and how to split every LLM across them, at provably minimal cost.",
    )
    app.callback()(_root)
    for name in COMMANDS if first not in COMMANDS else (first,):
        module, attribute = COMMANDS[name]
        loaded = getattr(import_module(f"coralopt.cli.{module}"), attribute)
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=name)
        else:
            app.command(name)(loaded)
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
