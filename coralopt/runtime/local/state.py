"""What runs on this machine, on disk: a restarted controller finds its servers again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from coralopt.errors import LaunchError
from coralopt.processes import machine_boot
from coralopt.replacing import replacing
from coralopt.runtime.router.config import BackendConfig


class ProcessState(BaseModel):
    """A process by its number, and its birth from :func:`coralopt.processes.birth`."""

    model_config = ConfigDict(strict=True)

    name: str
    pid: int = Field(gt=1)
    born: str | None


class PipelineState(BaseModel):
    """A started pipeline: how the router reaches it, digest of its definition, devices, seconds to drain, processes."""

    model_config = ConfigDict(strict=True)

    backend: BackendConfig
    definition: str
    gpus: tuple[int, ...]
    drain_s: int
    processes: tuple[ProcessState, ...]


class LauncherState(BaseModel):
    """The whole file. Version 1 told births in another unit, version 2 not which start of the machine they count from."""

    format: Literal["coralopt-local-state"]
    version: Literal[3]
    boot: str
    pipelines: tuple[PipelineState, ...]


def load_state(path: Path) -> tuple[PipelineState, ...]:
    """Pipelines recorded by :func:`save_state`; none when there is no file, or the machine was started anew since.

    Raises:
        LaunchError: The file is not what was written.
    """
    try:
        state = LauncherState.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise LaunchError(
            f"{path}: is not a state file of coralopt ({error}); servers may still run: look for them, then remove it"
        ) from error
    return state.pipelines if state.boot == machine_boot() else ()


def save_state(path: Path, pipelines: tuple[PipelineState, ...]) -> None:
    """Write the state beside its place, then rename.

    Raises:
        OSError: It cannot be written.
    """
    state = LauncherState(format="coralopt-local-state", version=3, boot=machine_boot(), pipelines=pipelines)
    with replacing(path, None) as temporary:
        temporary.write_text(state.model_dump_json(indent=1), encoding="utf-8")


def controller_of(directory: Path) -> int | None:
    """Number of the process that controls the servers of a directory; ``None`` when nobody does."""
    import fcntl

    try:
        with (directory / "controller.lock").open("r+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return int(lock.read() or 0) or None
    except (OSError, ValueError):
        pass
    return None


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
                "stop it with Ctrl-C or `coralopt launch stop`, or choose another directory with -o"
            ) from None
        with suppress(OSError):
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
        yield
