"""Code blocks in the README and docs run as written."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "solvers" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


def _blocks(page: Path, language: str) -> list[str]:
    return [match.group(2) for match in BLOCK.finditer(page.read_text(encoding="utf-8")) if match.group(1) == language]


@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(page, "python")], ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader pastes these one after the other; one that fails costs more trust than it saved words."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "docs"}
    for number, code in enumerate(_blocks(page, "python"), 1):
        exec(compile(code, f"{page.name}, block {number}", "exec"), names)


def _borrowed(code: str) -> set[str]:
    """Names that a block uses and does not define."""
    tree = ast.parse(code)
    defined = {*dir(builtins), "__name__"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            defined.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {(item.asname or item.name).split(".")[0] for item in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            defined.add(node.name)
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - defined


@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(page, "python")], ids=lambda page: page.name)
def test_a_block_that_needs_others_says_so(page: Path) -> None:
    """Whoever pastes one block alone is told which one goes before it."""
    for code in _blocks(page, "python"):
        assert not _borrowed(code) or "from the block above" in code, (sorted(_borrowed(code)), code)


@pytest.mark.parametrize("text", [text for page in PAGES for text in _blocks(page, "yaml")])
def test_yaml_blocks_are_valid_scenarios(text: str) -> None:
    """Every YAML example that is a whole scenario must validate."""
    data = yaml.safe_load(text)
    if isinstance(data, dict) and {"models", "pool"} <= set(data):
        from coralopt import scenario_from_mapping

        scenario_from_mapping(data, source="docs")
