"""cuOpt behind coralopt: linear and mixed-integer programmes on an NVIDIA GPU, through its data model of arrays."""

from coralopt_cuopt.plugin import CuoptBackend

__all__ = ["CuoptBackend"]
