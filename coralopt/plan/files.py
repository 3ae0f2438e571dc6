"""Writing documents so that a file is either the old one or the whole new one."""

from __future__ import annotations

from pathlib import Path

from coralopt.errors import PlanError
from coralopt.replacing import replacing


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
        with replacing(target) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PlanError(f"{target}: {what} cannot be written: {error.strerror or error}") from error
