"""Joint templates: one instance serves several model phases at once, each at a throughput of its own.

Every template serves one model phase, its ``phase``, at its ``throughput``; a shared node serves further ones beside it. An
instance of template t adds T_p(t) to the row of *every* phase p that it serves and is paid once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coralopt.errors import SolverError
from coralopt.types import Floats, Ints


@dataclass(frozen=True, eq=False)
class Joint:
    """What templates serve beside their first model phase; one entry a template and further phase.

    Attributes:
        template: int64 (E,), ascending.
        phase: int32 (E,).
        throughput: float64 (E,), tokens/s.
    """

    template: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    phase: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    throughput: Floats = field(default_factory=lambda: np.zeros(0))

    def __len__(self) -> int:
        return len(self.template)

    def some(self, chosen: Ints) -> Joint:
        """Of the chosen templates only, which become 0, 1, ...; a template may be chosen several times."""
        if not len(self):
            return self
        first = np.searchsorted(self.template, chosen, side="left")
        count = np.searchsorted(self.template, chosen, side="right") - first
        starts = np.repeat(first - (np.cumsum(count) - count), count)
        rows = starts + np.arange(int(count.sum()))
        return Joint(np.repeat(np.arange(len(chosen), dtype=np.int64), count), self.phase[rows], self.throughput[rows])


def refuse_bad_joint(joint: Joint, own: npt.NDArray[np.int32], phases: int) -> None:
    """Entries that do not fit the problem.

    Args:
        joint: The entries.
        own: int32 (T,), the first phase of every template.
        phases: How many model phases there are.

    Raises:
        SolverError: Says which entry and why.
    """
    if not len(joint.template) == len(joint.phase) == len(joint.throughput):
        raise SolverError("joint: template, phase and throughput have different lengths")
    if not len(joint):
        return
    if joint.template.min() < 0 or joint.template.max() >= len(own) or (np.diff(joint.template) < 0).any():
        raise SolverError(f"joint: templates must ascend within 0..{len(own) - 1}")
    wrong = ~(np.isfinite(joint.throughput) & (joint.throughput >= 0)) | (joint.phase < 0) | (joint.phase >= phases)
    if wrong.any():
        k = int(np.argmax(wrong))
        raise SolverError(
            f"joint: template {joint.template[k]} serves phase {joint.phase[k]} at {joint.throughput[k]} tokens/s; "
            f"phases are 0..{phases - 1}, throughputs finite and not negative"
        )
    served = np.concatenate([np.arange(len(own)) * phases + own, joint.template * phases + joint.phase])
    place, count = np.unique(served, return_counts=True)
    if (count > 1).any():
        template, phase = divmod(int(place[np.argmax(count > 1)]), phases)
        raise SolverError(f"joint: template {template} serves phase {phase} twice")
