"""Independent verification of a plan: everything in it is recomputed from the scenario it carries.

Shares no code with the planner that wrote the plan: no library, no formulation, no reduction. Sums that decide
feasibility (capacity, demand) are exact rational arithmetic on the stored figures. Nothing in the document is taken for
granted but what :class:`Verification` lists as trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coralopt.errors import CoraloptError
from coralopt.plan.document import Plan
from coralopt.plan.verify.cases import cases
from coralopt.plan.verify.certified import certificate_violations
from coralopt.plan.verify.classes import classes
from coralopt.plan.verify.demands import demands
from coralopt.plan.verify.inspected import Inspected
from coralopt.plan.verify.instances import capacity, names, optimality, placements, prices
from coralopt.plan.verify.money import money
from coralopt.plan.verify.options import options
from coralopt.plan.verify.origin import origin, scenario
from coralopt.plan.verify.routes import routes
from coralopt.plan.verify.shared import shared_nodes
from coralopt.plan.verify.simulated import simulated
from coralopt.solving.problem import Violation

__all__ = ["Verification", "verify_plan"]


@dataclass(frozen=True)
class Verification:
    """What was checked and what was found.

    Attributes:
        checks: Names of the checks made, with how many figures each looked at.
        violations: Everything that is off; empty for a sound plan.
        trusted: What the plan says that this check cannot know, in words.
    """

    checks: tuple[tuple[str, int], ...]
    violations: tuple[Violation, ...]
    trusted: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def sentences(self) -> tuple[str, ...]:
        """The violations in words."""
        return tuple(map(str, self.violations))


def verify_plan(plan: Plan) -> Verification:
    """Recompute every figure of ``plan`` from the scenario inside it.

    The scenario is validated anew; throughput tables are computed anew; each placement is checked against them, its
    optimality on its node set re-derived by the dynamic programme; prices, capacity, demand, cost and gap are summed
    anew. The lower bound itself is a statement about the whole library: :func:`coralopt.planning.prove_bound`
    re-derives it.
    """
    try:
        inspected = Inspected.of(plan)
    except CoraloptError as error:
        return Verification((("scenario", 1),), (Violation("scenario", "scenario", str(error)),))
    checks: list[tuple[str, int]] = []
    violations: list[Violation] = []

    def check(name: str, count: int, broken: Iterator[Violation]) -> None:
        violations.extend(broken)
        checks.append((name, count))

    instances = len(plan.instances)
    check("origin", 6, origin(inspected))
    check("scenario", 1, scenario(inspected))
    check("names", instances, names(inspected))
    check("placements", instances, placements(inspected))
    if inspected.scenario.models_in_classes or any(instance.classes for instance in plan.instances):
        check("classes", sum(len(instance.classes) for instance in plan.instances), classes(inspected))
    check("shared nodes", sum(instance.shared is not None for instance in plan.instances), shared_nodes(inspected))
    check("optimality of placements", instances, optimality(inspected))
    check("prices", instances, prices(inspected))
    check("capacity", inspected.scenario.availability.size, capacity(inspected))
    check("demand", len(inspected.scenario.model_phases), demands(inspected))
    check("routes", len(plan.flows), routes(inspected))
    if plan.cases or inspected.scenario.operations.cases:
        check("cases", len(plan.cases), cases(inspected))
    check("options", len(plan.options), options(inspected))
    check("cost and gap", 10, money(inspected))
    if plan.simulated is not None:
        check("simulated", len(plan.simulated.phases), simulated(plan.simulated, inspected))
    if plan.certificate is not None:
        check("certificate", len(plan.certificate.phases), certificate_violations(plan))
    return Verification(tuple(checks), tuple(violations), _trusted(plan))


def _trusted(plan: Plan) -> tuple[str, ...]:
    said = []
    if plan.lower_bound_usd_h > 0:
        said.append("lower_bound_usd_h, as far as it lies below the cost: --prove re-derives it")
    if plan.on_infeasible == "scale":
        said.append("served_factor_bound: --prove re-derives it")
    if plan.simulated is not None:
        said.append("simulated.rounds")
    if plan.certificate is not None:
        said.append("certificate: shares of requests by window; --prove simulates them again")
    return (*said, "requested_gap: what was asked for")
