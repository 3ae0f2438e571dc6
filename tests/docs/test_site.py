"""The documentation site builds, and every warning is an error: broken links, pages nobody lists, docstrings askew."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
for package in ("sphinx", "myst_parser", "furo"):
    pytest.importorskip(package, reason="the site needs pip install -e '.[docs]'")


def build(builder: str, folder: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", builder, str(ROOT / "docs"), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr


def test_the_site_is_read_without_a_warning(tmp_path: Path) -> None:
    """All pages and docstrings, with every reference resolved."""
    build("dummy", tmp_path)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    build("html", tmp_path)
    assert (tmp_path / "tutorial.html").exists()
    # Links to pages are called by their headings, not by the names of files.
    assert ">Who gets a request</a>)" in (tmp_path / "router.html").read_text(encoding="utf-8")
