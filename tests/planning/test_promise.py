"""Plans for a share of requests: the search against trying everything, what is remembered, and certificates."""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.allocation import AllocationProblem, SideConstraint, SupplyClass, solve_allocation
from coralopt.errors import CoraloptError, InfeasibleError, NoSolutionError
from coralopt.plan import Plan, PlannedInstance
from coralopt.plan.certificate import interval
from coralopt.plan.verify import verify_plan
from coralopt.planning import (
    CoralPlanner,
    PlanOutcome,
    PlanRequest,
    alternative,
    certify_again,
    cheapest_that_holds,
    expected_shares,
    plan_scenario,
    prove_bound,
)
from coralopt.planning.coral import allocation_problem
from coralopt.planning.promise import certificate, cheapest, cover_search, designs, search, together
from coralopt.planning.promise.capacities import PARTS, Groups, tighten
from coralopt.planning.promise.certificate import Replications, Shares, certify
from coralopt.planning.promise.columns import GroupColumns, least_price
from coralopt.planning.promise.cover_search import CoverSearch
from coralopt.planning.promise.design_search import DesignSearch
from coralopt.planning.promise.instances import even_pipeline
from coralopt.planning.promise.oracle import PhaseOracle, judge
from coralopt.planning.promise.together import Together, TogetherRaces
from coralopt.planning.promise.workers import OutOfTimeError, Workers
from coralopt.planning.stages import StageTables
from coralopt.report.promise import unconfirmed_words
from coralopt.scenario import ResolvedScenario, load_scenario, scenario_from_mapping
from coralopt.simulation import GroupSimulator
from coralopt.templates import TemplateLibrary, obtain_library, scenario_tables
from coralopt.throughput import ThroughputTables, stage_role


def small(**changes: Any) -> ResolvedScenario:
    """One model of `tiny` on single nodes, 99 % of its requests."""
    document: dict[str, Any] = {**load_scenario("tiny").document, "name": "small"}
    model = dict(document["models"]["gpt-oss-20b"])
    model["slo"] = {"ttft_ms": 900, "tpot_ms": 30, "attainment": 0.99}
    model |= changes.pop("model", {})
    document |= {"models": {"gpt-oss-20b": model}, "pruning": {"max_nodes": 1, "memory_ratio": 12}, **changes}
    return scenario_from_mapping(document)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The plan of `small` with its certificate."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORALOPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        return plan_scenario(small())


class Known:
    """Capacities that are given, in the place of replications; counts how often it is asked."""

    target = 0.99
    phase = SimpleNamespace(key="model/prefill")

    def __init__(self, capacity: dict[tuple[int, int], int], throughput: list[float]) -> None:
        self.capacity, self.replications = capacity, 0
        # Few replications do not tell of shares that are so near.
        self.blur = 0
        self.templates = SimpleNamespace(throughput=np.array(throughput))

    def too_slow(self) -> np.ndarray:
        return np.zeros(len(self.templates.throughput), dtype=np.bool_)

    def rate(self, tokens_s: float) -> float:
        return tokens_s

    def verdict(self, template: int, count: int, rate: float, many: bool = False) -> str:
        self.replications += 1
        if not many and abs(round(rate) - self.capacity[template, count] - 0.5) < self.blur:
            return "unclear"
        return "holds" if round(rate) <= self.capacity[template, count] else "fails"


@st.composite
def phases(draw: st.DrawFn) -> tuple[Groups, Known, np.ndarray]:
    """Two to four templates with up to three instances, and what groups of them hold: more instances hold no less."""
    throughput = draw(st.lists(st.integers(15, 120), min_size=2, max_size=4))
    price = np.array([draw(st.integers(1, 30)) for _ in throughput], dtype=np.float64)
    capacity: dict[tuple[int, int], int] = {}
    for t, most in enumerate(throughput):
        held = 0
        for count in range(1, 4):
            held = draw(st.integers(held, max(held, min(PARTS, most * count))))
            capacity[t, count] = held
    oracle = Known(capacity, [float(value) for value in throughput])
    groups = Groups.of(cast("PhaseOracle", oracle), float(PARTS), np.full(len(throughput), 3))
    return groups, oracle, price[groups.template] * groups.count


@settings(max_examples=150, deadline=None)
@given(phases())
def test_the_cheapest_cover_is_that_of_trying_all(case: tuple[Groups, Known, np.ndarray]) -> None:
    """Bound and cover meet at the optimum over all multisets of groups, though few groups are simulated."""
    groups, oracle, price = case
    low, high = tighten(groups, price, 0.0)
    unit = [price[(groups.template == t) & (groups.count == 1)][0] for t, _ in oracle.capacity if _ == 1]
    items = [(held, unit[t] * count) for (t, count), held in oracle.capacity.items() if held]
    best = np.full(PARTS + 1, np.inf)
    best[0] = 0.0
    for parts in range(1, PARTS + 1):
        best[parts] = min((cost + best[max(0, parts - held)] for held, cost in items), default=np.inf)
    assert low == high == pytest.approx(best[PARTS])
    # What was found out is true.
    for t, count, most, least in zip(groups.template, groups.count, groups.most, groups.least, strict=True):
        assert least <= oracle.capacity[int(t), int(count)] <= most


def test_a_group_that_stays_unclear_is_never_simulated_without_requests() -> None:
    """Where even the least share stays unclear, nothing is below it; a window without requests has no end."""
    oracle = Known({}, [float(3 * PARTS)])

    def verdict(template: int, count: int, rate: float, many: bool) -> str:
        assert rate > 0
        return "unclear"

    oracle.verdict = verdict  # type: ignore[method-assign]
    groups = Groups.of(cast("PhaseOracle", oracle), float(PARTS), np.array([1]))
    groups.unclear[0] = 1
    groups.settle(0)
    assert groups.least[0] == 0


@settings(max_examples=100, deadline=None)
@given(phases(), st.integers(1, 8))
def test_many_replications_tell_where_few_do_not(case: tuple[Groups, Known, np.ndarray], blur: int) -> None:
    """The bound of twelve phases hung 9 % below their plan on four groups that failed after a hundred replications."""
    groups, oracle, price = case
    oracle.blur = blur
    low, high = tighten(groups, price, 0.0)
    truth = np.array(
        [oracle.capacity[int(t), int(count)] for t, count in zip(groups.template, groups.count, strict=True)]
    )
    optimum = groups.covers(truth, price)[PARTS]
    # Many replications are for a bound below a cover; without any cover more groups are simulated instead.
    assert low == high == optimum or math.isinf(high)
    assert low <= optimum <= high
    assert (groups.least <= truth).all()
    assert (truth <= groups.most).all()


@settings(max_examples=50, deadline=None)
@given(phases(), st.integers(0, 4))
def test_replications_that_are_used_up_leave_a_bound(case: tuple[Groups, Known, np.ndarray], replications: int) -> None:
    """After so many replications both ends are true all the same, and a search that goes on from there closes them."""
    groups, _, price = case
    low, high = tighten(groups, price, 0.0, replications=replications)
    optimum, cover = tighten(groups, price, 0.0)
    assert low <= optimum == cover <= high
    # Without a cover the search goes on until there is one.
    assert math.isinf(high) == math.isinf(optimum)


def test_a_group_in_place_of_the_cheapest_cover_is_asked_for_all() -> None:
    """A design of 87 USD/h stood where one of 38 holds: beside a dearer group the cheapest cover alone was cheap enough."""
    oracle = Known({(t, count): PARTS for t in range(2) for count in (1, 2)}, [float(PARTS), float(PARTS)])
    groups = Groups.of(cast("PhaseOracle", oracle), float(PARTS), np.array([2, 2]))
    price = np.array([1.0, 5.0])[groups.template] * groups.count
    tighten(groups, price, 0.0)
    assert groups.least.tolist() == [PARTS, PARTS, 0, 0]
    tighten(groups, price, 0.0, allowance=7.0)
    assert groups.least.tolist() == [PARTS] * 4
    assert groups.cheapest_covers(price, 8.0, 10) == [(1.0, (0,)), (2.0, (1,)), (5.0, (2,))]


@settings(max_examples=150, deadline=None)
@given(phases(), st.integers(0, 40), st.sampled_from([1.0, 1.25, 2.0]))
def test_the_cheapest_covers_are_those_of_trying_all(
    case: tuple[Groups, Known, np.ndarray], more: int, room: float
) -> None:
    """Every cover without a needless group, up to a price, comes once and in the order of its price."""
    groups, oracle, price = case
    groups.least[:] = [oracle.capacity[int(t), int(m)] for t, m in zip(groups.template, groups.count, strict=True)]
    least = np.array([int(held // room) for held in groups.least])
    ceiling = float(groups.covers(least, price)[PARTS]) + more
    if not np.isfinite(ceiling):
        assert groups.cheapest_covers(price, ceiling, 10, room) == []
        return
    useful = [int(j) for j in np.flatnonzero(least > 0)]
    expected = []
    for size in range(1, 5):
        for chosen in itertools.combinations_with_replacement(useful, size):
            held = [int(least[j]) for j in chosen]
            # Needless: in the order of their positions 100 % are reached before the last.
            if sum(held) >= PARTS > sum(held[:-1]) and price[list(chosen)].sum() < ceiling:
                expected.append(chosen)
    covers = groups.cheapest_covers(price, ceiling, 100_000, room)
    assert [cost for cost, _ in covers] == sorted(cost for cost, _ in covers)
    assert all(cost == pytest.approx(price[list(chosen)].sum()) for cost, chosen in covers)
    assert sorted(chosen for _, chosen in covers if len(chosen) <= 4) == sorted(expected)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 3), st.integers(3, 9), st.data())
def test_even_pipelines_have_the_largest_least_throughput(stages: int, layers: int, data: st.DataObject) -> None:
    """Over all splits of the layers; slower with more layers, 0 from some number on."""
    values = np.zeros((stages, 3, 2, layers + 1))
    for s, role in itertools.product(range(stages), range(3)):
        speed = sorted(data.draw(st.lists(st.integers(0, 50), min_size=layers, max_size=layers)), reverse=True)
        values[s, role, 1, 1:] = speed
    empty = np.zeros_like(values)
    table = ThroughputTables("m/prefill", ("a", "b"), layers, values, empty.astype(np.int32), empty, ("", ""))
    best = 0.0
    for split in itertools.product(range(1, layers + 1), repeat=stages):
        if sum(split) == layers:
            best = max(best, min(values[stages - 1, stage_role(k, stages), 1, n] for k, n in enumerate(split)))
    placement = even_pipeline(table, 1, stages)
    if placement is None:
        assert best == 0
        return
    assert placement.node_set == (0, stages)
    assert placement.layers == layers
    speeds = [values[stages - 1, stage_role(k, stages), 1, stage.layers] for k, stage in enumerate(placement.stages)]
    assert min(speeds) == best > 0


def test_nodes_are_cut_where_caches_come_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where decode misses for transfers, the same prefill nodes are a pipeline whose nodes each send a part; it verifies."""

    def race(self: TogetherRaces, instances: tuple[PlannedInstance, ...]) -> Together:
        cut = any(item.phase == "prefill" and len(item.stages) == 2 for item in instances)
        return Together(cut, {"prefill": 1.0, "decode": 1.0 if cut else 0.9})

    monkeypatch.setattr(TogetherRaces, "race", race)
    demand = {**small().document["models"]["gpt-oss-20b"]["demand"], "requests_s": 10}
    scenario = small(pruning={"max_nodes": 2, "memory_ratio": 12}, model={"demand": demand})
    plan = plan_scenario(scenario, settings={"certify": False})
    cut = [item for item in plan.instances if item.phase == "prefill" and len(item.stages) == 2]
    assert cut
    assert all(len(stage.nodes) == 1 and stage.nodes[0].count == 1 for item in cut for stage in item.stages)
    assert verify_plan(plan).ok


def test_as_many_threads_as_there_are_cores_change_nothing(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replications of phases, windows of races and of certificates side by side: the same plan, byte for byte; and once more
    where all replications are remembered and count as if they were made."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    cores = 5 if (os.cpu_count() or 1) == 1 else 1
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert plan_scenario(small()).to_json() == plan.to_json()
    monkeypatch.setattr(PhaseOracle, "_race", None)
    monkeypatch.setattr(TogetherRaces, "_raced", None)
    monkeypatch.setattr(TogetherRaces, "_refuted", None)
    assert (
        plan_scenario(small(), settings={"certify": False}).to_json()
        == plan.model_copy(update={"certificate": None}).to_json()
    )


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_design_is_taken_whole(data: st.DataObject) -> None:
    """One region has room for all groups of the design that is cheapest; no group of it is left out, though one alone held
    all of its phase, and none stands in for another."""
    numbers, regions = st.integers(1, 3), range(data.draw(st.integers(1, 3)))
    usage = np.array([[data.draw(numbers), data.draw(st.integers(0, 2))] for _ in range(6)])
    phase = np.repeat([0, 1], 3)
    availability = np.array([[data.draw(st.integers(0, 20)) for _ in range(2)] for _ in regions])
    price = np.array([[float(data.draw(numbers)) for _ in range(2)] for _ in regions])
    base = AllocationProblem(
        usage=usage,
        throughput=np.ones(6),
        phase=phase,
        demand=np.full(2, 100.0),
        availability=availability,
        price=price,
        running=None,
        penalty=0.0,
        phase_names=("p", "d"),
        region_names=tuple(f"r{r}" for r in regions),
        configuration_names=("a", "b"),
    )
    oracle = Known({}, [60.0, 60.0, 60.0])
    groups = [Groups.of(cast("PhaseOracle", oracle), float(PARTS), np.full(3, 3)) for _ in range(2)]
    for own in groups:
        own.least[:] = own.most
    place = st.integers(0, len(groups[0].template) - 1)
    chosen = [
        tuple((p, data.draw(place)) for p in (0, 1) for _ in range(data.draw(numbers)))
        for _ in range(data.draw(numbers))
    ]
    library = cast("TemplateLibrary", SimpleNamespace(offsets=(0, 3)))
    nobody = [np.zeros(len(own.template), dtype=np.bool_) for own in groups]
    columns = GroupColumns.of(base, library, groups, "least", nobody, chosen)

    def nodes(design: tuple[tuple[int, int], ...]) -> np.ndarray:
        rows = [(3 * p + groups[p].template[j], groups[p].count[j]) for p, j in design]
        return sum((usage[row] * count for row, count in rows), start=np.zeros(2, dtype=np.int64))

    costs = [
        float(price[r] @ nodes(design))
        for design in chosen
        for r in regions
        if (nodes(design) <= availability[r]).all()
    ]
    if not costs:
        with pytest.raises(InfeasibleError):
            solve_allocation(columns.problem, "highs")
        return
    result = solve_allocation(columns.problem, "highs")
    assert result.cost_usd_h == pytest.approx(min(costs))
    assert result.allocation.count.tolist() == [1]


def two_regions() -> AllocationProblem:
    """Two templates of one phase, of a node of kind a and of one of each kind; a region sells kind b on demand only."""
    one = np.array([[1, 0], [0, 0]])
    return AllocationProblem(
        usage=np.array([[1, 0], [1, 1]]),
        throughput=np.array([60.0, 90.0]),
        phase=np.zeros(2, dtype=np.int64),
        demand=np.array([100.0]),
        availability=np.array([[4, 3], [5, 0]]),
        price=np.array([[2.0, 5.0], [1.0, np.nan]]),
        running=np.array([[3, 0], [1, 0]]),
        penalty=0.1,
        phase_names=("p",),
        region_names=("r0", "r1"),
        configuration_names=("a", "b"),
        supply=(SupplyClass("reserved", one, np.where(one, 0.5, 0.0)),),
        side_constraints=(
            SideConstraint("lost", "least", "tokens_s", 0.5, phases=(0,), one_lost=True),
            SideConstraint("nodes", "most", "nodes", 9.0),
        ),
    )


def two_templates() -> tuple[TemplateLibrary, Groups]:
    """The templates of :func:`two_regions`, and groups of one to three instances, which hold 60 and 90 parts each."""
    oracle = Known({}, [60.0, 90.0])
    part = SimpleNamespace(usage=two_regions().usage)
    return (
        cast("TemplateLibrary", SimpleNamespace(offsets=(0,), phases=(part,))),
        Groups.of(cast("PhaseOracle", oracle), float(PARTS), np.full(2, 3)),
    )


def test_what_groups_cost_at_least_by_hand() -> None:
    """Rent at the cheapest class that a node may be of, were it one node; the penalty on the list price of what is added; a
    group stands in one region, which sells its nodes and has room for it."""
    base, (library, groups) = two_regions(), two_templates()
    assert list(zip(groups.template.tolist(), groups.count.tolist(), strict=True)) == [
        (0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)
    ]  # fmt: skip
    price = least_price(base, library, 0, groups, np.array([[3, 2], [3, 3]]))
    # Region r0: three instances of the first template run and one of the second; at 0.50 for a and 5 USD/h for b.
    first = [0.5, 1.0, 1.5]
    second = [5.5, 11.0 + 0.1 * 7.0, 16.5 + 0.2 * 7.0]
    assert price[:, 0] == pytest.approx([*first, *second])
    # Region r1 sells a for 1 USD/h, nothing runs there, it has room for two of the first template, and there is no b.
    assert price[:, 1] == pytest.approx([1.1, 2.2, *[math.inf] * 4])


@pytest.mark.parametrize("kind", ["most", "least"])
def test_columns_of_groups_by_hand(kind: Literal["most", "least"]) -> None:
    """Nodes and instances that run are those of whole groups; a bound does not count that an instance may be lost."""
    base, (library, groups) = two_regions(), two_templates()
    groups.least[:] = [50, 50, 90, 80, 100, 100]
    everyone = [np.ones(len(groups.template), dtype=np.bool_)]
    columns = GroupColumns.of(base, library, [groups], kind, everyone, [((0, 1), (0, 3))])
    # Groups are at positions 0 to 5; more instances of a template that hold no more are left out.
    single = [0, 1, 3, 4] if kind == "most" else [0, 2, 3, 4]
    assert columns.groups == (*(((0, j),) for j in single), ((0, 1), (0, 3)))
    counts = [(1, 0), (2, 0) if kind == "most" else (3, 0), (0, 1), (0, 2), (2, 1)]
    problem = columns.problem
    assert problem.usage.tolist() == [[first + second, second] for first, second in counts]
    held = [60, 100, 90, 100] if kind == "most" else [50, 90, 80, 100]
    assert problem.throughput.tolist() == [*held, 100]
    assert problem.running is not None
    # Of three instances of the first template and one of the second in r0: so many whole groups.
    assert problem.running[:, 0].tolist() == [3, 1, 1, 0, 1]
    assert problem.running[:, 1].tolist() == [0] * 5
    assert [item.name for item in problem.side_constraints] == (["nodes"] if kind == "most" else ["lost", "nodes"])


def races_of(plan: Plan, share: Callable[[int], float], monkeypatch: pytest.MonkeyPatch) -> TogetherRaces:
    """Races in whose windows, by number, this share of the first tokens is in time."""
    races = TogetherRaces(plan.resolved, GroupSimulator(plan.resolved), [], Workers(), remember=False)
    monkeypatch.setattr(races.windows, "window", lambda number: number)
    monkeypatch.setattr(races.windows, "shares", lambda instances, number, most: {"prefill": share(number)})
    return races


@pytest.mark.parametrize(
    ("good", "then", "windows", "holds"),
    # Few misses pass after a dozen windows; half of what is allowed only if the other windows are alike.
    [(0.998, 0.998, 12, True), (0.995, 0.995, 40, True), (0.995, 0.97, None, False)],
)
def test_a_dozen_good_windows_are_enough_only_where_few_miss(
    good: float, then: float, windows: int | None, holds: bool, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows differ by 0.1 %, and from the 14th on may be worse."""
    monkeypatch.setattr(together, "REQUESTS_TO_TELL", 1)
    rng = np.random.default_rng(1)
    noise = rng.normal(0.0, 1e-3, 60)
    races = races_of(plan, lambda number: (good if number < 13 else then) + noise[number], monkeypatch)
    outcome = races.race(plan.instances)
    assert outcome.holds == holds
    assert outcome.windows == (windows or outcome.windows)


@pytest.mark.parametrize(("requests_to_tell", "holds"), [(1, False), (3_000, True)])
def test_windows_of_few_requests_count_as_one_together(
    requests_to_tell: int, holds: bool, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dozen windows with 98.7 % and then 99.4 % of 600 requests each: five count as one, so that sixty tell. A design that
    meets 99.2 % of 0.34 requests/s was dropped after twelve, and a plan cost a third more."""
    monkeypatch.setattr(together, "REQUESTS_TO_TELL", requests_to_tell)
    noise = np.random.default_rng(1).normal(0.0, 7e-3, 400)
    races = races_of(plan, lambda number: (0.987 if number < 12 else 0.994) + noise[number], monkeypatch)
    assert races.race(plan.instances).holds == holds


def test_a_model_for_mean_requests_is_not_raced(plan: Plan) -> None:
    """Nothing is asked of its windows, which would each take as long as those of any other."""
    mean = small(model={"slo": {"ttft_ms": 900, "tpot_ms": 30, "attainment": "mean"}})
    races = TogetherRaces(mean, GroupSimulator(mean), [], Workers(), remember=False)
    assert races.race(plan.instances) == Together(True, {})
    assert races.windows_of.total() == 0


def test_replications_that_are_left_go_where_covers_may_still_get_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three phases of 100 replications each and 50 to begin with, which two use up: of the other 190 those get 3 : 1, as
    what they may still save. The third needed only 10. Within 1 % of the cost nothing is worth a replication."""
    groups = [SimpleNamespace(oracle=SimpleNamespace(replications=0)) for _ in range(3)]
    covers = CoverSearch(cast("list[Groups]", groups), [], 0.01, Workers())
    covers.replications_left = 300.0
    rounds: list[dict[int, float]] = [{}, {}]

    def look(p: int, prices: np.ndarray, replications: float, in_vain: float) -> tuple[float, float]:
        first = p not in rounds[0]
        rounds[0 if first else 1][p] = replications
        groups[p].oracle.replications += math.ceil(replications) if p < 2 else 10
        return [(7.0, 10.0), (9.0, 10.0), (2.0, 10.0)][p] if first else (9.95, 10.0)

    monkeypatch.setattr(cover_search, "MOST_REPLICATIONS", 100)
    monkeypatch.setattr(covers, "tighten_one", look)
    results = covers.tighten({p: np.zeros(1) for p in range(3)})
    assert rounds == [{0: 50.0, 1: 50.0, 2: 50.0}, {0: 142.5, 1: 47.5}]
    assert results == {0: (9.95, 10.0), 1: (9.95, 10.0), 2: (2.0, 10.0)}
    # Whole replications were simulated.
    assert covers.replications_left == 190.0 - 143.0 - 48.0


@pytest.mark.parametrize("windows", [0, 40])
def test_designs_get_instances_until_they_hold(windows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a model holds only with half as much room again for its answers, it gets that, whether or not windows are left
    to look for something cheaper; the bound stays that of groups by themselves."""
    scenario = small()

    def room(instances: tuple[PlannedInstance, ...]) -> float:
        return sum(item.count * item.tokens_s for item in instances if item.phase == "decode")

    def race(self: TogetherRaces, instances: tuple[PlannedInstance, ...]) -> Together:
        self.windows_of[instances[0].model] += 1
        holds = room(instances) >= 1.5 * room(cheap.instances)
        return Together(holds, {"prefill": 1.0, "decode": 1.0 if holds else 0.98}, 1)

    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    monkeypatch.setattr(TogetherRaces, "race", lambda self, instances: Together(True, {"decode": 1.0}, 1))
    cheap = plan_scenario(scenario, settings={"certify": False})
    monkeypatch.setattr(TogetherRaces, "race", race)
    monkeypatch.setattr(TogetherRaces, "settled", race)
    monkeypatch.setattr(designs, "FEWEST_WINDOWS", windows)
    monkeypatch.setattr(designs, "REQUESTS", 0)
    plan = plan_scenario(scenario, settings={"certify": False})
    assert room(plan.instances) >= 1.5 * room(cheap.instances)
    assert plan.lower_bound_usd_h == cheap.lower_bound_usd_h <= cheap.cost_usd_h < plan.cost_usd_h
    assert plan.gap == pytest.approx(1 - plan.lower_bound_usd_h / plan.cost_usd_h)
    assert verify_plan(plan).ok


@pytest.mark.parametrize(("few", "windows"), [(1e9, 2560), (0, 640)])
def test_a_certificate_of_few_requests_looks_further(
    few: float, windows: int, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares around the one asked for, which no number of windows tells: the last look is a further one only where that is
    not too much work. A plan of 0.5 requests/s stayed open at 95.09 % of 95 % after 640 windows."""

    def add(self: Replications, plan: Plan, windows: Sequence[tuple[int, str]], shares: Shares, *_: object) -> None:
        for number, model in windows:
            for kind in ("prefill", "decode"):
                shares.setdefault((model, kind), []).append(1.0 if number % 2 else 0.98)

    monkeypatch.setattr(certificate, "FEW_REQUESTS", few)
    monkeypatch.setattr(Replications, "add", add)
    mark = certify(plan)
    assert {(len(phase.shares), phase.verdict) for phase in mark.phases} == {(windows, "open")}
    assert mark.looks[-1] == windows
    assert verify_plan(plan.with_certificate(mark)).ok


@pytest.mark.parametrize("mode", ["disaggregated", "mixed"])
def test_instances_of_a_group_are_replicas(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three replicas are three instances of each phase, not three groups or whole designs."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    demand = {"requests_s": 0.5, "input_tokens": 500, "output_tokens": 50}
    one, three = (
        plan_scenario(small(mode=mode, model={"min_replicas": replicas, "demand": demand}), settings={"certify": False})
        for replicas in (1, 3)
    )
    of_phase = [sum(item.count for item in three.instances if item.phase == row.phase) for row in three.instances]
    assert of_phase == [3] * len(of_phase)
    assert one.cost_usd_h < three.cost_usd_h < 3 * one.cost_usd_h
    assert three.gap == pytest.approx(0.0, abs=1e-6)
    assert verify_plan(three).ok


@pytest.mark.parametrize(
    ("model", "phases"),
    [
        ({"demand": {"requests_s": 0, "dataset": "azure-conv"}}, {"prefill", "decode"}),
        ({"demand": {"requests_s": 0, "dataset": "azure-conv"}, "mode": "mixed"}, {"mixed"}),
        ({"demand": {"prefill_tokens_s": 3000, "decode_tokens_s": 0, "dataset": "azure-conv"}}, {"decode"}),
        (
            {
                "slo": {"ttft_ms": 1200, "tpot_ms": 60, "attainment": "mean"},
                "demand": {"requests_s": 0, "dataset": "azure-conv"},
                "survive_instance_loss": 0.5,
            },
            {"prefill", "decode"},
        ),
    ],
)
def test_replicas_without_requests_are_the_cheapest_nodes(
    model: dict[str, Any], phases: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no SLO to meet: two of the cheapest templates of each phase, beside what the others cost without them; the
    certificate is about requests that there are."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    document = small().document
    other = load_scenario("tiny").document["models"]["phi4-14b"]
    other |= {"slo": {"ttft_ms": 1200, "tpot_ms": 60, "attainment": 0.99}} | model
    both = {**document["models"], "phi4-14b": other}
    without, planned = (
        plan_scenario(scenario_from_mapping({**document, "models": {**both, "phi4-14b": own}}))
        for own in (other, {**other, "min_replicas": 2})
    )
    library, _ = obtain_library(planned.resolved)
    price = np.nanmin(planned.resolved.price_usd_h, axis=0)
    idle = [
        float((templates.usage[templates.throughput > 0].astype(np.float64) @ price).min())
        for phase, templates in zip(planned.resolved.model_phases, library.phases, strict=True)
        if phase.model.name == "phi4-14b" and phase.phase in phases
    ]
    assert planned.provisioning_usd_h == pytest.approx(without.provisioning_usd_h + 2 * sum(idle))
    assert planned.gap == pytest.approx(0.0, abs=1e-6)
    assert planned.certificate is not None
    assert planned.certificate.holds
    assert planned.certificate == without.certificate
    assert verify_plan(planned).ok
    assert certify_again(planned) == ()


def test_groups_of_fewer_instances_than_replicas_stay_where_there_are_no_others() -> None:
    """Then the side constraint says what is missing."""
    capacity = {(0, 1): 40, (0, 2): 80, (0, 3): 100, (1, 1): 60, (1, 2): 100}
    oracle = Known(capacity, [40.0, 60.0])
    for replicas, counts in ((2, {2, 3}), (3, {3}), (7, {1, 2, 3})):
        groups = Groups.of(cast("PhaseOracle", oracle), 100.0, np.array([3, 2]), replicas)
        assert set(groups.count.tolist()) == counts


def test_windows_of_many_requests_are_not_all_kept(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones and some of the latest are; the others are made again, and are the same."""
    whole = Replications(plan.resolved, 7, window_s=60.0)
    traces = [whole.window(number) for number in range(40)]
    monkeypatch.setattr(certificate, "MOST_KEPT", len(traces[0]) + len(traces[1]))
    some = Replications(plan.resolved, 7, window_s=60.0)
    for number in (*range(40), *range(40)):
        trace = some.window(number)
        assert np.array_equal(trace.arrival_s, traces[number].arrival_s)
        assert np.array_equal(trace.input_tokens, traces[number].input_tokens)
    assert some.window(0) is some.window(0)
    assert len(some._windows) == 2
    assert len(some._latest) == certificate.LATEST
    some.forget()
    assert not some._windows
    assert not some._latest


def test_replications_are_shared_out(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With next to no replications for the bound there is a certified plan all the same, with a lower bound."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    monkeypatch.setattr(cover_search, "MOST_REPLICATIONS", 1)
    hurried = plan_scenario(small())
    assert hurried.lower_bound_usd_h <= plan.lower_bound_usd_h <= plan.cost_usd_h * (1 + 1e-9)
    assert hurried.cost_usd_h >= plan.lower_bound_usd_h
    assert hurried.certificate is not None
    assert hurried.certificate.holds
    assert verify_plan(hurried).ok


@pytest.mark.parametrize("ending", [KeyboardInterrupt, OutOfTimeError])
def test_a_search_cut_short_has_the_best_plan_known(
    ending: type[BaseException], plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C or the time limit in a race: groups that hold by themselves, a true bound, no certificate, and a note; before
    any group is known there is no plan."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))

    def stop(*_: object) -> Together:
        raise ending

    request = PlanRequest(small(), options={"time_limit": 3600})
    with monkeypatch.context() as patch:
        patch.setattr(TogetherRaces, "race", stop)
        outcome = CoralPlanner().plan(request)
    assert verify_plan(outcome.plan).ok
    assert outcome.plan.certificate is None
    assert outcome.plan.lower_bound_usd_h == plan.lower_bound_usd_h <= outcome.plan.cost_usd_h
    assert outcome.interrupted == (ending is KeyboardInterrupt)
    assert len(outcome.notes) == 1
    assert "share asked for: gpt-oss-20b" in outcome.notes[0]
    # It may cost just the bound, and is not proven for all that.
    assert outcome.plan.unconfirmed == ("gpt-oss-20b",)
    assert outcome.plan.status == "feasible"
    assert "unconfirmed" not in json.loads(plan.to_json())
    assert unconfirmed_words(outcome.plan) == "not seen to serve the share asked for: gpt-oss-20b (99.00 %)"
    assert "unconfirmed" in str(verify_plan(outcome.plan.model_copy(update={"status": "optimal"})).sentences)
    assert plan.certificate is not None
    certified = outcome.plan.with_certificate(plan.certificate)
    assert certified.unconfirmed == ()
    assert verify_plan(certified.model_copy(update={"certificate": None})).ok
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(PhaseOracle, "verdict", stop)
    message = r"(?s)time was over.*gpt-oss-20b/decode: .*tpot_ms: 30 for 99.00 %.*though idle, .* meets it for [\d.]+ %"
    ended = pytest.raises(KeyboardInterrupt) if outcome.interrupted else pytest.raises(NoSolutionError, match=message)
    with ended:
        CoralPlanner().plan(request)


@pytest.mark.parametrize("shares", [(0.97, 0.98, 0.96), (0.9, 0.9, 0.9), (0.97, 0.98, 0.995)])
def test_a_search_cut_short_takes_what_held_or_missed_least(
    shares: tuple[float, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of simulated designs the one that holds, else the one that missed least; of equal ones that with most room."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    raced: list[tuple[PlannedInstance, ...]] = []

    def race(self: TogetherRaces, instances: tuple[PlannedInstance, ...]) -> Together:
        raced.append(instances)
        if len(raced) > len(shares):
            raise OutOfTimeError
        share = shares[len(raced) - 1]
        # Were only the answers late, the same nodes would be cut in other ways.
        return Together(share >= 0.99, {"prefill": share, "decode": share}, 1)

    monkeypatch.setattr(TogetherRaces, "race", race)
    plan = CoralPlanner().plan(PlanRequest(small())).plan
    best = max(range(len(shares)), key=lambda k: (shares[k], k))

    def nodes(instances: Sequence[PlannedInstance]) -> list[tuple[str, object, int]]:
        return sorted((item.key, tuple(item.nodes().items()), item.count) for item in instances)

    assert nodes(plan.instances) == nodes(raced[best])
    assert (plan.unconfirmed == ()) == (shares[best] >= 0.99)
    assert plan.certificate is None
    assert verify_plan(plan).ok


@pytest.mark.parametrize("late", [False, True])
def test_models_get_a_design_before_time_is_over(
    late: bool, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no time for groups alone, some design comes first; then the search goes on, to the same plan, if it may."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    monkeypatch.setattr(search, "FOR_GROUPS", 0.0)
    if late:
        some = DesignSearch.some_of_each

        def last(self: DesignSearch) -> None:
            some(self)
            raise OutOfTimeError

        monkeypatch.setattr(DesignSearch, "some_of_each", last)
    hurried = CoralPlanner().plan(PlanRequest(small(), options={"time_limit": 3600})).plan
    assert hurried.unconfirmed == ()
    assert (hurried.certificate is None) == late
    assert hurried.lower_bound_usd_h <= plan.cost_usd_h * (1 + 1e-9)
    assert hurried.cost_usd_h >= plan.lower_bound_usd_h * (1 - 1e-9)
    assert late or hurried.cost_usd_h == plan.cost_usd_h
    assert verify_plan(hurried).ok


def test_work_ends_when_time_is_over() -> None:
    """What tells of itself ends; what does not is done."""
    workers = Workers(seconds=0.0)
    time.sleep(0.01)
    with pytest.raises(OutOfTimeError):
        workers.map(lambda item: workers.tell("work", item, 2), range(2))
    assert Workers(seconds=0.0).map(lambda item: item, range(2)) == [0, 1]


def test_who_handles_a_failure_may_have_other_work_done() -> None:
    """A plan that is looked for in vain is one step of a search, which goes on with other work that tells of itself."""
    workers = Workers()

    def fail(item: int) -> None:
        raise InfeasibleError(f"no room for {item}")

    with pytest.raises(InfeasibleError):
        workers.map(lambda item: workers.map(fail, [item]), range(2))
    workers.tell("designs", 0, 0)
    assert workers.map(lambda item: workers.tell("designs", item, 2), range(2)) == [None, None]


def test_work_ends_where_other_work_fails() -> None:
    """The first failure is what is raised; what still runs ends when it next tells of itself."""
    workers, told = Workers(lambda what, number, total: told.append((what, number, total))), []

    def work(item: int) -> int:
        for turn in range(10_000):
            workers.tell("work", turn, item)
            if item == 0:
                raise CoraloptError("broken")
            time.sleep(0.001)
        return item

    with pytest.raises(CoraloptError, match="broken"):
        workers.map(work, range(2))
    assert len(told) < 5_000


def test_the_failure_of_other_work_is_what_is_raised() -> None:
    """Work that is waited for first ends because of work inside the other; the reason is raised, not that it was ended."""
    workers = Workers()

    def work(item: int) -> int:
        for turn in range(10_000):
            workers.tell("work", turn, item)
            if item == 1:
                workers.map(work, [2])
            if item == 2:
                raise OutOfTimeError
            time.sleep(0.001)
        return item

    with pytest.raises(OutOfTimeError):
        workers.map(work, range(2))


def test_results_are_in_order() -> None:
    """Whichever thread is done first."""
    assert Workers().map(lambda item: item * item, range(20)) == [item * item for item in range(20)]


@pytest.mark.parametrize("tokens", [512, pytest.param(3000, marks=pytest.mark.slow)])
def test_in_mode_auto_the_cheaper_design_is_taken(tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan in mode auto is that of the cheaper of both modes, and its bound is below either."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    demand = {"requests_s": 1, "input_tokens": tokens, "output_tokens": 28}
    auto = plan_scenario(small(mode="auto", model={"demand": demand}))
    plans = {
        mode: plan_scenario(small(mode=mode, model={"demand": demand}), settings={"certify": False})
        for mode in ("disaggregated", "mixed")
    }
    assert auto.cost_usd_h == pytest.approx(min(item.cost_usd_h for item in plans.values()))
    assert auto.lower_bound_usd_h <= min(item.cost_usd_h for item in plans.values())
    assert auto.lower_bound_usd_h == pytest.approx(min(item.lower_bound_usd_h for item in plans.values()), rel=0.02)
    assert [mode.share for mode in auto.modes] in ([0.0, 1.0], [1.0, 0.0])
    assert verify_plan(auto).ok
    assert auto.certificate is not None
    assert auto.certificate.holds


def test_a_plan_holds_what_it_promises(plan: Plan) -> None:
    """The plan is verified, certified, no dearer than its bound allows, and dearer than that for mean requests."""
    assert verify_plan(plan).ok
    assert plan.certificate is not None
    assert plan.certificate.holds
    assert plan.gap <= 0.01
    assert min(expected_shares(plan).values()) >= 0.99
    mean = plan_scenario(small(model={"slo": {"ttft_ms": 900, "tpot_ms": 30, "attainment": "mean"}}))
    assert mean.certificate is None
    assert min(expected_shares(mean).values()) < 0.99
    assert mean.cost_usd_h < plan.cost_usd_h


@pytest.mark.slow
def test_a_mean_model_beside_it_may_lose_an_instance() -> None:
    """No bound counts the loss of one instance of a mean model as that of its whole group."""
    document = {**load_scenario("tiny").document, "name": "lost"}
    models = {key: dict(model) for key, model in document["models"].items()}
    models["gpt-oss-20b"]["slo"] = {"ttft_ms": 900, "tpot_ms": 30, "attainment": 0.99}
    models["phi4-14b"]["survive_instance_loss"] = 0.5
    pruning = {"max_nodes": 1, "memory_ratio": 12}
    plan = plan_scenario(
        scenario_from_mapping({**document, "models": models, "pruning": pruning}), settings={"certify": False}
    )
    assert verify_plan(plan).ok
    models["phi4-14b"].pop("survive_instance_loss")
    free = plan_scenario(
        scenario_from_mapping({**document, "models": models, "pruning": pruning}), settings={"certify": False}
    )
    assert free.lower_bound_usd_h <= plan.lower_bound_usd_h <= plan.cost_usd_h


def test_no_cheaper_plan_holds(plan: Plan) -> None:
    """Every cheaper choice of up to two instances a phase fails when its instances are simulated."""
    scenario = plan.resolved
    library, _ = obtain_library(scenario)
    simulator = GroupSimulator(scenario)
    tables = StageTables(scenario, scenario_tables(scenario))
    rent = {"prefill": 0.0, "decode": 0.0}
    for item in plan.instances:
        rent[item.phase] += item.count * item.price_usd_h
    prices = np.nanmin(scenario.price_usd_h, axis=0)
    for phase, templates in zip(scenario.model_phases, library.phases, strict=True):
        oracle = PhaseOracle(scenario, phase, templates, tables, simulator, remember=False)
        price = templates.usage.astype(np.float64) @ prices
        rate = oracle.rate(phase.demand_tokens_s)
        for size in (1, 2):
            for chosen in itertools.combinations_with_replacement(range(len(templates)), size):
                if sum(price[list(chosen)]) >= rent[phase.phase] - 1e-9:
                    continue
                if sum(templates.throughput[list(chosen)]) < phase.demand_tokens_s:
                    continue
                group = [oracle.instance(t) for t in chosen]
                shares = [
                    simulator.simulate(group, oracle.requests_at(replication, rate)).missed for replication in range(3)
                ]
                assert np.mean(shares) > 0.01, (phase.key, [item.nodes() for item in group])


def test_the_bound_is_derived_again(plan: Plan) -> None:
    """`verify --prove`: the honest plan stands; a bound above a plan that exists, and a cost below the bound, do not."""
    assert prove_bound(plan) == ()
    assert certify_again(plan) == ()
    boast = plan.model_copy(update={"lower_bound_usd_h": plan.cost_usd_h * 1.2})
    assert any("exists" in line for line in prove_bound(boast))


def test_a_certificate_is_recomputed(plan: Plan) -> None:
    """A changed interval, verdict, share or target is found, with the figures alone or by playing again."""
    mark = plan.certificate
    assert mark is not None
    first = mark.phases[0]
    for wrong in (
        first.model_copy(update={"low": first.low + 0.001}),
        first.model_copy(update={"verdict": "refuted"}),
        first.model_copy(update={"target": 0.5}),
        first.model_copy(update={"shares": tuple(min(1.0, share + 0.002) for share in first.shares)}),
    ):
        changed = mark.model_copy(update={"phases": (wrong, *mark.phases[1:])})
        assert not verify_plan(plan.model_copy(update={"certificate": changed})).ok
    fewer = mark.model_copy(update={"phases": mark.phases[1:]})
    assert not verify_plan(plan.model_copy(update={"certificate": fewer})).ok
    other = mark.model_copy(update={"first_seed": mark.first_seed + 1})
    assert certify_again(plan.model_copy(update={"certificate": other}))
    assert Plan.model_validate_json(plan.to_json()).certificate == mark


def test_intervals() -> None:
    """Student's t by hand: four windows at 0.98, 0.99, 0.99, 1.00, 95 % shared by one and by five."""
    shares = [0.98, 0.99, 0.99, 1.0]
    error = np.std(shares, ddof=1) / 2
    low, high = interval(shares, 1e6, 0.95, 1)
    assert low == pytest.approx(0.99 - 2.353363 * error, abs=1e-6)
    assert high == pytest.approx(0.99 + 2.353363 * error, abs=1e-6)
    # t of 3 degrees of freedom at 0.99.
    assert interval(shares, 1e6, 0.95, 5)[0] == pytest.approx(0.99 - 4.540703 * error, abs=1e-6)
    assert interval([0.99], 1e6, 0.95, 1) == interval([], 0, 0.95, 1) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ([0.05], "fails"),
        ([0.001], "holds"),
        ([0.01], "unclear"),
        ([0.012, 0.009], "unclear"),
        ([0.018, 0.019], "fails"),
    ],
)
def test_verdicts(shares: list[float], verdict: str) -> None:
    """One replication decides what is far off, several what is near."""
    assert judge(shares, 0.01) == verdict


def test_what_decides_a_capacity_changes_its_digest() -> None:
    """SLO, lengths, share asked for, engine and tables do; demand and prices do not."""
    base = small()

    def digest(scenario: ResolvedScenario) -> str:
        tables = scenario_tables(scenario)
        library, _ = obtain_library(scenario, tables=tables)
        simulator = GroupSimulator(scenario)
        stages = StageTables(scenario, tables)
        return PhaseOracle(scenario, scenario.model_phases[0], library.phases[0], stages, simulator).digest

    own = digest(base)
    assert digest(base.with_demand(np.array([4096.0, 55.0]))) == own
    assert digest(base.with_supply(base.availability, base.price_usd_h * 2)) == own
    slo = {"ttft_ms": 900, "tpot_ms": 30, "attainment": 0.99}
    demand = {"requests_s": 1, "input_tokens": 2048, "output_tokens": 28}
    for change in (
        {"slo": {**slo, "ttft_ms": 901}},
        {"slo": {**slo, "attainment": 0.98}},
        {"demand": {**demand, "input_cv": 0.5}},
        {"demand": {**demand, "input_tokens": 2000}},
    ):
        assert digest(small(model=change)) != own
    assert digest(small(serving={"preset": "paper", "step_tokens": 1024})) != own
    assert digest(small(throughput={"source": "roofline"})) != own


def test_a_share_that_no_node_can_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says the best possible share, and on which node."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    with pytest.raises(CoraloptError, match=r"at most \d+\.\d+ % meet it, alone on 2xL40S"):
        plan_scenario(small(model={"slo": {"ttft_ms": 200, "tpot_ms": 30, "attainment": 0.99}}))


@pytest.mark.parametrize("share", [0.05, 1 / 11, 1e-300])
def test_no_template_is_too_slow_for_next_to_none_of_the_requests(share: float) -> None:
    """Shares below what idle instances may miss by chance have no quantile of lengths."""
    scenario = small(model={"slo": {"ttft_ms": 200, "tpot_ms": 30, "attainment": share}})
    oracle = object.__new__(PhaseOracle)
    oracle.phase, oracle.target, oracle.templates = scenario.model_phases[0], share, cast("Any", [None, None])
    assert oracle.too_slow().tolist() == [False, False]


def test_where_groups_fail_in_vain_it_is_looked_whether_any_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every template is quick enough for prompts of mean length, and none is for enough of the others: each could be tried
    at any rate and count, which took ten minutes for one model on 64 nodes of one GPU type."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    monkeypatch.setattr(PhaseOracle, "too_slow", lambda self: np.zeros(len(self.templates), dtype=np.bool_))
    monkeypatch.setattr(cover_search, "IN_VAIN", 5)
    raced: list[int] = []
    race = PhaseOracle._race
    monkeypatch.setattr(PhaseOracle, "_race", lambda self, *group: raced.append(1) or race(self, *group))
    scenario = small(model={"slo": {"ttft_ms": 200, "tpot_ms": 30, "attainment": 0.99}})
    with pytest.raises(CoraloptError, match=r"at most \d+\.\d+ % meet it, alone on 2xL40S"):
        plan_scenario(scenario)
    # There are 42 groups.
    assert len(raced) < 12


@pytest.mark.parametrize("further", [3, 300])
def test_a_search_in_vain_ends(further: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle instances meet the SLO, and all else fails: after so many replications, or when all groups were tried,
    the search says so."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    monkeypatch.setattr(cover_search, "IN_VAIN", 5)
    monkeypatch.setattr(cheapest, "FURTHER", further)
    monkeypatch.setattr(PhaseOracle, "_race", lambda self, *group: ("fails", 0.05, 1))
    monkeypatch.setattr(PhaseOracle, "best_share", lambda self, workers: (0.995, "1xL4", 0))
    with pytest.raises(NoSolutionError, match=r"no instances .* for 99.00 % .* in \d+ simulations; .* 1xL4 .* 99.50 %"):
        plan_scenario(small())


def test_a_mixed_instance_that_meets_no_slo_even_of_mean_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both limits are named, and the share that layer times alone allow: short prompts could be in time."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    slo = {"ttft_ms": 60, "tpot_ms": 30, "attainment": 0.99}
    demand = {"requests_s": 1, "input_tokens": 2048, "output_tokens": 28, "input_cv": 1.0}
    with pytest.raises(
        CoraloptError, match=r"ttft_ms: 60 and tpot_ms: 30 for .*; at most (?!0\.00)\S+ % meet it"
    ) as said:
        plan_scenario(small(model={"slo": slo, "mode": "mixed", "demand": demand}))
    assert "alone on the quickest node (" in str(said.value)


def test_of_free_nodes_small_ones_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A team's own nodes cost nothing; its 8xH100 stay free where an L40S holds the share as well."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    own = {"8xH100": {"available": 2, "price_usd_h": 0}, "1xL40S": {"available": 2, "price_usd_h": 0}}
    planned = plan_scenario(small(pool={"regions": {"own": {"configurations": own}}}), settings={"certify": False})
    assert planned.cost_usd_h == 0
    assert {kind for instance in planned.instances for kind in instance.nodes()} == {"1xL40S"}


def outcome_of(plan: Plan) -> PlanOutcome:
    return PlanOutcome(plan, {})


def test_beside_a_plan_that_misses_stands_one_that_holds(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search ends in time here, so the alternative to a plan for mean requests is the plan for 99 % of them; where no
    time is left, none is named. A plan that holds has none."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    assert cheapest_that_holds(PlanRequest(small()), outcome_of(plan), expected_shares(plan)) is None
    scenario = small(model={"slo": {"ttft_ms": 900, "tpot_ms": 30, "attainment": "mean"}})
    mean = plan_scenario(scenario)
    expected = expected_shares(mean)
    other = cheapest_that_holds(PlanRequest(scenario), outcome_of(mean), expected)
    assert other is not None
    assert other.usd_h == pytest.approx(plan.provisioning_usd_h)
    assert other.met is not None
    assert plan.certificate is not None
    first = {f"{item.model}/{item.kind}": np.mean(item.shares[:20]) for item in plan.certificate.phases}
    assert other.met == pytest.approx(first)
    assert "`--attainment 0.99` makes it" in other.compared_with(mean.provisioning_usd_h)
    # Windows end early only where the rest cannot help.
    for key, share in other.met.items():
        assert alternative.shares_met(plan, PlanRequest(scenario), {key: share - 1e-9}) == other.met
        assert alternative.shares_met(plan, PlanRequest(scenario), {key: share + 1e-9}) is None
    monkeypatch.setattr(alternative, "SECONDS", (1e-6, 1e-6))
    monkeypatch.setattr(search.PromiseSearch, "_known_by_now", lambda self: None)
    none = cheapest_that_holds(PlanRequest(scenario), outcome_of(mean), expected)
    assert none is not None
    assert none.usd_h is None
    assert "no plan known" in none.compared_with(1.0)


@pytest.mark.slow
def test_beside_a_plan_that_is_not_confirmed_stands_one_for_fewer_misses(plan: Plan) -> None:
    """It is planned for 99.5 % of the requests and simulated for 99 %."""
    mark = plan.certificate
    assert mark is not None
    refuted = mark.phases[0].model_copy(update={"verdict": "refuted"})
    failed = plan.model_copy(update={"certificate": mark.model_copy(update={"phases": (refuted, *mark.phases[1:])})})
    other = cheapest_that_holds(PlanRequest(small()), outcome_of(failed), expected_shares(failed))
    assert other is not None
    assert other.usd_h is not None
    assert other.usd_h >= plan.provisioning_usd_h
    assert min((other.met or {}).values()) >= 0.99
    assert "`--attainment 0.995` makes it" in other.compared_with(plan.provisioning_usd_h)


@pytest.mark.parametrize(("bad", "holds"), [(0.94, True), (0.80, False)])
def test_a_bad_window_among_the_first_is_no_reason_to_refuse(
    bad: float, holds: bool, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One window of thirty misses six times what is allowed, the fourth first: 99.7 % are met on the mean. One that misses
    twenty times that is refused on sight."""
    noise = np.random.default_rng(1).normal(0.0, 5e-4, 90)

    def share(number: int) -> float:
        is_bad = number == (0 if bad < 0.9 else 3) or (number > 3 and number % 30 == 3)
        return (bad if is_bad else 0.999) + noise[number]

    races = races_of(plan, share, monkeypatch)
    assert races.race(plan.instances).holds == holds


@pytest.mark.parametrize(
    ("whole", "alone", "cut", "verdict"),
    [
        ("holds", "holds", "fails", "holds"),
        ("unclear", "holds", "holds", "unclear"),
        ("fails", "fails", "holds", "fails"),
        ("fails", "holds", "fails", "fails"),
        ("fails", "unclear", "unclear", "unclear"),
        ("fails", "holds", "holds", "holds"),
    ],
)
def test_prefill_groups_whose_caches_are_late_are_cut(
    whole: str, alone: str, cut: str, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where first tokens alone are in time; then the best of all cuts counts, and few replications stay few."""
    scenario = small(pruning={"max_nodes": 2, "memory_ratio": 12})
    library, _ = obtain_library(scenario)
    p = next(p for p, phase in enumerate(scenario.model_phases) if phase.phase == "prefill")
    tables = StageTables(scenario, scenario_tables(scenario))
    simulator = GroupSimulator(scenario)
    oracle = PhaseOracle(scenario, scenario.model_phases[p], library.phases[p], tables, simulator, remember=False)
    simulated: list[tuple[int, bool]] = []

    def raced(group: Sequence[PlannedInstance], rate: float, many: bool, caches: bool) -> tuple[str, float, int]:
        stages = max(len(item.stages) for item in group)
        simulated.append((stages, caches))
        return (cut if stages > 1 else whole if caches else alone), 0.5, 9

    monkeypatch.setattr(oracle, "_raced", raced)
    rate = oracle.rate(1.0)
    single = np.flatnonzero(oracle.templates.usage.sum(axis=1) == 1).tolist()
    template = next(t for t in single if len(list(oracle.instances.pipelines(t, 4, 1.0))) == 2)
    assert oracle.verdict(template, 4, rate) == verdict
    assert simulated[0] == (1, True)
    assert simulated[1:2] == ([(1, False)] if whole == "fails" else [])
    if whole == "fails" and alone != "fails":
        assert {stages for stages, _ in simulated[2:]} == {2}
        assert cut == "holds" or len(simulated) == 4
    else:
        assert len(simulated) <= 2
    assert oracle.replications <= 12


@pytest.mark.parametrize(
    ("share", "misses", "windows"),
    # Below by five errors; above, or so near that a quarter of the windows of a certificate do not tell.
    [(0.988, True, 10), (0.992, False, 10), (0.98995, False, 160)],
)
def test_what_surely_misses(
    share: float, misses: bool, windows: int, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows differ by 0.05 %, up and down in turn; the answer is remembered beside that of the race."""
    races = races_of(plan, lambda number: share + (5e-4 if number % 2 else -5e-4), monkeypatch)
    assert races.surely_misses(plan.instances) == misses
    assert races.windows_of[plan.instances[0].model] == windows
    assert races.surely_misses(plan.instances) == misses
    assert races.windows_of[plan.instances[0].model] == windows
    assert races.race(plan.instances).holds == (share > 0.99)


@pytest.mark.parametrize(
    ("share", "holds", "misses", "windows"),
    # Sure soon; what shorter races leave open; and what even all windows of a certificate would not tell.
    [
        (0.992, True, False, (40, 120)),
        (0.9904, True, False, (41, 640)),
        (0.9897, False, True, (160, 640)),
        (0.98998, False, False, (160, 640)),
        (0.90, False, True, (3, 10)),
    ],
)
def test_what_short_races_leave_open_is_settled(
    share: float, holds: bool, misses: bool, windows: tuple[int, int], plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows differ by 0.2 %; what holds then does so in races from then on, and is not asked again."""
    noise = np.random.default_rng(4).normal(0.0, 2e-3, 640)
    noise -= np.array([noise[: k + 1].mean() for k in range(640)])[-1]
    races = races_of(plan, lambda number: share + noise[number], monkeypatch)
    outcome = races.settled(plan.instances)
    assert (outcome.holds, outcome.misses) == (holds, misses)
    assert windows[0] <= outcome.windows <= windows[1]
    if holds:
        assert races.race(plan.instances) == outcome
    simulated = races.windows_of[plan.instances[0].model]
    assert races.settled(plan.instances) == outcome
    assert races.windows_of[plan.instances[0].model] == simulated


@pytest.mark.parametrize("share", [0.985, 0.9885, 0.9915, 0.995])
def test_settling_is_seldom_wrong(share: float, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 5,000 independent requests; a wrong verdict would take five standard errors of luck."""
    for seed in range(25):
        draws = np.random.default_rng(seed).binomial(5_000, share, 640) / 5_000
        outcome = races_of(plan, draws.__getitem__, monkeypatch).settled(plan.instances)
        assert (outcome.holds, outcome.misses) == (share > 0.99, share < 0.99)


def test_groups_that_the_pool_has_no_room_for_end_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every group holds so little that many more nodes are needed than there are, and each takes a dozen replications to
    tell: one model on 64 nodes went on for more than nine minutes. The message says what idle instances do."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    monkeypatch.setattr(cheapest, "FURTHER", 10)
    raced: list[int] = []

    def race(self: PhaseOracle, template: int, count: int, rate: float, many: bool) -> tuple[str, float, int]:
        raced.append(1)
        return ("holds" if rate <= 0.01 * count else "fails"), 0.05, 12

    monkeypatch.setattr(PhaseOracle, "_race", race)
    with pytest.raises(
        NoSolutionError,
        match=r"pool has room for were seen to meet t\S+ms: \d+ for 99.00 %.*though idle, .* meets it for 9",
    ):
        plan_scenario(small())
    assert len(raced) < 60


def test_idle_instances_tell_which_templates_hold_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that an idle instance misses too often on, no group holds even a hundredth of the requests."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    scenario = small(model={"slo": {"ttft_ms": 600, "tpot_ms": 30, "attainment": 0.99}})
    request = PlanRequest(scenario)
    library, _, warm = request.templates()
    tables = warm.tables_of(scenario)
    oracle = PhaseOracle(
        scenario, scenario.model_phases[0], library.phases[0], StageTables(scenario, tables), GroupSimulator(scenario)
    )
    templates = list(range(len(library.phases[0])))
    hopeless = oracle.hopeless(templates, Workers())
    assert 0 < len(hopeless) < len(templates)
    rate = oracle.rate(scenario.model_phases[0].demand_tokens_s)
    assert {oracle.verdict(template, 4, rate / PARTS) for template in hopeless} == {"fails"}
    others = set(templates) - set(hopeless)
    assert {oracle.verdict(template, 4, rate / PARTS) for template in others} == {"holds"}


def test_covers_are_closed_in_the_region_where_a_plan_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that are cheapest elsewhere say nothing of what serves beside the other phase: the bound of a model with 471,598
    groups in two regions was 2.4 % lower for it."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    cheap = {"1xL4": {"available": 8}, "1xL40S": {"available": 1, "price_usd_h": 0.9}}
    dear = {"1xL40S": {"available": 8, "price_usd_h": 2.2}, "2xL40S": {"available": 8, "price_usd_h": 4.1}}
    request = PlanRequest(
        small(pool={"regions": {"us-east-2": {"configurations": cheap}, "us-central1": {"configurations": dear}}})
    )
    library, _, warm = request.templates()
    tables = warm.tables_of(request.scenario)
    seek = search.PromiseSearch(request, library, tables, allocation_problem(request.scenario, library, None, tables))
    plan = seek.cheapest.plan(frozenset())
    seek.cheapest.tighten_there(plan)
    for own, region in zip(plan.chosen, plan.served.result.allocation.region.tolist(), strict=True):
        for p, _ in own:
            bound, cost = (
                groups.covers(capacity, seek.designs.price[p][:, region])[PARTS]
                for groups in [seek.groups[p]]
                for capacity in (groups.most, groups.least)
            )
            assert bound == pytest.approx(cost) or math.isinf(cost)
