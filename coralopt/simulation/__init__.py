"""Event-based simulation: a plan and a request trace in, what became of every request out."""

from coralopt.simulation.config import SimulationConfig
from coralopt.simulation.engine import RequestTrace, simulate
from coralopt.simulation.results import PhaseOutcome, SimulationResult
from coralopt.simulation.times import FunctionTimes

__all__ = ["FunctionTimes", "PhaseOutcome", "RequestTrace", "SimulationConfig", "SimulationResult", "simulate"]
