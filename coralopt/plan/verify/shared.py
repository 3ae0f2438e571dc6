"""Checks of shared nodes: who shares one, what its steps take, and that every SLO and the memory are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import numpy as np

from coralopt.plan.document import PlannedInstance, PlannedShare
from coralopt.plan.verify.inspected import Inspected, differs
from coralopt.scenario.resolved import ModelPhase
from coralopt.solving.problem import Violation
from coralopt.solving.tolerance import TOLERANCE
from coralopt.throughput.steps import NodeSteps, StepTable, node_steps, shared_bytes

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
    if not re.fullmatch(re.escape(f"{first.region}-{next(iter(first.nodes()))}-shared") + "[1-9][0-9]*", name):
        return "is not named after its region and node"
    return None


def _cycle(name: str, members: list[_Member], inspected: Inspected) -> Iterator[Violation]:
    """Steps, throughput and memory of a group, from layer times."""
    configuration = next(
        item for item in inspected.scenario.configurations if item.name == next(iter(members[0][0].nodes()))
    )
    off = partial(Violation, "figure", name)
    steps: list[NodeSteps] = []
    places: list[int] = []
    for instance, _, phase in members:
        if (
            inspected.tables.plain(phase.key).values[0, 0, inspected.scenario.configurations.index(configuration), -1]
            <= 0
        ):
            yield Violation("memory", name, f"{name}: {configuration.name} cannot serve {phase.key} even alone")
            return
        steps.append(node_steps(phase, configuration, inspected.tables.source.times(phase.model, configuration)))
        batch = instance.stages[0].nodes[0].batch
        if batch not in steps[-1].batch:
            yield off(f"{instance.name}: batches of {batch} are none that its layer times are looked at for")
            return
        places.append(steps[-1].batch.tolist().index(batch))
    table = StepTable.of(steps, configuration)
    sets, place = np.arange(len(members))[None, :], np.array([places])
    if not table.fits(sets, place)[0]:
        text = f"{name}: its steps take {table.cycle_ms(sets, place)[0]:.3f} ms; that, or their memory, breaks a limit"
        yield Violation("latency", name, text)
    cycle = float(table.cycle_ms(sets, place)[0])
    for (instance, share, _), each, k, tokens_s in zip(
        members, steps, places, table.tokens_s(sets, place)[0], strict=True
    ):
        node = instance.stages[0].nodes[0]
        for what, stated, computed in (
            ("step_ms", share.step_ms, float(each.ms[k])),
            ("cycle_ms", share.cycle_ms, cycle),
            ("throughput", instance.tokens_s, float(tokens_s)),
            ("throughput of its stage", instance.stages[0].tokens_s, float(tokens_s)),
            ("throughput of its node", node.tokens_s, float(tokens_s)),
            ("traffic share", node.traffic_share, 1.0),
        ):
            if differs(stated, computed):
                yield off(f"{instance.name}: {what} is {stated!r}, recomputed {computed!r}")
        if instance.stages[0].latency_budget_ms is not None:
            yield off(f"{instance.name}: has a latency budget of its own on a shared node")
        needs = each.fixed_bytes + each.kv_bytes(node.batch)
        if share.memory_share * configuration.memory_gib * 2**30 < needs * (1 - TOLERANCE):
            text = f"{instance.name}: {share.memory_share:.2%} of {configuration.name}'s memory do not hold its batch"
            yield Violation("memory", instance.name, text)
    total = sum(share.memory_share for _, share, _ in members) * configuration.memory_gib * 2**30
    if total > shared_bytes(configuration) * (1 + TOLERANCE):
        yield Violation("memory", name, f"{name}: its engines take more memory than the node's engines may")
