"""What a library would take before it is built: node sets counted without making them, memory, time, a smaller N_max.

Memory and time are rough: measured at 12 to 80 configurations and N_max 4 to 8, where a node set took some 9 bytes for each
configuration and 66 for each node it may have, and where two cores placed 15,000 to 150,000 node sets a second.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import cache

from coralopt.catalog.types import GIB
from coralopt.errors import LibraryError, LongBuildWarning
from coralopt.machine import memory_gib
from coralopt.scenario.resolved import ResolvedScenario

#: Node sets that one core places in a second, about.
SETS_A_SECOND = 20_000
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


@cache
def count_node_sets(memory_gib: tuple[float, ...], max_nodes: int, memory_cap_gib: float = float("inf")) -> list[int]:
    """How many node sets of up to 1, 2, ..., ``max_nodes`` nodes :func:`coralopt.templates.node_sets` would make."""
    # Sets of k nodes by their memory, configuration by configuration; equal sums are counted together.
    sums: list[Counter[float]] = [Counter({0.0: 1}), *(Counter[float]() for _ in range(max_nodes))]
    for memory in memory_gib:
        for nodes in range(1, max_nodes + 1):
            for used, count in sums[nodes - 1].items():
                total = round(used + memory, 6)
                # A node too large to stand beside others is counted at the end.
                if total < memory_cap_gib:
                    sums[nodes][total] += count
    alone = sum(memory >= memory_cap_gib for memory in memory_gib)
    counts, total_count = [], alone
    for of_size in sums[1:]:
        total_count += of_size.total()
        counts.append(total_count)
    return counts


def has_more_node_sets(scenario: ResolvedScenario, most: int) -> bool:
    """Whether a scenario has more node sets than ``most``, all model phases together."""
    hosts = tuple(configuration.memory_gib for configuration in scenario.configurations)
    total = 0
    if len(scenario.model_phases) * math.comb(len(hosts) + scenario.max_nodes, scenario.max_nodes) <= most:
        return False
    for phase in scenario.model_phases:
        cap_gib = scenario.memory_ratio * phase.model.weight_bytes / GIB
        total += count_node_sets(hosts, scenario.max_nodes, cap_gib)[-1]
        if total > most:
            return True
    return False


def library_estimates(scenario: ResolvedScenario) -> list[LibraryEstimate]:
    """The library's estimates at N_max 1, 2, ... up to the scenario's."""
    hosts = tuple(configuration.memory_gib for configuration in scenario.configurations)
    totals = [0] * scenario.max_nodes
    for phase in scenario.model_phases:
        cap_gib = scenario.memory_ratio * phase.model.weight_bytes / GIB
        counts = count_node_sets(hosts, scenario.max_nodes, cap_gib)
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
    return [
        LibraryEstimate(nodes, total, total * (9 * len(hosts) + 66 * nodes) / GIB, total / SETS_A_SECOND)
        for nodes, total in enumerate(totals, start=1)
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
