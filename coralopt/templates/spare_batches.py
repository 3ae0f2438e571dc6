"""Batches of shared nodes beyond those that demand needs: what is left of the cycle and of the memory.

A pattern has the least batches that serve the needs, often one sequence. As limits of engines they would make a second
request wait for the first one's whole answer while memory and SLO have room for both. So the nodes that are rented get
larger ones. A phase with batch b of which demand keeps a busy has the reserve ``(b - a) / sqrt(a)``, by which equal shares
of requests wait where sequences come and go at random (square-root staffing: S. Halfin, W. Whitt, "Heavy-traffic limits for
queues with many exponential servers", Operations Research 29, 1981). The batches are those of the largest reserve that all
phases of a node can have within every SLO and the memory. What demand keeps busy depends on the others by the cycle alone,
``a = demand C / tokens of a sequence and step``, so for a given reserve the least batches are a least fixed point again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates.patterns import WAYS, Patterns, shared_steps
from coralopt.throughput import throughput_source
from coralopt.throughput.steps import StepTable
from coralopt.types import Ints

#: Relative difference of reserves that count as equal; absolute below 1.
CLOSE = 1e-6


def with_spare_batches(scenario: ResolvedScenario, patterns: Patterns, rows: Iterable[int]) -> Patterns:
    """The patterns, some of them with larger batches; slices have their best ones already.

    Args:
        scenario: What they are for.
        patterns: All of them.
        rows: Those to enlarge.
    """
    source = throughput_source(scenario.throughput_source)
    batch, tokens_s = patterns.batch.copy(), patterns.tokens_s.copy()
    for row in rows:
        way = WAYS[int(patterns.way[row])]
        if way == "slices":
            continue
        columns = np.flatnonzero(patterns.phase[row] >= 0)
        phases = [scenario.model_phases[p] for p in patterns.phase[row, columns].tolist()]
        table = shared_steps(way, phases, scenario.configurations[int(patterns.configuration[row])], (scenario, source))
        place = np.searchsorted(table.batch, batch[row, columns])
        place = spare_batches(table, place, [(phase.demand_tokens_s, phase.needed_tokens_s) for phase in phases])
        batch[row, columns] = table.batch[place].astype(np.int64)
        tokens_s[row, columns] = table.tokens_s(np.arange(len(phases))[None, :], place[None, :])[0]
    return replace(patterns, batch=batch, tokens_s=tokens_s)


def spare_batches(table: StepTable, place: Ints, demands: Sequence[tuple[float, float]]) -> Ints:
    """int64 (m,): positions of the batches with the largest reserve of all phases of a table.

    Args:
        table: The phases, all on one node.
        place: int64 (m,), positions of batches that fit; no batch gets smaller.
        demands: Tokens/s that each phase's requests ask for, above 0, and those that are planned for them.
    """
    everyone = np.arange(len(place))[None, :]
    demand, need = np.array(demands).T
    # Less than its need, where a pattern serves only a part.
    floor = np.minimum(need, table.tokens_s(everyone, place[None, :])[0]) * (1 - 1e-12)

    def with_reserve(reserve: float) -> Ints | None:
        """The least batches of this reserve, ``None`` where they do not fit."""
        at = place
        while True:
            each = float(table.cycle_ms(everyone, at[None, :])[0]) / (1e3 * table.tokens_each)
            busy = demand * each
            wanted = np.searchsorted(table.batch, np.maximum(floor * each, busy + reserve * np.sqrt(busy)))
            if (wanted >= len(table.batch)).any():
                return None
            larger = np.maximum(at, wanted)
            if not table.fits(everyone, larger[None, :])[0]:
                return None
            if (larger == at).all():
                return at
            at = larger

    each = float(table.cycle_ms(everyone, place[None, :])[0]) / (1e3 * table.tokens_each)
    low = float(((table.batch[place] - demand * each) / np.sqrt(demand * each)).min())
    high, best = float(table.batch[-1] / np.sqrt(demand * each).min()), place
    while high - low > CLOSE * max(1.0, abs(low)):
        middle = (low + high) / 2
        larger = with_reserve(middle)
        if larger is None:
            high = middle
        else:
            low, best = middle, larger
    return best
