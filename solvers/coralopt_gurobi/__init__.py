"""Gurobi behind coralopt: linear and mixed-integer programmes through gurobipy's matrix interface."""

from coralopt_gurobi.plugin import GurobiBackend

__all__ = ["GurobiBackend"]
