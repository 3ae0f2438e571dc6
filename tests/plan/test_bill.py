"""The bill: lines and shares add up to the plan's own figures, and say where prices come from."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coralopt import Plan, plan_scenario
from coralopt.errors import InfeasibleError, PlanError
from coralopt.plan.bill import HOURS_A_MONTH, OneGpuRent, bill_of, rents
from coralopt.planning import PlanRequest, cheapest_of_one_gpu, get_planner
from coralopt.report.bill import bill_csv, bill_table
from coralopt.report.tables import MOST_SHOWN, demand_table, instance_table
from coralopt.scenario import ResolvedScenario, scenario_from_mapping
from coralopt.simulation import simulate
from coralopt.workload import poisson_for_scenario

RunCli = Callable[..., Any]


def test_the_sums_are_those_of_the_plan(tiny_plan: Plan) -> None:
    """Rent by line, by model and in total; tokens of a month at their price cost what the month's instances cost."""
    bill = bill_of(tiny_plan)
    assert bill.usd_h == pytest.approx(tiny_plan.provisioning_usd_h)
    assert bill.usd_month == pytest.approx(730 * tiny_plan.provisioning_usd_h)
    assert sum(model.usd_h for model in bill.models) == pytest.approx(bill.usd_h)
    assert sum(line.nodes for line in bill.lines) == sum(
        item.count * sum(item.nodes().values()) for item in tiny_plan.instances
    )
    costs = {model.model: model for model in bill.models}
    for demand in tiny_plan.demands:
        price = costs[demand.model].input_usd_mtok if demand.phase == "prefill" else costs[demand.model].output_usd_mtok
        assert price is not None
        assert price * demand.demand_tokens_s * 3600 * HOURS_A_MONTH / 1e6 == pytest.approx(
            demand.cost_usd_h * HOURS_A_MONTH
        )
    assert {line.instance_type for line in bill.lines} == {"g6.xlarge", "g6e.xlarge"}
    assert bill.notes == ("throughput from data sheets (roofline), not measured: 1xL4",)


def test_supply_classes_transfers_and_stand_ins_are_told(tiny_scenario: ResolvedScenario) -> None:
    """Nodes of one's own cost nothing more; spot has a line of its own; an own price is no catalog's."""
    data = json.loads(json.dumps(tiny_scenario.document))
    data["pool"]["regions"]["us-east-2"]["configurations"] = {
        "1xL4": {"available": 2, "reserved": 2, "spot": {"available": 8, "price_usd_h": 0.3}},
        "2xL40S": 4,
    }
    plan = plan_scenario(scenario_from_mapping(data))
    bill = bill_of(plan)
    assert bill.usd_h == pytest.approx(plan.provisioning_usd_h)
    assert sum(model.usd_h for model in bill.models) == pytest.approx(bill.usd_h)
    assert {line.supply: line.usd_h_each for line in bill.lines if line.gpu == "L4"} == {"reserved": 0.0, "spot": 0.3}
    assert "class" in [column.header for column in bill_table(bill).columns]
    # A simulation of the plan pays the same rent.
    rent = sum(item.count * usd_h for item, usd_h in zip(plan.instances, rents(plan), strict=True))
    assert rent == pytest.approx(plan.provisioning_usd_h)
    result = simulate(plan, poisson_for_scenario(plan.resolved, duration_s=5.0))
    assert result.cost_usd_h == pytest.approx(plan.provisioning_usd_h)
    # An edited plan is refused in words.
    edited = json.loads(plan.to_json())
    edited["instances"][0]["region"] = "mars"
    with pytest.raises(PlanError, match="in mars, which the plan's node classes do not have"):
        bill_of(Plan.model_validate(edited))
    if any(line.configuration == "2xL40S" for line in bill.lines):
        assert any("2xL40S in us-east-2 (pro-rata share of g6e.12xlarge)" in note for note in bill.notes)


@pytest.fixture
def mixed_in_fp8() -> dict[str, Any]:
    """A model in FP8 in mixed mode; the team's own A100 cannot run it, and the T4 do not either."""
    nodes = {"1xA100": {"available": 2, "price_usd_h": 0}, "1xT4": {"available": 2, "price_usd_h": 0.3}}
    model = {"weight_format": "fp8", "slo": {"ttft_ms": 2000, "tpot_ms": 80, "attainment": "mean"}}
    demand = {"requests_s": 1, "input_tokens": 500, "output_tokens": 100}
    return {
        "mode": "mixed",
        "models": {"qwen3-8b": {**model, "demand": demand}},
        "pool": {"regions": {"r": {"configurations": {**nodes, "1xL40S": {"available": 4, "price_usd_h": 1.5}}}}},
    }


def test_what_is_not_used_and_why_is_told(mixed_in_fp8: dict[str, Any]) -> None:
    """Free nodes that stay free, GPUs without the units; mixed instances keep both SLOs."""
    plan = plan_scenario(scenario_from_mapping(mixed_in_fp8))
    notes = bill_of(plan).notes
    assert "not used, though they cost nothing: 2 of 2 1xA100 in r" in notes
    needed = "weights in FP8 need FP8 units, which {} does not have (qwen3-8b)"
    assert f"GPUs left out: {needed.format('A100')}; {needed.format('T4')}" in notes
    assert "TTFT 2000 ms, TPOT 80 ms" in list(demand_table(plan).columns[1].cells)


def test_what_is_assumed_of_a_node_is_told_in_every_output(run_cli: RunCli, tmp_path: Path) -> None:
    """A guess (A10G), links that nobody measured, figures of another GPU: in the bill, its CSV and a comparison."""
    nodes = {"2xA10G": {"available": 2, "price_usd_h": 1}, "1xMI300X": {"available": 2, "price_usd_h": 1}}
    demand = {"requests_s": 1, "input_tokens": 500, "output_tokens": 100}
    slo = {"ttft_ms": 2000, "tpot_ms": 80, "attainment": "mean"}
    small, large = {"slo": slo, "demand": demand}, {"slo": slo, "demand": {**demand, "requests_s": 2}}
    document = {
        "models": {"qwen3-8b": small, "llama3.3-70b": large},
        "pool": {"regions": {"r": {"configurations": nodes}}},
    }
    plan = plan_scenario(scenario_from_mapping(document))
    assert {name for _, name in plan.rented_nodes()} == {"2xA10G", "1xMI300X"}
    expected = [
        "throughput from data sheets (roofline), not measured: 1xMI300X, 2xA10G",
        "no figures of their own, assumed to reach the same shares of the data sheet: 1xMI300X like H100 in prefill",
        "shares of the data sheet that kernels reach are guessed, not fitted: 2xA10G",
        "speed of the links between the GPUs of a node is assumed: 2xA10G",
    ]
    bill = bill_of(plan)
    assert [note for note in bill.notes if "stand-in" not in note] == expected
    words = {line.configuration: line.throughput for line in bill.lines}
    assert words == {"2xA10G": "data sheet, guessed", "1xMI300X": "data sheet, prefill assumed like H100"}
    assert "prefill assumed like H100" in bill_csv(bill)
    (tmp_path / "s.json").write_text(json.dumps(document))
    compared = run_cli("compare", "s.json", "--planners", "coral")
    assert all(note in compared.stdout + compared.stderr for note in expected)


def test_a_refusal_names_gpus_that_were_left_out(mixed_in_fp8: dict[str, Any]) -> None:
    """More of them would not help."""
    mixed_in_fp8["models"]["qwen3-8b"]["demand"]["requests_s"] = 1000
    with pytest.raises(InfeasibleError, match=r"too few nodes left of: 1xL40S in r(.|\n)*which A100 does not have"):
        plan_scenario(scenario_from_mapping(mixed_in_fp8))


def test_a_refusal_says_where_kv_caches_cannot_go() -> None:
    """Regions of one's own with a node each: prefill and decode find none to share, however many there are."""
    slo, demand = {"ttft_ms": 2000, "tpot_ms": 100, "attainment": "mean"}, {"requests_s": 2, "dataset": "azure-conv"}
    regions = {f"r{i}": {"configurations": {"1xL40S": {"available": 1, "price_usd_h": 1}}} for i in range(8)}
    document = {"models": {"qwen3-8b": {"slo": slo, "demand": demand}}, "pool": {"regions": regions}}
    with pytest.raises(InfeasibleError, match=r"must share a region, .* from r0, r1, .* and 2 more"):
        plan_scenario(scenario_from_mapping(document))


def test_one_gpu_type_costs_more_or_cannot(tiny_scenario: ResolvedScenario) -> None:
    """Each type alone, by the same planner; a pool of one type has nothing to compare."""
    request = PlanRequest(tiny_scenario)
    outcome = get_planner("coral").plan(request)
    rent = cheapest_of_one_gpu(request, outcome)
    assert rent is not None
    assert rent.gpu == "L40S"
    assert set(rent.tried) == {"L4", "L40S"}
    assert rent.usd_h == pytest.approx(7.444)
    assert "this plan costs 31.8% less" in rent.compared_with(bill_of(outcome.plan).usd_h)
    assert rent.compared_with(rent.usd_h).endswith("this plan costs the same")
    none = OneGpuRent(None, float("nan"), ("L4", "L40S"), math.inf)
    assert "none of L4, L40S alone" in none.compared_with(1.0)
    no_time = replace(none, least_usd_h=8.0, saved=0.25, seconds=3.2).compared_with(1.0)
    assert "none costs less than 8.0000 USD/h" in no_time
    assert "looked for in 3 s" in no_time
    assert no_time.endswith("this plan costs 25.0% less than that")
    alone = tiny_scenario.with_supply(
        tiny_scenario.availability * [c.gpu.name == "L40S" for c in tiny_scenario.configurations],
        tiny_scenario.price_usd_h,
    )
    assert cheapest_of_one_gpu(PlanRequest(alone), outcome) is None
    assert "no other than L40S" in bill_of(plan_scenario(alone)).against


@pytest.mark.parametrize("seed", range(4))
def test_the_cheapest_type_is_that_of_all_plans(tiny_scenario: ResolvedScenario, seed: int) -> None:
    """Whatever the prices and the supply: types left out by their bounds are none that would have been cheapest."""
    random = np.random.default_rng(seed)
    types = np.array([c.gpu.name for c in tiny_scenario.configurations])
    dearness = np.where(types == "L4", random.uniform(0.2, 2.0), 1.0)
    scenario = tiny_scenario.with_supply(
        random.integers(2, 30, tiny_scenario.availability.shape), tiny_scenario.price_usd_h * dearness
    )
    request = PlanRequest(scenario)
    outcome = get_planner("coral").plan(request)
    least = {}
    for name in ("L4", "L40S"):
        alone = scenario.with_supply(np.where(types == name, scenario.availability, 0), scenario.price_usd_h)
        with contextlib.suppress(InfeasibleError):
            least[name] = plan_scenario(alone).cost_usd_h
    rent = cheapest_of_one_gpu(request, outcome)
    assert rent is not None
    assert rent.least_usd_h <= min(least.values(), default=math.inf) + 1e-9
    if least:
        assert rent.usd_h <= 1.011 * min(least.values())
    else:
        assert rent.gpu is None


def test_a_type_of_one_region_is_in_the_pool(tiny_scenario: ResolvedScenario) -> None:
    """L4 in one region, L40S in both: two types, which can be compared."""
    both, one = {"1xL40S": 8, "1xL4": 8}, {"1xL40S": 8}
    regions = {"us-east-2": {"configurations": both}, "ap-northeast-2": {"configurations": one}}
    plan = plan_scenario(scenario_from_mapping({**tiny_scenario.document, "pool": {"regions": regions}}))
    assert "no other than" not in bill_of(plan).against
    assert "--one-gpu of `plan` and `show` does" in bill_of(plan).against


def test_types_that_cost_more_by_their_bounds_are_not_searched(
    tiny_scenario: ResolvedScenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a share of requests: one type is searched to the end, the other is not; without time the bounds are left."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    document = json.loads(json.dumps(tiny_scenario.document))
    model = document["models"]["gpt-oss-20b"]
    model["slo"] = {"ttft_ms": 900, "tpot_ms": 30, "attainment": 0.99}
    document |= {"models": {"gpt-oss-20b": model}, "pruning": {"max_nodes": 1, "memory_ratio": 12}}
    request = PlanRequest(scenario_from_mapping(document))
    outcome = get_planner("coral").plan(request)
    rent = cheapest_of_one_gpu(request, outcome)
    assert rent is not None
    assert rent.gpu == "L40S"
    assert rent.seconds is None
    assert rent.usd_h >= outcome.plan.provisioning_usd_h - 1e-9
    assert outcome.plan.lower_bound_usd_h <= rent.least_usd_h <= rent.usd_h * 1.1 + 1e-9
    alone = document["pool"]["regions"]["us-east-2"]
    alone["configurations"] = {name: node for name, node in alone["configurations"].items() if "L40S" in name}
    assert rent.usd_h == pytest.approx(plan_scenario(scenario_from_mapping(document)).provisioning_usd_h)
    bare = outcome.plan.model_copy(update={"certificate": None})
    early = cheapest_of_one_gpu(request, replace(outcome, plan=bare), seconds=0.0)
    assert early is not None
    assert (early.gpu, early.seconds is None) == (None, False)
    assert outcome.plan.lower_bound_usd_h <= early.least_usd_h <= rent.usd_h * 1.1 + 1e-9


def test_show_compares_with_one_gpu_type_when_asked(run_cli: RunCli, tiny_plan_file: Path) -> None:
    """The same words as of `plan`; the plan document itself has no such comparison."""
    shown = run_cli("show", str(tiny_plan_file), "--bill", "--one-gpu")
    assert "cheapest with one GPU type" in " ".join(shown.stdout.split())
    refused = run_cli("show", str(tiny_plan_file), "--one-gpu", "--json")
    assert (refused.returncode, "--bill" in refused.stderr) == (2, True)


def test_show_ends_after_the_dearest_instances(tiny_plan: Plan) -> None:
    """Printing a plan takes no minutes, however many rows it has."""
    many = tiny_plan.model_copy(update={"instances": tiny_plan.instances * MOST_SHOWN})
    table = instance_table(many)
    assert table.row_count == MOST_SHOWN
    assert f"of {len(many.instances):,} rows" in str(table.caption)
    assert instance_table(tiny_plan).caption is None


def test_show_writes_the_bill(run_cli: RunCli, tiny_plan: Plan, tiny_plan_file: Path, tmp_path: Path) -> None:
    """Only the bill, as JSON, and its lines as CSV."""
    shown = run_cli("show", "plan.json", "--bill", "--csv", "bill.csv", "--json")
    bill = bill_of(tiny_plan)
    assert json.loads(shown.stdout)["usd_month"] == bill.usd_month
    assert (tmp_path / "bill.csv").read_text() == bill_csv(bill)
    rows = list(csv.DictReader(io.StringIO(bill_csv(bill))))
    assert [row["instance_type"] for row in rows] == [line.instance_type for line in bill.lines]
    assert all(len(row[column].partition(".")[2]) <= 6 for row in rows for column in ("usd_h", "usd_month"))
    words = run_cli("show", "plan.json", "--no-pipelines").stdout
    assert words.index("What to rent") < words.index("Promises") < words.index("proven lower bound")
