"""What models cost at least beside each other: the programme over combinations against all ways to place them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.allocation import ModelRoutes, Route
from coralopt.planning.promise.capacities import PARTS, Groups, Place
from coralopt.planning.promise.designs import Designs
from coralopt.planning.promise.in_room import candidates_below, least_in_room
from coralopt.planning.promise.oracle import PhaseOracle
from coralopt.planning.promise.regions import RegionCosts
from coralopt.planning.promise.together import Together
from coralopt.planning.promise.workers import Workers
from coralopt.types import Floats, Ints

#: Regions, configurations.
REGIONS, NODES = 2, 2


def groups_of(usage: Ints, most: Sequence[Sequence[int]]) -> Groups:
    """Groups of one and two instances of each template, what they hold at most, and the nodes of one."""
    count = len(usage)
    oracle = SimpleNamespace(
        target=0.99,
        templates=SimpleNamespace(throughput=np.full(count, 100.0), usage=usage),
        too_slow=lambda: np.zeros(count, dtype=np.bool_),
    )
    groups = Groups.of(cast("PhaseOracle", oracle), float(PARTS), np.full(count, 2))
    for t in range(count):
        groups.most[groups.template == t] = most[t]
    return groups


@st.composite
def phases(draw: st.DrawFn) -> tuple[Groups, Floats]:
    """Groups of a phase, and float64 (J, R) their prices."""
    templates = draw(st.integers(1, 2))
    usage = np.array([[draw(st.integers(0, 1)), draw(st.integers(0, 1))] for _ in range(templates)], dtype=np.int64)
    most = [sorted(draw(st.lists(st.sampled_from([0, 50, 60, 100]), min_size=2, max_size=2))) for _ in range(templates)]
    groups = groups_of(usage, most)
    each = np.array([[draw(st.integers(1, 5)) for _ in range(REGIONS)] for _ in range(templates)], dtype=np.float64)
    return groups, each[groups.template] * groups.count[:, None]


def instances_of(groups: Groups, rows: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """(template, instances) of some groups."""
    count: dict[int, int] = {}
    for j in rows:
        count[int(groups.template[j])] = count.get(int(groups.template[j]), 0) + int(groups.count[j])
    return tuple(sorted(count.items()))


def all_covers(groups: Groups, most_instances: int) -> set[tuple[tuple[int, int], ...]]:
    """Instances of every cover of so many groups at most, by trying all multisets of groups."""
    usable = np.flatnonzero(groups.most > 0).tolist()
    return {
        instances_of(groups, chosen)
        for size in range(1, most_instances + 1)
        for chosen in itertools.combinations_with_replacement(usable, size)
        if groups.most[list(chosen)].sum() >= PARTS
    }


def placed(cases: Sequence[tuple[Groups, Floats]], chosen: Sequence[Any]) -> tuple[Floats, Ints]:
    """float64 (K,) USD/h and int64 (K, R, C) nodes of every way to place instances of all phases in the regions."""
    cost, nodes = np.zeros(1), np.zeros((1, REGIONS, NODES), dtype=np.int64)
    for (groups, price), cover in zip(cases, chosen, strict=True):
        for template, count in cover:
            first = int(np.flatnonzero(groups.template == template)[0])
            split = np.stack([np.arange(count + 1), count - np.arange(count + 1)], axis=1)
            used = split[:, :, None] * groups.oracle.templates.usage[template]
            cost = np.add.outer(cost, split @ price[first]).ravel()
            nodes = (nodes[:, None] + used).reshape(-1, REGIONS, NODES)
    return cost, nodes


@settings(max_examples=50, deadline=None)
@given(
    st.lists(phases(), min_size=2, max_size=3),
    st.lists(st.integers(0, 3), min_size=REGIONS * NODES, max_size=REGIONS * NODES),
    st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=REGIONS * NODES, max_size=REGIONS * NODES),
    st.sampled_from([None, 3, 5]),
    st.booleans(),
    st.data(),
)
def test_the_bound_is_the_cheapest_of_all_ways_to_place_what_does_not_miss(
    cases: list[tuple[Groups, Floats]],
    nodes: list[int],
    node_prices: list[float],
    most_instances: int | None,
    settled: bool,
    data: st.DataObject,
) -> None:
    """The last phases are one model, the first another; whatever the node prices. Where something is open the bound is below
    all that does not miss."""
    ceiling = float(data.draw(st.integers(4, 14)))
    has = np.array(nodes).reshape(REGIONS, NODES)
    models = {"a": (0,), "b": tuple(range(1, len(cases)))}
    covers = [all_covers(groups, 4) for groups, _ in cases]
    verdicts: dict[tuple[str, Any], str] = {
        (model, chosen): data.draw(st.sampled_from(["holds", "misses", "misses late", "open"]))
        for model, phases in models.items()
        for chosen in itertools.product(*(sorted(covers[p]) for p in phases))
    }
    holding, possible = ceiling, ceiling
    for chosen in itertools.product(*map(sorted, covers)):
        said = {verdicts[model, chosen[phases[0] : phases[-1] + 1]] for model, phases in models.items()}
        taken = sum(count for cover in chosen for _, count in cover)
        if said & {"misses", "misses late"} or (most_instances is not None and taken > most_instances):
            continue
        cost, taken_nodes = placed(cases, chosen)
        least = float(cost[(taken_nodes <= has).all(axis=(1, 2))].min(initial=np.inf))
        possible = min(possible, least)
        if said == {"holds"}:
            holding = min(holding, least)

    def verdict(model: str, groups: tuple[Place, ...]) -> str:
        return verdicts[
            model, tuple(instances_of(cases[p][0], [j for q, j in groups if q == p]) for p in models[model])
        ]

    limits = np.array([] if most_instances is None else [float(most_instances)])
    room = SimpleNamespace(
        nodes=has,
        has=np.concatenate([has, np.broadcast_to(limits, (REGIONS, len(limits)))], axis=1),
        taken=[np.ones((len(groups.oracle.templates.usage), REGIONS, len(limits))) for groups, _ in cases],
        fits_somewhere=lambda groups: True,
    )
    designs = SimpleNamespace(
        groups=[groups for groups, _ in cases],
        ways={model: (phases,) for model, phases in models.items()},
        raced=set(models),
        room=room,
        races=SimpleNamespace(windows_of=dict.fromkeys(models, 0), workers=Workers()),
        windows=lambda model: 120.0,
        windows_to_settle=lambda model: 120.0,
        surely_miss=lambda model, groups: verdict(model, groups) == "misses",
        hold=lambda model, groups: verdict(model, groups) == "holds" and not settled,
        settle=lambda model, groups: Together(
            verdict(model, groups) == "holds", {}, 1, misses=verdict(model, groups) == "misses late"
        ),
        price_of=lambda groups: np.zeros(REGIONS),
    )
    at = np.array(node_prices).reshape(REGIONS, NODES)
    price = [price for _, price in cases]
    bound = least_in_room(cast("Designs", designs), price, {}, at, ceiling, "highs")
    assert bound <= possible + 1e-6
    if "open" not in verdicts.values():
        assert bound == pytest.approx(holding, rel=1e-6)
    assert candidates_below(cast("Designs", designs), price, at, ceiling).below <= ceiling


@settings(max_examples=20, deadline=None)
@given(phases(), phases(), st.lists(st.integers(0, 4), min_size=4, max_size=4))
def test_with_room_for_all_a_model_costs_what_its_regions_let_it(
    prefill: tuple[Groups, Floats], decode: tuple[Groups, Floats], sent: list[int]
) -> None:
    """The least of all combinations of one model that pays for sending caches, each by a programme of its own."""
    cases = [prefill, decode]
    ways = tuple(
        Route(((0, r), (1, s)), float(usd_h))
        for (r, s), usd_h in zip(itertools.product((0, 1), repeat=2), sent, strict=True)
    )
    groups, price = [own for own, _ in cases], [own for _, own in cases]
    room = SimpleNamespace(
        nodes=np.full((REGIONS, NODES), 99),
        has=np.full((REGIONS, NODES), 99),
        taken=[np.ones((len(own.oracle.templates.usage), REGIONS, 0)) for own in groups],
        fits_somewhere=lambda groups: True,
    )
    designs = SimpleNamespace(
        groups=groups,
        ways={"a": ((0, 1),)},
        raced=set(),
        room=room,
        races=SimpleNamespace(windows_of={}, workers=Workers()),
    )
    routes, ceiling = ModelRoutes("a", ways), 30.0
    bound = least_in_room(cast("Designs", designs), price, {"a": routes}, np.zeros((REGIONS, NODES)), ceiling, "highs")
    costs = RegionCosts(groups, price, routes)
    best = ceiling
    several = [
        [rows for size in range(1, 5) for rows in itertools.combinations_with_replacement(range(len(own.most)), size)]
        for own in groups
    ]
    for chosen in itertools.product(
        *([rows for rows in of if own.most[list(rows)].sum() >= PARTS] for of, own in zip(several, groups, strict=True))
    ):
        best = min(best, costs.least(tuple((p, j) for p, rows in enumerate(chosen) for j in rows)))
    # Whole instances cost at least what their parts do.
    assert min(best, ceiling) - 1e-6 <= bound <= ceiling
