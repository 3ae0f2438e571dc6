"""Exact reductions: each makes the problem smaller and keeps its optimum; each says what it removed."""

from coralopt.allocation.reductions.chain import Reduced, Reduction, reduce_problem

__all__ = ["Reduced", "Reduction", "reduce_problem"]
