"""What a model costs at least when its phases are simulated together: covers and combinations against trying all."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.planning.promise.capacities import PARTS, PRICE_TOLERANCE, Groups, Place
from coralopt.planning.promise.certificate import looks_of
from coralopt.planning.promise.combinations import covers_in_order, least_together
from coralopt.planning.promise.designs import Designs
from coralopt.planning.promise.oracle import PhaseOracle
from coralopt.planning.promise.together import Together, TogetherRaces
from coralopt.planning.promise.workers import Workers
from coralopt.scenario import load_scenario, scenario_from_mapping
from coralopt.simulation.groups import GroupSimulator
from coralopt.types import Floats


@st.composite
def phases(draw: st.DrawFn) -> tuple[Groups, Floats]:
    """Groups of up to three templates with up to two instances, what they hold at most, and prices."""
    templates = draw(st.integers(1, 3))
    oracle = SimpleNamespace(
        target=0.99,
        templates=SimpleNamespace(throughput=np.full(templates, 100.0)),
        too_slow=lambda: np.zeros(templates, dtype=np.bool_),
    )
    groups = Groups.of(cast("PhaseOracle", oracle), float(PARTS), np.full(templates, 2))
    for t in range(templates):
        most = sorted(draw(st.lists(st.sampled_from([0, 30, 50, 60, 100]), min_size=2, max_size=2)))
        groups.most[groups.template == t] = most
    unit = np.array([draw(st.integers(1, 9)) for _ in range(templates)], dtype=np.float64)
    return groups, unit[groups.template] * groups.count


def instances_of(groups: Groups, rows: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """(template, instances) of some groups."""
    count: dict[int, int] = {}
    for j in rows:
        count[int(groups.template[j])] = count.get(int(groups.template[j]), 0) + int(groups.count[j])
    return tuple(sorted(count.items()))


def all_covers(groups: Groups, price: Floats, most_usd_h: float) -> dict[tuple[tuple[int, int], ...], float]:
    """Instances and price of every cover for less than a price, by trying all multisets of groups."""
    usable = [int(j) for j in np.flatnonzero(groups.most > 0)]
    covers: dict[tuple[tuple[int, int], ...], float] = {}
    for size in range(1, int(most_usd_h) + 1):
        for chosen in itertools.combinations_with_replacement(usable, size):
            cost = float(price[list(chosen)].sum())
            if cost < most_usd_h and groups.most[list(chosen)].sum() >= PARTS:
                covers[instances_of(groups, chosen)] = cost
    return covers


@settings(max_examples=100, deadline=None)
@given(phases(), st.integers(1, 7))
def test_covers_with_needless_groups_are_those_of_trying_all(case: tuple[Groups, Floats], ceiling: int) -> None:
    """Every cover below a price comes once, cheapest first, as one group of each template where there is one."""
    groups, price = case
    covers = covers_in_order(groups, price, float(ceiling))
    assert {
        instances_of(groups, rows): cost for cost, rows in zip(covers.prices, covers.groups, strict=True)
    } == all_covers(groups, price, ceiling)
    assert list(covers.prices) == sorted(covers.prices)
    assert covers.below >= ceiling
    for rows in covers.groups:
        for template, count in instances_of(groups, rows):
            own = [j for j in rows if groups.template[j] == template]
            assert len(own) == 1 or count > groups.count[groups.template == template].max()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(phases(), min_size=1, max_size=2),
    st.integers(0, 5),
    st.sampled_from([0, 3, 10**6]),
    st.booleans(),
    st.data(),
)
def test_the_bound_is_the_cheapest_combination_that_does_not_miss(
    cases: list[tuple[Groups, Floats]], room: int, windows: int, settle: bool, data: st.DataObject
) -> None:
    """Against all combinations of covers, some of which miss only when raced on; with few windows it is at most that."""
    ceiling = float(data.draw(st.integers(1, 8)))
    price = [price for _, price in cases]
    possible = [all_covers(groups, own, ceiling) for groups, own in cases]
    missing, late = set[tuple[Any, ...]](), set[tuple[Any, ...]]()
    cheapest = ceiling
    for chosen in itertools.product(*possible):
        cost = sum(covers[instances] for covers, instances in zip(possible, chosen, strict=True))
        fits = sum(count for instances in chosen for _, count in instances) <= room
        kind = data.draw(st.sampled_from(["misses", "misses late", "open"]))
        if kind == "misses":
            missing.add(chosen)
        elif kind == "misses late" and settle:
            late.add(chosen)
        elif fits:
            cheapest = min(cheapest, cost)
    races, raced = SimpleNamespace(windows_of={"model": 0}), list[tuple[Place, ...]]()

    def named(groups: tuple[Place, ...]) -> tuple[Any, ...]:
        return tuple(instances_of(cases[p][0], [j for q, j in groups if q == p]) for p in range(len(cases)))

    def surely_miss(model: str, groups: tuple[Place, ...]) -> bool:
        races.windows_of[model] += 1 if windows > 3 else 60
        return named(groups) in missing

    def fits_somewhere(groups: Sequence[Place]) -> bool:
        return sum(int(cases[p][0].count[j]) for p, j in groups) <= room

    designs = SimpleNamespace(
        groups=[groups for groups, _ in cases],
        ways={"model": (tuple(range(len(cases))),)},
        room=SimpleNamespace(fits_somewhere=fits_somewhere),
        races=races,
        surely_miss=surely_miss,
        hold=lambda model, groups: raced.append(groups),
        ceiling=lambda model: ceiling,
        price_of=lambda groups: np.array([0.0]),
        settle=lambda model, groups: Together(False, {}, 1, misses=named(groups) in late),
    )
    bound = least_together(cast("Designs", designs), "model", price, ceiling, 120.0, settle)
    separate = sum(float(groups.covers(groups.most, own)[PARTS]) for groups, own in cases)
    if separate >= ceiling:
        assert bound == ceiling
    else:
        assert separate * (1 - PRICE_TOLERANCE) <= bound <= cheapest * (1 + PRICE_TOLERANCE)
        if windows > 3:
            assert bound == cheapest
            # What may hold is raced.
            assert bool(raced) >= (cheapest < ceiling)
            assert settle or bool(raced) == (cheapest < ceiling)


@pytest.mark.parametrize(("requests_s", "windows"), [(0.5, 750_000 / 800), (2.0, 750_000 / 1700), (10.0, 120.0)])
def test_windows_of_few_requests_are_many(requests_s: float, windows: float) -> None:
    """The searches for designs and for their bound play so many of 600 s; what they cost depends on their requests."""
    races = SimpleNamespace(requests=lambda model: 600 * requests_s)
    search = Designs(None, (), (), races, None)  # type: ignore[arg-type]
    assert search.windows("model") == pytest.approx(windows)


@pytest.mark.parametrize(
    ("requests_s", "windows"), [(0.5, 2560), (1.0, 1280), (2.0, 640), (3.3, 320), (6.0, 160), (50.0, 160)]
)
def test_certificates_of_few_requests_have_more_windows(requests_s: float, windows: int) -> None:
    """A million requests or fewer, in one of the numbers of windows after which a certificate looks."""
    tiny = load_scenario("tiny").document
    demand = {"requests_s": requests_s, "input_tokens": 100, "output_tokens": 100}
    model = {"slo": {"ttft_ms": 900, "tpot_ms": 30, "attainment": 0.99}, "demand": demand}
    scenario = scenario_from_mapping({**tiny, "models": {"gpt-oss-20b": model}})
    races = TogetherRaces(scenario, GroupSimulator(scenario), [], Workers(), remember=False)
    assert races.requests("gpt-oss-20b") == pytest.approx(600 * requests_s)
    assert races.certified_by("gpt-oss-20b") == windows
    assert looks_of(scenario)[-1] == max(640, windows)


def test_a_simulated_request_has_a_token_at_least() -> None:
    """Where answers have half a token on average, windows have as many requests as tokens."""
    tiny = load_scenario("tiny").document
    demand = {"requests_s": 8.0, "input_tokens": 100, "output_tokens": 0.5}
    model = {"slo": {"ttft_ms": 900, "tpot_ms": 30, "attainment": 0.99}, "demand": demand}
    scenario = scenario_from_mapping({**tiny, "mode": "mixed", "models": {"gpt-oss-20b": model}})
    assert {phase.phase for phase in scenario.model_phases} == {"mixed"}
    races = TogetherRaces(scenario, GroupSimulator(scenario), [], Workers(), remember=False)
    assert races.requests("gpt-oss-20b") == pytest.approx(600 * 4.0)
