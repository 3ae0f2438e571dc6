"""Doubt a library: derive a sample of its templates anew, with another solver, and compare."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coralopt.errors import LibraryError, LicenseLimitError
from coralopt.placement import best_placement
from coralopt.scenario import scenario_from_mapping
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.solving import Reason, SolveOptions, require_backend
from coralopt.templates.build import library_digest, scenario_node_sets, task_context
from coralopt.templates.library import TemplateLibrary
from coralopt.templates.method import BuildMethod
from coralopt.templates.tables import scenario_tables
from coralopt.templates.tasks import GAP, Task, TaskContext, cut_into_tasks, node_set_problem, run_tasks, sweep
from coralopt.types import Progress

#: Seconds a matrix back end may take for one node set unless told otherwise.
TIME_LIMIT = 60.0
#: Who doubts a library unless told otherwise, and how many node sets.
DEFAULT_METHOD = BuildMethod("highs", sample=1000)


@dataclass(frozen=True)
class LibraryCheck:
    """What was compared and what differs.

    A node set that the solver cannot settle still counts against the library where the solver's placement is better than
    the stored one, or its bound lower; otherwise it stays open.

    Attributes:
        compared: Node sets derived anew and settled.
        without_template: How many of them have no placement, by both.
        largest_difference: Largest relative difference of throughput among the settled ones.
        violations: One sentence for everything that is off; empty for a sound library.
        open: Why node sets were not settled, and how many for each reason.
    """

    compared: int
    without_template: int
    largest_difference: float
    violations: tuple[str, ...]
    open: Mapping[str, int] = field(default_factory=dict)

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
    method: BuildMethod = DEFAULT_METHOD,
    executor: str = "local",
    workers: int | None = None,
    progress: Progress | None = None,
) -> LibraryCheck:
    """Derive a sample of node sets anew, among them those without a template, and hold the library against them.

    Args:
        library: The library.
        scenario: Its scenario; the one it carries when ``None``.
        method: Who derives them, and how many, all model phases together: any placement solver; the gap asked for is
            1e-6, and one node set may take 60 s, unless its options say otherwise. A library that is a sample itself
            is checked on just that sample.
        executor: ``"local"`` or ``"ray"``.
        workers: Processes.
        progress: Told about steps done.

    Raises:
        LibraryError: The library belongs to another scenario, or a worker died.
        SolverError: As :func:`coralopt.placement.best_placement`, except that a licence too small leaves node sets open.
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
        method = replace(method, sample=int(library.method["sample"]), seed=int(library.method["seed"]))
    require_backend(method.solver)
    context = task_context(scenario, tables, method)
    tasks = dict(enumerate(cut_into_tasks(scenario_node_sets(scenario), method)))
    allowed_gap = SolveOptions.from_mapping({"rel_gap": GAP, **method.options}).rel_gap
    tolerance = max(GAP, allowed_gap, float(library.method.get("largest_gap") or 0)) * 2
    rows = [{row.tobytes(): k for k, row in enumerate(phase.usage.astype(np.int8))} for phase in library.phases]
    compared, without, largest = 0, 0, 0.0
    violations: list[tuple[int, str]] = []
    left_open: Counter[str] = Counter()
    total = sum(len(task.sets) for task in tasks.values())
    for position, derived in run_tasks(derive_task, context, tasks, executor, workers, progress, total):
        task = tasks[position]
        stored = library.phases[task.phase]
        for row, (best, bound, why) in zip(task.asked_for, derived, strict=True):
            have = rows[task.phase].get(row.tobytes())
            speed = 0.0 if have is None else float(stored.throughput[have])
            where = f"{stored.key} on { ({n: int(k) for n, k in zip(library.configurations, row, strict=True) if k}) }"
            if have is not None:
                check = node_set_problem(context, task.phase, row).check(stored.placement(have))
                if not check.feasible or check.objective != speed:
                    text = f"{where}: stored as {speed!r} tokens/s, its placement gives {check.objective!r} "
                    violations.append((position, text + "; ".join(check.sentences)))
            if best > speed * (1 + tolerance) or bound < speed * (1 - tolerance):
                answer = f"finds {best!r}" if best > 0 else "finds none" if bound <= 0 else f"proves at most {bound!r}"
                kept = f"stored {speed!r} tokens/s" if have is not None else "the library has no placement"
                violations.append((position, f"{where}: {kept}, {method.solver} {answer}"))
            elif why:
                left_open[why] += 1
                continue
            compared += 1
            without += have is None
            largest = max(largest, abs(speed - best) / max(speed, best, 1e-300))
    if not compared:
        violations.append((0, f"{method.solver} settled none of {sum(left_open.values()):,} node sets"))
    # In the order of the node sets, whoever was first.
    violations.sort(key=lambda item: item[0])
    return LibraryCheck(compared, without, largest, tuple(text for _, text in violations), dict(left_open))


class Derived(NamedTuple):
    """What a solver says of one node set.

    Attributes:
        best: tokens/s of the best placement that it has; 0 for none.
        bound: tokens/s that no placement exceeds.
        why_open: Why the node set is not settled; empty where it is.
    """

    best: float
    bound: float
    why_open: str = ""


def derive_task(context: TaskContext, task: Task, told: Callable[[float], None] | None = None) -> list[Derived]:
    """Derive the node sets of one task anew, and leave open what the solver cannot settle."""
    if context.method.swept:
        swept = sweep(context, task, told)
        speeds = {
            row.tobytes(): float(value)
            for row, value in zip(swept.usage.astype(np.int8), swept.throughput, strict=True)
        }
        derived = (speeds.get(row.tobytes(), 0.0) for row in task.asked_for)
        return [Derived(speed, speed) for speed in derived]
    return [_settle(context, task.phase, row) for row in task.sets]


def _settle(context: TaskContext, phase: int, row: npt.NDArray[np.int8]) -> Derived:
    problem, method = node_set_problem(context, phase, row), context.method
    if not problem.stage_counts:
        return Derived(0.0, 0.0)
    options = {"rel_gap": GAP, "time_limit": TIME_LIMIT, **method.options}
    try:
        solution = best_placement(problem, method.solver, method.formulation, options)
    except LicenseLimitError:
        return Derived(0.0, math.inf, "larger than the licence allows")
    if solution.termination.reason is Reason.INFEASIBLE:
        return Derived(0.0, 0.0)
    best = 0.0 if solution.answer is None else solution.objective
    bound = math.inf if solution.bound is None else max(solution.bound, best)
    settled = solution.termination.reason is Reason.OPTIMAL
    return Derived(best, bound, "" if settled else f"not proven within {options['time_limit']:g} s")
