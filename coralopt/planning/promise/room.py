"""What regions and limits have room for: nodes, quotas of GPUs, numbers of nodes, rent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from coralopt.allocation import AllocationProblem
from coralopt.planning.promise.capacities import Groups, Place
from coralopt.templates import TemplateLibrary
from coralopt.types import Bools, Floats, Ints

#: Rent may be this share above its limit: sums of prices are rounded.
ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Room:
    """Nodes of regions, and what a plan may take of each limit of the scenario.

    Attributes:
        groups: Groups of every model phase.
        nodes: int64 (R, C), nodes of each configuration that a region has.
        limits: float64 (L,), nodes, GPUs or USD/h.
        taken: float64 (T, R, L) a model phase, what one instance of a template takes of them in a region.
    """

    groups: Sequence[Groups]
    nodes: Ints
    limits: Floats
    taken: Sequence[Floats]

    @staticmethod
    def of(base: AllocationProblem, library: TemplateLibrary, groups: Sequence[Groups]) -> Room:
        """That of a scenario. Transitions are left to the allocation, and bans to the templates.

        Args:
            base: The problem over single templates.
            library: These templates.
            groups: Groups of every model phase.
        """
        rows = [
            row
            for row in base.side_constraints
            if row.sense == "most" and row.measure in ("nodes", "gpus", "usd_h") and not row.is_ban
        ]
        regions = len(base.region_names)
        taken = []
        for first, templates in zip(library.offsets, library.phases, strict=True):
            template = np.repeat(first + np.arange(len(templates)), regions)
            region = np.tile(np.arange(regions), len(templates))
            each = [row.coefficients(base, template, region) for row in rows]
            taken.append(np.array(each).T.reshape(len(templates), regions, len(rows)))
        limits = np.array([row.bound for row in rows], dtype=np.float64)
        return Room(groups, base.availability.astype(np.int64), limits, taken)

    @cached_property
    def has(self) -> Floats:
        """float64 (R, C + L): nodes of each configuration in a region, and all that a plan may take of each limit."""
        limits = np.broadcast_to(self.limits * (1 + ROUNDING), (len(self.nodes), len(self.limits)))
        return np.concatenate([self.nodes, limits], axis=1)

    def needs(self, places: Sequence[Place]) -> Floats:
        """float64 (R, C + L): what groups need together in a region."""
        return np.asarray(sum((self._need(p, j) for p, j in places), np.zeros_like(self.has)))

    def fits(self, places: Sequence[Place]) -> Bools:
        """bool (R,): regions that have room for all of some groups."""
        return np.asarray((self.needs(places) <= self.has).all(axis=1))

    def fits_alone(self, p: int) -> Bools:
        """bool (J, R): regions that have room for each group of a model phase by itself."""
        groups, count = self.groups[p], self.groups[p].count[:, None]
        usage = groups.oracle.templates.usage[groups.template].astype(np.int64) * count
        fits = np.stack([(usage <= nodes).all(axis=1) for nodes in self.nodes], axis=1)
        for k, most in enumerate(self.limits.tolist()):
            fits &= self.taken[p][groups.template, :, k] * count <= most * (1 + ROUNDING)
        return np.asarray(fits)

    def fits_somewhere(self, places: Sequence[Place]) -> bool:
        """Whether all regions together may have room for groups, wherever each of them stands."""
        nodes = self.nodes.sum(axis=0)
        least = sum((self._need(p, j).min(axis=0) for p, j in places), np.zeros(self.has.shape[1]))
        return bool((least <= np.concatenate([nodes, self.has[0, len(nodes) :]])).all())

    def without(self, region: int, places: Sequence[Place]) -> Room:
        """What groups in a region leave."""
        count, needs = self.nodes.shape[1], self.needs(places)[region]
        nodes = self.nodes.copy()
        nodes[region] -= needs[:count].astype(np.int64)
        return replace(self, nodes=nodes, limits=self.limits - needs[count:])

    def _need(self, p: int, j: int) -> Floats:
        """float64 (R, C + L): what one group of a model phase needs in a region."""
        groups = self.groups[p]
        template, count = groups.template[j], groups.count[j]
        usage = groups.oracle.templates.usage[template].astype(np.float64)
        nodes = np.broadcast_to(usage, (len(self.nodes), len(usage)))
        return np.asarray(np.concatenate([nodes, self.taken[p][template]], axis=1) * count)
