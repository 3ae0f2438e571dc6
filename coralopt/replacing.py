"""A file that is either the old one or the whole new one, whatever happens while it is written; and where caches lie."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """The user's folder for what takes long to find out and may be deleted at any time."""
    base = os.environ.get("CORALOPT_CACHE") or os.environ.get("XDG_CACHE_HOME")
    if not base:
        try:
            base = str(Path.home() / ".cache")
        except RuntimeError:
            # Who has no home has no cache: nothing can be written below that device.
            base = os.devnull
    return Path(base) / "coralopt"


def user_catalog() -> Path:
    """The user's own catalog of prices, which is no cache: nothing makes it again."""
    base = os.environ.get("CORALOPT_DATA") or os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")  # noqa: PTH111
    return Path(base) / "coralopt" / "prices.csv"


@contextmanager
def replacing(path: Path, mode: int | None = 0o644) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place when the block ends well, and goes when it does not.

    Args:
        path: Destination; its folder is made.
        mode: Permissions of the new file; ``None`` leaves it to its owner alone.

    Raises:
        OSError: The folder or the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
