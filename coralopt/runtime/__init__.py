"""From plan to running servers: lowering, launch targets, the local launcher and the router."""

from coralopt.runtime.engine import Command, Engine, NodeJob
from coralopt.runtime.launch import EngineReason, EngineVerdict, Launch, NodeLaunch, Pipeline, PipelineLaunch, Slice
from coralopt.runtime.loop import LoopEpoch, LoopSettings, Servers, follow_demand, measured_demand
from coralopt.runtime.lower import OneNodeEach, check, lower
from coralopt.runtime.unzip import unzip
from coralopt.runtime.vllm import VllmEngine

__all__ = [
    "Command",
    "Engine",
    "EngineReason",
    "EngineVerdict",
    "Launch",
    "LoopEpoch",
    "LoopSettings",
    "NodeJob",
    "NodeLaunch",
    "OneNodeEach",
    "Pipeline",
    "PipelineLaunch",
    "Servers",
    "Slice",
    "VllmEngine",
    "check",
    "follow_demand",
    "lower",
    "measured_demand",
    "unzip",
]
