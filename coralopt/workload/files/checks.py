"""Checks of arguments that several rooms of this floor share."""

from __future__ import annotations

import math

import numpy as np

from coralopt.errors import WorkloadError


def positive(what: str, value: float) -> None:
    """Refuse a value that is not positive and finite.

    Raises:
        WorkloadError: It is not.
    """
    if not (math.isfinite(value) and value > 0):
        raise WorkloadError(f"the {what} must be positive and finite, not {value:g}")


def random_of(seed: int) -> np.random.Generator:
    """The random numbers of a seed.

    Raises:
        WorkloadError: The seed is negative.
    """
    if seed < 0:
        raise WorkloadError(f"the seed must be a whole number from 0, not {seed}")
    return np.random.default_rng(seed)
