"""Who answers for the servers of one directory: one plan after another, and new processes for those that died."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass

from pydantic import ValidationError

from coralopt.errors import CoraloptError, LaunchError, PlanError
from coralopt.plan import Plan
from coralopt.runtime.engine import Engine
from coralopt.runtime.launch import Launch
from coralopt.runtime.local.cluster import LocalCluster, RunningPipeline
from coralopt.runtime.local.reconcile import Changes, Pace, plain_name, reconcile, wanted
from coralopt.runtime.router.router import Router
from coralopt.types import JsonObject

#: The plan that is followed at the moment, below the directory; `coralopt launch` takes it up again.
PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class RestartPolicy:
    """When a pipeline that died is started again.

    Attributes:
        most: Times within ``window_s``; then it is given up and reported.
        window_s: Seconds after which a death is forgotten.
        pause_s: Seconds before the second restart in a row; doubled for each further one.
    """

    most: int = 3
    window_s: float = 600.0
    pause_s: float = 5.0


class Controller:
    """The plan that is followed, and the servers that follow it.

    Args:
        engine: What runs servers.
        cluster: Their processes; what it says is said here too.
        router: Told of every change.
        pace: How changes are made.
        restarts: What to do about the dead.
    """

    def __init__(
        self, engine: Engine, cluster: LocalCluster, router: Router, pace: Pace, restarts: RestartPolicy
    ) -> None:
        self.engine, self.cluster, self.router, self.pace = engine, cluster, router, pace
        self.say = cluster.say
        self.plan: Plan | None = None
        #: Held while servers change.
        self.changing = asyncio.Lock()
        self._policy = restarts
        self._deaths: dict[str, list[float]] = {}
        self._given_up: dict[str, str] = {}
        self._following: set[asyncio.Task[Changes]] = set()
        self._closing = False

    async def follow(self, plan: Plan) -> Changes:
        """Reconcile to ``plan``; the plan before it stays the one to follow when that fails.

        Raises:
            LaunchError: As :func:`coralopt.runtime.local.reconcile`.
        """
        async with self.changing:
            try:
                changes = await reconcile(plan, self.engine, self.cluster, self.router, self.pace)
            except CoraloptError:
                # Servers of the plan before that were stopped to make room come back.
                wanted_names = set(self._wanted()[1]) - set(self._given_up)
                for name in wanted_names - {plain_name(name) for name in self.cluster.running}:
                    self._deaths.setdefault(name, [time.monotonic()])
                raise
            self.plan = plan
            self._deaths.clear()
            self._given_up.clear()
            plan.save(self.cluster.directory / PLAN_FILE)
            return changes

    async def apply(self, text: str) -> JsonObject:
        """Behind ``POST /router/plan``.

        Raises:
            PlanError: The text is not a plan.
            LaunchError: It cannot be followed.
        """
        try:
            plan = Plan.model_validate_json(text)
        except ValidationError as error:
            raise PlanError(f"not a coralopt plan: {error.errors()[0]['msg']}") from error
        if self._closing:
            raise LaunchError("the controller is stopping")
        task = asyncio.create_task(self.follow(plan))
        self._following.add(task)
        task.add_done_callback(self._following.discard)
        try:
            changes = await task
        except asyncio.CancelledError:
            if self._closing:
                raise LaunchError("the controller was stopped before the plan was followed") from None
            raise
        return {name: list(value) for name, value in vars(changes).items()}

    async def close(self) -> None:
        """Follow no more plans; one that is being followed is given up, and what it started is stopped."""
        self._closing = True
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)

    def describe(self) -> JsonObject:
        """Behind ``GET /router/plan``: the plan, how many whole instances of it run, and what was given up."""
        return {
            "plan": None if self.plan is None else self.plan.model_dump(mode="json"),
            "running": self._running(),
            "given_up": dict(self._given_up),
        }

    def _wanted(self) -> tuple[Launch | None, dict[str, str]]:
        return (None, {}) if self.plan is None else wanted(self.plan, self.engine, self.pace.partial)

    def _running(self) -> dict[str, int]:
        """Instance name -> serving instances of which every pipeline is alive."""
        launch, definitions = self._wanted()
        if self.plan is None or launch is None:
            return {}
        alive = {
            plain_name(name)
            for name, p in self.cluster.running.items()
            if p.alive and definitions.get(plain_name(name)) == p.definition
        }
        pipelines = Counter(pipeline.instance for pipeline in launch.pipelines if pipeline.name in alive)
        each = {verdict.instance: len(verdict.pipelines) for verdict in launch.verdicts}
        return {item.name: pipelines[item.name] // max(1, each[item.name]) for item in self.plan.instances}

    async def look_after(self) -> None:
        """Bury what died and start it again, as often as the policy allows; says everything it does."""
        if self.changing.locked():
            return
        dead = self.cluster.failed()
        for pipeline in dead:
            await self._bury(pipeline)
        wait = self._due()
        if wait is None or wait > 0 or self.plan is None:
            return
        async with self.changing:
            try:
                # What was given up is left alone: only the others are missing.
                skip = frozenset(self._given_up)
                await reconcile(self.plan, self.engine, self.cluster, self.router, self.pace, skip)
            except CoraloptError as error:
                self.say(f"restart failed: {error}")
                for name in self._missing():
                    self._count_death(name, "it does not start")

    async def _bury(self, pipeline: RunningPipeline) -> None:
        server = next(server for server in pipeline.servers if not server.child.alive)
        why = f"{server.name} died: {server.child.poll()}"
        self.say(f"{why}; see {server.child.log}. The rest of its pipeline is stopped")
        if pipeline.name in self.router.backends:
            self.router.remove(pipeline.name)
        await self.cluster.stop(pipeline.name, at_once=True)
        self._count_death(plain_name(pipeline.name), why)

    def _count_death(self, name: str, why: str) -> None:
        died = time.monotonic()
        self._deaths[name] = [t for t in self._deaths.get(name, []) if died - t < self._policy.window_s] + [died]
        if len(self._deaths[name]) > self._policy.most:
            del self._deaths[name]
            self._given_up[name] = why
            often = f" {self._policy.most} restarts in {self._policy.window_s:g} s;" if self._policy.most else ""
            self.say(
                f"{name} is given up:{often} {why}. The plan runs without it; apply a plan (`coralopt launch apply`), or "
                "start again, to start it anew"
            )

    def _missing(self) -> list[str]:
        alive = {plain_name(name) for name in self.cluster.running}
        return [name for name in self._deaths if name not in alive]

    def _due(self) -> float | None:
        """Seconds until the next restart; ``None`` when nothing is to be restarted."""
        waits = []
        for name in self._missing():
            times = self._deaths[name]
            pause = 0.0 if len(times) == 1 else self._policy.pause_s * 2 ** (len(times) - 2)
            waits.append(times[-1] + pause - time.monotonic())
        return max(waits, default=None)

    @property
    def hopeless(self) -> bool:
        """Whether nothing runs and nothing will be started again."""
        return not self.cluster.running and not self.changing.locked() and self._due() is None
