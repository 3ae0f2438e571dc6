"""Compiled kernels of the placement programme; plain arrays in, plain arrays out.

Words used here. Node sets are the rows of ``sets``, ordered by their number of nodes; ``start[n]`` is the first row
with more than n nodes. ``links[m, c]`` is the row of node set m without one node of configuration c (-1: there is
none). A *sublattice* is the list of all sub-multisets of one node set: code t counts them in mixed radix, with the
first configuration present as the most significant digit, so that code t and code P - 1 - t are complements and the
codes from ``top`` on are just those that contain the first configuration.

A table row gives tokens/s for 0..L layers; 0 says that it cannot be. Every sum runs over the configurations in their
order, as in ``coralopt.placement.throughput_of``, so that equal placements have bitwise equal throughput; no kernel
uses fast-math. Every node set is computed by itself from finished smaller ones: the number of threads changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

_F = TypeVar("_F", bound=Callable[..., Any])
# Arrays inside compiled code have no static type worth naming; the callers in sweep.py are typed.
Array = Any


def _compiled(function: _F) -> _F:
    return cast("_F", numba.njit(cache=True)(function))


def _parallel(function: _F) -> _F:
    return cast("_F", numba.njit(cache=True, parallel=True)(function))


@_compiled
def _compare(left: Array, right: Array) -> int:
    """-1, 0 or 1 as ``left`` comes before, equals or comes after ``right`` lexicographically."""
    for c in range(left.shape[0]):
        if left[c] != right[c]:
            return -1 if left[c] < right[c] else 1
    return 0


@_parallel
def removal_links(sets: Array, sizes: Array, start: Array, links: Array) -> None:
    """Fill ``links`` (M, C) by binary search; -2 marks a node set that is missing from ``sets``."""
    for m in numba.prange(sets.shape[0]):
        wanted = sets[m].copy()
        for c in range(sets.shape[1]):
            links[m, c] = -1
            if sets[m, c] == 0 or sizes[m] == 1:
                continue
            wanted[c] -= 1
            low, high = start[sizes[m] - 2], start[sizes[m] - 1]
            while low < high:
                middle = (low + high) // 2
                if _compare(sets[middle], wanted) < 0:
                    low = middle + 1
                else:
                    high = middle
            found = low < start[sizes[m] - 1] and _compare(sets[low], wanted) == 0
            links[m, c] = low if found else -2
            wanted[c] += 1


@_compiled
def _sublattice(row: Array, links: Array, m: int) -> Any:
    """Rows of all sub-multisets of node set m by code (code 0, the empty one, is -1), and ``top``."""
    present = np.flatnonzero(row)
    kinds = present.shape[0]
    stride = np.empty(kinds, np.int64)
    codes = 1
    for i in range(kinds - 1, -1, -1):
        stride[i] = codes
        codes *= row[present[i]] + 1
    index = np.empty(codes, np.int32)
    index[0] = -1
    index[codes - 1] = m
    for t in range(codes - 2, 0, -1):
        for i in range(kinds):
            if (t // stride[i]) % (row[present[i]] + 1) < row[present[i]]:
                index[t] = links[index[t + stride[i]], present[i]]
                break
    return index, stride[0]


@_parallel
def stage_tables(table: Array, sets: Array, rows: int, out: Array) -> None:
    """``out[m, j]`` = tokens/s of node set m as one stage of j layers under ``table`` (C, L + 1).

    0 as soon as one of its nodes cannot hold j layers: such a node may not sit in the stage.
    """
    layers = table.shape[1]
    for m in numba.prange(rows):
        for j in range(layers):
            out[m, j] = 0.0
        for c in range(sets.shape[1]):
            if sets[m, c] > 0:
                for j in range(layers):
                    out[m, j] += float(sets[m, c]) * table[c, j]
        for c in range(sets.shape[1]):
            if sets[m, c] > 0:
                for j in range(layers):
                    if table[c, j] <= 0.0:
                        out[m, j] = 0.0


@_compiled
def _join(stage: Array, rest: Array, least: int, last: int, falling: bool, out: Array) -> None:
    """``out[l]`` = max(out[l], max over j of min(stage[j], rest[l - j])) for l up to ``last``.

    ``rest`` needs at least ``least`` layers. With ``falling`` tables the inner maximum sits where the falling
    stage[j] meets the rising rest[l - j]; that crossing moves only forward with l, so one walk finds them all.
    """
    if falling:
        cross = 1
        for total in range(least + 1, last + 1):
            while cross <= total - least and stage[cross] > rest[total - cross]:
                cross += 1
            value = 0.0
            if cross <= total - least:
                value = stage[cross]
            if cross > 1 and rest[total - cross + 1] > value:
                value = rest[total - cross + 1]
            if value <= 0.0:  # more layers cannot do better
                break
            if value > out[total]:
                out[total] = value
    else:
        for j in range(1, last - least + 1):
            capacity = stage[j]
            if capacity > 0.0:
                for held in range(least, last - j + 1):
                    value = min(capacity, rest[held])
                    if value > out[j + held]:
                        out[j + held] = value


@_parallel
def join_stage(
    sets: Array,
    sizes: Array,
    links: Array,
    first: int,
    end: int,
    stage: Array,
    rest: Array,
    rest_shift: int,
    rest_stages: int,
    last_layer: int,
    anchored: bool,
    falling: bool,
    out: Array,
    out_shift: int,
) -> None:
    """Best throughput of node sets ``first`` to ``end`` as one stage more than ``rest`` has, for every layer count.

    ``anchored``: the stage has the same role as the others, so it may be taken as the one with the first node.
    Row m of a table lies at m + its shift.
    """
    for m in numba.prange(first, end):
        target = out[m + out_shift]
        for l in range(target.shape[0]):  # noqa: E741
            target[l] = 0.0
        index, top = _sublattice(sets[m], links, m)
        codes = index.shape[0]
        for t in range(top if anchored else 1, codes - 1):
            others = index[codes - 1 - t]
            if sizes[others] >= rest_stages:
                _join(stage[index[t]], rest[others + rest_shift], rest_stages, last_layer, falling, target)


@_compiled
def _split(
    m: int,
    total: int,
    value: float,
    sets: Array,
    sizes: Array,
    links: Array,
    stage: Array,
    rest: Array,
    rest_shift: int,
    rest_stages: int,
) -> Any:
    """First (stage row, its layers, row of the other nodes) that reaches ``value`` with ``total`` layers."""
    index, _ = _sublattice(sets[m], links, m)
    codes = index.shape[0]
    for t in range(1, codes - 1):
        others = index[codes - 1 - t]
        if sizes[others] < rest_stages:
            continue
        for j in range(1, total - rest_stages + 1):
            if stage[index[t], j] >= value and rest[others + rest_shift, total - j] >= value:
                return index[t], j, others
    return -1, 0, -1


@_parallel
def one_stage(wanted: Array, stage: Array, best: Array, stages: Array, layers: Array, rows: Array) -> None:
    """Take one stage of all layers for the node sets ``wanted`` where that beats ``best``."""
    last = stage.shape[1] - 1
    for i in numba.prange(wanted.shape[0]):
        m = wanted[i]
        if stage[m, last] > best[m]:
            best[m] = stage[m, last]
            stages[m] = 1
            layers[m, 0] = last
            rows[m, 0] = m


@_parallel
def last_stage(
    sets: Array,
    sizes: Array,
    links: Array,
    wanted: Array,
    count: int,
    first_table: Array,
    middle_table: Array,
    last_table: Array,
    middle: Array,
    middle_shift: Array,
    front: Array,
    front_shift: int,
    last_peak: Array,
    front_peak: Array,
    falling: bool,
    best: Array,
    stages: Array,
    layers: Array,
    rows: Array,
) -> None:
    """Close pipelines of ``count`` >= 2 stages over the node sets ``wanted`` and keep those that beat ``best``.

    Writes throughput, stage count, layers a stage and node-set row a stage, in pipeline order.
    """
    total = first_table.shape[1] - 1
    for i in numba.prange(wanted.shape[0]):
        m = wanted[i]
        value, kept_stage, kept_front, kept_layers = best[m], -1, -1, 0
        index, _ = _sublattice(sets[m], links, m)
        codes = index.shape[0]
        for t in range(1, codes - 1):
            a, b = index[t], index[codes - 1 - t]
            if sizes[b] < count - 1 or last_peak[a] <= value or front_peak[b + front_shift] <= value:
                continue
            stage, others = last_table[a], front[b + front_shift]
            high = total - count + 1
            if falling:
                low = 1
                end = high + 1
                while low < end:
                    j = (low + end) // 2
                    if stage[j] <= others[total - j]:
                        end = j
                    else:
                        low = j + 1
                if low <= high and stage[low] > value:
                    value, kept_stage, kept_front, kept_layers = stage[low], a, b, low
                if low > 1 and others[total - low + 1] > value:
                    value, kept_stage, kept_front, kept_layers = others[total - low + 1], a, b, low - 1
            else:
                for j in range(1, high + 1):
                    reached = min(stage[j], others[total - j])
                    if reached > value:
                        value, kept_stage, kept_front, kept_layers = reached, a, b, j
        if kept_stage < 0:
            continue
        # The tables hold values only: walk down again and take the first split that reaches the optimum.
        best[m], stages[m] = value, count
        layers[m, count - 1], rows[m, count - 1] = kept_layers, kept_stage
        left, remaining = kept_front, total - kept_layers
        if count > 2:
            a, j, b = _split(
                left, remaining, value, sets, sizes, links, first_table, middle, middle_shift[count - 2], count - 2
            )
            layers[m, 0], rows[m, 0] = j, a
            left, remaining = b, remaining - j
            for k in range(count - 2, 1, -1):
                a, j, b = _split(
                    left, remaining, value, sets, sizes, links, middle_table, middle, middle_shift[k - 1], k - 1
                )
                layers[m, count - 1 - k], rows[m, count - 1 - k] = j, a
                left, remaining = b, remaining - j
            layers[m, count - 2], rows[m, count - 2] = remaining, left
        else:
            layers[m, 0], rows[m, 0] = remaining, left
