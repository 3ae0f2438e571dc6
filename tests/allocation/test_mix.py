"""Convex combinations of coverings, against a linear programme that a library solves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from coralopt.allocation.bounds.coverings import NodeLimit, available
from coralopt.allocation.bounds.decomposition import MasterState, best_prices
from coralopt.allocation.bounds.mix import KnownMaster
from coralopt.allocation.bounds.mix_kernel import Until, cheapest_mix, value_within
from coralopt.allocation.bounds.pricing import PricingProblem
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.testing.allocation_strategies import allocation_problems
from coralopt.types import Floats, Ints


def least_value(cost: Floats, phase: Ints, use: Floats, room: Floats, over: Floats) -> float:
    """By HiGHS; minus infinity where it is unbounded."""
    known, rows = use.shape
    convex = np.zeros((phase.max() + 1, known + rows))
    for k in np.flatnonzero(phase >= 0).tolist():
        convex[phase[k], k] = 1.0
    matrix = np.hstack([use.T, -np.eye(rows)])
    optimum = linprog(np.append(cost, over), A_ub=matrix, b_ub=room, A_eq=convex, b_eq=np.ones(len(convex)))
    assert optimum.status in (0, 3)
    return float(optimum.fun) if optimum.status == 0 else -np.inf


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 10**9), phases=st.integers(1, 5), many=st.integers(0, 40), rows=st.integers(1, 15))
def test_mix_is_the_optimum_of_its_programme(seed: int, phases: int, many: int, rows: int) -> None:
    """Its value, what its prices prove, and its value with one more row; whole numbers make many ties."""
    rng = np.random.default_rng(seed)
    none = bool(rng.integers(2))
    phase = np.append(np.arange(phases), rng.integers(-1 if none else 0, phases, many))
    use = np.where(rng.random((len(phase), rows)) < 0.4, rng.integers(0, 6, (len(phase), rows)), 0.0)
    use[phase < 0] *= -1.0
    room = rng.integers(-1, 6, rows).astype(float)
    cost = rng.integers(1, 9, len(phase)).astype(float) if rng.integers(2) else 100 * rng.random(len(phase))
    over = np.full(rows, 1e3) if rng.integers(2) else 30 * rng.random(rows)
    value = least_value(cost, phase, use, room, over)
    if np.isinf(value):
        return
    mix = cheapest_mix(cost, phase, use, room, over)
    assert mix.value == pytest.approx(value, rel=1e-7, abs=1e-6)
    weight = cost + use @ mix.prices
    proven = sum(weight[phase == m].min() for m in range(phases)) - float(mix.prices @ room)
    assert proven == pytest.approx(value, rel=1e-7, abs=1e-6)
    assert (weight[phase < 0] >= -1e-6).all()
    row = np.where(phase == 0, rng.integers(-3, 4, len(phase)), 0).astype(float)
    most = float(rng.integers(-3, 4))
    more = least_value(cost, phase, np.hstack([use, row[:, None]]), np.append(room, most), np.append(over, 1e3))
    assert value_within(mix, row, most, 1e3, Until(np.inf, 1_000)) == pytest.approx(more, rel=1e-7, abs=1e-6)
    enough = value + 30 * rng.random()
    assert min(enough, more) - 1e-6 <= value_within(mix, row, most, 1e3, Until(enough, 1_000)) <= more + 1e-6
    few = [value_within(mix, row, most, 1e3, Until(np.inf, pivots)) for pivots in range(4)]
    assert few[0] == pytest.approx(value, rel=1e-7, abs=1e-6)
    assert (np.diff([*few, more]) >= -1e-6).all()


@settings(max_examples=200, deadline=None)
@given(problem=allocation_problems(), seed=st.integers(0, 10**6))
def test_a_limit_costs_what_the_master_programme_says(problem: AllocationProblem, seed: int) -> None:
    """The master programme written down anew over the same coverings, with and without the limit."""
    columns, rng = Columns.of(problem), np.random.default_rng(seed)
    if not len(columns) or not len(problem.leading_phases()) or problem.supply:
        return
    every = np.arange(len(columns))
    root = best_prices(PricingProblem(problem, columns, every), MasterState(np.zeros(problem.price.shape)), "highs")
    if np.isinf(root.bound) or np.isinf(root.master):
        return
    known, prices = root.state.coverings, root.state.capacity_prices
    phase, cell = int(rng.choice(problem.leading_phases())), int(rng.integers(problem.price.size))
    there = int(problem.availability.ravel()[cell])
    nodes = int(rng.integers(0, there + 1))
    master = KnownMaster.of(problem, (), known, prices)

    use, cost = np.array([covering.use for covering in known]), np.array([covering.cost for covering in known])
    of_phase = np.array([covering.phase for covering in known])
    order = np.searchsorted(problem.leading_phases(), of_phase)

    def value(limits: tuple[NodeLimit, ...]) -> float:
        counts = [np.where(of_phase == limit.phase, use[:, limit.cells].sum(axis=1), 0.0) for limit in limits]
        rows = np.column_stack([use, *(sign * count for count in counts for sign in (1.0, -1.0))])
        room = np.append(available(problem), [most for limit in limits for most in (limit.most, -limit.least)])
        return least_value(cost, order, rows, room, np.full(len(room), master.dearest))

    most, least = NodeLimit(phase, (cell,), 0, nodes), NodeLimit(phase, (cell,), nodes, there)
    base = value(())
    assert master.mix.value == pytest.approx(base, rel=1e-6, abs=1e-6)
    assert master.at_most(phase, (cell,), nodes) == pytest.approx(value((most,)) - base, rel=1e-6, abs=1e-6)
    assert master.at_least(phase, (cell,), nodes) == pytest.approx(value((least,)) - base, rel=1e-6, abs=1e-6)
    within = KnownMaster.of(problem, (most,), known, prices)
    assert within.mix.value == pytest.approx(value((most,)), rel=1e-6, abs=1e-6)
