"""Designs of models that want the same few nodes: held against all orders of the models."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coralopt.plan import PlannedInstance
from coralopt.plan.verify import verify_plan
from coralopt.planning.coral import plan_scenario
from coralopt.planning.promise import restricted
from coralopt.planning.promise.designs import Design, Designs
from coralopt.planning.promise.together import Together, TogetherRaces
from coralopt.scenario import load_scenario, scenario_from_mapping

#: Nodes of each configuration that the designs of one model take, cheapest first.
Usages = list[tuple[int, int]]


def place(several: Usages, left: np.ndarray) -> tuple[int, np.ndarray] | None:
    """The first region that has nodes for the cheapest design that any region has nodes for."""
    for usage in several:
        regions = np.flatnonzero((left >= usage).all(axis=1))
        if len(regions):
            return int(regions[0]), np.array(usage)
    return None


@dataclass(frozen=True)
class Left:
    """Nodes that are left, int64 (R, C)."""

    nodes: np.ndarray

    def without(self, region: int, usage: np.ndarray) -> Left:
        left = self.nodes.copy()
        left[region] -= usage
        return Left(left)


def all_have_room(models: dict[str, Usages], nodes: np.ndarray, order: tuple[str, ...]) -> bool:
    """Whether each model of an order finds a design where those before it leave nodes."""
    left = nodes.copy()
    for model in order:
        own = place(models[model], left)
        if own is None:
            return False
        left[own[0]] -= own[1]
    return True


usages = st.tuples(st.integers(0, 4), st.integers(0, 4))


@given(
    st.dictionaries(st.sampled_from("abc"), st.lists(usages, min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(usages, min_size=1, max_size=2),
)
def test_designs_beside_each_other(models: dict[str, Usages], rows: Usages) -> None:
    """What is found is found by some order of the models; with two of them none is missed."""
    nodes = np.array(rows)
    own = {model: SimpleNamespace(price=float(len(model))) for model in models if place(models[model], nodes)}
    designs = SimpleNamespace(room=Left(nodes), raced=set(models), best=own.get)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restricted, "_cheapest_within", lambda _, left, model: place(models[model], left.nodes))
        found = restricted.find_side_by_side(cast("Designs", designs))
    orders = [all_have_room(models, nodes, order) for order in itertools.permutations(models)]
    assert found <= any(orders)
    assert len(models) > 2 or found == any(orders)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.5, 9)), max_size=6))
def test_the_best_known_design_is_the_cheapest_of_its_model(known: list[tuple[str, float]]) -> None:
    designs = Designs(None, (), (), None, None, [Design(name, (), {}, price) for name, price in known])  # type: ignore[arg-type]
    for name in "ab":
        prices = [price for model, price in known if model == name]
        best = designs.best(name)
        assert (None if best is None else (best.model, best.price)) == ((name, min(prices)) if prices else None)
        assert not prices or designs.ceiling(name) == min(prices), "what costs more is not worth looking at"


def test_models_that_hold_on_nodes_of_one_kind_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cheapest covers of phases are of several kinds, all of which fail; each model alone would take both 2xL40S, which
    only one of them can have."""

    def race(self: TogetherRaces, instances: tuple[PlannedInstance, ...]) -> Together:
        self.windows_of[instances[0].model] += 1
        holds = len({name for item in instances for name in item.nodes()}) == 1
        return Together(holds, {"prefill": 1.0 if holds else 0.98, "decode": 1.0 if holds else 0.9}, 1)

    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    monkeypatch.setattr(TogetherRaces, "race", race)
    monkeypatch.setattr(TogetherRaces, "settled", race)
    monkeypatch.setattr(TogetherRaces, "surely_misses", lambda self, instances: False)
    document = load_scenario("tiny").document
    models = {
        name: {**model, "slo": {**model["slo"], "attainment": 0.99}} for name, model in document["models"].items()
    }
    supply = {"1xL40S": 1, "2xL40S": 2, "1xL4": 2, "4xL4": 3}
    plan = plan_scenario(
        scenario_from_mapping(
            {
                **document,
                "models": models,
                "pool": {"regions": {"us-east-2": {"configurations": supply}}},
                "pruning": {"max_nodes": 1, "memory_ratio": 12},
            }
        ),
        settings={"certify": False},
    )
    assert plan.unconfirmed == ()
    assert {item.model: set(item.nodes()) for item in plan.instances} == {
        "gpt-oss-20b": {"4xL4"},
        "phi4-14b": {"2xL40S"},
    }
    assert verify_plan(plan).ok
