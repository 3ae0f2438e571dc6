"""What coralopt asks of an inference engine: judge a plan's instances, and say how to start one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from coralopt.plan import Plan
from coralopt.runtime.launch import EngineVerdict, Pipeline
from coralopt.scenario.facts.phases import ModelPhase, Phase
from coralopt.scenario.resolved import ResolvedScenario


@dataclass(frozen=True)
class NodeJob:
    """One process of a pipeline with all addresses known; what an engine turns into a command.

    Attributes:
        pipeline: The pipeline.
        rank: Which of its slices, from 0.
        model_phase: Model and phase it serves.
        bind: Address that the HTTP server of the head binds to.
        head: Address of the head, for the others to meet at.
        ports: TCP ports by use: the head's ``rendezvous``, its ``kv`` with a connector, and on the head ``http``.
        several_on_machine: Whether other processes share this node's GPUs.
    """

    pipeline: Pipeline
    rank: int
    model_phase: ModelPhase
    bind: str
    head: str
    ports: Mapping[str, int]
    several_on_machine: bool

    @property
    def phase(self) -> Phase:
        return self.model_phase.phase


@dataclass(frozen=True)
class Command:
    """How to start one process.

    Attributes:
        argv: Program and arguments.
        env: Environment variables to add.
        own_address: Variables to set to the node's own IP address.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    own_address: tuple[str, ...] = ()


class Engine(Protocol):
    """An inference engine with an OpenAI API. All methods are pure: nothing is started, imported or looked up."""

    @property
    def name(self) -> str: ...

    @property
    def health_path(self) -> str:
        """Path on the head that answers 200 when it serves."""
        ...

    @property
    def drain_s(self) -> int:
        """Seconds that requests in flight are given when a server is told to stop."""
        ...

    def judge(self, plan: Plan, scenario: ResolvedScenario) -> tuple[EngineVerdict, ...]:
        """For every instance of the plan, in its order: how it runs, or why it cannot."""
        ...

    def command(self, job: NodeJob) -> Command:
        """How to start one process of a pipeline that :meth:`judge` returned."""
        ...
