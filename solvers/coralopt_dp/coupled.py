"""The dynamic programme over whole families of node sets when stages have cells (latency budgets or links).

The pipeline is built from its end: a suffix of k stages has a table over cells and layers, and a stage in front of it
makes one of k + 1. Otherwise it is the sweep of sweep.py. Mathematics: docs/concepts/library.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from coralopt.errors import SolverError, WrongAnswerError
from coralopt.placement.coupled import Budgets, Links
from coralopt.placement.limits import EngineLimits
from coralopt.throughput.tables import FIRST, LAST, MIDDLE, stage_role
from coralopt.types import Bools, Floats, Ints
from coralopt_dp.sweep import Family, Progress, SweepResult, _Threads, falls_in_layers


def coupled_sweep(
    values: Floats,
    node_sets: npt.NDArray[np.int8],
    coupling: Budgets | Links,
    max_nodes: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    *,
    stages: int | None = None,
    limits: EngineLimits | None = None,
    gpus: Sequence[int] = (),
) -> SweepResult:
    """Throughput-optimal placement of every node set with the best cells, exactly, over all stage counts.

    Args:
        values: float64 (S, 3, C, K, L + 1), tokens/s of one node, as in ``CoupledPlacementProblem``.
        node_sets: int8 (M, C), sorted by the number of nodes, then lexicographically; closed under taking nodes away.
        coupling: What a cell is.
        max_nodes, workers, progress, stages, limits, gpus: As in :func:`coralopt_dp.sweep`.

    Raises:
        SolverError: The arrays do not fit together, or the family is not closed or not sorted.
    """
    values = np.ascontiguousarray(values, dtype=np.float64)
    if values.ndim != 5 or values.shape[2] != node_sets.shape[1]:
        raise SolverError(f"values has shape {values.shape}; it must be (S, 3, {node_sets.shape[1]}, K, L + 1)")
    sizes = node_sets.sum(axis=1, dtype=np.int64)
    order = np.lexsort((*node_sets.T[::-1], sizes))
    if (order[1:] < order[:-1]).any():
        raise SolverError("node_sets must be sorted by the number of nodes, then lexicographically")
    width = int(sizes.max(initial=0)) if max_nodes is None else max_nodes
    family = Family.of(np.ascontiguousarray(node_sets), workers)
    limits = limits or EngineLimits()
    wanted = np.arange(len(node_sets))
    if limits.same_tp:
        wanted = np.flatnonzero([limits.node_set_allowed(row, gpus) for row in node_sets.tolist()])
    result = SweepResult(
        family.sets,
        np.zeros(len(sizes)),
        np.zeros(len(sizes), dtype=np.int32),
        np.zeros((len(sizes), width), dtype=np.int16),
        np.full((len(sizes), width), -1, dtype=np.int32),
    )
    largest = len(family.start) - 1
    most = min(values.shape[0], largest, values.shape[4] - 1)
    counts = range(1, most + 1) if stages is None else range(stages, min(stages, most) + 1)
    with _Threads(workers):
        for done, count in enumerate(counts, start=1):
            for allowed in limits.stage_masks(family.sets):
                _solve_stages(
                    family, values[count - 1], count, coupling, wanted[sizes[wanted] >= count], result, allowed
                )
            if progress is not None:
                progress(done, len(counts))
    _verify(values, result, coupling)
    return result


def _solve_stages(
    family: Family,
    values: Floats,
    count: int,
    coupling: Budgets | Links,
    wanted: Ints,
    result: SweepResult,
    allowed: Bools | None,
) -> None:
    """Try ``count`` stages: ``values`` is (3, C, K, L + 1)."""
    from coralopt_dp import coupled_kernels as kernels
    from coralopt_dp.kernels import one_stage

    linked = isinstance(coupling, Links)
    # Units beyond what leaves one to each other stage are of no use.
    last_cell = values.shape[2] - 1 if isinstance(coupling, Links) else coupling.total(count)
    values = np.ascontiguousarray(values[:, :, : last_cell + 1])
    if isinstance(coupling, Budgets):
        # Units that the table does not list are worth what the last listed one is.
        values = np.maximum.accumulate(values, axis=2)
    layers, cells = values.shape[3] - 1, values.shape[2]
    largest = len(family.start) - 1
    rows = int(family.start[largest - count + 1])
    answer = (result.throughput, result.stages, result.stage_layers, result.stage_sets)

    def table(role: int) -> Floats:
        out = np.empty((rows, cells, layers + 1))
        kernels.cell_tables(np.ascontiguousarray(values[role]), family.sets, rows, out)
        if allowed is not None:
            out[~allowed[:rows]] = 0.0
        return out

    first = table(FIRST)
    if count == 1:
        one_stage(wanted, np.ascontiguousarray(first[:, last_cell]), *answer)
        return
    if isinstance(coupling, Links):
        ranks = np.asarray(coupling.classes, dtype=np.int64)
        classes = np.where(family.sets > 0, ranks[None, :], cells).min(axis=1).astype(np.int64)
    else:
        classes = np.zeros(len(family.sets), dtype=np.int64)
    roles = (FIRST, LAST) if count == 2 else (FIRST, MIDDLE, LAST)
    falling = all(falls_in_layers(values[role]) for role in roles)
    # Suffixes of k stages leave a node at least to each of the other stages.
    spans = {k: (k, largest - count + k) for k in range(1, count)}
    shift = np.zeros(count, dtype=np.int64)
    size = 0
    for k, (least, most) in spans.items():
        shift[k] = size - family.start[least - 1]
        size += int(family.start[most] - family.start[least - 1])
    suffix = np.zeros((size, cells, layers + 1))
    last, end = table(LAST), int(family.start[spans[1][1]])
    if linked:
        # The last stage sends nothing: its own class is the cell of the suffix, its speed that of the top cell.
        suffix[np.arange(end), classes[:end]] = last[:end, last_cell]
    else:
        suffix[:end] = last[:end]
    middle = table(MIDDLE) if count > 2 else first
    for k in range(2, count):
        for nodes in range(spans[k][0], spans[k][1] + 1):
            kernels.join_suffix(
                family.sets, family.sizes, family.links, classes, int(family.start[nodes - 1]),
                int(family.start[nodes]), middle, suffix, int(shift[k - 1]), k - 1, linked, layers - (count - k),
                last_cell, falling, suffix, int(shift[k]),
            )  # fmt: skip
    kernels.close_pipelines(
        family.sets, family.sizes, family.links, classes, wanted, count, linked, last_cell, first, middle, suffix,
        shift, falling, *answer,
    )  # fmt: skip


def _verify(values: Floats, result: SweepResult, coupling: Budgets | Links) -> None:
    """Recompute every throughput from its placement alone; the same float sums must come out."""
    layers, cells = values.shape[4] - 1, values.shape[3]
    for count in range(1, values.shape[0] + 1):
        rows = np.flatnonzero(result.stages == count)
        if not len(rows):
            continue
        enough = np.zeros((len(rows), count), dtype=np.int64)
        lowest = np.full(len(rows), np.inf)
        for stage in range(count):
            table = values[count - 1, stage_role(stage, count)]
            held = result.stage_layers[rows, stage]
            nodes = result.node_sets[result.stage_sets[rows, stage]]
            total, possible = np.zeros((len(rows), cells)), np.ones((len(rows), cells), dtype=bool)
            for c in range(values.shape[2]):
                one = table[c][:, held].T
                total += nodes[:, c, None] * one
                possible &= (nodes[:, c, None] == 0) | (one > 0)
            total[~possible] = 0.0
            if isinstance(coupling, Links):
                cell = np.full(len(rows), cells - 1)
                if stage < count - 1:
                    following = result.node_sets[result.stage_sets[rows, stage + 1]]
                    cell = np.where(following > 0, np.asarray(coupling.classes)[None, :], cells).min(axis=1)
                lowest = np.minimum(lowest, total[np.arange(len(rows)), cell])
            else:
                reaches = total >= result.throughput[rows, None]
                enough[:, stage] = np.where(reaches.any(axis=1), reaches.argmax(axis=1), cells * count + 1)
                at = np.minimum(enough[:, stage], cells - 1)
                lowest = np.minimum(lowest, total[np.arange(len(rows)), at])
        wrong = (lowest < result.throughput[rows]) | (result.stage_layers[rows].sum(axis=1) != layers)
        if isinstance(coupling, Links):
            wrong |= lowest != result.throughput[rows]
        else:
            wrong |= enough.sum(axis=1) > coupling.total(count)
        used = sum(result.node_sets[result.stage_sets[rows, stage]].astype(np.int64) for stage in range(count))
        wrong |= (used != result.node_sets[rows]).any(axis=1)
        if wrong.any():
            row = rows[np.flatnonzero(wrong)[0]]
            raise WrongAnswerError(
                f"the dynamic programme placed node set {result.node_sets[row].tolist()} with throughput "
                f"{result.throughput[row]!r}, but its placement does not give that"
            )
