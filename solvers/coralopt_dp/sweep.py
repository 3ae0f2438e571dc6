"""Optimal placements of a whole family of node sets in one sweep.

The tables of a node set serve all its supersets, so a family closed under taking nodes away costs little more per
member than the look-up of its splits. The recursion and why it is exact: docs/concepts/placement.md, with cells
docs/templates.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from coralopt.errors import SolverError, WrongAnswerError
from coralopt.placement.cells import Coupling, Links, with_cells
from coralopt.placement.limits import NO_LIMITS, EngineLimits
from coralopt.throughput import FIRST, LAST, MIDDLE, falls_in_layers
from coralopt.types import Bools, Floats, Ints

#: Called with (steps done, steps in all); a step is one node set tried with one stage count.
Progress = Callable[[int, int], None]
#: Throughputs at which it is known how many layers a stage or chain holds: how many, and the least over the largest.
GRID, GRID_SPAN = 64, 1e-2


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
        return self._per_node[0]

    @property
    def node_stage(self) -> npt.NDArray[np.int8]:
        """int8 (M, N): stage (from 0) of each node of ``node_configuration``, padded with -1."""
        return self._per_node[1]

    @cached_property
    def _per_node(self) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
        from coralopt_dp import kernels

        configuration, stage = (np.full(self.stage_sets.shape, -1, dtype=np.int8) for _ in range(2))
        kernels.nodes_in_order(self.node_sets, self.stage_sets, configuration, stage)
        return configuration, stage


def sweep(
    values: Floats,
    node_sets: npt.NDArray[np.int8],
    coupling: Coupling | None = None,
    *,
    stages: int | None = None,
    limits: EngineLimits = NO_LIMITS,
    gpus: Sequence[int] = (),
    workers: int | None = None,
    progress: Progress | None = None,
) -> SweepResult:
    """Throughput-optimal placement of every node set, exactly, over all stage counts (paper section 4.2).

    Args:
        values: float64 (S, 3, C, L + 1), tokens/s of one node, or (S, 3, C, K, L + 1) with a coupling; see
            ``PlacementProblem``.
        node_sets: int8 (M, C), distinct and non-empty; with every node set also all its non-empty sub-multisets.
            Fastest when sorted by the number of nodes, then lexicographically.
        coupling: What a cell is; ``None``: stages do not depend on one another.
        stages: Only this stage count; ``None`` tries all from 1 to S.
        limits: What the engine can run.
        gpus: GPUs in one node of each configuration, length C; needed for ``limits.same_tp`` only.
        workers: Threads; all cores when ``None``. The result is the same for any number.
        progress: Told about steps done.

    Raises:
        SolverError: The arrays do not fit together, hold negative or non-finite values, or the family is not closed.
    """
    values, node_sets = _checked(values, node_sets, coupling)
    sizes = node_sets.sum(axis=1, dtype=np.int64)
    order = np.lexsort((*node_sets.T[::-1], sizes))
    family = Family.of(np.ascontiguousarray(node_sets[order]), workers)
    wanted = np.arange(len(sizes))
    if limits.same_tp:
        wanted = np.flatnonzero([limits.node_set_allowed(row, gpus) for row in family.sets.tolist()])
    counts = range(1, values.shape[0] + 1) if stages is None else range(stages, stages + 1)
    with Threads(workers):
        result = family.solve(*with_cells(values, coupling), counts, wanted, limits, progress)
    if (order[1:] > order[:-1]).all():
        return result
    back = np.argsort(order)
    rows = np.where(result.stage_sets >= 0, order[result.stage_sets], -1).astype(np.int32)
    return SweepResult(node_sets, result.throughput[back], result.stages[back], result.stage_layers[back], rows[back])


def _checked(
    values: Floats, node_sets: npt.NDArray[np.int8], coupling: Coupling | None
) -> tuple[Floats, npt.NDArray[np.int8]]:
    values = np.ascontiguousarray(values, dtype=np.float64)
    axes, wanted = (4, "(S, 3, C, L + 1)") if coupling is None else (5, "(S, 3, C, K, L + 1)")
    if values.ndim != axes or values.shape[1] != 3 or values.shape[-1] < 2:
        raise SolverError(f"values has shape {values.shape}; it must be {wanted} with L >= 1")
    if not np.isfinite(values).all() or (values < 0).any():
        raise SolverError("values holds negative or non-finite tokens/s; use 0 for a node that cannot hold the layers")
    sets = np.asarray(node_sets)
    if sets.ndim != 2 or sets.shape[1] != values.shape[2]:
        raise SolverError(f"node_sets has shape {sets.shape}; it must be (M, {values.shape[2]})")
    if len(sets) and (sets.min() < 0 or sets.max() > 127 or sets.sum(axis=1).min() < 1):
        raise SolverError("node_sets holds an empty row or a count outside 0..127")
    return values, sets.astype(np.int8)


@dataclass(frozen=True, eq=False)
class Family:
    """Node sets in sweep order with the links between them.

    Attributes:
        sets: int8 (M, C), sorted by the number of nodes, then lexicographically.
        sizes: int64 (M,), number of nodes.
        start: int64 (N + 1,): ``start[n]`` is the first row with more than n nodes.
        links: int32 (C, M), row of the node set without one node of a configuration; -1 where there is none.
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
        links = np.empty(sets.shape[::-1], dtype=np.int32)
        with Threads(workers):
            kernels.removal_links(sets, sizes, start, links)
        if (links == -2).any():
            row, column = np.argwhere(links.T == -2)[0]
            raise SolverError(
                f"node_sets holds {tuple(int(n) for n in sets[row])} but not the same without one node of "
                f"configuration {column}; pass a family closed under taking nodes away"
            )
        return Family(sets, sizes, start, links)

    def solve(
        self,
        values: Floats,
        coupling: Coupling,
        counts: range,
        wanted: Ints,
        limits: EngineLimits,
        progress: Progress | None = None,
    ) -> SweepResult:
        """Optimal placements of the rows ``wanted`` over the stage counts ``counts``; ``values`` (S, 3, C, K, L + 1)."""
        count, largest = len(self.sets), len(self.start) - 1
        result = SweepResult(
            self.sets,
            np.zeros(count),
            np.zeros(count, dtype=np.int32),
            np.zeros((count, largest), dtype=np.int16),
            np.full((count, largest), -1, dtype=np.int32),
        )
        counts = range(counts.start, min(counts.stop, largest + 1))
        for position, stages in enumerate(counts):
            for allowed in limits.stage_masks(self.sets):
                self._solve_stages(_Stages(values[stages - 1], stages, coupling), wanted, result, allowed)
            if progress is not None:
                progress((position + 1) * count, len(counts) * count)
        _verify(values, result, coupling)
        return result

    def _solve_stages(self, stages: _Stages, wanted: Ints, result: SweepResult, allowed: Bools | None) -> None:
        """Try one stage count; better placements replace those in ``result``. Sets outside ``allowed`` make no stage."""
        from coralopt_dp import kernels

        count, values = stages.count, stages.values
        cells, layers, largest = values.shape[2], values.shape[3] - 1, len(self.start) - 1
        if count > min(layers, largest) or not (values[FIRST] > 0).any():
            return
        wanted = wanted[self.sizes[wanted] >= count]
        # Every other stage needs a node, so a stage holds at most this many.
        rows = int(self.start[largest - count + 1])
        answer = kernels.Answer(result.throughput, result.stages, result.stage_layers, result.stage_sets)
        if count == 1:
            # A stage of all layers alone; tables of every number of layers for all node sets would be the largest of all.
            values = values[..., -1:]
        tables: dict[int, Floats] = {}
        for role in stages.roles:
            same = next((known for known in tables if (values[known] == values[role]).all()), None)
            if same is not None:
                tables[role] = tables[same]
                continue
            tables[role] = np.empty((rows, cells, values.shape[3]))
            kernels.stage_tables(np.ascontiguousarray(values[role]), self.sets, rows, tables[role])
            if allowed is not None:
                tables[role][~allowed[:rows]] = 0.0
        if count == 1:
            kernels.one_stage(wanted, np.ascontiguousarray(tables[FIRST][:, -1, 0]), layers, answer)
            return
        linked = isinstance(stages.coupling, Links)
        classes = np.zeros(len(self.sets), dtype=np.int64)
        if isinstance(stages.coupling, Links) and any(stages.coupling.classes):
            ranks = np.asarray(stages.coupling.classes, dtype=np.int64)
            classes = np.where(self.sets > 0, ranks[None, :], cells).min(axis=1)
        # Equal middle stages may stand in any order, unless their links tell them apart.
        anchored = not linked or cells == 1
        # Chains of k stages leave a node at least to each of the other stages.
        spans = {k: (k, largest - count + k) for k in range(1, count)}
        shift = np.zeros(count, dtype=np.int64)
        size = 0
        for k, (least, most) in spans.items():
            shift[k] = size - self.start[least - 1]
            size += int(self.start[most] - self.start[least - 1])
        middle = tables.get(MIDDLE, tables[FIRST])
        shortest, longest = (middle, tables[FIRST]) if anchored else (tables[FIRST], middle)
        if count == 2:
            shortest = tables[FIRST]
        falling = all(falls_in_layers(values[role]) for role in stages.roles)
        chain = kernels.Chain(np.empty((size, cells, layers + 1)), shift, linked, falling)
        chain.tables[: self.start[spans[1][1]]] = shortest[: self.start[spans[1][1]]]
        family = kernels.NodeSets(self.sets, self.sizes, self.links, classes)
        for k, (least, most) in spans.items():
            for nodes in range(least, most + 1) if k > 1 else ():
                ends = int(self.start[nodes - 1]), int(self.start[nodes])
                stage, equal = (longest, False) if k == count - 1 else (middle, anchored)
                kernels.extend_chain(family, stage, chain, k, *ends, layers - count + k, equal)
        base = int(self.start[spans[count - 1][0] - 1] + shift[count - 1])
        last = tables[LAST].reshape(-1, layers + 1)
        longest_chains = chain.tables[base:].reshape(-1, layers + 1)
        top = min(last.max(initial=0.0), longest_chains[:, :layers].max(initial=0.0))
        grid = np.concatenate([[0.0], top * np.geomspace(GRID_SPAN, 1.0, GRID)])
        last_reach, chain_reach = (np.empty((len(grid), len(rows)), dtype=np.int16) for rows in (last, longest_chains))
        kernels.layers_above(last, grid, layers - count + 1, last_reach)
        kernels.layers_above(longest_chains, grid, layers - 1, chain_reach)
        reach = grid, last_reach, chain_reach
        of_stages = longest, middle, tables[LAST]
        kernels.close_pipelines(family, wanted, count, of_stages, chain, reach, anchored, answer)


class _Stages:
    """The tables of one stage count: ``values`` is (3, C, K, L + 1) with the cells that pipelines of it can use."""

    def __init__(self, values: Floats, count: int, coupling: Coupling) -> None:
        self.count, self.coupling = count, coupling
        self.roles = (FIRST,) if count == 1 else (FIRST, LAST) if count == 2 else (FIRST, MIDDLE, LAST)
        if not isinstance(coupling, Links):
            # Units that the table does not list are worth what the last listed one is.
            values = np.maximum.accumulate(values[:, :, : coupling.total(count) + 1], axis=2)
        self.values = values


def _verify(values: Floats, result: SweepResult, coupling: Coupling) -> None:
    """Recompute every throughput from its placement alone; the same float sums must come out."""
    from coralopt_dp.recompute import Placed, recompute

    layers, linked = values.shape[4] - 1, isinstance(coupling, Links)
    classes = np.asarray(coupling.classes if isinstance(coupling, Links) else (0,) * values.shape[2], dtype=np.int64)
    placed = Placed(result.node_sets, result.throughput, result.stages, result.stage_layers, result.stage_sets)
    lowest, held, units, same = recompute(np.ascontiguousarray(values), placed, classes, linked)
    wrong = (lowest != result.throughput) | (held != layers) | ~same
    if not isinstance(coupling, Links):
        wrong |= units > coupling.units * result.stages
    rows = np.flatnonzero(wrong & (result.stages > 0))
    if len(rows):
        at = int(rows[0])
        raise WrongAnswerError(
            f"the dynamic programme placed node set {result.node_sets[at].tolist()} with throughput "
            f"{result.throughput[at]!r}, but its placement gives {lowest[at]!r} with {held[at]} of {layers} layers"
        )


class Threads:
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
