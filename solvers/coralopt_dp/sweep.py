"""Optimal placements of a whole family of node sets in one sweep.

The tables of a node set serve all its supersets, so a family closed under taking nodes away costs little more per
member than the look-up of its splits. The recursion and why it is exact: docs/concepts/placement.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coralopt.errors import SolverError, WrongAnswerError
from coralopt.placement.limits import EngineLimits
from coralopt.throughput.tables import FIRST, LAST, MIDDLE, stage_role
from coralopt.types import Bools, Floats, Ints

#: Called with (steps done, steps in all); a step is one node set tried with one stage count.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class SweepResult:
    """Throughput-optimal placements of M node sets, in the order they were given.

    Attributes:
        node_sets: int8 (M, C), nodes of each configuration.
        throughput: float64 (M,), tokens/s; 0 where no placement exists.
        stages: int32 (M,), number of stages; 0 where no placement exists. The smallest optimal one.
        stage_layers: int16 (M, N), layers of each stage in pipeline order, padded with 0.
        stage_sets: int32 (M, N), row of ``node_sets`` that equals the nodes of each stage, padded with -1.
    """

    node_sets: npt.NDArray[np.int8]
    throughput: Floats
    stages: npt.NDArray[np.int32]
    stage_layers: npt.NDArray[np.int16]
    stage_sets: npt.NDArray[np.int32]

    @property
    def stage_nodes(self) -> npt.NDArray[np.int8]:
        """int8 (M, N, C): nodes of each configuration in each stage, 0 in the padding."""
        nodes = self.node_sets[self.stage_sets]
        nodes[self.stage_sets < 0] = 0
        return nodes

    @property
    def node_configuration(self) -> npt.NDArray[np.int8]:
        """int8 (M, N): configuration of each node in pipeline order, padded with -1 (needs C <= 127)."""
        return self._per_node()[0]

    @property
    def node_stage(self) -> npt.NDArray[np.int8]:
        """int8 (M, N): stage (from 0) of each node of ``node_configuration``, padded with -1."""
        return self._per_node()[1]

    def _per_node(self) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
        count, width = self.stage_sets.shape
        configuration = np.full((count, width), -1, dtype=np.int8)
        stage_of = np.full((count, width), -1, dtype=np.int8)
        filled = np.zeros(count, dtype=np.int64)
        for stage in range(width):
            nodes = self.node_sets[self.stage_sets[:, stage]].astype(np.int64)
            nodes[self.stage_sets[:, stage] < 0] = 0
            row, column = np.nonzero(nodes)
            repeats = nodes[row, column]
            row, column = np.repeat(row, repeats), np.repeat(column, repeats)
            # Position of each node inside its own row: rows come out of nonzero in ascending order.
            position = np.arange(len(row)) - np.searchsorted(row, row) + filled[row]
            configuration[row, position] = column
            stage_of[row, position] = stage
            filled += nodes.sum(axis=1)
        return configuration, stage_of


def falls_in_layers(table: Floats) -> bool:
    """Whether no node gains throughput from more layers: ``table`` (..., L + 1) never rises from j = 1 on."""
    return bool((table[..., 2:] <= table[..., 1:-1]).all())


def sweep(
    values: Floats,
    node_sets: npt.NDArray[np.int8],
    max_nodes: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    *,
    stages: int | None = None,
    limits: EngineLimits | None = None,
    gpus: Sequence[int] = (),
) -> SweepResult:
    """Throughput-optimal placement of every node set, exactly, over all stage counts (paper section 4.2).

    Args:
        values: float64 (S, 3, C, L + 1), tokens/s of one node, as in ``ThroughputTables.values``.
        node_sets: int8 (M, C), distinct and non-empty; with every node set also all its non-empty sub-multisets.
            Fastest when sorted by the number of nodes, then lexicographically.
        max_nodes: N, width of the result; the largest node set by default.
        workers: Threads; all cores when ``None``. The result is the same for any number.
        progress: Told about steps done.
        stages: Only this stage count; ``None`` tries all from 1 to S.
        limits: What the engine can run; everything when ``None``.
        gpus: GPUs in one node of each configuration, length C; needed for ``limits.same_tp`` only.

    Raises:
        SolverError: The arrays do not fit together, hold negative or non-finite values, or the family is not closed.
    """
    values, node_sets = _checked(values, node_sets)
    sizes = node_sets.sum(axis=1, dtype=np.int64)
    width = int(sizes.max(initial=0)) if max_nodes is None else max_nodes
    if len(sizes) and sizes.max() > width:
        raise SolverError(f"a node set has {sizes.max()} nodes, above max_nodes {width}; raise max_nodes")
    order = np.lexsort((*node_sets.T[::-1], sizes))
    family = Family.of(np.ascontiguousarray(node_sets[order]), workers)
    counts = range(1, values.shape[0] + 1) if stages is None else range(stages, stages + 1)
    limits = limits or EngineLimits()
    wanted = None
    if limits.same_tp:
        wanted = np.array([limits.node_set_allowed(row, gpus) for row in family.sets.tolist()], dtype=bool).nonzero()[0]
    result = family.solve(values, counts, wanted, width, workers, progress, limits)
    if (order[1:] > order[:-1]).all():
        return result
    back = np.argsort(order)
    rows = np.where(result.stage_sets >= 0, order[result.stage_sets], -1).astype(np.int32)
    return SweepResult(node_sets, result.throughput[back], result.stages[back], result.stage_layers[back], rows[back])


def _checked(values: Floats, node_sets: npt.NDArray[np.int8]) -> tuple[Floats, npt.NDArray[np.int8]]:
    values = np.ascontiguousarray(values, dtype=np.float64)
    if values.ndim != 4 or values.shape[1] != 3 or values.shape[3] < 2:
        raise SolverError(f"values has shape {values.shape}; it must be (S, 3, C, L + 1) with L >= 1")
    if not np.isfinite(values).all() or (values < 0).any():
        raise SolverError("values holds negative or non-finite tokens/s; use 0 for a node that cannot hold the layers")
    given = np.asarray(node_sets)
    if given.ndim != 2 or given.shape[1] != values.shape[2]:
        raise SolverError(f"node_sets has shape {given.shape}; it must be (M, {values.shape[2]})")
    if len(given) and (given.min() < 0 or given.max() > 127 or given.sum(axis=1).min() < 1):
        raise SolverError("node_sets holds an empty row or a count outside 0..127")
    return values, given.astype(np.int8)


@dataclass(frozen=True, eq=False)
class Family:
    """Node sets in sweep order with the links between them.

    Attributes:
        sets: int8 (M, C), sorted by the number of nodes, then lexicographically.
        sizes: int64 (M,), number of nodes.
        start: int64 (N + 1,): ``start[n]`` is the first row with more than n nodes.
        links: int32 (M, C), row of the node set without one node of a configuration; -1 where there is none.
    """

    sets: npt.NDArray[np.int8]
    sizes: Ints
    start: Ints
    links: npt.NDArray[np.int32]

    @staticmethod
    def of(sets: npt.NDArray[np.int8], workers: int | None) -> Family:
        """The family of ``sets`` (M, C), sorted by the number of nodes, then lexicographically, and closed."""
        from coralopt_dp import kernels

        sizes = sets.sum(axis=1, dtype=np.int64)
        start = np.searchsorted(sizes, np.arange(int(sizes.max(initial=0)) + 1), side="right")
        if len(sets) > 1 and (sets[1:] == sets[:-1]).all(axis=1).any():
            raise SolverError("node_sets holds a row twice; pass each node set once")
        links = np.empty(sets.shape, dtype=np.int32)
        with _Threads(workers):
            kernels.removal_links(sets, sizes, start, links)
        missing = np.argwhere(links == -2)
        if len(missing):
            row, column = missing[0]
            raise SolverError(
                f"node_sets holds {tuple(int(n) for n in sets[row])} but not the same without one node of "
                f"configuration {column}; pass a family closed under taking nodes away"
            )
        return Family(sets, sizes, start, links)

    def solve(
        self,
        values: Floats,
        counts: range,
        wanted: Ints | None,
        width: int,
        workers: int | None,
        progress: Progress | None,
        limits: EngineLimits | None = None,
    ) -> SweepResult:
        """Optimal placements of the rows ``wanted`` (all when ``None``) over the stage counts ``counts``."""
        count = len(self.sets)
        result = SweepResult(
            self.sets,
            np.zeros(count),
            np.zeros(count, dtype=np.int32),
            np.zeros((count, width), dtype=np.int16),
            np.full((count, width), -1, dtype=np.int32),
        )
        largest = len(self.start) - 1
        counts = range(counts.start, min(counts.stop, largest + 1))
        with _Threads(workers):
            for position, stages in enumerate(counts):
                for allowed in (limits or EngineLimits()).stage_masks(self.sets):
                    self._solve_stages(values[stages - 1], stages, wanted, result, allowed)
                if progress is not None:
                    progress((position + 1) * count, len(counts) * count)
        _verify(values, result)
        return result

    def _solve_stages(
        self,
        values: Floats,
        stages: int,
        wanted: Ints | None,
        result: SweepResult,
        allowed: Bools | None = None,
    ) -> None:
        """Try ``stages`` stages: ``values`` is (3, C, L + 1); better placements replace those in ``result``.

        Node sets outside ``allowed`` make no stage.
        """
        from coralopt_dp import kernels

        layers = values.shape[2] - 1
        largest = len(self.start) - 1
        if stages > min(layers, largest) or not (values[FIRST] > 0).any():
            return
        if wanted is None:
            wanted = np.arange(self.start[stages - 1], len(self.sets))
        wanted = wanted[self.sizes[wanted] >= stages]
        # Every other stage needs a node, so a stage holds at most this many.
        rows = int(self.start[largest - stages + 1])
        answer = (result.throughput, result.stages, result.stage_layers, result.stage_sets)

        def table(role: int) -> Floats:
            out = np.empty((rows, layers + 1))
            kernels.stage_tables(np.ascontiguousarray(values[role]), self.sets, rows, out)
            if allowed is not None:
                out[~allowed[:rows]] = 0.0
            return out

        first = table(FIRST)
        if stages == 1:
            kernels.one_stage(wanted, first, *answer)
            return
        last = table(LAST) if (values[LAST] != values[FIRST]).any() else first
        roles = (FIRST, LAST) if stages == 2 else (FIRST, MIDDLE, LAST)
        falling = all(falls_in_layers(values[role]) for role in roles)
        common = (self.sets, self.sizes, self.links)
        middle, middle_table, shift = np.zeros((0, layers + 1)), first, np.zeros(stages, dtype=np.int64)
        front, front_shift = first, 0
        if stages > 2:
            middle_table = table(MIDDLE) if (values[MIDDLE] != values[FIRST]).any() else first
            middle, shift = self._middle_tables(middle_table, stages, layers, falling)
            low, high = int(self.start[stages - 2]), int(self.start[largest - 1])
            front, front_shift = np.empty((high - low, layers + 1)), -low
            for size in range(stages - 1, largest):
                kernels.join_stage(
                    *common, int(self.start[size - 1]), int(self.start[size]), first, middle, int(shift[stages - 2]),
                    stages - 2, layers - 1, False, falling, front, front_shift,
                )  # fmt: skip
        kernels.last_stage(
            *common, wanted, stages, first, middle_table, last, middle, shift, front, front_shift,
            last[:, 1:].max(axis=1), front[:, 1:layers].max(axis=1, initial=0.0), falling, *answer,
        )  # fmt: skip

    def _middle_tables(self, table: Floats, stages: int, layers: int, falling: bool) -> tuple[Floats, Ints]:
        """Tables of 1..``stages`` - 2 middle stages, stacked; row m of k stages lies at m + shift[k]."""
        from coralopt_dp import kernels

        largest = len(self.start) - 1
        # k of the middle stages leave a node at least to each of the other stages.
        spans = {k: (k, largest - stages + k) for k in range(1, stages - 1)}
        shift = np.zeros(stages, dtype=np.int64)
        rows = 0
        for k, (least, most) in spans.items():
            shift[k] = rows - self.start[least - 1]
            rows += int(self.start[most] - self.start[least - 1])
        out = np.empty((rows, layers + 1))
        out[: self.start[spans[1][1]]] = table[: self.start[spans[1][1]]]
        for k in range(2, stages - 1):
            for size in range(spans[k][0], spans[k][1] + 1):
                kernels.join_stage(
                    self.sets, self.sizes, self.links, int(self.start[size - 1]), int(self.start[size]), table,
                    out, int(shift[k - 1]), k - 1, layers - 2, True, falling, out, int(shift[k]),
                )  # fmt: skip
        return out, shift


def _verify(values: Floats, result: SweepResult) -> None:
    """Recompute every throughput from its placement alone; the same float sums must come out."""
    layers = values.shape[3] - 1
    used = np.zeros(result.node_sets.shape, dtype=np.int64)
    held = np.zeros(len(result.stages), dtype=np.int64)
    lowest = np.full(len(result.stages), np.inf)
    for stage in range(result.stage_layers.shape[1]):
        rows = np.flatnonzero(result.stages > stage)
        if not len(rows):
            break
        nodes = result.node_sets[result.stage_sets[rows, stage]]
        count = result.stages[rows]
        layer = result.stage_layers[rows, stage]
        role = np.where(stage == 0, stage_role(0, 1), np.where(stage == count - 1, LAST, MIDDLE))
        total = np.zeros(len(rows))
        for configuration in range(values.shape[2]):
            one = values[count - 1, role, configuration, layer]
            total += nodes[:, configuration] * one
            total[(nodes[:, configuration] > 0) & (one <= 0)] = -np.inf
        lowest[rows] = np.minimum(lowest[rows], total)
        used[rows] += nodes
        held[rows] += layer
    placed = np.flatnonzero(result.stages > 0)
    wrong = (
        (lowest[placed] != result.throughput[placed])
        | (held[placed] != layers)
        | (used[placed] != result.node_sets[placed]).any(axis=1)
    )
    if wrong.any():
        row = placed[np.flatnonzero(wrong)[0]]
        raise WrongAnswerError(
            f"the dynamic programme placed node set {result.node_sets[row].tolist()} with throughput "
            f"{result.throughput[row]!r}, but its placement gives {lowest[row]!r} with {held[row]} of {layers} layers"
        )


class _Threads:
    """Number of compiled-code threads inside the ``with``; restored afterwards."""

    def __init__(self, workers: int | None) -> None:
        if workers is not None and workers < 1:
            raise SolverError(f"workers is {workers}; it must be 1 or more")
        self.workers = workers
        self.before = 1

    def __enter__(self) -> None:
        import numba

        self.before = numba.get_num_threads()
        most = int(getattr(numba.config, "NUMBA_NUM_THREADS"))  # noqa: B009 - defined at run time, unknown to mypy
        numba.set_num_threads(most if self.workers is None else min(self.workers, most))

    def __exit__(self, *_: object) -> None:
        import numba

        numba.set_num_threads(self.before)
