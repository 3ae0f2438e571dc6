"""The master programme (module ``decomposition``) over known coverings alone, to see what one more limit costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coralopt.allocation.bounds.coverings import NodeLimit, available
from coralopt.allocation.bounds.pricing import Covering
from coralopt.allocation.problem import AllocationProblem
from coralopt.types import Floats, Ints

if TYPE_CHECKING:
    from coralopt.allocation.bounds.mix_kernel import Mix


@dataclass(frozen=True, eq=False)
class KnownMaster:
    """An optimal basis of the master programme over some coverings.

    Attributes:
        phase: int64 (K,), model phases of the coverings, -1 for columns that are none.
        use: float64 (K, R * C + S), what they use; 0 for such columns.
        mix: The basis.
        dearest: USD/h, what one node more than is there costs in it, or than a limit allows.
        enough: USD/h that a limit costs more from which on a lower bound of it will do.
        pivots: Of the simplex method after which a lower bound will do.
    """

    phase: Ints
    use: Floats
    mix: Mix
    dearest: float
    enough: float = np.inf
    pivots: int = 1_000

    @staticmethod
    def of(
        problem: AllocationProblem, limits: Sequence[NodeLimit], known: Sequence[Covering], capacity_prices: Floats
    ) -> KnownMaster:
        """Of some coverings, at least one of every model phase.

        Args:
            problem: The problem.
            limits: Of nodes that coverings may use.
            known: The coverings.
            capacity_prices: float64 (R, C), USD/h per node; what is more than there is costs as much as the dearest of these
                and of the coverings.
        """
        # Imported here: compiled code is dear to load and most commands never need it.
        from coralopt.allocation.bounds.mix_kernel import cheapest_mix

        cost, use = np.array([covering.cost for covering in known]), np.array([covering.use for covering in known])
        dearest = max(float(capacity_prices.max(initial=0.0)), float(cost.max()))
        phase, pieces, room = np.array([covering.phase for covering in known]), problem.segments, available(problem)
        np.subtract.at(room, pieces.cell, pieces.nodes)
        # Dearer nodes are columns of no phase, each with a row of how many there are.
        count, most_used = len(pieces.cell), np.zeros(len(room))
        dearer = np.zeros((count, len(room)))
        dearer[np.arange(count), pieces.cell] = -1.0
        for p in problem.leading_phases().tolist():
            most_used += use[phase == p].max(axis=0)
        # Rows that nothing can exceed say nothing.
        tight = most_used > room
        bounds = [np.where(phase == limit.phase, limit.counted(use), 0.0) for limit in limits]
        rows = [
            np.vstack([use[:, tight], dearer[:, tight]]),
            np.vstack([np.zeros((len(known), count)), np.eye(count)]),
            *(np.append(sign * bound, np.zeros(count))[:, None] for bound in bounds for sign in (1.0, -1.0)),
        ]
        most = [float(most) for limit in limits for most in (limit.most, -limit.least)]
        order = np.searchsorted(problem.leading_phases(), phase)
        mix = cheapest_mix(
            np.concatenate([cost, pieces.surcharge]),
            np.concatenate([order, np.full(count, -1)]),
            np.ascontiguousarray(np.hstack(rows)),
            np.concatenate([room[tight], pieces.nodes, most]),
            np.full(int(tight.sum()) + count + len(most), dearest),
        )
        none = np.zeros((count, use.shape[1]))
        return KnownMaster(np.concatenate([phase, np.full(count, -1)]), np.vstack([use, none]), mix, dearest)

    def at_most(self, phase: int, cells: Sequence[int], nodes: int) -> float:
        """USD/h that it costs more if a phase may use at most so many nodes of some cells together."""
        return self._more(self._counted(phase, cells), nodes)

    def at_least(self, phase: int, cells: Sequence[int], nodes: int) -> float:
        """The same if it must use so many."""
        return self._more(-self._counted(phase, cells), -nodes)

    def _counted(self, phase: int, cells: Sequence[int]) -> Floats:
        return np.where(self.phase == phase, self.use[:, list(cells)].sum(axis=1), 0.0)

    def _more(self, use: Floats, most: float) -> float:
        from coralopt.allocation.bounds.mix_kernel import Until, value_within

        until = Until(self.mix.value + self.enough, self.pivots)
        return value_within(self.mix, use, float(most), self.dearest, until) - self.mix.value
