"""The instances that exist: starting, serving, draining ones, and how a new plan changes them (paper, section 5.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from coralopt.plan.flows import is_routed
from coralopt.plan.parts import share_of
from coralopt.routing import ROUTINGS
from coralopt.scenario.facts.serving import Serving
from coralopt.simulation.config import SimulationConfig
from coralopt.simulation.layout import Blueprint, Layout
from coralopt.simulation.state import (
    ADMISSIONS,
    CLOCK,
    DRAINING,
    GONE,
    INSTANCE,
    MIXED,
    NIL,
    NODE,
    ORDERS,
    PHASES,
    PREFILL,
    READY,
    STARTING,
    Records,
    State,
    empty_lists,
)
from coralopt.simulation.times import TimeTables
from coralopt.types import Floats, Ints


def empty_state(
    requests: Records, models: int, stages: int, tables: TimeTables, config: SimulationConfig, serving: Serving
) -> State:
    """A state with requests and no instance.

    Args:
        requests: All requests, by arrival.
        models: Number of models.
        stages: Most stages an instance of any plan has.
        tables: Stage times of everything in all plans.
        config: Links, noise and seed.
        serving: How engines and the router work.
    """
    clock = np.zeros(1, dtype=CLOCK)
    clock["random"], clock["noise"] = np.random.SeedSequence(config.seed).generate_state(1, np.uint64), config.noise
    clock["routing"], clock["order"] = ROUTINGS.index(serving.routing), ORDERS.index(serving.order)
    clock["admission"], clock["host_request"] = ADMISSIONS.index(serving.admission), serving.host_request_ms / 1e3
    clock["async_scheduling"] = serving.async_scheduling
    clock["kv_latency"], clock["kv_region_latency"] = config.kv_latency_ms / 1e3, config.kv_region_latency_ms / 1e3
    clock["kv_contention"] = config.kv_contention
    none = np.zeros(0, dtype=np.int64)
    return State(
        requests=requests,
        routes=np.full((len(requests), 2 * stages), -1, dtype=np.int32),
        instances=np.zeros(0, dtype=INSTANCE),
        stage_first=np.zeros((0, stages + 1), dtype=np.int64),
        nodes=np.zeros(0, dtype=NODE),
        members=np.zeros((3 * models, 0), dtype=np.int64),
        member_count=np.zeros(3 * models, dtype=np.int64),
        weights=np.zeros((3 * models, 0)),
        credits=np.zeros((3 * models, 0)),
        entry=np.tile([1.0, 0.0, 0.0], (models, 1)),
        entry_credit=np.zeros((models, 3)),
        paths=np.zeros((models, 0, 0)),
        pool_list=empty_lists(3 * models),
        gate_list=empty_lists(0),
        instance_list=empty_lists(0),
        late_list=empty_lists(0),
        returned_list=empty_lists(0),
        arrived_list=empty_lists(0),
        decode_list=empty_lists(0),
        prompt_list=empty_lists(0),
        batch_list=empty_lists(0),
        slots=np.zeros((0, stages), dtype=np.int64),
        freed_at=np.zeros((0, stages)),
        tables=tables.tables,
        tokens=tables.tokens,
        values=tables.values,
        # One event a transfer and one a busy node; the heap grows with the nodes.
        heap_time=np.zeros(len(requests) + 1),
        heap_what=np.zeros((len(requests) + 1, 3), dtype=np.int64),
        touched_instances=none,
        touched_nodes=none,
        clock=clock,
    )


@dataclass
class Fleet:
    """All instances that ever existed, and what is due to happen to them.

    Attributes:
        state: The arrays; replaced whenever instances are added.
        models: Model names; a pool is ``3 * model + phase``.
        regions: Region names met so far.
        config: Start-up and draining.
        blueprints: The template of each instance.
        ready: (time, instance) of those that start.
        drains: (time, model, instances that drain from then on, shares of its new requests by phase from then on).
    """

    state: State
    models: tuple[str, ...]
    config: SimulationConfig
    regions: list[str] = field(default_factory=list)
    blueprints: list[Blueprint] = field(default_factory=list)
    ready: list[tuple[float, int]] = field(default_factory=list)
    drains: list[tuple[float, int, tuple[int, ...], Floats]] = field(default_factory=list)

    def connect(self, layouts: Sequence[Layout]) -> None:
        """Let KV caches go where the plan sends them, or, with several plans, wherever the scenario lets them go."""
        if not any(is_routed(layout.scenario) for layout in layouts):
            return
        self.regions = list(dict.fromkeys(region for layout in layouts for region in layout.scenario.regions))
        paths = np.zeros((len(self.models), len(self.regions), len(self.regions)))
        for diagonal in range(len(self.regions)):
            paths[:, diagonal, diagonal] = np.inf
        for layout in layouts:
            flows = {(flow.model, flow.prefill_region, flow.decode_region) for flow in layout.plan.flows}
            for link in layout.scenario.kv_transfer.links:
                rate = np.inf if link.gbit_s is None else link.gbit_s * 1e9 / 8
                for m, model in enumerate(self.models):
                    if len(layouts) > 1 or (model, link.source, link.target) in flows:
                        paths[m, self.regions.index(link.source), self.regions.index(link.target)] = rate
        self.state = self.state._replace(paths=paths)

    def next_time(self) -> float:
        """When something is due next, s; infinity for never."""
        times = [time for time, _ in self.ready] + [item[0] for item in self.drains]
        return min(times, default=math.inf)

    def apply(self, layout: Layout, now: float, at_once: bool) -> None:
        """Reconcile with a plan: start what is missing, drain what is too much, the least loaded first.

        Args:
            layout: The plan.
            now: Time, s.
            at_once: New instances serve immediately (the warm start).
        """
        # Only what the new plan says counts: instances an older plan meant to drain later are looked at anew.
        self.drains.clear()
        left = {blueprint.key: count for blueprint, count in layout.wanted}
        surplus: list[int] = []
        for i in self._by_falling_load():
            key = self.blueprints[i].key
            if left.get(key, 0) > 0:
                left[key] -= 1
            else:
                surplus.append(i)
        latest = dict.fromkeys(range(len(self.models)), now)
        groups: dict[str, list[list[int]]] = {}
        for blueprint, _ in layout.wanted:
            model = self.models.index(blueprint.model)
            start = self.config.node_start_s + blueprint.load_s + self.config.warm_up_s
            ready = now if at_once else now + start
            added = [self.add(blueprint, now) for _ in range(left[blueprint.key])]
            self.ready += [(ready, i) for i in added]
            if added:
                latest[model] = max(latest[model], ready)
            if blueprint.group:
                groups.setdefault(blueprint.group, []).append(added)
        for members in groups.values():
            for sharing in zip(*members, strict=True):
                self.share([int(self.state.stage_first[i, 0]) for i in sharing])
        for time, i in self.ready:
            if i in surplus:
                continue
            model = int(self.state.instances["pool"][i]) // 3
            latest[model] = max(latest[model], time)
        known = {phase.key for phase in layout.scenario.model_phases}
        for m, name in enumerate(self.models):
            entry = np.zeros(3)
            for phase in (PREFILL, MIXED):
                label = f"{name}/{PHASES[phase]}"
                entry[phase] = share_of(layout.plan.modes, label) if label in known else 0.0
            if not entry.any():
                entry = self.state.entry[m].copy()
            drained = tuple(i for i in surplus if self.state.instances["pool"][i] // 3 == m)
            self.drains.append((latest[m] if self.config.overlap else now, m, drained, entry))
        self.advance(now)

    def advance(self, now: float) -> None:
        """Do what is due at ``now``: instances begin to serve, then others drain."""
        pools: set[int] = set()
        for time, i in [item for item in self.ready if item[0] <= now]:
            self.ready.remove((time, i))
            if self.state.instances["state"][i] == STARTING:
                self.state.instances["state"][i] = READY
                self.state.instances["ready_at"][i] = now
                pools |= self._pools_of(i)
        for item in [item for item in self.drains if item[0] <= now]:
            self.drains.remove(item)
            _, model, drained, entry = item
            self.state.entry[model] = entry
            for i in drained:
                self._drain(i, now)
                pools |= self._pools_of(i)
        for pool in sorted(pools):
            self._list_members(pool)
        waited_for = [pool for pool in sorted(pools) if self.state.member_count[pool] and self.state.pool_list[pool, 2]]
        if waited_for:
            from coralopt.simulation.events import route_waiting

            for pool in waited_for:
                route_waiting(self.state, pool, now)

    def _by_falling_load(self) -> list[int]:
        """Instances that start or serve: those to keep come first (serving, most loaded, oldest)."""
        instances = self.state.instances
        alive = [i for i in range(len(instances)) if instances["state"][i] in (STARTING, READY)]
        return sorted(alive, key=lambda i: (instances["state"][i] != READY, -int(instances["inside"][i]), i))

    def _drain(self, i: int, now: float) -> None:
        instance = self.state.instances[i : i + 1]
        if instance["state"][0] == STARTING or instance["inside"][0] == 0:
            instance["state"], instance["gone_at"] = GONE, now
        else:
            instance["state"] = DRAINING

    def _pools_of(self, i: int) -> set[int]:
        """Pools that an instance takes requests of."""
        return set(np.flatnonzero(self.state.weights[:, i]).tolist())

    def _list_members(self, pool: int) -> None:
        instances = self.state.instances
        serving = np.flatnonzero((self.state.weights[pool, : len(instances)] > 0) & (instances["state"] == READY))
        self.state.members[pool, : len(serving)] = serving
        self.state.member_count[pool] = len(serving)

    def share(self, nodes: Sequence[int]) -> None:
        """Let nodes take turns on the same GPUs, in this order."""
        following = [*nodes[1:], *nodes[:1]]
        self.state.nodes["peer"][list(nodes)] = np.array(following) - np.array(nodes)
        # Where weights come and go, the first turn is the first node's.
        self.state.nodes["turn"][nodes[-1]] = 1

    def add(self, blueprint: Blueprint, now: float) -> int:
        """One more instance, still starting."""
        state, i = self.state, len(self.blueprints)
        if blueprint.region not in self.regions:
            self.regions.append(blueprint.region)
        instance = np.zeros(1, dtype=INSTANCE)
        instance["pool"] = 3 * self.models.index(blueprint.model) + blueprint.phase
        instance["phase"], instance["region"] = blueprint.phase, self.regions.index(blueprint.region)
        instance["stages"], instance["weight"] = len(blueprint.stage_sizes), blueprint.weight
        instance["started_at"] = instance["area_at"] = now
        instance["ready_at"] = instance["gone_at"] = np.nan
        instance["price_usd_h"], instance["youngest"] = blueprint.price_usd_h, NIL
        nodes = blueprint.nodes.copy()
        nodes["instance"] = i
        first = np.full((1, state.stage_first.shape[1]), len(state.nodes) + len(nodes), dtype=np.int64)
        first[0, : len(blueprint.stage_sizes)] = len(state.nodes) + np.cumsum((0, *blueprint.stage_sizes[:-1]))
        more: dict[str, Records | Ints | Floats] = {
            "instances": instance,
            "stage_first": first,
            "nodes": nodes,
            **dict.fromkeys(
                ("gate_list", "instance_list", "late_list", "returned_list", "arrived_list"), empty_lists(1)
            ),
            **dict.fromkeys(("decode_list", "prompt_list", "batch_list"), empty_lists(len(nodes))),
            "slots": np.zeros((len(nodes), state.slots.shape[1]), dtype=np.int64),
            "freed_at": np.zeros((len(nodes), state.slots.shape[1])),
            # One event a busy node.
            "heap_time": np.zeros(len(nodes)),
            "heap_what": np.zeros((len(nodes), 3), dtype=np.int64),
            "touched_instances": np.zeros(1, dtype=np.int64),
            "touched_nodes": np.zeros(len(nodes), dtype=np.int64),
        }
        grown = {name: np.concatenate([getattr(state, name), rows]) for name, rows in more.items()}
        # Room for as many again whenever it is full.
        members, weights, credits = state.members, state.weights, state.credits
        if i >= members.shape[1]:
            room = ((0, 0), (0, max(16, i)))
            members, weights, credits = np.pad(members, room), np.pad(weights, room), np.pad(credits, room)
        for model, tokens_s in blueprint.serves or ((blueprint.model, blueprint.weight),):
            weights[3 * self.models.index(model) + blueprint.phase, i] = tokens_s
        self.state = state._replace(members=members, weights=weights, credits=credits, **grown)
        self.blueprints.append(blueprint)
        return i


def labels(blueprints: Sequence[Blueprint]) -> tuple[Ints, list[str], list[str]]:
    """For every node of all instances in order: its instance, label and configuration."""
    owner = np.repeat(np.arange(len(blueprints)), [len(blueprint.nodes) for blueprint in blueprints])
    names = [label for blueprint in blueprints for label in blueprint.labels]
    configurations = [name for blueprint in blueprints for name in blueprint.configurations]
    return owner.astype(np.int64), names, configurations
