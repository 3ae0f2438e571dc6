"""The work of the offline stage cut into tasks that any process on any machine can do by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coralopt.errors import LibraryError
from coralopt.placement import Coupling, EngineLimits, Placement, PlacementProblem, best_placement
from coralopt.placement.limits import NO_LIMITS
from coralopt.solving import Reason, get_backend
from coralopt.templates.method import BuildMethod
from coralopt.types import Floats, Ints

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


@dataclass(frozen=True, eq=False)
class TaskResult:
    """Templates found by one task, in the order of its node sets; node sets without a placement are left out.

    Attributes:
        usage, throughput, stage_layers, node_configuration, node_stage: As in ``PhaseTemplates``.
        examined: Number of node sets looked at.
        largest_gap: Largest proven relative gap of a template; 0 for the dynamic programme.
        seconds: Wall time.
    """

    usage: npt.NDArray[np.int8]
    throughput: Floats
    stage_layers: npt.NDArray[np.int16]
    node_configuration: npt.NDArray[np.int8]
    node_stage: npt.NDArray[np.int8]
    examined: int
    largest_gap: float = 0.0
    seconds: float = 0.0


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
    started = time.perf_counter()
    result = sweep(context, task, told) if context.method.swept else _one_by_one(context, task)
    return TaskResult(**{**result, "seconds": time.perf_counter() - started})


def sweep(context: TaskContext, task: Task, told: Callable[[float], None] | None) -> dict[str, Any]:
    """The fields of a :class:`TaskResult` by the dynamic programme."""

    def progress(done: int, total: int) -> None:
        if told is not None:
            told(done / max(total, 1))

    # Whole families are no part of the protocol of a back end: only the dynamic programme takes them.
    programme: Any = get_backend("dp")
    found = programme.place_family(
        context.values[task.phase],
        task.sets,
        context.coupling,
        limits=context.limits,
        gpus=context.gpus,
        workers=context.threads,
        progress=progress,
    )
    good = found.throughput > 0
    rows = np.flatnonzero(good) if task.wanted is None else task.wanted[good[task.wanted]]
    width = context.max_nodes
    return {
        "usage": np.ascontiguousarray(task.sets[rows]),
        "throughput": found.throughput[rows],
        "stage_layers": padded(found.stage_layers[rows], width, 0).astype(np.int16),
        "node_configuration": padded(found.node_configuration[rows], width, -1).astype(np.int8),
        "node_stage": padded(found.node_stage[rows], width, -1).astype(np.int8),
        "examined": len(task.sets) if task.wanted is None else len(task.wanted),
    }


def _one_by_one(context: TaskContext, task: Task) -> dict[str, Any]:
    method, width = context.method, context.max_nodes
    options = {"rel_gap": GAP, **method.options}
    placed: list[tuple[npt.NDArray[np.int8], float, Placement]] = []
    largest_gap = 0.0
    for row in task.sets:
        problem = node_set_problem(context, task.phase, row)
        if not problem.stage_counts:
            continue
        solution = best_placement(problem, method.solver, method.formulation, options)
        if solution.answer is not None:
            placed.append((row, solution.objective, solution.answer))
            largest_gap = max(largest_gap, solution.gap)
        elif solution.termination.reason is not Reason.INFEASIBLE:
            raise LibraryError(
                f"{method.solver} neither placed {context.keys[task.phase]} on {problem!r} nor proved that it cannot: "
                f"{solution.termination.raw}; give it more time (--option time_limit=SECONDS) or use --solver dp"
            )
    stage_layers = np.zeros((len(placed), width), dtype=np.int16)
    configuration, stage = (np.full((len(placed), width), -1, dtype=np.int8) for _ in range(2))
    for position, (_, _, placement) in enumerate(placed):
        write_placement(placement, stage_layers[position], configuration[position], stage[position])
    empty = np.zeros((0, len(context.configurations)), dtype=np.int8)
    return {
        "usage": np.array([row for row, _, _ in placed], dtype=np.int8) if placed else empty,
        "throughput": np.array([throughput for _, throughput, _ in placed], dtype=np.float64),
        "stage_layers": stage_layers,
        "node_configuration": configuration,
        "node_stage": stage,
        "examined": len(task.sets),
        "largest_gap": largest_gap,
    }


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


def write_placement(
    placement: Placement,
    stage_layers: npt.NDArray[np.int16],
    configuration: npt.NDArray[np.int8],
    stage: npt.NDArray[np.int8],
) -> None:
    """Store a placement in one row of the library's arrays."""
    node = 0
    for position, held in enumerate(placement.stages):
        stage_layers[position] = held.layers
        for c, count in enumerate(held.nodes):
            configuration[node : node + count] = c
            stage[node : node + count] = position
            node += count


def padded(matrix: npt.NDArray[Any], width: int, fill: int) -> npt.NDArray[Any]:
    """``matrix`` with columns of ``fill`` added up to ``width``."""
    missing = width - matrix.shape[1]
    if missing <= 0:
        return matrix[:, :width]
    return np.pad(matrix, ((0, 0), (0, missing)), constant_values=fill)
