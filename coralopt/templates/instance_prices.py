"""The least price of one instance by what it serves, over node sets of any size, and the node sets that reach it.

The demand D is cut into G steps, and the tokens/s of every node are rounded up to whole steps. The least price of a stage
of t steps is then a covering knapsack over whole nodes, that of an instance of t steps a shortest path over layer splits,
and that of all instances together a covering knapsack again. Rounding up only ever lowers a price: all are lower bounds.

Where nodes are scarce, an instance may use no more of them than its region has. Of scarce configurations the nodes used so
far are part of the shortest path's state, which takes many times as long, so only those are counted of which the cheapest
instances would use too many (relaxed states, as in Righini and Salani 2008).

A pipeline of S stages has at least S nodes, and pays at least kappa_S for a token/s
(:mod:`coralopt.templates.cheapest_token`). Where that is no less than what instances of fewer stages pay together for as
much, S stages need not be looked at: with them out, the least price of all instances together stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coralopt.throughput import FIRST, LAST, MIDDLE
from coralopt.throughput.tables import stage_role
from coralopt.types import Floats, Ints

if TYPE_CHECKING:
    from coralopt.templates.instance_kernels import NodeOffer

#: Instances up to so much dearer than the cheapest way to serve as much are worth having.
NEAR = 1.05
#: States of nodes used, times steps of the demand, that an instance is priced with at most.
MOST_STATES = 4_000


@dataclass(frozen=True, eq=False)
class PricedPipeline:
    """An instance: a placement, not always the best one of its nodes.

    Attributes:
        layers: int64 (S,), layers of each stage.
        nodes: int64 (S, C), nodes of each configuration in each stage.
    """

    layers: Ints
    nodes: Ints

    @property
    def node_set(self) -> Ints:
        """int64 (C,), nodes of each configuration."""
        return np.asarray(self.nodes.sum(axis=0))

    def tokens_s(self, values: Floats) -> float:
        """What it serves: its slowest stage; ``values``: float64 (S, 3, C, L + 1), tokens/s of one node."""
        count = len(self.layers)
        return min(
            float(self.nodes[s] @ values[count - 1, stage_role(s, count), :, j])
            for s, j in enumerate(self.layers.tolist())
        )


@dataclass(frozen=True, eq=False)
class InstancePrices:
    """Least prices of one model phase at given prices of nodes.

    Attributes:
        values: float64 (S, 3, C, L + 1), tokens/s of one node, for S up to the number of stages looked at.
        price_usd_h: float64 (C,), USD per node-hour; infinite where a configuration cannot be had.
        most: Configurations of which an instance uses so many nodes at most.
        step_tokens_s: D / G.
        one: float64 (G + 1,), USD/h: no instance that serves more than t - 1 steps costs less, unless several others do
            as well together.
        every: float64 (G + 1,), USD/h: nor do any number of instances.
        stages: int64 (G + 1,), stages of the cheapest instance of just t steps; 0 where there is none.
        region: Where these are the prices.
    """

    values: Floats
    price_usd_h: Floats
    most: Mapping[int, int]
    step_tokens_s: float
    one: Floats
    every: Floats
    stages: Ints
    region: int = 0

    def pipelines(self) -> list[PricedPipeline]:
        """Instances that are worth their price for some number of steps."""
        worth = np.isfinite(self.one) & (self.one <= NEAR * self.every) & (self.stages > 0)
        # Where more steps cost more, the price is that of an instance of just so many.
        worth[:-1] &= self.one[1:] > self.one[:-1]
        return self.cheapest(np.flatnonzero(worth))

    def cheapest(self, served: Ints) -> list[PricedPipeline]:
        """A cheapest instance of just ``served`` steps each."""
        from coralopt.templates.instance_kernels import trace_instances

        traced: dict[int, PricedPipeline] = {}
        counts, kinds, offer = self.stages[served], len(self.price_usd_h), _offer(self.price_usd_h, self.most)
        for count in np.unique(counts).tolist():
            steps = served[counts == count]
            limit = np.full(int(steps.max()) + 1, -math.inf)
            limit[steps] = self.one[steps]
            held, nodes = (
                np.zeros((len(steps), count), dtype=np.int64),
                np.zeros((len(steps), count, kinds), dtype=np.int64),
            )
            trace_instances(self.values[:count], offer, self.step_tokens_s, limit, steps, held, nodes)
            traced.update(zip(steps.tolist(), map(PricedPipeline, held, nodes), strict=True))
        return [traced[t] for t in served.tolist()]


def regional_prices(
    values: Floats,
    prices_usd_h: Floats,
    demand_tokens_s: float,
    grid: int,
    nodes: Mapping[int, Floats] = MappingProxyType({}),
    *,
    each: bool = False,
) -> list[InstancePrices]:
    """Least prices in the regions where instances cost less than in all that come before, the cheapest region first.

    Regions are left out together: with every node at its cheapest among them, no instance of theirs costs more.

    Args:
        values: float64 (S, 3, C, L + 1), tokens/s of one node.
        prices_usd_h: float64 (R, C), USD per node-hour in each region.
        demand_tokens_s: D, positive.
        grid: G, at least 1.
        nodes: Scarce configuration -> float64 (R,), so many nodes of it an instance may use. Where that takes too many
            states, only the first configurations count.
        each: Leave no region out but those that can serve nothing.
    """

    def most_of(several: list[int]) -> dict[int, int]:
        """Of scarce configurations as many nodes as some of these regions has."""
        most: dict[int, int] = {}
        for c, available in nodes.items():
            room = int(available[several].max())
            if (room + 1) * math.prod(n + 1 for n in most.values()) * grid <= MOST_STATES:
                most[c] = room
        return most

    least_token = [float(least_tokens_of(values, row).min(initial=math.inf)) for row in prices_usd_h]
    first, *others = np.argsort(least_token, kind="stable").tolist()
    if each:
        serving = [r for r in (first, *others) if r == first or math.isfinite(least_token[r])]
        alone = [instance_prices(values, prices_usd_h[r], demand_tokens_s, grid, most=most_of([r])) for r in serving]
        return [replace(price, region=r) for r, price in zip(serving, alone, strict=True)]
    price = instance_prices(values, prices_usd_h[first], demand_tokens_s, grid, most=most_of([first]))
    regions = [replace(price, region=first)]

    def look(several: list[int], least: Floats | None) -> None:
        if not several:
            return
        known = regions[-1].every
        row = prices_usd_h[several].min(axis=0)
        price = instance_prices(values, row, demand_tokens_s, grid, known, least, most_of(several))
        if not (price.one < known).any():
            return
        if len(several) == 1:
            regions.append(replace(price, region=several[0]))
            return
        half, below = len(several) // 2, np.minimum(price.one, price.every)
        look(several[:half], below)
        look(several[half:], below)

    look(others, None)
    return regions


def instance_prices(
    values: Floats,
    price_usd_h: Floats,
    demand_tokens_s: float,
    grid: int,
    known: Floats | None = None,
    least: Floats | None = None,
    most: Mapping[int, int] = MappingProxyType({}),
) -> InstancePrices:
    """Least prices of instances of one model phase.

    Args:
        values: float64 (S, 3, C, L + 1), tokens/s of one node.
        price_usd_h: float64 (C,), USD per node-hour, at least 0; infinite where a configuration cannot be had.
        demand_tokens_s: D, positive.
        grid: G, at least 1.
        known: float64 (G + 1,), ``every`` at other prices, those of another region: what is dearer is not looked at.
        least: float64 (G + 1,), what each instance is known to cost at least, unless others do as well for less.
        most: Configurations of which an instance uses so many nodes at most.
    """
    from coralopt.templates.instance_kernels import price_instances

    one = np.full(grid + 1, math.inf)
    every = one.copy() if known is None else known.copy()
    one[0] = every[0] = 0.0
    stages = np.zeros(grid + 1, dtype=np.int64)
    step = demand_tokens_s / grid
    offer = _offer(price_usd_h, most)
    price_instances(values, offer, step, np.zeros(grid + 1) if least is None else least, one, every, stages)
    return InstancePrices(values, price_usd_h, most, step, one, every, stages)


def _offer(price_usd_h: Floats, most: Mapping[int, int]) -> NodeOffer:
    """The same as the compiled loops know it."""
    # Imported here: compiled code is dear to load and most commands never need it.
    from coralopt.templates.instance_kernels import NodeOffer

    return NodeOffer(price_usd_h, np.array(list(most), dtype=np.int64), np.array(list(most.values()), dtype=np.int64))


def least_tokens_of(values: Floats, price_usd_h: Floats) -> Floats:
    """float64 (S,): at every stage count, what a token/s costs at least when nodes can be had in fractions, USD/h."""
    from coralopt.templates.certificate_kernels import least_tokens

    least = np.empty(len(values))
    least_tokens(values, price_usd_h, least)
    return least


def token_prices(values: Floats, price_usd_h: Floats) -> Floats:
    """float64 (S,), kappa_S: USD/h of a token/s when nodes can be had in fractions; infinite where another S is cheaper."""
    from coralopt.templates.certificate_kernels import token_price

    least = least_tokens_of(values, price_usd_h)
    kappa = np.full(len(values), math.inf)
    for count in np.argsort(least, kind="stable").tolist():
        if not least[count] * (1 - 1e-9) < kappa.min():
            break
        kappa[count] = token_price(values[: count + 1], price_usd_h)
    return kappa


def most_tokens_of_nodes(values: Floats, price_usd_h: Floats) -> Floats:
    """float64 (C,), W: no instance of n_c nodes of each configuration c serves more than sum n_c W_c tokens/s.

    Let a line below the least cost of a token/s in a stage of j layers sum up to kappa over any stages with all layers
    (:func:`coralopt.templates.certificate_kernels.line_below`). A stage serves no more than its nodes do, so with weights
    line / kappa, which sum up to 1, the instance serves at most what its nodes do, each times the weight of its stage.

    Args:
        values: float64 (S, 3, C, L + 1), tokens/s of one node.
        price_usd_h: float64 (C,), USD per node-hour, at which W is near what is paid for a token/s.
    """
    from coralopt.templates.certificate_kernels import line_below

    layers = values.shape[3] - 1
    most = np.zeros(values.shape[2])
    for count in range(1, len(values) + 1):
        cost = fractional_stages(values[count - 1], price_usd_h)[0]
        held = layers if count == 1 else layers - count + 1
        cost[:, held + 1 :] = math.inf
        cost[:, : layers if count == 1 else 1] = math.inf
        cost[sorted({FIRST, MIDDLE, LAST} - {stage_role(s, count) for s in range(count)})] = math.inf
        line = np.empty(4)
        least = line_below(cost, count, line)
        if math.isinf(least):
            continue
        if not least > 0:
            return np.full(len(most), math.inf)
        weight = np.maximum(line[0] * np.arange(layers + 1) + line[1:, None], 0.0) / least
        weight[np.isinf(cost)] = 0.0
        most = np.maximum(most, (weight[:, None, :] * values[count - 1]).max(axis=(0, 2)))
    return most


def fractional_stages(values: Floats, price_usd_h: Floats) -> tuple[Floats, npt.NDArray[np.intp]]:
    """float64 (3, L + 1), least USD/h of a token/s in a stage of each role and layer count, and which nodes are."""
    usable = np.isfinite(price_usd_h)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where((values > 0) & usable, price_usd_h[:, None] / values, math.inf)
    return each.min(axis=1), each.argmin(axis=1)


def min_plus(left: Floats, right: Floats) -> Floats:
    """(min, +) product: out[l] = min over j of left[j] + right[l - j]."""
    from coralopt.templates.certificate_kernels import join_tables

    out = np.empty(len(left))
    join_tables(left, right, out)
    return out
