"""Machine code kept on disk: what an older version or an interrupted run left there must not matter."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numba
import pytest

from coralopt.simulation import compiled

SOURCE = """
from typing import NamedTuple
from coralopt.simulation.compiled import entry

class Pair(NamedTuple):
    first: float
    second: float

@entry
def total(pair):
    return pair.first + pair.second
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], ModuleType]]:
    """Imports a small compiled module anew, as a new process does."""
    (tmp_path / "kept_pair.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))

    def again() -> ModuleType:
        sys.modules.pop("kept_pair", None)
        return importlib.import_module("kept_pair")

    yield again
    sys.modules.pop("kept_pair", None)


def _gone(path: Path) -> bytes:
    """An index or code as written when a class had another name: its pickle names a class that is not there."""
    return pickle.dumps(numba.__version__, protocol=-1) + b"ccoralopt.simulation.state\nOldState\n."


def _cut(path: Path) -> bytes:
    return path.read_bytes()[:-40]


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("spoil", [_gone, _cut, lambda path: b"", lambda path: os.urandom(64)])
def test_unreadable_code_is_made_anew(
    load: Callable[[], ModuleType], tmp_path: Path, suffix: str, spoil: Callable[[Path], bytes]
) -> None:
    """An index or code that cannot be unpickled counts as none, and good one takes its place."""
    module = load()
    assert module.total(module.Pair(1.0, 2.0)) == 3.0
    (path,) = tmp_path.glob(f"kept/**/*{suffix}")
    path.write_bytes(spoil(path))
    module = load()
    assert module.total(module.Pair(1.0, 2.0)) == 3.0
    assert not module.total.stats.cache_hits
    module = load()
    assert module.total(module.Pair(1.0, 2.0)) == 3.0
    assert module.total.stats.cache_hits


def test_code_of_other_sources_is_not_run(
    load: Callable[[], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is stopped after it wrote the index and before it wrote the code leaves older code under a new index."""
    module = load()
    assert module.total(module.Pair(1.0, 2.0)) == 3.0
    (code,) = tmp_path.glob("kept/**/*.nbc")
    older = code.read_bytes()
    monkeypatch.setattr(compiled, "_DIGEST", "sources that changed")
    module = load()
    assert module.total(module.Pair(1.0, 2.0)) == 3.0
    code.write_bytes(older)
    module = load()
    assert module.total(module.Pair(1.0, 2.0)) == 3.0
    assert not module.total.stats.cache_hits
