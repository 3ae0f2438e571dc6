"""Designs of a model: groups for each of its phases that hold its SLOs together; the cheapest, by themselves.

What one phase does to another is in no group's capacity. Designs are played in the order of their price; where KV caches
arrive too late, the same nodes are played as pipelines too, whose nodes each send a part of every cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coralopt.placement import Placement, Stage
from coralopt.plan import PlannedInstance
from coralopt.planning.make_plan import StageTables
from coralopt.planning.promise.capacities import PARTS, PRICE_TOLERANCE, Groups, tighten
from coralopt.planning.promise.games import planned_placement
from coralopt.planning.promise.together import Together, TogetherRaces
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.throughput import ThroughputTables, stage_role
from coralopt.types import Floats, Progress

#: Designs are looked at that cost at most so much more than the cheapest groups, as shares; then wider.
ALLOWANCES = (0.0, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
#: Covers of one phase looked at at once, and designs of one model played, at most.
MOST_COVERS, MOST_DESIGNS = 200, 60
#: Designs with different groups of the other phases, after which groups that failed in all of them are left out.
FAILURES = {"prefill": 2, "decode": 4}
#: Stages of the pipelines that are tried.
WIDTHS = (2, 3)


@dataclass(frozen=True)
class Cutting:
    """Equal instances inside a group whose nodes are cut in another way.

    Attributes:
        template: Row of the phase's template with the nodes of one instance.
        count: Instances.
        placement: Their stages; ``None`` for the template's own.
    """

    template: int
    count: int
    placement: Placement | None = None


#: Model phase and group there.
Place = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Design:
    """Groups that hold a model's SLOs together.

    Attributes:
        groups: Model phase and group of each.
        parts: How the nodes of some of them are cut.
    """

    groups: tuple[Place, ...]
    parts: Mapping[Place, tuple[Cutting, ...]]


@dataclass(frozen=True, eq=False)
class Designs:
    """The search for the cheapest design of each model.

    Attributes:
        scenario: What is planned.
        groups: Groups of every model phase.
        price: float64 (J,) each, USD/h of a group.
        races: Plays instances of a model together.
        tables: Throughput tables of stages.
        progress: Told what is played.
    """

    scenario: ResolvedScenario
    groups: Sequence[Groups]
    price: Sequence[Floats]
    races: TogetherRaces
    tables: StageTables
    progress: Progress | None = None

    def cheapest(self, model: str) -> Design | None:
        """The cheapest design that was seen to hold; ``None`` where none was, or for a model of mean requests."""
        phases = [p for p, phase in enumerate(self.scenario.model_phases) if phase.model.name == model]
        phases = [p for p in phases if self.groups[p].unit_tokens > 0]
        if not phases or self.groups[phases[0]].games.target is None:
            return None
        least = [float(self.groups[p].covers(self.groups[p].least, self.price[p])[PARTS]) for p in phases]
        played: set[tuple[PlannedInstance, ...]] = set()
        failures: dict[tuple[int, tuple[int, ...]], int] = {}
        for allowance in (share * sum(least) for share in ALLOWANCES):
            if not math.isfinite(allowance):
                return None
            for covers in self._combinations(phases, least, allowance):
                kinds = [self.scenario.model_phases[p].phase for p in phases]
                worn = any(
                    failures.get((p, cover), 0) >= FAILURES.get(kind, 1)
                    for p, kind, cover in zip(phases, kinds, covers, strict=True)
                )
                groups = tuple((p, j) for p, cover in zip(phases, covers, strict=True) for j in cover)
                instances = self.instances(groups, {})
                if worn or instances in played:
                    continue
                played.add(instances)
                if self.progress is not None:
                    self.progress(f"designs of {model}", len(played), MOST_DESIGNS)
                design, failed = self._hold(groups)
                if design is not None:
                    return design
                for p, kind, cover in zip(phases, kinds, covers, strict=True):
                    if kind in failed or kind == "mixed":
                        failures[p, cover] = failures.get((p, cover), 0) + 1
                if len(played) >= MOST_DESIGNS:
                    return None
        return None

    def instances(
        self, groups: Sequence[Place], parts: Mapping[Place, tuple[Cutting, ...]]
    ) -> tuple[PlannedInstance, ...]:
        """Instances of some groups of one model, all in the first region; equal ones are counted together."""
        counts: dict[PlannedInstance, int] = {}
        for p, j in groups:
            group = self.groups[p]
            own = Cutting(int(group.template[j]), int(group.count[j]))
            for part in parts.get((p, j), (own,)):
                instance = self.instance(p, part)
                counts[instance] = counts.get(instance, 0) + part.count
        return tuple(instance.model_copy(update={"count": count}) for instance, count in counts.items())

    def instance(self, p: int, part: Cutting) -> PlannedInstance:
        """One instance of a part, in the first region."""
        games = self.groups[p].games
        if part.placement is None:
            return games.instance(part.template)
        return planned_placement(self.scenario, games.phase, self.tables, part.placement)

    def _combinations(
        self, phases: Sequence[int], least: Sequence[float], allowance: float
    ) -> list[tuple[tuple[int, ...], ...]]:
        """Groups of each phase that cover it, at most so much dearer together than the cheapest, cheapest first."""
        covers = []
        for p, cost in zip(phases, least, strict=True):
            tighten(self.groups[p], self.price[p], 0.0, self.progress, allowance)
            ceiling = cost * (1 + PRICE_TOLERANCE) + allowance
            covers.append(self.groups[p].cheapest_covers(self.price[p], ceiling, MOST_COVERS))
        most = sum(least) * (1 + PRICE_TOLERANCE) + allowance
        priced = [
            (sum(c for c, _ in chosen), tuple(cover for _, cover in chosen)) for chosen in itertools.product(*covers)
        ]
        return [chosen for cost, chosen in sorted(priced) if cost <= most]

    def _hold(self, groups: tuple[Place, ...]) -> tuple[Design | None, set[str]]:
        """The groups as a design, cut so that it holds, or the kinds of SLO that it misses."""
        outcome = self.races.race(self.instances(groups, {}))
        if outcome.holds:
            return Design(groups, {}), set()
        failed = self._failed(groups, outcome)
        if failed == {"decode"}:
            for p, j in groups:
                for parts in self._pipelines(p, j):
                    if self.races.race(self.instances(groups, {(p, j): parts})).holds:
                        return Design(groups, {(p, j): parts}), set()
        return None, failed

    def _failed(self, groups: Sequence[Place], outcome: Together) -> set[str]:
        target = self.groups[groups[0][0]].games.target
        assert target is not None
        below = {kind for kind, share in outcome.shares.items() if share < target}
        # None is below, but none is surely above: the worst is the one to change.
        return below or {min(outcome.shares, key=lambda kind: outcome.shares[kind])}

    def _pipelines(self, p: int, j: int) -> list[tuple[Cutting, ...]]:
        """The nodes of a prefill group of one kind of node cut into pipelines of a few one-node stages, and the rest."""
        groups = self.groups[p]
        games = groups.games
        usage = games.templates.usage[groups.template[j]].astype(np.int64) * int(groups.count[j])
        kinds = np.flatnonzero(usage)
        if games.phase.phase != "prefill" or len(kinds) != 1:
            return []
        kind, nodes = int(kinds[0]), int(usage[kinds[0]])
        parts: list[tuple[Cutting, ...]] = []
        for width in (w for w in WIDTHS if w <= nodes):
            placement = even_pipeline(self.tables.plain[games.phase.key], kind, width)
            one, several = (self._template(p, kind, count) for count in (1, width))
            if placement is None or several is None:
                continue
            for pipelines in range(1, nodes // width + 1):
                rest = nodes - pipelines * width
                if rest and one is None:
                    continue
                cut = [Cutting(several, pipelines, placement)]
                if rest and one is not None:
                    cut.append(Cutting(one, rest))
                tokens_s = sum(self.instance(p, part).tokens_s * part.count for part in cut)
                if tokens_s >= PARTS * groups.unit_tokens:
                    parts.append(tuple(cut))
        return parts

    def _template(self, p: int, kind: int, nodes: int) -> int | None:
        templates = self.groups[p].games.templates
        usage = np.zeros(templates.usage.shape[1], dtype=np.int64)
        usage[kind] = nodes
        return templates.find(usage.tolist())


def even_pipeline(table: ThroughputTables, configuration: int, stages: int) -> Placement | None:
    """Stages of one node each, of one configuration: the split of layers with the largest least throughput.

    Args:
        table: Throughput of a stage by its layers.
        configuration: Position of the node configuration.
        stages: How many.

    Returns:
        ``None`` where so many nodes cannot hold the model within its SLO.
    """
    if stages > table.max_stages:
        return None
    speeds = [table.values[stages - 1, stage_role(k, stages), configuration, 1:] for k in range(stages)]
    for floor in np.unique(np.concatenate(speeds))[::-1]:
        if floor <= 0:
            return None
        most = [int(np.flatnonzero(speed >= floor)[-1]) + 1 if (speed >= floor).any() else 0 for speed in speeds]
        surplus = sum(most) - table.layers
        if min(most) > 0 and surplus >= 0:
            break
    else:
        return None
    while surplus:
        # A stage with fewer layers is no slower.
        most[int(np.argmax(most))] -= 1
        surplus -= 1
    nodes = tuple(int(c == configuration) for c in range(len(table.configurations)))
    return Placement(stages=tuple(Stage(layers=layers, nodes=nodes) for layers in most))
