"""What regions and limits have room for, against the checker of allocations, which shares no code with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.allocation import Allocation, AllocationProblem, SideConstraint
from coralopt.planning.promise.capacities import Groups
from coralopt.planning.promise.oracle import PhaseOracle
from coralopt.planning.promise.room import Room
from coralopt.templates import TemplateLibrary

PHASES, TEMPLATES, REGIONS, KINDS = 2, 2, 2, 2


@st.composite
def limits(draw: st.DrawFn, number: int) -> SideConstraint:
    """One limit on nodes, GPUs or rent, of all, of some regions or of one phase."""
    measure = draw(st.sampled_from(["nodes", "gpus", "usd_h"]))
    regions = draw(st.sampled_from([None, (0,), (1,)]))
    phases = draw(st.sampled_from([None, (0,), (1,)])) if regions is None else None
    kinds = draw(st.sampled_from([(0,), (1,), (0, 1)])) if measure == "gpus" else None
    gpus = tuple(draw(st.integers(1, 4)) for _ in kinds or ())
    bound = float(draw(st.integers(1, 12)))
    return SideConstraint(f"limit {number}", "most", measure, bound, phases, regions, kinds, gpus)


@st.composite
def problems(draw: st.DrawFn) -> tuple[AllocationProblem, TemplateLibrary, list[Groups]]:
    """Two phases of two templates each in two regions."""
    usage = np.array([[draw(st.integers(0, 2)), draw(st.integers(0, 2))] for _ in range(PHASES * TEMPLATES)])
    usage[usage.sum(axis=1) == 0, 0] = 1
    base = AllocationProblem(
        usage=usage,
        throughput=np.full(PHASES * TEMPLATES, 100.0),
        phase=np.repeat(np.arange(PHASES), TEMPLATES),
        demand=np.zeros(PHASES),
        availability=np.array([[draw(st.integers(0, 6)) for _ in range(KINDS)] for _ in range(REGIONS)]),
        price=np.array([[float(draw(st.integers(1, 3))) for _ in range(KINDS)] for _ in range(REGIONS)]),
        running=None,
        penalty=0.0,
        phase_names=("p", "d"),
        region_names=("x", "y"),
        configuration_names=("a", "b"),
        side_constraints=tuple(draw(limits(number)) for number in range(draw(st.integers(0, 3)))),
    )
    groups = []
    for p in range(PHASES):
        own = usage[p * TEMPLATES : (p + 1) * TEMPLATES]
        oracle = SimpleNamespace(templates=SimpleNamespace(usage=own, throughput=np.full(TEMPLATES, 60.0)), target=None)
        oracle.too_slow = lambda: np.zeros(TEMPLATES, dtype=np.bool_)
        groups.append(Groups.of(cast("PhaseOracle", oracle), 100.0, np.full(TEMPLATES, 3)))
    phases = [range(TEMPLATES)] * PHASES
    library = SimpleNamespace(offsets=(0, TEMPLATES), phases=phases)
    return base, cast("TemplateLibrary", library), groups


def is_possible(base: AllocationProblem, groups: list[Groups], placed: list[tuple[int, int, int]]) -> bool:
    """Whether the allocation with groups (phase, group, region) keeps to nodes and limits."""
    counts: dict[tuple[int, int], int] = {}
    for p, j, region in placed:
        key = p * TEMPLATES + int(groups[p].template[j]), region
        counts[key] = counts.get(key, 0) + int(groups[p].count[j])
    return not base.check(Allocation.of(counts)).violations


@settings(max_examples=200, deadline=None)
@given(problems(), st.data())
def test_room_is_what_the_checker_allows(
    case: tuple[AllocationProblem, TemplateLibrary, list[Groups]], data: st.DataObject
) -> None:
    """For groups alone, for several in one region, and for what is left beside others."""
    base, library, groups = case
    room = Room.of(base, library, groups)
    for p, own in enumerate(groups):
        expected = [[is_possible(base, groups, [(p, j, r)]) for r in range(REGIONS)] for j in range(len(own.count))]
        assert room.fits_alone(p).tolist() == expected
    place = st.integers(0, PHASES - 1).flatmap(
        lambda p: st.tuples(st.just(p), st.integers(0, len(groups[p].count) - 1))
    )
    first, second = (data.draw(st.lists(place, min_size=1, max_size=3)) for _ in range(2))
    region, other = (data.draw(st.integers(0, REGIONS - 1)) for _ in range(2))
    together = [(p, j, region) for p, j in first]
    assert room.fits(first)[region] == is_possible(base, groups, together)
    if room.fits(first)[region]:
        left = room.without(region, first)
        assert left.fits(second)[other] == is_possible(base, groups, [*together, *((p, j, other) for p, j in second)])
    anywhere = [
        is_possible(base, groups, [(p, j, r >> k & 1) for k, (p, j) in enumerate(first)])
        for r in range(REGIONS ** len(first))
    ]
    # It may say so where no places do, never the other way round.
    assert room.fits_somewhere(first) >= any(anywhere)


def test_a_limit_of_all_regions_is_left_over_from_each() -> None:
    """What is taken in one region is missing in the other."""
    base = AllocationProblem(
        usage=np.array([[1]]),
        throughput=np.ones(1),
        phase=np.zeros(1, dtype=np.int64),
        demand=np.zeros(1),
        availability=np.array([[9], [9]]),
        price=np.ones((2, 1)),
        running=None,
        penalty=0.0,
        phase_names=("p",),
        region_names=("x", "y"),
        configuration_names=("a",),
        side_constraints=(SideConstraint("nodes", "most", "nodes", 3.0),),
    )
    oracle = SimpleNamespace(templates=SimpleNamespace(usage=base.usage, throughput=np.full(1, 50.0)), target=None)
    oracle.too_slow = lambda: np.zeros(1, dtype=np.bool_)
    groups = [Groups.of(cast("PhaseOracle", oracle), 100.0, np.array([4]))]
    room = Room.of(base, cast("TemplateLibrary", SimpleNamespace(offsets=(0,), phases=[range(1)])), groups)
    assert room.fits_alone(0)[:, 0].tolist() == [True, True, True, False]
    left = room.without(0, [(0, 1)])
    assert left.fits([(0, 0)]).tolist() == [True, True]
    assert left.fits([(0, 1)]).tolist() == [False, False]
