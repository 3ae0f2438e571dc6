"""Sweeps and analyses: a point is the plan of its scenario, whatever was planned before it and wherever it stopped."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coralopt import plan_scenario, scenario_from_mapping, verify_plan
from coralopt.errors import CoraloptError, OptionError, PlanError, ScenarioError
from coralopt.plan import Plan
from coralopt.planning import PlanRequest
from coralopt.planning.analysis import analyse_plan
from coralopt.planning.sweep import CoralPlanner, Sweep, SweepPoint, pareto, sweep
from coralopt.planning.variation import Variation, grid, varied
from coralopt.scenario import ResolvedScenario

RunCli = Callable[..., Any]
MODEL = "phi4-14b"


def last(request: PlanRequest, *vary: str, path: Path | None = None, jobs: int = 1) -> Sweep:
    """The finished sweep."""
    return list(sweep(request, [Variation.parse(text) for text in vary], path, jobs))[-1]


@pytest.fixture
def request_(tiny_scenario: ResolvedScenario, tiny_library_file: Path) -> PlanRequest:
    return PlanRequest(tiny_scenario, library=tiny_library_file)


@pytest.mark.parametrize(
    "vary",
    [
        f"models.{MODEL}.slo.decode_ms=40:80:40",
        f"models.{MODEL}.demand.requests_s=5:25:20",
        "pool.regions.us-east-2.configurations.1xL40S=0,2",
        "initialization_penalty=0:0.4:0.4",
        "demand.all=0.5:2:1.5",
        f"slo.{MODEL}=0.8,1.2",
        "price.L40S=0.5,1.5",
        "price.1xL4=0.5,1.5",
    ],
)
def test_a_point_equals_a_plan_of_its_own(request_: PlanRequest, tmp_path: Path, vary: str) -> None:
    """Planned cold from a file with that value: the same scenario, the same cost, a plan that holds."""
    axis = Variation.parse(vary)
    for point in last(PlanRequest(request_.scenario), vary).points:
        scenario = own_scenario(request_.scenario, axis.path, point.values[axis.path])
        assert point.scenario_digest == scenario.digest
        if point.status == "infeasible":
            with pytest.raises(CoraloptError):
                plan_scenario(scenario, library=tmp_path / "none.parquet")
            continue
        own = plan_scenario(scenario, library=tmp_path / f"{scenario.digest[:8]}.parquet")
        assert point.cost_usd_h == pytest.approx(own.cost_usd_h, rel=own.requested_gap)
        assert point.lower_bound_usd_h <= own.cost_usd_h * (1 + 1e-9)
        kept = Plan.parse(point.plan, "the point")
        assert verify_plan(kept).violations == ()
        assert (kept.cost_usd_h, kept.scenario_digest) == (point.cost_usd_h, point.scenario_digest)
        assert point.nodes == sum(i.count * sum(i.nodes().values()) for i in kept.instances)


def own_scenario(scenario: ResolvedScenario, path: str, value: float) -> ResolvedScenario:
    """The change made by hand, in other words than the sweep's."""
    data = copy.deepcopy(dict(scenario.document))
    if path.endswith("_ms"):
        data["models"][MODEL]["slo"]["tpot_ms"] = value
    elif path.endswith("requests_s"):
        data["models"][MODEL]["demand"]["requests_s"] = value
    elif path.startswith("pool"):
        data["pool"]["regions"]["us-east-2"]["configurations"]["1xL40S"] = value
    elif path == "initialization_penalty":
        data[path] = value
    elif path == "demand.all":
        for model in data["models"].values():
            model["demand"]["requests_s"] *= value
    elif path.startswith("slo"):
        for name in ("ttft_ms", "tpot_ms"):
            data["models"][MODEL]["slo"][name] *= value
    else:
        name = path.removeprefix("price.")
        price = scenario.price_usd_h.copy()
        for c, item in enumerate(scenario.configurations):
            if name in (item.name, item.gpu.name):
                price[:, c] *= value
        return scenario.with_supply(scenario.availability, price)
    return scenario_from_mapping(data)


def test_a_sweep_goes_on_where_it_stopped(
    request_: PlanRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left after two points, it plans only the others; the end is that of an undisturbed sweep."""
    path, vary = tmp_path / "sweep.parquet", (f"models.{MODEL}.slo.tpot_ms=40:80:20", "price.all=1,2")
    axes = [Variation.parse(text) for text in vary]
    begun = sweep(request_, axes, path)
    next(begun), next(begun)
    begun.close()
    assert len(Sweep.load(path).points) == 2
    planned = []
    plan = CoralPlanner.plan
    monkeypatch.setattr(CoralPlanner, "plan", lambda self, request: planned.append(1) or plan(self, request))
    done = last(request_, *vary, path=path)
    assert len(planned) == 4
    whole = last(request_, *vary)
    assert [p.values for p in done.points] == [p.values for p in whole.points] == grid(axes)
    assert [p.cost_usd_h for p in done.points] == pytest.approx([p.cost_usd_h for p in whole.points], rel=1e-4)
    assert Sweep.load(path).points == done.points
    planned.clear()
    again = last(request_, *vary, path=path)
    assert (again.points, planned) == (done.points, [])


def test_several_processes_find_the_same(request_: PlanRequest) -> None:
    vary = (f"models.{MODEL}.slo.tpot_ms=40,60", "demand.all=1,3")
    one, two = (last(request_, *vary, jobs=jobs) for jobs in (1, 2))
    assert [p.values for p in one.points] == [p.values for p in two.points]
    assert [p.cost_usd_h for p in one.points] == pytest.approx([p.cost_usd_h for p in two.points], rel=1e-4)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=40:120:20", (40, 60, 80, 100, 120)),
        ("a=0.1:0.5:0.1", (0.1, 0.2, 0.3, 0.4, 0.5)),
        ("a=3:1:-1", (3, 2, 1)),
        ("a=1:2:0.4", (1, 1.4, 1.8)),
        ("a=7", (7,)),
        ("a=1,2,1", (1, 2)),
    ],
)
def test_values_of_an_axis(text: str, values: tuple[float, ...]) -> None:
    assert Variation.parse(text).values == values


@pytest.mark.parametrize(
    "text", ["", "a", "a=", "=1", "a=1:2", "a=1:2:0", "a=1:2:-1", "a=x", "a=nan", "a=1:inf:1", "a=0:1e9:1", "a=1,,2"]
)
def test_bad_axes_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="expected PATH=START:STOP:STEP"):
        Variation.parse(text)


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("models.phi.slo.tpot_ms", OptionError, "choose from gpt-oss-20b, phi4-14b"),
        ("models.phi4-14b.slo.tpot", ScenarioError, "unknown key"),
        ("models.phi4-14b.slo", ScenarioError, "must be a mapping"),
        ("models.phi4-14b.slo.tpot_ms", ScenarioError, "tpot_ms"),
        ("price.H100", OptionError, "no such GPU type"),
        ("demand.phi", OptionError, "no such model"),
        ("name", ScenarioError, "name"),
        ("limits.max_usd", OptionError, "as a new section: limits.max_usd: unknown key"),
    ],
)
def test_changes_that_lead_nowhere_are_refused(
    tiny_scenario: ResolvedScenario, path: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        varied(tiny_scenario, {path: -5})


def test_a_section_that_the_scenario_leaves_out_is_added(request_: PlanRequest) -> None:
    """A budget could be swept only where the file had one."""
    swept = last(request_, "limits.max_usd_h=1,5.0802,9")
    assert [point.status for point in swept.points] == ["infeasible", "optimal", "optimal"]
    assert "5.0802 is enough" in swept.points[0].error
    nested = varied(request_.scenario, {"models.phi4-14b.limits.max_nodes": 3, "models.phi4-14b.limits.max_usd_h": 9})
    assert dict(nested.document["models"]["phi4-14b"]["limits"]) == {"max_nodes": 3, "max_usd_h": 9}


def test_a_file_of_another_sweep_is_refused(request_: PlanRequest, tmp_path: Path) -> None:
    path = tmp_path / "sweep.parquet"
    last(request_, "price.all=1", path=path)
    with pytest.raises(OptionError, match=r"holds a sweep of price\.all"):
        last(request_, "demand.all=1", path=path)
    path.write_bytes(b"PAR1")
    with pytest.raises(CoraloptError, match="not a file of"):
        last(request_, "price.all=1", path=path)
    assert len(list(sweep(request_, [Variation.parse("price.all=1")], path, restart=True))[-1].points) == 1


def test_a_grid_that_is_too_large_or_doubled_is_refused() -> None:
    axis = Variation.parse("a=1:1000:1")
    with pytest.raises(OptionError, match="1,000,000 points"):
        grid([axis, Variation.parse("b=1:1000:1")])
    with pytest.raises(OptionError, match="twice"):
        grid([axis, axis])


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=12))
def test_the_front_is_what_nobody_beats(triples: list[tuple[int, int, int]]) -> None:
    """Against the definition; a cost of 0 stands for no plan."""
    axes = [Variation("slo.all", (0,)), Variation("demand.all", (0,))]
    points = [
        SweepPoint({"slo.all": a, "demand.all": b}, "optimal", "", cost_usd_h=c or math.nan) for a, b, c in triples
    ]
    front = pareto(points, axes)
    for (a, b, c), point in zip(triples, points, strict=True):
        beaten = any(z and z <= c and x <= a and y >= b and (z, x, y) != (c, a, b) for x, y, z in triples)
        assert (point in front) == (bool(c) and not beaten)


def test_the_command_writes_points_page_and_drawing(run_cli: RunCli, tmp_path: Path, tiny_library_file: Path) -> None:
    command = ["sweep", "tiny", "--library", str(tiny_library_file), "--vary", "price.L4=1:2:1", "--jobs", "1"]
    done = run_cli(*command, "-o", "s.parquet", "--page", "s.html", "--plot", "s.svg")
    assert done.returncode == 0, done.stderr
    assert "Sweep of tiny" in done.stdout
    costs = [p["cost_usd_h"] for p in json.loads(run_cli(*command, "-o", "s.parquet", "--json").stdout)["points"]]
    page = (tmp_path / "s.html").read_text()
    assert all(f"{cost:,.4f}" in page for cost in costs)
    assert (tmp_path / "s.svg").read_text().startswith("<svg")
    assert run_cli("report", "s.parquet", "-o", "again.html").returncode == 0
    assert (tmp_path / "again.html").read_text() == page
    refused = run_cli(*command, "--plot", "s.png")
    assert (refused.returncode, ".svg" in refused.stderr) == (2, True)


@pytest.fixture(scope="module")
def scarce(tiny_scenario: ResolvedScenario) -> ResolvedScenario:
    """The smallest scenario with one node of everything, where nodes bind."""
    return tiny_scenario.with_supply(tiny_scenario.availability.clip(max=2), tiny_scenario.price_usd_h)


def test_an_analysis_is_plans_of_their_own(scarce: ResolvedScenario, tmp_path: Path) -> None:
    """One more node, a factor and the plan without a template: each cost against a plan made from scratch."""
    library = tmp_path / "library.parquet"
    plan = plan_scenario(scarce, library=library)
    analysis = analyse_plan(plan, library)
    assert analysis.cost_usd_h == pytest.approx(plan.cost_usd_h, rel=plan.requested_gap)
    names = [item.name for item in scarce.configurations]
    for item in analysis.nodes:
        more = scarce.availability.copy()
        more[scarce.regions.index(item.region), names.index(item.configuration)] += 1
        own = plan_scenario(scarce.with_supply(more, scarce.price_usd_h), library=tmp_path / "more.parquet")
        assert item.saved_usd_h == pytest.approx(plan.cost_usd_h - own.cost_usd_h, abs=2 * analysis.gap_usd_h + 1e-9)
    assert {item.instance.key for item in analysis.alternatives} == {item.key for item in plan.instances}
    for item in analysis.alternatives:
        assert item.more_usd_h is None or (item.more_usd_h >= 0 and item.instead)
    for curve in analysis.sensitivities:
        assert dict(zip(curve.factors, curve.costs, strict=True))[1.0] == analysis.cost_usd_h
        if curve.path.startswith("price"):
            assert list(curve.costs) == sorted(curve.costs)
            own = plan_scenario(varied(scarce, {curve.path: curve.factors[0]}), library=library)
            assert curve.costs[0] == pytest.approx(own.cost_usd_h, rel=2 * plan.requested_gap)


def test_a_plan_that_costs_something_else_now_is_not_analysed(tiny_plan: Plan) -> None:
    with pytest.raises(PlanError, match="planned again it costs"):
        analyse_plan(tiny_plan.model_copy(update={"cost_usd_h": tiny_plan.cost_usd_h * 2}))


def test_only_plans_of_coral_are_analysed(tiny_plan: Plan) -> None:
    with pytest.raises(OptionError, match="only plans of coral"):
        analyse_plan(tiny_plan.model_copy(update={"planner": "homo"}))
