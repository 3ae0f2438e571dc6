"""The whole way: reductions, bounds, fixing and integer programmes give the optimum and an honest bound."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.allocation import (
    Allocation,
    AllocationProblem,
    AllocationSearchOptions,
    SearchLimits,
    reduce_problem,
    solve_allocation,
)
from coralopt.allocation.bounds.lagrangian import lagrangian_bound
from coralopt.allocation.bounds.relaxation import dual_bound, reduced_costs, solve_relaxation
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.search import context as context_module
from coralopt.allocation.search import fixing as fixing_module
from coralopt.allocation.search import strategy as strategy_module
from coralopt.allocation.search.choice import Choice
from coralopt.allocation.search.context import SearchContext
from coralopt.allocation.search.coverings import choose_near_coverings
from coralopt.allocation.search.decomposition import raise_bound
from coralopt.allocation.search.part import TOLERANCE, Part
from coralopt.allocation.search.rounding import rounded
from coralopt.allocation.search.solve import _root_bound
from coralopt.errors import InfeasibleError, NoSolutionError, OptionError, SolverError
from coralopt.solving import Limit, Proof, Solution, SolveOptions, get_backend, solve
from coralopt.testing.allocation_strategies import allocation_problems, best_by_enumeration
from coralopt.testing.instances import allocation_instance
from coralopt.testing.synthetic import synthetic_problem
from coralopt.threads import wait_for

EXACT = SolveOptions(rel_gap=0.0, abs_gap=1e-7)


def within(bound: float, truth: Fraction) -> bool:
    return bound <= float(truth) * (1 + 1e-9)


@settings(max_examples=150, deadline=None)
@given(
    problem=allocation_problems(max_templates=5),
    formulation=st.sampled_from(("split", "paper")),
    most=st.sampled_from((6_000, 3, 1)),
)
def test_optimum_and_bound(problem: AllocationProblem, formulation: str, most: int) -> None:
    """With as few columns at once as one, so that fixing and enlarging are at work, the answer must not change."""
    truth = best_by_enumeration(problem)
    if truth is None:
        with pytest.raises(InfeasibleError) as caught:
            solve_allocation(problem, options=EXACT, search=AllocationSearchOptions(formulation))
        assert caught.value.explanation.shortfalls
        return
    try:
        result = solve_allocation(
            problem, options=EXACT, search=AllocationSearchOptions(formulation, limits=SearchLimits(most_columns=most))
        )
    except NoSolutionError:
        # Few columns may hold no allocation; that is no proof that there is none.
        assert most < 6_000
        return
    assert problem.check(result.allocation).objective == result.cost_usd_h
    assert within(result.bound_usd_h, truth)
    assert result.cost_usd_h >= float(truth) - 1e-9
    if most == 6_000:
        assert result.cost_usd_h == pytest.approx(float(truth), abs=1e-6)
        assert result.cost_usd_h - result.bound_usd_h <= 1e-6


@settings(max_examples=40, deadline=None)
@given(problem=allocation_problems(max_templates=5), library=st.booleans(), near=st.sampled_from((1, 3, 100)))
def test_whole_instances_first(problem: AllocationProblem, library: bool, near: int) -> None:
    """Floor, rest and neighbourhoods of it, and passes over a library whose own bound is the proof, claim nothing wrong."""
    truth = best_by_enumeration(problem)
    if truth is None:
        return
    limits = SearchLimits(
        direct_columns=0,
        many_instances=0,
        many_templates=0 if library else 10**9,
        near_templates=near,
        most_near=2 * near,
    )
    options = SolveOptions(rel_gap=0.01, time_limit=30.0)
    result = solve_allocation(problem, options=options, search=AllocationSearchOptions(limits=limits))
    assert within(result.bound_usd_h, truth)
    assert problem.check(result.allocation).objective == result.cost_usd_h >= float(truth) - 1e-9


def test_neighbourhoods_follow_rests() -> None:
    """Where instances are many; where they are few, they come after all that proves."""
    problem = synthetic_problem(max_nodes=3, phases=4, configurations=6, regions=2, supply="scarce", nodes=40)
    options = SolveOptions(rel_gap=0.0, abs_gap=0.0, time_limit=10.0)
    for many in (0, 10**6):
        limits = SearchLimits(direct_columns=0, compact_columns=0, many_instances=many, doublings=0, annealings=1)
        result = solve_allocation(problem, options=options, search=AllocationSearchOptions(limits=limits))
        steps = list(result.seconds)
        assert (steps.index("neighbourhood") < steps.index("annealing")) == (many == 0)
        assert problem.check(result.allocation).objective == result.cost_usd_h >= result.bound_usd_h


@given(cost=st.floats(1e-3, 1e9), gap=st.sampled_from((0.0, 1e-12, 1e-9, 1e-4, 1e-3, 0.1, 1.0)) | st.floats(0, 1))
def test_what_is_worth_proving_is_good_enough(cost: float, gap: float) -> None:
    """Whatever rounding does to cost (1 - gap)."""
    options = SolveOptions(rel_gap=gap, abs_gap=0.0)
    search = SearchContext(
        synthetic_problem(1, 1, 2), get_backend("highs"), AllocationSearchOptions(), options, math.inf
    )
    search.cost = cost
    assert search.worth_proving() <= cost
    assert search.good_enough(cost, search.worth_proving())


def test_a_slack_up_to_what_is_worth_proving_ends_the_search() -> None:
    """Where coverings hold nothing better, whatever rounding does to bound + (cost (1 - gap) - bound)."""
    problem = synthetic_problem(max_nodes=2, phases=3, configurations=5, regions=2, supply="scarce", nodes=20)
    backend, every_step = get_backend("highs"), AllocationSearchOptions(limits=SearchLimits(direct_columns=0))
    search = SearchContext(problem, backend, every_step, SolveOptions(rel_gap=1e-3), math.inf)
    search.reduce(None)
    search.columns = Columns.of(search.small)
    root = raise_bound(search, _root_bound(search), None).root
    least, rng = search.bound, np.random.default_rng(0)

    def nothing(*_: object) -> Choice:
        return Choice(None, math.inf)

    for share in rng.uniform(1.001, 1.003, 200).tolist():
        search.bound, search.cost, search.allocation = least, least * share, Allocation.of({})
        choose_near_coverings(search, root, 10**6, nothing)
        assert search.done(), search.cost


def test_a_cost_below_what_is_proven_is_an_error() -> None:
    """Costs are exact: a false bound must not pass for a proof, whichever of both comes first."""
    problem = synthetic_problem(max_nodes=2, phases=2, configurations=4, regions=1, nodes=10)
    best = solve_allocation(problem, options=EXACT)
    words = "was proven to be the least: a bound of coralopt or of back end 'highs' is wrong"
    search = SearchContext(problem, get_backend("highs"), AllocationSearchOptions(), EXACT, math.inf)
    search.raise_bound(1.001 * best.cost_usd_h)
    with pytest.raises(SolverError, match=words):
        search.offer(best.allocation)
    search = SearchContext(problem, get_backend("highs"), AllocationSearchOptions(), EXACT, math.inf)
    assert search.offer(best.allocation)
    search.raise_bound(best.cost_usd_h * (1 + 1e-9))
    with pytest.raises(SolverError, match=words):
        search.raise_bound(1.001 * best.cost_usd_h)
    free = SearchContext(problem, get_backend("highs"), AllocationSearchOptions(), EXACT, math.inf)
    free.cost = 0.0
    free.raise_bound(1e-9)
    assert free.bound == 0.0


def test_what_the_bound_rests_on() -> None:
    """The back end's word where it raised the bound; what it said without raising it counts for nothing."""
    problem = synthetic_problem(max_nodes=2, phases=3, configurations=5, regions=2, supply="scarce", nodes=20)
    whole = solve_allocation(problem, options=EXACT, search=AllocationSearchOptions(reductions=False))
    assert whole.proof is whole.solutions[-1].proof
    search = SearchContext(problem, get_backend("highs"), AllocationSearchOptions(), EXACT, math.inf)
    search.cost = 10.0
    steps = ((5.0, Proof.OWN_BOUND), (7.0, Proof.SOLVER), (6.0, Proof.OWN_BOUND), (7.0, Proof.OWN_BOUND))
    for bound, proof in steps:
        search.raise_bound(bound, proof)
    assert (search.proven, search.proof) == (7.0, Proof.SOLVER)
    # The next pass begins from that, and proves more, or as much, by itself.
    search = search.again(search.near)
    assert (search.proven, search.proof) == (7.0, Proof.SOLVER)
    search.cost = 10.0
    search.raise_bound(8.0)
    assert (search.proven, search.proof) == (8.0, Proof.OWN_BOUND)


@pytest.mark.parametrize("step", ["AT_ONCE", "FAR"])
def test_columns_that_the_back_end_is_tried_on_go_through_the_other_steps(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where few columns have no time at first, and where all are tried before the trees, the optimum stays."""
    problem = synthetic_problem(max_nodes=2, phases=3, configurations=5, regions=2, supply="scarce", nodes=20)
    options = SolveOptions(rel_gap=1e-4, time_limit=60.0)
    truth = solve_allocation(problem, options=options, search=AllocationSearchOptions(reductions=False))
    place, value = {"AT_ONCE": (strategy_module, 0.0), "FAR": (context_module, -1.0)}[step]
    monkeypatch.setattr(place, step, value)
    few = SearchLimits(direct_columns=10**6) if step == "AT_ONCE" else SearchLimits(direct_columns=0, annealings=0)
    result = solve_allocation(problem, options=options, search=AllocationSearchOptions(limits=few))
    assert result.cost_usd_h == pytest.approx(truth.cost_usd_h, rel=1e-4)
    assert result.bound_usd_h <= truth.cost_usd_h * (1 + 1e-9)
    assert result.gap <= 1e-4 * (1 + 1e-9)
    assert "decomposition" in result.seconds


@settings(max_examples=60, deadline=None)
@given(problem=allocation_problems())
def test_same_cost_without_reductions(problem: AllocationProblem) -> None:
    """``reductions=False`` is the reference that users compare with."""
    costs = []
    for reductions in (True, False):
        try:
            costs.append(
                solve_allocation(
                    problem, options=EXACT, search=AllocationSearchOptions(reductions=reductions)
                ).cost_usd_h
            )
        except InfeasibleError:
            costs.append(float("inf"))
    assert costs[0] == pytest.approx(costs[1], abs=1e-6)


@settings(max_examples=150, deadline=None)
@given(problem=allocation_problems(max_templates=5), seed=st.integers(0, 2**32 - 1))
def test_bounds_hold_at_any_prices(problem: AllocationProblem, seed: int) -> None:
    """Both bounds and every forced cost hold at the relaxation's prices and at arbitrary ones, so an early stop is safe."""
    small = reduce_problem(problem).problem
    truth = best_by_enumeration(small)
    if truth is None or not (small.demand > 0).any():
        return
    columns = Columns.of(small)
    relaxation = solve_relaxation(small, columns, "highs")
    rng = np.random.default_rng(seed)
    wild = replace(
        relaxation,
        demand_duals=relaxation.demand_duals * rng.uniform(0, 2, small.demand.shape),
        capacity_prices=relaxation.capacity_prices + rng.uniform(0, 3, small.price.shape),
    )
    assert relaxation.objective <= float(truth) * (1 + 1e-7)
    for prices in (relaxation, wild):
        reduced = reduced_costs(small, columns, prices.demand_duals, prices.capacity_prices)
        dual = dual_bound(small, columns, prices, reduced)
        lagrangian = lagrangian_bound(small, columns, prices.capacity_prices, grid=97)
        assert within(dual, truth)
        assert within(lagrangian.bound, truth)
        forced = np.maximum(lagrangian.column_bounds, dual + np.maximum(reduced, 0.0))
        for k in range(len(columns)):
            with_it = cost_with(small, columns, k)
            assert with_it is None or within(float(forced[k]), with_it)


def cost_with(problem: AllocationProblem, columns: Columns, k: int) -> Fraction | None:
    """Least cost over allocations with an instance of column k, by taking it out and paying for it."""
    t, r = int(columns.template[k]), int(columns.region[k])
    running = np.zeros((len(problem.throughput), len(problem.region_names)), dtype=np.int64)
    running = running if problem.running is None else problem.running.copy()
    left = problem.availability.copy()
    demand = problem.demand.copy()
    cost = Fraction(0)
    # A new instance of a pair is an instance on top of all that run.
    for _ in range(1 if columns.kept[k] else int(running[t, r]) + 1):
        left[r] -= problem.usage[t]
        if (left < 0).any():
            return None
        demand[problem.phase[t]] = max(0.0, demand[problem.phase[t]] - problem.throughput[t])
        price = sum(
            (int(n) * Fraction(float(problem.price[r, c])) for c, n in enumerate(problem.usage[t]) if n), Fraction(0)
        )
        cost += price if running[t, r] > 0 else price * (1 + Fraction(float(problem.penalty)))
        running[t, r] = max(0, running[t, r] - 1)
    rest = best_by_enumeration(replace(problem, availability=left, demand=demand, running=running))
    return None if rest is None else cost + rest


@settings(max_examples=100, deadline=None)
@given(problem=allocation_problems(max_templates=5))
def test_rounding_is_feasible_or_nothing(problem: AllocationProblem) -> None:
    """The first allocation may be the answer when time is short, so it must pass the exact check."""
    small = reduce_problem(problem).problem
    if best_by_enumeration(small) is None or not (small.demand > 0).any():
        return
    columns = Columns.of(small)
    relaxation = solve_relaxation(small, columns, "highs")
    reduced = reduced_costs(small, columns, relaxation.demand_duals, relaxation.capacity_prices)
    answer = rounded(small, columns, relaxation.x, reduced, relaxation.demand_duals)
    assert answer is None or small.check(answer).feasible


@settings(max_examples=80, deadline=None)
@given(problem=allocation_problems(), floor=st.booleans())
def test_parts_say_the_same_as_the_whole(problem: AllocationProblem, floor: bool) -> None:
    """The row ``objective >= floor`` is valid for any lower bound, the optimum itself included."""
    truth = best_by_enumeration(problem)
    everything = np.arange(len(problem.throughput))
    part = Part.of(problem, everything, floor=float(truth) if floor and truth is not None else 0.0)
    found = solve(part, "highs", "split", EXACT)
    assert (found.answer is None) == (truth is None)
    if truth is not None:
        assert found.objective == pytest.approx(float(truth), abs=1e-5)


def tie() -> AllocationProblem:
    # 3 x 0.1 misses the demand by 3e-8 of it: feasible for every solver, wrong by more than rounded figures may be.
    return AllocationProblem(
        usage=np.array([[1], [2]]),
        throughput=np.array([0.1, 0.15]),
        phase=np.array([0, 0]),
        demand=np.array([0.3 * (1 + 3e-8)]),
        availability=np.array([[6]]),
        price=np.array([[1.0]]),
        running=None,
        penalty=0.0,
        phase_names=("m/decode",),
        region_names=("r",),
        configuration_names=("c",),
    )


@pytest.mark.parametrize("reductions", [True, False])
def test_answers_do_not_live_on_tolerances(reductions: bool) -> None:
    """A demand missed by tolerances of solvers is missed: the answer must hold to a billionth, the bound stays."""
    problem = tie()
    assert Part.of(problem, np.arange(2)).check(Allocation.of({(0, 0): 3})).feasible
    assert not problem.check(Allocation.of({(0, 0): 3})).feasible
    assert not Part.of(problem, np.arange(2)).check(Allocation.of({(0, 0): 2})).feasible
    result = solve_allocation(problem, options=EXACT, search=AllocationSearchOptions(reductions=reductions))
    assert problem.check(result.allocation).feasible
    assert result.cost_usd_h == 4.0
    assert result.bound_usd_h <= 4.0
    assert TOLERANCE < 1e-5


@pytest.mark.parametrize("configurations", [6, pytest.param(8, marks=pytest.mark.slow)])
def test_large_problem_is_closed_and_repeatable(configurations: int) -> None:
    """A thousand times the tiny ones: proven within the default gap, and byte for byte the same when run again."""
    problem = synthetic_problem(
        max_nodes=3, phases=4, configurations=configurations, regions=2, supply="ample", nodes=60
    )
    options = SolveOptions(rel_gap=5e-3)
    first, second = (
        solve_allocation(
            problem, options=options, search=AllocationSearchOptions(limits=SearchLimits(most_columns=600))
        )
        for _ in range(2)
    )
    assert first.gap <= 5e-3
    assert first.bound_usd_h <= first.cost_usd_h
    for name in ("template", "region", "count"):
        assert getattr(first.allocation, name).tobytes() == getattr(second.allocation, name).tobytes()
    assert (first.cost_usd_h, first.bound_usd_h) == (second.cost_usd_h, second.bound_usd_h)


def test_no_time_still_gives_an_allocation() -> None:
    """A platform team that asks for an answer now gets the rounded relaxation with its gap, not an error."""
    problem = synthetic_problem(max_nodes=3, phases=4, configurations=8, regions=2, supply="ample", nodes=60)
    result = solve_allocation(problem, options={"time_limit": 0.0, "rel_gap": 0.0})
    assert problem.check(result.allocation).feasible
    assert 0 < result.gap < 0.5
    assert result.solutions == ()


def test_unknown_options_are_refused() -> None:
    """A misspelt limit must not silently mean none."""
    with pytest.raises(OptionError, match="time_limit"):
        solve_allocation(tie(), options={"time_limt": 1.0})
    with pytest.raises(OptionError, match="splt"):
        solve_allocation(tie(), search=AllocationSearchOptions("splt"))


@pytest.mark.parametrize("available", [3, 9])
@pytest.mark.parametrize("formulation", ["split", "paper"])
def test_throughput_is_held_to_a_billionth(formulation: str, available: int) -> None:
    """Three times 0.7 tokens/s serve 2.1, though not in binary fractions; 2.100001 takes four."""
    problem = AllocationProblem(
        usage=np.array([[1]]),
        throughput=np.array([0.7]),
        phase=np.array([0]),
        demand=np.array([2.1]),
        availability=np.array([[available]]),
        price=np.array([[1.0]]),
        running=None,
        penalty=0.0,
        phase_names=("m/decode",),
        region_names=("us",),
        configuration_names=("1xL4",),
    )
    assert solve(problem, "highs", formulation).objective == 3.0
    assert solve_allocation(problem).cost_usd_h == 3.0
    more = replace(problem, demand=np.array([2.100001]), availability=np.array([[9]]))
    assert solve(more, "highs", formulation).objective == 4.0


def test_millions_of_superfluous_instances_are_taken_away_at_once() -> None:
    """Nodes that cost nothing: the relaxation has all of them, of which each was given back by itself, in six minutes."""
    problem = AllocationProblem(
        usage=np.ones((1, 1)),
        throughput=np.array([170.0]),
        phase=np.zeros(1),
        demand=np.array([5.1e8]),
        availability=np.array([[30_000_000], [9_000_000]]),
        price=np.zeros((2, 1)),
        running=None,
        penalty=0.0,
        phase_names=("model/decode",),
        region_names=("here", "there"),
        configuration_names=("1xGPU",),
    )
    small = Columns.of(problem)
    every = np.array([30_000_000.0, 9_000_000.0])
    answer = rounded(problem, small, every, np.zeros(2), np.zeros(1))
    assert answer is not None
    assert answer.count.sum() == 3_000_000


@pytest.mark.parametrize("options", [{"threads": 1}, {"time_limit": 60.0}])
def test_ctrl_c_ahead_of_the_solver_is_ctrl_c(options: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """No seed of the back end has anything to say then, and nothing else is known."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("coralopt.allocation.search.fixing.solve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        solve_allocation(allocation_instance(601), options=options, search=AllocationSearchOptions(reductions=False))


def test_who_loses_a_race_was_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two seeds the second is ended as the first one proves what it says. It says that it was interrupted, maybe with
    all proven, too; the whole search then took that for Ctrl-C."""

    def raced(search: SearchContext, part: Part, options: SolveOptions) -> Solution[Allocation]:
        if options.seed == search.solve_options.seed:
            assert begun.wait(30)
            return solution_of(search, part, options)
        begun.set()
        with pytest.raises(KeyboardInterrupt):
            wait_for(threading.Event())
        solution = solution_of(search, part, options)
        return replace(solution, termination=replace(solution.termination, limit=Limit.INTERRUPTED))

    begun, solution_of = threading.Event(), fixing_module.solution_of
    monkeypatch.setattr(fixing_module, "solution_of", raced)
    monkeypatch.setattr(context_module, "cores", lambda: 2)
    limited = SolveOptions(rel_gap=0.0, time_limit=60.0)
    search = SearchContext(tie(), get_backend("highs"), AllocationSearchOptions(), limited, math.inf)
    search.reduce(None)
    every = np.arange(len(search.small.throughput))
    fixing_module.solve_part(search, search.small, every, limited, [0.0])
    assert {item.termination.limit for item in search.solutions} == {None, Limit.INTERRUPTED}
    assert search.allocation is not None
    assert not search.interrupted
