"""How much cheaper could any node set be, of whatever size? A proven bound beyond N_max and rho.

In a pipeline of S stages that reaches T tokens/s, stage s with j layers needs sum_c n_c T_j(c; S) >= T, so its nodes cost
at least T min_c p_c / T_j(c; S) USD/h, whatever their number. Every placement of every node set therefore costs, for one
token/s, at least::

    kappa = min over S = 1..L, l_1 + ... + l_S = L  of  sum_s  min_c  p_c / T_{l_s}(c; S)

The inner sum over layer counts is a shortest path, found exactly by (min, +) products of the stages' tables; S beyond L
cannot be. kappa is reached in the limit by stages of very many nodes, so no better bound on the cost of a token/s exists
without counting nodes. With dual prices mu >= 0 on scarce nodes, p_c + mu_c takes the place of p_c: that is the pricing
problem of a column generation over all node sets of any size, and its master gives a bound on a whole allocation.

Fractions of nodes make that bound weak where a demand needs few nodes. A second bound counts whole ones. Cut the demand D
into G steps and round the tokens/s of every node up to whole steps. The least price of a stage of t steps is then a
covering knapsack over whole nodes, that of an instance of t steps a shortest path over layer splits, and that of all
instances together a covering knapsack again. Rounding up only ever lowers a price, so the result is a bound for every G,
and the finer the better. With duals it stays one (Lagrange); both are computed and the larger is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coralopt.scenario.resolved import ResolvedScenario
from coralopt.solving import MilpMatrix, Reason, solve_matrix
from coralopt.throughput import FIRST, LAST, MIDDLE, ThroughputTables, build_tables, throughput_source
from coralopt.types import Floats

#: Relative reduction for rounding, so that a bound stays one.
_SAFE = 1e-9


@dataclass(frozen=True)
class CheapestToken:
    """The cheapest way to one token/s when nodes can be had in fractions.

    Attributes:
        usd_h: kappa, USD/h for one token/s; infinite when no pipeline exists.
        stages: Layers and configuration of every stage.
    """

    usd_h: float
    stages: tuple[tuple[int, int], ...]

    def usage(self, values: Floats) -> Floats:
        """float64 (C,), nodes of each configuration behind one token/s; ``values`` as below."""
        count = len(self.stages)
        nodes = np.zeros(values.shape[2])
        for position, (layers, c) in enumerate(self.stages):
            role = FIRST if position == 0 else LAST if position == count - 1 else MIDDLE
            nodes[c] += 1 / values[count - 1, role, c, layers]
        return nodes


def unlimited_tables(scenario: ResolvedScenario) -> tuple[ThroughputTables, ...]:
    """Throughput tables for every stage count up to the number of layers, as node sets of any size may have."""
    source = throughput_source(scenario.throughput_source)
    return tuple(
        build_tables(source, phase, scenario.configurations, phase.model.layers) for phase in scenario.model_phases
    )


def cheapest_token(values: Floats, price_usd_h: Floats) -> CheapestToken:
    """kappa of one model phase at these prices.

    Args:
        values: float64 (S, 3, C, L + 1), tokens/s of one node, for S up to the number of stages to be covered.
        price_usd_h: float64 (C,), USD per node-hour; infinite where a configuration cannot be had.
    """
    best = CheapestToken(math.inf, ())
    layers = values.shape[3] - 1
    usable = np.isfinite(price_usd_h)
    for count in range(1, min(values.shape[0], layers) + 1):
        with np.errstate(divide="ignore", invalid="ignore"):
            each = np.where(
                (values[count - 1] > 0) & usable[:, None], price_usd_h[:, None] / values[count - 1], math.inf
            )
        cost, kind = each.min(axis=1), each.argmin(axis=1)
        if count == 1:
            if cost[FIRST, layers] < best.usd_h:
                best = CheapestToken(float(cost[FIRST, layers]), ((layers, int(kind[FIRST, layers])),))
            continue
        if not (np.isfinite(cost[FIRST]).any() and np.isfinite(cost[LAST]).any()):
            continue
        inner = _power(cost[MIDDLE], count - 2)
        total = _product(_product(cost[FIRST], inner), cost[LAST])[layers]
        if total < best.usd_h:
            best = CheapestToken(float(total), _split(cost, kind, count, layers))
    return best


def _product(left: Floats, right: Floats) -> Floats:
    """(min, +) product: out[l] = min over j of left[j] + right[l - j]."""
    size = len(left)
    reversed_right = np.concatenate([right[::-1], np.full(size - 1, math.inf)])
    windows = np.lib.stride_tricks.sliding_window_view(reversed_right, size)[::-1]
    return np.asarray((left[None, :] + windows).min(axis=1))


def _power(table: Floats, times: int) -> Floats:
    result = np.full(len(table), math.inf)
    result[0] = 0.0
    while times:
        if times & 1:
            result = _product(result, table)
        table, times = _product(table, table), times >> 1
    return result


def _split(cost: Floats, kind: npt.NDArray[np.intp], count: int, layers: int) -> tuple[tuple[int, int], ...]:
    """Layers and configuration of each stage of a cheapest pipeline, by walking back."""
    roles = [FIRST, *[MIDDLE] * (count - 2), LAST]
    ahead = [np.full(layers + 1, math.inf)]
    ahead[0][0] = 0.0
    for role in roles:
        ahead.append(_product(ahead[-1], cost[role]))
    stages: list[tuple[int, int]] = []
    left = layers
    for position in range(count - 1, -1, -1):
        options = ahead[position][: left + 1][::-1] + cost[roles[position], : left + 1]
        held = int(options.argmin())
        stages.append((held, int(kind[roles[position], held])))
        left -= held
    return tuple(reversed(stages))


def whole_nodes_bound(
    values: Floats, price_usd_h: Floats, demand_tokens_s: float, grid: int = 1000
) -> tuple[Floats, Floats]:
    """Least price of one instance and of all instances, by steps of the demand, counting whole nodes.

    Args:
        values: float64 (S, 3, C, L + 1), tokens/s of one node, for S up to L.
        price_usd_h: float64 (R, C), USD per node-hour; infinite where a configuration cannot be had.
        demand_tokens_s: D, positive.
        grid: G, steps of the demand.

    Returns:
        float64 (G + 1,) each, USD/h: lower bounds on the price of one instance, and of any number of instances, that serve
        more than t - 1 steps of D / G tokens/s.
    """
    from coralopt.templates import certificate_kernels as kernels

    layers = values.shape[3] - 1
    one = np.full(grid + 1, math.inf)
    one[0] = 0.0
    steps = np.minimum(np.ceil(values / (demand_tokens_s / grid) * (1 - 1e-12)), grid).astype(np.int64)
    for price in price_usd_h:
        usable = np.isfinite(price)
        if not usable.any():
            continue
        cheapest = float(price[usable].min())
        for count in range(1, min(values.shape[0], layers) + 1):
            # Each stage needs a node; with prices that can be 0 nothing may be skipped.
            if cheapest > 0 and count * cheapest >= one[1:].max():
                break
            roles = [FIRST] if count == 1 else [FIRST, LAST] if count == 2 else [FIRST, MIDDLE, LAST]
            tables = {}
            for role in roles:
                tables[role] = np.empty((layers + 1, grid + 1))
                kernels.cover_costs(np.ascontiguousarray(steps[count - 1, role]), price, grid, tables[role])
            if count == 1:
                one[1:] = np.minimum(one[1:], tables[FIRST][layers, 1:])
            else:
                middle = tables.get(MIDDLE, tables[FIRST])
                kernels.split_layers(tables[FIRST], middle, tables[LAST], count - 2, one)
    every = np.empty(grid + 1)
    # More steps never cost less: what serves t also serves t - 1.
    one = np.minimum.accumulate(one[::-1])[::-1]
    kernels.cover_demand(one, every)
    return one, every


@dataclass(frozen=True)
class AllocationCertificate:
    """A bound on the cost of any allocation from any library, of node sets of any size.

    Attributes:
        bound_usd_h: No allocation that meets the demands within the availability costs less, USD/h, initialization
            penalty included where nothing runs yet.
        fractional_usd_h: The part of it that the column generation alone proves, with nodes in fractions, USD/h.
        phase_usd_h: The least cost of each model phase by itself, whole nodes counted, at prices with duals, USD/h.
        rounds: Rounds of the column generation.
        columns: Columns made.
        feasible: Whether the demands can be met at all with nodes in fractions.
    """

    bound_usd_h: float
    fractional_usd_h: float
    phase_usd_h: tuple[float, ...]
    rounds: int
    columns: int
    feasible: bool


def allocation_certificate(
    scenario: ResolvedScenario,
    tables: Sequence[ThroughputTables] | None = None,
    *,
    tolerance: float = 1e-6,
    grid: int = 1000,
    on_round: Callable[[int, float], None] | None = None,
) -> AllocationCertificate:
    """Bound the cost of any allocation from below by column generation over all node sets of any size.

    A column serves one model phase in one region with fractions of nodes; pricing is :func:`cheapest_token` at prices plus
    the duals of the capacity rows. The bound is the Lagrangian one, valid whatever the tolerance of the solver.

    Args:
        scenario: Demands, prices, availability.
        tables: From :func:`unlimited_tables`.
        grid: Steps of each demand in the bound that counts whole nodes; 0 leaves that bound out.
        tolerance: Relative distance between master and bound to stop at.
        on_round: Called with (round, bound in USD/h).
    """
    tables = unlimited_tables(scenario) if tables is None else tables
    regions, kinds = scenario.availability.shape
    sold = (scenario.availability > 0) & np.isfinite(scenario.price_usd_h)
    # What runs already pays no penalty; without knowing which of it stays, nobody is charged for it.
    # What starting costs by template is left out of this bound.
    free = bool(scenario.running) or scenario.operations.start is not None
    factor = 1.0 if free else 1.0 + scenario.initialization_penalty
    # Reserved and spot nodes cost less, but the penalty is always on the list price; the cheapest class bounds them all.
    rent = scenario.price_usd_h.copy()
    names = [configuration.name for configuration in scenario.configurations]
    for held in scenario.operations.classes:
        cell = scenario.regions.index(held.region), names.index(held.configuration)
        rent[cell] = min(rent[cell], held.usd_h)
    price = np.where(sold, rent + (factor - 1.0) * scenario.price_usd_h, math.inf)
    demand = np.array([phase.needed_tokens_s for phase in scenario.model_phases])
    supply = np.where(sold, scenario.availability, 0).astype(np.float64)
    known: set[tuple[int, int, bytes]] = set()
    columns: list[tuple[int, int, Floats, float]] = []

    def add(mu: Floats) -> Floats:
        """Columns that are best at these duals; float64 (M,), the least cost of a token/s of each phase."""
        least = np.full(len(demand), math.inf)
        for m, table in enumerate(tables):
            for r in range(regions):
                token = cheapest_token(table.values, price[r] + mu[r])
                if not token.stages:
                    continue
                least[m] = min(least[m], token.usd_h)
                usage = token.usage(table.values)
                if (m, r, usage.tobytes()) not in known:
                    known.add((m, r, usage.tobytes()))
                    columns.append((m, r, usage, float(usage @ np.where(usage > 0, price[r], 0.0))))
        return least

    needed = np.flatnonzero(demand > 0)
    mu = np.zeros((regions, kinds))
    least = add(mu)
    if not np.isfinite(least[needed]).all():
        return AllocationCertificate(math.inf, math.inf, (), 0, len(columns), False)
    bound = float(demand[needed] @ least[needed])
    for rounds in range(1, 201):
        if on_round is not None:
            on_round(rounds, bound)
        objective, mu, short = _master(columns, demand, supply)
        least = add(mu)
        # Lagrangian bound: demand at the prices with duals, less what the duals earn on the supply.
        bound = max(bound, float(demand[needed] @ least[needed]) - float((mu * supply).sum()))
        if short <= 0 and bound >= objective * (1 - tolerance):
            break
    fractional, alone = (
        bound * (1 - _SAFE),
        [float(d * k) if d > 0 else 0.0 for d, k in zip(demand, least, strict=True)],
    )
    if grid > 0:
        for m in (int(position) for position in needed):
            every = whole_nodes_bound(tables[m].values, price + mu, float(demand[m]), grid)[1]
            alone[m] = max(alone[m], float(every[-1]))
        bound = max(bound, sum(alone) - float((mu * supply).sum()))
    return AllocationCertificate(bound * (1 - _SAFE), fractional, tuple(alone), rounds, len(columns), short <= 1e-9)


def _master(
    columns: Sequence[tuple[int, int, Floats, float]], demand: Floats, supply: Floats
) -> tuple[float, Floats, float]:
    """The linear programme over the columns: objective, duals of the capacity rows (R, C), and share of unmet demand."""
    from scipy.sparse import csc_matrix

    regions, kinds = supply.shape
    count = len(demand)
    # Columns in units of the whole demand keep the numbers near 1; a shortfall column a phase keeps it feasible.
    dense = np.zeros((count + regions * kinds, len(columns) + count))
    cost = np.zeros(len(columns) + count)
    for position, (m, r, usage, usd) in enumerate(columns):
        dense[m, position] = 1
        dense[count + r * kinds : count + (r + 1) * kinds, position] = usage * demand[m]
        cost[position] = usd * demand[m]
    dearest = max(float(cost.max()), 1.0)
    for m in range(count):
        dense[m, len(columns) + m] = 1
        cost[len(columns) + m] = 100 * dearest
    matrix = MilpMatrix(
        c=cost,
        offset=0.0,
        a=csc_matrix(dense),
        row_lower=np.concatenate([(demand > 0).astype(np.float64), np.full(regions * kinds, -math.inf)]),
        row_upper=np.concatenate([np.full(count, math.inf), supply.ravel()]),
        lower=np.zeros(len(cost)),
        upper=np.full(len(cost), math.inf),
        integer=np.zeros(len(cost), dtype=bool),
        maximize=False,
        column_names=[f"x{i}" for i in range(len(cost))],
        row_names=[f"r{i}" for i in range(dense.shape[0])],
    )
    result = solve_matrix(matrix, "highs")
    if result.x is None or result.row_duals is None or result.termination.reason is not Reason.OPTIMAL:
        raise ArithmeticError(f"the master of the certificate was not solved: {result.termination.raw}")
    mu = np.maximum(-result.row_duals[count:], 0.0).reshape(regions, kinds)
    return result.objective, mu, float(result.x[len(columns) :].sum())


def phase_bounds(
    scenario: ResolvedScenario, tables: Sequence[ThroughputTables] | None = None
) -> list[tuple[str, float, str]]:
    """(model phase, most tokens/s for one USD/h that any node set of any size can have, region), for each phase.

    At catalog prices without initialization penalty, in the cheapest region.
    """
    tables = unlimited_tables(scenario) if tables is None else tables
    bounds = []
    for phase, table in zip(scenario.model_phases, tables, strict=True):
        best = CheapestToken(math.inf, ())
        where = ""
        for r, region in enumerate(scenario.regions):
            sold = (scenario.availability[r] > 0) & np.isfinite(scenario.price_usd_h[r])
            here = cheapest_token(table.values, np.where(sold, scenario.price_usd_h[r], math.inf))
            if here.usd_h < best.usd_h:
                best, where = here, region
        bounds.append((phase.key, (1 + _SAFE) / best.usd_h if best.stages else 0.0, where))
    return bounds
