"""Exact placement by dynamic programming: one problem at a time, or whole families of node sets in one sweep."""

from coralopt_dp.solver import DynamicProgrammeSolver
from coralopt_dp.sweep import SweepResult, sweep

__all__ = ["DynamicProgrammeSolver", "SweepResult", "sweep"]
