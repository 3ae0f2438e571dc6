"""Placement rules beyond the paper, from the scenario to the library, its check, and the plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coralopt import load_scenario
from coralopt.errors import ScenarioError
from coralopt.plan import Plan
from coralopt.plan.verify import verify_plan
from coralopt.planning import plan_scenario
from coralopt.scenario import scenario_from_mapping
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates import (
    BuildMethod,
    TemplateLibrary,
    build_library,
    check_library,
    library_digest,
    scenario_tables,
)


def tiny(**placement: Any) -> ResolvedScenario:
    """The smallest built-in scenario with other placement rules."""
    return scenario_from_mapping({**load_scenario("tiny").document, "placement": placement})


@pytest.fixture(scope="module")
def plain() -> TemplateLibrary:
    """Its library by the paper's rules."""
    return build_library(tiny())


def throughputs(library: TemplateLibrary) -> list[dict[bytes, float]]:
    """Throughput by node set, for each model phase."""
    return [{u.tobytes(): float(t) for u, t in zip(p.usage, p.throughput, strict=True)} for p in library.phases]


@pytest.mark.parametrize("engine", ["one-node-stages", "vllm"])
def test_limits_only_cost(plain: TemplateLibrary, engine: str) -> None:
    """A restricted engine never serves more."""
    library = build_library(tiny(engine=engine))
    for limited, free in zip(throughputs(library), throughputs(plain), strict=True):
        assert all(value <= free[key] for key, value in limited.items())


@pytest.mark.parametrize("engine", [pytest.param("one-node-stages", marks=pytest.mark.slow), "vllm"])
def test_libraries_of_limited_engines_are_checked(engine: str) -> None:
    """Another solver derives the same templates."""
    library = build_library(tiny(engine=engine))
    assert check_library(library, method=BuildMethod("highs", sample=3, seed=2), workers=1).ok


def test_free_budgets_only_gain(plain: TemplateLibrary) -> None:
    """The equal split is on the grid, so free budgets lose nothing; a finer grid that holds the coarse one neither."""
    coarse, fine = (throughputs(build_library(tiny(latency_budgets="free", budget_units=n))) for n in (1, 2))
    for paper, one, two in zip(throughputs(plain), coarse, fine, strict=True):
        assert all(one[key] == value for key, value in paper.items())
        assert all(two[key] >= value for key, value in paper.items())


def test_links_only_cost(plain: TemplateLibrary) -> None:
    """The slower end of a link is never faster than the sender alone."""
    linked = build_library(tiny(network="link"))
    for real, assumed in zip(throughputs(linked), throughputs(plain), strict=True):
        assert all(value <= assumed[key] for key, value in real.items())


@pytest.mark.slow
@pytest.mark.parametrize("placement", [{"latency_budgets": "free"}, {"network": "link"}])
def test_libraries_with_cells_are_checked(placement: dict[str, Any]) -> None:
    """The integer programme derives the same templates, on the real tables."""
    library = build_library(tiny(**placement))
    result = check_library(library, method=BuildMethod("highs", sample=5, seed=4), workers=1)
    assert result.ok, result.violations


def test_every_rule_has_its_own_digest() -> None:
    """A library by other rules must never be taken for the scenario's own."""
    rules: list[dict[str, Any]] = [{}, {"engine": "vllm"}, {"network": "link"}, {"latency_budgets": "free"}]
    rules.append({"latency_budgets": "free", "budget_units": 3})
    scenarios = [tiny(**rule) for rule in rules]
    digests = [library_digest(s, scenario_tables(s)) for s in scenarios]
    assert len(set(digests)) == len(digests)
    assert len({s.digest for s in scenarios}) == len(digests)
    assert tiny().digest == load_scenario("tiny").digest


def test_plans_of_a_restricted_engine_are_verified() -> None:
    """The plan obeys the engine's limits, and verification by other rules refuses it where it would break them."""
    plan = plan_scenario(tiny(engine="vllm"))
    assert verify_plan(plan).ok
    assert plan.cost_usd_h >= plan_scenario(tiny()).cost_usd_h * (1 - 1e-9)


@pytest.mark.parametrize("rules", [{"latency_budgets": "free", "budget_units": 3}, {"network": "link"}])
def test_plans_with_cells_are_verified(rules: dict[str, Any]) -> None:
    """Plans with free latency budgets or real links stand up to verification; free budgets never cost more."""
    plan = plan_scenario(tiny(**rules))
    result = verify_plan(plan)
    assert result.ok, result.violations
    paper = plan_scenario(tiny()).cost_usd_h
    if "network" in rules:
        assert plan.cost_usd_h >= paper * (1 - 1e-9)
    else:
        assert plan.cost_usd_h <= paper * (1 + 1e-9)


@pytest.mark.parametrize(
    ("field", "factor", "words"), [("latency_budget_ms", 1.5, "whole number"), ("latency_budget_ms", 4.0, "add up")]
)
def test_latency_budgets_of_a_plan_are_doubted(field: str, factor: float, words: str) -> None:
    """A budget off the grid, or budgets beyond the SLO, must not pass."""
    scenario = tiny(latency_budgets="free", budget_units=1)
    data = plan_scenario(scenario).model_dump(mode="json")
    stages = max((item["stages"] for item in data["instances"]), key=len)
    stages[0][field] *= factor
    assert any(words in text for text in verify_plan(Plan.model_validate(data)).sentences)


def test_budgets_and_links_exclude_each_other() -> None:
    """Said where the mistake is."""
    with pytest.raises(ScenarioError, match="combined"):
        tiny(latency_budgets="free", network="link")


def test_budget_tables_hold_the_equal_split() -> None:
    """The cell of u units is the paper's table, bit for bit, and throughput rises with the units."""
    from coralopt.templates import placement_tables

    scenario = tiny(latency_budgets="free", budget_units=2)
    tables = scenario_tables(scenario)
    values, _ = placement_tables(scenario, tables)
    for table, cells in zip(tables, values, strict=True):
        assert np.array_equal(cells[:, :, :, 2], table.values)
        for stages in range(1, cells.shape[0] + 1):
            assert (np.diff(cells[stages - 1, :, :, : 2 * stages - stages + 2], axis=2) >= 0).all()
