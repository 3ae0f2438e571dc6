"""Pipelines as process groups on this machine: start until ready, stop in the right order, leave nothing behind."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import aiohttp

from coralopt.errors import LaunchError
from coralopt.processes import LOOK_S, Child, last_words
from coralopt.runtime.launch import PipelineLaunch
from coralopt.runtime.local.state import PipelineState, ProcessState, load_state, save_state
from coralopt.runtime.router.config import BackendConfig, backend_config
from coralopt.runtime.router.doors import ADMIN_KEY, ROUTER_KEY
from coralopt.types import JsonObject

#: Seconds a process gets to end by itself after its requests are done.
STOP_S = 20.0


class Server(NamedTuple):
    """One process of a pipeline. It outlives this process: whoever controls the directory next takes it over."""

    name: str
    child: Child

    @property
    def log_end(self) -> str:
        return "no log" if self.child.log is None else last_words(self.child.log, 15, "    ")


@dataclass
class RunningPipeline:
    """A started pipeline.

    Attributes:
        backend: How the router reaches it, its name included.
        definition: Digest of what it is, from :func:`coralopt.runtime.local.reconcile.definition`.
        gpus: Devices it uses.
        drain_s: Seconds for requests in flight.
        servers: Head first.
    """

    backend: BackendConfig
    definition: str
    gpus: tuple[int, ...]
    drain_s: int
    servers: list[Server]

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def alive(self) -> bool:
        return all(server.child.alive for server in self.servers)

    @property
    def state(self) -> PipelineState:
        processes = tuple(ProcessState(name=s.name, pid=s.child.pid, born=s.child.born) for s in self.servers)
        return PipelineState(
            backend=self.backend,
            definition=self.definition,
            gpus=self.gpus,
            drain_s=self.drain_s,
            processes=processes,
        )


class LocalCluster:
    """Runs pipelines below ``directory``: ``logs/NAME.log`` for every process and ``state.json``.

    Args:
        directory: Created when absent.
        on_event: Told in words what happens.

    Raises:
        LaunchError: The state file there is not ours.
    """

    def __init__(self, directory: Path, on_event: Callable[[str], None] = lambda text: None) -> None:
        self.directory = directory
        self.running: dict[str, RunningPipeline] = {}
        self.say = on_event
        self._state = directory / "state.json"
        for entry in load_state(self._state):
            servers = [Server(p.name, Child(p.pid, p.born, self._log(p.name))) for p in entry.processes]
            if any(server.child.alive for server in servers):
                self.running[entry.backend.name] = RunningPipeline(
                    entry.backend, entry.definition, entry.gpus, entry.drain_s, servers
                )

    def _log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"

    def _save(self) -> None:
        save_state(self._state, tuple(pipeline.state for pipeline in self.running.values()))

    async def start(self, launch: PipelineLaunch, ready_timeout_s: float, definition: str = "") -> RunningPipeline:
        """Start all processes of a pipeline and wait until its head is healthy.

        Args:
            launch: With addresses of this machine.
            ready_timeout_s: Longest wait, seconds.
            definition: Kept with it.

        Raises:
            LaunchError: A program is missing, a process ended, or the head never became healthy. Nothing of the
                pipeline is left running then.
        """
        if launch.name in self.running:
            raise LaunchError(f"{launch.name} is running already")
        gpus = tuple(gpu for node in launch.nodes for gpu in node.gpus)
        pipeline = RunningPipeline(backend_config(launch), definition, gpus, launch.drain_s, [])
        self.running[launch.name] = pipeline
        self._log("").parent.mkdir(parents=True, exist_ok=True)
        try:
            for node in launch.nodes:
                env = {ROUTER_KEY: "", ADMIN_KEY: "", **node.env, **dict.fromkeys(node.own_address, node.host)}
                try:
                    child = Child.start(node.argv, env=env, log=self._log(node.name), outlives=True)
                except OSError as error:
                    why = error.strerror or error
                    raise LaunchError(f"{node.name}: {node.argv[0]!r} cannot be started: {why}") from error
                pipeline.servers.append(Server(node.name, child))
                # Recorded one by one: a controller killed here must find them again.
                self._save()
            await self._until_ready(pipeline, launch.url + launch.health_path, ready_timeout_s)
        except BaseException:
            await self.stop(launch.name, at_once=True)
            raise
        return pipeline

    async def _until_ready(self, pipeline: RunningPipeline, url: str, timeout_s: float) -> None:
        started = time.monotonic()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while True:
                for server in pipeline.servers:
                    if (ended := server.child.poll()) is not None:
                        raise LaunchError(
                            f"{server.name}: {ended} before it was ready; the end of "
                            f"{server.child.log}:\n{server.log_end}"
                        )
                try:
                    async with session.get(url) as answer:
                        if answer.status == 200:
                            self.say(f"{pipeline.name} is ready after {time.monotonic() - started:.1f} s")
                            return
                except (aiohttp.ClientError, TimeoutError, OSError):
                    pass
                if time.monotonic() - started > timeout_s:
                    head = pipeline.servers[0]
                    raise LaunchError(
                        f"{pipeline.name}: not ready after {timeout_s:g} s; the end of "
                        f"{head.child.log}:\n{head.log_end}"
                    )
                await asyncio.sleep(0.2)

    async def stop(self, name: str, *, at_once: bool = False) -> None:
        """Stop a pipeline: the head first, which finishes its requests, then the others, then what is left.

        Workers do not follow their head by themselves. Stop routing to it before.

        Args:
            name: Of a running pipeline.
            at_once: Kill without waiting for anything.
        """
        pipeline = self.running.get(name)
        if pipeline is None:
            return
        try:
            if not at_once:
                head, others = pipeline.servers[:1], pipeline.servers[1:]
                await _end(head, pipeline.drain_s + STOP_S)
                await _end(others, STOP_S)
        finally:
            for server in pipeline.servers:
                server.child.kill()
            del self.running[name]
            self._save()
            self.say(f"{name} has stopped")

    async def stop_all(self, *, at_once: bool = False) -> None:
        """Stop every pipeline, all at the same time."""
        await asyncio.gather(*(self.stop(name, at_once=at_once) for name in list(self.running)))

    def failed(self) -> list[RunningPipeline]:
        """Pipelines of which a process ended by itself."""
        return [pipeline for pipeline in self.running.values() if not pipeline.alive]

    def summary(self) -> list[JsonObject]:
        """Name, URL and process numbers of what runs."""
        return [
            {"name": p.name, "url": p.backend.url, "pids": [server.child.pid for server in p.servers]}
            for p in self.running.values()
        ]


async def _end(servers: Sequence[Server], patience_s: float) -> None:
    """Tell them to end, and wait until they have or the time is up."""
    for server in servers:
        server.child.send(signal.SIGTERM)
    limit = time.monotonic() + patience_s
    while any(server.child.alive for server in servers) and time.monotonic() < limit:
        await asyncio.sleep(LOOK_S)
