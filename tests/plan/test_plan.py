"""The plan document and its independent verification."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from coralopt import load_scenario, plan_scenario, scenario_from_mapping, verify_plan
from coralopt.errors import PlanError
from coralopt.placement.best import best_placement
from coralopt.plan import Plan, PlannedCase, PlannedClass, plan_schema
from coralopt.planning import prove_bound


@pytest.fixture(scope="module")
def plan(tiny_plan: Plan) -> Plan:
    """A plan for the smallest built-in scenario."""
    return tiny_plan


def test_plan_holds(plan: Plan) -> None:
    """The planner's own plan passes a check that shares no code with the planner."""
    assert verify_plan(plan).violations == ()
    assert plan.gap <= plan.requested_gap
    assert list(prove_bound(plan)) == []


def test_optimality_is_derived_once_for_equal_nodes(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of instances of a few templates are verified as quickly as the templates."""
    from coralopt.plan.verify import instances

    asked = []

    def counted(problem: object, solver: object) -> object:
        asked.append(problem)
        return best_placement(problem, solver=solver)  # type: ignore[arg-type]

    monkeypatch.setattr(instances, "best_placement", counted)
    many = tuple(
        item.model_copy(update={"name": f"{item.name}-{k}", "tokens_s": item.tokens_s * 2})
        for k in range(50)
        for item in plan.instances
    )
    wrong = verify_plan(plan.model_copy(update={"instances": many})).violations
    assert len(asked) == len(plan.instances)
    assert sum(violation.kind == "optimality" for violation in wrong) == len(many)


def test_same_bytes_twice(plan: Plan, tmp_path: Path) -> None:
    """Equal input must give equal bytes, or plans cannot be compared."""
    again = plan_scenario(load_scenario("tiny"), library=tmp_path / "tiny.parquet")
    assert again.to_json() == plan.to_json()


def test_round_trip_and_schema(plan: Plan, tmp_path: Path) -> None:
    """Saving and loading loses nothing, and the document obeys the published schema."""
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    jsonschema.validate(json.loads(plan.to_json()), plan_schema())


def _set(*path: str | int) -> Callable[[dict[str, Any], Callable[[Any], Any]], None]:
    def change(data: dict[str, Any], f: Callable[[Any], Any]) -> None:
        here: Any = data
        for key in path[:-1]:
            here = here[key]
        here[path[-1]] = f(here[path[-1]])

    return change


CORRUPTIONS: list[tuple[Callable[[dict[str, Any], Callable[[Any], Any]], None], Callable[[Any], Any]]] = [
    (_set("cost_usd_h"), lambda v: v * 0.99),
    (_set("lower_bound_usd_h"), lambda v: v * 1.5),
    (_set("gap"), lambda v: v + 0.01),
    (_set("scenario_digest"), lambda v: "0" * 64),
    (_set("instances", 0, "count"), lambda v: v + 1),
    (_set("instances", 0, "count"), lambda v: v + 10_000),
    (_set("instances", 0, "tokens_s"), lambda v: v * 1.01),
    (_set("instances", 0, "price_usd_h"), lambda v: v * 0.5),
    (_set("instances", 0, "kept"), lambda v: v + 1),
    (_set("instances", 0, "stages", 0, "first_layer"), lambda v: v + 1),
    (_set("instances", 0, "stages", 0, "tokens_s"), lambda v: v * 1.01),
    (_set("instances", 0, "stages", 0, "nodes", 0, "tokens_s"), lambda v: v * 1.01),
    (_set("instances", 0, "stages", 0, "nodes", 0, "batch"), lambda v: v + 1),
    (_set("instances", 0, "stages", 0, "nodes", 0, "count"), lambda v: v + 1),
    (_set("instances", 0, "stages", 0, "nodes", 0, "traffic_share"), lambda v: v * 0.9),
    (_set("instances", 0, "stages", 0, "nodes", 0, "configuration"), lambda v: "9xL40S"),
    (_set("instances", 0, "region"), lambda v: "nowhere"),
    (_set("instances"), lambda v: v[1:]),
    (_set("demands"), lambda v: v[1:]),
    (_set("demands", 0, "planned_tokens_s"), lambda v: v + 1),
]


@pytest.mark.parametrize("number", range(len(CORRUPTIONS)))
def test_every_corruption_is_found(plan: Plan, number: int) -> None:
    """A verifier that misses one kind of lie is no verifier."""
    change, f = CORRUPTIONS[number]
    data = json.loads(plan.to_json())
    change(data, f)
    assert verify_plan(Plan.model_validate(data)).violations


def test_parts_that_the_scenario_knows_nothing_of_are_named(plan: Plan) -> None:
    """Classes of requests and cases of demand, where no model has any."""
    first, *rest = plan.instances
    part = PlannedClass(model=first.model, tokens_s=1.0, time_share=1.0)
    case = PlannedCase(case="rain", probability=1.0, model=first.model, factor=1.0, unmet_share=0.0, unmet_usd_h=0.0)
    for change, sentence in (
        (
            {"instances": (first.model_copy(update={"classes": (part,)}), *rest)},
            "`classes` goes with models whose requests",
        ),
        ({"cases": (case,)}, f"cases: rain of {first.model} is not one of the scenario"),
    ):
        sentences = verify_plan(plan.model_copy(update=change)).sentences
        assert any(sentence in text for text in sentences), sentences


@pytest.mark.parametrize(
    ("units", "sentence"), [(0.0, "no whole number"), (1.5, "no whole number"), (99.0, "more than the whole pipeline")]
)
def test_latency_budgets_are_whole_units_within_the_slo(units: float, sentence: str) -> None:
    """Where the scenario splits the SLO freely; one unit is a fourth of what an equal split gives."""
    document = {**load_scenario("tiny").document, "placement": {"latency_budgets": "free", "budget_units": 4}}
    plan = plan_scenario(scenario_from_mapping(document))
    assert verify_plan(plan).ok
    first, *rest = plan.instances
    phase = next(item for item in plan.resolved.model_phases if item.key == f"{first.model}/{first.phase}")
    budget_ms = units * phase.budget_ms / (4 * len(first.stages))
    stages = tuple(stage.model_copy(update={"latency_budget_ms": budget_ms}) for stage in first.stages)
    wrong = plan.model_copy(update={"instances": (first.model_copy(update={"stages": stages}), *rest)})
    assert any(sentence in text for text in verify_plan(wrong).sentences), verify_plan(wrong).sentences


def test_unreadable_plans(tmp_path: Path) -> None:
    """Missing, non-JSON, foreign: each one sentence with the file's name."""
    with pytest.raises(PlanError, match="cannot be read"):
        Plan.load(tmp_path / "missing.json")
    path = tmp_path / "plan.json"
    path.write_text("{")
    with pytest.raises(PlanError, match=r"plan\.json"):
        Plan.load(path)
    path.write_text('{"format": "coralopt-plan", "version": 99}')
    with pytest.raises(PlanError, match="version"):
        Plan.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match="UTF-8"):
        Plan.load(path)


def test_a_document_with_a_million_mistakes_is_refused_in_a_sentence(
    tiny_plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of the first ones, or, where gathering them takes seconds, how many there are."""
    text = json.dumps({**tiny_plan.model_dump(mode="json"), "instances": [0] * 50})
    with pytest.raises(PlanError, match=r"instances\.19: "):
        Plan.parse(text, "plan.json")
    monkeypatch.setattr("coralopt.plan.document.MOST_MISTAKES", 49)
    with pytest.raises(PlanError, match="50 fields are off, too many to name"):
        Plan.parse(text, "plan.json")
