r"""The least price of what serves models, and of what they leave unmet, with node sets of any size.

Where demand may go unmet, a request that is not served needs none of its model's phases: all leave the same share s, at a
convex cost c(s). Where the largest common share of all demands is wanted, all models do, c(s) is s, and nodes cost nothing
(:class:`DemandTerms`). With S(t) the least price of instances that serve t of G steps of every phase (one serves whole
steps, rounded up: :mod:`coralopt.templates.instance_prices`), they cost at least::

    min over t  of  S(t) + c(1 - t / G)

since what leaves s unmet serves t = ceil((1 - s) G) steps, and 1 - t / G is no more than s. With nodes in fractions S is
linear, so the least of ``(1 - s) S + c(s)`` is where c bends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from coralopt.types import Floats

#: Sizes of an instance that are told apart where others are looked at beside it.
SIZES = 1000


class UnmetShares(Protocol):
    """Phases of one model, or of several, that leave equal shares of their demands unmet, and what that costs."""

    @property
    def phases(self) -> tuple[int, ...]:
        """Those with demand."""

    @property
    def tiers(self) -> tuple[tuple[float, float], ...]:
        """(USD/h of all their demand at the tier's price, share of it that may go unmet at this price), cheapest first."""

    def cost(self, share: Floats) -> Floats:
        """USD/h of these shares unmet."""


@dataclass(frozen=True, eq=False)
class DemandTerms:
    """What is to be served, where that is not the whole demand of a scenario.

    Attributes:
        tokens_s: float64 (M,), of each model phase.
        unmet: Models of which some may go unmet.
        charged: Whether nodes cost money, beside what goes unmet. Else money counts in limits only.
    """

    tokens_s: Floats
    unmet: tuple[UnmetShares, ...] = ()
    charged: bool = True


def least_with_unmet(served: Floats, unmet: UnmetShares) -> float:
    """USD/h at least of all phases; ``served``: float64 (G + 1,), of what serves so many steps of each."""
    share = 1.0 - np.arange(len(served)) / (len(served) - 1)
    return float((served + unmet.cost(share)).min())


def least_beside(rest: Floats, others: Floats) -> Floats:
    """float64 (G + 1,): USD/h at least of all beside one instance of a phase that serves t steps.

    Args:
        rest: float64 (G + 1,), least price of what serves so many steps of the phase beside it.
        others: float64 (G + 1,), of what the model costs else where it serves so many steps.
    """
    grid = len(rest) - 1
    # An instance counts for the most of those that are looked at together.
    unit = max(1, grid // SIZES)
    steps = np.arange(0, grid + 1, unit)
    most = np.minimum(steps + unit - 1, grid)
    served = np.arange(grid + 1)
    least = np.array([(rest[np.maximum(served - t, 0)] + others).min() for t in most.tolist()])
    return np.repeat(least, unit)[: grid + 1]


def least_fraction(usd_h: float, unmet: UnmetShares) -> float:
    """USD/h at least of all phases, nodes in fractions; ``usd_h`` of all their demand."""
    shares = np.minimum(np.cumsum([0.0, *(share for _, share in unmet.tiers)]), 1.0)
    served = np.where(shares < 1.0, usd_h, 0.0) * (1.0 - shares)
    return float((served + unmet.cost(shares)).min())


def leaving_together(
    models: Sequence[Sequence[tuple[int, ...]]], unmet: Sequence[UnmetShares]
) -> list[tuple[list[int], UnmetShares | None]]:
    """Indices of models that leave equal shares unmet, with what that costs; those that leave nothing alone.

    Args:
        models: The ways of each, as phases.
        unmet: What may go unmet.
    """
    together: list[tuple[list[int], UnmetShares | None]] = [([], group) for group in unmet]
    for model, ways in enumerate(models):
        mine = next((members for members, group in together if group and set(ways[0]) <= set(group.phases)), None)
        if mine is None:
            together.append(([model], None))
        else:
            mine.append(model)
    return [(members, group) for members, group in together if members]
