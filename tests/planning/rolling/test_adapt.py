"""The rolling horizon: each plan verifies, changes add up, penalties are charged, an interrupted one goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from coralopt.errors import InfeasibleError, PlanError, WorkloadError
from coralopt.plan import Plan, PlanDifference, difference
from coralopt.plan.verify import verify_plan
from coralopt.planning import LastValue, PlanRequest, RollingSettings, WarmState, adapt, epoch_inputs, prove_bound
from coralopt.planning.rolling.epochs import EpochInputs
from coralopt.scenario import load_scenario, scenario_from_mapping
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates import TemplateLibrary
from coralopt.workload import EpochAvailability, EpochDemand, EpochPrices


@pytest.fixture(scope="module")
def tiny() -> ResolvedScenario:
    """The smallest built-in scenario."""
    return load_scenario("tiny")


@pytest.fixture(scope="module")
def request_(tiny: ResolvedScenario, tiny_library: TemplateLibrary) -> PlanRequest:
    """Its library is made once; demand, supply and prices do not change it."""
    return PlanRequest(tiny, warm=WarmState().with_library(tiny, tiny_library))


def inputs_of(scenario: ResolvedScenario, factors: list[float]) -> EpochInputs:
    """Demand times a factor an epoch, prices that move a little, the supply of the scenario."""
    rng = np.random.default_rng(0)
    demand = np.array([phase.demand_tokens_s for phase in scenario.model_phases])
    price = scenario.price_usd_h
    return epoch_inputs(
        scenario,
        EpochDemand(tuple(p.key for p in scenario.model_phases), np.outer(factors, demand)),
        prices=EpochPrices(
            scenario.regions,
            tuple(c.name for c in scenario.configurations),
            np.stack([price * rng.uniform(0.95, 1.05, price.shape) for _ in factors]),
        ),
    )


def test_every_plan_verifies_and_changes_add_up(tiny: ResolvedScenario, request_: PlanRequest) -> None:
    """Each epoch is a whole plan of its own; what starts and stops leads from one to the next, K times it is paid."""
    epochs = list(adapt(replace(request_, options={"rel_gap": 0.0}), inputs_of(tiny, [1.0, 1.6, 0.5, 0.5])))
    running: dict[str, int] = {}
    for epoch in epochs:
        assert verify_plan(epoch.plan).ok, verify_plan(epoch.plan).violations
        for change in epoch.changes.changes:
            assert change.before == running.get(change.name, 0)
            assert change.after == change.keep + change.start
            assert change.before == change.keep + change.stop
        running = {item.name: item.count for item in epoch.plan.instances}
        paid = tiny.initialization_penalty * epoch.changes.started_usd_h
        assert epoch.summary.initialization_usd_h == pytest.approx(paid)
        assert epoch.summary.gap <= 1e-9
        assert epoch.summary.served_share == 1.0


def test_warm_and_cold_walks_prove_the_same_costs(tiny: ResolvedScenario, request_: PlanRequest) -> None:
    """Beginning from the last capacity prices saves time, not money: optimal costs are the same."""
    inputs, exact = inputs_of(tiny, [1.0, 1.3, 0.8]), replace(request_, options={"rel_gap": 0.0})
    costs = [[e.summary.cost_usd_h for e in adapt(exact, inputs, RollingSettings(warm=warm))] for warm in (True, False)]
    # Several optima of an epoch may lead to different next ones; the first is the same in any case.
    assert costs[0][0] == pytest.approx(costs[1][0])


def test_penalty_keeps_what_runs(tiny: ResolvedScenario, request_: PlanRequest) -> None:
    """With a high K nothing is exchanged for a small saving; with K = 0 only today's prices count."""
    inputs = inputs_of(tiny, [1.0, 1.0, 1.0, 1.0])
    starts = [sum(e.summary.start for e in list(adapt(request_, inputs, RollingSettings(k)))[1:]) for k in (0.0, 10.0)]
    assert starts[1] == 0
    assert starts[0] >= starts[1]


def test_interrupted_walk_goes_on(tiny: ResolvedScenario, request_: PlanRequest, tmp_path: Path) -> None:
    """Stopped after two epochs and called again, it ends where an uninterrupted one does, byte for byte."""
    inputs = inputs_of(tiny, [1.0, 1.5, 0.7, 1.1])
    walk = adapt(request_, inputs, RollingSettings(output=tmp_path / "cut"))
    next(walk), next(walk)
    walk.close()
    resumed = list(adapt(request_, inputs, RollingSettings(output=tmp_path / "cut")))
    assert [epoch.resumed for epoch in resumed] == [True, True, False, False]
    list(adapt(request_, inputs, RollingSettings(output=tmp_path / "whole")))
    for name in ("epoch-0003.json", "epoch-0003-changes.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    stored = PlanDifference.load(tmp_path / "cut" / "epoch-0002-changes.json")
    plans = [Plan.load(tmp_path / "cut" / f"epoch-000{e}.json") for e in (1, 2)]
    assert stored == difference(*plans)


@pytest.mark.parametrize("on_infeasible", ["explain", "scale"])
def test_templates_on_demand(
    tiny: ResolvedScenario, tmp_path: Path, on_infeasible: Literal["explain", "scale"]
) -> None:
    """Epochs of a pool without a library, which every walk tried to build; they cost what they do with one."""
    factors = [1.0, 1.5, 0.6] if on_infeasible == "explain" else [1.0, 60.0, 1.1]
    document = {key: value for key, value in tiny.document.items() if key != "pruning"}
    plans: dict[str, list[Plan]] = {}
    for templates in ("every", "on-demand"):
        scenario = scenario_from_mapping({**document, "templates": templates, "pruning": {"max_nodes": 3}})
        request = PlanRequest(scenario, on_infeasible=on_infeasible, options={"rel_gap": 1e-4})
        settings = RollingSettings(output=tmp_path / templates)
        plans[templates] = [epoch.plan for epoch in adapt(request, inputs_of(scenario, factors), settings)]
        again = adapt(request, inputs_of(scenario, factors), settings)
        assert [epoch.resumed for epoch in again] == [True] * 3
    for every, plan in zip(plans["every"], plans["on-demand"], strict=True):
        assert verify_plan(plan).ok
        assert plan.cost_usd_h == pytest.approx(every.cost_usd_h, rel=2e-4)
        assert plan.served_factor == pytest.approx(every.served_factor, rel=2e-4)


def test_folder_of_another_walk_is_refused(tiny: ResolvedScenario, request_: PlanRequest, tmp_path: Path) -> None:
    """Mixing two runs in one folder would look like one; a broken list must not lose the plans."""
    list(adapt(request_, inputs_of(tiny, [1.0]), RollingSettings(output=tmp_path)))
    with pytest.raises(PlanError, match="another scenario"):
        list(adapt(request_, inputs_of(tiny, [1.2]), RollingSettings(output=tmp_path)))
    with pytest.raises(PlanError, match="another scenario"):
        list(adapt(request_, inputs_of(tiny, [1.0]), RollingSettings(0.7, output=tmp_path)))
    assert len(list(adapt(request_, inputs_of(tiny, [1.2]), RollingSettings(output=tmp_path, restart=True)))) == 1
    # A longer run goes on from a shorter one.
    longer = list(adapt(request_, inputs_of(tiny, [1.2, 1.0]), RollingSettings(output=tmp_path)))
    assert [epoch.resumed for epoch in longer] == [True, False]
    (tmp_path / "epochs.json").write_text(json.dumps({"epochs": 3}))
    with pytest.raises(PlanError, match=r"epochs\.json"):
        list(adapt(request_, inputs_of(tiny, [1.2]), RollingSettings(output=tmp_path)))


def test_forecast_plans_from_the_past(tiny: ResolvedScenario, request_: PlanRequest) -> None:
    """A forecast of the last value plans epoch e for the demand of e - 1, and says what share it serves."""
    inputs = inputs_of(tiny, [1.0, 3.0, 3.0])
    epochs = list(adapt(request_, inputs, RollingSettings(None, LastValue(), "last")))
    wanted = [[item.demand_tokens_s for item in epoch.plan.demands] for epoch in epochs]
    assert wanted[1] == inputs.demand[0].tolist()
    assert wanted[2] == inputs.demand[1].tolist()
    assert epochs[1].summary.served_share < 1 == epochs[2].summary.served_share


def test_epoch_that_cannot_be_served_is_named(tiny: ResolvedScenario, request_: PlanRequest, tmp_path: Path) -> None:
    """The message says which epoch; those before it stay on disk."""
    inputs = inputs_of(tiny, [1.0, 1.0, 1.0])
    inputs.availability[1] = np.minimum(inputs.availability[1], np.eye(*inputs.availability[1].shape, dtype=np.int64))
    with pytest.raises(InfeasibleError, match="epoch 1"):
        list(adapt(request_, inputs, RollingSettings(output=tmp_path)))
    assert (tmp_path / "epoch-0000.json").exists()


def test_configuration_that_disappears_takes_its_instances_along(tiny: ResolvedScenario, request_: PlanRequest) -> None:
    """Nodes that no region offers any more are lost: their instances stop, the plan still verifies with its proof."""
    inputs = inputs_of(tiny, [1.0, 1.0, 1.0])
    first = next(iter(adapt(request_, inputs)))
    lost = next(iter(first.plan.instances[0].nodes()))
    names = [c.name for c in tiny.configurations]
    inputs.availability[1, :, names.index(lost)] = 0
    second = list(adapt(request_, inputs))[1]
    assert all(lost not in item.nodes() for item in second.plan.instances)
    assert any(change.stop for change in second.changes.changes if lost in change.nodes)
    assert verify_plan(second.plan).ok, verify_plan(second.plan).violations
    assert prove_bound(second.plan) == ()


def test_what_runs_before_the_first_epoch_counts(tiny: ResolvedScenario, request_: PlanRequest) -> None:
    """Instances of the scenario are kept or stopped in epoch 0; what is superfluous is listed as stopped."""
    first = next(iter(adapt(request_, inputs_of(tiny, [1.0]))))
    item = first.plan.instances[0]
    document = dict(tiny.document)
    document["running"] = [
        {
            "model": item.model,
            "phase": item.phase,
            "region": item.region,
            "nodes": item.nodes(),
            "count": item.count + 2,
        }
    ]
    again = next(iter(adapt(replace(request_, scenario=scenario_from_mapping(document)), inputs_of(tiny, [1.0]))))
    change = next(change for change in again.changes.changes if change.name == item.name)
    assert (change.keep, change.stop, change.start) == (item.count, 2, 0)


def test_tables_must_fit_the_scenario(tiny: ResolvedScenario) -> None:
    """Everything wrong with the tables comes in one message, before anything is planned."""
    keys = tuple(phase.key for phase in tiny.model_phases)
    demand = EpochDemand((*keys[1:], "nobody/decode"), np.ones((3, len(keys))))
    availability = EpochAvailability(("mars",), ("1xL4",), np.ones((2, 1, 1), dtype=np.int64))
    with pytest.raises(WorkloadError) as error:
        epoch_inputs(tiny, demand, availability)
    for part in ("different numbers of epochs", keys[0], "nobody/decode", "mars"):
        assert part in str(error.value)
    with pytest.raises(WorkloadError, match="nothing says"):
        epoch_inputs(tiny)
    with pytest.raises(WorkloadError, match="5 epochs were asked for"):
        epoch_inputs(tiny, EpochDemand(keys, np.ones((3, len(keys)))), epochs=5)
    nothing = EpochAvailability(tiny.regions[:1], ("1xL4",), np.array([[[3]], [[0]]]))
    with pytest.raises(WorkloadError, match="epoch 1: no node"):
        epoch_inputs(tiny, availability=nothing)
    assert len(epoch_inputs(tiny, epochs=2)) == 2
