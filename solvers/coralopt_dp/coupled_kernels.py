"""Compiled kernels for stages with cells: see ``coralopt.placement.coupled`` for the problem, kernels.py for the words.

A table row of a node set is (K, L + 1): tokens/s by cell and layers. A *suffix* of k stages is the last k of a pipeline.
Its cell is the number of latency units it may use (budgets), or the class of the slowest node of its first stage
(links). A stage in cell i and a suffix in cell r make a longer suffix: in cell i + r for budgets; for links i must be
r, and the new cell is the class of the stage's own slowest node.
"""

from __future__ import annotations

import numba

from coralopt_dp.kernels import Array, _compiled, _join, _parallel, _sublattice


@_parallel
def cell_tables(table: Array, sets: Array, rows: int, out: Array) -> None:
    """``out[m, k, j]`` = tokens/s of node set m as one stage under ``table`` (C, K, L + 1); 0 if a node cannot."""
    for m in numba.prange(rows):
        for k in range(table.shape[1]):
            for j in range(table.shape[2]):
                total = 0.0
                possible = True
                for c in range(sets.shape[1]):
                    if sets[m, c] > 0:
                        total += float(sets[m, c]) * table[c, k, j]
                        if table[c, k, j] <= 0.0:
                            possible = False
                out[m, k, j] = total if possible else 0.0


@_parallel
def join_suffix(
    sets: Array,
    sizes: Array,
    links: Array,
    classes: Array,
    first: int,
    end: int,
    stage: Array,
    rest: Array,
    rest_shift: int,
    rest_stages: int,
    linked: bool,
    last_layer: int,
    last_cell: int,
    falling: bool,
    out: Array,
    out_shift: int,
) -> None:
    """Best throughput of node sets ``first`` to ``end`` as suffixes of one stage more than ``rest`` has."""
    for m in numba.prange(first, end):
        target = out[m + out_shift]
        target[:, :] = 0.0
        index, _ = _sublattice(sets[m], links, m)
        codes = index.shape[0]
        for t in range(1, codes - 1):
            a, b = index[t], index[codes - 1 - t]
            if sizes[b] < rest_stages:
                continue
            behind = rest[b + rest_shift]
            if linked:
                for r in range(stage.shape[1]):
                    if behind[r, rest_stages] > 0.0 or not falling:
                        _join(stage[a, r], behind[r], rest_stages, last_layer, falling, target[classes[a]])
            else:
                for i in range(1, last_cell - rest_stages + 1):
                    # A unit more that gains nothing need not be tried: fewer units leave more to the others.
                    if _same(stage[a, i], stage[a, i - 1]):
                        continue
                    for r in range(rest_stages, last_cell - i + 1):
                        if not _same(behind[r], behind[r - 1]):
                            _join(stage[a, i], behind[r], rest_stages, last_layer, falling, target[i + r])
        if not linked:
            for k in range(1, last_cell + 1):
                for l in range(target.shape[1]):  # noqa: E741
                    if target[k - 1, l] > target[k, l]:
                        target[k, l] = target[k - 1, l]


@_compiled
def _same(left: Array, right: Array) -> bool:
    for j in range(left.shape[0]):  # noqa: SIM110 - compiled code
        if left[j] != right[j]:
            return False
    return True


@_compiled
def _cross(stage: Array, others: Array, total: int, high: int, falling: bool, value: float) -> tuple[float, int]:
    """Best min(stage[j], others[total - j]) over j in 1..high if it beats ``value``, and its j (0: none)."""
    kept = 0
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
            value, kept = stage[low], low
        if low > 1 and others[total - low + 1] > value:
            value, kept = others[total - low + 1], low - 1
    else:
        for j in range(1, high + 1):
            reached = min(stage[j], others[total - j])
            if reached > value:
                value, kept = reached, j
    return value, kept


@_compiled
def _find(
    m: int,
    total: int,
    cell: int,
    value: float,
    sets: Array,
    sizes: Array,
    links: Array,
    classes: Array,
    stage: Array,
    rest: Array,
    rest_shift: int,
    rest_stages: int,
    linked: bool,
) -> tuple[int, int, int, int]:
    """First (stage row, its layers, row of the rest, cell of the rest) that reaches ``value`` in ``cell``."""
    index, _ = _sublattice(sets[m], links, m)
    codes = index.shape[0]
    for t in range(1, codes - 1):
        a, b = index[t], index[codes - 1 - t]
        if sizes[b] < rest_stages or (linked and classes[a] != cell):
            continue
        for i in range(stage.shape[1]):
            r = i if linked else cell - i
            if r < 0 or (not linked and i < 1):
                continue
            for j in range(1, total - rest_stages + 1):
                if stage[a, i, j] >= value and rest[b + rest_shift, r, total - j] >= value:
                    return a, j, b, r
    return -1, 0, -1, 0


@_parallel
def close_pipelines(
    sets: Array,
    sizes: Array,
    links: Array,
    classes: Array,
    wanted: Array,
    count: int,
    linked: bool,
    last_cell: int,
    first_table: Array,
    middle_table: Array,
    suffix: Array,
    shift: Array,
    falling: bool,
    best: Array,
    stages: Array,
    layers: Array,
    rows: Array,
) -> None:
    """Put a first stage ahead of suffixes of ``count`` - 1 stages for the node sets ``wanted``; keep what beats ``best``.

    Row m of the suffixes of k stages lies at m + shift[k] of ``suffix``.
    """
    total = first_table.shape[2] - 1
    high = total - count + 1
    for w in numba.prange(wanted.shape[0]):
        m = wanted[w]
        value, kept_a, kept_b, kept_j, kept_r = best[m], -1, -1, 0, 0
        index, _ = _sublattice(sets[m], links, m)
        codes = index.shape[0]
        for t in range(1, codes - 1):
            a, b = index[t], index[codes - 1 - t]
            if sizes[b] < count - 1:
                continue
            behind = suffix[b + shift[count - 1]]
            for i in range(first_table.shape[1]):
                r = i if linked else last_cell - i
                if r < 0 or (not linked and i < 1):
                    continue
                # The largest entries: one layer in the stage, the fewest in the rest.
                if falling and (first_table[a, i, 1] <= value or behind[r, count - 1] <= value):
                    continue
                reached, j = _cross(first_table[a, i], behind[r], total, high, falling, value)
                if j > 0:
                    value, kept_a, kept_b, kept_j, kept_r = reached, a, b, j, r
        if kept_a < 0:
            continue
        best[m], stages[m] = value, count
        layers[m, 0], rows[m, 0] = kept_j, kept_a
        left, remaining, cell = kept_b, total - kept_j, kept_r
        for k in range(count - 1, 1, -1):
            a, j, b, r = _find(
                left,
                remaining,
                cell,
                value,
                sets,
                sizes,
                links,
                classes,
                middle_table,
                suffix,
                shift[k - 1],
                k - 1,
                linked,
            )
            layers[m, count - k], rows[m, count - k] = j, a
            left, remaining, cell = b, remaining - j, r
        layers[m, count - 1], rows[m, count - 1] = remaining, left
