r"""What no plan of the family costs less than where models want the same nodes, or take of the same limit.

A bound of each model by itself lets every model have the cheapest nodes, and one over groups does not know that groups of a
model may miss an SLO together. Here every model has one of its combinations c of covers (:mod:`.combinations`), and all of
them have room beside each other. Let n_tr be the instances of template t in region r, m_ct those in a combination, f_q the
share of a model's requests on route q, and u_t the most parts of the demand that an instance holds in any group::

    minimise    sum_tr p_tr n_tr + sum_q (USD/h of all requests on q) f_q
    subject to  sum_{c of the model} y_c = 1                          every model
                sum_r n_tr = sum_c m_ct y_c                           every template
                sum_t (nodes of t) n_tr <= nodes of r                 every configuration and region
                sum_tr (what t takes) n_tr <= limit                   every limit
                PARTS sum_{q through the pool} f_q <= sum u_t n_tr    every pool of the model's routes
                sum_q f_q = 1                                         every model with routes

with y binary and n whole. A combination of the optimum that surely misses is in no plan: its y is 0 from then on. The
programme needs only combinations that may be in a plan below the ceiling: at node prices lambda >= 0 a plan costs
``sum_m L_m(lambda) - lambda A`` at least, L_m the least that a combination of model m costs there, so one that is dearer
than L_m by more than the difference is in none.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from coralopt.allocation import ModelRoutes
from coralopt.planning.promise.capacities import PARTS, PRICE_TOLERANCE, Place
from coralopt.planning.promise.combinations import combinations, least_cover
from coralopt.planning.promise.designs import Designs
from coralopt.planning.promise.regions import EXACT
from coralopt.planning.promise.workers import OutOfTimeError
from coralopt.solving import Backend, MilpMatrix, Reason, SolveOptions, heeded, solve_matrix
from coralopt.types import Floats

#: Programmes, and branch-and-bound nodes of one, at most: measures of work that do not depend on the clock.
MOST_ROUNDS, MOST_NODES = 40, 20_000


@dataclass(frozen=True, eq=False)
class Candidates:
    """Combinations of all models that may be in a plan below a ceiling.

    Attributes:
        model: Whose each is.
        groups: Of each.
        below: No plan with another combination costs less, USD/h.
    """

    model: tuple[str, ...]
    groups: tuple[tuple[Place, ...], ...]
    below: float


def least_in_room(
    designs: Designs,
    price: Sequence[Floats],
    routes: Mapping[str, ModelRoutes],
    node_prices: Floats,
    ceiling: float,
    solver: Backend | str,
) -> float:
    """What no plan of the family costs less than, at most the ceiling, USD/h.

    What does not surely miss is raced as a design.

    Args:
        designs: Those known of all models, their groups, and the room there is.
        price: float64 (J, R) by model phase, USD/h of a group in a region at least; infinite where it cannot stand there.
        routes: Model -> ways of its requests, where these pay for changing the region.
        node_prices: float64 (R, C), USD/h of a node beside its price, at least 0: any are right, good ones leave few
            combinations.
        ceiling: Larger bounds are of no use, USD/h; infinite where no plan is known.
        solver: Name of a MILP back end or a back end itself.
    """
    candidates = candidates_below(designs, price, node_prices, ceiling)
    if not candidates.groups:
        return candidates.below
    matrix, races = _Programme(designs, price, routes, candidates).matrix(), designs.races
    # Presolving takes longer than all the rest.
    options = SolveOptions(rel_gap=PRICE_TOLERANCE, node_limit=MOST_NODES, presolve=False)
    left = {m: races.windows_of[m] + designs.windows(m) + designs.windows_to_settle(m) for m in designs.raced}

    def told(c: int) -> Literal["holds", "misses", "open"]:
        """Of a combination; what holds where no region has room for it is no design."""
        model, groups = candidates.model[c], candidates.groups[c]
        if model not in left:
            return "holds"
        if races.windows_of[model] >= left[model]:
            return "open"
        if designs.surely_miss(model, groups):
            return "misses"
        if designs.hold(model, groups):
            return "holds"
        outcome = designs.settle(model, groups)
        if outcome.holds and np.isfinite(designs.price_of(groups)).any():
            return "holds"
        return "misses" if outcome.misses else "open"

    bound, is_open = -math.inf, False
    with contextlib.suppress(OutOfTimeError):
        for _ in range(MOST_ROUNDS):
            result = heeded(solve_matrix(matrix, solver, options))
            if result.termination.reason is Reason.INFEASIBLE:
                return bound if is_open else candidates.below
            least = -math.inf if result.bound is None else result.bound * EXACT
            # Once something is open the bound stays: what comes next only looks for a plan that holds.
            bound = bound if is_open else max(bound, least)
            if result.x is None or least >= ceiling * (1 - PRICE_TOLERANCE):
                break
            chosen = np.flatnonzero(result.x[: len(candidates.groups)] > 0.5).tolist()
            verdicts = races.workers.map(told, chosen)
            if set(verdicts) == {"holds"}:
                break
            is_open |= "open" in verdicts
            matrix.upper[[c for c, verdict in zip(chosen, verdicts, strict=True) if verdict != "holds"]] = 0.0
    return min(candidates.below, bound)


def candidates_below(designs: Designs, price: Sequence[Floats], node_prices: Floats, ceiling: float) -> Candidates:
    """Combinations that may be in a plan of all models for less than a ceiling, as far as there are not too many."""
    usage = [groups.oracle.templates.usage.astype(np.float64) @ node_prices.T for groups in designs.groups]
    priced = [
        np.min(own + added[groups.template] * groups.count[:, None], axis=1)
        for own, added, groups in zip(price, usage, designs.groups, strict=True)
    ]
    least = {
        model: min(sum(least_cover(designs.groups[p], priced[p]) for p in phases) for phases in ways)
        for model, ways in designs.ways.items()
    }
    floor = sum(least.values()) - float((node_prices * designs.room.nodes).sum())
    if not floor < ceiling or math.isinf(floor):
        return Candidates((), (), min(floor, ceiling))
    below, pairs = ceiling, list[tuple[str, tuple[Place, ...]]]()
    for model, ways in designs.ways.items():
        for phases in ways:
            several, end = combinations(designs, phases, priced, least[model] + ceiling - floor)
            below = min(below, floor + end - least[model])
            pairs += [(model, groups) for _, groups in several if designs.room.fits_somewhere(groups)]
    return Candidates(tuple(model for model, _ in pairs), tuple(groups for _, groups in pairs), below)


@dataclass(frozen=True, eq=False)
class _Programme:
    designs: Designs
    price: Sequence[Floats]
    routes: Mapping[str, ModelRoutes]
    candidates: Candidates

    def matrix(self) -> MilpMatrix:
        """Columns: combinations, instances of every template in every region, routes."""
        from scipy.sparse import coo_array

        rows = _Rows()
        count = len(self.candidates.groups)
        cost, integer = [0.0] * count, [True] * count
        choice: dict[str, dict[int, float]] = {}
        #: (phase, template) -> instances in each combination.
        instances: dict[tuple[int, int], dict[int, float]] = {}
        for c, (model, groups) in enumerate(zip(self.candidates.model, self.candidates.groups, strict=True)):
            choice.setdefault(model, {})[c] = 1.0
            for p, j in groups:
                own = instances.setdefault((p, int(self.designs.groups[p].template[j])), {})
                own[c] = own.get(c, 0.0) + float(self.designs.groups[p].count[j])
        for own in choice.values():
            rows.add(own, 1.0, 1.0)
        held: dict[tuple[int, int | None], dict[int, float]] = {}
        room: dict[tuple[int, int], dict[int, float]] = {}
        limits: dict[int, dict[int, float]] = {}
        for (p, t), own in instances.items():
            most, each = self._of_one(p, t)
            placed = {c: -number for c, number in own.items()}
            for r in np.flatnonzero(np.isfinite(each)).tolist():
                new = len(cost)
                cost.append(float(each[r]))
                integer.append(True)
                placed[new] = 1.0
                for pool in ((p, r), (p, None)):
                    held.setdefault(pool, {})[new] = -most
                for k, nodes in enumerate(self.designs.groups[p].oracle.templates.usage[t].tolist()):
                    if nodes:
                        room.setdefault((r, k), {})[new] = float(nodes)
                for k, taken in enumerate(self.designs.room.taken[p][t, r].tolist()):
                    if taken:
                        limits.setdefault(k, {})[new] = float(taken)
            rows.add(placed, 0.0, 0.0)
        for (r, k), own in room.items():
            rows.add(own, -math.inf, float(self.designs.room.nodes[r, k]))
        for k, own in limits.items():
            rows.add(own, -math.inf, float(self.designs.room.has[0, self.designs.room.nodes.shape[1] + k]))
        for model in choice.keys() & self.routes.keys():
            first = len(cost)
            ways = self.routes[model].routes
            cost += [way.usd_h for way in ways]
            integer += [False] * len(ways)
            rows.add({first + q: 1.0 for q in range(len(ways))}, 1.0, 1.0)
            for where in sorted(set(itertools.chain(*(way.pools for way in ways))), key=str):
                through = {first + q: float(PARTS) for q, way in enumerate(ways) if where in way.pools}
                rows.add({**held.get(where, {}), **through}, -math.inf, 0.0)
        entries = [(i, j, value) for i, terms in enumerate(rows.terms) for j, value in terms.items()]
        row, column, values = (np.array(part) for part in zip(*entries, strict=True))
        size, binary = len(cost), np.arange(len(cost)) < count
        return MilpMatrix(
            np.array(cost),
            0.0,
            coo_array((values, (row, column)), shape=(len(rows.terms), size)).tocsc(),
            np.array(rows.lower),
            np.array(rows.upper),
            np.zeros(size),
            np.where(binary, 1.0, math.inf),
            np.array(integer),
            False,
            [f"x{k}" for k in range(size)],
            [f"row{k}" for k in range(len(rows.terms))],
        )

    def _of_one(self, p: int, t: int) -> tuple[float, Floats]:
        """Most parts that an instance of a template holds in any group, and float64 (R,) the least price of one, USD/h."""
        groups = self.designs.groups[p]
        own = slice(*np.searchsorted(groups.template, [t, t + 1]))
        return float((groups.most[own] / groups.count[own]).max()), np.min(
            self.price[p][own] / groups.count[own][:, None], axis=0
        )


class _Rows:
    def __init__(self) -> None:
        self.terms: list[dict[int, float]] = []
        self.lower: list[float] = []
        self.upper: list[float] = []

    def add(self, terms: dict[int, float], lower: float, upper: float) -> None:
        self.terms.append(terms)
        self.lower.append(lower)
        self.upper.append(upper)
