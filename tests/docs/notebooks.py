"""The notebooks of the documents: ``make notebooks`` runs them and keeps what they show.

The cells are run in one namespace of this process, so nothing of Jupyter is needed. Kept of a cell are what it prints and what
its last line shows, as HTML where the value has it.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def executed(document: dict[str, Any], most_cells: int | None = None) -> dict[str, Any]:
    """The notebook with fresh outputs in its first so many cells of code, or in all."""
    names: dict[str, object] = {"__name__": "notebook"}
    cells, count = [], 0
    for cell in document["cells"]:
        if cell["cell_type"] == "code" and (most_cells is None or count < most_cells):
            count += 1
            cell = {**cell, "execution_count": count, "outputs": _run("".join(cell["source"]), names, count)}
        cells.append(cell)
    return {**document, "cells": cells}


def _run(code: str, names: dict[str, object], count: int) -> list[dict[str, Any]]:
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, outputs = io.StringIO(), []
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {count}", "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names)
    if text := printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
        outputs.append({"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return outputs


def main() -> None:
    """Run the named notebooks, or every one, and write them back."""
    chosen = sys.argv[1:]
    for path in NOTEBOOKS:
        if chosen and path.stem not in chosen:
            continue
        document = executed(json.loads(path.read_text(encoding="utf-8")))
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path} executed")


if __name__ == "__main__":
    main()
