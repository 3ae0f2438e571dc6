"""The step ``neighbourhood``: large-neighbourhood search, re-optimising a few model phases at a time.

Model phases meet only in the capacity rows. So take the instances of a few phases away, hand what they and the unused
supply leave to a small integer programme over the best columns of these phases that fit there, and keep what it finds if it
is cheaper. Phases are drawn by their regret: what their instances weigh at the capacity prices of the bound, above the
least that any covering of theirs weighs. The regrets add up to what the allocation costs above the bound, but for supply
that has a price and is not used, so little is to be gained where they are 0. No set of phases is drawn twice from one
allocation.
Where templates serve several phases, phases meet in these, too: there a few instances are taken away, and the columns are
those that serve no other phases than they did. Rounds grow by one phase, or instance, when nothing improves any more. This
gives upper bounds only; the proof is not its business.

Several rounds run side by side. Round k begins from the allocation after round k - ``AHEAD``; what it changes there is then
changed in the best allocation, if that still fits and gets cheaper.

The step ``repair`` finds a first allocation in the same way, where supply is so scarce that rounding finds none. It begins
with the whole instances of a fractional allocation. Demand may be missed, at a price that rises round by round for whatever
still is (a dynamic penalty), and every round re-optimises a phase of which something is missing beside others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from coralopt.allocation.model.assembler import assemble, shortfall_units
from coralopt.allocation.search.context import Root, SearchContext
from coralopt.solving import SolveOptions, solve_matrix
from coralopt.types import Floats, Ints

#: Columns of least bound of every model phase that take part, of so many times as many those that fit.
NEAR, DEEP = 60, 50
#: Regret that every phase has at least when phases are drawn, as a share of the mean.
LEAST_REGRET = 1.0
#: Draws after which all sets of a size are taken to have been drawn.
DRAWS = 50
#: Nodes that an integer programme of one round may take: a measure of work that does not depend on the clock.
NODES, NODES_JOINT, NODES_REPAIR = 200, 20, 50
#: Columns of least bound of all phases together, where templates serve several.
NEAR_JOINT = 1_000
#: Model phases, or instances of several, re-optimised at a time, at first and at most.
FIRST_SIZE, MOST_SIZE = 3, 5
#: Neighbourhoods that are drawn before results of others are known: the same on any machine, so results are, too.
AHEAD = 4
#: Rounds of a repair, model phases re-optimised in one, and its gap as a share of the bound.
ROUNDS, REPAIR_SIZE, ROUGH = 25, 4, 1e-3
#: Price of missing a whole demand, in mean costs of a phase: at first, its growth a round, and at most.
FIRST_PRICE, RISE, MOST_PRICE = 10.0, 1.5, 1e4
#: Share of a demand that is nothing.
NOTHING = 1e-9


def search_neighbourhoods(search: SearchContext, root: Root, share: float = 1.0) -> None:
    """Improve the best allocation, if there is one; see :class:`NeighbourhoodSearch`."""
    NeighbourhoodSearch(search, root).go(share)


class NeighbourhoodSearch:
    """Draws neighbourhoods of the best allocation, several ahead of the results, and keeps what is cheaper.

    What is drawn depends on results, and these on their order, but neither on how long any of them takes: deterministic
    unless time is up.

    Args:
        search: What is known; better allocations are kept.
        root: Bounds over all columns.
    """

    def __init__(self, search: SearchContext, root: Root) -> None:
        joint = len(search.small.joint) > 0 and not search.small.joint.divided
        self.search, self.nodes, self.deadline = search, NODES_JOINT if joint else NODES, math.inf
        self.around: _Neighbourhoods = (_Instances if joint else _Phases)(search, root)
        self.rng = np.random.default_rng(search.solve_options.seed)
        self.counts = np.zeros(0, dtype=np.int64)
        self.size, self.idle, self.busy = FIRST_SIZE, 0, 0
        #: Sets that were drawn from these counts.
        self.tried: set[bytes] = set()

    def go(self, share: float = 1.0) -> None:
        """Go on from where the last go ended, or from a better allocation.

        Ends where the allocation is good enough, or after its share of the time left.

        Args:
            share: Of what a step may take of the time left.
        """
        self.search.gather()
        if self.search.allocation is None:
            return
        self.deadline = time.perf_counter() + share * self.search.share_of_left()
        counts = self.search.columns.counts(self.search.allocation)
        if not np.array_equal(counts, self.counts):
            self.counts, self.size, self.idle = counts, FIRST_SIZE, 0
            self.tried.clear()
        with self.search.side_by_side(self.search.lanes) as lanes:
            for base, other in lanes.results(self.drawn(), AHEAD):
                self.keep(base, other)
        self.search.lap("neighbourhood")

    def drawn(self) -> Iterator[Callable[[], tuple[Ints, _Round | None]] | None]:
        """Neighbourhoods to re-optimise; ``None`` while all that is left is part of others that are."""
        while not self._over():
            if self.busy and self.size >= self.around.most(self.counts):
                yield None
                continue
            picked = self._picked()
            if picked is None:
                self.size, self.idle = self.size + 1, 0
                continue
            self.busy += 1
            chosen, fixed = self.around.columns_around(self.counts, picked)
            yield partial(self._optimised, self.counts, chosen, fixed)

    def _picked(self) -> Ints | None:
        """A set that was not drawn from these counts yet, ``None`` where there seems to be none."""
        for _ in range(DRAWS):
            picked = np.sort(self.around.picked(self.counts, self.size, self.rng))
            if picked.tobytes() not in self.tried:
                self.tried.add(picked.tobytes())
                return picked
        return None

    def keep(self, base: Ints, other: _Round | None) -> None:
        """The next result: what it changes in its own base is changed in the best allocation, if that gets cheaper."""
        self.busy -= 1
        self.idle += 1
        change = np.zeros_like(base) if other is None else other.counts - base
        if change.any() and (self.counts + change >= 0).all():
            before, counts = self.search.cost, self.counts + change
            # An answer that lives on the back end's tolerances is no answer.
            self.search.offer(self.search.columns.allocation(counts))
            if self.search.cost < before * (1 - 1e-9):
                self.counts, self.idle = counts, 0
                self.tried.clear()
        most = self.around.most(self.counts)
        # A neighbourhood of everything has nothing more to say the second time.
        if self.idle > 2 * most or self.size >= most:
            self.size, self.idle = self.size + 1, 0

    def _over(self) -> bool:
        most = max(FIRST_SIZE, min(MOST_SIZE, self.around.most(self.counts)))
        late = time.perf_counter() >= self.deadline
        return self.size > most or late or self.search.good_enough(self.search.cost, self.search.bound)

    def _optimised(self, base: Ints, chosen: Ints, fixed: Ints) -> tuple[Ints, _Round | None]:
        return base, _optimised(self.search, chosen, fixed, (self.nodes, self.deadline))


def repair(search: SearchContext, values: Floats, root: Root) -> None:
    """Look for an allocation near a fractional one, if none is known; deterministic unless time is up.

    Args:
        search: What is known; templates serve one model phase each.
        values: float64 (N,), instances of every column in fractions.
        root: Bounds over all columns.
    """
    if search.allocation is not None:
        return
    deadline, around = time.perf_counter() + search.share_of_left(), _Phases(search, root)
    rng, phase = np.random.default_rng(search.solve_options.seed), search.small.pools.phase
    mean, rows = search.bound / len(around.phases), len(shortfall_units(search.small))
    for _ in range(search.limits.repairs):
        best = _Round(np.floor(values + 1e-9).astype(np.int64), np.inf, np.ones(rows))
        price = np.full(rows, FIRST_PRICE)
        for _ in range(ROUNDS):
            if time.perf_counter() >= deadline or search.allocation is not None:
                break
            lacking = np.intersect1d(phase[best.missing[: len(phase)] > NOTHING], around.phases)
            chosen, fixed = around.columns_around(best.counts, around.picked_with(lacking, REPAIR_SIZE, rng))
            other = _optimised(search, chosen, fixed, (NODES_REPAIR, deadline), mean * price)
            if other is not None and other.penalised(mean * price) <= best.penalised(mean * price):
                best = other
            if (best.missing <= NOTHING).all():
                search.offer(search.columns.allocation(best.counts))
            price = np.where(best.missing > NOTHING, np.minimum(RISE * price, MOST_PRICE), price)
    search.lap("repair")


class _Neighbourhoods(Protocol):
    """What may be re-optimised together."""

    def most(self, counts: Ints) -> int:
        """How many phases, or instances, there are."""

    def picked(self, counts: Ints, size: int, rng: np.random.Generator) -> Ints:
        """int64 (k,), so many of them at most."""

    def columns_around(self, counts: Ints, picked: Ints) -> tuple[Ints, Ints]:
        """Columns to re-optimise with them, int64 (k,), and the counts that stay, int64 (N,)."""


class _Phases:
    """All instances of some model phases."""

    def __init__(self, search: SearchContext, root: Root) -> None:
        self.columns, self.problem, self.lagrangian = search.columns, search.small, root.lagrangian
        self.phases = np.flatnonzero(search.small.demand > 0)
        self.near = search.columns.least(root.column_bounds, DEEP * NEAR)

    def most(self, counts: Ints) -> int:
        return len(self.phases)

    def picked(self, counts: Ints, size: int, rng: np.random.Generator) -> Ints:
        regret = self.regret(counts)[self.phases]
        odds = regret + LEAST_REGRET * regret.mean()
        odds = odds / odds.sum() if odds.sum() > 0 else None
        return rng.choice(self.phases, min(size, len(self.phases)), replace=False, p=odds)

    def regret(self, counts: Ints) -> Floats:
        """float64 (P,), USD/h: what the instances of a phase weigh above the least that any covering of it does."""
        if not len(self.lagrangian.whole):
            return np.zeros(len(self.problem.demand))
        weight = np.bincount(self.columns.phase, counts * self.lagrangian.weight, len(self.problem.demand))
        return np.maximum(weight - self.lagrangian.whole, 0.0)

    def picked_with(self, lacking: Ints, size: int, rng: np.random.Generator) -> Ints:
        """One of the phases that lack something, if there are any, and others."""
        picked = rng.permutation(self.phases)
        if len(lacking):
            first = rng.choice(lacking)
            picked = np.append(first, picked[picked != first])
        return picked[:size]

    def columns_around(self, counts: Ints, picked: Ints) -> tuple[Ints, Ints]:
        picked = np.sort(picked)
        served, inside = self.columns.served, np.zeros(len(counts), dtype=np.bool_)
        inside[served.column[np.isin(served.phase, picked)]] = True
        fixed = np.where(inside, 0, counts)
        room = self.problem.availability - self.columns.nodes(self.problem, fixed)
        near = (self._fitting(self.near[p], room)[:NEAR] for p in picked)
        return np.unique(np.concatenate([np.flatnonzero(inside & (counts > 0)), *near])), fixed

    def _fitting(self, columns: Ints, room: Ints) -> Ints:
        """Those of which one instance fits, int64 (R, C) nodes."""
        usage = self.problem.usage[self.columns.template[columns]]
        return columns[(usage <= room[self.columns.region[columns]]).all(axis=1)]


class _Instances:
    """Some instances, and the phases that they serve."""

    def __init__(self, search: SearchContext, root: Root) -> None:
        self.columns, self.bounds = search.columns, root.column_bounds

    def most(self, counts: Ints) -> int:
        return int(counts.sum())

    def picked(self, counts: Ints, size: int, rng: np.random.Generator) -> Ints:
        used = np.repeat(np.arange(len(counts)), counts)
        return rng.choice(used, min(size, len(used)), replace=False)

    def columns_around(self, counts: Ints, picked: Ints) -> tuple[Ints, Ints]:
        fixed, served = counts.copy(), self.columns.served
        np.subtract.at(fixed, picked, 1)
        phases = np.unique(served.phase[np.isin(served.column, picked)])
        others = np.zeros(len(counts), dtype=np.bool_)
        others[served.column[~np.isin(served.phase, phases)]] = True
        inside = np.flatnonzero(~others)
        near = inside[np.argsort(self.bounds[inside], kind="stable")[:NEAR_JOINT]]
        return np.union1d(near, picked), fixed


@dataclass(frozen=True, eq=False)
class _Round:
    """What a round comes to.

    Attributes:
        counts: int64 (N,), instances by column.
        cost: USD/h, but for what is missing.
        missing: float64 (Q + L,), share that is missing of every pool and every side constraint that asks for "least".
    """

    counts: Ints
    cost: float
    missing: Floats

    def penalised(self, price: Floats) -> float:
        """USD/h, with what is missing at its price."""
        return float(self.cost + price @ self.missing)


def _optimised(
    search: SearchContext, chosen: Ints, fixed: Ints, limits: tuple[int, float], price: Floats | None = None
) -> _Round | None:
    """All columns after re-optimising the chosen ones beside the fixed ones.

    Args:
        search: What is known.
        chosen: int64 (k,), columns.
        fixed: int64 (N,), instances of the others.
        limits: Nodes, and the value of ``time.perf_counter()`` to stop at.
        price: float64 (Q + L,), USD/h for missing the whole of a row; nothing may be missed when ``None``.
    """
    nodes, deadline = limits
    # What is not re-optimised stays as a constant, so that every row sees it.
    both = np.union1d(chosen, np.flatnonzero(fixed))
    matrix = assemble(search.small, search.columns, both, slack=price)
    held = np.flatnonzero(fixed[both] > 0)
    lower, upper = matrix.lower.copy(), matrix.upper.copy()
    lower[held] = upper[held] = fixed[both][held]
    seconds = deadline - time.perf_counter()
    options = SolveOptions(
        rel_gap=min(1e-4, search.solve_options.rel_gap / 2),
        node_limit=nodes,
        time_limit=None if np.isinf(seconds) else max(0.0, seconds),
        threads=search.solve_options.threads,
        seed=search.solve_options.seed,
        focus="short",
    )
    if price is not None:
        # A share of a penalised cost may be more than all of the cost.
        options = replace(options, rel_gap=0.0, abs_gap=ROUGH * search.bound)
    result = solve_matrix(replace(matrix, lower=lower, upper=upper), search.backend, options)
    if result.x is None or result.objective is None:
        return None
    counts = fixed.copy()
    counts[both] = np.rint(result.x[: len(both)]).astype(np.int64)
    if price is None:
        return _Round(counts, result.objective, np.zeros(0))
    missing = np.maximum(0.0, result.x[-len(price) :]) / shortfall_units(search.small)
    return _Round(counts, result.objective - float(price @ missing), missing)
