"""COPT behind coralopt: linear and mixed-integer programmes through its array interface."""

from coralopt_copt.plugin import CoptBackend

__all__ = ["CoptBackend"]
