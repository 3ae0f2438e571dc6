"""Doubt a library: derive a sample of its templates anew, with another solver, and compare."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from coralopt.errors import LibraryError, LicenseLimitError
from coralopt.placement import best_placement
from coralopt.scenario import scenario_from_mapping
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.solving import Reason, require_backend
from coralopt.templates.build import library_digest, scenario_node_sets, scenario_tables, task_context
from coralopt.templates.executors import make_executor
from coralopt.templates.library import TemplateLibrary
from coralopt.templates.method import BuildMethod
from coralopt.templates.tasks import GAP, Task, TaskContext, cut_into_tasks, node_set_problem, sweep
from coralopt.types import Floats

#: Seconds a matrix back end may take for one node set unless told otherwise.
TIME_LIMIT = 60.0


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
        options: Common solver options; the gap asked for is 1e-6, and one node set may take 60 s, unless given.
        sample: Node sets to draw, all model phases together.
        seed: Seed of the draw.
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
        sample, seed = int(library.method["sample"]), int(library.method["seed"])
    method = BuildMethod(solver, formulation, dict(options or {}), sample, seed)
    require_backend(solver)
    tasks = cut_into_tasks(scenario_node_sets(scenario), method)
    here = method.swept and executor == "local"
    context = task_context(scenario, tables, method, workers if here else 1)
    done, total = 0, sum(len(task.sets) for task in tasks)
    tolerance = max(GAP, float(method.options.get("rel_gap", GAP)), float(library.method.get("largest_gap") or 0)) * 2
    rows = [{row.tobytes(): k for k, row in enumerate(phase.usage)} for phase in library.phases]
    compared, without, largest = 0, 0, 0.0
    violations: list[tuple[int, str]] = []
    left_open: Counter[str] = Counter()
    for position, derived in make_executor(executor, workers, here).run(derive_task, context, tasks):
        task = tasks[position]
        for row, best, bound, why in zip(derived.sets, derived.throughput, derived.bound, derived.open, strict=True):
            stored = library.phases[task.phase]
            have = rows[task.phase].get(row.tobytes())
            speed = 0.0 if have is None else float(stored.throughput[have])
            where = f"{stored.key} on { ({n: int(k) for n, k in zip(library.configurations, row, strict=True) if k}) }"
            if have is not None:
                check = node_set_problem(context, task.phase, row).check(stored.placement(have))
                if not check.feasible or check.objective != speed:
                    violations.append(
                        (
                            position,
                            f"{where}: stored as {speed!r} tokens/s, its placement gives {check.objective!r} "
                            f"{'; '.join(check.sentences)}",
                        )
                    )
            if best > speed * (1 + tolerance) or bound < speed * (1 - tolerance):
                found = f"finds {best!r}" if best > 0 else "finds none" if bound <= 0 else f"proves at most {bound!r}"
                kept = f"stored {speed!r} tokens/s" if have is not None else "the library has no placement"
                violations.append((position, f"{where}: {kept}, {solver} {found}"))
            elif why:
                left_open[why] += 1
                continue
            compared += 1
            without += have is None
            largest = max(largest, abs(speed - best) / max(speed, best, 1e-300))
        done += len(task.sets)
        if progress is not None:
            progress(library.phases[task.phase].key, done, total)
    if not compared:
        violations.append((0, f"{solver} settled none of {sum(left_open.values()):,} node sets"))
    # In the order of the node sets, whoever was first.
    violations.sort(key=lambda item: item[0])
    return LibraryCheck(compared, without, largest, tuple(text for _, text in violations), dict(left_open))


@dataclass(frozen=True, eq=False)
class Derived:
    """What a solver says of the node sets of one task.

    Attributes:
        sets: int8 (M, C).
        throughput: float64 (M,), tokens/s of the best placement found; 0 for none.
        bound: float64 (M,), tokens/s that no placement exceeds.
        open: Why a node set is not settled; empty where it is.
    """

    sets: npt.NDArray[np.int8]
    throughput: Floats
    bound: Floats
    open: tuple[str, ...]


def derive_task(context: TaskContext, task: Task, told: Callable[[float], None] | None = None) -> Derived:
    """Derive the node sets of one task anew, and leave open what the solver cannot settle."""
    if context.method.swept:
        sets = task.sets if task.wanted is None else task.sets[task.wanted]
        swept = sweep(context, task, told)
        found = {row.tobytes(): float(value) for row, value in zip(swept["usage"], swept["throughput"], strict=True)}
        throughput = np.array([found.get(row.tobytes(), 0.0) for row in sets])
        return Derived(sets, throughput, throughput, ("",) * len(sets))
    options = {"rel_gap": GAP, "time_limit": TIME_LIMIT, **context.method.options}
    settled = [_settle(context, task.phase, row, options) for row in task.sets]
    throughput, bound = (np.array([entry[k] for entry in settled], dtype=np.float64) for k in (0, 1))
    return Derived(task.sets, throughput, bound, tuple(str(entry[2]) for entry in settled))


def _settle(
    context: TaskContext, phase: int, row: npt.NDArray[np.int8], options: Mapping[str, Any]
) -> tuple[float, float, str]:
    """Throughput found, bound, and why it is open."""
    problem = node_set_problem(context, phase, row)
    if not problem.stage_counts:
        return 0.0, 0.0, ""
    try:
        solution = best_placement(problem, context.method.solver, context.method.formulation, options)
    except LicenseLimitError:
        return 0.0, math.inf, "larger than the licence allows"
    if solution.termination.reason is Reason.INFEASIBLE:
        return 0.0, 0.0, ""
    best = 0.0 if solution.answer is None else solution.objective
    bound = math.inf if solution.bound is None else max(solution.bound, best)
    settled = solution.termination.reason is Reason.OPTIMAL
    return best, bound, "" if settled else f"not proven within {options['time_limit']:g} s"
