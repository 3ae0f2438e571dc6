"""Who answers for the servers of one directory: one plan after another, and new processes for those that died."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from coralopt.errors import CoraloptError, LaunchError, PlanError
from coralopt.plan import Plan
from coralopt.runtime.engine import Engine
from coralopt.runtime.local.cluster import LocalCluster, RunningPipeline
from coralopt.runtime.local.reconcile import Change, Changes, Pace, Starts, plain_name, route, routed, unroute
from coralopt.runtime.router.router import Router
from coralopt.runtime.router.status import PlanHistory
from coralopt.types import JsonObject

#: The plan that is followed at the moment, below the directory; `coralopt launch` takes it up again.
PLAN_FILE = "plan.json"
#: Seconds without an answer to health checks, or with a process that was told to stop (SIGSTOP), until a pipeline that
#: answered before is replaced; seconds between two looks for such processes.
HUNG_S, STALL_LOOK_S = 10.0, 2.0


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

    Every pipeline is looked after by itself: it is started again while others are, and while a new plan is followed.

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
        #: Plans followed so far.
        self.history = PlanHistory()
        #: Held while servers change.
        self.changing = asyncio.Lock()
        self._policy = restarts
        self._starts: Starts | None = None
        #: Pipelines to keep alive, and their definitions: the plan's; while it changes, those that both plans have.
        self._kept_alive: dict[str, str] = {}
        self._recoveries: dict[str, asyncio.Task[None]] = {}
        self._deaths: dict[str, list[float]] = {}
        self._given_up: dict[str, str] = {}
        #: Dead pipelines that the router still knows: their models are down for a while, and not unknown.
        self._fallen: list[RunningPipeline] = []
        self._stalled: set[RunningPipeline] = set()
        self._looked = 0.0
        self._following: set[asyncio.Task[Changes]] = set()
        self._closing = False

    async def follow(self, plan: Plan) -> Changes:
        """Reconcile to ``plan``; the plan before it stays the one to follow when that fails.

        Raises:
            LaunchError: As :func:`coralopt.runtime.local.reconcile`.
        """
        async with self.changing:
            starts = Starts(plan, self.engine, self.cluster, self.pace)
            await self._give_up_recoveries(
                name for name in self._recoveries if starts.definitions.get(name) != self._kept_alive.get(name)
            )
            change = Change(starts)
            try:
                self._kept_alive = {name: pipeline.definition for name, pipeline in change.kept.items()}
                changes = await change.carry_out(self.router)
                self.plan, self._starts = plan, starts
                self.history.follow(plan, changes.started, changes.stopped, changes.kept)
                self._deaths.clear()
                self._given_up.clear()
                self._forget_fallen(plain_name(pipeline.name) for pipeline in self._fallen)
            finally:
                # Where it failed, servers of the plan before that were stopped to make room come back.
                self._kept_alive = {} if self._starts is None else self._starts.definitions
            try:
                plan.save(self.cluster.directory / PLAN_FILE)
            except PlanError as error:
                self.say(f"{error}; the servers follow it all the same")
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
        """Follow no more plans and start nothing again; what is being started is stopped."""
        self._closing = True
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        await self._give_up_recoveries(self._recoveries)

    async def _give_up_recoveries(self, names: Iterable[str]) -> None:
        tasks = [self._recoveries[name] for name in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def describe(self) -> JsonObject:
        """Behind ``GET /router/plan``: the plan, how many whole instances of it run, and what was given up."""
        return {
            "plan": None if self.plan is None else self.plan.model_dump(mode="json"),
            "running": self._running(),
            "given_up": dict(self._given_up),
        }

    def state(self) -> tuple[dict[str, int], dict[str, str]]:
        """How many whole instances of the plan run, and what was given up."""
        return self._running(), dict(self._given_up)

    def _running(self) -> dict[str, int]:
        """Instance name -> instances of which every pipeline lives and gets requests; not those that still start."""
        if self.plan is None or self._starts is None:
            return {}
        definitions, launch = self._starts.definitions, self._starts.launch
        serving = [p for p in self.cluster.running.values() if p.alive and routed(p, self.router)]
        names = {name for p in serving if definitions.get(name := plain_name(p.name)) == p.definition}
        pipelines = Counter(pipeline.instance for pipeline in launch.pipelines if pipeline.name in names)
        each = {verdict.instance: len(verdict.pipelines) for verdict in launch.verdicts}
        return {item.name: pipelines[item.name] // max(1, each[item.name]) for item in self.plan.instances}

    async def look_after(self) -> None:
        """Bury what died or hangs and start it again, as often as the policy allows; says everything it does."""
        self.cluster.look()
        self._recoveries = {name: task for name, task in self._recoveries.items() if not task.done()}
        if time.monotonic() - self._looked > STALL_LOOK_S:
            self._stalled, self._looked = self.cluster.stalled(), time.monotonic()
        broken = [(pipeline, why) for pipeline in self._watched() if (why := self._broken(pipeline))]
        await asyncio.gather(*(self._bury(pipeline, why) for pipeline, why in broken))
        for name in self._missing():
            if name not in self._recoveries and self._due(name):
                self._recoveries[name] = asyncio.create_task(self._recover(name))

    def _watched(self) -> list[RunningPipeline]:
        running = self.cluster.running.values()
        return [p for p in running if p.ready and self._kept_alive.get(plain_name(p.name)) == p.definition]

    def _broken(self, pipeline: RunningPipeline) -> str | None:
        """Why a pipeline is of no more use, or ``None``."""
        if not pipeline.alive:
            server = next(server for server in pipeline.servers if not server.child.alive)
            return f"{server.name} died: {server.child.poll()}"
        backend, now = self.router.backends.get(pipeline.name), time.monotonic()
        if backend is not None and backend.healthy and not backend.failures:
            pipeline.answered = True
        if pipeline not in self._stalled and (backend is None or not backend.failures):
            pipeline.well_at = now
        silent_s = now - pipeline.well_at
        # One that another controller was starting may still load its weights.
        limit_s = HUNG_S if pipeline.answered else self.pace.ready_timeout_s
        return f"{pipeline.name} hangs: it has not answered for {silent_s:.0f} s" if silent_s > limit_s else None

    async def _bury(self, pipeline: RunningPipeline, why: str) -> None:
        self.cluster.keep_logs(pipeline)
        self.say(f"{why}; see {pipeline.servers[0].child.log}. The rest of its pipeline is stopped")
        if routed(pipeline, self.router):
            await self.router.drain(pipeline.name, 0)
            self._fallen.append(pipeline)
        await self.cluster.stop(pipeline, at_once=True)
        self._count_death(plain_name(pipeline.name), why)

    async def _recover(self, name: str) -> None:
        """Start one pipeline of the plan again, whatever becomes of the others."""
        assert self._starts is not None, "a plan is followed"
        try:
            for pipeline in await self._starts.start({name}):
                self._forget_fallen([name])
                route(pipeline, self.router)
        except (CoraloptError, OSError) as error:
            self.say(f"restart failed: {error}")
            self._count_death(name, "it does not start")

    def _forget_fallen(self, names: Iterable[str]) -> None:
        known = set(names)
        for pipeline in self._fallen:
            if plain_name(pipeline.name) in known:
                unroute(pipeline, self.router)
        self._fallen = [pipeline for pipeline in self._fallen if plain_name(pipeline.name) not in known]

    def _count_death(self, name: str, why: str) -> None:
        died = time.monotonic()
        self._deaths[name] = [t for t in self._deaths.get(name, []) if died - t < self._policy.window_s] + [died]
        if len(self._deaths[name]) > self._policy.most:
            del self._deaths[name]
            self._given_up[name] = why
            self._forget_fallen([name])
            often = f" {self._policy.most} restarts in {self._policy.window_s:g} s;" if self._policy.most else ""
            self.say(
                f"{name} is given up:{often} {why}. The plan runs without it; apply a plan (`coralopt launch apply`), or "
                "start again, to start it anew"
            )

    def _missing(self) -> list[str]:
        """Pipelines to start again, now or later: the dead only when they are buried."""
        there = {(plain_name(p.name), p.definition) for p in self.cluster.running.values()}
        missing = [name for name, definition in self._kept_alive.items() if (name, definition) not in there]
        return [name for name in missing if name not in self._given_up]

    def _due(self, name: str) -> bool:
        times = self._deaths.get(name, [])
        pause = 0.0 if len(times) < 2 else self._policy.pause_s * 2 ** (len(times) - 2)
        return not times or time.monotonic() >= times[-1] + pause

    @property
    def hopeless(self) -> bool:
        """Whether nothing runs and nothing will be started again."""
        busy = self.cluster.running or self._recoveries or self.changing.locked()
        return not busy and not self._missing()
