"""The offline stage: from a scenario to its template library, or the stored one when nothing changed."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coralopt.errors import CacheWarning, LibraryError
from coralopt.placement import engine_limits
from coralopt.replacing import replacing
from coralopt.scenario.facts.facts import PlacementRules
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.solving import require_backend
from coralopt.templates.estimate import announce
from coralopt.templates.library import COLUMNS, FORMAT, PhaseTemplates, TemplateLibrary, load_library, save_library
from coralopt.templates.method import BuildMethod, method_key, method_words
from coralopt.templates.node_sets import node_sets_for
from coralopt.templates.on_demand import is_on_demand
from coralopt.templates.parts import Parts
from coralopt.templates.stored import LibraryAhead, default_library_path
from coralopt.templates.tables import check_slos, placement_tables, scenario_tables
from coralopt.templates.tasks import TaskContext, TaskResult, cut_into_tasks, run_tasks, solve_task
from coralopt.throughput import ThroughputTables
from coralopt.types import Progress


def library_digest(scenario: ResolvedScenario, tables: Sequence[ThroughputTables]) -> str:
    """SHA-256 hex of all that decides the templates: tables, configurations, node-set limits; not prices or demand."""
    digest = hashlib.sha256(FORMAT.encode())
    digest.update(f"{scenario.max_nodes};{scenario.memory_ratio!r}, single nodes whatever it says;".encode())
    if scenario.placement != PlacementRules():
        hosts = [(c.count, c.network_gb_s) for c in scenario.configurations]
        digest.update(f"{scenario.placement!r};{hosts!r};".encode())
    if is_on_demand(scenario):
        digest.update(b"on demand;")
    for configuration in scenario.configurations:
        digest.update(f"{configuration.name};{configuration.memory_gib!r};".encode())
    for phase, table in zip(scenario.model_phases, tables, strict=True):
        digest.update(f"{phase.key};{phase.model.weight_bytes!r};{table.values.shape};".encode())
        digest.update(np.ascontiguousarray(table.values).tobytes())
    return digest.hexdigest()


def build_library(
    scenario: ResolvedScenario,
    tables: Sequence[ThroughputTables] | None = None,
    *,
    method: BuildMethod | None = None,
    node_sets: Sequence[npt.NDArray[np.int8]] | None = None,
    executor: str = "local",
    workers: int | None = None,
    keep_parts_for: Path | None = None,
    progress: Progress | None = None,
) -> TemplateLibrary:
    """Build the template library of a scenario, by default with the exact dynamic programme.

    Args:
        scenario: The resolved scenario.
        tables: Its throughput tables if already made.
        method: Solver, formulation and sample; the dynamic programme over every node set when ``None``.
        node_sets: int8 (M, C) node sets for each model phase instead of all; closed under taking a node away. The digest
            is then that of a part.
        executor: ``"local"`` or ``"ray"``.
        workers: Threads of the sweep, processes, or tasks at a time; all cores when ``None``. The result of the
            dynamic programme is the same for any number and executor.
        keep_parts_for: The library file to be: finished parts are kept beside it, and those of an interrupted build
            of the same library are read instead of made.
        progress: Told about steps done.

    Raises:
        ScenarioError: An SLO no node can meet.
        LibraryError: A worker died, a part cannot be written, or a solver left a node set undecided.
        SolverError: The solver is unknown, not installed, or answered wrongly.
        OptionError: A formulation, option or executor that does not exist.
    """
    method = method or BuildMethod()
    require_backend(method.solver)
    tables = scenario_tables(scenario) if tables is None else tables
    check_slos(scenario, tables)
    if node_sets is None:
        announce(scenario)
    families = scenario_node_sets(scenario) if node_sets is None else list(node_sets)
    tasks = cut_into_tasks(families, method)
    digest = library_digest(scenario, tables)
    parts = None if keep_parts_for is None else Parts(keep_parts_for, f"{digest};{method.key()};{len(tasks)}")
    results = {} if parts is None else parts.load(len(tasks))
    missing = {position: task for position, task in enumerate(tasks) if position not in results}
    context, total = task_context(scenario, tables, method), sum(len(task.sets) for task in tasks)
    for position, result in run_tasks(solve_task, context, missing, executor, workers, progress, total):
        results[position] = result
        if parts is not None:
            parts.save(position, result)
    return TemplateLibrary(
        digest=digest if method.sample is None and node_sets is None else f"sample-{digest}",
        scenario=scenario.name,
        configurations=tuple(configuration.name for configuration in scenario.configurations),
        phases=tuple(
            _joined(phase.key, [results[position] for position, task in enumerate(tasks) if task.phase == p])
            for p, phase in enumerate(scenario.model_phases)
        ),
        document=scenario.document,
        method={
            **method.to_mapping(),
            "largest_gap": max((result.largest_gap for result in results.values()), default=0.0),
        },
    )


def scenario_node_sets(scenario: ResolvedScenario) -> list[npt.NDArray[np.int8]]:
    """Node sets of each model phase; those of one model are one array."""
    models = {phase.model.name: phase.model for phase in scenario.model_phases}
    families = {
        name: node_sets_for(model, scenario.configurations, scenario.max_nodes, scenario.memory_ratio)
        for name, model in models.items()
    }
    return [families[phase.model.name] for phase in scenario.model_phases]


def task_context(scenario: ResolvedScenario, tables: Sequence[ThroughputTables], method: BuildMethod) -> TaskContext:
    """What all tasks over the scenario's node sets share."""
    values, coupling = placement_tables(scenario, tables)
    return TaskContext(
        keys=tuple(phase.key for phase in scenario.model_phases),
        values=values,
        configurations=tuple(configuration.name for configuration in scenario.configurations),
        max_nodes=scenario.max_nodes,
        method=method,
        coupling=coupling,
        limits=engine_limits(scenario.placement.engine),
        gpus=tuple(configuration.count for configuration in scenario.configurations),
    )


def _joined(key: str, results: Sequence[TaskResult]) -> PhaseTemplates:
    """One model phase out of the results of its tasks, which are in the order of its node sets."""
    if len(results) == 1:
        columns = {name: getattr(results[0], name) for name in COLUMNS}
    else:
        columns = {name: np.concatenate([getattr(result, name) for result in results]) for name in COLUMNS}
    return PhaseTemplates(key=key, examined=sum(result.examined for result in results), **columns)


def _writable(folder: Path) -> bool:
    """Whether a file of a few kB can be kept there."""
    try:
        with replacing(folder / "room") as temporary:
            temporary.write_bytes(bytes(65_536))
        (folder / "room").unlink(missing_ok=True)
    except OSError:
        return False
    return True


def obtain_library(
    scenario: ResolvedScenario,
    path: Path | LibraryAhead | None = None,
    *,
    tables: Sequence[ThroughputTables] | None = None,
    rebuild: bool = False,
    method: BuildMethod | None = None,
    executor: str = "local",
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[TemplateLibrary, bool]:
    """The scenario's library: read when it is there, else built and stored.

    An interrupted build leaves its finished parts beside the file; the next call reads them and goes on.

    Args:
        scenario: The resolved scenario.
        path: A library file. An existing one is used if it belongs to the scenario and refused if it does not.
            ``None`` uses the cache directory, where the name carries the digest; where that cannot be used, the library
            is kept in memory only, with a :class:`CacheWarning`. Or one of these that is being read already.
        tables: Its throughput tables if already made.
        rebuild: Build even when a stored library fits.
        method: Solver, formulation and sample; see :func:`build_library`. A stored library made by another method is
            refused when one is asked for; without one, any complete library of the scenario fits.
        executor: ``"local"`` or ``"ray"``.
        workers: Threads of the sweep, processes, or tasks at a time.
        progress: Told about steps done.

    Returns:
        The library and whether it was read rather than built.

    Raises:
        LibraryError: The file at ``path`` is stale, foreign or corrupt, or cannot be written.
    """
    tables = scenario_tables(scenario) if tables is None else tables
    check_slos(scenario, tables)
    digest = library_digest(scenario, tables)
    ahead = path if isinstance(path, LibraryAhead) else None
    path = path.path if isinstance(path, LibraryAhead) else path
    target = path if path is not None else default_library_path(scenario, digest, method)
    library = None if ahead is None or rebuild else ahead.library(target, digest)
    sampled = method is not None and method.sample is not None
    if library is None and os.access(target, os.F_OK) and not rebuild:
        try:
            library = load_library(target, expected_digest=f"sample-{digest}" if sampled else digest)
        except LibraryError as error:
            if path is not None:
                raise
            # Without what its owner could do: here it is done.
            what = str(error).rpartition("; ")[0]
            warnings.warn(f"{what}; it is built anew", CacheWarning, stacklevel=2)
    if library is not None:
        if method is not None and library.method and method.key() != method_key(library.method):
            raise LibraryError(
                f"{target}: was built by {method_words(library.method)}, not by {method_words(method.to_mapping())}; "
                "choose another -o, or --rebuild"
            )
        return library, True
    library = build_library(
        scenario,
        tables,
        method=method,
        executor=executor,
        workers=workers,
        keep_parts_for=target if path is not None or _writable(target.parent) else None,
        progress=progress,
    )
    try:
        save_library(library, target)
    except LibraryError as error:
        if path is not None:
            raise
        warnings.warn(f"{error}; it is kept in memory, and built again next time", CacheWarning, stacklevel=2)
    Parts.remove_all(target)
    return library, False
