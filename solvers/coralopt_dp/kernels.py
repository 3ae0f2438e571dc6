"""Compiled kernels of the placement programme; plain arrays in, plain arrays out.

Words used here. Node sets are the rows of ``sets``, ordered by their number of nodes; ``start[n]`` is the first row
with more than n nodes. ``links[c, m]`` is the row of node set m without one node of configuration c (-1: there is
none). A *sublattice* is the list of all sub-multisets of one node set: code t counts them in mixed radix, with the
first configuration present as the most significant digit, so that code t and code P - 1 - t are complements and the
codes from ``top`` on are just those that contain the first configuration.

A table row is (K, L + 1): tokens/s by cell and layers; 0 says that it cannot be. A *chain* of k stages is a part of a
pipeline without its last stage. Its cell is the number of latency units it may use (budgets), or the class of the
slowest node that takes its activations (``linked``); plain tables are linked with one cell. Every sum runs over the
configurations in their order, as in ``coralopt.placement.throughput_of``, so that equal placements have bitwise equal
throughput; no kernel uses fast-math. Every node set is computed by itself from finished smaller ones: the number of
threads changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np

from coralopt.compiling import compiled

_F = TypeVar("_F", bound=Callable[..., object])
# Arrays and numpy's whole numbers inside compiled code have no static type worth naming; the callers in sweep.py are typed.
Array = Any
Whole = Any


class NodeSets(NamedTuple):
    """The family; ``classes`` (int64, M) is the slowest class of each node set, 0 without links."""

    sets: Array
    sizes: Array
    links: Array
    classes: Array


class Chain(NamedTuple):
    """Best throughputs of chains of 1 to S - 1 stages: row m of k stages lies at m + ``shift[k]`` of ``tables``.

    ``linked``: what a cell is. ``falling``: no stage table rises in the layers.
    """

    tables: Array
    shift: Array
    linked: bool
    falling: bool


class Answer(NamedTuple):
    """What is written: throughput, stage count, layers and node-set row of each stage in pipeline order."""

    best: Array
    stages: Array
    layers: Array
    rows: Array


def _inlined(function: _F) -> _F:
    return cast("_F", numba.njit(inline="always")(function))


@compiled()
def _compare(left: Array, right: Array) -> int:
    """-1, 0 or 1 as ``left`` comes before, equals or comes after ``right`` lexicographically."""
    for c in range(left.shape[0]):
        if left[c] != right[c]:
            return -1 if left[c] < right[c] else 1
    return 0


@compiled(parallel=True)
def removal_links(sets: Array, sizes: Array, start: Array, links: Array) -> None:
    """Fill ``links`` (C, M) by search; -2 marks a node set that is missing from ``sets``.

    In their order node sets of one size keep their order when all lose a node of one configuration. So the search begins
    where the last one of that configuration ended, and doubles its steps.
    """
    block, rows = 1024, sets.shape[0]
    for k in numba.prange((rows + block - 1) // block):
        near = np.zeros(sets.shape[1], np.int64)
        for m in range(k * block, min(rows, (k + 1) * block)):
            wanted = sets[m].copy()
            for c in range(sets.shape[1]):
                links[c, m] = -1
                if sets[m, c] == 0 or sizes[m] == 1:
                    continue
                wanted[c] -= 1
                low, end = max(near[c], start[sizes[m] - 2]), start[sizes[m] - 1]
                step = 1
                while low + step < end and _compare(sets[low + step], wanted) < 0:
                    low += step
                    step *= 2
                high = min(end, low + step)
                while low < high:
                    middle = (low + high) // 2
                    if _compare(sets[middle], wanted) < 0:
                        low = middle + 1
                    else:
                        high = middle
                present = low < end and _compare(sets[low], wanted) == 0
                links[c, m] = low if present else -2
                wanted[c] += 1
                near[c] = low


@compiled()
def _sublattice(row: Array, links: Array, m: int) -> tuple[Array, int]:
    """Rows of all sub-multisets of node set m by code (code 0, the empty one, is -1), and ``top``."""
    present = np.empty(row.shape[0], np.int64)
    kinds = 0
    for c in range(row.shape[0]):
        if row[c] > 0:
            present[kinds] = c
            kinds += 1
    stride = np.empty(kinds, np.int64)
    codes = 1
    for i in range(kinds - 1, -1, -1):
        stride[i] = codes
        codes *= row[present[i]] + 1
    index = np.empty(codes, np.int32)
    index[codes - 1] = m
    # Codes whose counts before i are whole end the list; one that lacks some of i is another one less one node of i.
    for i in range(kinds - 1, -1, -1):
        without = links[present[i]]
        for t in range(codes - stride[i] - 1, (codes - stride[i - 1] if i > 0 else 0) - 1, -1):
            index[t] = without[index[t + stride[i]]]
    index[0] = -1
    return index, stride[0]


@compiled(parallel=True)
def stage_tables(table: Array, sets: Array, rows: int, out: Array) -> None:
    """``out[m, k, j]`` = tokens/s of node set m as one stage of j layers in cell k under ``table`` (C, K, L + 1).

    0 as soon as one of its nodes cannot hold j layers: such a node may not sit in the stage.
    """
    cells, layers = table.shape[1], table.shape[2]
    for m in numba.prange(rows):
        out[m, :, :] = 0.0
        for c in range(sets.shape[1]):
            if sets[m, c] > 0:
                for k in range(cells):
                    for j in range(layers):
                        out[m, k, j] += float(sets[m, c]) * table[c, k, j]
        for c in range(sets.shape[1]):
            if sets[m, c] > 0:
                for k in range(cells):
                    for j in range(layers):
                        if table[c, k, j] <= 0.0:
                            out[m, k, j] = 0.0


@_inlined
def _next(stage: Array, rest: Array, held: Whole, left: Whole, value: float) -> tuple[Whole, Whole, float]:
    """One more layer for the stage or for the rest, whichever stays faster: layers of both, and tokens/s."""
    one = np.uint64(1)
    own, other = stage[held + one], rest[left + one]
    more = np.uint64(own > other)
    faster = own if own > other else other
    return held + more, left + (one - more), faster if faster < value else value


@compiled()
def _join(stage: Array, rest: Array, pairs: Array, least: int, last: int, out: Array) -> None:
    """``out[l]`` = max(out[l], max over j of min(stage[j], rest[l - j])) for ``pairs`` (2, n) of rows, l up to ``last``.

    Tables fall in the layers, and ``rest`` needs at least ``least``. The best split of l + 1 layers is that of l and one
    more, so one walk finds them all. Every step waits for the one before it: four pairs walk side by side. Numbers
    without a sign save the look whether an index counts from the end.
    """
    end = pairs.shape[1] - 1
    for k in range(0, end + 1, 4):
        # Where there are fewer than four, the last one again: it changes no maximum.
        k1, k2, k3 = min(k + 1, end), min(k + 2, end), min(k + 3, end)
        s0, s1, s2, s3 = stage[pairs[0, k]], stage[pairs[0, k1]], stage[pairs[0, k2]], stage[pairs[0, k3]]
        r0, r1, r2, r3 = rest[pairs[1, k]], rest[pairs[1, k1]], rest[pairs[1, k2]], rest[pairs[1, k3]]
        j0 = j1 = j2 = j3 = np.uint64(1)
        l0 = l1 = l2 = l3 = np.uint64(least)
        v0, v1 = min(s0[1], r0[least]), min(s1[1], r1[least])
        v2, v3 = min(s2[1], r2[least]), min(s3[1], r3[least])
        for total in range(least + 1, last + 1):
            value = max(max(v0, v1), max(v2, v3))
            if value <= 0.0:  # more layers cannot do better
                break
            if value > out[total]:
                out[total] = value
            j0, l0, v0 = _next(s0, r0, j0, l0, v0)
            j1, l1, v1 = _next(s1, r1, j1, l1, v1)
            j2, l2, v2 = _next(s2, r2, j2, l2, v2)
            j3, l3, v3 = _next(s3, r3, j3, l3, v3)


@compiled()
def _join_any(stage: Array, rest: Array, pairs: Array, least: int, last: int, out: Array) -> None:
    """The same of tables that rise somewhere: every split of every number of layers."""
    for k in range(pairs.shape[1]):
        own, others = stage[pairs[0, k]], rest[pairs[1, k]]
        for j in range(1, last - least + 1):
            capacity = own[j]
            if capacity > 0.0:
                for left in range(least, last - j + 1):
                    value = min(capacity, others[left])
                    if value > out[j + left]:
                        out[j + left] = value


@compiled()
def _same(left: Array, right: Array) -> bool:
    for j in range(left.shape[0]):  # noqa: SIM110 - compiled code
        if left[j] != right[j]:
            return False
    return True


@compiled(parallel=True)
def extend_chain(
    family: NodeSets, stage: Array, chain: Chain, count: int, first: int, end: int, last_layer: int, anchored: bool
) -> None:
    """Chains of ``count`` stages of the node sets ``first`` to ``end``: one stage more than those of ``count`` - 1.

    ``anchored``: the stage has the same role as the others, so it may be taken as the one with the first node.
    """
    sets, sizes, links, classes = family
    tables, shift, linked, falling = chain
    rest_shift, out_shift, rest_stages = shift[count - 1], shift[count], count - 1
    stage_rows, chain_rows = stage.reshape(-1, stage.shape[2]), tables.reshape(-1, stage.shape[2])
    for m in numba.prange(first, end):
        target = tables[m + out_shift]
        target[:, :] = 0.0
        index, top = _sublattice(sets[m], links, m)
        codes = index.shape[0]
        # Splits by the cell that they end in, as rows of all cells.
        cells = stage.shape[1]
        pairs = np.empty((2, codes * cells), np.int64)
        for k in range(cells):
            n = 0
            for t in range(top if anchored else 1, codes - 1):
                a, b = index[t], index[codes - 1 - t]
                if sizes[b] < rest_stages:
                    continue
                if linked:
                    pairs[0, n], pairs[1, n] = a * cells + k, (b + rest_shift) * cells + classes[a]
                    n += 1
                    continue
                others = tables[b + rest_shift]
                for i in range(1, k - rest_stages + 1):
                    # A unit more that gains nothing need not be tried: fewer units leave more to the others.
                    if not (_same(stage[a, i], stage[a, i - 1]) or _same(others[k - i], others[k - i - 1])):
                        pairs[0, n], pairs[1, n] = a * cells + i, (b + rest_shift) * cells + k - i
                        n += 1
            if falling:
                _join(stage_rows, chain_rows, pairs[:, :n], rest_stages, last_layer, target[k])
            else:
                _join_any(stage_rows, chain_rows, pairs[:, :n], rest_stages, last_layer, target[k])
        if not linked:
            for k in range(1, target.shape[0]):
                for l in range(target.shape[1]):  # noqa: E741
                    if target[k - 1, l] > target[k, l]:
                        target[k, l] = target[k - 1, l]


@compiled()
def _split(
    family: NodeSets, stage: Array, chain: Chain, count: int, m: int, total: int, cell: int, value: float
) -> tuple[int, int, int, int]:
    """First (stage row, its layers, row of the rest, cell of the rest) that reaches ``value`` in ``cell``.

    The chain of node set m has ``count`` stages and ``total`` layers.
    """
    rest_shift = chain.shift[count - 1]
    index, _ = _sublattice(family.sets[m], family.links, m)
    codes = index.shape[0]
    for t in range(1, codes - 1):
        a, b = index[t], index[codes - 1 - t]
        if family.sizes[b] < count - 1:
            continue
        for i in range(cell if chain.linked else 1, cell + 1):
            r = family.classes[a] if chain.linked else cell - i
            least, end = 1, total - count + 2
            if chain.falling:
                # The fewest layers that leave the rest fast enough leave this stage fastest: no others need be tried.
                while least < end:
                    j = (least + end) // 2
                    if chain.tables[b + rest_shift, r, total - j] >= value:
                        end = j
                    else:
                        least = j + 1
                end = min(least, total - count + 1) + 1
            for j in range(least, end):
                if stage[a, i, j] >= value and chain.tables[b + rest_shift, r, total - j] >= value:
                    return a, j, b, r
    return -1, 0, -1, 0


@_inlined
def _cross(stage: Array, others: Array, least: int, most: int, falling: bool, value: float) -> tuple[float, int]:
    """Best min(stage[j], others[L - j]) over j in ``least``..``most`` if it beats ``value``, and its j (0: none)."""
    total = stage.shape[0] - 1
    kept = 0
    if falling:
        low = least
        end = most + 1
        while low < end:
            j = (low + end) // 2
            if stage[j] <= others[total - j]:
                end = j
            else:
                low = j + 1
        if low <= most and stage[low] > value:
            value, kept = stage[low], low
        if low > least and others[total - low + 1] > value:
            value, kept = others[total - low + 1], low - 1
    else:
        for j in range(least, most + 1):
            reached = min(stage[j], others[total - j])
            if reached > value:
                value, kept = reached, j
    return value, kept


@compiled()
def one_stage(wanted: Array, stage: Array, total: int, answer: Answer) -> None:
    """Take one stage of all ``total`` layers, (M,) tokens/s, for the node sets ``wanted`` where that beats the answer."""
    best, stages, layers, rows = answer
    for m in wanted:
        if stage[m] > best[m]:
            best[m] = stage[m]
            stages[m] = 1
            layers[m, 0] = total
            rows[m, 0] = m


@compiled(parallel=True)
def layers_above(rows: Array, grid: Array, last: int, out: Array) -> None:
    """``out[q, r]`` = most layers up to ``last`` at which row r of ``rows`` (R, L + 1) is above ``grid[q]``, rising."""
    block = 64
    for k in numba.prange((rows.shape[0] + block - 1) // block):
        first = k * block
        end, held = min(rows.shape[0], first + block), np.full(block, last, np.int64)
        for q in range(grid.shape[0]):
            for r in range(first, end):
                j = held[r - first]
                while j > 0 and rows[r, j] <= grid[q]:
                    j -= 1
                held[r - first] = j
                out[q, r] = j


@compiled()
def _last_below(grid: Array, value: float) -> int:
    """Last point of the rising grid that is not above ``value``; numpy's search would take two seconds to compile."""
    low, end = 0, grid.shape[0]
    while low + 1 < end:
        middle = (low + end) // 2
        if grid[middle] <= value:
            low = middle
        else:
            end = middle
    return low


@compiled(parallel=True)
def close_pipelines(
    family: NodeSets,
    wanted: Array,
    count: int,
    stage_tables: tuple[Array, Array, Array],
    chain: Chain,
    reach: tuple[Array, Array, Array],
    anchored: bool,
    answer: Answer,
) -> None:
    """Put a last stage behind chains of ``count`` - 1 stages for the node sets ``wanted``; keep what beats the answer.

    ``stage_tables``: of the stage that made the longest chains, of the middle ones and of the last. ``reach``: a grid of
    throughputs from 0 on, and :func:`layers_above` it for the rows of the last stage and of the longest chains, by cell: a
    split whose two parts do not hold all layers together, each above the grid, cannot be better either. ``anchored``: the
    longest chains were made by a stage put in front of middle ones; otherwise every chain grew at its end.
    """
    sets, sizes, links, classes = family
    tables, shift, linked, falling = chain
    longest, middle, last = stage_tables
    grid, last_reach, chain_reach = reach
    best, stages, layers, rows = answer
    cells, total = last.shape[1], last.shape[2] - 1
    lowest = cells - 1 if linked else 1
    rest_shift = shift[count - 1]
    last_rows, chain_rows = last.reshape(-1, total + 1), tables.reshape(-1, total + 1)
    # The longest chains lie at the end of the tables; sets of fewer nodes have none.
    before = chain_rows.shape[0] - chain_reach.shape[1]
    for w in numba.prange(wanted.shape[0]):
        m = wanted[w]
        value, kept_a, kept_b, kept_j, kept_r = best[m], -1, -1, 0, 0
        q = _last_below(grid, value)
        index, _ = _sublattice(sets[m], links, m)
        codes = index.shape[0]
        for t in range(1, codes - 1):
            a, b = index[t], index[codes - 1 - t]
            if (b + rest_shift) * cells < before:
                continue
            for i in range(lowest, cells):
                r = 0 if cells == 1 else classes[a] if linked else cells - 1 - i
                one, other = a * cells + i, (b + rest_shift) * cells + r
                most, least = last_reach[q, one], total - chain_reach[q, other - before]
                if most >= least:
                    reached, j = _cross(last_rows[one], chain_rows[other], least, most, falling, value)
                    if j > 0:
                        value, kept_a, kept_b, kept_j, kept_r = reached, a, b, j, r
                        q = _last_below(grid, value)
        if kept_a < 0:
            continue
        # The tables hold values only: walk down again and take the first split that reaches the optimum.
        best[m], stages[m] = value, count
        layers[m, count - 1], rows[m, count - 1] = kept_j, kept_a
        # As whole numbers of one type: _split would be compiled for the constants -1 and 0 as well.
        left: Whole = np.int64(kept_b)
        cell: Whole = np.int64(kept_r)
        remaining = total - kept_j
        own, chains = NodeSets(sets, sizes, links, classes), Chain(tables, shift, linked, falling)
        for k in range(count - 1, 0, -1):
            a, j, b, r = left, remaining, -1, 0
            if k > 1:
                stage = longest if k == count - 1 else middle
                a, j, b, r = _split(own, stage, chains, k, left, remaining, cell, value)
            position = count - 1 - k if anchored else k - 1
            layers[m, position], rows[m, position] = j, a
            left, remaining, cell = b, remaining - j, r


@compiled(parallel=True)
def nodes_in_order(sets: Array, stage_sets: Array, configuration: Array, stage: Array) -> None:
    """Configuration and stage of every node in pipeline order, both (M, N), of the node sets in each stage."""
    for m in numba.prange(stage_sets.shape[0]):
        node = 0
        for s in range(stage_sets.shape[1]):
            for c in range(sets.shape[1] if stage_sets[m, s] >= 0 else 0):
                for _ in range(sets[stage_sets[m, s], c]):
                    configuration[m, node], stage[m, node] = c, s
                    node += 1
