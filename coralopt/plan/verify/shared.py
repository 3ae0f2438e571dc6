"""Checks of shared nodes: who shares one and how, what steps take, and that every SLO and the memory are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from coralopt.catalog.mig import MEMORY, SIZES, fits_together, profiles, sliced
from coralopt.catalog.types import GIB, NodeConfiguration
from coralopt.plan.parts import PlannedInstance, PlannedShare
from coralopt.plan.verify.inspected import Inspected, differs
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.solving.problem import Violation
from coralopt.solving.tolerance import TOLERANCE
from coralopt.throughput.steps import NodeSteps, StepTable, node_steps, present_share, shared_bytes
from coralopt.throughput.swapping import swap_ms, swap_steps

#: An instance, what the plan says of its share, and its model phase.
_Member = tuple[PlannedInstance, PlannedShare, ModelPhase]


def shared_nodes(inspected: Inspected) -> Iterator[Violation]:
    """Every group of instances that share nodes."""
    groups: dict[str, list[_Member]] = {}
    for instance, phase in inspected.known:
        if instance.shared is not None:
            groups.setdefault(instance.shared.group, []).append((instance, instance.shared, phase))
    for name, members in groups.items():
        problem = _company(name, members, inspected)
        if problem:
            yield Violation("placement", name, f"{name}: {problem}")
        elif members[0][1].slice is not None:
            yield from _slices(name, members, inspected)
        else:
            yield from _cycle(name, members, inspected)


def _company(name: str, members: list[_Member], inspected: Inspected) -> str | None:
    """What is off about who shares the node, and which it is; ``None`` where nothing is."""
    most, first = inspected.scenario.sharing.models, members[0][0]
    models = [phase.model.name for _, _, phase in members]
    if not 2 <= len(members) <= most or len(set(models)) < len(models):
        return f"instances of {', '.join(models)} share it; sharing allows up to {most} models, each once"
    if sorted(share.position for _, share, _ in members) != list(range(len(members))):
        return "positions are not 0, 1, ... once each"
    if len({(instance.region, instance.count) for instance, _, _ in members}) > 1:
        return "its instances differ in region or count"
    if any(instance.nodes() != first.nodes() for instance, _, _ in members) or sum(first.nodes().values()) != 1:
        return "its instances do not stand on one and the same node"
    for instance, _, phase in members:
        if len(instance.stages) != 1 or (instance.stages[0].first_layer, instance.stages[0].layers) != (
            0,
            phase.model.layers,
        ):
            return f"{instance.name} does not hold all layers of its model there"
    ways = {share.way for _, share, _ in members}
    if len(ways) > 1 or not ways <= set(inspected.scenario.sharing.ways):
        allowed = ", ".join(inspected.scenario.sharing.ways)
        return f"it is shared by {' and '.join(sorted(ways))}, sharing allows one of: {allowed}"
    if not re.fullmatch(re.escape(f"{first.region}-{next(iter(first.nodes()))}-shared") + "[1-9][0-9]*", name):
        return "is not named after its region and node"
    return None


def _configuration(members: list[_Member], inspected: Inspected) -> NodeConfiguration:
    node = next(iter(members[0][0].nodes()))
    return next(item for item in inspected.scenario.configurations if item.name == node)


def _slices(name: str, members: list[_Member], inspected: Inspected) -> Iterator[Violation]:
    """Every slice by itself, and that the GPU can be divided so."""
    configuration, source = _configuration(members, inspected), inspected.tables.source
    known = profiles(configuration)
    unknown = [share.slice for _, share, _ in members if share.slice not in known]
    if unknown:
        yield Violation("placement", name, f"{name}: {configuration.name} has no slices {unknown[0]}")
        return
    sizes = tuple(known.index(share.slice or "") for _, share, _ in members)
    if not fits_together(sizes):
        yield Violation("placement", name, f"{name}: no GPU has room for these slices beside each other")
    parts = sum(SIZES[size].memory for size in sizes)
    for (instance, share, phase), size in zip(members, sizes, strict=True):
        own = sliced(configuration, known[size])
        steps = node_steps(phase, own, source.times(phase.model, own))
        places = _places([steps], [(instance, share, phase)])
        if isinstance(places, Violation):
            yield places
            continue
        (place,) = places
        table, where = StepTable.of([steps], own), (np.zeros((1, 1), dtype=np.int64), np.array([[place]]))
        if not table.fits(*where)[0]:
            text = f"{instance.name}: its step of {steps.ms[place]:.3f} ms, or its memory, breaks a limit on its slice"
            yield Violation("latency", instance.name, text)
        yield from _figures(
            (instance, share),
            float(table.tokens_s(*where)[0, 0]),
            (("step_ms", share.step_ms, float(steps.ms[place])), ("cycle_ms", share.cycle_ms, float(steps.ms[place]))),
        )
        memory = SIZES[size].memory
        yield from _stated(
            instance,
            (
                ("memory_share", share.memory_share, memory / MEMORY),
                ("rent_share", share.rent_share or 0.0, memory / parts),
            ),
        )


def _places(steps: list[NodeSteps], members: list[_Member]) -> list[int] | Violation:
    """The position of every member's batch in its steps, or what is off about one."""
    places = []
    for (instance, _, _), own in zip(members, steps, strict=True):
        batch = instance.stages[0].nodes[0].batch
        if batch not in own.batch:
            text = f"{instance.name}: batches of {batch} are none that its layer times are looked at for"
            return Violation("figure", instance.name, text)
        places.append(own.batch.tolist().index(batch))
    return places


def _cycle(name: str, members: list[_Member], inspected: Inspected) -> Iterator[Violation]:
    """Steps or turns, throughput and memory of a group, from layer times."""
    configuration, source, sharing = (
        _configuration(members, inspected),
        inspected.tables.source,
        inspected.scenario.sharing,
    )
    swapped = members[0][1].swap_ms is not None
    for _, _, phase in members:
        index = inspected.scenario.configurations.index(configuration)
        if inspected.tables.plain(phase.key).values[0, 0, index, -1] <= 0:
            yield Violation("memory", name, f"{name}: {configuration.name} cannot serve {phase.key} even alone")
            return

    def steps_of(phase: ModelPhase) -> NodeSteps:
        times = source.times(phase.model, configuration)
        if swapped:
            return swap_steps(phase, configuration, times, sharing)
        return node_steps(phase, configuration, times)

    steps = [steps_of(phase) for _, _, phase in members]
    places = _places(steps, members)
    if isinstance(places, Violation):
        yield places
        return
    table = StepTable.of(steps, configuration, sharing.asleep_gib if swapped else None)
    sets, place = np.arange(len(members))[None, :], np.array([places])
    if not table.fits(sets, place)[0]:
        text = f"{name}: its steps take {table.cycle_ms(sets, place)[0]:.3f} ms; that, or their memory, breaks a limit"
        yield Violation("latency", name, text)
    cycle = float(table.cycle_ms(sets, place)[0])
    for (instance, share, phase), each, k, tokens_s in zip(
        members, steps, places, table.tokens_s(sets, place)[0], strict=True
    ):
        times = (("step_ms", share.step_ms, float(each.ms[k])), ("cycle_ms", share.cycle_ms, cycle))
        yield from _figures((instance, share), float(tokens_s), times)
        if share.swap_ms is not None:
            present = present_share(configuration, sharing.asleep_gib, len(members))
            own = (("swap_ms", share.swap_ms, swap_ms(phase, sharing)), ("memory_share", share.memory_share, present))
            yield from _stated(instance, own)
        batch = instance.stages[0].nodes[0].batch
        needs = each.fixed_bytes + each.kv_bytes(batch)
        if share.memory_share * configuration.memory_gib * GIB < needs * (1 - TOLERANCE):
            text = f"{instance.name}: {share.memory_share:.2%} of {configuration.name}'s memory do not hold its batch"
            yield Violation("memory", instance.name, text)
    total = sum(share.memory_share for _, share, _ in members) * configuration.memory_gib * GIB
    if not swapped and total > shared_bytes(configuration) * (1 + TOLERANCE):
        yield Violation("memory", name, f"{name}: its engines take more memory than the node's engines may")


#: (what a plan states, the figure there, recomputed).
_Stated = tuple[tuple[str, float, float], ...]


def _stated(instance: PlannedInstance, figures: _Stated) -> Iterator[Violation]:
    for what, stated, computed in figures:
        if differs(stated, computed):
            text = f"{instance.name}: {what} is {stated!r}, recomputed {computed!r}"
            yield Violation("figure", instance.name, text)


def _figures(member: tuple[PlannedInstance, PlannedShare], tokens_s: float, times: _Stated) -> Iterator[Violation]:
    """Times and throughput of an instance wherever the plan states them."""
    instance, _ = member
    node = instance.stages[0].nodes[0]
    throughput: _Stated = (
        ("throughput", instance.tokens_s, tokens_s),
        ("throughput of its stage", instance.stages[0].tokens_s, tokens_s),
        ("throughput of its node", node.tokens_s, tokens_s),
        ("traffic share", node.traffic_share, 1.0),
    )
    yield from _stated(instance, (*times, *throughput))
    if instance.stages[0].latency_budget_ms is not None:
        text = f"{instance.name}: has a latency budget of its own on a shared node"
        yield Violation("figure", instance.name, text)
