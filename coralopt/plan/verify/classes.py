"""Checks of instances that serve several classes of requests: what they serve of each, and how they share their time."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial

from coralopt.plan.parts import PlannedInstance
from coralopt.plan.verify.inspected import Inspected, differs
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.solving.problem import Violation
from coralopt.solving.tolerance import TOLERANCE
from coralopt.throughput import stage_role


def classes(inspected: Inspected) -> Iterator[Violation]:
    """Classes of every instance of a model that has some, and of no other."""
    phases = {phase.key: phase for phase in inspected.scenario.model_phases}
    for instance, own in inspected.known:
        off = partial(Violation, "figure", instance.name)
        names = [part.model for part in instance.classes]
        if bool(names) != (own.request_class is not None):
            yield off(
                f"{instance.name}: `classes` goes with models whose requests come in classes, and with these always"
            )
            continue
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield off(f"{instance.name}: class {name} is listed more than once")
        time = sum((Fraction(part.time_share) for part in instance.classes), Fraction(0))
        if names and abs(time - 1) > Fraction(TOLERANCE):
            yield off(f"{instance.name}: shares of its time sum to {float(time)!r}, not to 1")
        for part in instance.classes:
            phase = phases.get(f"{part.model}/{instance.phase}")
            if phase is None or phase.request_class is None or phase.served != own.served:
                yield off(f"{instance.name}: {part.model} is no class of {own.served}")
                continue
            speed = _speed(inspected, instance, phase)
            if speed <= 0:
                text = f"{instance.name}: a node of it cannot serve {part.model} within its SLO and memory"
                yield Violation("latency", instance.name, text)
            elif differs(speed, part.tokens_s):
                yield off(f"{instance.name} is given {part.tokens_s!r} tokens/s of {part.model}, recomputed {speed!r}")


def _speed(inspected: Inspected, instance: PlannedInstance, phase: ModelPhase) -> float:
    """Tokens/s of the instance's slowest stage by the tables of a class; 0 where a node cannot do its part."""
    table, count = inspected.tables.plain(phase.key), len(instance.stages)
    speeds = []
    for position, stage in enumerate(instance.stages):
        if count > table.max_stages or not 1 <= stage.layers <= table.layers:
            return 0.0
        cell = (count - 1, stage_role(position, count))
        each = [
            float(table.values[cell][table.configurations.index(n.configuration), stage.layers]) for n in stage.nodes
        ]
        if min(each) <= 0:
            return 0.0
        speeds.append(sum(node.count * speed for node, speed in zip(stage.nodes, each, strict=True)))
    return min(speeds)
