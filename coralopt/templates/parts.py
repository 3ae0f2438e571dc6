"""Finished parts of a build on disk, so that an interrupted build goes on where it stopped."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from coralopt.errors import LibraryError
from coralopt.templates.tasks import TaskResult

_FIELDS = tuple(item.name for item in fields(TaskResult))


class Parts:
    """A folder beside the library, one file a finished task; gone when the library is written.

    Args:
        target: The library file.
        key: Everything that decides the tasks and their results; parts of another key are never read.
    """

    def __init__(self, target: Path, key: str) -> None:
        self.folder = target.parent / f".{target.name}.{hashlib.sha256(key.encode()).hexdigest()[:16]}.parts"

    def load(self, tasks: int) -> dict[int, TaskResult]:
        """Results that are there; a part that cannot be read counts as not done."""
        found = {}
        for position in range(tasks if self.folder.is_dir() else 0):
            path = self._path(position)
            if path.is_file():
                try:
                    with np.load(path, allow_pickle=False) as data:
                        values = {name: data[name] for name in _FIELDS}
                except (OSError, ValueError, KeyError, EOFError):
                    continue
                except Exception as error:  # zipfile's own error has no base that says "unreadable"
                    if type(error).__name__ != "BadZipFile":
                        raise
                    continue
                scalars = {"examined": int(values["examined"]), "seconds": float(values["seconds"])}
                scalars["largest_gap"] = float(values["largest_gap"])
                found[position] = TaskResult(**{**values, **scalars})
        return found

    def save(self, position: int, result: TaskResult) -> None:
        """Keep one result: written beside its place, then renamed.

        Raises:
            LibraryError: It cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".part")
            try:
                with os.fdopen(handle, "wb") as stream:
                    arrays: dict[str, Any] = {name: np.asarray(getattr(result, name)) for name in _FIELDS}
                    np.savez(stream, **arrays)
                Path(temporary).replace(self._path(position))
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise LibraryError(
                f"{self.folder}: a finished part cannot be kept: {error.strerror or error}; free space and run again"
            ) from error

    @staticmethod
    def remove_all(target: Path) -> None:
        """Delete the parts of every build of this library file."""
        for folder in target.parent.glob(f".{glob.escape(target.name)}.*.parts"):
            shutil.rmtree(folder, ignore_errors=True)

    def _path(self, position: int) -> Path:
        return self.folder / f"{position:06d}.npz"
