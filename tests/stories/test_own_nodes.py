"""A team with six L40S and two nodes of 8 H100 of its own, and the cloud beside them, goes from its usage log to a bill."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

RunCli = Callable[..., Any]


def usage_log(requests: int) -> str:
    """What a gateway of the OpenAI form logs: a name of the team's own for one model, a checkpoint's for the other."""
    random = np.random.default_rng(7)
    times = 1763790000.0 + np.cumsum(random.exponential(1 / 1.5, requests))
    prompts = np.minimum(random.lognormal(6.3, 0.8, requests), 6000).astype(int) + 1
    answers = np.minimum(random.lognormal(4.0, 0.6, requests), 1500).astype(int) + 1
    lines = []
    for k in range(requests):
        usage = {"prompt_tokens": int(prompts[k]), "completion_tokens": int(answers[k])}
        row = {
            "id": f"chatcmpl-{k}",
            "object": "chat.completion",
            "created": round(float(times[k]), 3),
            "model": "our-chat" if random.random() < 0.6 else "Qwen/Qwen3-8B",
            # The last request failed.
            "usage": usage if k < requests - 1 else None,
        }
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)


@pytest.mark.slow
def test_from_a_usage_log_to_launch_files_with_a_bill(tmp_path: Path, run_cli: RunCli) -> None:
    """99 % of requests within their SLOs, certified; the cloud takes over a fifth when the team's own rack is lost."""
    (tmp_path / "usage.jsonl").write_text(usage_log(600))
    asked = run_cli("init", "usage.jsonl")
    assert asked.returncode == 2
    assert "map it, --model our-chat=NAME" in asked.stderr
    made = run_cli(
        *("init", "usage.jsonl", "--model", "our-chat=gpt-oss-20b", "--own", "1xL40S=6", "--own", "8xH100=2"),
        *("--region", "us-east-2", "--node", "1xL4=4", "--ttft-ms", "4000", "--tpot-ms", "120"),
    )
    assert made.returncode == 0, made.stderr
    text = (tmp_path / "scenario.yaml").read_text()
    text = text.replace("    demand:\n", "    survive_region_loss: 0.2\n    demand:\n") + "pruning: {max_nodes: 1}\n"
    (tmp_path / "scenario.yaml").write_text(text)
    assert run_cli("scenario", "check", "scenario.yaml").returncode == 0

    planned = run_cli("plan", "scenario.yaml", "-o", "plan.json", "--executable-by", "vllm", "--json")
    assert planned.returncode == 0, planned.stderr
    answer = json.loads(planned.stdout)
    assert {phase["verdict"] for phase in answer["plan"]["certificate"]["phases"]} == {"confirmed"}
    assert all(phase["target"] == 0.99 for phase in answer["plan"]["certificate"]["phases"])
    assert run_cli("verify", "plan.json").returncode == 0

    shown = run_cli("show", "plan.json", "--bill", "--csv", "bill.csv")
    assert shown.returncode == 0, shown.stderr
    assert "What to rent" in shown.stdout
    with (tmp_path / "bill.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    own = [line for line in lines if line["region"] == "own"]
    cloud = [line for line in lines if line["region"] == "us-east-2"]
    assert {line["supply"] for line in own} == {"reserved"}
    # Of nodes that cost nothing the large ones stay free for others.
    assert {line["configuration"] for line in own} == {"1xL40S"}
    assert sum(float(line["usd_h"]) for line in own) == 0
    assert {line["instance_type"] for line in cloud} == {"g6.xlarge"}
    paid = sum(float(line["usd_month"]) for line in cloud)
    assert paid == pytest.approx(answer["bill"]["usd_month"])
    assert paid == pytest.approx(730 * answer["plan"]["provisioning_usd_h"])
    assert {model["model"] for model in answer["bill"]["models"]} == {"gpt-oss-20b", "qwen3-8b"}

    assert run_cli("launch", "check", "plan.json").returncode == 0
    rendered = run_cli("launch", "render", "plan.json", "--target", "shell", "-o", "launch")
    assert rendered.returncode == 0, rendered.stderr
    router = json.loads((tmp_path / "launch" / "router.json").read_text())
    assert len(router["backends"]) >= len(answer["plan"]["instances"])
