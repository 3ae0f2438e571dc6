"""What groups cost where requests pay for changing the region: a bound on every way to place their instances."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from coralopt.allocation import ModelRoutes, Route
from coralopt.planning.promise.capacities import PARTS, Groups, Place
from coralopt.planning.promise.oracle import PhaseOracle
from coralopt.planning.promise.regions import RegionCosts
from coralopt.types import Floats

MOST = 3


def groups_of(most: list[list[int]]) -> Groups:
    """Groups of one to three instances of templates that hold so many parts."""
    oracle = SimpleNamespace(
        target=0.99,
        templates=SimpleNamespace(throughput=np.full(len(most), 100.0)),
        too_slow=lambda: np.zeros(len(most), dtype=np.bool_),
    )
    groups = Groups.of(cast("PhaseOracle", oracle), float(PARTS), np.full(len(most), MOST))
    groups.most[:] = [most[t][k - 1] for t, k in zip(groups.template, groups.count, strict=True)]
    return groups


@dataclass(frozen=True)
class Case:
    costs: RegionCosts
    places: tuple[Place, ...]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A model of two phases in two regions, and one or two groups for each."""
    draws = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    groups, price, places = [], [], list[Place]()
    for p in range(2):
        templates = int(draws.integers(1, 3))
        most = [np.minimum(np.cumsum(draws.integers(1, 7, MOST) * 10), PARTS).tolist() for _ in range(templates)]
        own = groups_of(most)
        unit = draws.integers(1, 10, (templates, 2)).astype(float)
        running = draws.integers(0, 3, (templates, 2)) * int(draw(st.booleans()))
        new = np.maximum(own.count[:, None] - running[own.template], 0)
        cost = unit[own.template] * (own.count[:, None] + 0.5 * new)
        # Some may not be sold somewhere.
        for t in range(templates):
            if draw(st.booleans()):
                cost[own.template == t, int(draws.integers(2))] = math.inf
        groups.append(own)
        price.append(cost)
        for t in range(templates):
            if t == 0 or draw(st.booleans()):
                start = int(np.flatnonzero(own.template == t)[0])
                places.append((p, start + int(draws.integers(0, MOST))))
    far = draw(st.sampled_from([0.0, 1.0, 4.0, 1000.0]))
    routes = [Route(((0, a), (1, b)), far * (a != b)) for a, b in itertools.product(range(2), repeat=2)]
    if draw(st.booleans()):
        routes = [route for route in routes if route.pools[0][1] == route.pools[1][1]]
    return Case(RegionCosts(groups, price, ModelRoutes("model", tuple(routes))), tuple(places))


def cheapest_flow(costs: RegionCosts, holds: dict[tuple[int, int], float]) -> float:
    """USD/h that all requests pay at least with these parts in each pool; infinite where some find no way."""
    routes = costs.routes.routes
    rows = [[float(pool in route.pools) for route in routes] for pool in holds]
    answer = linprog(
        [route.usd_h / PARTS for route in routes],
        A_ub=rows,
        b_ub=list(holds.values()),
        A_eq=[[1.0] * len(routes)],
        b_eq=[float(PARTS)],
    )
    return float(answer.fun) if answer.status == 0 else math.inf


def placed(costs: RegionCosts, place: Place, split: bool) -> Iterator[tuple[float, Floats]]:
    """Price and parts by region of a group, whole in one of them or with its instances divided among them."""
    p, j = place
    groups = costs.groups[p]
    start, count = int(np.searchsorted(groups.template, groups.template[j])), int(groups.count[j])
    for first in range(count + 1) if split else (0, count):
        parts, price = np.zeros(2), 0.0
        for r, k in enumerate((first, count - first)):
            if k:
                price += float(costs.price[p][start + k - 1, r])
                parts[r] = groups.most[start + k - 1]
        yield price, parts


def least_by_trying_all(case: Case, split: bool) -> float:
    best = math.inf
    for chosen in itertools.product(*(placed(case.costs, place, split) for place in case.places)):
        holds = {(p, r): 0.0 for p in range(2) for r in range(2)}
        for (p, _), (_, parts) in zip(case.places, chosen, strict=True):
            for r in range(2):
                holds[p, r] += float(parts[r])
        price = sum(price for price, _ in chosen)
        if price < best:
            best = min(best, price + cheapest_flow(case.costs, holds))
    return best


@settings(max_examples=200, deadline=None)
@given(cases())
def test_no_way_to_place_instances_costs_less(case: Case) -> None:
    least = case.costs.least(case.places)
    assert least <= least_by_trying_all(case, split=True) + 1e-9


@settings(max_examples=200, deadline=None)
@given(cases())
def test_no_way_to_place_groups_costs_less_than_their_prices(case: Case) -> None:
    added, price = case.costs.prices_with(case.places)
    truth = least_by_trying_all(case, split=False)
    assert added + sum(float(price[p][j]) for p, j in case.places) <= truth + 1e-9
    # The prices are those of all groups, whatever made them.
    for other in itertools.product(*(range(len(groups.count)) for groups in case.costs.groups)):
        places = tuple(enumerate(other))
        own = least_by_trying_all(Case(case.costs, places), split=False)
        assert added + sum(float(price[p][j]) for p, j in places) <= own + 1e-9


def test_two_instances_stand_in_one_region_where_requests_pay_for_two() -> None:
    """Each phase is cheapest in another region: 4 + 3 USD/h; together they are in the second one."""
    groups = [groups_of([[PARTS] * MOST]), groups_of([[PARTS] * MOST])]
    price = [np.array([[4.0, 6.0]]) * groups[0].count[:, None], np.array([[5.0, 3.0]]) * groups[1].count[:, None]]
    for far, least in ((0.0, 7.0), (1.5, 8.5), (50.0, 9.0)):
        routes = tuple(Route(((0, a), (1, b)), far * (a != b)) for a, b in itertools.product(range(2), repeat=2))
        costs = RegionCosts(groups, price, ModelRoutes("model", routes))
        assert costs.least(((0, 0), (1, 0))) == pytest.approx(least, rel=1e-6)
        added, own = costs.prices_with(((0, 0), (1, 0)))
        assert added + own[0][0] + own[1][0] == pytest.approx(least, rel=1e-6)
        # Of two for prefill one is enough where decode is; the other stands where it is cheapest.
        assert costs.least(((0, 1), (1, 1))) == pytest.approx(min(14.0 + far, 4.0 + 6.0 + 6.0), rel=1e-6)
