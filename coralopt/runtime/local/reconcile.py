"""Make running servers follow a plan: start what is new, wait until it is ready, then drain what is gone.

The life cycle of the paper's section 5.1, on one machine. Instances that old and new plan share are not touched.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from coralopt.errors import LaunchError
from coralopt.plan import Plan
from coralopt.runtime.engine import Engine
from coralopt.runtime.launch import Launch, PipelineLaunch
from coralopt.runtime.local.addresses import LocalAddresses, gpu_kind, gpus_here
from coralopt.runtime.local.cluster import LocalCluster, RunningPipeline
from coralopt.runtime.lower import lower
from coralopt.runtime.router.config import ClassConfig, class_configs
from coralopt.runtime.router.router import Router


@dataclass(frozen=True)
class Changes:
    """Names of the pipelines that were kept, started and stopped."""

    kept: tuple[str, ...]
    started: tuple[str, ...]
    stopped: tuple[str, ...]


@dataclass(frozen=True)
class Pace:
    """How a change is made.

    Attributes:
        ready_timeout_s: Longest wait for a new server, seconds.
        starts_at_once: Pipelines that start at the same time; all when ``None``.
        drain_first: Stop what is gone before anything starts, for a machine without room for both.
        needs_gpus: Whether servers need GPUs of their own.
        any_gpu: Whether any device will do, whatever type is planned.
        partial: Whether a plan may be followed of which the engine cannot run every instance.
    """

    ready_timeout_s: float = 1800.0
    starts_at_once: int | None = None
    drain_first: bool = False
    needs_gpus: bool = True
    any_gpu: bool = False
    partial: bool = False


def definition(pipeline: PipelineLaunch) -> str:
    """Digest of what a pipeline is, without where it is: lowered with names for addresses, it is equal for equal ones."""
    facts = dataclasses.asdict(pipeline)
    # Where its caches go, and how its time is shared, is the router's business; no server starts anew for that.
    del facts["decode_regions"]
    if facts.pop("classes"):
        del facts["tokens_s"]
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def wanted(plan: Plan, engine: Engine, partial: bool = False) -> tuple[Launch, dict[str, str]]:
    """The launch with names for addresses, and the definitions by pipeline name.

    Raises:
        LaunchError: The engine cannot run every instance, or with ``partial`` not one.
    """
    launch = lower(plan, engine)
    launch.require_runnable(partial)
    if not launch.pipelines:
        raise LaunchError("the plan has no instances: there is nothing to run")
    return launch, {pipeline.name: definition(pipeline) for pipeline in launch.pipelines}


async def reconcile(
    plan: Plan, engine: Engine, cluster: LocalCluster, router: Router, pace: Pace | None = None
) -> Changes:
    """Start, wait, route, drain, stop: in this order, so that no request is refused for the change.

    When a new server does not start, the new ones are stopped again and the old ones go on.

    Args:
        plan: What should run.
        engine: The same as of the servers that run.
        cluster: What does run.
        router: Told of every change.
        pace: How.

    Raises:
        LaunchError: Nothing of the plan can run, GPUs are too few, or a server does not start.
    """
    how = pace or Pace()
    return await Change(Starts(plan, engine, cluster, how)).carry_out(router)


class Starts:
    """A plan's pipelines, to be started on this machine.

    Args:
        plan: What should run.
        engine: With what.
        cluster: Where.
        pace: How.

    Attributes:
        launch: With names for addresses.
        definitions: Of every pipeline, by its name.

    Raises:
        LaunchError: Nothing of the plan can run.
    """

    def __init__(self, plan: Plan, engine: Engine, cluster: LocalCluster, pace: Pace) -> None:
        self.plan, self.cluster, self.pace = plan, cluster, pace
        self._engine = engine
        self.launch, self.definitions = wanted(plan, engine, pace.partial)
        self._gate = asyncio.Semaphore(pace.starts_at_once or max(1, len(self.definitions)))

    async def start(self, names: Collection[str]) -> list[RunningPipeline]:
        """Start these pipelines on free ports and devices and wait until all are ready; nothing of them is left otherwise.

        Raises:
            LaunchError: GPUs are too few, or a server does not start.
        """
        products = await asyncio.to_thread(gpus_here) if self.pace.needs_gpus else ()
        # No other task runs until all are taken in: two starts at a time find other devices.
        launches = self._placed(names, products)
        pipelines = [self.cluster.admit(launch, self.definitions[plain_name(launch.name)]) for launch in launches]
        turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        try:
            async with asyncio.TaskGroup() as group:
                for pipeline, launch in zip(pipelines, launches, strict=True):
                    group.create_task(self._one(pipeline, launch, [turns[name] for name in sorted(launch.machines)]))
        except BaseException as error:
            await asyncio.gather(*(self.cluster.stop(pipeline, at_once=True) for pipeline in pipelines))
            # The first that failed; the group has cancelled the others.
            raise error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error from None
        return pipelines

    async def _one(self, pipeline: RunningPipeline, launch: PipelineLaunch, turns: Sequence[asyncio.Lock]) -> None:
        async with AsyncExitStack() as stack:
            # Servers that share GPUs start in turn: each looks at how much of their memory is free.
            for turn in turns:
                await stack.enter_async_context(turn)
            async with self._gate:
                await self.cluster.start(pipeline, launch, self.pace.ready_timeout_s)

    def _placed(self, names: Collection[str], products: tuple[str, ...]) -> list[PipelineLaunch]:
        taken = [gpu for pipeline in self.cluster.running.values() for gpu in pipeline.gpus]
        kinds = ["any" if product and self.pace.any_gpu else gpu_kind(product) for product in products]
        addresses = LocalAddresses(taken=taken, kinds=kinds) if self.pace.needs_gpus else LocalAddresses()

        def called(name: str) -> str | None:
            # Where a predecessor of the same name is still there, the new one gets its definition as a second name.
            mark = f"@{self.definitions[name][:8]}" if name in self.cluster.running else ""
            return name + mark if name in names else None

        launch = lower(self.plan, self._engine, addresses, called)
        addresses.release()
        launch.require_no_help("launch start")
        if addresses.missing:
            raise _too_few_gpus(addresses, products, len(taken))
        return list(launch.pipelines)


class Change:
    """From what runs to what a plan wants.

    Attributes:
        kept: Pipelines that both have and that live, by their names in the plan.
    """

    def __init__(self, starts: Starts) -> None:
        self._starts, self._cluster = starts, starts.cluster
        definitions, running = starts.definitions, starts.cluster.running.values()
        alive = [p for p in running if p.alive and definitions.get(plain_name(p.name)) == p.definition]
        self.kept = {plain_name(pipeline.name): pipeline for pipeline in alive}
        self._gone = [pipeline for pipeline in running if pipeline not in alive]

    async def carry_out(self, router: Router) -> Changes:
        """Start, wait, route, drain, stop.

        Raises:
            LaunchError: As :meth:`Starts.start`; the new ones are stopped again and the old ones go on.
        """
        new = [name for name in self._starts.definitions if name not in self.kept]
        text = f"plan: {len(self.kept)} pipelines stay, {len(new)} start, {len(self._gone)} stop"
        self._cluster.say(text)
        first = [p for p in self._gone if self._starts.pace.drain_first or not p.alive]
        await _retire(first, self._cluster, router)
        started = await self._starts.start(new)
        launch = self._starts.launch
        told = {of: [ClassConfig(**part) for part in parts] for of, parts in class_configs(launch).items()}
        router.route_by(launch.routing, launch.mixed_share, launch.variants, told)
        router.adapters = launch.adapters
        for pipeline in started:
            route(pipeline, router)
        for pipeline in self.kept.values():
            lives = pipeline.ready and self._cluster.running.get(pipeline.name) is pipeline
            if lives and pipeline.name not in router.backends:
                router.add(pipeline.backend)
            planned = next(item for item in launch.pipelines if item.name == plain_name(pipeline.name))
            if planned.classes:
                shares = {"classes": dict(planned.classes), "weight": planned.tokens_s}
                pipeline.backend = pipeline.backend.model_copy(update=shares)
                if pipeline.name in router.backends:
                    router.backends[pipeline.name].config = pipeline.backend
        await _retire([pipeline for pipeline in self._gone if pipeline not in first], self._cluster, router)
        kept = tuple(sorted(pipeline.name for pipeline in self.kept.values()))
        return Changes(kept, tuple(p.name for p in started), tuple(p.name for p in self._gone))


def plain_name(name: str) -> str:
    """The name in the plan; a successor that starts beside its predecessor has a mark behind it."""
    return name.split("@", 1)[0]


def _too_few_gpus(addresses: LocalAddresses, products: tuple[str, ...], taken: int) -> LaunchError:
    def listed(counts: Mapping[str, int]) -> str:
        return ", ".join(f"{count} x {name}" for name, count in sorted(counts.items())) or "none"

    here = [product for product in products if product]
    used = (
        f"; {taken} of them are in use (`launch start --drain-first` frees them before others start)" if taken else ""
    )
    return LaunchError(
        f"the plan needs GPUs {listed(addresses.needed)}; this machine has {listed(Counter(here))}{used}. Missing: "
        f"{listed(addresses.missing)}. Plan for the pool at hand, render files for other machines, take GPUs of another "
        "type with --any-gpu, or try it with --cpu and vLLM's CPU build"
    )


async def _retire(pipelines: Collection[RunningPipeline], cluster: LocalCluster, router: Router) -> None:
    """Out of the router, wait for requests in flight, then stop; least loaded first, as in the paper."""

    async def one(pipeline: RunningPipeline) -> None:
        if routed(pipeline, router):
            await router.drain(pipeline.name, pipeline.drain_s if pipeline.alive else 0)
        unroute(pipeline, router)
        await cluster.stop(pipeline, at_once=not pipeline.alive)

    def load(pipeline: RunningPipeline) -> int:
        return router.backends[pipeline.name].in_flight if routed(pipeline, router) else 0

    await asyncio.gather(*(one(pipeline) for pipeline in sorted(pipelines, key=load)))


def routed(pipeline: RunningPipeline, router: Router) -> bool:
    """Whether the router sends requests to this very pipeline, and not to a later one of its name."""
    backend = router.backends.get(pipeline.name)
    return backend is not None and backend.config == pipeline.backend


def route(pipeline: RunningPipeline, router: Router) -> None:
    """Send requests to a pipeline that is ready, in place of an earlier one of its name."""
    if pipeline.name in router.backends:
        router.remove(pipeline.name)
    router.add(pipeline.backend, healthy=True)


def unroute(pipeline: RunningPipeline, router: Router) -> None:
    """Send it no more requests."""
    if routed(pipeline, router):
        router.remove(pipeline.name)
