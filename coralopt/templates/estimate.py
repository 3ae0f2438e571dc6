"""What a library would take before it is built: node sets counted without making them, memory, time, a smaller N_max.

Memory and time are rough: measured at 12 to 80 configurations and N_max 4 to 8, where a node set took some 9 bytes for each
configuration and 66 for each node it may have, and where two cores placed 15,000 to 150,000 node sets a second.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from coralopt.catalog.types import GIB
from coralopt.errors import LibraryError, LongBuildWarning
from coralopt.machine import memory_gib
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.types import Floats

#: Node sets that one core places in a second, about.
SETS_A_SECOND = 20_000
#: Different memories of node sets of one size that are told apart.
MOST_SUMS = 20_000
#: Seconds of a build from which on it is announced.
LONG_S = 120.0


@dataclass(frozen=True)
class LibraryEstimate:
    """Size and cost of a library.

    Attributes:
        max_nodes: N_max.
        node_sets: Node sets of all model phases.
        memory_gib: Memory that the build needs, about.
        core_s: Seconds of one core that the build takes, about.
    """

    max_nodes: int
    node_sets: int
    memory_gib: float
    core_s: float

    def __str__(self) -> str:
        minutes = self.core_s / 60
        time = f"{minutes:,.0f} core minutes" if minutes < 600 else f"{minutes / 60:,.0f} core hours"
        return (
            f"{self.node_sets:,} node sets at max_nodes {self.max_nodes}, about {self.memory_gib:,.1f} GiB and {time}"
        )


def count_node_sets(memory_gib: tuple[float, ...], max_nodes: int, caps_gib: Sequence[float]) -> list[list[int]]:
    """How many node sets of up to 1, 2, ..., ``max_nodes`` nodes :func:`coralopt.templates.node_sets` would make.

    Exact while node sets have at most :data:`MOST_SUMS` different memories, and where no cap binds.

    Args:
        memory_gib: GPU memory of one node of each configuration, GiB.
        max_nodes: N_max.
        caps_gib: Strict upper limits on the memory of several nodes, GiB; counts are returned for each.
    """
    most = max_nodes * max(memory_gib)
    sums = _memory_sums(memory_gib, max_nodes, min(max(caps_gib), 2 * most))
    counts = []
    for cap in caps_gib:
        # A node too large to stand beside others is a node set, too.
        by_size = [float(len(memory_gib)), *(float(many[of_size < cap].sum()) for of_size, many in sums[1:])]
        counts.append([int(total) for total in itertools.accumulate(by_size)])
    return counts


@cache
def _memory_sums(memory_gib: tuple[float, ...], max_nodes: int, cap_gib: float) -> list[tuple[Floats, Floats]]:
    """By number of nodes: memories below the cap that node sets have, GiB, and how many have each."""
    sums: list[tuple[Floats, Floats]] = [(np.zeros(1), np.ones(1)), *([(np.zeros(0), np.zeros(0))] * max_nodes)]
    for memory in memory_gib:
        for nodes in range(1, max_nodes + 1):
            more = sums[nodes - 1][0] + memory
            below = more < cap_gib
            if not below.any():
                break
            values = np.concatenate([sums[nodes][0], more[below].round(6)])
            many = np.concatenate([sums[nodes][1], sums[nodes - 1][1][below]])
            if len(values) > 2 * MOST_SUMS:
                unit = cap_gib / MOST_SUMS
                values = np.minimum((values / unit).round() * unit, np.nextafter(cap_gib, 0.0))
            distinct, position = np.unique(values, return_inverse=True)
            sums[nodes] = distinct, np.bincount(position, many, len(distinct)).astype(np.float64)
    return sums[1:]


def _counts(scenario: ResolvedScenario) -> list[int]:
    """Node sets of all model phases of up to 1, 2, ... N_max nodes."""
    hosts = tuple(configuration.memory_gib for configuration in scenario.configurations)
    caps = [scenario.memory_ratio * phase.model.weight_bytes / GIB for phase in scenario.model_phases]
    return [sum(several) for several in zip(*count_node_sets(hosts, scenario.max_nodes, caps), strict=True)]


def has_more_node_sets(scenario: ResolvedScenario, most: int) -> bool:
    """Whether a scenario has more node sets than ``most``, all model phases together."""
    hosts = len(scenario.configurations)
    if len(scenario.model_phases) * math.comb(hosts + scenario.max_nodes, scenario.max_nodes) <= most:
        return False
    return _counts(scenario)[-1] > most


def library_estimates(scenario: ResolvedScenario) -> list[LibraryEstimate]:
    """The library's estimates at N_max 1, 2, ... up to the scenario's."""
    hosts = len(scenario.configurations)
    return [
        LibraryEstimate(nodes, total, total * (9 * hosts + 66 * nodes) / GIB, total / SETS_A_SECOND)
        for nodes, total in enumerate(_counts(scenario), start=1)
    ]


def announce(scenario: ResolvedScenario) -> None:
    """Say so where a library will take long.

    Raises:
        LibraryError: It would not fit into this machine's memory; with the largest N_max that would.
    """
    smaller = library_estimates(scenario)
    whole = smaller.pop()
    room = memory_gib() or float("inf")
    if whole.memory_gib <= room and whole.core_s <= LONG_S:
        return
    fits = [item for item in smaller if item.memory_gib <= room / 2 and item.core_s <= 10 * LONG_S]
    advice = f"lower pruning.max_nodes ({fits[-1]}) or " if fits else "offer fewer configurations, or "
    if whole.memory_gib > room:
        raise LibraryError(
            f"the template library has {whole}; this machine has {room:.1f} GiB: {advice}lower pruning.memory_ratio; "
            "`coralopt plan` needs no library with `templates: on-demand` in the scenario"
        )
    warnings.warn(
        f"the template library has {whole}; to shorten that, {advice}lower pruning.memory_ratio",
        LongBuildWarning,
        stacklevel=2,
    )
