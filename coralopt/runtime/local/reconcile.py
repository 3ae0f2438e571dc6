"""Make running servers follow a plan: start what is new, wait until it is ready, then drain what is gone.

The life cycle of the paper's section 5.1, on one machine. Instances that old and new plan share are not touched.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from coralopt.errors import LaunchError
from coralopt.plan import Plan
from coralopt.runtime.engine import Engine
from coralopt.runtime.launch import Launch, PipelineLaunch
from coralopt.runtime.local.addresses import LocalAddresses, gpu_kind, gpus_here
from coralopt.runtime.local.cluster import LocalCluster
from coralopt.runtime.lower import lower
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
    text = json.dumps(dataclasses.asdict(pipeline), sort_keys=True)
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
    plan: Plan,
    engine: Engine,
    cluster: LocalCluster,
    router: Router,
    pace: Pace | None = None,
    skip: frozenset[str] = frozenset(),
) -> Changes:
    """Start, wait, route, drain, stop: in this order, so that no request is refused for the change.

    When a new server does not start, the new ones are stopped again and the old ones go on.

    Args:
        plan: What should run.
        engine: The same as of the servers that run.
        cluster: What does run.
        router: Told of every change.
        pace: How.
        skip: Pipelines of the plan that are not to be started.

    Raises:
        LaunchError: Nothing of the plan can run, GPUs are too few, or a server does not start.
    """
    how = pace or Pace()
    _, definitions = wanted(plan, engine, how.partial)
    kept = {n for n, p in cluster.running.items() if p.alive and definitions.get(plain_name(n)) == p.definition}
    gone = [name for name in cluster.running if name not in kept]
    names = {plain_name(name) for name in kept}
    new = [name for name in definitions if name not in names and name not in skip]
    cluster.say(f"plan: {len(kept)} pipelines stay, {len(new)} start, {len(gone)} stop")
    await _retire([name for name in gone if how.drain_first or not cluster.running[name].alive], cluster, router)
    taken = [gpu for pipeline in cluster.running.values() for gpu in pipeline.gpus]
    products = gpus_here() if how.needs_gpus else ()
    kinds = ["any" if how.any_gpu else gpu_kind(product) for product in products]
    addresses = LocalAddresses(taken=taken, kinds=kinds) if how.needs_gpus else LocalAddresses()
    launch = lower(plan, engine, addresses, only=lambda name: name in new)
    addresses.release()
    if addresses.missing:
        raise _too_few_gpus(addresses, products, len(taken))
    # The predecessor of the same name is still there: the new one gets its definition as a second name.
    pipelines = [_renamed(p, definitions[p.name]) if p.name in cluster.running else p for p in launch.pipelines]
    await _start(pipelines, definitions, cluster, how)
    router.route_by(launch.routing)
    for pipeline in pipelines:
        router.add(cluster.running[pipeline.name].backend, healthy=True)
    for name in kept:
        if name not in router.backends:
            router.add(cluster.running[name].backend)
    await _retire([name for name in gone if name in cluster.running], cluster, router)
    return Changes(tuple(sorted(kept)), tuple(p.name for p in pipelines), tuple(gone))


def plain_name(name: str) -> str:
    """The name in the plan; a successor that starts beside its predecessor has a mark behind it."""
    return name.split("@", 1)[0]


def _renamed(pipeline: PipelineLaunch, digest: str) -> PipelineLaunch:
    mark = f"@{digest[:8]}"
    nodes = tuple(dataclasses.replace(node, name=node.name + mark) for node in pipeline.nodes)
    return dataclasses.replace(pipeline, name=pipeline.name + mark, nodes=nodes)


def _too_few_gpus(addresses: LocalAddresses, products: tuple[str, ...], taken: int) -> LaunchError:
    def listed(counts: Mapping[str, int]) -> str:
        return ", ".join(f"{count} x {name}" for name, count in sorted(counts.items())) or "none"

    used = f"; {taken} of them are in use (with --drain-first they are freed before new servers start)" if taken else ""
    return LaunchError(
        f"the plan needs GPUs {listed(addresses.needed)}; this machine has {listed(Counter(products))}{used}. Missing: "
        f"{listed(addresses.missing)}. Plan for the pool at hand, render files for other machines, take GPUs of another "
        "type with --any-gpu, or try it with --cpu and vLLM's CPU build"
    )


async def _start(
    pipelines: list[PipelineLaunch], definitions: dict[str, str], cluster: LocalCluster, pace: Pace
) -> None:
    gate = asyncio.Semaphore(pace.starts_at_once or max(1, len(pipelines)))

    async def one(pipeline: PipelineLaunch) -> None:
        async with gate:
            await cluster.start(pipeline, pace.ready_timeout_s, definitions[plain_name(pipeline.name)])

    try:
        async with asyncio.TaskGroup() as group:
            for pipeline in pipelines:
                group.create_task(one(pipeline))
    except BaseException as error:
        for pipeline in pipelines:
            await cluster.stop(pipeline.name, at_once=True)
        # The first that failed; the group has cancelled the others.
        raise error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error from None


async def _retire(names: list[str], cluster: LocalCluster, router: Router) -> None:
    """Out of the router, wait for requests in flight, then stop; least loaded first, as in the paper."""

    async def one(name: str) -> None:
        if name in router.backends:
            await router.drain(name, cluster.running[name].drain_s)
            router.remove(name)
        await cluster.stop(name, at_once=not cluster.running[name].alive)

    load = {name: router.backends[name].in_flight if name in router.backends else 0 for name in names}
    await asyncio.gather(*(one(name) for name in sorted(names, key=lambda name: load[name])))
