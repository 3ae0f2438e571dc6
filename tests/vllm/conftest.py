"""Helpers beside the tests, and those of the runtime's own tests, are imported by name."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "runtime"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
