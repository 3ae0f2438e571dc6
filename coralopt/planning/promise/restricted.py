"""Designs in a part of the room, where the search over all of it misses some.

The cheapest groups of a model may not hold together in any number, where dearer ones on other nodes do: each GPU type is
then searched by itself. They may take more than a limit of the scenario allows: groups are then looked at in the order of
prices that count what they take of limits, too. The cheapest design of each model may want the same nodes as those of
others: one model after the other then gets the cheapest design in what those before it leave. A model that finds none goes
first in the next round.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from coralopt.planning.promise.capacities import Place
from coralopt.planning.promise.designs import MOST_TIMES, Design, Designs
from coralopt.planning.promise.room import Room

#: What all there is of a limit costs, in prices of the cheapest groups; more where less does not do.
LIMIT_PRICES = (0.5, 2.0, 8.0)


def find_of_one_gpu(designs: Designs) -> None:
    """Look on the nodes of each GPU type for designs of models that have none."""
    gpus = np.array(designs.scenario.gpu_types)
    for model in sorted(designs.raced):
        for name in dict.fromkeys(gpus.tolist()):
            if designs.best(model) is None:
                nodes = np.where(gpus == name, designs.room.nodes, 0)
                _cheapest_within(designs, replace(designs.room, nodes=nodes), model)


def find_within_limits(designs: Designs) -> None:
    """Look for designs that take less of limits, of models that have none."""
    for model in sorted(designs.raced):
        if designs.best(model) is None:
            designs.known.extend(_at_prices_of_limits(designs, model))


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
    """The first model for which those before it leave too little room; ``None`` where all have some."""
    left = designs.room
    for model in order:
        place = _cheapest_within(designs, left, model)
        if place is None:
            return model
        left = left.without(*place)
    return None


def _cheapest_within(designs: Designs, room: Room, model: str) -> tuple[int, tuple[Place, ...]] | None:
    """Region and groups of the cheapest design of a model that is known or found in the room that is left."""
    known = [item for item in designs.known if room.fits(item.groups).any()]
    price = list(designs.price)
    for p in set(itertools.chain(*designs.ways[model])):
        price[p] = np.where(room.fits_alone(p), price[p], np.inf)
    within = replace(designs, room=room, price=price, known=list(known), nearest={})
    try:
        within.tighten(model)
        within.search([model])
        if within.best(model) is None:
            within.known.extend(_at_prices_of_limits(within, model))
    finally:
        designs.known.extend(item for item in within.known if item not in known)
    best = within.best(model)
    if best is None:
        return None
    return int(np.argmin(within.price_of(best.groups))), best.groups


def _at_prices_of_limits(designs: Designs, model: str) -> Sequence[Design]:
    """Designs of a model that are found where limits have prices; these rise until there is one."""
    phases = set(itertools.chain(*designs.ways[model]))
    least = designs.ceiling(model) / MOST_TIMES
    for limit in LIMIT_PRICES if len(designs.room.limits) and least < math.inf else ():
        price = [
            own + limit * least * designs.room.shares(p) if p in phases else own for p, own in enumerate(designs.price)
        ]
        priced = replace(designs, price=price, known=[], nearest={})
        priced.tighten(model)
        priced.search([model])
        if priced.known:
            return [replace(item, price=float(designs.price_of(item.groups).min())) for item in priced.known]
    return ()
