"""CPLEX behind coralopt: linear and mixed-integer programmes through its array interface."""

from coralopt_cplex.plugin import CplexBackend

__all__ = ["CplexBackend"]
