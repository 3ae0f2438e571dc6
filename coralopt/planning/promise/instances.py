"""Instances of one model phase as a plan shows them: of a template's own placement, or its nodes cut into pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coralopt.placement import Placement, Stage
from coralopt.plan import PlannedInstance
from coralopt.planning.stages import StageTables, instance_name, planned_stages
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates import PhaseTemplates
from coralopt.throughput import ThroughputTables, stage_role

#: Stages of the pipelines that are tried; numbers of pipelines of one group, at most, from few to as many as there is room
#: for.
WIDTHS, MOST_NUMBERS = (2, 3), 6


@dataclass(frozen=True)
class GroupPart:
    """Equal instances inside a group whose nodes are cut in another way.

    Attributes:
        template: Row of the phase's template with the nodes of one instance.
        count: Instances.
        placement: Their stages; ``None`` for the template's own.
    """

    template: int
    count: int
    placement: Placement | None = None


class PhaseInstances:
    """Instances of the templates of one model phase, in the first region.

    Args:
        scenario: Configurations and regions.
        phase: The model phase.
        templates: Its templates.
        tables: Throughput tables of stages.
    """

    def __init__(
        self, scenario: ResolvedScenario, phase: ModelPhase, templates: PhaseTemplates, tables: StageTables
    ) -> None:
        self.scenario, self.phase, self.templates, self.tables = scenario, phase, templates, tables
        self._instances: dict[tuple[int, Placement | None], PlannedInstance] = {}

    def of(self, template: int, placement: Placement | None = None) -> PlannedInstance:
        """One instance with the nodes of a template, in its own placement or in another one."""
        key = template, placement
        if key not in self._instances:
            cut = self.templates.placement(template) if placement is None else placement
            instance = planned_placement(self.scenario, self.phase, self.tables, cut)
            if placement is None:
                instance = instance.model_copy(update={"tokens_s": float(self.templates.throughput[template])})
            self._instances[key] = instance
        return self._instances[key]

    def parts(self, parts: tuple[GroupPart, ...]) -> list[PlannedInstance]:
        """Instances of all parts of a group."""
        return [self.of(part.template, part.placement).model_copy(update={"count": part.count}) for part in parts]

    def pipelines(self, template: int, count: int, tokens_s: float) -> Iterator[tuple[GroupPart, ...]]:
        """The nodes of a prefill group of one kind of node cut into pipelines of a few one-node stages, and the rest.

        Every node of a pipeline sends a part of each KV cache.

        Args:
            template: Row of the phase's templates.
            count: Instances of the group.
            tokens_s: What all parts serve together at least, tokens/s.
        """
        usage = self.templates.usage[template].astype(np.int64) * count
        kinds = np.flatnonzero(usage)
        if self.phase.phase != "prefill" or len(kinds) != 1:
            return
        kind, nodes = int(kinds[0]), int(usage[kinds[0]])
        for width in (w for w in WIDTHS if w <= nodes):
            placement = even_pipeline(self.tables.plain[self.phase.key], kind, width)
            one, several = (self._template(kind, count) for count in (1, width))
            if placement is None or several is None:
                continue
            most = nodes // width
            for pipelines in np.unique(np.linspace(1, most, min(most, MOST_NUMBERS)).round().astype(int)).tolist():
                rest = nodes - pipelines * width
                if rest and one is None:
                    continue
                cut: tuple[GroupPart, ...] = (GroupPart(several, pipelines, placement),)
                if rest and one is not None:
                    cut = (*cut, GroupPart(one, rest))
                if sum(instance.tokens_s * instance.count for instance in self.parts(cut)) >= tokens_s:
                    yield cut

    def _template(self, kind: int, nodes: int) -> int | None:
        usage = np.zeros(self.templates.usage.shape[1], dtype=np.int64)
        usage[kind] = nodes
        return self.templates.find(usage.tolist())


def planned_placement(
    scenario: ResolvedScenario, phase: ModelPhase, tables: StageTables, placement: Placement
) -> PlannedInstance:
    """A placement as a plan would show one instance of it, in the first region."""
    by_stage, budgets_ms = tables.of(phase.key, placement)
    nodes = {c.name: n for c, n in zip(scenario.configurations, placement.node_set, strict=True) if n}
    stages = planned_stages(scenario, placement, by_stage, 0, budgets_ms)
    return PlannedInstance(
        name=instance_name(phase, scenario.regions[0], nodes),
        model=phase.model.name,
        phase=phase.phase,
        region=scenario.regions[0],
        count=1,
        kept=0,
        stages=stages,
        tokens_s=min(stage.tokens_s for stage in stages),
        price_usd_h=0.0,
    )


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
