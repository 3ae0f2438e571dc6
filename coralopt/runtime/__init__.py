"""From plan to running servers: lowering, launch targets, the local launcher and the router.

The closed loop, :mod:`coralopt.runtime.loop`, is imported by itself: it needs planners, which no running server does.
"""

from coralopt.runtime.engine import Command, Engine, NodeJob
from coralopt.runtime.launch import EngineReason, EngineVerdict, Launch, NodeLaunch, Pipeline, PipelineLaunch, Slice
from coralopt.runtime.lower import OneNodeEach, check, lower
from coralopt.runtime.unzip import unzip
from coralopt.runtime.vllm import VllmEngine

__all__ = [
    "Command",
    "Engine",
    "EngineReason",
    "EngineVerdict",
    "Launch",
    "NodeJob",
    "NodeLaunch",
    "OneNodeEach",
    "Pipeline",
    "PipelineLaunch",
    "Slice",
    "VllmEngine",
    "check",
    "lower",
    "unzip",
]
