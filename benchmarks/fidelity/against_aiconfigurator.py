"""GPUs needed for 20 sizing cases, against AIConfigurator's own answers (benchmarks/data/sizing_*.csv).

Both plan for requests of one length, one GPU type, one node an instance, from the same measured kernels; memory kept back as
AIConfigurator keeps it. Its answers are kept, and asked again where a Python that has it is named.
"""

from __future__ import annotations

import csv
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.fidelity.rows import Row
from coralopt import plan_scenario, scenario_from_mapping
from coralopt.errors import CoraloptError

DATA = Path(__file__).parents[1] / "data"
CASES, ANSWERS = DATA / "sizing_cases.csv", DATA / "sizing_aiconfigurator.csv"
#: An answer counts as equal within this share of GPUs.
NEAR = 0.25


def rows(python: str | None) -> list[Row]:
    """A row a case, and how many agree."""
    result = []
    if python is not None:
        worker = Path(__file__).with_name("aiconfigurator_worker.py")
        subprocess.run([python, str(worker), str(CASES), str(ANSWERS)], check=True, capture_output=True, text=True)
    with ANSWERS.open(encoding="utf-8") as stream:
        answers = list(csv.DictReader(stream))
    ratios: dict[str, list[float]] = defaultdict(list)
    for answer in answers:
        case = f"{answer['model']} on {answer['gpu']}, {answer['requests_s']}/s of {answer['input_tokens']}/"
        case += f"{answer['output_tokens']}, {answer['way']}"
        if not answer["gpus"]:
            result.append(Row("AIConfigurator", case, note="no answer there"))
            continue
        theirs, ours = int(answer["gpus"]), _gpus(answer)
        if ours is not None:
            ratios[answer["way"]].append(ours / theirs)
        said = f"{ours} GPUs, {theirs} there" if ours is not None else f"infeasible, {theirs} GPUs there"
        result.append(Row("AIConfigurator", case, note=said))
    for way, values in ratios.items():
        near = sum(abs(value - 1) <= NEAR for value in values)
        middle = sorted(values)[len(values) // 2]
        note = f"{near} of {len(values)} within {NEAR:.0%} of its GPUs; median {middle:.2f} of them"
        result.append(Row("AIConfigurator", f"{way}, all", note=note))
    return result


def _gpus(case: dict[str, str]) -> int | None:
    """Fewest GPUs by our planner; ``None``: no node meets the SLOs."""
    document: dict[str, Any] = {
        "name": "sizing",
        "mode": case["way"],
        "models": {
            case["model"]: {
                "slo": {
                    "ttft_ms": float(case["ttft_slo_ms"]),
                    "tpot_ms": float(case["tpot_slo_ms"]),
                    "attainment": "mean",
                },
                "demand": {name: float(case[name]) for name in ("requests_s", "input_tokens", "output_tokens")},
            }
        },
        "pool": {
            "regions": {
                "here": {
                    "configurations": {
                        f"{count}x{case['gpu']}": {"available": 200, "price_usd_h": float(count)}
                        for count in (1, 2, 4, 8)
                    }
                }
            }
        },
        "pruning": {"max_nodes": 1, "memory_ratio": 1000},
        "serving": {"preset": "paper", "reserve_gib": 3.5},
        "throughput": {"source": "silicon"},
    }
    try:
        plan = plan_scenario(scenario_from_mapping(document, source="a sizing case"))
    except CoraloptError:
        return None
    # A GPU costs 1 USD/h.
    return round(sum(instance.count * instance.price_usd_h for instance in plan.instances))
