"""Instances that share a node with others, as a plan shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial

import numpy as np

from coralopt.catalog.mig import MEMORY, SIZES, profiles, sliced
from coralopt.catalog.types import NodeConfiguration
from coralopt.plan import PlannedInstance, PlannedNode, PlannedShare, PlannedStage
from coralopt.scenario.facts.facts import SharingWay
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates import Patterns
from coralopt.templates.patterns import WAYS
from coralopt.throughput import throughput_source
from coralopt.throughput.steps import memory_shares, node_steps, present_share
from coralopt.throughput.swapping import swap_ms, swap_steps


def shared_instances(
    scenario: ResolvedScenario, patterns: Patterns, row: int, region: int, groups: Counter[str]
) -> list[PlannedInstance]:
    """The instances of one shared node, one of each model on it.

    Args:
        scenario: What was planned.
        patterns: The shared nodes.
        row: Which of them.
        region: Position of the region.
        groups: Shared nodes of a kind so far, counted up.
    """
    c = int(patterns.configuration[row])
    configuration, place = scenario.configurations[c], scenario.regions[region]
    columns = np.flatnonzero(patterns.phase[row] >= 0).tolist()
    phases = [scenario.model_phases[p] for p in patterns.phase[row, columns].tolist()]
    batches, sizes = (part[row, columns].tolist() for part in (patterns.batch, patterns.size))
    way = WAYS[int(patterns.way[row])]
    groups[f"{place}-{configuration.name}"] += 1
    group = f"{place}-{configuration.name}-shared{groups[f'{place}-{configuration.name}']}"
    instances = []
    shares = _shares(scenario, configuration, way, [*zip(phases, batches, sizes, strict=True)])
    for k, (phase, share) in enumerate(zip(phases, shares, strict=True)):
        tokens_s = float(patterns.tokens_s[row, columns[k]])
        node = PlannedNode(
            configuration=configuration.name,
            instance_type=scenario.instance_types[region][c],
            count=1,
            tokens_s=tokens_s,
            traffic_share=1.0,
            batch=batches[k],
        )
        shared = share.model_copy(update={"group": group, "position": k})
        instances.append(
            PlannedInstance(
                name=f"{phase.model.name}-{phase.phase}-{group}",
                model=phase.model.name,
                phase=phase.phase,
                region=place,
                count=1,
                kept=0,
                stages=(
                    PlannedStage(first_layer=0, last_layer=phase.model.layers - 1, nodes=(node,), tokens_s=tokens_s),
                ),
                tokens_s=tokens_s,
                price_usd_h=float(Fraction(float(scenario.price_usd_h[region, c])) * shared.part),
                shared=shared,
            )
        )
    return instances


def _shares(
    scenario: ResolvedScenario,
    configuration: NodeConfiguration,
    way: SharingWay,
    members: Sequence[tuple[ModelPhase, int, int]],
) -> Iterator[PlannedShare]:
    """What the plan says of each (phase, batch, size of slice) of a shared node, whose name and positions come after."""
    share = partial(PlannedShare, group="node", position=0)
    source = throughput_source(scenario.throughput_source)
    if way == "slices":
        parts = [SIZES[size].memory for _, _, size in members]
        for (phase, batch, size), part in zip(members, parts, strict=True):
            own = sliced(configuration, profiles(configuration)[size])
            ms = node_steps(phase, own, source.times(phase.model, own)).ms_of(batch)
            rent = part / sum(parts)
            yield share(step_ms=ms, cycle_ms=ms, memory_share=part / MEMORY, slice=own.gpu.mig, rent_share=rent)
        return
    timed = [(phase, batch, source.times(phase.model, configuration)) for phase, batch, _ in members]
    if way == "swapping":
        sharing = scenario.sharing
        turns = [swap_steps(phase, configuration, times, sharing).ms_of(batch) for phase, batch, times in timed]
        present = present_share(configuration, sharing.asleep_gib, len(members))
        for (phase, _, _), ms in zip(members, turns, strict=True):
            swap = swap_ms(phase, sharing)
            yield share(step_ms=ms, cycle_ms=sum(turns), memory_share=present, swap_ms=swap)
        return
    steps = [(node_steps(phase, configuration, times), batch) for phase, batch, times in timed]
    cycle = sum(item.ms_of(batch) for item, batch in steps)
    for (item, batch), memory in zip(steps, memory_shares(steps, configuration), strict=True):
        yield share(step_ms=item.ms_of(batch), cycle_ms=cycle, memory_share=memory)
