"""Links between documents lead to files and headings that exist, those of the README and of notebooks, too; no line of
prose is longer than the formatter's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "solvers" / "README.md", *DOCS, *sorted((ROOT / "docs").rglob("*.ipynb"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.M | re.S)


def _text(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return text


def _anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub and MyST make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", _text(page), flags=re.M | re.S), re.M):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.add(re.sub(r" ", "-", re.sub(r"[^\w\- ]", "", plain)))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for link in LINK.findall(CODE.sub("", _text(page))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in _anchors(target)):
            wrong.append(link)
    assert wrong == []


def test_every_page_is_on_the_site() -> None:
    """As Sphinx says, too; this one needs no Sphinx."""
    listed = re.findall(r"^([\w/-]+)$", _text(ROOT / "docs" / "index.md"), re.M)
    pages = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (*DOCS, *(ROOT / "docs").rglob("*.ipynb"))}
    assert pages - {"index"} == set(listed)


@pytest.mark.parametrize("page", [page for page in PAGES if page.suffix == ".md" and "benchmarks" not in page.parts], ids=lambda page: page.stem)
def test_no_line_of_prose_is_longer_than_the_formatters(page: Path) -> None:
    """Rows of tables, indented commands, code and pictures apart: they cannot be broken. Reports of benchmarks are generated."""
    prose = re.sub(r"^(```+).*?^\1", "", _text(page), flags=re.M | re.S)
    long = [line for line in prose.splitlines() if len(line) > 120 and not re.match(r"\||    |!", line)]
    assert long == []
