"""Doubt a library: derive a sample of its templates anew, with another solver, and compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coralopt.errors import LibraryError
from coralopt.placement import engine_limits, problem_of
from coralopt.scenario import scenario_from_mapping
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates.build import (
    build_library,
    library_digest,
    placement_tables,
    scenario_node_sets,
    scenario_tables,
)
from coralopt.templates.library import PhaseTemplates, TemplateLibrary
from coralopt.templates.method import BuildMethod
from coralopt.templates.tasks import GAP, cut_into_tasks


@dataclass(frozen=True)
class LibraryCheck:
    """What was compared and what differs.

    Attributes:
        compared: Node sets derived anew.
        without_template: How many of them have no placement, by both.
        largest_difference: Largest relative difference of throughput.
        violations: One sentence for everything that is off; empty for a sound library.
    """

    compared: int
    without_template: int
    largest_difference: float
    violations: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.violations


def library_scenario(library: TemplateLibrary, scenario: ResolvedScenario | None = None) -> ResolvedScenario:
    """The scenario that a library was built for: ``scenario`` when given, else the one that the library carries.

    Raises:
        LibraryError: The library carries none.
        ScenarioError: What it carries is not valid any more.
    """
    if scenario is not None:
        return scenario
    if not library.document:
        raise LibraryError(f"the library of '{library.scenario}' carries no scenario; name it with --scenario")
    return scenario_from_mapping(library.document, source="the library's scenario")


def check_library(
    library: TemplateLibrary,
    scenario: ResolvedScenario | None = None,
    *,
    solver: str = "highs",
    formulation: str | None = None,
    options: Mapping[str, Any] | None = None,
    sample: int = 1000,
    seed: int = 0,
    executor: str = "local",
    workers: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> LibraryCheck:
    """Derive a sample of node sets anew, among them those without a template, and hold the library against them.

    Args:
        library: The library.
        scenario: Its scenario; the one it carries when ``None``.
        solver: Any placement solver.
        formulation: For a matrix back end.
        options: Common solver options.
        sample: Node sets to draw, all model phases together.
        seed: Seed of the draw.
        executor: ``"local"`` or ``"ray"``.
        workers: Processes.
        progress: Told about steps done.

    Raises:
        LibraryError: The library belongs to another scenario, or the solver left a node set undecided.
        SolverError: As :func:`coralopt.placement.best_placement`.
    """
    scenario = library_scenario(library, scenario)
    tables = scenario_tables(scenario)
    digest = library_digest(scenario, tables)
    if library.digest.removeprefix("sample-") != digest:
        raise LibraryError(
            f"the library was built for scenario '{library.scenario}' with digest "
            f"{library.digest.removeprefix('sample-')[:12]}, but this scenario needs {digest[:12]}"
        )
    if library.method.get("sample") is not None:
        sample, seed = int(library.method["sample"]), int(library.method["seed"])
    method = BuildMethod(solver, formulation, dict(options or {}), sample, seed)
    again = build_library(scenario, tables, method=method, executor=executor, workers=workers, progress=progress)
    drawn = _drawn(scenario, method)
    tolerance = max(GAP, float(method.options.get("rel_gap", GAP)), float(library.method.get("largest_gap") or 0)) * 2
    values, coupling = placement_tables(scenario, tables)
    limits = engine_limits(scenario.placement.engine)
    gpus = tuple(c.count for c in scenario.configurations)
    violations: list[str] = []
    largest, without = 0.0, 0
    for phase, other, table, sets in zip(library.phases, again.phases, values, drawn, strict=True):
        stored, derived = _by_node_set(phase), _by_node_set(other)
        for row in sets:
            names = {n: int(k) for n, k in zip(library.configurations, row, strict=True) if k}
            have, want = stored.get(row.tobytes()), derived.get(row.tobytes())
            if have is None and want is None:
                without += 1
                continue
            if have is None or want is None:
                who, lacks = (solver, "the library") if have is None else ("the library", solver)
                violations.append(f"{phase.key} on {names}: {who} has a placement, {lacks} has none")
                continue
            problem = problem_of(table, tuple(int(n) for n in row), library.configurations, coupling, limits, gpus)
            check = problem.check(phase.placement(have))
            if not check.feasible or check.objective != phase.throughput[have]:
                violations.append(
                    f"{phase.key} on {names}: stored as {phase.throughput[have]!r} tokens/s, its placement gives "
                    f"{check.objective!r} {'; '.join(check.violations)}"
                )
            mine, yours = float(phase.throughput[have]), float(other.throughput[want])
            difference = abs(mine - yours) / max(mine, yours)
            largest = max(largest, difference)
            if difference > tolerance:
                violations.append(f"{phase.key} on {names}: stored {mine!r} tokens/s, {solver} finds {yours!r}")
    return LibraryCheck(sum(map(len, drawn)), without, largest, tuple(violations))


def _by_node_set(phase: PhaseTemplates) -> dict[bytes, int]:
    return {row.tobytes(): position for position, row in enumerate(phase.usage)}


def _drawn(scenario: ResolvedScenario, method: BuildMethod) -> list[npt.NDArray[np.int8]]:
    """The node sets of the sample, by model phase."""
    families = scenario_node_sets(scenario)
    tasks = cut_into_tasks(families, method)
    empty = np.zeros((0, len(scenario.configurations)), dtype=np.int8)
    return [
        np.concatenate(
            [empty, *(t.sets if t.wanted is None else t.sets[t.wanted] for t in tasks if t.phase == position)]
        )
        for position in range(len(families))
    ]
