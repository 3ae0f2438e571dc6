"""The child process of an isolated solve: ``python -m coralopt.solving.worker FOLDER``; see ``isolation``."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import cast

from coralopt.solving.backend import MatrixBackend, SolveProgress, SteeredBackend, is_matrix_backend
from coralopt.solving.registry import get_backend
from coralopt.solving.transfer import read_request, write_error, write_incumbent, write_result


def main(folder: Path) -> int:
    """Solve what the folder asks for; exit code 0 when a result or an error is written."""
    matrix, address, options, start = read_request(folder)
    try:
        backend = _backend(address)
        with (folder / "events.jsonl").open("a", encoding="utf-8", buffering=1) as events:
            best: list[float] = []

            def tell(progress: SolveProgress) -> None:
                # The incumbent comes first: an event must not promise what is not there.
                if progress.solution is not None and progress.objective is not None:
                    better = not best or (progress.objective > best[0]) == matrix.maximize
                    if better:
                        write_incumbent(folder, progress.solution())
                        best[:] = [progress.objective]
                event = {"objective": progress.objective, "bound": progress.bound, "seconds": progress.seconds}
                events.write(json.dumps(event) + "\n")

            events.write(json.dumps({"ready": options.time_limit}) + "\n")
            write_result(folder, cast("SteeredBackend", backend).solve(matrix, options, start=start, on_progress=tell))
    except Exception as error:
        # Whatever a foreign solver raises belongs to the caller, not to this process's standard error.
        write_error(folder, error)
    return 0


def _backend(address: str) -> MatrixBackend:
    kind, _, rest = address.partition(" ")
    if kind == "name":
        backend = get_backend(rest)
    else:
        module, _, name = rest.partition(":")
        backend = getattr(importlib.import_module(module), name)()
    assert is_matrix_backend(backend)
    return backend


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
