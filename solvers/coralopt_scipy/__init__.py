"""SciPy's own HiGHS behind coralopt: nothing beyond the base install."""

from coralopt_scipy.plugin import ScipyBackend

__all__ = ["ScipyBackend"]
