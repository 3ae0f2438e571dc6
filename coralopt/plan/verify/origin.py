"""Checks of where a plan comes from: who made it with what, from which scenario and which library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache, partial

from coralopt._version import __version__
from coralopt.allocation.model import FORMULATIONS
from coralopt.errors import CoraloptError
from coralopt.plan.verify.inspected import Inspected
from coralopt.solving import backend_version
from coralopt.solving.problem import Violation
from coralopt.templates import library_digest

#: The only planner that proves a bound over every template; the formulations are its own.
PROVING = "coral"


def origin(inspected: Inspected) -> Iterator[Violation]:
    """Planner, versions and library; a plan of other versions is no plan that these can vouch for."""
    plan, off = inspected.plan, partial(Violation, "origin")
    if plan.coralopt_version != __version__:
        text = (
            f"coralopt_version is {plan.coralopt_version!r}, this is {__version__}: verify with that one or plan anew"
        )
        yield off("coralopt_version", text)
    known = sorted(FORMULATIONS) if plan.planner == PROVING else [plan.planner]
    if plan.formulation not in known:
        text = f"formulation is {plan.formulation!r}, planner {plan.planner!r} has {' and '.join(known)}"
        yield off("formulation", text)
    if plan.planner != PROVING and plan.lower_bound_usd_h != 0:
        text = f"lower_bound_usd_h is {plan.lower_bound_usd_h!r}, but planner {plan.planner!r} proves none"
        yield off("lower_bound_usd_h", text)
    yield from _solver(inspected)
    tables = [inspected.tables.plain(phase.key) for phase in inspected.scenario.model_phases]
    digest = library_digest(inspected.scenario, tables)
    if plan.library_digest != digest:
        yield off("library_digest", f"library_digest is {plan.library_digest[:12]}, recomputed {digest[:12]}")


def _solver(inspected: Inspected) -> Iterator[Violation]:
    plan, off = inspected.plan, partial(Violation, "origin")
    if plan.solver == "none":
        # Planners without a solver are their own.
        installed = __version__
        if plan.planner == PROVING:
            yield off("solver", f"solver is 'none', but planner {PROVING!r} has one")
    else:
        try:
            installed = _installed(plan.solver)
        except CoraloptError as error:
            yield off("solver", f"solver: {error}")
            return
    if plan.solver_version != installed:
        text = (
            f"solver_version is {plan.solver_version!r}, {plan.solver} here is {installed!r}: verify where it was made"
        )
        yield off("solver_version", text)


@cache
def _installed(solver: str) -> str:
    """Version of a solver; looked up once, for that reads the metadata of every package there is."""
    return backend_version(solver)


def scenario(inspected: Inspected) -> Iterator[Violation]:
    """The scenario decides what its digest says, and is written as scenarios in plans are."""
    plan, resolved, off = inspected.plan, inspected.scenario, partial(Violation, "scenario")
    if resolved.digest != plan.scenario_digest:
        yield off(
            "scenario_digest",
            f"scenario_digest is {plan.scenario_digest[:12]} but the scenario in the plan has {resolved.digest[:12]}: "
            "the scenario or the catalog changed since the plan was made",
        )
    for place in sorted(_other_places(plan.scenario, resolved.document)):
        yield off("scenario", f"scenario: {place} is not as coralopt writes it, so the document was changed")


def _other_places(stated: object, due: object, place: str = "") -> Iterator[str]:
    """Dotted places where two documents differ, types included."""
    if isinstance(stated, dict) and isinstance(due, dict):
        for key in {*stated, *due}:
            if key not in stated or key not in due:
                yield f"{place}{key}"
            else:
                yield from _other_places(stated[key], due[key], f"{place}{key}.")
    elif json.dumps(stated) != json.dumps(due):
        yield place.rstrip(".")
