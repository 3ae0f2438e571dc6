"""Groups of equal instances as columns of an allocation problem, and what they cost at least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coralopt.allocation import AllocationProblem
from coralopt.planning.promise.capacities import PARTS, Groups
from coralopt.templates import TemplateLibrary
from coralopt.types import Bools, Floats, Ints


@dataclass(frozen=True, eq=False)
class GroupColumns:
    """Groups as columns of an allocation problem.

    Attributes:
        phase: int64 (n,), model phase of each.
        template: int64 (n,), its template in that phase's library.
        count: int64 (n,), its instances.
        problem: The problem over them.
    """

    phase: Ints
    template: Ints
    count: Ints
    problem: AllocationProblem

    @staticmethod
    def of(
        base: AllocationProblem,
        library: TemplateLibrary,
        groups: Sequence[Groups],
        kind: Literal["most", "least"],
        keep: Sequence[Bools],
    ) -> GroupColumns:
        """The problem over groups at what they hold at most, or at least.

        Args:
            base: The problem over single templates.
            library: These templates.
            groups: Those of every model phase.
            kind: Which of the two capacities counts.
            keep: bool (J,) a model phase, groups that take part.
        """
        phases, templates, counts, throughput = [], [], [], []
        demand = np.zeros(len(groups))
        for p, mine in enumerate(groups):
            capacity = mine.most if kind == "most" else mine.least
            rows = np.flatnonzero((capacity > 0) & keep[p])
            # More instances that hold no more are of no use; groups are ordered by template and count.
            fewer = (np.diff(mine.template[rows], prepend=-1) == 0) & (np.diff(capacity[rows], prepend=-1) <= 0)
            rows, unit = rows[~fewer], mine.unit_tokens
            phases.append(np.full(len(rows), p, dtype=np.int64))
            templates.append(mine.template[rows])
            counts.append(mine.count[rows])
            throughput.append(capacity[rows] * unit)
            demand[p] = PARTS * unit
        phase, template, count = (np.concatenate(parts) for parts in (phases, templates, counts))
        row = np.asarray(library.offsets)[phase] + template
        problem = replace(
            base,
            usage=(base.usage[row].astype(np.int64) * count[:, None]).astype(np.int16),
            throughput=np.concatenate(throughput),
            phase=phase.astype(np.int32),
            demand=demand,
            running=None if base.running is None else base.running[row] // count[:, None],
            # The loss of one instance takes a whole group here: too much for a bound.
            side_constraints=tuple(item for item in base.side_constraints if kind == "least" or not item.one_lost),
        )
        return GroupColumns(phase, template, count, problem)


def least_price(base: AllocationProblem, library: TemplateLibrary, p: int, groups: Groups) -> Floats:
    """float64 (J,): what each group of model phase ``p`` adds to the cost at least, wherever it stands, USD/h."""
    listed = np.where(base.availability > 0, base.price, np.inf)
    rent = listed.copy()
    for item in base.supply:
        rent = np.where(item.nodes > 0, np.minimum(rent, item.price), rent)
    usage = library.phases[p].usage.astype(np.float64)
    least = np.full(len(groups.template), np.inf)
    rows = library.offsets[p] + groups.template
    for r in range(len(base.region_names)):
        cheapest, new = (_priced(usage, prices[r])[groups.template] for prices in (rent, listed))
        added = groups.count if base.running is None else np.maximum(groups.count - base.running[rows, r], 0)
        starts = base.penalty * added
        least = np.minimum(least, cheapest * groups.count + np.where(starts > 0, new, 0.0) * starts)
    return least


def _priced(usage: Floats, price: Floats) -> Floats:
    """float64 (T,): price of each template's nodes; infinite where one of them is not sold."""
    sold = np.isfinite(price)
    total = usage @ np.where(sold, price, 0.0)
    return np.where((usage[:, ~sold] > 0).any(axis=1), np.inf, total)
