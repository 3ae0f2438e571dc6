"""AIConfigurator's answers to the sizing cases, where it is installed: ``python aiconfigurator_worker.py CASES ANSWERS``.

Both files are CSV; the answers have the cases' columns and, for every way to serve, the GPUs needed and what they are.
"""

from __future__ import annotations

import csv
import logging
import sys
from importlib.metadata import version
from typing import Any

#: A data frame of AIConfigurator's answers.
_Frame = Any


def main(cases_file: str, answers_file: str) -> None:
    """Ask for every case; an answer is written as soon as it is there."""
    from aiconfigurator.cli.api import cli_recommend

    logging.disable(logging.CRITICAL)
    with open(cases_file, encoding="utf-8") as stream:  # noqa: PTH123
        cases = list(csv.DictReader(line for line in stream if not line.startswith("#")))
    columns = [*cases[0], "way", "gpus", "parallel", "ttft_ms", "tpot_ms", "made_with"]
    with open(answers_file, "w", encoding="utf-8", newline="") as stream:  # noqa: PTH123
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        for case in cases:
            result = cli_recommend(
                case["checkpoint"],
                case["system"],
                target_request_rate=float(case["requests_s"]),
                backend="vllm",
                backend_version="0.24.0",
                database_mode="SILICON",
                isl=int(case["input_tokens"]),
                osl=int(case["output_tokens"]),
                ttft=float(case["ttft_slo_ms"]),
                tpot=float(case["tpot_slo_ms"]),
                strict_sla=True,
            )
            for way, name in (("mixed", "agg"), ("disaggregated", "disagg")):
                answer = _cheapest(result.best_configs.get(name))
                writer.writerow(
                    {**case, "way": way, **answer, "made_with": f"aiconfigurator {version('aiconfigurator')}"}
                )
                stream.flush()


def _cheapest(frame: _Frame) -> dict[str, object]:
    """The configuration that needs fewest GPUs; empty where there is none."""
    if frame is None or frame.empty:
        return {}
    row = frame.sort_values("total_gpus_needed").iloc[0]
    names = ["parallel", "bs"]
    if "parallel" not in row:
        names = ["(p)workers", "(p)parallel", "(p)bs", "(d)workers", "(d)parallel", "(d)bs"]
    parallel = " ".join(f"{name}={row[name]}" for name in names)
    return {
        "gpus": int(row["total_gpus_needed"]),
        "parallel": parallel,
        "ttft_ms": round(float(row["ttft"]), 1),
        "tpot_ms": round(float(row["tpot"]), 2),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
