"""Fewer columns for back ends that take no more: those of least column bound.

A model of some templates holds all their columns, in every region, kept and new. Templates are ranked by the least column
bound of their columns, so a restricted model holds the columns that a cheap allocation most likely uses. What it finds is
an upper bound; the lower bound comes from the relaxation over all columns, so the gap reported stays a proven one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coralopt.allocation.model.columns import Columns
from coralopt.types import Floats, Ints


@dataclass(eq=False)
class Restriction:
    """At most ``most`` columns a model.

    Attributes:
        most: Columns, ``None`` for any number.
        size: int64 (T,), columns of each template.
        least: float64 (T,), least column bound of each template's columns, USD/h.
        full: Whether a model has been cut to ``most`` columns: larger ones would be cut to the same.
    """

    most: int | None
    size: Ints
    least: Floats
    full: bool = False

    @staticmethod
    def of(columns: Columns, column_bounds: Floats, most: int | None) -> Restriction:
        """Sizes and ranks of all templates."""
        templates = int(columns.template.max(initial=-1)) + 1
        least = np.full(templates, np.inf)
        np.minimum.at(least, columns.template, column_bounds)
        return Restriction(most, np.bincount(columns.template, minlength=templates).astype(np.int64), least)

    def admits(self, templates: Ints) -> bool:
        """Whether a model of these templates is small enough."""
        return self.most is None or int(self.size[templates].sum()) <= self.most

    def cut(self, templates: Ints) -> Ints:
        """The templates of least column bound that fit, ascending; all of them when they do."""
        if self.most is None or self.admits(templates):
            return templates
        self.full = True
        ranked = templates[np.argsort(self.least[templates], kind="stable")]
        return np.sort(ranked[np.cumsum(self.size[ranked]) <= self.most])
