"""A new plan for servers elsewhere, made before what was there is broken: start, wait, route, drain, remove.

What runs is what the folder says: files of pipelines that are gone stay in it until they are removed, and those of new ones
come into it as they are started, so that a rollout that was broken off is finished by the same command.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coralopt.errors import LaunchError
from coralopt.runtime.naming import dns_label
from coralopt.runtime.targets.kubernetes import ROUTER
from coralopt.runtime.targets.output import write_files, written_files

#: Runs a program to its end.
Run = Callable[[Sequence[str]], None]
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
        drain_first: Remove what is gone before anything starts, where there are no nodes for both.
    """

    directory: Path
    files: Mapping[str, str]
    run: Run
    ready_timeout_s: float = 1800.0
    drain_first: bool = False

    @property
    def comes(self) -> list[str]:
        """Names of the pipelines that run not yet."""
        here = written_files(self.directory)
        return [_plain(name) for name in self._pipelines() if name not in here]

    @property
    def goes(self) -> list[str]:
        """Names of the pipelines that the plan has no more."""
        return [_plain(name) for name in self._gone()]

    def kubernetes(self, namespace: str | None = None) -> None:
        """Apply what is new, wait until it is ready, give the router its weights, remove what is gone.

        Raises:
            LaunchError: A step failed; everything that ran goes on, and nothing was removed.
        """
        kubectl = ("kubectl", *(() if namespace is None else ("-n", namespace)))
        patience = f"--timeout={self.ready_timeout_s:.0f}s"
        pipelines, gone = self._pipelines(), self._gone()

        def remove() -> None:
            # Told to stop, heads finish what they have.
            for name in gone:
                self.run([*kubectl, "delete", "--ignore-not-found", "--wait", "-f", str(self.directory / name)])
            write_files(self.directory, self.files)

        write_files(self.directory, {**self.files, **gone})
        if self.drain_first:
            remove()
        for name in pipelines:
            self.run([*kubectl, "apply", "-f", str(self.directory / name)])
        for name in pipelines:
            pipeline = _plain(name)
            if "kind: LeaderWorkerSet" in self.files[name]:
                self.run([*kubectl, "wait", "--for=condition=Available", f"leaderworkerset/{pipeline}", patience])
            else:
                self.run([*kubectl, "rollout", "status", f"statefulset/{pipeline}-s0", patience])
        self.run([*kubectl, "apply", "-f", str(self.directory / f"{ROUTER}.yaml")])
        self.run([*kubectl, "rollout", "status", f"deployment/{ROUTER}", patience])
        if not self.drain_first:
            remove()

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
        gone = self._gone()
        there = {name: (self.directory / name).read_text(encoding="utf-8") for name in written_files(self.directory)}

        def remove() -> None:
            for name in gone:
                self.run(["sky", "jobs", "cancel", "-y", "-n", _plain(name)])
                there.pop(name, None)

        if self.drain_first:
            remove()
            write_files(self.directory, there)
        for name in self._pipelines():
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
        if gone and not self.drain_first:
            wait(drain_s)
            remove()
        write_files(self.directory, self.files)

    def _pipelines(self) -> list[str]:
        return [name for name in self.files if _is_pipeline(name)]

    def _gone(self) -> dict[str, str]:
        """Files of pipelines that the plan has no more."""
        old = [name for name in written_files(self.directory) if _is_pipeline(name) and name not in self.files]
        return {name: (self.directory / name).read_text(encoding="utf-8") for name in old}


def successors(directory: Path, files: Mapping[str, str]) -> dict[str, str]:
    """Names for pipelines that run otherwise than they are planned now, so that both can run for a while.

    Args:
        directory: Where the plan before was written.
        files: Of the new one, under the names that its pipelines have by themselves.

    Returns:
        By these names, those with a digest of what they are; nothing for a pipeline that is new, or runs as it is.
    """
    here, names = written_files(directory), {}
    for name, text in files.items():
        plain, end = _plain(name), ".".join(["", *name.split(".")[1:]])
        other = dns_label(plain, hashlib.sha256(text.encode()).hexdigest()[:8])
        changed = name in here and (directory / name).read_text(encoding="utf-8") != text
        if _is_pipeline(name) and (changed or f"{other}{end}" in here):
            names[plain] = other
    return names


def _plain(name: str) -> str:
    """A pipeline's name from its file's, which has no dot before its end."""
    return name.partition(".")[0]


def _is_pipeline(name: str) -> bool:
    return name.endswith(".yaml") and name != f"{ROUTER}.yaml"
