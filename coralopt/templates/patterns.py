"""Patterns: several models on one node; the templates of shared nodes.

A pattern is a node configuration, a way to share it and phases of at most k models on it. Ways are

- ``turns``: the phases' steps take turns, each with a batch, priced exactly by :mod:`coralopt.throughput.steps`;
- ``swapping``: whole requests take turns, the weights of a model at a time on the GPUs, priced by
  :mod:`coralopt.throughput.swapping` in the same form;
- ``slices``: each phase has a MIG slice of the node's GPU to itself (:mod:`coralopt.catalog.mig`), with the throughput that
  it has alone on a GPU of that size.

What is given to phases follows from what is asked of each: all of its need, or, for at most one phase of a pattern, as much
as fits beside the others. With turns, for targets r the batches are the least with ``tokens_s >= r`` for all. They exist
wherever any batches serve the targets, since smaller batches make a shorter cycle: of two solutions the smaller batch of
each phase is one, too. With slices all divisions of the GPU are tried in which no slice could be larger.

Left out, because others do no less on the same node: a set whose needs are all served beside one phase more; as much as
fits of one phase where all of it does.

Patterns depend on the demand, the library of templates does not, so they lie beside it and are made for each plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coralopt.catalog.mig import divisions, profiles, sliced
from coralopt.catalog.types import NodeConfiguration
from coralopt.errors import CoraloptError, Mistake, ScenarioError
from coralopt.scenario.facts.facts import SharingWay
from coralopt.scenario.facts.operations import ModelRules, RentLimits
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.throughput import FIRST, LayerTimeSource, ThroughputTables, throughput_source
from coralopt.throughput.steps import StepTable, node_steps
from coralopt.throughput.swapping import swap_steps
from coralopt.types import Bools, Floats, Ints

#: Sets of phases looked at on one node configuration, at most.
MOST_SETS = 1_000_000
#: Ways in which nodes are shared; patterns hold positions.
WAYS: tuple[SharingWay, ...] = ("turns", "slices", "swapping")


@dataclass(frozen=True, eq=False)
class Patterns:
    """Shared nodes, one a row; phases of a row ascend, and are padded with -1.

    Attributes:
        configuration: int64 (n,), position of the node configuration in the scenario.
        way: int64 (n,), position in ``WAYS``.
        phase: int64 (n, k), positions of model phases.
        batch: int64 (n, k), sequences (prompts) a step, or requests a turn where weights are swapped.
        tokens_s: float64 (n, k), throughput.
        size: int64 (n, k), positions of slices in :data:`coralopt.catalog.mig.SIZES`; 0 without slices.
    """

    configuration: Ints
    way: Ints
    phase: Ints
    batch: Ints
    tokens_s: Floats
    size: Ints

    def __len__(self) -> int:
        return len(self.configuration)

    @staticmethod
    def none() -> Patterns:
        """No shared nodes."""
        nothing = np.zeros((0, 1), dtype=np.int64)
        return Patterns(nothing[:, 0], nothing[:, 0], nothing, nothing, np.zeros((0, 1)), nothing)


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
        who = Company(
            need=np.array([scenario.model_phases[p].needed_tokens_s for p in able]),
            model=np.array([names.index(names[p]) for p in able]),
            limited=np.array([rules.get(names[p], ModelRules()).limits != RentLimits() for p in able]),
        )
        phases = [scenario.model_phases[p] for p in able]
        for way in scenario.sharing.ways:
            node = _node(way, who, phases, configuration, (scenario, source))
            if node is None:
                continue
            for sets, place in node.patterns(most):
                given, wide = node.given(sets, place), ((0, 0), (0, most - sets.shape[1]))
                rows.append(
                    Patterns(
                        np.full(len(sets), c),
                        np.full(len(sets), WAYS.index(way)),
                        np.pad(np.array(able)[sets], wide, constant_values=-1),
                        np.pad(given.batch, wide),
                        np.pad(given.tokens_s, wide),
                        np.pad(given.size, wide),
                    )
                )
    if not rows:
        problem = "no node of the pool holds two of the models within their SLOs and its memory"
        raise ScenarioError(scenario.name, [Mistake("sharing", problem, "offer larger nodes, or leave sharing out")])
    return Patterns(*(np.concatenate(part) for part in zip(*(vars(row).values() for row in rows), strict=True)))


class Given(NamedTuple):
    """What the phases of patterns have, a row a pattern, a column a phase: batch, tokens/s and size of slice."""

    batch: Ints
    tokens_s: Floats
    size: Ints


@dataclass(frozen=True, eq=False)
class Company:
    """Phases that could share one node configuration.

    Attributes:
        need: float64 (m,), tokens/s that each needs.
        model: int64 (m,), model of each; two phases of one model do not share a node.
        limited: bool (m,), whether its model has limits on nodes or rent, so that a set is not always better with it.
    """

    need: Floats
    model: Ints
    limited: Bools


@dataclass(frozen=True, eq=False)
class Divided(ABC):
    """One node configuration, one way to share it, and who could; what phases have in a set is its *place*, a row a set.

    Attributes:
        who: The phases.
    """

    who: Company

    @abstractmethod
    def given(self, sets: Ints, place: Ints) -> Given:
        """What sets of phases have at their places."""

    @abstractmethod
    def possible(self, sets: Ints) -> Bools:
        """bool (k,): whether all phases of a set can be served at all beside each other."""

    @abstractmethod
    def whole(self, sets: Ints) -> tuple[Ints, Bools]:
        """Places that give all phases of a set their need, and whether there are any."""

    @abstractmethod
    def filled(self, sets: Ints, column: int) -> tuple[Ints, Ints]:
        """As much as fits of the phase in one column, beside all that the others need; sets without any room left out."""

    def patterns(self, most: int) -> list[tuple[Ints, Ints]]:
        """Sets of 2 to ``most`` phases and their places, (k, s) each, a set a row.

        Raises:
            CoraloptError: Too many sets.
        """
        whole_sets: list[tuple[Ints, Ints]] = []
        parts: list[tuple[Ints, Ints]] = []
        sets = np.arange(len(self.who.need))[:, None]
        for _ in range(2, most + 1):
            sets = self._larger(sets)
            place, whole = self.whole(sets)
            # Sets that are served beside one phase more give nothing that the larger one does not.
            if whole_sets:
                alone = ~np.isin(self._code(whole_sets[-1][0]), self._inside(sets[whole]))
                whole_sets[-1] = whole_sets[-1][0][alone], whole_sets[-1][1][alone]
            whole_sets.append((sets[whole], place[whole]))
            parts += [self.filled(sets[~whole], column) for column in range(sets.shape[1])]
        return [item for item in (*whole_sets, *parts) if len(item[0])]

    def _larger(self, sets: Ints) -> Ints:
        """All sets of one phase more, of other models, that can be served."""
        pairs = np.arange(len(self.who.need))[None, :] > sets[:, -1:]
        pairs &= ~(self.who.model[sets][:, :, None] == self.who.model[None, None, :]).any(axis=1)
        row, phase = np.nonzero(pairs)
        if len(row) > MOST_SETS:
            text = f"sharing: {len(row):,} sets of {sets.shape[1] + 1} model phases on one node, at most {MOST_SETS:,}"
            raise CoraloptError(f"{text} are looked at; let fewer models share a node (sharing.models)")
        larger = np.concatenate([sets[row], phase[:, None]], axis=1)
        return larger[self.possible(larger)]

    def _code(self, sets: Ints) -> Ints:
        """int64 (k,): one number a set, of sets of equal size different ones."""
        return np.asarray(sets @ (len(self.who.need) ** np.arange(sets.shape[1])), dtype=np.int64)

    def _inside(self, sets: Ints) -> Ints:
        """Codes of all sets that lack one phase, whose model is free of limits, of one of these."""
        columns = range(sets.shape[1])
        less = [np.delete(sets, column, axis=1)[~self.who.limited[sets[:, column]]] for column in columns]
        return np.concatenate([self._code(some) for some in less])


@dataclass(frozen=True, eq=False)
class SharedNode(Divided):
    """Phases that take turns; their places are positions of batches.

    Attributes:
        table: Their steps, or their turns where weights are swapped.
    """

    table: StepTable

    def given(self, sets: Ints, place: Ints) -> Given:
        """Batches, and the throughput in cycles of these."""
        tokens_s = self.table.tokens_s(sets, place)
        return Given(self.table.batch[place].astype(np.int64), tokens_s, np.zeros_like(sets))

    def possible(self, sets: Ints) -> Bools:
        """Whether they fit with the smallest batches."""
        return self.table.fits(sets, np.zeros_like(sets))

    def whole(self, sets: Ints) -> tuple[Ints, Bools]:
        """The least batches."""
        return self.least(sets, self.who.need[sets], np.zeros_like(sets))

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

    def filled(self, sets: Ints, column: int) -> tuple[Ints, Ints]:
        """The largest batch of that phase by bisection."""
        targets = self.who.need[sets]
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


@dataclass(frozen=True, eq=False)
class SlicedNode(Divided):
    """Phases with a MIG slice each; their places are positions in :data:`coralopt.catalog.mig.SIZES`.

    Attributes:
        batch: int64 (m, f), best batch of each phase alone on a slice of each size; 0 where it cannot run there.
        tokens_s: float64 (m, f), its throughput.
    """

    batch: Ints
    tokens_s: Floats

    def given(self, sets: Ints, place: Ints) -> Given:
        """What each has alone on its slice."""
        return Given(self.batch[sets, place], self.tokens_s[sets, place], place)

    def possible(self, sets: Ints) -> Bools:
        """Whether some division has a slice for each."""
        some = np.zeros(len(sets), dtype=np.bool_)
        for sizes in divisions(sets.shape[1]):
            some |= (self.tokens_s[sets, sizes] > 0).all(axis=1)
        return some

    def whole(self, sets: Ints) -> tuple[Ints, Bools]:
        """The first division that serves all."""
        place, served = np.zeros_like(sets), np.zeros(len(sets), dtype=np.bool_)
        for sizes in divisions(sets.shape[1]):
            more = ~served & self._enough(sets, sizes).all(axis=1)
            place[more], served = sizes, served | more
        return place, served

    def filled(self, sets: Ints, column: int) -> tuple[Ints, Ints]:
        """The division with the fastest slice for that phase."""
        place, most = np.zeros_like(sets), np.zeros(len(sets))
        for sizes in divisions(sets.shape[1]):
            others = np.delete(self._enough(sets, sizes), column, axis=1).all(axis=1)
            own = np.where(others, self.tokens_s[sets[:, column], sizes[column]], 0.0)
            place[own > most] = sizes
            most = np.maximum(most, own)
        return sets[most > 0], place[most > 0]

    def _enough(self, sets: Ints, sizes: tuple[int, ...]) -> Bools:
        return np.asarray(self.tokens_s[sets, sizes] >= self.who.need[sets])


def _node(
    way: SharingWay,
    who: Company,
    phases: Sequence[ModelPhase],
    configuration: NodeConfiguration,
    where: tuple[ResolvedScenario, LayerTimeSource],
) -> Divided | None:
    """A node shared in one way; ``None`` where it cannot be."""
    if way == "slices":
        return _sliced_node(who, phases, configuration, where[1])
    return SharedNode(who, shared_steps(way, phases, configuration, where))


def shared_steps(
    way: SharingWay,
    phases: Sequence[ModelPhase],
    configuration: NodeConfiguration,
    where: tuple[ResolvedScenario, LayerTimeSource],
) -> StepTable:
    """What phases on one node take turns with: steps, or whole requests where weights are swapped."""
    scenario, source = where
    timed = [(phase, source.times(phase.model, configuration)) for phase in phases]
    if way == "swapping":
        swaps = [swap_steps(phase, configuration, times, scenario.sharing) for phase, times in timed]
        return StepTable.of(swaps, configuration, scenario.sharing.asleep_gib)
    return StepTable.of([node_steps(phase, configuration, times) for phase, times in timed], configuration)


def _sliced_node(
    who: Company, phases: Sequence[ModelPhase], configuration: NodeConfiguration, source: LayerTimeSource
) -> SlicedNode | None:
    """A node whose GPU is divided; ``None`` where MIG does not divide it."""
    kinds = [sliced(configuration, profile) for profile in profiles(configuration)]
    if not kinds:
        return None
    cells = [[alone_on_slice(phase, kind, source) for kind in kinds] for phase in phases]
    batch, tokens_s = (np.array([[cell[k] for cell in row] for row in cells]) for k in (0, 1))
    return SlicedNode(who, batch.astype(np.int64), tokens_s)


def alone_on_slice(phase: ModelPhase, part: NodeConfiguration, source: LayerTimeSource) -> tuple[int, float]:
    """Batch and tokens/s of a phase with a slice to itself; zeros where it cannot run there."""
    table = StepTable.of([node_steps(phase, part, source.times(phase.model, part))], part)
    place = np.arange(len(table.batch))[:, None]
    sets = np.zeros_like(place)
    tokens_s = np.where(table.fits(sets, place), table.tokens_s(sets, place)[:, 0], 0.0)
    best = int(tokens_s.argmax())
    return (int(table.batch[best]), float(tokens_s[best])) if tokens_s[best] > 0 else (0, 0.0)
