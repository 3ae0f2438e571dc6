"""Which instances a better allocation could use, by what they cost at dual prices and by what their nodes waste.

Let an instance of phase m that does not run yet serve t of G steps. With it all costs at least the Lagrangian bound, less
the price of m's demand, plus its own price and the least one of what others serve: G - t steps, and what the rules ask of
them. So in an allocation below a ceiling it costs at most some A(t). What it serves at most follows from its price; and from
its nodes n, as t <= 1 + sum n_c W_c G / D (:func:`coralopt.templates.instance_prices.most_tokens_of_nodes`). With
A(t) <= a + b t for all t, its nodes at prices p waste ``sum n_c (p_c - b W_c G / D) <= a + b``.

Where a model has several ways, its instances cost no more than all of it; where some may go unmet, that is chosen anew
beside them. Where nodes cost nothing, the instance and what others must serve are worth no more than the supply.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from coralopt.templates.certificate import AnySizeBounds, PricedNodes
from coralopt.templates.cheapest_token import SAFE
from coralopt.templates.covers import CoverRules
from coralopt.templates.instance_prices import most_tokens_of_nodes
from coralopt.templates.node_sets import PriceLimits
from coralopt.templates.unmet import UnmetShares, least_beside
from coralopt.types import Floats


class AffordableInstances:
    """Limits on the instances of an allocation that costs less than a ceiling.

    Args:
        bounds: The bounds at any prices.
        priced: Those at some prices.
        ceiling: Cost, USD/h.
    """

    def __init__(self, bounds: AnySizeBounds, priced: PricedNodes, ceiling: float) -> None:
        self._bounds, self._priced, self._ceiling = bounds, priced, ceiling
        self._least = [bounds.least_of(together, priced.every) for together in bounds.together]
        self._slack = ceiling - bounds.lagrangian(priced.duals, self._least)
        self._worth = bounds.worth_left(priced.duals, priced.every)

    def limits(self) -> list[PriceLimits]:
        """By model phase: no instance beyond these limits is in such an allocation."""
        limits = [self._price_limit(0.0) for _ in self._bounds.demand]
        for (models, unmet), least_usd_h in zip(self._bounds.together, self._least, strict=True):
            ways = [way for model in models for way in self._bounds.ways[model]]
            several = {p for way in ways for p in way}
            for p in several:
                if not math.isfinite(self._ceiling) or len(ways) > len(models):
                    limits[p] = self._price_limit(self._slack + least_usd_h)
                elif self._priced.instances[p]:
                    if unmet is None:
                        allowed = self._beside_others(p)
                    else:
                        allowed = self._beside_unmet(p, several, unmet, least_usd_h)
                    limits[p] = self._limits(p, allowed)
        return limits

    def _price_limit(self, usd_h: float) -> PriceLimits:
        return PriceLimits(usd_h * (1 + SAFE), np.zeros(self._bounds.supply.nodes.shape[1]), 0.0)

    def _beside_others(self, p: int) -> Floats:
        """float64 (G + 1,): what an instance of t steps costs at most, where all demand is served."""
        full, rules = self._priced.every[p], self._bounds.rules[p]
        grid = len(full) - 1
        # Whichever instance is lost, or region, the others serve a share.
        beside = math.ceil(max(rules.spared, rules.surviving) * grid * (1 - SAFE))
        others = self._others(p)[np.maximum(grid - np.arange(grid + 1), beside)]
        return np.asarray(self._slack + float(full[-1]) - others)

    def _beside_unmet(self, p: int, several: Collection[int], unmet: UnmetShares, least_usd_h: float) -> Floats:
        """float64 (G + 1,): what an instance of t steps costs at most, where some of its model's demand may go unmet."""
        full, others = self._priced.every, self._others(p)
        grid = len(full[p]) - 1
        cost = unmet.cost(1.0 - np.arange(grid + 1) / grid)
        left = sum((full[q] for q in several if q != p), np.zeros(grid + 1))
        allowed = self._slack + least_usd_h - least_beside(others, left + cost)
        if not self._bounds.supply.is_charged:
            needed = np.where(cost < self._ceiling, left, math.inf)
            allowed = np.minimum(allowed, self._worth - least_beside(others, needed))
        return np.asarray(allowed)

    def _others(self, p: int) -> Floats:
        """float64 (G + 1,): least price of what serves so many steps beside one instance."""
        rules = CoverRules(max(self._bounds.rules[p].replicas - 1, 0))
        return self._bounds.least_prices(p, self._priced.instances[p], self._priced.duals, rules)

    def _limits(self, p: int, allowed: Floats) -> PriceLimits:
        """Limits on instances of which one of t steps costs ``allowed[t]`` at most, which is the more the more it serves."""
        prices = self._priced.instances[p]
        least = np.min([np.minimum(price.one, price.every) for price in prices], axis=0)
        dearer = np.append(least[1:], math.inf)
        most_usd_h = float(np.minimum(dearer, allowed)[least <= allowed].max(initial=0.0))
        # Of one configuration, the cheapest for what it serves, nodes waste nothing.
        price = self._bounds.supply.prices(self._priced.duals, p).min(axis=0)
        steps = most_tokens_of_nodes(self._bounds.tables[p].values, price) / prices[0].step_tokens_s
        with np.errstate(divide="ignore"):
            worth = float((price[steps > 0] / steps[steps > 0]).min(initial=math.inf))
        if not 0 < worth < math.inf:
            return self._price_limit(most_usd_h)
        waste = np.where(np.isfinite(price), np.maximum(price - worth * steps, 0.0), 0.0)
        most_waste = float((allowed - worth * np.arange(len(allowed))).max()) + worth
        return PriceLimits(most_usd_h * (1 + SAFE), waste, most_waste * (1 + SAFE) + SAFE)
