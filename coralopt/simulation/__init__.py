"""Event-based simulation: a plan and a request trace in, what became of every request out."""

from coralopt.simulation.config import SimulationConfig
from coralopt.simulation.engine import simulate
from coralopt.simulation.groups import GroupOutcome, GroupSimulator
from coralopt.simulation.outcomes import PhaseOutcome
from coralopt.simulation.results import SimulationResult
from coralopt.simulation.times import FunctionTimes

__all__ = [
    "FunctionTimes",
    "GroupOutcome",
    "GroupSimulator",
    "PhaseOutcome",
    "SimulationConfig",
    "SimulationResult",
    "simulate",
]
