"""Groups of equal instances, and designs of several, as columns of an allocation problem; what groups cost at least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coralopt.allocation import AllocationProblem, Joint, SideConstraint
from coralopt.planning.promise.capacities import PARTS, Groups, Place
from coralopt.templates import TemplateLibrary
from coralopt.types import Bools, Floats, Ints


@dataclass(frozen=True, eq=False)
class GroupColumns:
    """Groups and designs as columns of an allocation problem.

    Attributes:
        groups: The groups of each column: one, or all those of a design.
        problem: The problem over them.
    """

    groups: tuple[tuple[Place, ...], ...]
    problem: AllocationProblem

    @staticmethod
    def of(
        base: AllocationProblem,
        library: TemplateLibrary,
        groups: Sequence[Groups],
        kind: Literal["most", "least"],
        keep: Sequence[Bools],
        designs: Sequence[tuple[Place, ...]] = (),
    ) -> GroupColumns:
        """The problem over groups at what they hold at most, or at least.

        Args:
            base: The problem over single templates.
            library: These templates.
            groups: Those of every model phase.
            kind: Which of the two capacities counts.
            keep: bool (J,) a model phase, groups that take part by themselves.
            designs: Groups that serve all of their phases together, in one region.
        """
        places: list[tuple[Place, ...]] = []
        throughput: list[float] = []
        for p, mine in enumerate(groups):
            capacity = mine.most if kind == "most" else mine.least
            rows = np.flatnonzero((capacity > 0) & keep[p])
            # More instances that hold no more are of no use; groups are ordered by template and count.
            fewer = (np.diff(mine.template[rows], prepend=-1) == 0) & (np.diff(capacity[rows], prepend=-1) <= 0)
            places += [((p, j),) for j in rows[~fewer].tolist()]
            throughput += (capacity[rows[~fewer]] * mine.unit_tokens).tolist()
        demand = np.array([PARTS * mine.unit_tokens for mine in groups])
        phases = [tuple(dict.fromkeys(p for p, _ in design)) for design in designs]
        throughput += [demand[served[0]] for served in phases]
        beside = [(len(places) + k, p) for k, served in enumerate(phases) for p in served[1:]]
        joint = Joint(
            np.array([column for column, _ in beside], dtype=np.int64),
            np.array([p for _, p in beside], dtype=np.int32),
            demand[[p for _, p in beside]],
        )
        places += designs
        # Column, row in the library and instances of every group in a column.
        column = np.repeat(np.arange(len(places)), [len(own) for own in places])
        whose = np.array([p for own in places for p, _ in own], dtype=np.int64)
        which = np.array([j for own in places for _, j in own], dtype=np.int64)
        template, count = np.zeros_like(which), np.zeros_like(which)
        for p, mine in enumerate(groups):
            template[whose == p], count[whose == p] = mine.template[which[whose == p]], mine.count[which[whose == p]]
        row = np.asarray(library.offsets, dtype=np.int64)[whose] + template
        first = np.searchsorted(column, np.arange(len(places)))
        problem = replace(
            base,
            usage=np.add.reduceat(base.usage[row].astype(np.int64) * count[:, None], first).astype(np.int16),
            throughput=np.array(throughput),
            phase=whose[first].astype(np.int32),
            demand=demand,
            running=None if base.running is None else np.minimum.reduceat(base.running[row] // count[:, None], first),
            joint=joint,
            side_constraints=tuple(
                item
                for item in base.side_constraints
                # The loss of one instance takes a whole group here: too much for a bound.
                if not _has_replicas(groups, item)
                and (kind == "least" or not item.one_lost)
                # Of requests that are none no share has to survive.
                and (item.measure != "tokens_s" or item.limit(base) > 0)
            ),
        )
        return GroupColumns(tuple(places), problem)


def _has_replicas(groups: Sequence[Groups], item: SideConstraint) -> bool:
    """Whether a constraint asks for replicas that every group of its phase has by itself; as a column it is one or more."""
    if not item.is_replicas or item.phases is None:
        return False
    count = groups[item.phases[0]].count
    return len(count) > 0 and bool((count >= item.bound).all())


def least_price(
    base: AllocationProblem, library: TemplateLibrary, p: int, groups: Groups, most_instances: Ints
) -> Floats:
    """float64 (J, R): what each group of model phase ``p`` adds to the cost in a region at least, USD/h; infinite where
    its nodes are not there.

    Args:
        base: The problem over single templates.
        library: These templates.
        p: The model phase.
        groups: Its groups.
        most_instances: int64 (T, R), instances of each template that a region has room for.
    """
    listed = np.where(base.availability > 0, base.price, np.inf)
    rent = listed.copy()
    for item in base.supply:
        rent = np.where(item.nodes > 0, np.minimum(rent, item.price), rent)
    usage = library.phases[p].usage.astype(np.float64)
    least = np.full((len(groups.template), len(base.region_names)), np.inf)
    rows = library.offsets[p] + groups.template
    for r in range(len(base.region_names)):
        cheapest, new = (_priced(usage, prices[r])[groups.template] for prices in (rent, listed))
        added = groups.count if base.running is None else np.maximum(groups.count - base.running[rows, r], 0)
        starts = base.penalty * added
        least[:, r] = cheapest * groups.count + np.where(starts > 0, new, 0.0) * starts
        # A group stands in one region.
        least[groups.count > most_instances[rows, r], r] = np.inf
    return least


def _priced(usage: Floats, price: Floats) -> Floats:
    """float64 (T,): price of each template's nodes; infinite where one of them is not sold."""
    sold = np.isfinite(price)
    total = usage @ np.where(sold, price, 0.0)
    return np.where((usage[:, ~sold] > 0).any(axis=1), np.inf, total)
