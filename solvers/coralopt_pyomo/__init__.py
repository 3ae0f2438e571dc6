"""Any solver that Pyomo knows, behind coralopt: ``pyomo:highs``, ``pyomo:cbc``, ``pyomo:glpk``, ..."""

from coralopt_pyomo.plugin import PyomoBackend

__all__ = ["PyomoBackend"]
