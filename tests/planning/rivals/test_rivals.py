"""Rival planners: faithful, verified, and never below what coral proves."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt import load_scenario, scenario_from_mapping, verify_plan
from coralopt.allocation import AllocationProblem, Joint, solve_allocation
from coralopt.errors import InfeasibleError, LibraryError, OptionError, ScenarioError
from coralopt.planning import PlanRequest, demand_met, get_planner, planner_names
from coralopt.planning.compare import Contestant, compare, scaled
from coralopt.planning.rivals.combos import ComboProblem
from coralopt.planning.rivals.melange import MelangeProblem
from coralopt.planning.rivals.strategies import KINDS, _families
from coralopt.planning.rivals.without_solver import greedy, random_draw, single_best
from coralopt.solving import Reason, solve
from coralopt.templates import gpu_types_used, scenario_node_sets
from coralopt.testing.allocation_strategies import allocation_problems

EXACT = {"rel_gap": 0.0, "abs_gap": 0.0}
RIVALS = [name for name in planner_names() if name not in ("coral", "helix")]


@pytest.fixture(scope="module")
def tiny_bound() -> float:
    """What coral proves for the scenario tiny."""
    scenario = load_scenario("tiny")
    return get_planner("coral").plan(PlanRequest(scenario)).plan.lower_bound_usd_h


@pytest.mark.parametrize("name", RIVALS)
def test_rival_plans_are_verified_and_never_below_the_bound(name: str, tiny_bound: float) -> None:
    """A rival's plan is a plan like any other; one cheaper than the proven bound would disprove it."""
    plan = get_planner(name).plan(PlanRequest(load_scenario("tiny"), seed=3)).plan
    assert plan.planner == name
    assert verify_plan(plan).violations == ()
    assert plan.cost_usd_h >= tiny_bound * (1 - 1e-9)
    assert demand_met(plan) == 1.0


@pytest.mark.parametrize("name", ["homo", "cauchy", "random", "hexgen"])
def test_equal_requests_give_equal_bytes(name: str) -> None:
    """Seeds decide everything."""
    request = PlanRequest(load_scenario("tiny"), seed=5)
    first, second = (get_planner(name).plan(request).plan.to_json() for _ in range(2))
    assert first == second


@settings(max_examples=25, deadline=None)
@given(allocation_problems(max_templates=6, max_available=6))
def test_no_planner_beats_the_allocation_bound(problem: AllocationProblem) -> None:
    """Greedy, single-best and random are feasible and cost at least the proven optimum, on any templates."""
    for plan in (greedy, single_best, lambda p: random_draw(p, 1, 3)):
        try:
            answer = plan(problem)
        except InfeasibleError:
            continue
        check = problem.check(answer)
        assert check.feasible, check.violations
        exact = solve_allocation(problem, options={"rel_gap": 0.0, "abs_gap": 0.0})
        assert check.objective >= exact.bound_usd_h * (1 - 1e-9)


def _one_phase(throughput: list[float], price: list[float], demand: float, available: int = 100) -> AllocationProblem:
    """Template k is one node of configuration k."""
    size = len(price)
    return AllocationProblem(
        usage=np.eye(size, dtype=np.int16),
        throughput=np.array(throughput),
        phase=np.zeros(size, dtype=np.int32),
        demand=np.array([demand]),
        availability=np.full((1, size), available),
        price=np.array([price]),
        running=None,
        penalty=0.0,
        phase_names=("m/decode",),
        region_names=("r",),
        configuration_names=tuple(f"c{k}" for k in range(size)),
    )


def test_greedy_takes_the_dear_variant_where_the_optimum_is_the_cheap_one() -> None:
    """llm-d workload-variant-autoscaler issue 1251: need 100; A costs 10 for 200, B 6 for 100. Greedy 10, optimum 6."""
    problem = _one_phase([200.0, 100.0], [10.0, 6.0], 100.0)
    assert problem.check(greedy(problem, clip=False)).objective == 10
    # With goodput counted up to the demand, as homo does here by default, the greedy finds B.
    assert problem.check(greedy(problem)).objective == 6
    assert solve_allocation(problem, options=EXACT).cost_usd_h == 6
    assert problem.check(single_best(problem)).objective == 6


def test_greedy_models_contend_in_turns() -> None:
    """Where supply is scarce no phase is served ahead of the others: each gets one of the two nodes."""
    problem = AllocationProblem(
        usage=np.array([[1], [1]], dtype=np.int16),
        throughput=np.array([10.0, 10.0]),
        phase=np.array([0, 1], dtype=np.int32),
        demand=np.array([20.0, 10.0]),
        availability=np.array([[2]]),
        price=np.array([[1.0]]),
        running=None,
        penalty=0.0,
        phase_names=("a/decode", "b/decode"),
        region_names=("r",),
        configuration_names=("c",),
    )
    with pytest.raises(InfeasibleError, match=r"a/decode gets 10.0 of 20.0 tokens/s \(50%\)"):
        greedy(problem)


# --- Melange -------------------------------------------------------------------------------------------------------


def _example(rate: float, slices: int | None) -> MelangeProblem:
    """The example that Melange's release ships (commit d46ab43)."""
    return MelangeProblem(
        tput=np.array([[[2.0, 1.0], [5.0, 2.0]], [[20.0, 20.0], [40.0, 20.0]]]),
        cost=np.array([1.01, 3.67]),
        distribution=np.array([[0.2, 0.1], [0.5, 0.2]]),
        rate=rate,
        slice_factor=slices,
        types=("A10G", "A100-80GB"),
    )


@pytest.mark.parametrize("formulation", ["published", "grouped"])
@pytest.mark.parametrize(
    ("rate", "by_slices"),
    [
        (1, {1: 1.01, 2: 1.01, 4: 1.01, 8: 1.01}),
        (5, {1: 2.02, 2: 2.02, 4: 2.02, 8: 2.02}),
        (10, {1: 3.67, 2: 3.67, 4: 3.67, 8: 3.67}),
        (30, {1: 6.70, 2: 5.69, 4: 5.69, 8: 5.69}),
        (60, {1: 11.01, 2: 10.37, 4: 10.37, 8: 10.37}),
        (100, {1: 14.68, 2: 14.68, 4: 14.68, 8: 14.68}),
        (300, {1: 44.04, 2: 44.04, 4: 44.04, 8: 44.04}),
    ],
)
def test_melange_replays_its_own_example(formulation: str, rate: float, by_slices: dict[int, float]) -> None:
    """All 28 costs that Melange's release gives for its example, with its solver CBC, to the cent."""
    for slices, cost in by_slices.items():
        solution = solve(_example(rate, slices), "highs", formulation, EXACT)
        assert solution.objective == pytest.approx(cost, abs=1e-9)


@pytest.mark.parametrize(
    ("rate", "cost"), [(1, 1.01), (5, 2.02), (10, 3.67), (30, 5.69), (60, 10.37), (100, 14.68), (300, 44.04)]
)
def test_divided_time_replays_the_example_too(rate: float, cost: float) -> None:
    """Types as nodes, buckets as classes of one model: the published programme with splits at will, so never dearer.

    ``cost`` is the published one with eight slices of a bucket.
    """
    example = _example(rate, None)
    speeds, wanted = example.tput.reshape(2, 4), rate * example.distribution.ravel()
    template, phase = (part.ravel() for part in np.meshgrid(range(2), range(1, 4), indexing="ij"))
    problem = AllocationProblem(
        usage=np.eye(2, dtype=np.int16),
        throughput=speeds[:, 0],
        phase=np.zeros(2, dtype=np.int32),
        demand=wanted,
        availability=np.full((1, 2), 1000),
        price=example.cost[None, :],
        running=None,
        penalty=0.0,
        phase_names=tuple(f"bucket{p}" for p in range(4)),
        region_names=("anywhere",),
        configuration_names=example.types,
        joint=Joint(template, phase.astype(np.int32), speeds[:, 1:].ravel(), divided=True),
    )
    ours = solve_allocation(problem, "highs", EXACT).cost_usd_h
    assert ours == pytest.approx(solve(example, "highs", "grouped", EXACT).objective, abs=1e-9)
    assert ours <= cost + 1e-9


def _enumerated(problem: MelangeProblem) -> float:
    """Least cost over every assignment of slices to types; infinite where a bucket fits nowhere."""
    slices = problem.slice_factor or 1
    work = [bucket for bucket in problem.buckets() for _ in range(slices)]
    best = math.inf
    for choice in itertools.product(range(len(problem.cost)), repeat=len(work)):
        if any(problem.load(g, bucket) is None for g, bucket in zip(choice, work, strict=True)):
            continue
        cost = 0.0
        for g in range(len(problem.cost)):
            load = sum(
                (
                    Fraction(problem.rate)
                    * Fraction(float(problem.distribution[b]))
                    / slices
                    / Fraction(float(problem.tput[g][b]))
                    for h, b in zip(choice, work, strict=True)
                    if h == g
                ),
                Fraction(0),
            )
            count = math.ceil(load)
            if problem.available is not None and count > problem.available[g]:
                cost = math.inf
            cost += count * float(problem.cost[g])
        best = min(best, cost)
    return best


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_melange_against_enumeration(seed: int) -> None:
    """Both formulations equal trying every assignment, also with limits and with buckets a type cannot serve."""
    rng = np.random.default_rng(seed)
    types, shape = int(rng.integers(1, 4)), (int(rng.integers(1, 3)), int(rng.integers(1, 3)))
    weights = rng.integers(0, 5, shape) + (np.arange(math.prod(shape)).reshape(shape) == 0)
    problem = MelangeProblem(
        # Sevenths: loads are almost never whole, where rounding would decide.
        tput=rng.integers(0, 8, (types, *shape)) / 7.0,
        cost=rng.integers(1, 20, types) / 4.0,
        distribution=weights / weights.sum(),
        rate=float(rng.integers(1, 9)) + 0.3,
        slice_factor=1 if math.prod(shape) > 2 else int(rng.integers(1, 3)),
        available=rng.integers(0, 30, types) if rng.random() < 0.5 else None,
    )
    best = _enumerated(problem)
    for formulation in ("published", "grouped"):
        solution = solve(problem, "highs", formulation, EXACT)
        if math.isinf(best):
            assert solution.termination.reason is Reason.INFEASIBLE
        else:
            assert solution.objective == pytest.approx(best, rel=1e-9)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_finer_slices_never_cost_more_and_any_split_least(seed: int) -> None:
    """Twice the slices hold every split of the coarser ones; any split holds all."""
    rng = np.random.default_rng(seed)
    costs = []
    base = rng.integers(1, 8, (2, 2, 1)) / 7.0
    for slices in (1, 2, 4, None):
        problem = MelangeProblem(base, np.array([1.0, 2.5]), np.array([[0.6], [0.4]]), 5.3, slices)
        costs.append(solve(problem, "highs", None, EXACT).objective)
    assert all(a >= b - 1e-6 for a, b in itertools.pairwise(costs))


# --- Cauchy --------------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["efficiency", "cost"]))
def test_combos_against_enumeration(seed: int, objective: str) -> None:
    """The integer programme equals trying every count of every combo, with either objective."""
    rng = np.random.default_rng(seed)
    combos, models = int(rng.integers(1, 5)), int(rng.integers(1, 3))
    problem = ComboProblem(
        price=rng.integers(1, 12, combos) / 4.0,
        goodput=rng.integers(1, 9, combos) / 4.0,
        efficiency=rng.integers(1, 5, combos) / 2.0,
        model=rng.integers(0, models, combos),
        usage=rng.integers(0, 3, (combos, 2)),
        demand=rng.integers(0, 6, models) / 4.0,
        availability=rng.integers(0, 7, 2),
        objective=objective,
    )
    best = math.inf
    for counts in itertools.product(range(7), repeat=combos):
        check = problem.check(np.array(counts))
        if check.feasible:
            best = min(best, check.objective)
    solution = solve(problem, "highs", None, EXACT)
    if math.isinf(best):
        # More of a combo than six of each could still do where it uses no node; then the enumeration is not the judge.
        assert solution.answer is None or (solution.answer > 6).any()
    else:
        assert solution.objective == pytest.approx(best, rel=1e-9)


def test_cauchy_pairs_prefill_with_decode_in_one_region() -> None:
    """Combos feed several decode replicas, and by the cost objective never cost more than by efficiency."""
    scenario = load_scenario("tiny")
    plans = {
        objective: get_planner("cauchy").plan(PlanRequest(scenario, settings={"objective": objective})).plan
        for objective in ("efficiency", "cost")
    }
    assert plans["cost"].provisioning_usd_h <= plans["efficiency"].provisioning_usd_h * (1 + 1e-4)
    for plan in plans.values():
        for model in {item.model for item in plan.instances}:
            mine = [item for item in plan.instances if item.model == model]
            prefill = sum(item.count for item in mine if item.phase == "prefill")
            decode = sum(item.count for item in mine if item.phase == "decode")
            assert decode >= prefill >= 1
            assert all(len(item.nodes()) == 1 for item in mine)


def test_cauchy_has_no_mixed_instances() -> None:
    """It pairs two phases; a mixed scenario is refused in words."""
    document = {**load_scenario("tiny").document, "mode": "mixed"}
    with pytest.raises(ScenarioError, match="pairs prefill with decode"):
        get_planner("cauchy").plan(PlanRequest(scenario_from_mapping(document)))


# --- settings, scarcity, comparison ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(planner_names()) - {"helix"}))
def test_every_planner_says_that_nothing_can_serve(name: str) -> None:
    """Where no node holds a model, there is nothing to choose from: a sentence, not a crash."""
    document = dict(load_scenario("tiny").document)
    document["models"] = {
        "llama3.1-405b": {
            "slo": {"ttft_ms": 1500, "tpot_ms": 60, "attainment": "mean"},
            "demand": {"requests_s": 1, "dataset": "azure-code"},
        }
    }
    document["mode"] = "disaggregated"
    document["pool"] = {"regions": {"us-east-2": {"configurations": {"1xL4": 2}}}}
    with pytest.raises(InfeasibleError):
        get_planner(name).plan(PlanRequest(scenario_from_mapping(document)))


def test_unknown_planners_and_settings_name_what_there_is() -> None:
    """Misspelt names get the choices, not a traceback."""
    with pytest.raises(OptionError, match="did you mean homo"):
        get_planner("hom")
    with pytest.raises(OptionError, match="unknown setting of planner 'homo'"):
        get_planner("homo").plan(PlanRequest(load_scenario("tiny"), settings={"homogenous": "gpu"}))
    with pytest.raises(OptionError, match="clip is 'x'; it must be true or false"):
        get_planner("homo").plan(PlanRequest(load_scenario("tiny"), settings={"clip": "x"}))
    with pytest.raises(OptionError, match="whose settings are"):
        Contestant.parse("melange:slices=2")
    assert Contestant.parse("melange:slice_factor=2").settings == {"slice_factor": 2}
    with pytest.raises(ScenarioError, match="coralopt place POOL --planner helix"):
        get_planner("helix").plan(PlanRequest(load_scenario("tiny")))


def test_wider_meanings_of_homogeneous_hold_the_narrower_ones() -> None:
    """A single node is a set of one configuration is a set of one GPU type: the best single template never gets dearer."""
    scenario = load_scenario("tiny")
    costs = [
        get_planner("single-best").plan(PlanRequest(scenario, settings={"homogeneous": kind})).plan.cost_usd_h
        for kind in ("node", "configuration", "gpu")
    ]
    assert costs == sorted(costs, reverse=True)


def test_scarce_supply_is_met_in_part() -> None:
    """A planner that cannot meet all demand plans for the largest percent that it can (paper, section 5.4)."""
    scenario = scaled(load_scenario("tiny"), 400.0)
    with pytest.raises(InfeasibleError, match="no homogeneous replica fits any more"):
        get_planner("homo").plan(PlanRequest(scenario))
    rows = compare(PlanRequest(scenario), [Contestant.parse("homo")])
    assert 0 < rows[0].share < 1
    assert rows[0].share <= rows[0].demand_met < rows[0].share + 0.01
    assert rows[0].verified
    assert math.isnan(rows[0].above_bound)
    assert compare(PlanRequest(scenario), [Contestant.parse("homo")], shrink=False)[0].plan is None


def test_running_instances_are_kept_where_homogeneous() -> None:
    """A running homogeneous instance costs no initialization again; one the planner has no template for is let go."""
    document = dict(load_scenario("tiny").document)
    first = get_planner("homo").plan(PlanRequest(scenario_from_mapping(document))).plan
    document["running"] = [
        {"model": i.model, "phase": i.phase, "region": i.region, "nodes": i.nodes(), "count": i.count}
        for i in first.instances
    ]
    kept = get_planner("homo").plan(PlanRequest(scenario_from_mapping(document))).plan
    assert kept.initialization_usd_h == 0
    assert verify_plan(kept).ok
    names = list(dict(first.instances[0].nodes()))
    other = next(name for name in ("1xL40S", "1xL4", "4xL4") if name not in names)
    document["running"] = [
        {**document["running"][0], "nodes": {names[0]: 1, other: 1}, "count": 1},
    ]
    mixed = get_planner("homo").plan(PlanRequest(scenario_from_mapping(document))).plan
    assert verify_plan(mixed).ok


@pytest.mark.parametrize("name", ["homo", "cauchy", "melange", "single-best", "random"])
def test_rivals_plan_with_headroom(name: str) -> None:
    """Throughput beyond the demand that a scenario asks for is asked of every planner."""
    scenario = load_scenario("tiny")
    keys = [phase.key for phase in scenario.model_phases]
    document = {**scenario.document, "headroom": {key: {"throughput": 0.6} for key in keys}}
    plan = get_planner(name).plan(PlanRequest(scenario_from_mapping(document))).plan
    assert verify_plan(plan).violations == ()
    assert all(item.planned_tokens_s >= 1.6 * item.demand_tokens_s * (1 - 1e-12) for item in plan.demands)


def test_rivals_refuse_what_only_coral_knows() -> None:
    """A budget that a rival ignored in silence would make its plan look like an answer."""
    scenario = load_scenario("tiny").with_limits(budget_usd_h=100.0)
    with pytest.raises(ScenarioError, match=r"budgets.* are known to coral only"):
        get_planner("homo").plan(PlanRequest(scenario))


def test_hexgen_may_place_worse_than_the_best_but_not_claim_more() -> None:
    """Its pipelines have one node a stage; verification forgives that, and nothing else."""
    plan = get_planner("hexgen").plan(PlanRequest(load_scenario("tiny"))).plan
    assert all(len(s.nodes) == 1 and s.nodes[0].count == 1 for i in plan.instances for s in i.stages)
    first = plan.instances[0]
    doctored = first.model_copy(update={"tokens_s": first.tokens_s * 1.01})
    found = verify_plan(plan.model_copy(update={"instances": (doctored, *plan.instances[1:])})).sentences
    assert any("a placement of these nodes reaches" in line for line in found)


def test_plans_for_mean_requests_are_not_measured_against_a_bound_for_a_share() -> None:
    """They may cost less than what no plan for a share costs less than."""
    tiny = load_scenario("tiny").document
    models = {"gpt-oss-20b": tiny["models"]["gpt-oss-20b"]}
    alone = scenario_from_mapping({**tiny, "models": models, "pruning": {"max_nodes": 1, "memory_ratio": 12}})
    rows = compare(
        PlanRequest(alone.with_attainment(0.99)), [Contestant.parse(text) for text in ("single-best", "coral")]
    )
    assert all(row.cost_usd_h > 0 and row.bound_usd_h == rows[0].bound_usd_h > 0 for row in rows)
    assert math.isnan(rows[0].above_bound)
    assert rows[1].above_bound == pytest.approx(0.0, abs=1e-3)


def test_comparison_gives_every_contestant_a_row_and_the_proven_bound() -> None:
    """One that fails has its reason; the others are measured against coral's bound."""
    rows = compare(
        PlanRequest(load_scenario("tiny")), [Contestant.parse(t) for t in ("homo:homogeneous=node", "helix", "coral")]
    )
    assert [row.label for row in rows] == ["homo:homogeneous=node", "helix", "coral"]
    assert rows[1].plan is None
    assert "one model on fixed nodes" in rows[1].error
    assert rows[0].above_bound >= -1e-9
    assert rows[2].above_bound == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("name", ["tiny", "core"])
@pytest.mark.parametrize("kind", KINDS)
def test_homogeneous_strategies_are_those_of_all_node_sets(name: str, kind: str) -> None:
    """They are enumerated by themselves: among all node sets of 32 nodes nobody would wait for them."""
    scenario = load_scenario(name)
    for mine, every in zip(_families(scenario, kind), scenario_node_sets(scenario), strict=True):
        alike = {
            "node": every.sum(axis=1) == 1,
            "configuration": (every > 0).sum(axis=1) == 1,
            "gpu": gpu_types_used(every, scenario) == 1,
        }
        assert np.array_equal(mine, every[alike[kind]])


def test_too_many_homogeneous_strategies_are_refused() -> None:
    document = {key: value for key, value in load_scenario("core").document.items() if key != "pruning"}
    scenario = scenario_from_mapping({**document, "templates": "on-demand"})
    assert len(_families(scenario, "configuration")[0]) < 500
    for most in (32, 127):
        words = rf"homogeneous strategies of up to {most} nodes are too many: lower pruning.max_nodes"
        with pytest.raises(LibraryError, match=words):
            _families(replace(scenario, max_nodes=most), "gpu")
