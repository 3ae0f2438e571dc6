"""The one tolerance of figures that were rounded: sums of prices, throughput times counts, limits on money.

Figures that count nodes or instances have none.
"""

from __future__ import annotations

import math
from fractions import Fraction

#: Relative difference up to which two figures computed in a different order count as equal.
TOLERANCE = 1e-9
_EXACT = Fraction(TOLERANCE)


def close(first: float, second: float) -> bool:
    """Whether two figures are the same, rounding apart; what is not finite equals nothing."""
    return abs(first - second) <= TOLERANCE * max(1.0, abs(first), abs(second)) < math.inf


def above(value: Fraction, limit: Fraction) -> bool:
    """Whether a sum of rounded figures exceeds a limit by more than rounding."""
    return value > limit + abs(limit) * _EXACT
