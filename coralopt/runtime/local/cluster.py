"""Pipelines as process groups on this machine: start until ready, stop in the right order, leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import aiohttp

from coralopt.errors import LaunchError
from coralopt.processes import LOOK_S, Child, last_words, sessions
from coralopt.runtime.launch import PipelineLaunch
from coralopt.runtime.local.state import PipelineState, ProcessState, load_state, save_state
from coralopt.runtime.router.config import BackendConfig, backend_config
from coralopt.runtime.router.doors import ADMIN_KEY, ROUTER_KEY
from coralopt.types import JsonObject

#: Seconds a process gets to end by itself after its requests are done.
STOP_S = 20.0
#: Bytes of a log before it moves to ``NAME.1.log``, in place of the one there.
LOG_BYTES = 64 * 2**20


class Server(NamedTuple):
    """One process of a pipeline. It outlives this process: whoever controls the directory next takes it over."""

    name: str
    child: Child

    @property
    def log_end(self) -> str:
        return "no log" if self.child.log is None else last_words(self.child.log, 15, "    ")


@dataclass(eq=False)
class RunningPipeline:
    """A started pipeline. Names come back with the next process of a plan; one object is one start of it.

    Attributes:
        backend: How the router reaches it, its name included.
        definition: Digest of what it is, from :func:`coralopt.runtime.local.reconcile.definition`.
        gpus: Devices it uses.
        drain_s: Seconds for requests in flight.
        servers: Head first.
        ready: Whether it has been healthy, or was found running.
        answered: Whether this controller has seen it healthy.
        well_at: When it last was, or was started; by ``time.monotonic()``.
    """

    backend: BackendConfig
    definition: str
    gpus: tuple[int, ...]
    drain_s: int
    servers: list[Server]
    ready: bool = False
    answered: bool = False
    well_at: float = field(default_factory=time.monotonic)

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

    A disk that is full, or a terminal that is gone, stops nobody: what cannot be written is said, or written later.

    Args:
        directory: Created when absent.
        on_event: Told in words what happens.

    Raises:
        LaunchError: The state file there is not ours.
    """

    def __init__(self, directory: Path, on_event: Callable[[str], None] = lambda text: None) -> None:
        self.directory = directory
        self.running: dict[str, RunningPipeline] = {}
        self._on_event = on_event
        self._state = directory / "state.json"
        self._unsaved = False
        for entry in load_state(self._state):
            servers = [Server(p.name, Child(p.pid, p.born, self._log(p.name))) for p in entry.processes]
            if any(server.child.leaves for server in servers):
                self.running[entry.backend.name] = RunningPipeline(
                    entry.backend, entry.definition, entry.gpus, entry.drain_s, servers, ready=True
                )

    def say(self, text: str) -> None:
        """Tell in words what happens, where anybody still listens."""
        with suppress(OSError, ValueError):
            self._on_event(text)

    def _log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"

    def _new_log(self, name: str) -> Path:
        """Where a process may print: its log, or nowhere on a full disk, which would end it at its first line."""
        log = self._log(name)
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            # Opening alone works on a full disk.
            log.write_bytes(b"\n")
        except OSError as error:
            self.say(f"{log}: cannot be written ({error.strerror}); {name} starts without a log")
            return Path(os.devnull)
        return log

    def _save(self) -> None:
        try:
            save_state(self._state, tuple(pipeline.state for pipeline in self.running.values()))
        except OSError as error:
            if not self._unsaved:
                self.say(
                    f"{self._state}: cannot be written ({error.strerror}); the servers go on, and it is tried again"
                )
            self._unsaved = True
        else:
            self._unsaved = False

    def look(self) -> None:
        """What is to be done now and then: the state that could not be written, and logs that have grown too long."""
        if self._unsaved:
            self._save()
        for pipeline in self.running.values():
            for server in pipeline.servers:
                if server.child.log is not None:
                    with suppress(OSError):
                        _rotate(server.child.log)

    def keep_logs(self, pipeline: RunningPipeline) -> None:
        """Set the logs of a pipeline that broke aside as ``NAME.crash.log``; the next start has logs of its own."""
        for server in pipeline.servers:
            if server.child.log is not None and server.child.log.is_file():
                with suppress(OSError):
                    server.child.log = server.child.log.replace(server.child.log.with_suffix(".crash.log"))

    def admit(self, launch: PipelineLaunch, definition: str = "") -> RunningPipeline:
        """Take a pipeline in before it is started: its name and its devices are taken from now on.

        Args:
            launch: With addresses of this machine.
            definition: Kept with it.

        Raises:
            LaunchError: The name is taken.
        """
        if launch.name in self.running:
            raise LaunchError(f"{launch.name} is running already")
        gpus = tuple(gpu for node in launch.nodes for gpu in node.gpus)
        pipeline = RunningPipeline(backend_config(launch), definition, gpus, launch.drain_s, [])
        self.running[launch.name] = pipeline
        return pipeline

    async def start(self, pipeline: RunningPipeline, launch: PipelineLaunch, ready_timeout_s: float) -> None:
        """Start all processes of a pipeline and wait until its head is healthy.

        Args:
            pipeline: As :meth:`admit` took it in.
            launch: The same.
            ready_timeout_s: Longest wait, seconds.

        Raises:
            LaunchError: A program is missing, a process ended, or the head never became healthy. Nothing of the
                pipeline is left running then.
        """
        try:
            for node in launch.nodes:
                env = {ROUTER_KEY: "", ADMIN_KEY: "", **node.env, **dict.fromkeys(node.own_address, node.host)}
                try:
                    child = Child.start(node.argv, env=env, log=self._new_log(node.name), outlives=True)
                except OSError as error:
                    why = error.strerror or error
                    raise LaunchError(f"{node.name}: {node.argv[0]!r} cannot be started: {why}") from error
                pipeline.servers.append(Server(node.name, child))
                # Recorded one by one: a controller killed here must find them again.
                self._save()
            await self._until_ready(pipeline, launch.url + launch.health_path, ready_timeout_s)
            pipeline.ready = pipeline.answered = True
            pipeline.well_at = time.monotonic()
        except BaseException:
            await self.stop(pipeline, at_once=True)
            raise

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
                await asyncio.sleep(LOOK_S)

    async def stop(self, pipeline: RunningPipeline, *, at_once: bool = False) -> None:
        """Stop a pipeline: the head first, which finishes its requests, then the others, then what is left.

        Workers do not follow their head by themselves. Stop routing to it before.

        Args:
            pipeline: One that runs; another one of its name is left alone.
            at_once: Kill without waiting for anything.
        """
        try:
            if not at_once:
                head, others = pipeline.servers[:1], pipeline.servers[1:]
                await _end(head, pipeline.drain_s + STOP_S)
                await _end(others, STOP_S)
        finally:
            await asyncio.shield(self._bury(pipeline))

    async def _bury(self, pipeline: RunningPipeline) -> None:
        await asyncio.gather(*(asyncio.to_thread(server.child.kill) for server in pipeline.servers))
        if self.running.get(pipeline.name) is pipeline:
            del self.running[pipeline.name]
            self._save()
            self.say(f"{pipeline.name} has stopped")

    async def stop_all(self, *, at_once: bool = False) -> None:
        """Stop every pipeline, all at the same time."""
        await asyncio.gather(*(self.stop(pipeline, at_once=at_once) for pipeline in list(self.running.values())))

    def stalled(self) -> set[RunningPipeline]:
        """Pipelines of which a process, or one that it started, has been told to stop and not to go on (SIGSTOP)."""
        import psutil

        leaders = {server.child.pid: pipeline for pipeline in self.running.values() for server in pipeline.servers}
        stalled = set()
        for pid, members in sessions(leaders).items():
            for member in members:
                with suppress(psutil.Error):
                    if member.status() == psutil.STATUS_STOPPED:
                        stalled.add(leaders[pid])
        return stalled

    def summary(self) -> list[JsonObject]:
        """Name, URL and process numbers of what runs, and whether every process of it lives."""
        return [
            {"name": p.name, "url": p.backend.url, "pids": [server.child.pid for server in p.servers], "alive": p.alive}
            for p in self.running.values()
        ]


async def _end(servers: Sequence[Server], patience_s: float) -> None:
    """Tell them to end, and wait until they have or the time is up."""
    for server in servers:
        server.child.send(signal.SIGTERM)
    limit = time.monotonic() + patience_s
    while any(server.child.alive for server in servers) and time.monotonic() < limit:
        await asyncio.sleep(LOOK_S)


def _rotate(log: Path) -> None:
    """Move what is in a log that has grown too long aside, or away on a full disk; its process goes on writing to it."""
    if not log.is_file() or log.stat().st_size <= LOG_BYTES:
        return
    older = log.with_suffix(".1.log")
    try:
        shutil.copyfile(log, older)
    except OSError:
        older.unlink(missing_ok=True)
    os.truncate(log, 0)
