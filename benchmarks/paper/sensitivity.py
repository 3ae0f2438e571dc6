"""Section 5.7: template count, time and best cost efficiency over (N_max, rho), for GPT-OSS 120B prefill and all models.

    python -m benchmarks.paper.sensitivity --quick

``--quick`` stops at (6, 12) and GPT-OSS 120B prefill, the paper's test bed; the full run goes to (8, 16) for it and to
(6, 12) for every model phase. The sweep itself is ``benchmarks/sensitivity.py``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import sensitivity

PHASE = "gpt-oss-120b/prefill"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--plot", type=Path, help="draw GPT-OSS 120B prefill here (needs the extra `plot`)")
    options = parser.parse_args()
    plot = [] if options.plot is None else ["--plot", str(options.plot)]
    runs = [[PHASE, "--most-nodes", "6" if options.quick else "8", *plot]]
    if not options.quick:
        runs.append(["all", "--most-nodes", "6"])
    for run in runs:
        sensitivity.main(["--phases", *run])


if __name__ == "__main__":
    main()
