"""The command line: thin commands over the library; one file a command."""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from pathlib import Path
from types import ModuleType
from typing import Any


def main() -> None:
    """Entry point of the ``coralopt`` command: no traceback for anything a user can cause."""
    # A command makes few cycles of objects; looking for them while modules are imported takes a tenth of its time.
    gc.set_threshold(300_000)
    sys.meta_path.insert(0, _Later())
    _keep_output()
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
    # Nor are there cycles worth looking for when all of it ends.
    gc.freeze()
    sys.exit(code)


class _Later(MetaPathFinder):
    """Parts of numpy that load when something of them is looked at.

    scipy asks numpy for each of its modules while it is imported, and these two, of which we need nothing, take as long to
    load as all of scipy that a plan needs.
    """

    names = frozenset({"numpy.f2py", "numpy.testing"})

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in self.names else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def _keep_output() -> None:
    """Keep standard output for what the command itself says; what solvers' native code prints goes to standard error."""
    output, is_own = sys.stdout, sys.stdout is sys.__stdout__
    if output is None:
        # The caller closed it.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        return
    if not is_own:
        return
    try:
        kept = os.dup(1)
        os.dup2(2, 1)
    except OSError:
        return
    # By the line also into a pipe: whoever reads what `launch start --json` says reads it while servers run.
    sys.stdout = os.fdopen(kept, "w", buffering=1, encoding=output.encoding, errors=output.errors)


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
    warnings.showwarning = _say_warning
    try:
        refuse_moved(sys.argv[1:])
        code = make_app(next(iter(sys.argv[1:]), None))(standalone_mode=False)
        sys.stdout.flush()
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
    except OSError as error:
        # What a command writes to a file says so itself; this is standard output, or something nobody thought of.
        where = f"{error.filename}" if error.filename else "standard output"
        sys.stderr.write(f"error: {where}: {error.strerror or error}\n")
        code = BAD_INPUT
    if code and not _flushed():
        # Python would try again at its end, and say so at length.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    if code == INTERRUPTED:
        # typer turns a KeyboardInterrupt into this code without a word.
        sys.stderr.write("interrupted: nothing half-written is left behind\n")
    return code if isinstance(code, int) else 0


def _flushed() -> bool:
    """Whether standard output takes what was written to it."""
    try:
        sys.stdout.flush()
    except OSError:
        return False
    return True


def _say_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as one line, without the place in the code."""
    sys.stderr.write(f"note: {message}\n")
