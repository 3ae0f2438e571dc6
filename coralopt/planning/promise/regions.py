r"""What groups of a model cost at least, given that requests pay where they change the region.

Each phase by itself is cheapest in a region of its own, but KV caches that cross regions cost more than nodes do. Let n_kr
be the instances of the k-th group in region r, x_q the parts of the demand on route q, u_k the most parts that an instance
of the group can hold in any number of them, m_k their number, and p_kr the least price of one::

    minimise    sum_kr p_kr n_kr + sum_q (USD/h of all requests on q) x_q / PARTS
    subject to  sum_r n_kr = m_k                                       every group
                sum_{q through the pool} x_q <= sum_{k, r of the pool} u_k n_kr    every pool
                sum_q x_q = PARTS

with n and x of any size: a plan may have the instances of a group in several regions, as groups of their own, and the rest
of its conditions is left out. So no plan with these instances costs less.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from coralopt.allocation import ModelRoutes, Route
from coralopt.planning.promise.capacities import PARTS, Groups, Place
from coralopt.types import Floats

#: The bound is that share of the programme's optimum: its solver's tolerances.
EXACT = 1 - 1e-7


@dataclass(frozen=True, eq=False)
class RegionCosts:
    """Costs of groups of one model whose requests have routes.

    Attributes:
        groups: Groups of every model phase.
        price: float64 (J, R) a model phase, USD/h of a group in a region at least; infinite where it cannot stand there.
        routes: Ways of the model's requests.
    """

    groups: Sequence[Groups]
    price: Sequence[Floats]
    routes: ModelRoutes
    _known: dict[tuple[Place, ...], float] = field(default_factory=dict)

    def least(self, places: tuple[Place, ...]) -> float:
        """USD/h that no plan with the instances of these groups costs less than; infinite where none has them."""
        if places not in self._known:
            pair = self._of_two(places)
            self._known[places] = self._optimum(places) if pair is None else pair
        return self._known[places]

    def prices_with(self, places: tuple[Place, ...]) -> tuple[float, dict[int, Floats]]:
        """USD/h to add, and prices of all groups by phase, float64 (J,): no plan costs less than the sum of its groups'.

        Let parts cost lambda_pr USD/h in pool (p, r), and theta be the least that a part pays on any route. By weak duality
        a plan costs ``PARTS theta + sum_j min_r (p_jr - most_j lambda_r)`` at least. The lambda are those that give some
        groups their own least cost: what they cost more than with each phase in its cheapest region is what each phase pays
        outside of it, as far as it is dearer there, and the other phase the rest.
        """
        phases = tuple(sorted({p for p, _ in places}))
        ways = self._ways(phases)
        raw = {p: np.min(self.price[p], axis=1) for p in phases}
        more = self.least(places) - sum(float(raw[p][j]) for p, j in places)
        of_first = np.sum([self.price[p][j] for p, j in places if p == phases[0]], axis=0)
        is_apart = len(phases) != 2 or any(r is None for way in ways for _, r in way.pools)
        if is_apart or not 0 < more < np.inf or of_first.min() == np.inf:
            return 0.0, raw
        dearer = np.minimum(of_first - of_first.min(), more)
        parts = {phases[0]: dearer / PARTS, phases[1]: (more - dearer) / PARTS}
        theta = min(way.usd_h / PARTS + sum(float(parts[p][r or 0]) for p, r in way.pools) for way in ways)
        lower = {p: np.min(self.price[p] - self.groups[p].most[:, None] * parts[p], axis=1) for p in phases}
        if any((price < 0).any() for price in lower.values()):
            return 0.0, raw
        return theta * PARTS * EXACT, lower

    def _ways(self, phases: Collection[int]) -> list[Route]:
        return [route for route in self.routes.routes if all(p in phases for p, _ in route.pools)]

    def _of_two(self, places: tuple[Place, ...]) -> float | None:
        """The least cost of one instance for each of two phases, whose requests all take one route; ``None`` for others."""
        ways = self._ways({p for p, _ in places})
        if len(places) != 2 or any(self.groups[p].count[j] > 1 or self.groups[p].most[j] < PARTS for p, j in places):
            return None
        if any({p for p, r in way.pools if r is not None} != {p for p, _ in places} for way in ways):
            return None
        rent = {p: self.price[p][j].tolist() for p, j in places}
        return min((way.usd_h + sum(rent[p][r] for p, r in way.pools) for way in ways), default=np.inf)

    def _optimum(self, places: Sequence[Place]) -> float:
        from scipy.optimize import linprog

        ways = self._ways({p for p, _ in places})
        pools = sorted({pool for way in ways for pool in way.pools}, key=str)
        # Each way to have an instance: price, group, region, parts that it holds.
        options = [
            (float(each[r]), k, r, most)
            for k, (p, j) in enumerate(places)
            for most, each in [self._of_one(p, j)]
            for r in np.flatnonzero(np.isfinite(each)).tolist()
        ]
        count = len(options)
        carried = np.zeros((len(pools), count + len(ways)))
        for row, (p, where) in enumerate(pools):
            carried[row, :count] = [
                -most if places[k][0] == p and where in (None, r) else 0.0 for _, k, r, most in options
            ]
            carried[row, count:] = [float((p, where) in way.pools) for way in ways]
        given = np.zeros((len(places) + 1, count + len(ways)))
        given[[k for _, k, _, _ in options], np.arange(count)] = 1.0
        given[-1, count:] = 1.0
        instances = [float(self.groups[p].count[j]) for p, j in places]
        optimum = linprog(
            [*(price for price, _, _, _ in options), *(way.usd_h / PARTS for way in ways)],
            A_ub=carried,
            b_ub=np.zeros(len(pools)),
            A_eq=given,
            b_eq=[*instances, float(PARTS)],
        )
        if optimum.status == 2:
            return np.inf
        return float(optimum.fun) * EXACT if optimum.status == 0 else 0.0

    def _of_one(self, p: int, j: int) -> tuple[float, Floats]:
        """Most parts that an instance of a group can hold, with so many of them or fewer, and float64 (R,) the price of one.

        Those that run already come first, so a group of fewest instances has the least price of one.
        """
        groups = self.groups[p]
        start = int(np.searchsorted(groups.template, groups.template[j]))
        fewer = slice(start, j + 1)
        most = float((groups.most[fewer] / groups.count[fewer]).max())
        return most, self.price[p][start] / groups.count[start]
