"""HiGHS behind coralopt: linear and mixed-integer programmes through highspy's array interface."""

from coralopt_highs.plugin import HighsBackend

__all__ = ["HighsBackend"]
