"""The notebooks of the documents hold what their cells show today."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from notebooks import NOTEBOOKS, executed


def _outputs(document: dict[str, object], most_cells: int | None = None) -> list[object]:
    cells: list[dict[str, object]] = document["cells"]  # type: ignore[assignment]
    return [cell["outputs"] for cell in cells if cell["cell_type"] == "code"][:most_cells]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_would_show_today(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert _outputs(executed(document)) == _outputs(document), "run `make notebooks`"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_cells_show_what_they_would_show_today(path: Path) -> None:
    """A sample of the above; and that every cell has been run, in its order."""
    document = json.loads(path.read_text(encoding="utf-8"))
    counts = [cell["execution_count"] for cell in document["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert _outputs(executed(document, 2), 2) == _outputs(document, 2), "run `make notebooks`"
