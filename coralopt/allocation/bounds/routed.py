r"""The least weight that serves all requests of a model with routes, and what one forced instance makes of it.

At given weights of instances every pool q has a covering table W_q(s): the least weight of instances that give it s of G
steps of its phase's demand. The capacity rows being priced, a model costs at least::

    D = min  sum_q W_q(s_q) + (cost of the best flow within the s_q)

W_q is a staircase, so only its edges matter: (largest s at a weight, that weight). A *profile* takes one edge of every
first pool (prefill by region), or one of every second pool (decode by region); instances that serve a request alone are
one more staircase. Pairs of profiles are tried in ascending order of weight, up to a limit. Steps are rounded so that W_q
is a lower bound, see :mod:`coralopt.allocation.bounds.lagrangian`, and so is the flow: requests stay in their region as
far as they can; what must be sent leaves every region at its cheapest price, or enters every region at it, whichever
costs more, at prices closed under detours. In up to three regions that is the flow itself where prices obey the triangle
inequality.

Where a model has variants, prefill of one may go with decode of another here, and means count for nothing: still a bound.
The pools of all variants on one side of the routes in one region have one staircase, which is exact then.

A long staircase is made coarser, each new edge with the largest s and the least weight of those it replaces: still a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.routes import ModelRoutes
from coralopt.types import Floats, Ints

#: Edges of one staircase at first; halved until at most ``PAIRS`` pairs of profiles are left, and no bound where so few are
#: too many.
EDGES, FEWEST = 96, 3
#: Pairs of profiles looked at for one model.
PAIRS = 20_000_000


#: Share of the cost up to which forced instances are told apart.
SPAN = 0.03


def staircases(problem: AllocationProblem, model: ModelRoutes) -> dict[int, tuple[int, ...]]:
    """Name of every staircase of a model and its pools: one a side and region, and -1 for all that serve alone."""
    alone = tuple(sorted({problem.pools.at(route.pools[0]) for route in model.routes if len(route.pools) == 1}))
    together = {pools[0]: pools for side in _sides(problem, model) for pools in side.values()}
    return {**together, **({-1: alone} if alone else {})}


def _sides(problem: AllocationProblem, model: ModelRoutes) -> tuple[dict[int, tuple[int, ...]], ...]:
    """Region -> pools, those of prefill and those of decode; -1 for pools of all regions."""
    sides: tuple[dict[int, tuple[int, ...]], ...] = ({}, {})
    for route in (route for route in model.routes if len(route.pools) == 2):
        for side, pool in zip(sides, map(problem.pools.at, route.pools), strict=True):
            region = int(problem.pools.region[pool])
            side[region] = tuple(sorted({*side.get(region, ()), pool}))
    return sides


@dataclass(frozen=True, eq=False)
class Edges:
    """The staircase of one pool.

    Attributes:
        reach: int64 (n,), largest amount at this weight, in steps, ascending.
        after: int64 (n,), smallest amount that needs it.
        weight: float64 (n,), ascending.
    """

    reach: Ints
    after: Ints
    weight: Floats

    @staticmethod
    def of(table: Floats, limit: float, most: int) -> Edges:
        """Those of a covering table up to a weight, at most ``most`` of them."""
        inside = table[: int(np.searchsorted(table, limit, side="right"))]
        reach = np.flatnonzero(np.append(np.diff(inside) > 0, np.ones(min(1, len(inside)), dtype=np.bool_)))
        if len(reach) > most:
            # Nothing, and all of the demand, stay what they are.
            chosen = np.unique(np.linspace(len(reach) - 2, 1, most - 2).round().astype(np.int64))
            first = np.concatenate([[0, 1], chosen[:-1] + 1, [len(reach) - 1]])
            last = np.concatenate([[0], chosen, [len(reach) - 1]])
            return Edges(reach[last], np.append(0, reach[last][:-1] + 1), inside[reach[first]])
        return Edges(reach, np.append(0, reach[:-1] + 1)[: len(reach)], inside[reach])


@dataclass(frozen=True, eq=False)
class RoutedCover:
    """What serves a model at least weight.

    Attributes:
        least: USD/h; infinite where nothing can serve it, minus infinity where too many regions may to look at them all.
        amounts: Name of a staircase -> steps that it gives in the best combination found.
        alone: Steps that instances serving requests alone give in it.
        limit: USD/h; combinations above this were not looked at.
        edges: Name -> its staircase; -1 for instances that serve alone.
        rests: Name -> float64 (n,), least weight of everything else beside each edge.
        tables: Name -> covering table.
        names: Pool -> name of its staircase.
    """

    least: float
    amounts: Mapping[int, int]
    alone: int
    limit: float
    edges: Mapping[int, Edges]
    rests: Mapping[int, Floats]
    tables: Mapping[int, Floats]
    names: Mapping[int, int]

    def beside(self, pool: int, steps: Ints) -> Floats:
        """float64 (n,): least weight of everything beside one more instance of the pool that covers so many steps."""
        from coralopt.allocation.bounds.kernels import least_beside

        name = self.names.get(pool, -1)
        if name not in self.edges:
            return np.full(len(steps), max(0.0, self.least))
        edges, table = self.edges[name], self.tables[name]
        # Combinations not looked at are above the limit; beyond the last edge anything may stand beside.
        rests = np.where(np.isfinite(self.rests[name]), self.rests[name], self.limit - edges.weight)
        beyond = int(edges.reach[-1]) + 1
        if beyond < len(table):
            return np.asarray(least_beside(steps, np.append(edges.after, beyond), np.append(rests, 0.0), table))
        return np.asarray(least_beside(steps, edges.after, rests, table))


def routed_cover(
    problem: AllocationProblem, model: ModelRoutes, tables: Mapping[int, Floats], unmet: Floats, span: float
) -> RoutedCover:
    """The bound of the module docstring.

    Args:
        problem: The problem.
        model: The model's routes.
        tables: Name -> float64 (G + 1,), covering table of its pools, see :func:`staircases`.
        unmet: float64 (P,), USD/h of serving nothing of each phase, infinite where all must be served.
        span: USD/h above the least weight up to which forced instances are told apart.
    """
    from coralopt.allocation.bounds.kernels import cheapest_pairs

    grid = len(next(iter(tables.values()))) - 1
    unmet_usd_h = float(unmet[list(model.phases)].sum())
    pairs = [route for route in model.routes if len(route.pools) == 2]
    by_side = _sides(problem, model)
    names = {pool: pools[0] for side in by_side for pools in side.values() for pool in pools}
    firsts, seconds = (sorted(pools[0] for pools in side.values()) for side in by_side)
    nodes = sorted({int(problem.pools.region[q]) for q in names})
    prices = np.full((len(nodes), len(nodes)), np.inf)
    upper = unmet_usd_h if -1 not in tables else min(unmet_usd_h, float(tables[-1][grid]))
    for route in pairs:
        a, b = (problem.pools.at(pool) for pool in route.pools)
        place = nodes.index(problem.pools.region[a]), nodes.index(problem.pools.region[b])
        prices[place] = min(prices[place], route.usd_h)
        upper = min(upper, float(tables[names[a]][grid] + tables[names[b]][grid]) + route.usd_h)
    if not np.isfinite(upper):
        return RoutedCover(np.inf, {}, 0, np.inf, {}, {}, tables, names)
    # Nothing is gained by sending at home; detours are allowed, which only makes it cheaper.
    np.fill_diagonal(prices, 0.0)
    for k in range(len(nodes)):
        prices = np.minimum(prices, prices[:, k : k + 1] + prices[k : k + 1, :])
    limit = upper + span + 1e-9 * abs(upper)
    most = EDGES
    while True:
        edges = {q: Edges.of(table, limit, most) for q, table in tables.items()}
        alone = edges.get(-1, Edges(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1)))
        optional = -1 in tables or np.isfinite(unmet_usd_h)
        sides = [_profiles([edges[q] for q in qs], limit, 0 if optional else grid) for qs in (firsts, seconds)]
        sizes = [PAIRS + 1 if side is None else len(side[1]) for side in sides]
        if sizes[0] * sizes[1] * len(alone.weight) <= PAIRS:
            break
        most //= 2
        if most < FEWEST:
            return RoutedCover(-np.inf, {}, 0, np.inf, {}, {}, tables, names)
    profiles = [side for side in sides if side is not None]
    amounts = []
    for (choice, weight), qs in zip(profiles, (firsts, seconds), strict=True):
        amount = np.zeros((len(weight), max(1, len(nodes))), dtype=np.int64)
        for column, q in enumerate(qs):
            amount[:, nodes.index(problem.pools.region[q])] += edges[q].reach[choice[:, column]]
        amounts.append(amount)
    if not len(nodes):
        prices = np.zeros((1, 1))
    best, chosen, totals = cheapest_pairs(
        amounts[0],
        profiles[0][1],
        amounts[1],
        profiles[1][1],
        (alone.reach, alone.weight),
        prices / grid,
        (unmet_usd_h / grid, limit),
        grid,
    )
    rests = {-1: totals[2] - alone.weight} if -1 in tables else {}
    for (choice, _), qs, total in zip(profiles, (firsts, seconds), totals, strict=False):
        for column, q in enumerate(qs):
            least = np.full(len(edges[q].weight), np.inf)
            np.minimum.at(least, choice[:, column], total)
            rests[q] = least - edges[q].weight
    if not np.isfinite(best):
        best, chosen = limit, (-1, -1, 0)
    steps_of = {
        q: int(edges[q].reach[choice[k, column]])
        for (choice, _), qs, k in zip(profiles, (firsts, seconds), chosen[:2], strict=True)
        for column, q in enumerate(qs)
        if k >= 0
    }
    return RoutedCover(float(best), steps_of, int(alone.reach[chosen[2]]), limit, edges, rests, tables, names)


def _profiles(pools: list[Edges], limit: float, needed: int) -> tuple[Ints, Floats] | None:
    """One edge of every pool, all together of at most ``limit`` and at least ``needed`` steps: (n, pools), weight (n,).

    ``None`` where there are too many to look at.
    """
    choice, weight, reach = np.zeros((1, 0), dtype=np.int64), np.zeros(1), np.zeros(1, dtype=np.int64)
    for edges in pools:
        if len(weight) * len(edges.weight) > PAIRS:
            return None
        total = weight[:, None] + edges.weight[None, :]
        k, e = np.nonzero(total <= limit)
        choice = np.concatenate([choice[k], e[:, None]], axis=1)
        weight, reach = total[k, e], reach[k] + edges.reach[e]
    enough = np.flatnonzero(reach >= needed) if pools else np.arange(1)
    order = enough[np.argsort(weight[enough], kind="stable")]
    return choice[order], weight[order]
