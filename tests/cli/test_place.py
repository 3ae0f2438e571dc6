"""``coralopt place`` for most tokens served, as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

#: A command line, run in this process.
RunCli = Callable[..., Any]

POOL = """
layers: 4
nodes:
  a: {count: 2, tokens_s: [90, 45], cache_tokens: [4000, 2000], prompt_ms: {512: 50}, decode_ms: {1: 20, 8: 30}}
serving:
  requests: [{input_tokens: 20, output_tokens: 10}]
  reserved_output: 10
  link_gb_s: 1
  nic_gb_s: 1
  latency_ms: 1
  activation_bytes: 10
"""


def test_place_for_tokens_served(run_cli: RunCli, tmp_path: Path) -> None:
    pool, folder = tmp_path / "pool.yaml", tmp_path / "layout"
    pool.write_text(POOL, encoding="utf-8")
    done = run_cli("place", str(pool), "--time-limit", "1", "--write-helix", str(folder), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["objective"] == "served"
    assert document["decode_tokens_s"] >= document["largest_flow_decode_tokens_s"] > 0
    assert len(document["by_seed"]) == 3
    assert sorted(path.name for path in folder.iterdir()) == [
        "cluster.ini",
        "machine_profiles.ini",
        "simulator_cluster.ini",
        "solution.ini",
    ]
    flow = run_cli("place", str(pool), "--objective", "flow", "--json")
    assert flow.returncode == 0, flow.stderr
    assert json.loads(flow.stdout)["placements"][0]["proven"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--objective", "most"), "--objective is 'most'; choose served or flow"),
        (("--objective", "served", "--frontier"), "leave out --objective served"),
        (("--objective", "flow", "--write-helix", "x"), "leave out --objective flow"),
        (("--planner", "hexgen", "--objective", "served"), "belong to coral's placements"),
        (("--stages", "99"), "99 stages are outside"),
        (("--stages", "1"), "some layers fit nowhere"),
    ],
)
def test_place_refuses_in_a_sentence(run_cli: RunCli, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    pool = tmp_path / "pool.yaml"
    pool.write_text(POOL, encoding="utf-8")
    done = run_cli("place", str(pool), *options)
    assert done.returncode in (2, 3)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    tables = tmp_path / "tables.yaml"
    tables.write_text("layers: 2\nnodes: {a: {count: 2, tokens_s: [9, 4]}}\n", encoding="utf-8")
    refused = run_cli("place", str(tables), "--objective", "served")
    assert refused.returncode == 2
    assert "does not say how its nodes serve" in refused.stderr


def test_mistakes_of_a_pool_file_are_told_like_those_of_a_scenario(run_cli: RunCli, tmp_path: Path) -> None:
    """All at once, with line, place and what may be meant."""
    pool = tmp_path / "pool.yaml"
    pool.write_text(POOL.replace("cache_tokens", "cache_token").replace("count: 2", "count: 0"), encoding="utf-8")
    said = run_cli("place", str(pool))
    assert said.returncode == 2
    assert "pool.yaml:4: nodes.a.cache_token: unknown key (did you mean 'cache_tokens'?)" in said.stderr
    assert "pool.yaml:4: nodes.a.count: must be at least 1, not 0" in said.stderr
