"""Designs in a part of the room, where the search over all of it misses some.

The cheapest groups of a model may not hold together in any number, where dearer ones on other nodes do: each GPU type is
then searched by itself. The cheapest design of each model may want the same nodes as those of others, or the rest of the
same quota: one model after the other then gets the cheapest design in what those before it leave. A model that finds none
goes first in the next round.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from coralopt.planning.promise.capacities import Place
from coralopt.planning.promise.design_search import DesignSearch
from coralopt.planning.promise.designs import Designs
from coralopt.planning.promise.room import Room


def find_of_one_gpu(designs: Designs) -> None:
    """Look on the nodes of each GPU type for designs of models that have none."""
    gpus = np.array(designs.scenario.gpu_types)
    for model in sorted(designs.raced):
        for name in dict.fromkeys(gpus.tolist()):
            if designs.best(model) is None:
                nodes = np.where(gpus == name, designs.room.nodes, 0)
                _cheapest_within(designs, replace(designs.room, nodes=nodes), model)


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
        search = DesignSearch(within)
        search.tighten(model)
        search.search([model])
    finally:
        designs.known.extend(item for item in within.known if item not in known)
    best = within.best(model)
    if best is None:
        return None
    return int(np.argmin(within.price_of(best.groups))), best.groups
