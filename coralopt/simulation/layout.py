"""From a plan to what its serving instances are made of: nodes with KV memory, batch limits and stage times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from coralopt.catalog.mig import sliced
from coralopt.catalog.types import GIB
from coralopt.errors import CoraloptError
from coralopt.plan.bill import rents
from coralopt.plan.document import Plan
from coralopt.plan.parts import PlannedInstance, PlannedNode
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.facts.serving import LEAST_PROMPTS, LEAST_STEP_TOKENS, Serving
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.simulation.config import SimulationConfig
from coralopt.simulation.state import NODE, PHASES, PREFILL, Records
from coralopt.simulation.times import TimesOf, TimeTables
from coralopt.throughput import stage_role, throughput_source
from coralopt.throughput.nodes import HOP_MS, MEMORY_SHARE, cache_bytes, free_bytes, prompt_passes
from coralopt.throughput.roofline import pair_ms
from coralopt.throughput.tables import FIRST, LAST
from coralopt.types import Floats, Ints


@dataclass(frozen=True)
class Blueprint:
    """One serving template in one region, ready to be started any number of times.

    Attributes:
        key: Equal for equal templates in one region; what a new plan is compared by.
        name: Name of the planned instance.
        phase: Index into :data:`coralopt.simulation.state.PHASES`.
        nodes: Records of :data:`coralopt.simulation.state.NODE`, stage by stage, nothing running.
        stage_sizes: Nodes of each stage.
        labels: ``"1xL40S layers 0-10"``, one a node.
        weight: Expected throughput of the instance, tokens/s.
        load_s: Time to load the weights of the slowest node, s.
        group: Name of the node whose GPUs it takes turns on; empty where it has nodes, or slices, of its own.
        serves: (class of requests, tokens/s of it) where it serves several; empty where it serves its model.
    """

    key: tuple[object, ...]
    name: str
    model: str
    phase: int
    region: str
    nodes: Records
    stage_sizes: tuple[int, ...]
    configurations: tuple[str, ...]
    labels: tuple[str, ...]
    weight: float
    price_usd_h: float
    load_s: float
    group: str = ""
    serves: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Layout:
    """What one plan wants to run.

    Attributes:
        plan: The plan.
        scenario: The scenario inside it, validated.
        serving: How engines and the router work.
        wanted: (template, instances of it).
    """

    plan: Plan
    scenario: ResolvedScenario
    serving: Serving
    wanted: tuple[tuple[Blueprint, int], ...]


@dataclass(frozen=True, eq=False)
class Schedule:
    """Which plan is in force when, and which epochs are reported.

    Attributes:
        starts_s: float64 (P,), when each plan takes over, rising from 0.
        layouts: P layouts.
        models: Model names of all plans.
        window_s: Length of the measured window, s.
        epochs_s: float64 (E,), starts of the epochs of the report.
    """

    starts_s: Floats
    layouts: tuple[Layout, ...]
    models: tuple[str, ...]
    window_s: float
    epochs_s: Floats

    def in_force(self, moments_s: Floats) -> Ints:
        """int64 (n,): the plan in force at each moment."""
        return np.searchsorted(self.starts_s, moments_s, side="right") - 1

    def mean(self, by_plan: Sequence[float]) -> float:
        """Mean over the window of a figure that each plan has one of."""
        ends = [*self.starts_s[1:].tolist(), self.window_s]
        spans = np.maximum(0.0, np.minimum(ends, self.window_s) - self.starts_s)
        return float(np.dot(spans / self.window_s, by_plan))


class Draughtsman:
    """Looks up what planned instances name: model phases, node configurations, stage times.

    Args:
        scenario: Model phases and node configurations.
        tables: Stage times; pairs not met before are sampled and added.
        config: Links and start-up; what it says of routing, order and admission goes before what the scenario says.
        source: Layer times; by default the source that the scenario names.
    """

    def __init__(
        self, scenario: ResolvedScenario, tables: TimeTables, config: SimulationConfig, source: TimesOf | None = None
    ) -> None:
        self.tables, self.config, self.serving = tables, config, config.serving(scenario)
        self.times: TimesOf = throughput_source(scenario.throughput_source) if source is None else source
        self.phases = {phase.key: phase for phase in scenario.model_phases}
        self.configurations = {configuration.name: configuration for configuration in scenario.configurations}

    def draw(self, instance: PlannedInstance) -> Blueprint:
        """What one of these equal instances is made of.

        Raises:
            CoraloptError: The scenario does not hold its model phase or a node of it, or a micro-batch is larger than
                the layer times reach.
        """
        if instance.key not in self.phases:
            raise CoraloptError(f"{instance.name}: {instance.key} is not part of the plan's scenario")
        unknown = sorted(set(instance.nodes()) - set(self.configurations))
        if unknown:
            raise CoraloptError(
                f"{instance.name}: node configuration {unknown[0]!r} is not part of the plan's scenario"
            )
        return _blueprint(instance, self.phases[instance.key], self)


def lay_out(plan: Plan, tables: TimeTables, config: SimulationConfig, source: TimesOf | None = None) -> Layout:
    """Look everything up that ``plan`` names; see :class:`Draughtsman`.

    Raises:
        CoraloptError: The plan's scenario is not valid, or the plan names a model phase or node that it does not hold,
            or a micro-batch is larger than the layer times reach.
    """
    scenario = plan.resolved
    draughtsman = Draughtsman(scenario, tables, config, source)
    drawn = [draughtsman.draw(item) for item in plan.instances]
    if plan.node_classes:
        drawn = [replace(item, price_usd_h=rent) for item, rent in zip(drawn, rents(plan), strict=True)]
    counts = (item.count for item in plan.instances)
    return Layout(plan, scenario, draughtsman.serving, tuple(zip(drawn, counts, strict=True)))


def _blueprint(instance: PlannedInstance, phase: ModelPhase, sources: Draughtsman) -> Blueprint:
    records, labels, names, load_s = [], [], [], 0.0
    each = max(phase.mean_input_tokens, 1.0) if instance.phase == "prefill" else 1.0
    # Time of the slowest planned micro-batch of any stage.
    slowest_s = max(n.batch * each / n.tokens_s for stage in instance.stages for n in stage.nodes)
    for s, stage in enumerate(instance.stages):
        part = instance.shared
        share = None if part is None or part.slice is not None else part.memory_share
        place = _Place(
            s, len(instance.stages), stage.layers, slowest_s, share, "" if part is None else part.slice or ""
        )
        for planned in stage.nodes:
            record = _node(phase, planned, place, sources)
            record["swap_s"] = 0.0 if part is None else (part.swap_ms or 0.0) / 1e3
            most = sources.tables.most(int(record["decode_table"][0]))
            if planned.batch > most and instance.phase != "prefill":
                raise CoraloptError(
                    f"{instance.name}: stage {s + 1} has micro-batches of {planned.batch} sequences, "
                    f"its layer times reach {most}; make the plan with the same layer times"
                )
            weights = stage.layers * phase.model.layer_bytes + phase.model.embedding_params
            load_s = max(load_s, weights / (sources.config.weight_load_gb_s * 1e9))
            records += [record] * planned.count
            labels += [f"{planned.configuration} layers {stage.first_layer}-{stage.last_layer}"] * planned.count
            names += [planned.configuration] * planned.count
    shape = tuple(
        (stage.first_layer, stage.last_layer, tuple((n.configuration, n.count, n.batch) for n in stage.nodes))
        for stage in instance.stages
    )
    group = "" if instance.shared is None else instance.shared.group
    alone = instance.shared is None or instance.shared.slice is not None
    return Blueprint(
        key=(instance.model, instance.phase, instance.region, shape, group),
        name=instance.name,
        model=instance.model,
        phase=PHASES.index(instance.phase),
        region=instance.region,
        nodes=np.concatenate(records),
        stage_sizes=tuple(sum(node.count for node in stage.nodes) for stage in instance.stages),
        configurations=tuple(names),
        labels=tuple(labels),
        weight=sum(tokens_s for tokens_s, _ in instance.serves().values()),
        price_usd_h=instance.price_usd_h,
        load_s=load_s,
        group="" if alone else group,
        serves=tuple((part.model, part.time_share * part.tokens_s) for part in instance.classes),
    )


@dataclass(frozen=True)
class _Place:
    """Where a node stands in its instance.

    Attributes:
        stage, stages: Its stage, of how many.
        layers: Layers that it holds.
        slowest_s: Time of the slowest micro-batch of any stage, s.
        memory_share: Share of the GPUs' memory that its engine takes; ``None``: all that engines may.
        slice: MIG slice of the node's GPU that it is; empty for the whole.
    """

    stage: int
    stages: int
    layers: int
    slowest_s: float
    memory_share: float | None
    slice: str


def _node(phase: ModelPhase, planned: PlannedNode, place: _Place, sources: Draughtsman) -> Records:
    """One node, nothing running."""
    configuration, stages, layers = sources.configurations[planned.configuration], place.stages, place.layers
    configuration = sliced(configuration, place.slice) if place.slice else configuration
    model, role = phase.model, stage_role(place.stage, stages)
    record = np.zeros(1, dtype=NODE)
    record["stage"], record["layers"], record["weight"] = place.stage, layers, planned.tokens_s
    room = float(free_bytes(phase, configuration, role, stages)[layers])
    if place.memory_share is not None:
        room -= (MEMORY_SHARE - place.memory_share) * configuration.memory_gib * GIB
    record["capacity"] = max(0, math.floor(room))
    # cache_bytes is linear up to the window and beyond it: two differences give both slopes.
    window = float(model.sliding_window or 0)
    full = cache_bytes(model, configuration, window + 1) - cache_bytes(model, configuration, window)
    inside = cache_bytes(model, configuration, 1.0) - full if window else 0.0
    record["kv_full"], record["kv_window"], record["window"] = layers * full, layers * inside, window
    record["kv_copies"] = model.kv_copies(configuration.count)
    known = sources.tables.index(model, configuration, sources.times)
    record["prefill_table"], record["decode_table"], record["mixed_factor"] = known
    record["batch"] = planned.batch
    # Little's law: what this node must hold at its throughput while its slowest peer works off one micro-batch a stage.
    each = max(phase.mean_input_tokens, 1.0) if phase.phase == PHASES[PREFILL] else 1.0
    in_flight = math.ceil(stages * place.slowest_s * planned.tokens_s / each - 1e-6)
    record["budget_ms"] = phase.budget_ms / stages
    engine, prefill = sources.serving.admission == "preempt", phase.phase == PHASES[PREFILL]
    if engine and prefill:
        # An engine's step is limited by tokens: those of the planned micro-batch of mean prompts.
        record["chunk"] = max(LEAST_STEP_TOKENS, math.ceil(planned.batch * each))
    elif engine:
        # It has one limit of sequences for all stages: a stage with room for fewer does not hold up its peers.
        most = sources.tables.most(int(record["decode_table"][0]))
        record["batch"] = max(planned.batch, min(most, -(-in_flight // stages)))
    if phase.phase == "mixed" or (engine and not prefill):
        # A decode instance computes the prompts, too, of sequences that it preempted.
        record["chunk"] = max(sources.serving.step_tokens, int(record["batch"][0]) + 1)
    if phase.phase == "mixed":
        # Beside the decoding sequences of a micro-batch the prompts that arrive while one is computed, one at least.
        passes = float(prompt_passes(phase.computed_tokens, np.array(planned.batch), phase.serving.step_tokens))
        arriving = planned.batch / max(phase.mean_output_tokens, 1.0)
        record["limit"] = in_flight + stages * math.ceil(arriving * passes)
    elif engine and prefill:
        # The limit of sequences that it is launched with: those inside at planned throughput.
        inside = planned.batch if stages == 1 else math.ceil(phase.slo_ms / 1e3 * planned.tokens_s / each - 1e-6)
        record["limit"] = max(inside, LEAST_PROMPTS)
    else:
        # Prefill: the next micro-batch waits at the first node while the others are in flight.
        record["limit"] = in_flight + (planned.batch if prefill else 0)
    record["pays_head"] = stages == 1 or role == LAST
    if role == FIRST and stages > 1:
        record["token_ms"] += model.hidden * 2.0 / (configuration.gpu.bandwidth_gb_s * 1e6)
    record["hop_ms"] = sources.serving.host_step_ms
    if stages > 1:
        record["hop_ms"] += HOP_MS
        if role != LAST:
            record["token_ms"] += model.hidden * 2.0 / (configuration.network_gb_s * 1e6)
    record["pair_ms"] = pair_ms(model, configuration)
    kv_gb_s = sources.config.kv_gb_s
    record["link"] = (configuration.network_gb_s if kv_gb_s is None else kv_gb_s) * 1e9
    return record


def common_models(layouts: Sequence[Layout]) -> tuple[str, ...]:
    """Model names of all plans, in the order in which they first occur."""
    return tuple(dict.fromkeys(phase.model.name for layout in layouts for phase in layout.scenario.model_phases))
