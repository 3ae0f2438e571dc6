"""SCIP behind coralopt: mixed-integer programmes through PySCIPOpt's own calls, one fresh model a solve."""

from coralopt_scip.plugin import ScipBackend

__all__ = ["ScipBackend"]
