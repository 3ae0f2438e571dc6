"""OR-tools behind coralopt: CP-SAT for whole numbers, GLOP and PDLP for linear programmes."""

from coralopt_ortools.cp_sat import CpSatBackend
from coralopt_ortools.math_opt import GlopBackend, PdlpBackend

__all__ = ["CpSatBackend", "GlopBackend", "PdlpBackend"]
