"""Patterns: several models on one node, their steps taking turns; the templates of shared nodes.

A pattern is a node configuration and phases of at most k models on it, each with a batch; what it gives and whether it keeps
every SLO is priced exactly by :mod:`coralopt.throughput.steps`. Batches follow from what is asked of each phase: all of its
need, or, for at most one phase of a pattern, as much as fits beside the others. For targets r the batches are the least
ones with ``tokens_s >= r`` for all. They exist wherever any batches serve the targets, since smaller batches make a shorter
cycle: of two solutions the smaller batch of each phase is one, too.

Left out, because others do no less on the same node: a set whose needs are all served beside one phase more; as much as
fits of one phase where all of it does.

Patterns depend on the demand, the library of templates does not, so they lie beside it and are made for each plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coralopt.errors import CoraloptError, Mistake, ScenarioError
from coralopt.scenario.parts import ModelRules, RentLimits
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.throughput import FIRST, ThroughputTables, throughput_source
from coralopt.throughput.steps import StepTable, node_steps
from coralopt.types import Bools, Floats, Ints

#: Sets of phases looked at on one node configuration, at most.
MOST_SETS = 1_000_000


@dataclass(frozen=True, eq=False)
class Patterns:
    """Shared nodes, one a row; phases of a row ascend, and are padded with -1.

    Attributes:
        configuration: int64 (n,), position of the node configuration in the scenario.
        phase: int64 (n, k), positions of model phases.
        batch: int64 (n, k), sequences (prompts) a step.
        tokens_s: float64 (n, k), throughput.
    """

    configuration: Ints
    phase: Ints
    batch: Ints
    tokens_s: Floats

    def __len__(self) -> int:
        return len(self.configuration)

    @staticmethod
    def none() -> Patterns:
        """No shared nodes."""
        nothing = np.zeros((0, 1), dtype=np.int64)
        return Patterns(nothing[:, 0], nothing, nothing, np.zeros((0, 1)))


def shared_patterns(scenario: ResolvedScenario, tables: Sequence[ThroughputTables]) -> Patterns:
    """All patterns of a scenario, none where it does not ask for sharing.

    Args:
        scenario: What to serve; its demand decides the batches.
        tables: Its throughput tables: a phase that cannot run alone on a node does not share it.

    Raises:
        ScenarioError: No node holds two of the models, or there are more sets than can be looked at.
    """
    most = scenario.sharing.models
    if most < 2:
        return Patterns.none()
    source, rows = throughput_source(scenario.throughput_source), []
    names, rules = [phase.model.name for phase in scenario.model_phases], dict(scenario.operations.models)
    for c, configuration in enumerate(scenario.configurations):
        able = [
            p
            for p, (phase, table) in enumerate(zip(scenario.model_phases, tables, strict=True))
            if phase.needed_tokens_s > 0
            and table.values[0, FIRST, c, -1] > 0
            and configuration.name not in rules.get(names[p], ModelRules()).forbidden
        ]
        if len(able) < 2:
            continue
        phases = [scenario.model_phases[p] for p in able]
        steps = [node_steps(phase, configuration, source.times(phase.model, configuration)) for phase in phases]
        need = np.array([phase.needed_tokens_s for phase in phases])
        node = SharedNode(
            StepTable.of(steps, configuration),
            need,
            np.array([names.index(names[p]) for p in able]),
            np.array([rules.get(names[p], ModelRules()).limits != RentLimits() for p in able]),
        )
        for sets, place in node.patterns(most):
            batch, tokens_s = node.table.batch[place].astype(np.int64), node.table.tokens_s(sets, place)
            wide = ((0, 0), (0, most - sets.shape[1]))
            rows.append(
                Patterns(
                    np.full(len(sets), c),
                    np.pad(np.array(able)[sets], wide, constant_values=-1),
                    np.pad(batch, wide),
                    np.pad(tokens_s, wide),
                )
            )
    if not rows:
        problem = "no node of the pool holds two of the models within their SLOs and its memory"
        raise ScenarioError(scenario.name, [Mistake("sharing", problem, "offer larger nodes, or leave sharing out")])
    return Patterns(
        np.concatenate([part.configuration for part in rows]),
        np.concatenate([part.phase for part in rows]),
        np.concatenate([part.batch for part in rows]),
        np.concatenate([part.tokens_s for part in rows]),
    )


@dataclass(frozen=True, eq=False)
class SharedNode:
    """One node configuration and the phases that could share it.

    Attributes:
        table: Their steps.
        need: float64 (m,), tokens/s that each needs.
        model: int64 (m,), model of each; two phases of one model do not share a node.
        limited: bool (m,), whether its model has limits on nodes or rent, so that a set is not always better with it.
    """

    table: StepTable
    need: Floats
    model: Ints
    limited: Bools

    def patterns(self, most: int) -> list[tuple[Ints, Ints]]:
        """Sets of 2 to ``most`` phases and the positions of their batches, (k, s) each, a set a row.

        Raises:
            CoraloptError: Too many sets.
        """
        found: list[tuple[Ints, Ints]] = []
        parts: list[tuple[Ints, Ints]] = []
        sets = np.arange(len(self.need))[:, None]
        for _ in range(2, most + 1):
            sets = self._larger(sets)
            place, whole = self.least(sets, self.need[sets], np.zeros_like(sets))
            # Sets that are served beside one phase more give nothing that the larger one does not.
            if found:
                alone = ~np.isin(self._code(found[-1][0]), self._inside(sets[whole]))
                found[-1] = found[-1][0][alone], found[-1][1][alone]
            found.append((sets[whole], place[whole]))
            parts += [self._filled(sets[~whole], column) for column in range(sets.shape[1])]
        return [item for item in (*found, *parts) if len(item[0])]

    def least(self, sets: Ints, targets: Floats, place: Ints) -> tuple[Ints, Bools]:
        """The least batches, from those at ``place`` on, that give every phase its target, and whether they keep all SLOs.

        Args:
            sets: int64 (k, s).
            targets: float64 (k, s), tokens/s.
            place: int64 (k, s), positions of the smallest batches to take.
        """
        table, place = self.table, place.copy()
        kept, going = np.zeros(len(sets), dtype=np.bool_), np.arange(len(sets))
        per_ms = targets / (1e3 * table.tokens_each[sets])
        while len(going):
            cycle = table.cycle_ms(sets[going], place[going])
            going, cycle = (part[cycle <= table.within_ms[sets[going]].min(axis=1)] for part in (going, cycle))
            # A hair less, so that a target that is met exactly stays met.
            wanted = np.searchsorted(table.batch, per_ms[going] * cycle[:, None] * (1 - 1e-12))
            within = (wanted < len(table.batch)).all(axis=1)
            going, wanted = going[within], wanted[within]
            same = (wanted <= place[going]).all(axis=1)
            kept[going[same]] = True
            place[going] = np.maximum(place[going], wanted)
            going = going[~same]
        kept[kept] = table.fits(sets[kept], place[kept])
        return place, kept

    def _filled(self, sets: Ints, column: int) -> tuple[Ints, Ints]:
        """As much as fits of the phase in one column, beside all that the others need; sets without any room left out."""
        targets = self.need[sets]
        targets[:, column] = 0.0
        start = np.zeros_like(sets)
        place, some = self.least(sets, targets, start)
        sets, targets, place, start = sets[some], targets[some], place[some], start[some]
        low, high = np.zeros(len(sets), dtype=np.int64), np.full(len(sets), len(self.table.batch))
        while (high - low > 1).any():
            middle = (low + high) // 2
            start[:, column] = middle
            tried, fits = self.least(sets, targets, start)
            place[fits], low, high = tried[fits], np.where(fits, middle, low), np.where(fits, high, middle)
        return sets, place

    def _larger(self, sets: Ints) -> Ints:
        """All sets of one phase more, of other models, that fit with the smallest batches."""
        pairs = np.arange(len(self.need))[None, :] > sets[:, -1:]
        pairs &= ~(self.model[sets][:, :, None] == self.model[None, None, :]).any(axis=1)
        row, phase = np.nonzero(pairs)
        if len(row) > MOST_SETS:
            text = f"sharing: {len(row):,} sets of {sets.shape[1] + 1} model phases on one node, at most {MOST_SETS:,}"
            raise CoraloptError(f"{text} are looked at; let fewer models share a node (sharing.models)")
        larger = np.concatenate([sets[row], phase[:, None]], axis=1)
        return larger[self.table.fits(larger, np.zeros_like(larger))]

    def _code(self, sets: Ints) -> Ints:
        """int64 (k,): one number a set, of sets of equal size different ones."""
        return np.asarray(sets @ (len(self.need) ** np.arange(sets.shape[1])), dtype=np.int64)

    def _inside(self, sets: Ints) -> Ints:
        """Codes of all sets that lack one phase, whose model is free of limits, of one of these."""
        columns = range(sets.shape[1])
        less = [np.delete(sets, column, axis=1)[~self.limited[sets[:, column]]] for column in columns]
        return np.concatenate([self._code(some) for some in less])
