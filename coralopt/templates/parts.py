"""Finished parts of a build on disk, so that an interrupted build goes on where it stopped."""

from __future__ import annotations

import glob
import hashlib
import shutil
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from coralopt.errors import LibraryError
from coralopt.replacing import replacing
from coralopt.templates.library import COLUMNS
from coralopt.templates.tasks import TaskResult


class Parts:
    """A folder beside the library, one file a finished task; gone when the library is written.

    Args:
        target: The library file.
        key: Everything that decides the tasks and their results; parts of another key are never read.
    """

    def __init__(self, target: Path, key: str) -> None:
        self.folder = target.parent / f".{target.name}.{hashlib.sha256(key.encode()).hexdigest()[:16]}.parts"

    def load(self, tasks: int) -> dict[int, TaskResult]:
        """Results that are there; a part that cannot be read counts as missing."""
        results = {}
        for position in range(tasks if self.folder.is_dir() else 0):
            try:
                with np.load(self._path(position), allow_pickle=False) as data:
                    arrays = {name: data[name] for name in COLUMNS}
                    examined, largest_gap = int(data["examined"]), float(data["largest_gap"])
            except (OSError, ValueError, KeyError, EOFError, BadZipFile):
                continue
            results[position] = TaskResult(**arrays, examined=examined, largest_gap=largest_gap)
        return results

    def save(self, position: int, result: TaskResult) -> None:
        """Keep one result: written beside its place, then renamed.

        Raises:
            LibraryError: It cannot be written.
        """
        try:
            with replacing(self._path(position)) as temporary, temporary.open("wb") as stream:
                np.savez(
                    stream, allow_pickle=False, **{name: np.asarray(value) for name, value in vars(result).items()}
                )
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
