"""HexGen: a fixed pool cut into groups, every group one asymmetric pipeline.

Jiang et al., "HexGen: Generative Inference of Large Language Model over Heterogeneous Environment", ICML 2024 (arXiv
2311.11514), search in two phases. A *dynamic programme* lays out one group of GPUs as a pipeline: each stage is one tensor
parallel group of its own degree, with its own share of the layers. An *evolutionary search* over the ways to cut the pool
into groups mutates by merging two groups, splitting one, and moving devices between two; its fitness is what the groups
serve. Its optimizer was public for some time (repository history, ``experimental/optimizer/genetic_algorithm.py``): mutation
only, a few parents, ten children a generation, hundreds of generations, a fixed seed. So here.

What is carried over into this project's terms:

* A tensor parallel group is a whole node: T_j(g) is known for nodes, and tensor parallelism stays inside them (paper,
  section 3.1). A stage is one node; there is no data parallelism inside a stage.
* HexGen's programme minimises the latency of a request through a pipeline, and its fitness is the share of requests that
  meet a deadline. With tables T_j(g) every stage meets its part of the SLO already, so both become throughput: the programme
  maximises the slowest stage of a group, the search the sum over the groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coralopt.placement import Placement, Stage
from coralopt.throughput.tables import FIRST, LAST, MIDDLE
from coralopt.types import Floats

#: Cuts that survive a generation, and mutated ones that it makes, as in its optimizer.
_PARENTS, _CHILDREN = 3, 10
#: Groups of nodes: counts by kind, one tuple a group.
Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class HexgenSolution:
    """Pipelines on a pool.

    Attributes:
        pipelines: One placement a group, every stage one node; groups that serve nothing are left out.
        throughputs: tokens/s of each.
        evaluations: Groups laid out by the dynamic programme.
        generations: Generations of the search.
    """

    pipelines: tuple[Placement, ...]
    throughputs: tuple[float, ...]
    evaluations: int
    generations: int

    @property
    def throughput(self) -> float:
        """tokens/s of all pipelines together."""
        return float(sum(self.throughputs))


def best_pipeline(values: Floats, nodes: tuple[int, ...]) -> tuple[float, Placement | None]:
    """The pipeline of most tokens/s that uses each of the nodes as one stage, by dynamic programming.

    best[l] is the largest slowest-stage throughput of the nodes laid out so far when they hold l layers. Middle stages are
    interchangeable; each choice of kinds for the two ends is tried where their tables differ.

    Args:
        values: float64 (S, 3, C, L + 1), tokens/s of one node.
        nodes: Nodes of each kind, length C.

    Returns:
        tokens/s and the placement; 0 and ``None`` where there is no pipeline.
    """
    stages, layers = sum(nodes), values.shape[3] - 1
    if not 1 <= stages <= min(values.shape[0], layers):
        return 0.0, None
    table = values[stages - 1]
    kinds = [c for c, count in enumerate(nodes) if count]
    same = stages == 1 or bool((table[:, kinds] == table[MIDDLE][kinds]).all())
    best, chosen = 0.0, None
    for first in kinds[:1] if same else kinds:
        for last in _last_kinds(nodes, first, kinds, same):
            order = _order(nodes, first, last)
            roles = [FIRST, *[MIDDLE] * (stages - 2), LAST][:stages] if stages > 1 else [FIRST]
            value, held = _best_split(table, order, roles, layers)
            if value > best:
                best = value
                chosen = Placement(
                    tuple(
                        Stage(j, tuple(int(c == k) for k in range(len(nodes))))
                        for c, j in zip(order, held, strict=True)
                    )
                )
    return best, chosen


def _last_kinds(nodes: tuple[int, ...], first: int, kinds: list[int], same: bool) -> list[int | None]:
    left = [c for c in kinds if nodes[c] - (c == first) > 0]
    if not left:
        return [None]
    return [left[-1]] if same else list(left)


def _order(nodes: tuple[int, ...], first: int, last: int | None) -> list[int]:
    left = list(nodes)
    left[first] -= 1
    if last is not None:
        left[last] -= 1
    middle = [c for c, count in enumerate(left) for _ in range(count)]
    return [first, *middle, *([] if last is None else [last])]


def _best_split(table: Floats, order: list[int], roles: list[int], layers: int) -> tuple[float, list[int]]:
    """Layers of each node, in order, so that the slowest is fastest."""
    best = np.full(layers + 1, -np.inf)
    best[0] = np.inf
    choices = []
    for c, role in zip(order, roles, strict=True):
        speeds = table[role, c]
        held = np.flatnonzero(speeds > 0)
        new, choice = np.full(layers + 1, -np.inf), np.zeros(layers + 1, dtype=np.int64)
        for j in held.tolist():
            if j == 0:
                continue
            reach = np.minimum(best[: layers + 1 - j], speeds[j])
            better = reach > new[j:]
            new[j:][better] = reach[better]
            choice[j:][better] = j
        best = new
        choices.append(choice)
    value = float(best[layers])
    if value <= 0:
        return 0.0, []
    split, left = [], layers
    for choice in reversed(choices):
        split.append(int(choice[left]))
        left -= split[-1]
    return value, split[::-1]


def hexgen_search(
    values: Floats,
    counts: tuple[int, ...],
    *,
    seed: int = 0,
    generations: int = 300,
    allowed: Callable[[tuple[int, ...]], bool] | None = None,
    on_generation: Callable[[int, float], None] | None = None,
) -> HexgenSolution:
    """Cut a pool into pipelines of most tokens/s together, by evolutionary search.

    It begins with the whole pool as one group, and with even cuts into 2, 3, ... groups. The best cut so far is never lost.

    Args:
        values: float64 (S, 3, C, L + 1), tokens/s of one node.
        counts: Nodes of each kind in the pool, length C.
        seed: Of the mutations.
        generations: Generations.
        allowed: Which node sets may be a group; all when ``None``.
        on_generation: Called with (generation, best tokens/s) after each.
    """
    generator = np.random.default_rng(seed)
    known: dict[tuple[int, ...], float] = {}

    def worth(group: tuple[int, ...]) -> float:
        if group not in known:
            fits = sum(group) > 0 and (allowed is None or allowed(group))
            known[group] = best_pipeline(values, group)[0] if fits else 0.0
        return known[group]

    def fitness(groups: Groups) -> float:
        return sum(worth(group) for group in groups)

    population: list[Groups] = [(tuple(counts),)]
    for pieces in range(2, sum(counts) + 1):
        population.append(_even_cut(counts, pieces))
    population.sort(key=lambda groups: (-fitness(groups), groups))
    population = population[:_PARENTS]
    for generation in range(1, generations + 1):
        offspring = [
            _mutated(population[int(generator.integers(len(population)))], generator) for _ in range(_CHILDREN)
        ]
        # Parents compete too, each cut once, so that the best is kept and the survivors differ.
        pool = sorted({*population, *offspring}, key=lambda groups: (-fitness(groups), groups))
        population = pool[:_PARENTS]
        if on_generation is not None:
            on_generation(generation, fitness(population[0]))
    laid_out = [best_pipeline(values, group) for group in population[0] if worth(group) > 0]
    return HexgenSolution(
        pipelines=tuple(placement for _, placement in laid_out if placement is not None),
        throughputs=tuple(value for value, placement in laid_out if placement is not None),
        evaluations=len(known),
        generations=max(generations, 0),
    )


def _canonical(groups: list[list[int]]) -> Groups:
    return tuple(sorted(tuple(group) for group in groups if sum(group) > 0))


def _even_cut(counts: tuple[int, ...], pieces: int) -> Groups:
    """The pool dealt out to so many groups like cards, kind by kind."""
    groups = [[0] * len(counts) for _ in range(pieces)]
    card = 0
    for c, count in enumerate(counts):
        for _ in range(count):
            groups[card % pieces][c] += 1
            card += 1
    return _canonical(groups)


def _mutated(groups: Groups, generator: np.random.Generator) -> Groups:
    """A merge of two groups, a split of one, or nodes moved from one to another."""
    cut = [list(group) for group in groups]
    kind = int(generator.integers(3))
    if kind == 0 and len(cut) > 1:
        i, j = generator.choice(len(cut), size=2, replace=False).tolist()
        cut[i] = [a + b for a, b in zip(cut[i], cut[j], strict=True)]
        cut[j] = [0] * len(cut[j])
    elif kind == 1:
        i = int(generator.integers(len(cut)))
        half = [int(generator.integers(count + 1)) for count in cut[i]]
        cut[i] = [a - b for a, b in zip(cut[i], half, strict=True)]
        cut.append(half)
    elif len(cut) > 1:
        i, j = generator.choice(len(cut), size=2, replace=False).tolist()
        c = int(generator.choice([c for c, count in enumerate(cut[i]) if count]))
        amount = int(generator.integers(1, cut[i][c] + 1))
        cut[i][c] -= amount
        cut[j][c] += amount
    return _canonical(cut)
