"""Xpress behind coralopt: linear and mixed-integer programmes through its array interface."""

from coralopt_xpress.plugin import XpressBackend

__all__ = ["XpressBackend"]
