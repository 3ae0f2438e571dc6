"""Checks of single instances: their names, placements, prices, and the nodes that they take together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cache, partial

from coralopt.catalog.types import GIB
from coralopt.placement import Placement, Stage, best_placement, engine_limits
from coralopt.plan.parts import PlannedInstance, PlannedStage
from coralopt.plan.verify.inspected import Inspected, differs
from coralopt.plan.verify.rent import list_price, used_nodes
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.solving import Backend, get_backend
from coralopt.solving.problem import Violation, ViolationKind
from coralopt.solving.tolerance import TOLERANCE
from coralopt.throughput import ThroughputTables, stage_role

#: Planners whose placements are not meant to be the best of their nodes; they must still not claim more than the best.
OTHER_PLACEMENTS = ("hexgen",)


def names(inspected: Inspected) -> Iterator[Violation]:
    """Every name is one of the scenario, and an instance is called what it is."""
    off = partial(Violation, "scenario")
    known = {id(instance) for instance, _ in inspected.known}
    for instance in inspected.plan.instances:
        if id(instance) not in known:
            text = f"{instance.name}: its model phase, region or a node configuration is not part of the scenario"
            yield off(instance.name, text)
    stated = [instance.name for instance in inspected.plan.instances]
    for name in sorted({name for name in stated if stated.count(name) > 1}):
        yield off(name, f"{name}: the name occurs more than once")
    for instance, _ in inspected.known:
        nodes = instance.nodes()
        parts = [
            host.name if nodes[host.name] == 1 else f"{nodes[host.name]}of{host.name}"
            for host in inspected.scenario.configurations
            if host.name in nodes
        ]
        name = "-".join((instance.model, instance.phase, instance.region, *parts))
        if instance.shared is not None:
            name = f"{instance.model}-{instance.phase}-{instance.shared.group}"
        if instance.name != name:
            yield off(instance.name, f"{instance.name!r} is the name of an instance that must be called {name!r}")


def placements(inspected: Inspected) -> Iterator[Violation]:
    """Layers, nodes, throughput, traffic and latency of every stage of every instance."""
    for instance, phase in inspected.known:
        yield from _node_set(instance, phase, inspected)
        if instance.shared is not None:
            # Its node is looked at with all that share it.
            continue
        if len(instance.stages) > inspected.tables.plain(phase.key).max_stages:
            text = f"{instance.name}: {len(instance.stages)} stages, more than its nodes allow"
            yield Violation("placement", instance.name, text)
        else:
            yield from _pipeline(instance, phase, inspected)


def _node_set(instance: PlannedInstance, phase: ModelPhase, inspected: Inspected) -> Iterator[Violation]:
    scenario, counts = inspected.scenario, instance.nodes()
    nodes = sum(counts.values())
    if nodes > scenario.max_nodes:
        text = f"{instance.name}: {nodes} nodes, more than max_nodes {scenario.max_nodes}"
        yield Violation("placement", instance.name, text)
    memory = sum(counts.get(host.name, 0) * host.memory_gib for host in scenario.configurations)
    cap = scenario.memory_ratio * phase.model.weight_bytes / GIB
    if nodes > 1 and memory >= cap:
        text = f"{instance.name}: {memory:.1f} GiB of GPU memory, not below memory_ratio's {cap:.1f} GiB"
        yield Violation("memory", instance.name, text)
    hosts = scenario.configurations
    placement = Placement(
        tuple(
            Stage(s.layers, tuple(sum(n.count for n in s.nodes if n.configuration == host.name) for host in hosts))
            for s in instance.stages
        )
    )
    gpus = [host.count for host in hosts]
    for limit in engine_limits(scenario.placement.engine).violations(placement, gpus):
        yield Violation(limit.kind, instance.name, f"{instance.name}: {limit}")


def _pipeline(instance: PlannedInstance, phase: ModelPhase, inspected: Inspected) -> Iterator[Violation]:
    count, layers = len(instance.stages), phase.model.layers
    expected_first, slowest, latency_ms = 0, float("inf"), 0.0
    for position, stage in enumerate(instance.stages):
        where = f"{instance.name}: stage {position + 1}"
        if stage.first_layer != expected_first or not 1 <= stage.layers <= layers:
            text = f"{where} holds layers {stage.first_layer}-{stage.last_layer}, expected to begin at {expected_first}"
            yield Violation("placement", instance.name, text)
        expected_first = stage.last_layer + 1
        if not 1 <= stage.layers <= layers:
            continue
        table = inspected.tables.of_stage(phase, instance, position)
        if isinstance(table, str):
            yield Violation("latency", instance.name, f"{where} {table}")
            continue
        role = stage_role(position, count)
        total, stage_ms = 0.0, 0.0
        for node in stage.nodes:
            c = table.configurations.index(node.configuration)
            total += node.count * float(table.values[count - 1, role, c, stage.layers])
            stage_ms = max(stage_ms, float(table.stage_ms[count - 1, role, c, stage.layers]))
        for kind, text in _nodes(stage, table, (count - 1, role), total):
            yield Violation(kind, instance.name, f"{where}: {text}")
        if differs(total, stage.tokens_s):
            text = f"{where} is given {stage.tokens_s!r} tokens/s, its nodes sum to {total!r}"
            yield Violation("figure", instance.name, text)
        slowest, latency_ms = min(slowest, total), latency_ms + stage_ms
    if expected_first != layers:
        text = f"{instance.name}: the stages hold {expected_first} layers, the model has {layers}"
        yield Violation("placement", instance.name, text)
    if differs(slowest, instance.tokens_s):
        text = f"{instance.name} is given {instance.tokens_s!r} tokens/s, its slowest stage has {slowest!r}"
        yield Violation("figure", instance.name, text)
    room = f" less {phase.latency_headroom:.0%} headroom" if phase.latency_headroom else ""
    budgets = [stage.latency_budget_ms for stage in instance.stages]
    given_ms = sum(phase.budget_ms / count if budget is None else budget for budget in budgets)
    for what, ms in (("latency budgets add up to", given_ms), ("stages take", latency_ms)):
        if ms > phase.budget_ms * (1 + TOLERANCE):
            text = f"{instance.name}: its {what} {ms:.3f} ms, more than the SLO of {phase.slo_ms:g} ms{room}"
            yield Violation("latency", instance.name, text)


def _nodes(
    stage: PlannedStage, table: ThroughputTables, cell: tuple[int, int], total: float
) -> Iterator[tuple[ViolationKind, str]]:
    """What is off about the nodes of one stage, of which all together sustain ``total`` tokens/s."""
    stated = [node.configuration for node in stage.nodes]
    for name in sorted({name for name in stated if stated.count(name) > 1}):
        yield "figure", f"{name} is listed more than once"
    for node in stage.nodes:
        c, name = table.configurations.index(node.configuration), node.configuration
        speed = float(table.values[cell][c, stage.layers])
        if speed <= 0:
            yield "memory", f"{name} cannot hold {stage.layers} layers within its latency budget"
        elif differs(speed, node.tokens_s):
            yield "figure", f"{name} is given {node.tokens_s!r} tokens/s, recomputed {speed!r}"
        if node.batch != int(table.batch[cell][c, stage.layers]):
            yield "figure", f"{name} is given batch {node.batch}, recomputed another"
        if total > 0 and differs(node.traffic_share, speed / total):
            yield "figure", f"{name} has traffic share {node.traffic_share!r}, not its share of T"


@cache
def _sweep() -> Backend:
    """The dynamic programme; looked up once, for that reads the metadata of every package there is."""
    return get_backend("dp")


def optimality(inspected: Inspected) -> Iterator[Violation]:
    """No better placement of the nodes of an instance exists, by the dynamic programme; or its own is as good as it says."""
    reached: dict[tuple[str, frozenset[tuple[str, int]]], float] = {}
    for instance, phase in inspected.known:
        nodes = instance.nodes()
        if sum(nodes.values()) > inspected.scenario.max_nodes or instance.shared is not None:
            continue
        key = (phase.key, frozenset(nodes.items()))
        if key not in reached:
            reached[key] = best_placement(inspected.tables.problem(phase, nodes), solver=_sweep()).objective
        best = reached[key]
        # For a share of requests nodes may be cut so that each sends less of the KV caches.
        other = inspected.plan.planner in OTHER_PLACEMENTS or phase.attainment is not None
        if other and instance.tokens_s <= best * (1 + TOLERANCE):
            continue
        if differs(best, instance.tokens_s):
            text = f"{instance.name}: a placement of these nodes reaches {best!r} tokens/s, not {instance.tokens_s!r}"
            yield Violation("optimality", instance.name, text)


def prices(inspected: Inspected) -> Iterator[Violation]:
    """List prices and instance types of the nodes."""
    scenario = inspected.scenario
    index = {host.name: c for c, host in enumerate(scenario.configurations)}
    for instance, _ in inspected.known:
        off, r = partial(Violation, "price", instance.name), scenario.regions.index(instance.region)
        price = sum(
            (n * list_price(scenario, instance.region, name) for name, n in instance.nodes().items()), Fraction(0)
        )
        if instance.shared is not None:
            price *= instance.shared.part
        if differs(float(price), instance.price_usd_h):
            yield off(f"{instance.name} is priced {instance.price_usd_h!r} USD/h, its nodes sum to {float(price)!r}")
        for name in instance.nodes():
            if math.isnan(scenario.price_usd_h[r, index[name]]):
                yield off(f"{instance.name}: {name} has no price in {instance.region}")
        for node in (node for stage in instance.stages for node in stage.nodes):
            sold_as = scenario.instance_types[r][index[node.configuration]]
            if node.instance_type != sold_as:
                text = f"{node.configuration} is called {node.instance_type}, the scenario says {sold_as}"
                yield Violation("figure", instance.name, f"{instance.name}: {text}")


def capacity(inspected: Inspected) -> Iterator[Violation]:
    """No more nodes of a kind are used in a region than there are."""
    used = used_nodes(inspected.known)
    for c, configuration in enumerate(inspected.scenario.configurations):
        for r, region in enumerate(inspected.scenario.regions):
            have = int(inspected.scenario.availability[r, c])
            take = used.get((region, configuration.name), 0)
            if take > have:
                text = f"{region}: {take} nodes of {configuration.name} are used, {have} are available"
                yield Violation("capacity", f"{configuration.name} in {region}", text)
