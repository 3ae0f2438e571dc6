"""One run in its own fresh process: ``python -m coralopt.benchmark.child FOLDER``.

The folder holds ``task.json`` and receives ``events.jsonl`` (line by line, so that a killed run leaves what it knew) and
``result.json``. Imports, just-in-time compilation and a licence's greeting happen on a toy problem before the clock
starts; the clock covers everything from the problem in hand to the checked answer.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from coralopt.allocation import AllocationProblem, AllocationResult, AllocationSearchOptions, solve_allocation
from coralopt.benchmark.arms import Arm
from coralopt.benchmark.files import ModelFile
from coralopt.benchmark.observe import ObservedAllocation, ObservedBackend
from coralopt.benchmark.outcome import Outcome
from coralopt.benchmark.problem_file import BenchProblem, answer_to_plain, load_problem
from coralopt.benchmark.results import Row
from coralopt.benchmark.task import RunJob
from coralopt.errors import (
    CoraloptError,
    InfeasibleError,
    LicenseLimitError,
    NoSolutionError,
    SolverNotFoundError,
    UnsupportedError,
    WrongAnswerError,
)
from coralopt.placement import PlacementProblem, best_placement
from coralopt.replacing import replacing
from coralopt.solving import (
    Capability,
    Problem,
    Reason,
    Solution,
    SolveOptions,
    SolveProgress,
    gap_reached,
    is_matrix_backend,
    require_backend,
    solve,
    solve_matrix,
)

#: First line of the events: the clock runs.
STARTED = {"started": True}
#: Field of an event: seconds at which the back end was called for the first time.
CALLED = "called"
#: Incumbents that a run may report; of more, every other one is left out.
MOST_EVENTS = 100

_OUTCOMES: tuple[tuple[type[BaseException], Outcome], ...] = (
    (LicenseLimitError, Outcome.LICENCE),
    (SolverNotFoundError, Outcome.NOT_INSTALLED),
    (UnsupportedError, Outcome.UNSUPPORTED),
    (WrongAnswerError, Outcome.WRONG),
    (InfeasibleError, Outcome.INFEASIBLE),
    (NoSolutionError, Outcome.NO_SOLUTION),
    (MemoryError, Outcome.MEMORY),
)
_REASONS = {
    Reason.OPTIMAL: Outcome.OPTIMAL,
    Reason.FEASIBLE: Outcome.FEASIBLE,
    Reason.NO_SOLUTION_FOUND: Outcome.NO_SOLUTION,
    Reason.INFEASIBLE: Outcome.INFEASIBLE,
}


class Watch:
    """The clock of one run, its incumbents and its seconds by step."""

    def __init__(self, stream: TextIO, sense: str) -> None:
        self._stream, self._sign = stream, -1.0 if sense == "max" else 1.0
        self._best = math.inf
        self._called = False
        self.steps: dict[str, float] = {}
        self.begun = time.perf_counter()
        self.cpu = _cpu_seconds()

    def tell(self, objective: float) -> None:
        """Write down an incumbent that is better than all before."""
        if math.isfinite(objective) and self._sign * objective < self._best:
            self._best = self._sign * objective
            self.write([round(self.seconds(), 4), objective])

    def called(self) -> None:
        """Write down that the first matrix is made: what comes before is building, for a run that never ends."""
        if not self._called:
            self._called = True
            self.write({CALLED: round(self.seconds(), 3)})

    def write(self, event: object) -> None:
        """One line, at once."""
        self._stream.write(json.dumps(event) + "\n")
        self._stream.flush()

    def seconds(self) -> float:
        return time.perf_counter() - self.begun


def run(job: RunJob, problem: BenchProblem, stream: TextIO) -> Row:
    """Warm up, solve, and say how it went, as plain data."""
    setup = time.perf_counter()
    load = _load()
    watch = None
    try:
        probe = require_backend(job.arm.solver).probe()
        solver = {"solver_version": probe.version, "licence": probe.licence}
        options = SolveOptions.from_mapping(job.options)
        _warm_up(job, problem.kind, options)
        memory = peak_memory_mib()
        watch = Watch(stream, problem.sense)  # a model's file is read here, ahead of the clock
        watch.write(STARTED)
        ending = _solve(job, problem, options, watch)
    except Exception as error:
        # Whatever a back end raises is a result of the benchmark, not its end.
        outcome = next((outcome for kind, outcome in _OUTCOMES if isinstance(error, kind)), Outcome.ERROR)
        words = str(error) if isinstance(error, CoraloptError) else f"{type(error).__name__}: {error}"
        ending = {"outcome": outcome.value, "message": words[:500]}
        if watch is None:
            return {**ending, "load_before": load}
    # Permuting is the bench's work, not the arm's.
    permuting = watch.steps.pop("permute", 0.0)
    total, cpu = (max(0.0, value - permuting) for value in (watch.seconds(), _cpu_seconds() - watch.cpu))
    parts = {
        f"{name}_seconds": round(watch.steps.get(name, 0.0), 6) for name in ("build", "handover", "solve", "check")
    }
    return {
        **solver,
        **ending,
        "seconds": round(total, 6),
        "cpu_seconds": round(cpu, 6),
        **parts,
        "other_seconds": round(max(0.0, total - sum(parts.values())), 6),
        "setup_seconds": round(watch.begun - setup, 3),
        "memory_mib": peak_memory_mib(),
        "memory_before_mib": memory,
        "load_before": load,
        "load_after": _load(),
    }


def _solve(job: RunJob, problem: BenchProblem, options: SolveOptions, watch: Watch) -> Row:
    """The outcome; the watch's steps are filled even when an error ends the run."""
    arm, backend = job.arm, require_backend(job.arm.solver)
    if not is_matrix_backend(backend):
        if isinstance(problem, ModelFile):
            raise UnsupportedError(f"solver {arm.solver!r} takes no model files")
        watch.called()
        # Any: either kind of problem, and of answer.
        either: Problem[Any] = problem
        solution = solve(either, backend, options=options)
        watch.steps.update(solution.seconds)
        return _solution_data(solution)
    permute = job.seed if job.permute and job.seed > 0 else None
    whole = not arm.reductions and not isinstance(problem, ModelFile)
    observed = ObservedBackend(backend, permute, watch.tell if whole else None, watch.called)
    try:
        if isinstance(problem, ModelFile):
            return _solve_file(arm, problem, observed, options, watch)
        if isinstance(problem, PlacementProblem):
            solution = best_placement(problem, observed, arm.formulation, options)
        elif arm.reductions:
            search = AllocationSearchOptions(arm.formulation, restrict=arm.restrict)
            return _allocation_data(
                solve_allocation(ObservedAllocation.of(problem, watch.tell), observed, options, search), options, watch
            )
        else:
            route = "arrays" if arm.arrays else "pyomo"
            solution = solve(problem, observed, arm.formulation, options, route=route)
        watch.steps.update({name: solution.seconds.get(name, 0.0) for name in ("build", "check")})
        return _solution_data(solution)
    finally:
        watch.steps.update(observed.seconds)


def _solve_file(arm: Arm, problem: ModelFile, observed: ObservedBackend, options: SolveOptions, watch: Watch) -> Row:
    matrix = problem.matrix

    def listen(event: SolveProgress) -> None:
        if event.objective is not None:
            watch.tell(event.objective)

    # A linear programme has no incumbents.
    result = solve_matrix(matrix, observed, options, on_progress=listen if matrix.is_mip else None)
    watch.steps["check"] = result.check_seconds
    answer = None
    if result.x is not None:
        answer = {matrix.column_names[int(j)]: float(result.x[j]) for j in np.flatnonzero(result.x)}
    figures = (result.objective, result.bound, result.gap)
    solution = Solution(
        answer,
        result.termination,
        *figures,
        options.rel_gap,
        arm.solver,
        arm.formulation,
        watch.steps,
        result.nodes,
        result.iterations,
        shape=matrix.shape,
    )
    return _solution_data(solution)


# Any: the answer of either kind of problem.
def _solution_data(solution: Solution[Any]) -> Row:
    end = solution.termination
    outcome = _REASONS.get(end.reason, Outcome.ERROR)
    return {
        **_figures(outcome, (solution.objective, solution.bound, solution.gap), [solution]),
        "message": end.reason.value if outcome is Outcome.ERROR else "",
        "limit": end.limit.value if end.limit else "",
        "answer": answer_to_plain(solution.answer),
    }


def _allocation_data(result: AllocationResult, options: SolveOptions, watch: Watch) -> Row:
    proven = gap_reached(result.cost_usd_h, result.bound_usd_h, options.rel_gap, options.abs_gap)
    outcome = Outcome.OPTIMAL if proven else Outcome.FEASIBLE
    build, check = (sum(part.seconds.get(step, 0.0) for part in result.solutions) for step in ("build", "check"))
    watch.steps |= {"build": build, "check": result.seconds.get("check", 0.0) + check}
    return {
        **_figures(outcome, (result.cost_usd_h, result.bound_usd_h, result.gap), result.solutions),
        "steps": {name: round(value, 4) for name, value in result.seconds.items()},
        "answer": answer_to_plain(result.allocation),
    }


def _figures(outcome: Outcome, figures: tuple[float, float | None, float], parts: Sequence[Solution[Any]]) -> Row:
    """What a solve of several integer programmes, or one, or none, has to tell."""
    last = parts[-1] if parts else None
    rows, columns = (last.shape if last else None) or (None, None)
    return {
        "outcome": outcome.value,
        "message": "",
        "limit": "",
        "raw": (last.termination.raw if last else "closed without an integer programme")[:200],
        **{name: _finite(value) for name, value in zip(("objective", "bound", "gap"), figures, strict=True)},
        "nodes": sum(part.nodes for part in parts),
        "iterations": sum(part.iterations for part in parts),
        "matrix_rows": rows,
        "matrix_columns": columns,
    }


def _warm_up(job: RunJob, kind: str, options: SolveOptions) -> None:
    """Solve a toy problem, so that imports and compilation are over before the clock starts."""
    limit = None if options.time_limit is None else max(5.0, options.time_limit)
    backend = require_backend(job.arm.solver)
    linear = is_matrix_backend(backend) and not {Capability.MILP, Capability.BOXED} & backend.capabilities
    toy = _toy(kind, linear)
    _solve(replace(job, seed=1, permute=True), toy, replace(options, time_limit=limit), Watch(io.StringIO(), toy.sense))


def _toy(kind: str, linear: bool) -> BenchProblem:
    """A problem of this kind; a model's file has whole columns between bounds, which any back end takes, or none."""
    if kind == "file":
        text = b"Maximize obj: x + y\nSubject To c: 2 x + 3 y <= 7\nBounds\n x <= 3\n y <= 2\n"
        text += (b"" if linear else b"General x y\n") + b"End\n"
        return ModelFile(np.frombuffer(text, dtype=np.uint8), "toy.lp")
    if kind == "placement":
        # Three stages: the dynamic programme has kernels of its own for middle ones.
        values = np.zeros((3, 3, 2, 5))
        values[..., 1:] = 60.0 / np.arange(1, 5)
        return PlacementProblem(values, (2, 1), ("a", "b"))
    return AllocationProblem(
        usage=np.array([[1, 0], [0, 1], [1, 1]]),
        throughput=np.array([3.0, 2.0, 6.0]),
        phase=np.array([0, 1, 0]),
        demand=np.array([7.0, 3.0]),
        availability=np.array([[3, 3], [2, 2]]),
        price=np.array([[2.0, 1.0], [3.0, 1.5]]),
        running=None,
        penalty=0.1,
        phase_names=("a/decode", "b/decode"),
        region_names=("r0", "r1"),
        configuration_names=("1xA", "1xB"),
    )


def peak_memory_mib() -> float | None:
    """Largest resident memory so far, MiB; ``None`` when unknown."""
    try:
        # On Linux ru_maxrss also counts what the process was before it became this program.
        status = Path("/proc/self/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return round(int(line.split()[1]) / 1024, 1)
    except (OSError, StopIteration, ValueError):
        pass
    try:
        import resource

        return round(
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10), 1
        )
    except ImportError:
        return None


def _cpu_seconds() -> float:
    """CPU seconds of this process and of the processes it waited for (solvers behind a pipe)."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def _load() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def thinned(events: list[list[float]]) -> list[list[float]]:
    """At most ``MOST_EVENTS`` events; the first and the last one stay."""
    while len(events) > MOST_EVENTS:
        events = [*events[:-1:2], events[-1]]
    return events


def main(arguments: list[str]) -> None:
    """Run the task of a folder."""
    folder = Path(arguments[0])
    data = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    job = RunJob(**{**data, "arm": Arm(**data["arm"])})
    with (folder / "events.jsonl").open("a", encoding="utf-8") as stream:
        row = run(job, load_problem(Path(job.problem)), stream)
    with replacing(folder / "result.json") as temporary:
        temporary.write_text(json.dumps(row), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
