"""Exact reductions: each makes the problem smaller and keeps its optimum; each says what it removed."""

from coralopt.allocation.reductions.chain import Reduced, Reduction, reduce_problem
from coralopt.allocation.reductions.prices import Near, NearTemplates, near_templates

__all__ = ["Near", "NearTemplates", "Reduced", "Reduction", "near_templates", "reduce_problem"]
