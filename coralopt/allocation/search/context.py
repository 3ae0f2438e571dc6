"""What one search for an allocation works with: the question, the clock, and what is known so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from coralopt.allocation.bounds.cuts import SupplyCut
from coralopt.allocation.bounds.decomposition import MasterState
from coralopt.allocation.bounds.lagrangian import LagrangianBound
from coralopt.allocation.bounds.relaxation import Relaxation
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.reductions import Near, Reduced, reduce_problem
from coralopt.allocation.search.options import AllocationSearchOptions, SearchLimits
from coralopt.errors import SolverError
from coralopt.machine import cores
from coralopt.solving import (
    Backend,
    Capability,
    Limit,
    Proof,
    Solution,
    SolveOptions,
    Termination,
    gap_reached,
    get_backend,
)
from coralopt.threads import Lanes
from coralopt.types import Floats, Ints

#: Share, and USD/h, by which a cost may be below a bound: what back ends round.
CONTRADICTION = 1e-6
#: Gap from which on an allocation is what is missing, more than a bound.
FAR = 0.01
#: Gaps to prove, between an allocation and the bound, up to which the proof is what is missing.
CLOSE = 2.0
#: How many times as many templates a pass that looks further away keeps.
WIDER = 4


class TooFarError(Exception):
    """What is near some capacity prices costs more than the target below which nothing else matters."""


@dataclass(frozen=True, eq=False)
class Root:
    """The bounds over all columns.

    Attributes:
        relaxation: The linear relaxation.
        reduced_costs: float64 (N,), at its duals.
        lagrangian: The highest Lagrangian bound.
        column_bounds: float64 (N,), USD/h; every allocation with an instance of this column costs at least this, by the
            relaxation or any Lagrangian bound.
    """

    relaxation: Relaxation
    reduced_costs: Floats
    lagrangian: LagrangianBound
    column_bounds: Floats


#: Searches a problem by the steps of the one at hand: the best allocation, and whether Ctrl-C cut that short.
RestSearch = Callable[[AllocationProblem, Backend, SolveOptions, AllocationSearchOptions], tuple[Allocation, bool]]


@dataclass(eq=False)
class SearchContext:
    """One pass of :func:`coralopt.allocation.solve_allocation`.

    Attributes:
        problem: The whole problem.
        backend: The back end.
        options: How to search.
        solve_options: Gaps, and what goes to the back end.
        deadline: Value of ``time.perf_counter()`` to stop at.
        search_rest: Searches what whole instances leave, as a problem of its own; ``None`` leaves that out.
        seconds: Seconds by step, passes before this one included.
        looked_at: int64 (k,), templates that once looked good; they stay in the next pass, so that its prices can only
            be better.
        reduced: The problem that is searched; what follows is in its terms.
        columns: Its columns.
        allocation: The best allocation so far.
        cost: Its cost, USD/h, exactly.
        bound: USD/h; no allocation of the reduced problem costs less, unless it costs the target or more.
        by_prices: The highest bound that prices without cuts give, USD/h.
        survivors: Columns that may still matter.
        capacity_prices: float64 (R, C), USD/h per node, of the best Lagrangian bound without cuts.
        cuts: Cutting planes on the supply; every allocation of the reduced problem satisfies them.
        within_cuts: The reduced problem with the cuts as further side constraints: for bounds only.
        best: Prices of the best Lagrangian bound, those of the cuts too.
        own_prices: Phase -> float64 (R * C,), USD/h per node, good prices of a phase's own.
        relaxation_usd_h: Optimum of the linear relaxation, USD/h.
        lagrangian_usd_h: Highest Lagrangian bound, USD/h.
        solutions: What the back end said each time.
        missed: Where the back end's last allocation breaks the problem in exact figures, by less than its tolerances.
        interrupted: Whether Ctrl-C cut the search short.
        beside: Ends a solve that runs beside the steps, and offers what it says; ``None`` where none does.
        floor: USD/h; no allocation of the whole problem costs less, as the passes before proved.
        bound_proof, floor_proof: What these rest on.
        near: How far above the bound at known capacity prices it looks.
    """

    problem: AllocationProblem
    backend: Backend
    options: AllocationSearchOptions
    solve_options: SolveOptions
    deadline: float
    search_rest: RestSearch | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    looked_at: Ints | None = None
    reduced: Reduced = field(init=False)
    columns: Columns = field(init=False)
    allocation: Allocation | None = None
    cost: float = math.inf
    bound: float = 0.0
    by_prices: float = math.inf
    survivors: int = 0
    capacity_prices: Floats | None = None
    cuts: tuple[SupplyCut, ...] = ()
    within_cuts: AllocationProblem = field(init=False)
    best: MasterState = field(init=False)
    own_prices: dict[int, Floats] = field(default_factory=dict)
    relaxation_usd_h: float = math.nan
    lagrangian_usd_h: float = math.nan
    solutions: list[Solution[Allocation]] = field(default_factory=list)
    missed: tuple[str, ...] = ()
    interrupted: bool = False
    beside: Callable[[], None] | None = None
    floor: float = 0.0
    bound_proof: Proof = Proof.OWN_BOUND
    floor_proof: Proof = Proof.OWN_BOUND
    near: Near = field(init=False)

    def __post_init__(self) -> None:
        self._clock = time.perf_counter()
        everything = np.arange(len(self.problem.throughput), dtype=np.int64)
        self.reduced = Reduced(self.problem, everything, ())
        self.within_cuts = self.small
        self.near = Near(self.limits.near_margin, self.limits.near_templates)

    @property
    def limits(self) -> SearchLimits:
        """How much work each step may take."""
        return self.options.limits

    @property
    def small(self) -> AllocationProblem:
        """The reduced problem."""
        return self.reduced.problem

    @property
    def target(self) -> float:
        """What the reductions left says nothing about costs from here on, USD/h."""
        return self.reduced.target

    @property
    def proven(self) -> float:
        """USD/h; no allocation of the whole problem costs less."""
        return max(min(self.bound, self.target), self.reduced.bound, self.floor)

    @property
    def settled_prices(self) -> bool:
        """Whether the prices that the whole problem was reduced at are about as good as the best ones found since."""
        return self.reduced.bound >= min(self.bound, self.by_prices) * (1 - 0.2 * self.solve_options.rel_gap)

    @property
    def too_near(self) -> bool:
        """Whether the target, and not the prices that it was set at, is what ends the proof."""
        return self.reduced.bound > 0 and (self.settled_prices or self.by_prices < self.target)

    @property
    def proof(self) -> Proof:
        """What ``proven`` rests on."""
        if self.floor >= self.proven:
            return self.floor_proof
        return Proof.OWN_BOUND if self.reduced.bound >= self.proven else self.bound_proof

    def further(self) -> Near:
        """Where a wider pass looks: at all that may be in an allocation worth finding, if one is known."""
        most = WIDER * self.near.most
        if self.allocation is None:
            return Near(2 * self.near.margin, most)
        # A hair above: what is proven up to the target proves the gap only there.
        return replace(self.near, most=most, reach=self.worth_proving() * (1 + 1e-9))

    @cached_property
    def lp_solver(self) -> Backend:
        """A back end with LP duals and no size limit."""
        able = Capability.LP_DUALS in self.backend.capabilities and self.backend.probe().size_limit is None
        return self.backend if able else get_backend("highs")

    @property
    def lanes(self) -> int:
        """How many solves of the back end may run side by side."""
        return self.processors if Capability.CONCURRENT in self.backend.capabilities else 1

    @property
    def processors(self) -> int:
        """How many pieces of work may run side by side; one where a number of threads is asked for, which solvers have."""
        return cores() if self.solve_options.threads is None else 1

    def row_prices(self) -> Floats:
        """float64 (R * C + S,): those of nodes, then those of side constraints and cuts."""
        return self.best.row_prices()

    def again(self, near: Near) -> SearchContext:
        """A pass that knows only the best allocation and the bound, within what is left of the time."""
        start = self.options.start if self.allocation is None else self.reduced.restore(self.allocation)
        options = replace(self.options, start=start)
        further = SearchContext(
            self.problem,
            self.backend,
            options,
            self.solve_options,
            self.deadline,
            self.search_rest,
            self.seconds,
            self.looked_at,
            solutions=self.solutions,
            floor=self.proven,
            floor_proof=self.proof,
        )
        further.near = near
        return further

    def reduce(self, known: Floats | None) -> None:
        """Reduce the problem, and look at its columns only; ``known`` are capacity prices that were good before."""
        start = self.options.start
        keep = None if start is None else start.template
        self.reduced = reduce_problem(self.problem, known, self.looked_at, keep, self.near)
        self.looked_at = self.reduced.kept
        self.within_cuts = self.small

    def cut(self, cuts: Sequence[SupplyCut]) -> None:
        """Have these cuts in place of others."""
        self.cuts = tuple(cuts)
        self.within_cuts = replace(self.small, side_constraints=(*self.small.side_constraints, *cuts))

    def lap(self, step: str) -> None:
        """Count the time since the last lap for this step."""
        time_now = time.perf_counter()
        self.seconds[step] = self.seconds.get(step, 0.0) + time_now - self._clock
        self._clock = time_now

    def left(self) -> float:
        """Seconds left."""
        return max(0.0, self.deadline - time.perf_counter())

    def share_of_left(self) -> float:
        """Seconds that a step may take when it does not prove anything."""
        return self.limits.share * self.left()

    def gather(self) -> None:
        """End the solve that runs beside the steps, if one does, and take in what it says."""
        end, self.beside = self.beside, None
        if end is not None:
            end()

    @contextmanager
    def side_by_side(self, count: int) -> Iterator[Lanes]:
        """Threads for the pieces of a step, without a solve beside; Ctrl-C meanwhile is kept in ``interrupted``."""
        self.gather()
        with Lanes(count) as lanes:
            yield lanes
        if lanes.interrupted:
            self.interrupt()

    def heed(self, termination: Termination) -> None:
        """Ctrl-C reaches the back end first; the rest of the search must not go on as if nothing happened."""
        if termination.limit is Limit.INTERRUPTED:
            self.interrupt()

    def interrupt(self) -> None:
        """No time is left; what is known is the answer."""
        self.interrupted, self.deadline = True, 0.0

    def good_enough(self, cost: float, bound: float) -> bool:
        """Whether these two are within the gap asked for."""
        return gap_reached(cost, bound, self.solve_options.rel_gap, self.solve_options.abs_gap)

    def done(self) -> bool:
        """Whether the best allocation is proven to be good enough, or nothing to be as cheap as asked."""
        known = self.allocation is not None
        return known and (self.proven > self.options.enough or self.good_enough(self.cost, self.proven))

    def settled(self) -> bool:
        """Whether going on with what the reductions left cannot narrow the gap to the one asked for."""
        return self.bound >= self.target

    def open(self) -> bool:
        """Whether there is more to do here."""
        return not self.done() and not self.settled()

    def worth_proving(self) -> float:
        """USD/h; no allocation below this would be too good to miss. A hair above cost (1 - gap), against rounding."""
        return min(self.cost, self.cost * (1 - self.solve_options.rel_gap) * (1 + 1e-15))

    def columns_left(self, root: Root) -> int:
        """Columns that an allocation worth finding may have; where they are few, ``fixing`` ends it soonest."""
        return int((root.column_bounds <= self.worth_proving()).sum())

    def raise_bound(self, bound: float, proof: Proof = Proof.OWN_BOUND) -> None:
        """Keep the higher bound, and what it rests on; one on the whole problem is at most the cost of the best allocation.

        Raises:
            SolverError: That costs less than what is said to be the least.
        """
        self._compare(self.cost, bound)
        if min(bound, self.cost) > self.bound:
            self.bound, self.bound_proof = min(bound, self.cost), proof

    def offer(self, allocation: Allocation) -> bool:
        """Whether an allocation passes the exact check; the best one is kept.

        Raises:
            SolverError: It costs less than what was proven to be the least.
        """
        check = self.small.check(allocation)
        if check.feasible and check.objective < self.cost:
            self._compare(check.objective, self.bound)
            self.allocation, self.cost = allocation, check.objective
        return check.feasible

    def _compare(self, cost: float, bound: float) -> None:
        """Costs are exact, so where one is below a bound, the bound is wrong; nothing that was proven may be believed."""
        if cost < min(bound, self.target) * (1 - CONTRADICTION) - CONTRADICTION:
            raise SolverError(
                f"an allocation of {cost:.6f} USD/h meets every demand, but {bound:.6f} USD/h was proven to be the least: "
                f"a bound of coralopt or of back end {self.backend.name!r} is wrong; solve with another back end or "
                "reductions=False, and report the problem"
            )

    def close(self, gaps: float = CLOSE) -> bool:
        """Whether so few gaps are left between the best allocation and the bound that a proof is what is missing."""
        return self.bound > self.cost * (1 - gaps * self.solve_options.rel_gap)

    def far(self) -> bool:
        """Whether the best allocation, if there is one, is far from the bound."""
        return self.bound < self.cost * (1 - FAR)

    def with_gap(self, share: float, time_limit: float) -> SolveOptions:
        """The options with a share of the gap and another time limit; an infinite one is none."""
        limit = None if math.isinf(time_limit) else time_limit
        return replace(self.solve_options, rel_gap=share * self.solve_options.rel_gap, time_limit=limit)

    def for_solutions(self, time_limit: float) -> SolveOptions:
        """The options where only allocations are looked for, no bounds."""
        return replace(self.with_gap(1.0, time_limit), focus="solutions")
