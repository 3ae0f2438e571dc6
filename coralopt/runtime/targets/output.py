"""Writing a target's files so that only what changed changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coralopt.errors import LaunchError
from coralopt.replacing import replacing

#: Names what an earlier run wrote into a directory, so that a later one may take away just that.
MANIFEST = ".coralopt-files.json"


@dataclass(frozen=True)
class Written:
    """What happened to the files of a directory, each a relative path."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    removed: tuple[str, ...]


def write_files(directory: str | Path, files: Mapping[str, str]) -> Written:
    """Make ``directory`` hold ``files``; what an earlier call wrote there and is gone now is removed.

    Each file is written beside its destination and renamed; equal files are left alone. Names ending in ``.sh`` become
    executable. Files that coralopt did not write are never touched.

    Raises:
        LaunchError: The directory cannot be written, or a file of that name is not ours.
    """
    root = Path(directory)
    before = written_files(root)
    fates: dict[str, list[str]] = {"added": [], "changed": [], "unchanged": []}
    try:
        root.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = root / name
            if path.exists() and name not in before and path.read_text(encoding="utf-8", errors="replace") != text:
                raise LaunchError(f"{path}: exists and was not written by coralopt launch; choose another directory")
        for name, text in files.items():
            path = root / name
            same = path.is_file() and path.read_bytes() == text.encode()
            fates["unchanged" if same else "changed" if path.exists() else "added"].append(name)
            if not same:
                _write(path, text)
        gone = sorted(before - set(files))
        for name in gone:
            (root / name).unlink(missing_ok=True)
        _write(root / MANIFEST, json.dumps(sorted(files), indent=1) + "\n")
    except OSError as error:
        raise LaunchError(f"{root}: cannot be written: {error.strerror or error}") from error
    return Written(**{fate: tuple(names) for fate, names in fates.items()}, removed=tuple(gone))


def written_files(root: Path) -> set[str]:
    """Names of the files that :func:`write_files` wrote into a directory last."""
    try:
        names = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return set()
    plain = isinstance(names, list) and all(isinstance(name, str) for name in names)
    # A doctored manifest must not reach out of the directory.
    return {name for name in names if (root / name).resolve().is_relative_to(root.resolve())} if plain else set()


def _write(path: Path, text: str) -> None:
    with replacing(path, 0o755 if path.suffix == ".sh" else 0o644) as temporary:
        temporary.write_text(text, encoding="utf-8")
