"""The offline stage: from a scenario to its template library, or the stored one when nothing changed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coralopt.errors import LibraryError, Mistake, ScenarioError
from coralopt.placement import Budgets, Coupling, Links, engine_limits
from coralopt.scenario.resolved import ModelPhase, PlacementRules, ResolvedScenario
from coralopt.solving import require_backend
from coralopt.templates.executors import make_executor
from coralopt.templates.library import FORMAT, PhaseTemplates, TemplateLibrary, load_library, save_library
from coralopt.templates.method import BuildMethod
from coralopt.templates.node_sets import node_sets_for
from coralopt.templates.parts import Parts
from coralopt.templates.tasks import Task, TaskContext, TaskResult, cut_into_tasks, solve_task
from coralopt.throughput import (
    ThroughputTables,
    budget_tables,
    build_tables,
    engine_runs,
    explain_infeasible,
    link_tables,
    only_executable,
    throughput_source,
)
from coralopt.types import Floats, Progress


def scenario_tables(scenario: ResolvedScenario) -> tuple[ThroughputTables, ...]:
    """Throughput tables of every model phase of the scenario, 0 where its engine cannot run a node.

    Raises:
        CoraloptError: The throughput source does not cover a model or a GPU.
    """
    source = throughput_source(scenario.throughput_source)
    nodes, engine = scenario.configurations, scenario.placement.engine
    return tuple(
        only_executable(build_tables(source, phase, nodes, scenario.max_nodes), engine, phase, nodes)
        for phase in scenario.model_phases
    )


def placement_tables(
    scenario: ResolvedScenario, tables: Sequence[ThroughputTables]
) -> tuple[tuple[Floats, ...], Coupling | None]:
    """The tables that placements of the scenario are made from, by model phase, and what their cells are.

    Without free latency budgets and network-aware stages they are ``tables`` themselves and there are no cells.
    """
    rules = scenario.placement
    if rules.budget_units is None and not rules.link_network:
        return tuple(table.values for table in tables), None
    source = throughput_source(scenario.throughput_source)
    nodes, most = scenario.configurations, scenario.max_nodes

    def executable(values: Floats, phase: ModelPhase) -> Floats:
        runs = engine_runs(rules.engine, phase, nodes, most)
        return np.where(runs[:, None, :, None, None], values, 0.0)

    if rules.budget_units is not None:
        made = tuple(
            executable(budget_tables(source, phase, nodes, most, rules.budget_units), phase)
            for phase in scenario.model_phases
        )
        return made, Budgets(rules.budget_units)
    linked = [link_tables(source, phase, nodes, most) for phase in scenario.model_phases]
    made = tuple(executable(values, phase) for (values, _), phase in zip(linked, scenario.model_phases, strict=True))
    return made, Links(linked[0][1])


def library_digest(scenario: ResolvedScenario, tables: Sequence[ThroughputTables]) -> str:
    """SHA-256 hex of all that decides the templates: tables, configurations, node-set limits; not prices or demand."""
    digest = hashlib.sha256(FORMAT.encode())
    digest.update(f"{scenario.max_nodes};{scenario.memory_ratio!r};".encode())
    if scenario.placement != PlacementRules():
        hosts = [(c.count, c.network_gb_s) for c in scenario.configurations]
        digest.update(f"{scenario.placement!r};{hosts!r};".encode())
    for configuration in scenario.configurations:
        digest.update(f"{configuration.name};{configuration.memory_gib!r};".encode())
    for phase, table in zip(scenario.model_phases, tables, strict=True):
        digest.update(f"{phase.key};{phase.model.weight_bytes!r};{table.values.shape};".encode())
        digest.update(np.ascontiguousarray(table.values).tobytes())
    return digest.hexdigest()


def check_slos(scenario: ResolvedScenario, tables: Sequence[ThroughputTables]) -> None:
    """Refuse SLOs that no node of the pool can meet, and models that the engine cannot run on any, all of them at once.

    Raises:
        ScenarioError: Names each SLO and the smallest time that could be met, or the model and the engine.
    """
    mistakes = []
    engine = scenario.placement.engine
    for phase, table in zip(scenario.model_phases, tables, strict=True):
        if phase.demand_tokens_s > 0 and not (table.values > 0).any():
            if not engine_runs(engine, phase, scenario.configurations, scenario.max_nodes).all():
                source = throughput_source(scenario.throughput_source)
                if (build_tables(source, phase, scenario.configurations, scenario.max_nodes).values > 0).any():
                    mistakes.append(
                        Mistake(
                            place=f"models.{phase.model.name}",
                            problem=f"no node of the pool runs its {phase.phase} under the engine {engine!r}",
                            hint="decode takes one node that holds the whole model, with BF16 and GPUs that divide the "
                            "attention heads; add larger nodes, use mode mixed, or the engine 'any'"
                            if phase.phase == "decode"
                            else "it takes nodes with BF16 and GPUs that divide the attention heads; add such nodes, or "
                            "use the engine 'any'",
                        )
                    )
                    continue
            field = "prefill_ms" if phase.phase == "prefill" else "decode_ms"
            room = f" less {phase.latency_headroom:.0%} headroom" if phase.latency_headroom else ""
            mistakes.append(
                Mistake(
                    place=f"models.{phase.model.name}.slo.{field}",
                    problem=f"no node configuration of the pool can meet {phase.slo_ms:g} ms{room}",
                    hint=explain_infeasible(phase, scenario.configurations, scenario.throughput_source),
                )
            )
    if mistakes:
        raise ScenarioError(scenario.name, mistakes)


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
    tables = scenario_tables(scenario) if tables is None else tables
    check_slos(scenario, tables)
    method = method or BuildMethod()
    families = scenario_node_sets(scenario) if node_sets is None else list(node_sets)
    tasks = cut_into_tasks(families, method)
    digest = library_digest(scenario, tables)
    parts = None if keep_parts_for is None else Parts(keep_parts_for, f"{digest};{method.key()};{len(tasks)}")
    results = _run(scenario, tables, tasks, method, executor, workers, parts, progress)
    return TemplateLibrary(
        digest=digest if method.sample is None and node_sets is None else f"sample-{digest}",
        scenario=scenario.name,
        configurations=tuple(configuration.name for configuration in scenario.configurations),
        phases=tuple(
            _joined(phase.key, [r for t, r in zip(tasks, results, strict=True) if t.phase == p])
            for p, phase in enumerate(scenario.model_phases)
        ),
        document=scenario.document,
        method={**method.to_mapping(), "largest_gap": max((r.largest_gap for r in results), default=0.0)},
    )


def scenario_node_sets(scenario: ResolvedScenario) -> list[npt.NDArray[np.int8]]:
    """Node sets of each model phase; those of one model are one array."""
    made: dict[str, npt.NDArray[np.int8]] = {}
    for phase in scenario.model_phases:
        if phase.model.name not in made:
            made[phase.model.name] = node_sets_for(
                phase.model, scenario.configurations, scenario.max_nodes, scenario.memory_ratio
            )
    return [made[phase.model.name] for phase in scenario.model_phases]


def _run(
    scenario: ResolvedScenario,
    tables: Sequence[ThroughputTables],
    tasks: Sequence[Task],
    method: BuildMethod,
    executor: str,
    workers: int | None,
    parts: Parts | None,
    progress: Progress | None,
) -> list[TaskResult]:
    """Results of all tasks in order; those already on disk are not made again."""
    require_backend(method.solver)
    weights = [len(task.sets) for task in tasks]
    results: dict[int, TaskResult] = {} if parts is None else parts.load(len(tasks))
    todo = [position for position in range(len(tasks)) if position not in results]
    done, total = sum(weights[position] for position in results), sum(weights)

    def tell(index: int, share: float) -> None:
        if progress is not None and todo:
            position = todo[index]
            key = scenario.model_phases[tasks[position].phase].key
            progress(key, done + int(weights[position] * share), total)

    here = method.swept and executor == "local"
    context = task_context(scenario, tables, method, workers if here else 1)
    runner = make_executor(executor, workers, here, tell if here else None)
    tell(0, 0.0)
    for index, result in runner.run(solve_task, context, [tasks[position] for position in todo]):
        results[todo[index]] = result
        if parts is not None:
            parts.save(todo[index], result)
        done += weights[todo[index]]
        tell(index, 0.0)
    return [results[position] for position in range(len(tasks))]


def task_context(
    scenario: ResolvedScenario, tables: Sequence[ThroughputTables], method: BuildMethod, threads: int | None
) -> TaskContext:
    """What all tasks over the scenario's node sets share; ``threads`` is for one task, all cores when ``None``."""
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
        threads=threads,
    )


def _joined(key: str, results: Sequence[TaskResult]) -> PhaseTemplates:
    """One model phase out of the results of its tasks, which are in the order of its node sets."""

    def joined(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(result, name) for result in results])

    return PhaseTemplates(
        key=key,
        usage=joined("usage"),
        throughput=joined("throughput"),
        stage_layers=joined("stage_layers"),
        node_configuration=joined("node_configuration"),
        node_stage=joined("node_stage"),
        examined=sum(result.examined for result in results),
    )


def default_library_path(scenario: ResolvedScenario, digest: str, method: BuildMethod | None = None) -> Path:
    """Where a library is kept when no path is given: the user's cache directory, by name, digest and method."""
    base = os.environ.get("CORALOPT_CACHE") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    text = "-".join(part for part in (scenario.name, method.name if method is not None else "") if part)
    safe = "".join(character if character.isalnum() or character in "-_" else "_" for character in text)
    return Path(base) / "coralopt" / f"{safe}-{digest.removeprefix('sample-')[:16]}.parquet"


def obtain_library(
    scenario: ResolvedScenario,
    path: Path | None = None,
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
            ``None`` uses the cache directory, where the name carries the digest.
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
    target = path if path is not None else default_library_path(scenario, digest, method)
    if target.exists() and not rebuild:
        sampled = method is not None and method.sample is not None
        library = load_library(target, expected_digest=f"sample-{digest}" if sampled else digest)
        if method is not None and library.method and method.key() != _method_key(library.method):
            raise LibraryError(
                f"{target}: was built by {_method_words(library.method)}, not by {_method_words(method.to_mapping())}; "
                "choose another -o, or --rebuild"
            )
        return library, True
    library = build_library(
        scenario,
        tables,
        method=method,
        executor=executor,
        workers=workers,
        keep_parts_for=target,
        progress=progress,
    )
    save_library(library, target)
    Parts.remove_all(target)
    return library, False


def _method_key(method: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in method.items() if name != "largest_gap"}, sort_keys=True)


def _method_words(method: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in method.items() if value and name != "largest_gap")
