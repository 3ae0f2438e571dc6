"""Designs in a part of the pool, where the search over all of it misses some.

The cheapest groups of a model may not hold together in any number, where dearer ones on other nodes do: each GPU type is
then searched by itself. The cheapest design of each model may want the same nodes as those of others: one model after the
other then gets the cheapest design in the nodes that those before it leave. A model that finds none goes first in the next
round.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from coralopt.planning.promise.designs import Designs
from coralopt.types import Ints


def find_of_one_gpu(designs: Designs) -> None:
    """Look on the nodes of each GPU type for designs of models that have none."""
    gpus = np.array(designs.scenario.gpu_types)
    for model in sorted(designs.raced):
        for name in dict.fromkeys(gpus.tolist()):
            if designs.best(model) is None:
                _cheapest_within(designs, np.where(gpus == name, designs.nodes, 0), model)


def find_side_by_side(designs: Designs) -> bool:
    """Look for designs of all models that have room beside each other; they are known to ``designs`` afterwards.

    Returns:
        Whether there are some.
    """
    best = {model: designs.best(model) for model in designs.raced}
    price = {model: design.price for model, design in best.items() if design is not None}
    order = tuple(sorted(price, key=lambda model: (-price[model], model)))
    tried = set[tuple[str, ...]]()
    while len(price) == len(best) and order not in tried:
        tried.add(order)
        without = _first_without(designs, order)
        if without is None:
            return True
        order = (without, *(model for model in order if model != without))
    return False


def _first_without(designs: Designs, order: tuple[str, ...]) -> str | None:
    """The first model for which those before it leave too few nodes; ``None`` where all have room."""
    left = designs.nodes.copy()
    for model in order:
        place = _cheapest_within(designs, left, model)
        if place is None:
            return model
        region, usage = place
        left[region] -= usage
    return None


def _cheapest_within(designs: Designs, left: Ints, model: str) -> tuple[int, Ints] | None:
    """Region and nodes, int64 (C,), of the cheapest design of a model that is known or found in nodes that are left,
    int64 (R, C)."""
    known = [item for item in designs.known if (designs.usage(item.groups) <= left).all(axis=1).any()]
    price = list(designs.price)
    for p in set(itertools.chain(*designs.ways[model])):
        groups = designs.groups[p]
        usage = groups.games.templates.usage[groups.template].astype(np.int64) * groups.count[:, None]
        fits = np.stack([(usage <= nodes).all(axis=1) for nodes in left], axis=1)
        price[p] = np.where(fits, price[p], np.inf)
    within = replace(designs, nodes=left, price=price, known=list(known), nearest={})
    try:
        within.tighten(model)
        within.search([model])
    finally:
        designs.known.extend(item for item in within.known if item not in known)
    best = within.best(model)
    if best is None:
        return None
    usage, own = designs.usage(best.groups), sum(designs.price[p][j] for p, j in best.groups)
    return int(np.argmin(np.where((usage <= left).all(axis=1), own, np.inf))), usage
