"""The work of the offline stage cut into tasks that any process on any machine can do by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from coralopt.errors import LibraryError
from coralopt.placement import Coupling, EngineLimits, Placement, PlacementProblem, best_placement
from coralopt.placement.limits import NO_LIMITS
from coralopt.solving import Reason, Solution, get_backend
from coralopt.templates.executors import make_executor
from coralopt.templates.library import Templates
from coralopt.templates.method import BuildMethod
from coralopt.types import Floats, Ints, Progress

R = TypeVar("R")
#: Most tasks that a library is cut into by solvers that go node set by node set.
MOST_TASKS = 5000
#: Gap asked of a matrix back end: templates are meant to be throughput-optimal.
GAP = 1e-6


@dataclass(frozen=True, eq=False)
class TaskContext:
    """What all tasks of one build share.

    Attributes:
        keys: Model phase keys.
        values: Throughput table of each model phase, float64 (S, 3, C, L + 1), or (S, 3, C, K, L + 1) with a coupling.
        configurations: Node configuration names, length C.
        max_nodes: N, width of the answers.
        method: Who solves.
        coupling: What a cell of the tables is; ``None`` without cells.
        limits: What the engine can run.
        gpus: GPUs in one node of each configuration, length C.
        threads: Threads inside one task; all cores when ``None``.
    """

    keys: tuple[str, ...]
    values: tuple[Floats, ...]
    configurations: tuple[str, ...]
    max_nodes: int
    method: BuildMethod
    coupling: Coupling | None = None
    limits: EngineLimits = NO_LIMITS
    gpus: tuple[int, ...] = ()
    threads: int | None = None


@dataclass(frozen=True, eq=False)
class Task:
    """Node sets of one model phase.

    Attributes:
        phase: Position of the model phase.
        sets: int8 (M, C). For a sweep the whole family, closed under taking nodes away.
        wanted: Rows of ``sets`` that are asked for; ``None`` for all.
    """

    phase: int
    sets: npt.NDArray[np.int8]
    wanted: Ints | None = None

    @property
    def asked_for(self) -> npt.NDArray[np.int8]:
        """int8 (M, C): the node sets to be answered for."""
        return self.sets if self.wanted is None else self.sets[self.wanted]


@dataclass(frozen=True, eq=False)
class TaskResult(Templates):
    """Templates of one task, in the order of its node sets; node sets without a placement are left out.

    Attributes:
        largest_gap: Largest proven relative gap of a template; 0 for the dynamic programme.
    """

    largest_gap: float = 0.0


def cut_into_tasks(families: Sequence[npt.NDArray[np.int8]], method: BuildMethod) -> list[Task]:
    """Tasks that cover the node sets of every model phase, or the sample of them, each exactly once."""
    wanted = _sampled([len(sets) for sets in families], method)
    if method.swept:
        return [Task(phase, sets, wanted[phase]) for phase, sets in enumerate(families)]
    chosen = [sets if rows is None else sets[rows] for sets, rows in zip(families, wanted, strict=True)]
    size = max(1, -(-sum(map(len, chosen)) // MOST_TASKS))
    return [
        Task(phase, sets[start : start + size])
        for phase, sets in enumerate(chosen)
        for start in range(0, max(len(sets), 1), size)
    ]


def _sampled(sizes: Sequence[int], method: BuildMethod) -> list[Ints | None]:
    """Rows asked for in each model phase: without replacement, each node set of the scenario equally likely."""
    total = sum(sizes)
    if method.sample is None or method.sample >= total:
        return [None] * len(sizes)
    drawn = np.sort(np.random.default_rng(method.seed).choice(total, method.sample, replace=False))
    ends = np.cumsum(sizes)
    parts = np.split(drawn, np.searchsorted(drawn, ends[:-1]))
    return [part - (end - size) for part, end, size in zip(parts, ends, sizes, strict=True)]


def solve_task(context: TaskContext, task: Task, told: Callable[[float], None] | None = None) -> TaskResult:
    """Do one task; ``told`` hears now and then which share of it is done.

    Raises:
        LibraryError: The solver neither found a placement of some node set nor proved that there is none.
        SolverError: As :func:`coralopt.placement.best_placement`.
    """
    return sweep(context, task, told) if context.method.swept else _one_by_one(context, task)


def sweep(context: TaskContext, task: Task, told: Callable[[float], None] | None) -> TaskResult:
    """The task by the dynamic programme, which answers for all of its node sets at once."""
    # Whole families are no part of the protocol of a back end: only the dynamic programme takes them.
    programme: Any = get_backend("dp")
    swept = programme.place_family(
        context.values[task.phase],
        task.sets,
        context.coupling,
        limits=context.limits,
        gpus=context.gpus,
        workers=context.threads,
        progress=None if told is None else lambda steps, total: told(steps / max(total, 1)),
    )
    placed = swept.throughput > 0
    rows = np.flatnonzero(placed) if task.wanted is None else task.wanted[placed[task.wanted]]

    def padded(matrix: npt.NDArray[np.int16], fill: int) -> npt.NDArray[np.int16]:
        missing = max(0, context.max_nodes - matrix.shape[1])
        return np.pad(matrix[rows, : context.max_nodes], ((0, 0), (0, missing)), constant_values=fill)

    return TaskResult(
        usage=task.sets[rows].astype(np.int16),
        throughput=swept.throughput[rows],
        stage_layers=padded(swept.stage_layers, 0),
        node_configuration=padded(swept.node_configuration, -1).astype(np.int8),
        node_stage=padded(swept.node_stage, -1).astype(np.int8),
        examined=len(task.asked_for),
    )


def _one_by_one(context: TaskContext, task: Task) -> TaskResult:
    method, width = context.method, context.max_nodes
    options = {"rel_gap": GAP, **method.options}
    solutions: list[tuple[npt.NDArray[np.int8], Solution[Placement]]] = []
    for row in task.sets:
        problem = node_set_problem(context, task.phase, row)
        if not problem.stage_counts:
            continue
        solution = best_placement(problem, method.solver, method.formulation, options)
        if solution.answer is not None:
            solutions.append((row, solution))
        elif solution.termination.reason is not Reason.INFEASIBLE:
            raise LibraryError(
                f"{method.solver} neither placed {context.keys[task.phase]} on {problem!r} nor proved that it cannot: "
                f"{solution.termination.raw}; give it more time (--option time_limit=SECONDS) or use --solver dp"
            )
    stage_layers = np.zeros((len(solutions), width), dtype=np.int16)
    configuration, stage = (np.full((len(solutions), width), -1, dtype=np.int8) for _ in range(2))
    for t, (_, solution) in enumerate(solutions):
        node = 0
        for position, held in enumerate(solution.require_solution().stages):
            stage_layers[t, position] = held.layers
            for c, count in enumerate(held.nodes):
                configuration[t, node : node + count] = c
                stage[t, node : node + count] = position
                node += count
    return TaskResult(
        usage=np.array([row for row, _ in solutions], dtype=np.int16).reshape(-1, len(context.configurations)),
        throughput=np.array([solution.objective for _, solution in solutions], dtype=np.float64),
        stage_layers=stage_layers,
        node_configuration=configuration,
        node_stage=stage,
        examined=len(task.sets),
        largest_gap=max((solution.gap for _, solution in solutions), default=0.0),
    )


def node_set_problem(context: TaskContext, phase: int, row: npt.NDArray[np.int8]) -> PlacementProblem:
    """The placement problem of one node set, int8 (C,), of one model phase."""
    return PlacementProblem(
        context.values[phase],
        tuple(int(count) for count in row),
        context.configurations,
        limits=context.limits,
        gpus=context.gpus,
        coupling=context.coupling,
    )


def run_tasks(
    function: Callable[..., R],
    context: TaskContext,
    tasks: Mapping[int, Task],
    executor: str,
    workers: int | None,
    progress: Progress | None,
    total: int,
) -> Iterator[tuple[int, R]]:
    """(key of the task, its result) as they come, from any executor.

    Args:
        function: :func:`solve_task` or alike.
        context: What they share; the number of threads is set here.
        tasks: The tasks by their keys.
        executor: ``"local"`` or ``"ray"``.
        workers: Threads of the sweep, processes, or tasks at a time.
        progress: Told about node sets.
        total: Node sets in all, with those of tasks finished before.

    Raises:
        LibraryError: A worker died.
    """
    keys = list(tasks)
    finished = total - sum(len(task.sets) for task in tasks.values())

    def tell(index: int, share: float) -> None:
        if progress is not None and keys:
            task = tasks[keys[index]]
            progress(context.keys[task.phase], finished + int(len(task.sets) * share), total)

    here = context.method.swept and executor == "local"
    context = replace(context, threads=workers if here else 1)
    tell(0, 0.0)
    runner = make_executor(executor, workers, here, tell if here else None)
    for index, result in runner.run(function, context, list(tasks.values())):
        yield keys[index], result
        finished += len(tasks[keys[index]].sets)
        tell(index, 0.0)
