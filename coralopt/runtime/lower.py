"""Lowering: from a plan to the processes that serve it. Pure: nothing is started, opened or looked up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from pydantic import TypeAdapter, ValidationError

from coralopt.catalog.types import Gpu
from coralopt.errors import PlanError
from coralopt.plan import Plan, PlannedInstance
from coralopt.plan.flows import variant_shares
from coralopt.runtime.engine import Engine, NodeJob
from coralopt.runtime.launch import Launch, NodeLaunch, Pipeline, PipelineLaunch
from coralopt.runtime.naming import dns_label
from coralopt.scenario.facts.phases import ModelPhase, RequestClass

#: Port by use, where every process has a machine of its own: HTTP API, rendezvous of a pipeline, KV caches.
BASE_PORTS = {"http": 8000, "rendezvous": 29500, "kv": 5600}
#: More nodes than one launch is made for; beyond, its files alone would take minutes and gigabytes.
MOST_NODES = 20_000
_INSTANCES = TypeAdapter(tuple[PlannedInstance, ...])


class OneNodeEach:
    """Where machines are and which ports are free there: each is a planned node, reached under its name or an address.

    Other targets override what differs there.

    Args:
        addresses: Machine name -> address; the name itself where there is none.
    """

    def __init__(self, addresses: Mapping[str, str] | None = None) -> None:
        self._addresses = addresses or {}
        self._taken: Counter[tuple[str, str]] = Counter()

    def host(self, pipeline: str, node: str, machine: str) -> str:
        """Address under which others reach the node."""
        return self._addresses.get(machine, machine)

    def bind(self, host: str) -> str:
        """Address that the HTTP server of a head on ``host`` binds to."""
        return host

    def port(self, machine: str, use: str) -> int:
        """A port of ``machine`` that nothing else of the launch listens on."""
        self._taken[machine, use] += 1
        return BASE_PORTS[use] + self._taken[machine, use] - 1

    def devices(self, machine: str, gpus: tuple[int, ...], gpu: str) -> tuple[int, ...]:
        """Device indices that stand for the planned node's ``gpus``, of type ``gpu``, on the machine at hand."""
        return gpus

    #: Whether a MIG slice stands for a machine of its own.
    slices_apart = False

    def crowded(self) -> bool:
        """Whether all nodes share one machine, so that each process must be shown its own devices."""
        return False


def check(plan: Plan, engine: Engine) -> Launch:
    """The verdicts alone: a launch without pipelines.

    Raises:
        PlanError: The plan and the scenario in it do not fit together.
        ScenarioError: The scenario in the plan is not valid.
    """
    return Launch(engine.name, (), engine.judge(plan, plan.resolved))


def lower(
    plan: Plan,
    engine: Engine,
    addresses: OneNodeEach | None = None,
    called: Callable[[str], str | None] = lambda name: name,
) -> Launch:
    """All processes to start for ``plan``; instances the engine cannot run are left out and say why.

    Names depend on the instance and its position among its equals only, so that two plans that share an instance
    share the launches of it, byte for byte.

    Args:
        plan: From :func:`coralopt.plan_scenario` or a file.
        engine: For example :class:`coralopt.runtime.VllmEngine`.
        addresses: Where the machines are; by their names on fixed ports when ``None``.
        called: What a pipeline is called instead of the name it has; those called nothing get no addresses and are left
            out.

    Raises:
        PlanError: The plan and the scenario in it do not fit together, a name holds characters that no name has, or there
            are more than ``MOST_NODES`` nodes.
        ScenarioError: The scenario in the plan is not valid.
    """
    _require_sound(plan)
    scenario = plan.resolved
    places = addresses or OneNodeEach()
    phases = {phase.key: phase for phase in scenario.model_phases}
    kinds = {configuration.name: configuration.gpu for configuration in scenario.configurations}
    verdicts = engine.judge(plan, scenario)
    names: Counter[str] = Counter()
    pipelines: list[PipelineLaunch] = []
    for instance, verdict in zip(plan.instances, verdicts, strict=True):
        for replica in range(instance.count):
            for index, pipeline in enumerate(verdict.pipelines):
                suffix = (str(replica), f"p{index}") if len(verdict.pipelines) > 1 else (str(replica),)
                name = dns_label(instance.name, *suffix)
                names[name] += 1
                if (own := called(name)) is not None:
                    phase = phases[instance.key]
                    shared = instance.shared
                    # Replica i of an instance stands where replica i of the others of its group does.
                    apart = shared is None or (places.slices_apart and shared.slice is not None)
                    base = own if apart or shared is None else dns_label(shared.group, str(replica))
                    lowered = _lower_pipeline((own, base), instance, pipeline, phase, engine, places, kinds)
                    lowered = replace(lowered, decode_regions=_decode_regions(plan, instance))
                    if shared is not None and shared.way != "turns":
                        lowered = replace(lowered, sharing=shared.way)
                    pipelines.append(_with_classes(lowered, instance, phase))
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice:
        raise PlanError(f"two instances of the plan would both be called {twice[0]}; give their models other names")
    variants = variant_shares(plan)
    free = {phase.model.name for phase in scenario.model_phases if phase.phase == "prefill"}
    mixed = {item.model: item.share for item in plan.modes if item.mode == "mixed" and item.model in free}
    for name in mixed:
        # Of the requests of a variant, not of all.
        whole = sum(shares.get(name, 0.0) for shares in variants.values())
        mixed[name] /= whole or 1.0
    hits = any(phase.prefix_hit for phase in scenario.model_phases)
    classes: dict[str, tuple[RequestClass, ...]] = {}
    for part in dict.fromkeys(phase.request_class for phase in scenario.model_phases):
        if part is not None:
            classes[part.of] = (*classes.get(part.of, ()), part)
    routing = scenario.serving.routing
    return Launch(engine.name, tuple(pipelines), verdicts, routing, mixed, variants, hits, classes, scenario.adapters)


def _with_classes(pipeline: PipelineLaunch, instance: PlannedInstance, phase: ModelPhase) -> PipelineLaunch:
    """The pipeline as the router knows it: of the model, with what is planned of it by class."""
    if phase.request_class is None:
        return pipeline
    mine = pipeline.tokens_s / instance.tokens_s
    first = len(phase.served) + 1
    rates = {part.model[first:]: mine * part.time_share * part.tokens_s for part in instance.classes}
    return replace(pipeline, model=phase.served, tokens_s=sum(rates.values()), classes=rates)


def _decode_regions(plan: Plan, instance: PlannedInstance) -> tuple[str, ...] | None:
    """Where the plan sends KV caches of an instance; nowhere those that a decode instance holds."""
    if not plan.flows:
        return None
    start = (instance.model, instance.region)
    ends = {flow.decode_region for flow in plan.flows if (flow.model, flow.prefill_region) == start}
    return tuple(sorted({instance.region, *ends})) if instance.phase == "prefill" else ()


def _require_sound(plan: Plan) -> None:
    """What the document promises, looked at again: names go into scripts, and a plan may be put together unchecked."""
    try:
        _INSTANCES.validate_python([instance.model_dump(warnings=False) for instance in plan.instances])
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise PlanError(f"instances.{place}: {first['msg']}, not {str(first['input'])[:80]!r}") from error
    nodes = sum(instance.count * sum(instance.nodes().values()) for instance in plan.instances)
    if nodes > MOST_NODES:
        raise PlanError(f"the plan has {nodes:,} nodes; one launch holds at most {MOST_NODES:,}. Split its scenario")


def _lower_pipeline(
    names: tuple[str, str],
    instance: PlannedInstance,
    pipeline: Pipeline,
    phase: ModelPhase,
    engine: Engine,
    places: OneNodeEach,
    kinds: dict[str, Gpu],
) -> PipelineLaunch:
    """The processes of one pipeline; ``names`` are its own and that which names of its machines begin with."""
    name, base = names
    parts_of = [[part for part in pipeline.slices if part.machine == m] for m in range(pipeline.machines)]
    machines = [f"{base}-s{m}" for m in range(pipeline.machines)]
    labels: list[str] = []
    for m, parts in enumerate(parts_of):
        labels += [f"{name}-s{m}"] if len(parts) == 1 else [f"{name}-s{m}-v{v}" for v in range(len(parts))]
    hosts = [places.host(name, labels[r], machines[part.machine]) for r, part in enumerate(pipeline.slices)]
    uses = ["http", *["rendezvous"] * (len(labels) > 1), *["kv"] * (pipeline.connector is not None)]
    ports = {use: places.port(machines[0], use) for use in uses}
    nodes = []
    own_slice = "" if instance.shared is None else instance.shared.slice or ""
    for rank, part in enumerate(pipeline.slices):
        machine = machines[part.machine]
        crowded = places.crowded() or len(parts_of[part.machine]) > 1
        shown = places.devices(machine, part.gpus, kinds[part.configuration].name)
        slices = tuple(replace(other, gpus=shown) if other is part else other for other in pipeline.slices)
        job = NodeJob(
            replace(pipeline, slices=slices),
            rank,
            phase,
            places.bind(hosts[0]),
            hosts[0],
            {use: port for use, port in ports.items() if rank == 0 or use != "http"},
            crowded,
        )
        command = engine.command(job)
        nodes.append(
            NodeLaunch(
                name=labels[rank],
                machine=machine,
                host=hosts[rank],
                region=instance.region,
                configuration=part.configuration,
                instance_type=part.instance_type,
                gpu=kinds[part.configuration].like if kinds[part.configuration].mig else kinds[part.configuration].name,
                mig=own_slice or kinds[part.configuration].mig,
                vendor=kinds[part.configuration].vendor,
                gpus=shown,
                rank=rank,
                first_layer=part.first_layer,
                last_layer=part.last_layer,
                argv=command.argv,
                env=dict(command.env),
                own_address=command.own_address,
                ports=ports if rank == 0 else {},
            )
        )
    return PipelineLaunch(
        name=name,
        instance=instance.name,
        model=instance.model,
        phase=instance.phase,
        region=instance.region,
        tokens_s=pipeline.tokens_s,
        max_in_flight=max(4, 2 * pipeline.resident),
        connector=pipeline.connector,
        health_path=engine.health_path,
        drain_s=engine.drain_s,
        nodes=tuple(nodes),
    )
