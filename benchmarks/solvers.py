"""Run the shipped solver benchmark and write its results and reports.

    python benchmarks/solvers.py              # run what is not done yet (some 20 minutes on two cores), then report
    python benchmarks/solvers.py --report     # only the reports, from benchmarks/results/*.parquet

Both parts are plain `coralopt bench` commands, printed before they run. Ctrl-C keeps what is done.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
REPORTS = ROOT / "docs" / "benchmarks"
#: Suite -> time limit in seconds.
PARTS = {"placement": 10, "allocation": 20}


def command(*arguments: str) -> None:
    """Run a coralopt command and stop when it fails."""
    line = ["coralopt", "bench", *arguments]
    print("+", shlex.join(line), flush=True)
    subprocess.run([sys.executable, "-m", *line], cwd=ROOT, check=True)


def main() -> None:
    """Run, pack, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="only the reports")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    arguments = parser.parse_args()
    for suite, limit in PARTS.items():
        lines, packed = f"benchmarks/results/{suite}.jsonl", f"benchmarks/results/{suite}.parquet"
        if not arguments.report:
            solvers = ["dp", "highs", "scip", "gurobi"] if suite == "placement" else ["highs", "scip", "gurobi"]
            chosen = [text for solver in solvers for text in ("-s", solver)]
            common = ["--seeds", "1", "--time-limit", str(limit), "--jobs", str(arguments.jobs), "-o", lines]
            command("--suite", suite, *chosen, *common)
            if suite == "allocation":
                # The matrix straight from the arrays; and what Gurobi's free licence (2000 columns) can do all the same.
                more = ["highs/split+arrays", "scip/split+arrays", "gurobi/split+arrays", "gurobi/split+restrict=1900"]
                command("--suite", suite, *(text for arm in more for text in ("-a", arm)), *common)
            command("pack", lines, "-o", packed)
        title = f"{suite.capitalize()} benchmark"
        command("report", packed, "-o", str((REPORTS / suite).relative_to(ROOT)), "--title", title, "--recheck")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    except KeyboardInterrupt:
        sys.exit(130)
