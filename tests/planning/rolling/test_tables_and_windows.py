"""Epochs from tables and windows, and what runs from one epoch to the next, in figures known by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from coralopt.plan import Plan
from coralopt.plan.parts import PlannedShare
from coralopt.planning import epoch_inputs, windows_of
from coralopt.planning.rolling.adapt import _first, planned_instances
from coralopt.planning.rolling.epochs import EpochInputs
from coralopt.scenario import ResolvedScenario, scenario_from_mapping
from coralopt.workload import EpochAvailability


def test_a_window_has_the_nodes_and_prices_of_the_epoch_it_begins_in() -> None:
    """Windows of 0.1 s in epochs of 0.3 s: the fourth begins at 3 * 0.1 / 0.3, just less than 1 in floating point."""
    epochs = EpochInputs(np.ones((2, 1)), np.array([[[5]], [[7]]]), np.array([[[1.0]], [[2.0]]]))
    tokens_s = np.arange(8.0)[:, None]
    windows = windows_of(epochs, 0.3, tokens_s, 0.1)
    assert windows.availability.ravel().tolist() == [5, 5, 5, 7, 7, 7]
    assert windows.price.ravel().tolist() == [1, 1, 1, 2, 2, 2]
    assert windows.demand.ravel().tolist() == [0, 1, 2, 3, 4, 5]
    whole = windows_of(epochs, 600.0, np.ones((40, 1)), 60.0)
    assert whole.availability.ravel().tolist() == [5] * 10 + [7] * 10


def test_spot_nodes_stay_beside_a_table_of_nodes_on_demand(tiny_scenario: ResolvedScenario) -> None:
    """Three L4 nodes on demand and two spot ones are five; of what the table does not name only spot nodes are left."""
    data = json.loads(json.dumps(tiny_scenario.document))
    (region,) = data["pool"]["regions"]
    nodes = data["pool"]["regions"][region]["configurations"]
    for name, count in (("1xL4", 2), ("1xL40S", 1)):
        nodes[name] = {"available": 4, "spot": {"available": count, "price_usd_h": 0.3}}
    scenario = scenario_from_mapping(data)
    table = EpochAvailability((region,), ("1xL4",), np.array([[[3]], [[0]]]))
    offered = epoch_inputs(scenario, availability=table).availability
    names = [item.name for item in scenario.configurations]
    assert offered[:, 0, names.index("1xL4")].tolist() == [5, 2]
    assert offered[:, 0, names.index("1xL40S")].tolist() == [1, 1]
    assert offered.sum() == 9


def test_instances_on_shared_nodes_run_for_no_later_plan(tiny_plan: Plan) -> None:
    """They cannot be kept apart from their node; of the others as many as are alive."""
    share = PlannedShare(group="node", position=0, step_ms=2.0, cycle_ms=8.0, memory_share=0.5)
    first, second, *rest = tiny_plan.instances
    plan = tiny_plan.model_copy(update={"instances": (first.model_copy(update={"shared": share}), second, *rest)})
    running = {item.key: item.count for item in planned_instances(plan)}
    assert running == {item.key: item.count for item in (second, *rest)}
    alive = planned_instances(plan, {first.name: 9, second.name: 3})
    assert [(item.key, item.nodes, item.count) for item in alive] == [(second.key, second.nodes(), 3)]
    assert planned_instances(None) == ()


def test_what_ran_before_and_is_no_more_has_its_price(tiny_scenario: ResolvedScenario, tiny_plan: Plan) -> None:
    """Three instances, each at the price of its three nodes; those on nodes without a price count as free."""
    data = json.loads(json.dumps(tiny_scenario.document))
    entry = {"model": "phi4-14b", "phase": "decode", "region": tiny_scenario.regions[0], "nodes": {"1xL4": 3}}
    data["running"] = [{**entry, "count": 3}]
    scenario = scenario_from_mapping(data)
    names = [item.name for item in scenario.configurations]
    each = float(scenario.price_usd_h[0, names.index("1xL4")])
    planned = {item.name for item in tiny_plan.instances}
    (gone,) = (change for change in _first(scenario, tiny_plan).changes if change.name not in planned)
    assert (gone.before, gone.after, gone.stop, gone.nodes) == (3, 0, 3, {"1xL4": 3})
    assert gone.price_usd_h == pytest.approx(3 * each)
    prices = scenario.price_usd_h.copy()
    prices[0, names.index("1xL4")] = math.nan
    object.__setattr__(scenario, "price_usd_h", prices)
    (gone,) = (change for change in _first(scenario, tiny_plan).changes if change.name not in planned)
    assert gone.price_usd_h == 0.0
