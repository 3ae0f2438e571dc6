"""The command line: thin commands over the library; one file a command."""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    """Entry point of the ``coralopt`` command: no traceback for anything a user can cause."""
    try:
        code = _run()
    except (KeyboardInterrupt, SystemError) as error:
        # Also while modules are imported; and a call of a compiled kernel turns Ctrl-C into a SystemError.
        if not isinstance(error, KeyboardInterrupt) and not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        sys.stderr.write("interrupted: nothing half-written is left behind\n")
        code = 130
    # Python ends itself by SIGINT, whatever the exit code, when Ctrl-C has passed through code that was made from text, as
    # dataclasses are while a module is imported; code from text that ends well makes it forget that.
    exec("")
    sys.exit(code)


def _run() -> int:
    """The command that the arguments name; its exit code."""
    import typer

    from coralopt.cli.app import make_app
    from coralopt.cli.console import harmless
    from coralopt.cli.exit_codes import BAD_INPUT, INTERRUPTED, exit_code
    from coralopt.cli.moved import refuse_moved
    from coralopt.errors import CoraloptError

    # typer brings its own copy of click in some versions; its usage errors are found without naming that package.
    usage_error: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
    try:
        refuse_moved(sys.argv[1:])
        code = make_app()(standalone_mode=False)
    except CoraloptError as error:
        code = exit_code(error)
        if "--json" in sys.argv:
            sys.stdout.write(json.dumps({"error": str(error), "kind": type(error).__name__, "exit_code": code}) + "\n")
        sys.stderr.write(f"error: {harmless(str(error))}\n")
    except typer.Abort:
        code = INTERRUPTED
    except usage_error as error:
        error.show()
        code = BAD_INPUT
    except BrokenPipeError:
        code = 0
    if code == INTERRUPTED:
        # typer turns a KeyboardInterrupt into this code without a word.
        sys.stderr.write("interrupted: nothing half-written is left behind\n")
    return code if isinstance(code, int) else 0
