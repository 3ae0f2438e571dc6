"""A provider serves 20 models from 8 regions with 40 kinds of nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from coralopt import catalog

RunCli = Callable[..., Any]

#: GPU -> USD/h.
PRICES = {"L4": 0.8, "A10G": 1.0, "L40S": 1.9, "A100": 3.7, "H100": 6.9, "H200": 7.9, "B200": 14.2}
PRICES |= {"RTXPRO6000": 2.6, "RTX4090": 0.5, "MI300X": 4.0, "GB200": 16.0}
MODELS = (
    *(
        "phi4-14b",
        "gpt-oss-20b",
        "qwen3-32b",
        "llama3.1-70b-instruct",
        "gpt-oss-120b",
        "qwen3-235b-fp8",
        "qwen3-30b-a3b",
    ),
    *("qwen3-8b", "llama3.3-70b", "llama3.1-8b-instruct", "llama3.1-405b-instruct-fp8", "llama4-scout", "deepseek-v3"),
    *("qwen3-coder-30b-a3b", "mixtral-8x7b-instruct", "mixtral-8x22b-instruct", "mistral-large", "gemma3-27b"),
    *("gemma3-12b", "glm4.5-air"),
)
REGIONS = 8


def fleet() -> dict[str, Any]:
    """Every third kind of node is missing in each region, another third in each; farther regions are dearer."""
    nodes = [node for node in catalog.node_configurations().values() if node.gpu.name in PRICES]
    assert len(nodes) >= 40
    return {
        "mode": "mixed",
        "models": {
            name: {
                "slo": {"ttft_ms": 4000, "tpot_ms": 120, "attainment": "mean"},
                "demand": {"requests_s": 1 + 2 * (i % 5), "dataset": ("azure-conv", "azure-code", "burstgpt")[i % 3]},
            }
            for i, name in enumerate(MODELS)
        },
        "pool": {
            "regions": {
                f"region-{r}": {
                    "configurations": {
                        node.name: {
                            "available": 4 + 28 // node.count,
                            "price_usd_h": round(PRICES[node.gpu.name] * node.count * (0.9 + 0.05 * r), 3),
                        }
                        for i, node in enumerate(nodes)
                        if (i + r) % 3
                    }
                }
                for r in range(REGIONS)
            }
        },
        "kv_transfer": "region",
        "pruning": {"max_nodes": 1},
    }


@pytest.mark.slow
def test_a_fleet_is_planned_verified_and_billed(tmp_path: Path, run_cli: RunCli) -> None:
    """All demands met at proven least cost; equal input gives equal bytes; the bill names every model."""
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(fleet(), sort_keys=False))
    for target in ("plan.json", "again.json"):
        planned = run_cli("plan", "fleet.yaml", "-o", target, "--no-play")
        assert planned.returncode == 0, planned.stderr
    assert (tmp_path / "plan.json").read_bytes() == (tmp_path / "again.json").read_bytes()
    assert run_cli("verify", "plan.json").returncode == 0
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["status"] == "optimal"
    assert plan["gap"] <= plan["requested_gap"]
    assert {demand["model"] for demand in plan["demands"]} == set(MODELS)
    assert all(demand["planned_tokens_s"] >= demand["demand_tokens_s"] * (1 - 1e-9) for demand in plan["demands"])
    bill = json.loads(run_cli("show", "plan.json", "--bill", "--json").stdout)
    assert {model["model"] for model in bill["models"]} == set(MODELS)
    assert sum(line["usd_h"] for line in bill["lines"]) == pytest.approx(plan["provisioning_usd_h"])
