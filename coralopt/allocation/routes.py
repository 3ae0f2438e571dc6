r"""Routes: the ways that requests of a model may take through its phases, and the pools of capacity that they use.

A *pool* is a model phase in a region, or a model phase wherever it runs. A *route* visits one pool (mixed instances) or two
(prefill here, decode there) and costs what its KV cache costs to send. With f_k >= 0 the share of a model's requests on
route k::

    sum_{tau of phase m, r of the pool} T(tau) nu[tau, r]  >=  T_m sum_{k through the pool} f_k      every pool
    sum_k f_k + sigma  >=  1                                                                        every model with routes
    sum_k (v_k - V) f_k  >=  0                                                                      every mean that must be V
    cost  sum_k (USD/h of all requests on k) f_k

A phase that no route names is one pool with the share 1: its row is the paper's demand row. A model whose KV cache goes
anywhere for nothing therefore needs no routes, and one whose phases may be bypassed (mixed instances) has routes through
pools of all regions.

A *mean* is one over the requests of the model, whatever share of them is served: their quality where routes lead through
variants of the model, or the share of one variant.

At given instance counts the best shares are a flow of least cost. :func:`least_flow` finds it in exact fractions by
shortest augmenting paths, and with means, which are no flow, by a linear programme (:mod:`coralopt.allocation.exact`);
nothing else in this package does it that way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from coralopt.allocation.exact import maximise
from coralopt.errors import SolverError
from coralopt.types import Bools, Floats, Ints

#: A model phase in a region, or in all of them.
Pool = tuple[int, int | None]


@dataclass(frozen=True)
class Route:
    """One way of a request.

    Attributes:
        pools: One or two pools, in the order of the visit.
        usd_h: What it costs to send all requests of the model this way, beside the instances, USD/h.
    """

    pools: tuple[Pool, ...]
    usd_h: float = 0.0


@dataclass(frozen=True)
class RouteMean:
    """A mean over the requests of a model that must be reached.

    Attributes:
        name: What messages and models call it.
        values: v_k, that of a request on every route.
        least: V.
    """

    name: str
    values: tuple[float, ...]
    least: float

    def terms(self) -> list[Fraction]:
        """v_k - V, exactly."""
        return [Fraction(float(value)) - Fraction(float(self.least)) for value in self.values]


@dataclass(frozen=True)
class ModelRoutes:
    """All ways of the requests of one model.

    Attributes:
        model: Its name, for messages.
        routes: At least one.
        means: Over its requests.
    """

    model: str
    routes: tuple[Route, ...]
    means: tuple[RouteMean, ...] = ()

    @property
    def phases(self) -> tuple[int, ...]:
        """Model phases that some route visits, ascending."""
        return tuple(sorted({phase for route in self.routes for phase, _ in route.pools}))

    @property
    def necessary(self) -> tuple[int, ...]:
        """Model phases that every route visits."""
        return tuple(p for p in self.phases if all(p in dict(route.pools) for route in self.routes))

    @property
    def has_choice(self) -> bool:
        """Whether requests choose between variants: other prefill phases, or a mean that must be reached."""
        return bool(self.means) or len({r.pools[0][0] for r in self.routes if len(r.pools) == 2}) > 1

    def scaled(self, factor: float) -> ModelRoutes:
        """For so many times as many requests."""
        return replace(self, routes=tuple(replace(route, usd_h=route.usd_h * factor) for route in self.routes))


@dataclass(frozen=True, eq=False)
class Pools:
    """The pools of a problem, ordered by phase, then region.

    Attributes:
        phase: int64 (Q,).
        region: int64 (Q,), -1 for all regions.
        need: float64 (Q,), tokens/s that the pool must give whatever the routes; 0 where routes decide.
        first: int64 (P,), the first pool of every phase.
        split: bool (P,), whether the phase has a pool a region.
    """

    phase: Ints
    region: Ints
    need: Floats
    first: Ints
    split: Bools

    def __len__(self) -> int:
        return len(self.phase)

    def of(self, phase: npt.ArrayLike, region: npt.ArrayLike) -> Ints:
        """int64: the pool that an instance of a phase in a region belongs to."""
        place = np.asarray(phase, dtype=np.int64)
        return np.asarray(self.first[place] + np.where(self.split[place], region, 0), dtype=np.int64)

    def at(self, pool: Pool) -> int:
        """The number of a pool."""
        return int(self.of(pool[0], -1 if pool[1] is None else pool[1]))

    def of_phase(self, phase: int, regions: int) -> range:
        """All pools of a phase."""
        first = int(self.first[phase])
        return range(first, first + (regions if self.split[phase] else 1))


def pools_of(routes: Sequence[ModelRoutes], demand: Floats, regions: int) -> Pools:
    """The pools: one a region for phases that some route visits in a region, else one a phase."""
    split, routed = np.zeros(len(demand), dtype=np.bool_), np.zeros(len(demand), dtype=np.bool_)
    for model in routes:
        for route in model.routes:
            for phase, region in route.pools:
                routed[phase] = True
                split[phase] |= region is not None
    sizes = np.where(split, regions, 1)
    phases = np.repeat(np.arange(len(demand)), sizes)
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    places = np.where(split[phases], np.arange(len(phases)) - first[phases], -1)
    return Pools(phases, places, np.where(routed[phases], 0.0, demand[phases]), first, split)


def refuse_bad_routes(
    routes: Sequence[ModelRoutes],
    demand: Floats,
    regions: int,
    together: Sequence[tuple[int, ...]],
    surviving: set[int],
) -> None:
    """Routes that do not fit the problem.

    Args:
        routes: Of all models.
        demand: float64 (P,), tokens/s.
        regions: How many there are.
        together: Phases whose demand may go unmet, in equal shares.
        surviving: Phases of which some tokens/s must survive the loss of a region.

    Raises:
        SolverError: Says which model and why.
    """
    owner: dict[int, str] = {}
    for model in routes:
        what, places = f"routes of {model.model}", dict[Pool, tuple[int, int]]()
        if not model.routes:
            raise SolverError(f"{what}: there are none")
        for route in model.routes:
            if not np.isfinite(route.usd_h) or route.usd_h < 0:
                raise SolverError(f"{what}: a route costs {route.usd_h} USD/h; it must be a number of at least 0")
            if len(route.pools) not in (1, 2) or len({phase for phase, _ in route.pools}) < len(route.pools):
                raise SolverError(f"{what}: a route visits {route.pools}; it must be one or two phases")
            for position, pool in enumerate(route.pools):
                phase, region = pool
                if not 0 <= phase < len(demand) or not (region is None or 0 <= region < regions):
                    raise SolverError(f"{what}: there is no pool {pool}")
                if owner.setdefault(phase, model.model) != model.model:
                    raise SolverError(f"{what}: phase {phase} is one of {owner[phase]}'s, too")
                if demand[phase] <= 0:
                    raise SolverError(f"{what}: phase {phase} has no demand, so no route may visit it")
                if places.setdefault(pool, (position, len(route.pools))) != (position, len(route.pools)):
                    raise SolverError(f"{what}: pool {pool} stands at two places of routes")
        for mean in model.means:
            if len(mean.values) != len(model.routes) or not np.isfinite([*mean.values, mean.least]).all():
                raise SolverError(f"{what}: {mean.name} needs a number for each of its {len(model.routes)} routes")
        if model.means and _least_mean_flow(model, None, Fraction(1), None).unmet > 0:
            names = ", ".join(f"{mean.name} of {mean.least:g}" for mean in model.means)
            raise SolverError(f"{what}: no shares of requests on them reach {names}")
        for phase in model.phases:
            if len({region is None for p, region in places if p == phase}) > 1:
                raise SolverError(f"{what}: phase {phase} is visited in one region and in all of them")
        if (set(model.phases) - set(model.necessary)) & surviving:
            raise SolverError(f"{what}: no share of a phase that requests may go around can be asked to survive")
        for group in together:
            if set(group) & set(model.phases) and not set(model.phases) <= set(group):
                raise SolverError(f"{what}: its phases must go unmet together, or not at all")


@dataclass(frozen=True)
class Flow:
    """How the requests of a model go.

    Attributes:
        shares: Share of all requests on every route.
        unmet: Share that goes nowhere.
        usd_h: What the shares cost.
    """

    shares: tuple[Fraction, ...]
    unmet: Fraction
    usd_h: Fraction


@dataclass(frozen=True)
class _Node:
    side: str
    pool: Pool = (0, None)


def least_flow(
    model: ModelRoutes,
    capacity: Mapping[Pool, Fraction],
    most: Fraction = Fraction(1),
    unmet_usd_h: Fraction | None = None,
) -> Flow:
    """The flow of least cost, exactly: as many requests as possible, or as are worth it where unmet demand has a price.

    Args:
        model: The routes.
        capacity: Share of all requests that each pool can take; none where it is missing.
        most: Largest share that may be served.
        unmet_usd_h: Price of serving nothing, USD/h; ``None`` when as much as possible is served whatever it costs.
    """
    if model.means:
        return _least_mean_flow(model, capacity, most, unmet_usd_h)
    source, sink = _Node("source"), _Node("sink")
    heads: list[_Node] = []
    tails: list[_Node] = []
    room: list[Fraction] = []
    cost: list[Fraction] = []

    def arc(tail: _Node, head: _Node, size: Fraction, price: Fraction) -> int:
        for a, b, left, each in ((tail, head, size, price), (head, tail, Fraction(0), -price)):
            tails.append(a)
            heads.append(b)
            room.append(left)
            cost.append(each)
        return len(room) - 2

    nothing = Fraction(0)
    pools = dict.fromkeys(pool for route in model.routes for pool in route.pools)
    for pool in pools:
        arc(_Node("in", pool), _Node("out", pool), capacity.get(pool, nothing), nothing)
    for pool in dict.fromkeys(route.pools[0] for route in model.routes):
        arc(source, _Node("in", pool), most, nothing)
    for pool in dict.fromkeys(route.pools[1] for route in model.routes if len(route.pools) == 2):
        arc(_Node("out", pool), sink, most, nothing)
    own = []
    for route in model.routes:
        head = sink if len(route.pools) == 1 else _Node("in", route.pools[1])
        own.append(arc(_Node("out", route.pools[0]), head, most, Fraction(route.usd_h)))
    served = nothing
    while served < most:
        # Bellman-Ford: arcs back have negative cost, cycles have not.
        reach: dict[_Node, tuple[Fraction, int]] = {source: (nothing, -1)}
        changed = True
        while changed:
            changed = False
            for k, left in enumerate(room):
                if left > 0 and tails[k] in reach:
                    length = reach[tails[k]][0] + cost[k]
                    if heads[k] not in reach or length < reach[heads[k]][0]:
                        reach[heads[k]] = (length, k)
                        changed = True
        if sink not in reach or (unmet_usd_h is not None and reach[sink][0] >= unmet_usd_h):
            break
        path, node = [], sink
        while node != source:
            path.append(reach[node][1])
            node = tails[path[-1]]
        size = min([most - served, *(room[k] for k in path)])
        for k in path:
            room[k] -= size
            room[k ^ 1] += size
        served += size
    shares = tuple(room[k + 1] for k in own)
    usd_h = sum((s * Fraction(route.usd_h) for s, route in zip(shares, model.routes, strict=True)), nothing)
    return Flow(shares, 1 - served, usd_h)


def _least_mean_flow(
    model: ModelRoutes, capacity: Mapping[Pool, Fraction] | None, most: Fraction, unmet_usd_h: Fraction | None
) -> Flow:
    """The same with means; capacity ``None`` is without limits."""
    costs = [Fraction(route.usd_h) for route in model.routes]
    rows = [({k: -term for k, term in enumerate(mean.terms())}, Fraction(0)) for mean in model.means]
    if capacity is not None:
        for pool in dict.fromkeys(pool for route in model.routes for pool in route.pools):
            through = {k: Fraction(1) for k, route in enumerate(model.routes) if pool in route.pools}
            rows.append((through, capacity.get(pool, Fraction(0))))
    rows.append((dict.fromkeys(range(len(costs)), Fraction(1)), most))
    if unmet_usd_h is None:
        shares = maximise([[Fraction(1)] * len(costs), [-cost for cost in costs]], rows)
    else:
        shares = maximise([[unmet_usd_h - cost for cost in costs]], rows)
    return Flow(
        shares, 1 - sum(shares, Fraction(0)), sum((s * c for s, c in zip(shares, costs, strict=True)), Fraction(0))
    )
