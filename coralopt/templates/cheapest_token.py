"""The cheapest token/s of a model phase when nodes can be had in fractions: kappa, which no pipeline of any size undercuts.

In a pipeline of S stages that reaches T tokens/s, stage s with j layers needs sum_c n_c T_j(c; S) >= T, so its nodes cost
at least T min_c p_c / T_j(c; S) USD/h, whatever their number. Every placement of every node set therefore costs, for one
token/s, at least::

    kappa = min over S = 1..L, l_1 + ... + l_S = L  of  sum_s  min_c  p_c / T_{l_s}(c; S)

The inner sum over layer counts is a shortest path, found exactly by (min, +) products of the stages' tables; S beyond L
cannot be. kappa is reached in the limit by stages of very many nodes, so no better bound on the cost of a token/s exists
without counting nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates.instance_prices import NEAR, fractional_stages, least_tokens_of, min_plus, token_prices
from coralopt.throughput import FIRST, LAST, MIDDLE, ThroughputTables, build_tables, throughput_source
from coralopt.types import Floats

#: Relative reduction for rounding, so that a bound stays one.
SAFE = 1e-9


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


def unlimited_tables(scenario: ResolvedScenario, max_stages: int | None = None) -> tuple[ThroughputTables, ...]:
    """Throughput tables for every stage count up to the number of layers, as node sets of any size may have.

    Args:
        scenario: The resolved scenario.
        max_stages: Stop at so many.
    """
    source = throughput_source(scenario.throughput_source)
    return tuple(
        build_tables(source, phase, scenario.configurations, min(max_stages or phase.model.layers, phase.model.layers))
        for phase in scenario.model_phases
    )


def cheapest_token(values: Floats, price_usd_h: Floats) -> CheapestToken:
    """kappa of one model phase at these prices.

    Args:
        values: float64 (S, 3, C, L + 1), tokens/s of one node, for S up to the number of stages to be covered.
        price_usd_h: float64 (C,), USD per node-hour; infinite where a configuration cannot be had.
    """
    by_count = token_prices(values, price_usd_h)
    count = int(by_count.argmin()) + 1
    kappa = float(by_count[count - 1])
    if not math.isfinite(kappa):
        return CheapestToken(math.inf, ())
    cost, kind = fractional_stages(values[count - 1], price_usd_h)
    layers = values.shape[3] - 1
    if count == 1:
        return CheapestToken(kappa, ((layers, int(kind[FIRST, layers])),))
    return CheapestToken(kappa, _split(cost, kind, count, layers))


def _split(cost: Floats, kind: npt.NDArray[np.intp], count: int, layers: int) -> tuple[tuple[int, int], ...]:
    """Layers and configuration of each stage of a cheapest pipeline, by walking back."""
    roles = [FIRST, *[MIDDLE] * (count - 2), LAST]
    ahead = [np.full(layers + 1, math.inf)]
    ahead[0][0] = 0.0
    for role in roles:
        ahead.append(min_plus(ahead[-1], cost[role]))
    stages: list[tuple[int, int]] = []
    left = layers
    for position in range(count - 1, -1, -1):
        options = ahead[position][: left + 1][::-1] + cost[roles[position], : left + 1]
        held = int(options.argmin())
        stages.append((held, int(kind[roles[position], held])))
        left -= held
    return tuple(reversed(stages))


def regional_tokens(values: Floats, price_usd_h: Floats) -> list[tuple[int, CheapestToken]]:
    """(region, cheapest token) for the regions where it costs little more than in the cheapest one."""
    least = [float(least_tokens_of(values, row).min(initial=math.inf)) for row in price_usd_h]
    tokens: list[tuple[int, CheapestToken]] = []
    cheapest = math.inf
    for r in np.argsort(least, kind="stable").tolist():
        if not least[r] * (1 - SAFE) <= cheapest * NEAR or math.isinf(least[r]):
            break
        token = cheapest_token(values, price_usd_h[r])
        if token.stages:
            tokens.append((r, token))
        cheapest = min(cheapest, token.usd_h)
    return tokens


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
        bounds.append((phase.key, (1 + SAFE) / best.usd_h if best.stages else 0.0, where))
    return bounds
