"""Steps of the search for plans that hold, one at a time, with outcomes that are known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from coralopt.allocation import Served
from coralopt.errors import InfeasibleError, NoSolutionError
from coralopt.planning.promise import cheapest as cheapest_plans
from coralopt.planning.promise.capacities import Place
from coralopt.planning.promise.cheapest import CheapestPlans
from coralopt.planning.promise.columns import GroupColumns
from coralopt.planning.promise.cover_search import CoverSearch
from coralopt.planning.promise.designs import Design
from coralopt.planning.promise.group_plan import GroupPlan
from coralopt.planning.promise.instances import GroupPart
from coralopt.planning.promise.refusals import Refusals
from coralopt.planning.promise.search import PromiseSearch
from coralopt.planning.promise.workers import Workers
from coralopt.solving import SolveOptions


def costing(usd_h: float) -> GroupPlan:
    served = cast("Served", SimpleNamespace(result=SimpleNamespace(cost_usd_h=usd_h)))
    return GroupPlan(served, cast("GroupColumns", "columns"))


@pytest.fixture
def seek() -> PromiseSearch:
    """A search whose steps a test replaces."""
    seek = object.__new__(PromiseSearch)
    in_vain = SimpleNamespace(in_vain=lambda p: NoSolutionError(f"phase {p} in vain", None))
    seek.designs = cast("Any", SimpleNamespace(used_up=False))
    request = cast("Any", SimpleNamespace(solve_options=SolveOptions()))
    covers, base = cast("CoverSearch", SimpleNamespace(groups=[])), SimpleNamespace(availability=np.zeros((1, 1)))
    seek.cheapest = CheapestPlans(
        request, cast("Any", base), cast("Any", None), [], covers, seek.designs, cast("Refusals", in_vain)
    )
    seek.unconfirmed = ()
    return seek


def test_a_column_is_cut_as_its_own_design_is() -> None:
    """A dearer design that has its groups and more cuts none of them; a group by itself is cut as in a design."""
    prefill, decode, more = (0, 1), (1, 2), (1, 3)
    cut = {prefill: (GroupPart(5, 2), GroupPart(7, 1))}
    designs = [Design("a", (prefill, decode, more), {}, 5.0), Design("a", (prefill, decode), cut, 4.0)]
    for own, parts in (((prefill, decode), cut), ((prefill, decode, more), {}), ((prefill,), cut), (((2, 1),), {})):
        assert replace(costing(4.0), designs=designs).parts_of(own) == parts


@pytest.mark.parametrize(
    ("third_holds", "least", "found", "unconfirmed"),
    [(True, 1.0, 13.0, ()), (False, 0.4, 11.0, ("c",)), (False, 0.8, 13.0, ("x",))],
)
def test_the_next_plan_is_the_cheapest_without_a_group(
    seek: PromiseSearch,
    monkeypatch: pytest.MonkeyPatch,
    third_holds: bool,
    least: float,
    found: float,
    unconfirmed: tuple[str, ...],
) -> None:
    """From 10 USD/h, where groups 1 and 2 fail, to 11 without group 2, from there to 13 without group 3: where that fails,
    too, and nothing is left, the one whose requests missed least. 12 without group 1 costs more, and is never looked at.
    """
    one, two, three = (0, 1), (0, 2), (0, 3)
    fails = {10.0: ([one, two], 0.5, ("a",)), 11.0: ([three], 0.7, ("c",))}
    fails[13.0] = ([], 1.0, ()) if third_holds else ([(0, 4)], least, ("x",))
    plans = {frozenset({one}): 12.0, frozenset({two}): 11.0, frozenset({two, three}): 13.0}
    monkeypatch.setattr(seek, "_failing", lambda plan: fails[plan.cost_usd_h])
    monkeypatch.setattr(seek.cheapest, "without", lambda cuts: costing(plans[cuts]) if cuts in plans else None)
    assert (seek._holding(costing(10.0)).cost_usd_h, seek.unconfirmed) == (found, unconfirmed)


def test_a_search_for_room_ends_when_its_replications_are_used_up(
    seek: PromiseSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 replications are left; each look at what the best of all would take makes 60, most of them of the second phase."""
    replications = [SimpleNamespace(oracle=SimpleNamespace(replications=7)) for _ in range(2)]
    plans = seek.cheapest
    plans.covers, plans.replications_left = CoverSearch(cast("Any", replications), [], 0.0, Workers()), 100.0
    looks = []

    def find_out(*_: object) -> bool:
        for group, count in zip(replications, (20, 40), strict=True):
            group.oracle.replications += count
        looks.append(1)
        return len(looks) < 9

    def cheapest(*_: object) -> None:
        raise InfeasibleError("no room", None)

    monkeypatch.setattr(cheapest_plans, "GroupColumns", SimpleNamespace(of=lambda *_: None))
    for name, step in (
        ("open_", lambda cuts: ([np.ones(1)], [])),
        ("_ways", lambda designs: []),
        ("_look", lambda *_, **__: None),
        ("by_ways", cheapest),
        ("_solve", lambda best: SimpleNamespace(places=[])),
    ):
        monkeypatch.setattr(plans, name, step)
    monkeypatch.setattr(plans.covers, "settle", find_out)
    with pytest.raises(NoSolutionError, match="phase 1 in vain"):
        plans.plan(frozenset())
    assert (len(looks), plans.replications_left) == (2, -20.0)


def test_a_phase_without_any_cover_ends_the_search_only_if_each_way_needs_it(
    seek: PromiseSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mixed instances in vain are no obstacle where prefill and decode find covers; in vain in both ways, they are."""
    in_vain: set[int] = set()

    def each(step: Any, phases: Iterable[int]) -> list[tuple[float, float]]:
        return [(1.0, np.inf if p in in_vain else 2.0) for p in phases]

    seek.cheapest.covers = cast(
        "CoverSearch",
        SimpleNamespace(tighten=lambda prices: dict.fromkeys(prices, (1.0, np.inf)), workers=SimpleNamespace(map=each)),
    )
    prices, ways = [np.ones(1)] * 3, [((0,), (1, 2))]
    in_vain |= {0}
    seek.cheapest._look(prices, ways, may_refuse=False)
    in_vain |= {2}
    with pytest.raises(NoSolutionError, match="phase 0 in vain"):
        seek.cheapest._look(prices, ways, may_refuse=False)


def test_plans_of_groups_are_raced_while_they_cost_less(seek: PromiseSearch, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 10 USD/h, where b's group 2 fails, to 11 without it, where a's group 4 fails; what comes next costs as much as
    the designs known. Groups that come twice are raced twice, models for mean requests not at all."""
    phases = [SimpleNamespace(served=name) for name in ("a", "b", "mean")]
    seek.scenario, seek.workers = cast("Any", SimpleNamespace(model_phases=phases)), Workers()
    asked: list[tuple[str, tuple[Place, ...]]] = []

    def hold(model: str, groups: tuple[Place, ...]) -> bool:
        asked.append((model, groups))
        return not {(1, 2), (0, 4)} & set(groups)

    seek.designs = cast("Any", SimpleNamespace(used_up=False, raced={"a", "b"}, hold=hold))
    places = {10.0: [(0, 1), (0, 1), (1, 2), (2, 9)], 11.0: [(0, 4), (1, 3)], 12.0: [(0, 1), (1, 3)]}
    plans = {frozenset(): 10.0, frozenset({(1, 2)}): 11.0, frozenset({(1, 2), (0, 4)}): 12.0}

    def without(cuts: frozenset[Place]) -> Any:
        usd_h = plans.get(cuts)
        return None if usd_h is None else SimpleNamespace(cost_usd_h=usd_h, places=places[usd_h])

    monkeypatch.setattr(seek.cheapest, "without", without)
    first = [("a", ((0, 1), (0, 1))), ("b", ((1, 2),)), ("a", ((0, 4),)), ("b", ((1, 3),))]
    for known, expected in ((12.0, first), (np.inf, [*first, ("a", ((0, 1),)), ("b", ((1, 3),))]), (10.0, [])):
        asked.clear()
        seek._race_side_by_side(known)
        assert sorted(asked) == sorted(expected)


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        # Rises that come late are waited for; not for ever, and not beyond the plan.
        ([10.0, 10.0, 10.001, 10.0, 12.0, 12.0, 15.0, 99.0], 14.0),
        ([10.0] * 9 + [13.0], 10.0),
        ([10.0 + 1e-4 * k for k in range(9)] + [13.0], 10.0004),
    ],
)
def test_bounds_that_hardly_rise_are_given_some_patience(
    seek: PromiseSearch, monkeypatch: pytest.MonkeyPatch, bounds: list[float], found: float
) -> None:
    """Every allocation settles some groups and changes the next one; a cover may be unlikely only after several of them."""
    left = list(bounds)
    groups = SimpleNamespace(most=np.array([100]), covers=lambda most, price: np.zeros(101))
    plans = seek.cheapest
    plans.price, plans.designs = [np.ones(1)], cast("Any", SimpleNamespace(least=lambda costs: (0.0, [0.0])))
    plans.covers = cast("CoverSearch", SimpleNamespace(groups=[groups], settle=lambda places: True))

    def solve(columns: object) -> Any:
        result = SimpleNamespace(bound_usd_h=left.pop(0), state=None)
        return SimpleNamespace(served=SimpleNamespace(result=result), places=[])

    monkeypatch.setattr(cheapest_plans, "GroupColumns", SimpleNamespace(of=lambda *_: None))
    for name, step in (
        ("_solve", solve),
        ("costs", lambda held: [0.0]),
        ("tighten_there", lambda plan: False),
    ):
        monkeypatch.setattr(plans, name, step)
    monkeypatch.setattr(cheapest_plans, "_smallest", lambda values, count: np.inf)
    assert plans.bound(14.0) == found
