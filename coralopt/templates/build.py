"""The offline stage: from a scenario to its template library, or the stored one when nothing changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from coralopt.errors import Mistake, ScenarioError
from coralopt.scenario.resolved import ModelPhase, ResolvedScenario
from coralopt.solving import get_backend
from coralopt.templates.library import FORMAT, PhaseTemplates, TemplateLibrary, load_library, save_library
from coralopt.templates.node_sets import node_sets_for
from coralopt.throughput import ThroughputTables, build_tables, explain_infeasible, throughput_source

#: Called with (what is being done, steps done, steps in all); steps are node sets weighted by stage counts.
Progress = Callable[[str, int, int], None]


def scenario_tables(scenario: ResolvedScenario) -> tuple[ThroughputTables, ...]:
    """Throughput tables of every model phase of the scenario.

    Raises:
        CoraloptError: The throughput source does not cover a model or a GPU.
    """
    source = throughput_source(scenario.throughput_source)
    return tuple(
        build_tables(source, phase, scenario.configurations, scenario.max_nodes) for phase in scenario.model_phases
    )


def library_digest(scenario: ResolvedScenario, tables: Sequence[ThroughputTables]) -> str:
    """SHA-256 hex of all that decides the templates: tables, configurations, node-set limits; not prices or demand."""
    digest = hashlib.sha256(FORMAT.encode())
    digest.update(f"{scenario.max_nodes};{scenario.memory_ratio!r};".encode())
    for configuration in scenario.configurations:
        digest.update(f"{configuration.name};{configuration.memory_gib!r};".encode())
    for phase, table in zip(scenario.model_phases, tables, strict=True):
        digest.update(f"{phase.key};{phase.model.weight_bytes!r};{table.values.shape};".encode())
        digest.update(np.ascontiguousarray(table.values).tobytes())
    return digest.hexdigest()


def check_slos(scenario: ResolvedScenario, tables: Sequence[ThroughputTables]) -> None:
    """Refuse SLOs that no node of the pool can meet, all of them at once.

    Raises:
        ScenarioError: Names each SLO and the smallest time that could be met.
    """
    mistakes = []
    for phase, table in zip(scenario.model_phases, tables, strict=True):
        if phase.demand_tokens_s > 0 and not (table.values > 0).any():
            field = "prefill_ms" if phase.phase == "prefill" else "decode_ms"
            mistakes.append(
                Mistake(
                    place=f"models.{phase.model.name}.slo.{field}",
                    problem=f"no node configuration of the pool can meet {phase.slo_ms:g} ms",
                    hint=explain_infeasible(phase, scenario.configurations, scenario.throughput_source),
                )
            )
    if mistakes:
        raise ScenarioError(scenario.name, mistakes)


def build_phase(
    phase: ModelPhase,
    scenario: ResolvedScenario,
    table: ThroughputTables,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PhaseTemplates:
    """Templates of one model phase: every node set within the limits, placed in one exact sweep."""
    sets = node_sets_for(phase.model, scenario.configurations, scenario.max_nodes, scenario.memory_ratio)
    result = get_backend("dp").place_family(table.values, sets, workers=workers, progress=progress)
    keep = np.flatnonzero(result.throughput > 0)
    return PhaseTemplates(
        key=phase.key,
        usage=np.ascontiguousarray(sets[keep]),
        throughput=result.throughput[keep],
        stage_layers=_padded(result.stage_layers[keep], scenario.max_nodes, 0).astype(np.int16),
        node_configuration=_padded(result.node_configuration[keep], scenario.max_nodes, -1).astype(np.int8),
        node_stage=_padded(result.node_stage[keep], scenario.max_nodes, -1).astype(np.int8),
        examined=len(sets),
    )


def build_library(
    scenario: ResolvedScenario,
    tables: Sequence[ThroughputTables] | None = None,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> TemplateLibrary:
    """Build the template library of a scenario with the exact dynamic programme.

    Args:
        scenario: The resolved scenario.
        tables: Its throughput tables if already made.
        workers: Threads of the sweep; all cores when ``None``. The result is the same for any number.
        progress: Told about steps done.

    Raises:
        ScenarioError: An SLO no node can meet.
    """
    tables = scenario_tables(scenario) if tables is None else tables
    check_slos(scenario, tables)
    work = [
        len(node_sets_for(phase.model, scenario.configurations, scenario.max_nodes, scenario.memory_ratio))
        for phase in scenario.model_phases
    ]
    total, before = sum(work), 0
    phases = []
    for phase, table, size in zip(scenario.model_phases, tables, work, strict=True):

        def report(done: int, of: int, start: int = before, size: int = size, key: str = phase.key) -> None:
            if progress is not None:
                progress(key, start + (size * done) // max(of, 1), total)

        report(0, 1)
        phases.append(build_phase(phase, scenario, table, workers, report))
        before += size
        report(1, 1, start=before - size)
    return TemplateLibrary(
        digest=library_digest(scenario, tables),
        scenario=scenario.name,
        configurations=tuple(configuration.name for configuration in scenario.configurations),
        phases=tuple(phases),
    )


def default_library_path(scenario: ResolvedScenario, digest: str) -> Path:
    """Where a library is kept when no path is given: the user's cache directory, by name and digest."""
    base = os.environ.get("CORALOPT_CACHE") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    safe = "".join(character if character.isalnum() or character in "-_" else "_" for character in scenario.name)
    return Path(base) / "coralopt" / f"{safe}-{digest[:16]}.parquet"


def obtain_library(
    scenario: ResolvedScenario,
    path: Path | None = None,
    *,
    rebuild: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[TemplateLibrary, bool]:
    """The scenario's library: read when it is there, else built and stored.

    Args:
        scenario: The resolved scenario.
        path: A library file. An existing one is used if it belongs to the scenario and refused if it does not.
            ``None`` uses the cache directory, where the name carries the digest.
        rebuild: Build even when a stored library fits.
        workers: Threads of the sweep.
        progress: Told about steps done.

    Returns:
        The library and whether it was read rather than built.

    Raises:
        LibraryError: The file at ``path`` is stale, foreign or corrupt, or cannot be written.
    """
    tables = scenario_tables(scenario)
    check_slos(scenario, tables)
    digest = library_digest(scenario, tables)
    target = path if path is not None else default_library_path(scenario, digest)
    if target.exists() and not rebuild:
        return load_library(target, expected_digest=digest), True
    library = build_library(scenario, tables, workers=workers, progress=progress)
    save_library(library, target)
    return library, False


def _padded(matrix: np.ndarray, width: int, fill: int) -> np.ndarray:
    """``matrix`` with columns of ``fill`` added up to ``width``."""
    missing = width - matrix.shape[1]
    if missing <= 0:
        return matrix[:, :width]
    return np.pad(matrix, ((0, 0), (0, missing)), constant_values=fill)
