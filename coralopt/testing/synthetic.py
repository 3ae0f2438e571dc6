"""A large allocation problem with the shape of real libraries, by seed; needs nothing beside the library."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from coralopt.allocation import AllocationProblem
from coralopt.templates import node_sets


def synthetic_problem(
    max_nodes: int = 4,
    phases: int = 12,
    configurations: int = 20,
    regions: int = 3,
    supply: Literal["ample", "tight", "scarce"] = "ample",
    nodes: int = 300,
    seed: int = 0,
) -> AllocationProblem:
    """A large problem with the shape of real libraries, the same for the same arguments.

    Every node set of at most ``max_nodes`` nodes is a template of every model phase unless it holds too few nodes'
    worth of memory. Its throughput is a sublinear function of the worth of its nodes, with some noise, since odd mixes
    place badly; dearer nodes are worth more, not quite in proportion, and differently for every phase.

    Args:
        max_nodes: N_max. 20 configurations give 10,625 node sets for 4 nodes, 53,129 for 5, 230,229 for 6.
        phases: Model phases, all of about equal cost.
        configurations: Node configurations.
        regions: Regions, with somewhat different prices.
        supply: ``"ample"``: more of everything than needed; ``"tight"``: the best nodes run out; ``"scarce"``: most do.
        nodes: About how many mid-priced nodes the whole demand needs.
        seed: Of the random numbers.
    """
    rng = np.random.default_rng(seed)
    sets = node_sets([1.0] * configurations, max_nodes)
    base = np.sort(np.exp(rng.uniform(math.log(0.8), math.log(60.0), configurations)))
    price = np.round(base[None, :] * rng.uniform(0.9, 1.25, (regions, configurations)), 4)
    usage, throughput, phase, demand = [], [], [], []
    each = nodes * float(np.median(base)) / phases
    for p in range(phases):
        worth = base**0.95 * rng.uniform(0.7, 1.3, configurations)
        size = rng.choice([0.5, 2.0, 8.0])
        total = sets @ worth
        mixed = (sets > 0).sum(axis=1)
        speed = 1000 * total**0.97 * rng.uniform(0.93, 1.0, len(sets)) * 0.97 ** (mixed - 1)
        fits = total >= size
        usage.append(sets[fits].astype(np.int16))
        throughput.append(speed[fits])
        phase.append(np.full(int(fits.sum()), p, dtype=np.int32))
        demand.append(each * 1000 * rng.uniform(0.6, 1.4))
    plenty = max(4, round(nodes * {"ample": 20.0, "tight": 4.0, "scarce": 2.4}[supply] / configurations / regions))
    return AllocationProblem(
        usage=np.concatenate(usage),
        throughput=np.concatenate(throughput),
        phase=np.concatenate(phase),
        demand=np.array(demand),
        availability=rng.integers(0, plenty + 1, (regions, configurations)),
        price=price,
        running=None,
        penalty=0.05,
        phase_names=tuple(f"model{p}/decode" for p in range(phases)),
        region_names=tuple(f"region{r}" for r in range(regions)),
        configuration_names=tuple(f"configuration{c}" for c in range(configurations)),
    )
