"""How true simulator and tables are, as one table: ``python -m benchmarks.fidelity``.

    git clone https://github.com/microsoft/vidur
    python -m benchmarks.fidelity --vidur vidur --vidur-python PYTHON --aiconfigurator-python PYTHON --vllm PROGRAM
    python -m benchmarks.fidelity --write docs/fidelity.md

Every part is left out with a row that says so where what it needs is not named or fails. Vidur runs in an environment with
numpy, pandas, scikit-learn, ddsketch, plotly_express, wandb, matplotlib, seaborn and fasteners; AIConfigurator's answers are
kept and asked again only with ``--aiconfigurator-python``; ``--vllm`` is a CPU build and needs a quiet machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.fidelity import (
    against_aiconfigurator,
    against_h100,
    against_vidur,
    against_vllm,
    replayed,
    vidur_phases,
)
from benchmarks.fidelity.rows import Row, put_into, table
from coralopt.errors import CoraloptError


def main() -> None:
    """Print the table, or put it into a document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vidur", type=Path, help="checkout of Vidur")
    parser.add_argument("--vidur-python", default=sys.executable, help="interpreter that has what Vidur imports")
    parser.add_argument("--aiconfigurator-python", help="interpreter that has aiconfigurator 0.12")
    parser.add_argument("--vllm", help="program of vLLM's CPU build")
    parser.add_argument("-o", "--output", type=Path, default=Path("fidelity"), help="folder of what vLLM's runs leave")
    parser.add_argument("--write", type=Path, help="document whose table is replaced")
    given = parser.parse_args()

    def servers() -> list[Row]:
        if given.vllm is None:
            return [Row("vLLM on this CPU", "loads 0.4 and 0.7", note="not run: no program named (--vllm)")]
        return replayed.rows(given.vllm, given.output)

    rows = [
        *_rows("Vidur", lambda: against_vidur.rows(given.vidur, given.vidur_python)),
        *_rows("Vidur", lambda: vidur_phases.rows(given.vidur, given.vidur_python)),
        *_rows("vLLM", against_vllm.rows),
        *_rows("vLLM on one H100", against_h100.rows),
        *_rows("vLLM on this CPU", servers),
        *_rows("AIConfigurator", lambda: against_aiconfigurator.rows(given.aiconfigurator_python)),
    ]
    print(table(rows), end="")
    if given.write is not None:
        put_into(given.write, rows)


def _rows(against: str, part: Callable[[], list[Row]]) -> list[Row]:
    """A part's rows; one that says why where it fails."""
    try:
        return part()
    except (CoraloptError, OSError, subprocess.SubprocessError) as error:
        words = (getattr(error, "stderr", None) or str(error)).strip().splitlines() or [type(error).__name__]
        return [Row(against, "all", note=f"not run: {words[-1][:150]}")]


if __name__ == "__main__":
    main()
