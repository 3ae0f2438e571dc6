"""Why a plan took the place of another: what their scenarios say differently."""

from __future__ import annotations

import math
from collections.abc import Mapping

from coralopt.plan.document import Plan
from coralopt.scenario import ResolvedScenario

#: Changes of one kind that are told one by one; the others are counted.
TOLD = 4


def reasons(before: Plan | None, after: Plan) -> tuple[str, ...]:
    """What changed between the scenarios of two plans, one sentence a kind of change.

    Args:
        before: The plan that was followed; ``None`` for the first one.
        after: The plan that took its place.
    """
    if before is None:
        return ("It is the first plan.",)
    old, new = _figures(before.resolved), _figures(after.resolved)
    sentences = []
    for what, (form, values) in new.items():
        earlier = old[what][1]
        changed = [name for name in {**earlier, **values} if not _equal(earlier.get(name), values.get(name))]
        if changed:
            told = [f"{name} {_from_to(earlier.get(name), values.get(name), form)}" for name in changed[:TOLD]]
            more = f"; {len(changed) - TOLD:,} more" if len(changed) > TOLD else ""
            sentences.append(f"{what}: {'; '.join(told)}{more}.")
    return tuple(sentences) or ("Demand, SLOs, supply and prices are those of the plan before.",)


def _figures(scenario: ResolvedScenario) -> dict[str, tuple[str, Mapping[str, float]]]:
    """Kind of figure -> its format, and what it is of -> value."""
    places = {
        f"{configuration.name} in {region}": (r, c)
        for r, region in enumerate(scenario.regions)
        for c, configuration in enumerate(scenario.configurations)
    }
    phases = scenario.model_phases
    return {
        "Demand": ("{:,.1f} tokens/s", {phase.key: phase.demand_tokens_s for phase in phases}),
        "SLO": ("{:g} ms", {phase.key: phase.slo_ms for phase in phases}),
        "Nodes on offer": ("{:,.0f}", {name: float(scenario.availability[at]) for name, at in places.items()}),
        "Price": ("{:,.4f} USD/h", {name: float(scenario.price_usd_h[at]) for name, at in places.items()}),
    }


def _equal(old: float | None, new: float | None) -> bool:
    if old is None or new is None or math.isnan(old) or math.isnan(new):
        return (old is None or math.isnan(old)) == (new is None or math.isnan(new))
    return math.isclose(old, new, rel_tol=1e-6)


def _from_to(old: float | None, new: float | None, form: str) -> str:
    words = ["none" if value is None or math.isnan(value) else form.format(value) for value in (old, new)]
    return f"from {words[0]} to {words[1]}"
