"""The command line: thin commands over the library; one file a command."""

from __future__ import annotations

import json
import sys
from typing import Annotated


def main() -> None:
    """Entry point of the ``coralopt`` command: no traceback for anything a user can cause."""
    import click
    import typer

    from coralopt.cli.exit_codes import BAD_INPUT, INTERRUPTED, exit_code
    from coralopt.errors import CoraloptError

    try:
        code = _app()(standalone_mode=False)
    except CoraloptError as error:
        code = exit_code(error)
        if "--json" in sys.argv:
            sys.stdout.write(json.dumps({"error": str(error), "kind": type(error).__name__, "exit_code": code}) + "\n")
        sys.stderr.write(f"error: {error}\n")
    except (KeyboardInterrupt, click.exceptions.Abort, typer.Abort):
        sys.stderr.write("interrupted: nothing half-written is left behind\n")
        code = INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = BAD_INPUT
    except BrokenPipeError:
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


def _app():  # type: ignore[no-untyped-def]
    import typer

    from coralopt.cli import plan, scenario, show, solvers, templates, verify

    app = typer.Typer(
        name="coralopt",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Which GPU nodes to rent and how to split every LLM across them, at provably minimal cost.",
    )

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
        ] = False,
    ) -> None:
        pass

    app.command()(plan.plan)
    app.command()(templates.templates)
    app.command()(verify.verify)
    app.command()(show.show)
    app.command()(solvers.solvers)
    app.add_typer(scenario.app, name="scenario")
    return app


def _print_version(value: bool) -> None:
    if value:
        import typer

        from coralopt._version import __version__

        typer.echo(f"coralopt {__version__}")
        raise typer.Exit
