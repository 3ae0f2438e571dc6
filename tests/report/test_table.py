"""Tables of the terminal keep names and digits at any width."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from coralopt import Plan, plan_scenario, scenario_from_mapping
from coralopt.report.table import Column, facts_table, make_table, numbers
from coralopt.report.tables import plan_view
from coralopt.scenario import ResolvedScenario


def _printed(renderable: object, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [200, 100, 80, 60, 40])
def test_a_plan_keeps_names_and_digits(tiny_plan: Plan, width: int) -> None:
    """Instance types, models, prices and throughput stand whole, in no line too long."""
    text = _printed(plan_view(tiny_plan, pipelines=False), width)
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    assert "…" not in text
    words = ["us-east-2", "g6e.xlarge", "0.8048", "5.0802", "tokens/s"]
    words += [item.key for item in tiny_plan.demands] + [f"{item.planned_tokens_s:,.1f}" for item in tiny_plan.demands]
    for word in words:
        assert word in text, word


def test_names_longer_than_the_terminal_are_broken_not_cut() -> None:
    """Every character is there; facts and captions too."""
    name = "a-model-with-a-name-of-more-than-thirty-characters"
    table = make_table("T [x]", ["model", *numbers("{:,.1f}", "tokens/s")], [(name, 1234.5)], caption="said [b]below")
    text = _printed(table, 30)
    assert name in text.replace("\n", "").replace(" ", "")
    assert "1,234.5" in text
    assert "T [x]" in text
    assert "said [b]below" in text
    facts = _printed(facts_table("facts", [("a name", name)]), 30)
    assert name in facts.replace("\n", "").replace(" ", "")


def test_a_table_gives_up_its_blanks_before_its_form() -> None:
    """A bill of two clouds at 80 columns: one row a node, no name broken."""
    heads = ("region", "instance type", "GPUs", *numbers("{:,.4f}", "nodes", "USD/h each", "USD/h", "USD/month"))
    names = ("us-central1", "a3-highgpu-8g", "8xH100")
    printed = _printed(make_table("What to rent", heads, [(*names, 2, 55.04, 110.08, 80358)]), 72)
    assert max(map(len, printed.splitlines())) <= 72
    assert any(all(name in line for name in (*names, "110.0800", "80,358")) for line in printed.splitlines())
    assert "│us-central1│" in printed


def test_what_is_rounded_to_nothing_has_no_sign() -> None:
    """A wait of -1e-17 ms is none."""
    assert [Column("", "{:.1f}").cell(value) for value in (-1e-17, -0.04, -0.06, 0.0)] == ["0.0", "0.0", "-0.1", "0.0"]
    assert Column("", "{:,.2f} %").cell(-0.001) == "0.00 %"


def test_a_share_of_cached_prompts_is_said_once(tiny_scenario: ResolvedScenario) -> None:
    """In mode auto a model has prefill and mixed instances to choose from."""
    document = json.loads(json.dumps(tiny_scenario.document))
    model = document["models"].pop("gpt-oss-20b")
    model["demand"]["prefix_hit"] = 0.5
    document |= {"mode": "auto", "models": {"m": {**model, "model": "gpt-oss-20b"}}, "pruning": {"max_nodes": 1}}
    plan = plan_scenario(scenario_from_mapping(document))
    assert _printed(plan_view(plan), 100).count("prompt tokens of m from KV caches") == 1
