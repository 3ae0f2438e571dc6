"""Checks of what a plan says about its simulation, as far as they need no requests; simulating them again shows the rest."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from coralopt.plan.parts import Simulated
from coralopt.plan.verify.inspected import Inspected
from coralopt.solving.problem import Violation
from coralopt.solving.tolerance import TOLERANCE


def simulated(mark: Simulated, inspected: Inspected) -> Iterator[Violation]:
    """Model phases listed once each, shares that add up, and the verdict that they give."""
    off = partial(Violation, "figure")
    if (mark.trace is None) == (mark.kind == "trace"):
        yield off("simulated", f"simulated: requests of kind {mark.kind} and trace {mark.trace!r} do not go together")
    due = {
        (phase.key, kind)
        for phase in inspected.scenario.model_phases
        for kind in (("prefill", "decode") if phase.phase == "mixed" else (phase.phase,))
    }
    stated = [(row.key, row.kind) for row in mark.phases]
    for key, kind in sorted(set(stated) - due):
        yield off(key, f"simulated: {key} ({kind}) is no model phase of the scenario")
    for key, kind in sorted({row for row in stated if stated.count(row) > 1}):
        yield off(key, f"simulated: {key} ({kind}) is listed more than once")
    for row in mark.phases:
        if not abs(row.attainment + sum(row.causes.values()) - 1) <= TOLERANCE:
            yield off(row.key, f"simulated: attainment and causes of {row.key} do not add up to all requests")
        if row.attainment_feasible is not None and row.attainment_feasible < row.attainment * (1 - TOLERANCE):
            yield off(row.key, f"simulated: attainment of {row.key} is above that of its feasible requests")
        if not abs(row.attainment * row.requests - round(row.attainment * row.requests)) <= TOLERANCE * row.requests:
            yield off(
                row.key, f"simulated: {row.attainment:.6%} of {row.requests} requests of {row.key} is no whole number"
            )
    for kind in ("prefill", "decode"):
        counted = sum(row.requests for row in mark.phases if row.kind == kind)
        if counted != mark.requests:
            text = f"simulated: the model phases had {counted} requests ({kind}), all together {mark.requests}"
            yield off("simulated", text)
    worst = min((row.attainment for row in mark.phases), default=1.0)
    if mark.over == "all" and mark.passed != (worst >= mark.target):
        text = (
            f"simulated.passed is {mark.passed}, the least attainment is {worst:.2%} and {mark.target:.2%} the target"
        )
        yield off("simulated", text)
