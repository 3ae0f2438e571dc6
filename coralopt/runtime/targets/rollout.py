"""A new plan for servers elsewhere, made before what was there is broken: start, wait, route, drain, remove.

What runs is what the folder says: files of pipelines that are gone stay in it until they are removed, and those of new ones
come into it as they are started, so that a rollout that was broken off is finished by the same command.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coralopt.errors import LaunchError
from coralopt.runtime.targets.kubernetes import ROUTER
from coralopt.runtime.targets.output import write_files, written_files

#: Runs a program to its end.
Run = Callable[[Sequence[str]], None]
KUBERNETES_END, SKYPILOT_END = ".yaml", ".sky.yaml"
#: Seconds between two looks at a server that is not ready.
LOOK_S = 5.0


@dataclass(frozen=True)
class Rollout:
    """Files of a plan, and those of the plan before it.

    Attributes:
        directory: Where the plan before was written; nothing there for a first one.
        files: From ``kubernetes_files`` or ``skypilot_files``.
        run: Runs ``kubectl`` and ``sky``.
        ready_timeout_s: Longest wait for a new server, seconds.
    """

    directory: Path
    files: Mapping[str, str]
    run: Run
    ready_timeout_s: float = 1800.0

    def kubernetes(self, namespace: str | None = None) -> None:
        """Apply what is new, wait until it is ready, give the router its weights, remove what is gone.

        Raises:
            LaunchError: A step failed; everything that ran goes on, and nothing was removed.
        """
        kubectl = ("kubectl", *(() if namespace is None else ("-n", namespace)))
        patience = f"--timeout={self.ready_timeout_s:.0f}s"
        pipelines, gone = self._pipelines(KUBERNETES_END), self._gone(KUBERNETES_END)
        write_files(self.directory, {**self.files, **gone})
        for name in pipelines:
            self.run([*kubectl, "apply", "-f", str(self.directory / name)])
        for name in pipelines:
            pipeline = name.removesuffix(KUBERNETES_END)
            if "kind: LeaderWorkerSet" in self.files[name]:
                self.run([*kubectl, "wait", "--for=condition=Available", f"leaderworkerset/{pipeline}", patience])
            else:
                self.run([*kubectl, "rollout", "status", f"statefulset/{pipeline}-s0", patience])
        self.run([*kubectl, "apply", "-f", str(self.directory / f"{ROUTER}.yaml")])
        self.run([*kubectl, "rollout", "status", f"deployment/{ROUTER}", patience])
        # Told to stop, heads finish what they have.
        for name in gone:
            self.run([*kubectl, "delete", "--ignore-not-found", "--wait", "-f", str(self.directory / name)])
        write_files(self.directory, self.files)

    def skypilot(
        self,
        hosts: Mapping[str, str],
        reload: Sequence[str],
        drain_s: float,
        healthy: Callable[[str], bool],
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """Launch what is new, wait until it is healthy, give the router its weights, tear down what is gone.

        Args:
            hosts: Machine name -> address; those of the heads.
            reload: Makes the router read ``router.json`` anew.
            drain_s: Seconds for requests in flight, before what is gone is torn down.
            healthy: Whether a URL answers 200.
            wait: Lets seconds pass.

        Raises:
            LaunchError: A step failed, or addresses of new heads are missing; everything that ran goes on.
        """
        gone = self._gone(SKYPILOT_END)
        there = {name: (self.directory / name).read_text(encoding="utf-8") for name in written_files(self.directory)}
        for name in self._pipelines(SKYPILOT_END):
            if name not in there:
                there[name] = self.files[name]
                write_files(self.directory, there)
                try:
                    self.run(["sky", "jobs", "launch", "-y", "-d", str(self.directory / name)])
                except BaseException:
                    del there[name]
                    write_files(self.directory, there)
                    raise
        backends = json.loads(self.files["router.json"])["backends"]
        unknown = [f"{backend['name']}-s0" for backend in backends if f"{backend['name']}-s0" not in hosts]
        if unknown:
            raise LaunchError(
                f"all groups are launched; give the addresses of {', '.join(unknown)} with --hosts once their nodes are up, "
                "and run this again"
            )
        for backend in backends:
            until = time.monotonic() + self.ready_timeout_s
            while not healthy(backend["url"] + backend["health_path"]):
                if time.monotonic() > until:
                    raise LaunchError(
                        f"{backend['name']}: not healthy after {self.ready_timeout_s:g} s; nothing was removed"
                    )
                wait(LOOK_S)
        write_files(self.directory, {**self.files, **gone})
        self.run(reload)
        if gone:
            wait(drain_s)
        for name in gone:
            self.run(["sky", "jobs", "cancel", "-y", "-n", name.removesuffix(SKYPILOT_END)])
        write_files(self.directory, self.files)

    def _pipelines(self, end: str) -> list[str]:
        return [name for name in self.files if name.endswith(end) and name != f"{ROUTER}.yaml"]

    def _gone(self, end: str) -> dict[str, str]:
        """Files of pipelines that the plan has no more."""
        old = [name for name in written_files(self.directory) if name.endswith(end) and name not in self.files]
        return {name: (self.directory / name).read_text(encoding="utf-8") for name in old}
