"""Joint templates: one instance serves several model phases, each at a throughput of its own.

Every template serves one model phase, its ``phase``, at its ``throughput``, and further ones beside it, in one of two ways:

*at once*: a shared node. An instance of template t adds T_p(t) to the row of *every* phase p that it serves, and is paid
once.

*divided*: one engine that serves requests of several classes. T_p(t) is what an instance serves of p if it does nothing
else; its time is shared, x_p >= 0 of it to phase p, ``sum_p x_p <= nu``, and ``sum_t T_p(t) x_p`` counts in the row of p.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from coralopt.allocation.exact import maximise
from coralopt.errors import SolverError
from coralopt.types import Floats, Ints


@dataclass(frozen=True, eq=False)
class Joint:
    """What templates serve beside their first model phase; one entry a template and further phase.

    Attributes:
        template: int64 (E,), ascending.
        phase: int32 (E,).
        throughput: float64 (E,), tokens/s.
        divided: Whether an instance shares its time among what it serves, instead of serving all of it at once.
    """

    template: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    phase: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    throughput: Floats = field(default_factory=lambda: np.zeros(0))
    divided: bool = False

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
        template = np.repeat(np.arange(len(chosen), dtype=np.int64), count)
        return replace(self, template=template, phase=self.phase[rows], throughput=self.throughput[rows])


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


def divided_time(
    gives: Mapping[int, Mapping[int, Fraction]],
    counts: Mapping[int, int],
    demand: Mapping[int, Fraction],
    most: Fraction | None = None,
) -> tuple[Fraction, dict[tuple[int, int], Fraction]]:
    """The shares of time with which the least of all demands is served best, exactly.

    Args:
        gives: Template -> model phase -> tokens/s of an instance that serves nothing else.
        counts: Template -> instances.
        demand: Model phase -> tokens/s above 0.
        most: Largest share of a demand that counts; ``None`` for any.

    Returns:
        The share s of every demand that is served, and (template, phase) -> instances' worth of time for it.
    """
    zero, places = Fraction(0), [(t, p) for t in counts for p, rate in gives[t].items() if p in demand and rate > 0]
    rows = [
        ({1 + k: Fraction(1) for k, (t, _) in enumerate(places) if t == own}, Fraction(counts[own])) for own in counts
    ]
    for p, wanted in demand.items():
        served = {1 + k: -gives[t][p] / wanted for k, (t, phase) in enumerate(places) if phase == p}
        rows.append(({0: Fraction(1), **served}, zero))
    rows += [] if most is None else [({0: Fraction(1)}, most)]
    share, *times = maximise([[Fraction(1)] + [zero] * len(places)], rows)
    return share, dict(zip(places, times, strict=True))
