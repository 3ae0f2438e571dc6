"""Pipelines as process groups on this machine: start until ready, stop in the right order, leave nothing behind."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from coralopt.errors import LaunchError
from coralopt.runtime.launch import PipelineLaunch
from coralopt.runtime.local.process import ServerProcess
from coralopt.runtime.local.state import load_state, save_state
from coralopt.runtime.router.config import BackendConfig, backend_config

#: Seconds a process gets to end by itself after its requests are done.
STOP_S = 20.0


@dataclass
class RunningPipeline:
    """A started pipeline.

    Attributes:
        backend: How the router reaches it, its name included.
        definition: Digest of what it is, from :func:`coralopt.runtime.local.reconcile.definition`.
        gpus: Devices it uses.
        drain_s: Seconds for requests in flight.
        processes: Head first.
    """

    backend: BackendConfig
    definition: str
    gpus: tuple[int, ...]
    drain_s: int
    processes: list[ServerProcess]

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def alive(self) -> bool:
        return all(process.alive for process in self.processes)


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
        self._say = on_event
        self._state = directory / "state.json"
        for entry in load_state(self._state):
            processes = [
                ServerProcess(item["name"], item["pid"], item["born"], self._log(item["name"]))
                for item in entry["processes"]
            ]
            if any(process.alive for process in processes):
                backend = BackendConfig.model_validate(entry["backend"])
                self.running[backend.name] = RunningPipeline(
                    backend, entry["definition"], tuple(entry["gpus"]), entry["drain_s"], processes
                )

    def _log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"

    def _save(self) -> None:
        save_state(
            self._state,
            [
                {
                    "backend": pipeline.backend.model_dump(mode="json"),
                    "definition": pipeline.definition,
                    "gpus": list(pipeline.gpus),
                    "drain_s": pipeline.drain_s,
                    "processes": [{"name": p.name, "pid": p.pid, "born": p.born} for p in pipeline.processes],
                }
                for pipeline in self.running.values()
            ],
        )

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
        try:
            for node in launch.nodes:
                env = {**node.env, **dict.fromkeys(node.own_address, node.host)}
                pipeline.processes.append(ServerProcess.start(node.name, node.argv, env, self._log(node.name)))
                # Recorded one by one: a controller killed here must find them again.
                self._save()
            await self._until_ready(pipeline, launch.url + launch.health_path, ready_timeout_s)
        except BaseException:
            await self.stop(launch.name, at_once=True)
            raise
        return pipeline

    async def _until_ready(self, pipeline: RunningPipeline, url: str, timeout_s: float) -> None:
        started = time.monotonic()
        timeout = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                for process in pipeline.processes:
                    if not process.alive:
                        raise LaunchError(
                            f"{process.name}: ended with code {process.code} before it was ready; the end of "
                            f"{process.log}:\n{process.last_lines()}"
                        )
                try:
                    async with session.get(url) as answer:
                        if answer.status == 200:
                            self._say(f"{pipeline.name} is ready after {time.monotonic() - started:.1f} s")
                            return
                except (aiohttp.ClientError, TimeoutError, OSError):
                    pass
                if time.monotonic() - started > timeout_s:
                    head = pipeline.processes[0]
                    raise LaunchError(
                        f"{pipeline.name}: not ready after {timeout_s:g} s; the end of {head.log}:\n{head.last_lines()}"
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
                head, others = pipeline.processes[:1], pipeline.processes[1:]
                for group, patience in ((head, pipeline.drain_s + STOP_S), (others, STOP_S)):
                    for process in group:
                        process.tell(signal.SIGTERM)
                    await asyncio.gather(*(process.ended(patience) for process in group))
        finally:
            for process in pipeline.processes:
                process.kill_group()
            del self.running[name]
            self._save()
            self._say(f"{name} has stopped")

    async def stop_all(self, *, at_once: bool = False) -> None:
        """Stop every pipeline, all at the same time."""
        await asyncio.gather(*(self.stop(name, at_once=at_once) for name in list(self.running)))

    def failed(self) -> list[RunningPipeline]:
        """Pipelines of which a process ended by itself."""
        return [pipeline for pipeline in self.running.values() if not pipeline.alive]

    def summary(self) -> list[dict[str, Any]]:
        """Name, URL and process numbers of what runs."""
        return [
            {"name": p.name, "url": p.backend.url, "pids": [process.pid for process in p.processes]}
            for p in self.running.values()
        ]
