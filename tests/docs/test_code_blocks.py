"""Code blocks in the README and docs run as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "solvers" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


def _blocks(language: str) -> list[object]:
    return [
        pytest.param(match.group(2), id=f"{page.relative_to(ROOT)}:{page.read_text()[: match.start()].count(chr(10)) + 1}")
        for page in PAGES
        for match in BLOCK.finditer(page.read_text())
        if match.group(1) == language
    ]


@pytest.mark.parametrize("code", _blocks("python"))
def test_python_blocks_run(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader pastes these; one that fails costs more trust than it saved words."""
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs", "exec"), {"__name__": "docs"})


@pytest.mark.parametrize("text", _blocks("yaml"))
def test_yaml_blocks_are_valid_scenarios(text: str) -> None:
    """Every YAML example that is a whole scenario must validate."""
    data = yaml.safe_load(text)
    if isinstance(data, dict) and {"models", "pool"} <= set(data):
        from coralopt import scenario_from_mapping

        scenario_from_mapping(data, source="docs")
