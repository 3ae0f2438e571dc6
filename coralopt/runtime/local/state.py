"""What runs on this machine, on disk: a restarted controller finds its servers again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coralopt.errors import LaunchError
from coralopt.replacing import replacing
from coralopt.runtime.router.config import BackendConfig


def load_state(path: Path) -> list[dict[str, Any]]:
    """Pipelines recorded by :func:`save_state`; none when there is no file.

    Raises:
        LaunchError: The file is not what was written.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != "coralopt-local-state" or data["version"] != 1:
            raise ValueError("another format")
        pipelines = data["pipelines"]
        for pipeline in pipelines:
            for process in pipeline["processes"]:
                if not (isinstance(process["pid"], int) and process["pid"] > 1):
                    raise ValueError("a process number")
                if not isinstance(process["name"], str):
                    raise ValueError("a process name")
            BackendConfig.model_validate(pipeline["backend"])
            if not isinstance(pipeline["definition"], str) or not isinstance(pipeline["drain_s"], int):
                raise ValueError("a definition")
            if not all(isinstance(gpu, int) for gpu in pipeline["gpus"]):
                raise ValueError("a device")
        return list(pipelines)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LaunchError(
            f"{path}: is not a state file of coralopt ({error}); servers may still run: look for them, then remove it"
        ) from error


def save_state(path: Path, pipelines: list[dict[str, Any]]) -> None:
    """Write the state beside its place, then rename."""
    with replacing(path, None) as temporary, temporary.open("w", encoding="utf-8") as stream:
        json.dump({"format": "coralopt-local-state", "version": 1, "pipelines": pipelines}, stream, indent=1)


@contextmanager
def only_controller(directory: Path) -> Iterator[None]:
    """Hold the directory; a lock of the operating system, so that a killed controller holds nothing.

    Raises:
        LaunchError: Another controller holds it, or it cannot be made.
    """
    import fcntl

    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / "controller.lock").open("a")
    except OSError as error:
        raise LaunchError(f"{directory}: cannot be used: {error.strerror or error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LaunchError(
                f"{directory}: another coralopt launch runs here; give it a new plan with `coralopt launch apply`, "
                "stop it with Ctrl-C, or choose another directory with -o"
            ) from None
        yield
