"""Writing documents so that a file is either the old one or the whole new one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from coralopt.errors import PlanError


def write_text(path: str | Path, text: str, what: str) -> None:
    """Write ``text`` to ``path``, first beside it, then renamed.

    Args:
        path: Destination; its folder is made.
        text: All of it.
        what: What error messages call it.

    Raises:
        PlanError: The file cannot be written.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            Path(temporary).chmod(0o644)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise PlanError(f"{target}: {what} cannot be written: {error.strerror or error}") from error
