"""Checks of cost, bound, gap and status, and of what the plan did where the pool cannot meet the demand."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial

from coralopt.plan.document import headline_gap
from coralopt.plan.parts import PlannedInstance
from coralopt.plan.verify.cases import expected_usd_h, unmet_usd_h
from coralopt.plan.verify.inspected import Inspected, differs
from coralopt.plan.verify.rent import rent
from coralopt.plan.verify.routes import egress_usd_h
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.solving.problem import Violation
from coralopt.solving.status import gap_met
from coralopt.solving.tolerance import TOLERANCE

#: Difference up to which two shares that lie near 0 count as equal.
SHARE = 1e-12


def money(inspected: Inspected) -> Iterator[Violation]:
    """Everything that the head of the document says in figures."""
    yield from _kept(inspected)
    yield from _sums(inspected)
    yield from _ways(inspected)
    yield from _proof(inspected)


def _running(inspected: Inspected) -> dict[tuple[str, str, tuple[tuple[str, int], ...]], int]:
    running: dict[tuple[str, str, tuple[tuple[str, int], ...]], int] = {}
    for entry in inspected.scenario.running:
        place = (entry.key, entry.region, tuple(sorted((k, v) for k, v in entry.nodes.items() if v)))
        running[place] = running.get(place, 0) + entry.count
    return running


def _kept(inspected: Inspected) -> Iterator[Violation]:
    running = _running(inspected)
    for instance, _ in inspected.known:
        before = running.get((instance.key, instance.region, tuple(sorted(instance.nodes().items()))), 0)
        # What runs already has nodes of its own.
        before = 0 if instance.shared is not None else before
        if instance.kept != min(before, instance.count):
            text = (
                f"{instance.name}: kept is {instance.kept}, but {before} run already and {instance.count} are planned"
            )
            yield Violation("figure", instance.name, text)


def _sums(inspected: Inspected) -> Iterator[Violation]:
    plan = inspected.plan
    provisioning = sum(rent(inspected.scenario, inspected.known).values(), Fraction(0))
    initialization, unmet = Fraction(0), Fraction(0)
    for instance, phase in inspected.known:
        penalty = _penalty(inspected, instance, phase)
        initialization += max(0, instance.count - instance.kept) * Fraction(instance.price_usd_h) * penalty
    if inspected.scenario.operations.cases:
        unmet = expected_usd_h(inspected)
    elif plan.on_infeasible == "shortfall":
        stated = {item.key: item.unmet_tokens_s for item in plan.demands}
        for phase in inspected.scenario.model_phases:
            missing = stated.get(phase.key, 0.0)
            each = unmet_usd_h(inspected, phase)
            if each is None and missing:
                text = f"{phase.key}: {missing!r} tokens/s are unmet, but the scenario gives them no price"
                yield Violation("price", phase.key, text)
            unmet += Fraction(missing) * (each or 0)
    egress = egress_usd_h(inspected)
    for name, figure, computed in (
        ("provisioning_usd_h", plan.provisioning_usd_h, provisioning),
        ("initialization_usd_h", plan.initialization_usd_h, initialization),
        ("unmet_usd_h", plan.unmet_usd_h, unmet),
        ("egress_usd_h", plan.egress_usd_h, egress),
        ("cost_usd_h", plan.cost_usd_h, provisioning + initialization + unmet + egress),
    ):
        if differs(figure, float(computed)):
            yield Violation("figure", name, f"{name} is {figure!r}, the instances sum to {float(computed)!r}")


def _penalty(inspected: Inspected, instance: PlannedInstance, phase: ModelPhase) -> Fraction:
    """K of an instance: that of the scenario, or the share of the interval until its fullest node has loaded."""
    start, count = inspected.scenario.operations.start, len(instance.stages)
    if start is None:
        return Fraction(inspected.scenario.initialization_penalty)
    most = Fraction(0)
    for position, stage in enumerate(instance.stages):
        held = stage.layers * Fraction(phase.model.layer_bytes)
        held += Fraction(phase.model.end_bytes(count)) if position in (0, count - 1) else 0
        most = max(most, held)
    seconds = Fraction(start.boot_s) + most / (10**9 * Fraction(start.load_gb_s))
    return seconds / Fraction(start.interval_s)


def _ways(inspected: Inspected) -> Iterator[Violation]:
    plan, off = inspected.plan, partial(Violation, "figure")
    way, factor, bound = plan.on_infeasible, plan.served_factor, plan.served_factor_bound
    if factor > bound * (1 + TOLERANCE):
        yield off("served_factor", f"served_factor {factor!r} is above served_factor_bound {bound!r}")
    if way == "scale":
        if factor >= 1:
            yield off("served_factor", f"served_factor is {factor!r}, so demand is met, but on_infeasible is 'scale'")
    else:
        for name, figure in (("served_factor", factor), ("served_factor_bound", bound)):
            if figure != 1:
                yield off(name, f"{name} is {figure!r}, but demand was not scaled")
    if way == "shortfall" and not any(item.unmet_tokens_s for item in plan.demands):
        yield off("on_infeasible", "on_infeasible is 'shortfall', but no demand is unmet")


def _proof(inspected: Inspected) -> Iterator[Violation]:
    plan, off = inspected.plan, partial(Violation, "figure")
    cost, bound = plan.cost_usd_h, plan.lower_bound_usd_h
    if bound > cost * (1 + TOLERANCE):
        yield off("lower_bound_usd_h", f"lower_bound_usd_h {bound!r} is above cost_usd_h {cost!r}")
    gap = headline_gap(cost, bound, plan.served_factor, plan.served_factor_bound)
    if not abs(gap - plan.gap) <= SHARE:
        parts = "cost, lower bound and served share give" if plan.on_infeasible == "scale" else "cost and bound give"
        yield off("gap", f"gap is {plan.gap!r}, {parts} {gap!r}")
    if (plan.status == "optimal") != (gap_met(plan.gap, plan.requested_gap) and not plan.unconfirmed):
        text = f"status is {plan.status!r} with a gap of {plan.gap:.2e} against {plan.requested_gap:.2e} asked for"
        text += f" and {len(plan.unconfirmed)} unconfirmed models"
        yield off("status", text)
