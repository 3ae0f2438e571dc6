"""Where the libraries of scenarios are kept, and the one most likely needed, read while throughput tables are made.

Which library it is, only the tables tell: their digest is in the name of the file. It is nearly always the file of the
scenario that was last written; where it is not, what was read ahead is dropped.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from coralopt.errors import LibraryError
from coralopt.replacing import cache_folder
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates.library import TemplateLibrary, load_library
from coralopt.templates.method import BuildMethod


def default_library_path(scenario: ResolvedScenario, digest: str, method: BuildMethod | None = None) -> Path:
    """Where a library is kept when no path is given: the user's cache directory, by name, digest and method."""
    text = "-".join(part for part in (scenario.name, method.name if method is not None else "") if part)
    safe = "".join(character if character.isalnum() or character in "-_" else "_" for character in text)
    return cache_folder() / f"{safe}-{digest.removeprefix('sample-')[:16]}.parquet"


class LibraryAhead:
    """A library that a thread reads from the moment on that this is made.

    Args:
        scenario: The scenario.
        path: Its library file; ``None`` takes the newest of the scenario's name in the cache directory.

    Attributes:
        path: As given.
    """

    def __init__(self, scenario: ResolvedScenario, path: Path | None) -> None:
        self.path = path
        self._file = _newest(scenario) if path is None else path
        self._library: TemplateLibrary | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        # What is wrong with a file is told to whoever needs it.
        with contextlib.suppress(LibraryError):
            self._library = None if self._file is None else load_library(self._file)

    def library(self, file: Path, digest: str) -> TemplateLibrary | None:
        """What was read, if it was this file and has this digest."""
        self._thread.join()
        library = self._library
        return library if library is not None and (self._file, library.digest) == (file, digest) else None


def _newest(scenario: ResolvedScenario) -> Path | None:
    usual = default_library_path(scenario, "?" * 16)
    with contextlib.suppress(OSError):
        return max(usual.parent.glob(usual.name), key=lambda path: path.stat().st_mtime, default=None)
    return None
