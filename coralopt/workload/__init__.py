"""Request traces, generators fitted to them, and tables of demand, availability and prices per epoch."""

from coralopt.workload.trace import UNNAMED, Trace

__all__ = ["UNNAMED", "Trace"]
