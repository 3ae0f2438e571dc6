"""A first allocation out of the linear relaxation: round down, fill up, tidy up.

It costs milliseconds, gives the fixing step something to compare with, and is the answer when no time is left for
more. Filling up goes by demand first, then by side constraints that ask for "least"; no step passes a side constraint
that allows at most.
"""

from __future__ import annotations

import numpy as np

from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.side_constraints import open_constraints
from coralopt.types import Floats, Ints

#: Columns of least reduced cost looked at for every model phase.
CANDIDATES = 2_000


def rounded(
    problem: AllocationProblem, columns: Columns, x: Floats, reduced: Floats, pool_duals: Floats
) -> Allocation | None:
    """A feasible allocation near the relaxation's solution, or ``None`` when filling up gets stuck.

    Args:
        problem: The problem.
        columns: Its columns.
        x: float64 (N,), solution of the relaxation.
        reduced: float64 (N,), reduced costs at its duals.
        pool_duals: float64 (Q,), its duals of the pools, USD/h for one more token/s.
    """
    duals = np.zeros(len(problem.demand))
    np.maximum.at(duals, problem.pools.phase, pool_duals)
    state = _State(problem, columns, np.floor(x + 1e-9).astype(np.int64))
    if (state.left < 0).any() or not state.meet_demand(reduced, duals) or not state.meet_constraints(reduced):
        return None
    state.tidy()
    answer = columns.allocation(state.counts)
    return answer if problem.check(answer).feasible else None


class _State:
    """Counts so far, nodes left, demand unmet, and what the side constraints add up to.

    Floating-point sums are good enough to steer by; the exact check at the end has the last word.
    """

    def __init__(self, problem: AllocationProblem, columns: Columns, counts: Ints) -> None:
        from scipy.sparse import csr_array

        self.problem, self.columns, self.counts = problem, columns, counts
        served = columns.served
        self.serves = csr_array((served.tokens_s, (served.column, served.phase)), shape=(len(columns), columns.phases))
        self.usage = problem.usage.astype(np.int64)
        self.left = problem.availability.copy()
        used = np.flatnonzero(counts)
        np.subtract.at(self.left, columns.region[used], self.usage[columns.template[used]] * counts[used, None])
        self.unmet = problem.demand - np.bincount(
            served.phase, weights=served.tokens_s * counts[served.column], minlength=len(problem.demand)
        )
        self.constraints = open_constraints(problem)
        places = columns.template, columns.region, columns.kept
        self.adds = [item.coefficients(problem, *places) for item in self.constraints]
        self.limits = np.array([item.limit(problem) for item in self.constraints])
        self.sums = np.array([float(adds @ counts) for adds in self.adds])

    def fitting(self, candidates: Ints) -> Ints:
        """Those of which one more passes neither the nodes nor a side constraint."""
        columns = self.columns
        fits = (self.usage[columns.template[candidates]] <= self.left[columns.region[candidates]]).all(axis=1)
        fits &= self.counts[candidates] < columns.upper[candidates]
        for item, adds, limit, total in zip(self.constraints, self.adds, self.limits, self.sums, strict=True):
            if item.sense == "most":
                fits &= total + adds[candidates] <= limit
        return candidates[fits]

    def total(self, i: int) -> float:
        """What a side constraint adds up to, less its largest instance where one may be lost."""
        return float(self.sums[i] - self.adds[i][self.counts > 0].max(initial=0.0) * self.constraints[i].one_lost)

    def move(self, k: int, count: int) -> None:
        self.counts[k] += count
        self.left[self.columns.region[k]] -= count * self.usage[self.columns.template[k]]
        phases, tokens_s = self.given(k)
        self.unmet[phases] -= count * tokens_s
        for i, adds in enumerate(self.adds):
            self.sums[i] += count * adds[k]

    def given(self, k: int) -> tuple[Ints, Floats]:
        """Model phases that a column serves, and tokens/s of each."""
        entries = slice(self.serves.indptr[k], self.serves.indptr[k + 1])
        return self.serves.indices[entries], self.serves.data[entries]

    def useful(self, candidates: Ints, phase: int, duals: Floats) -> Floats:
        """float64 (n,): tokens/s of a phase that one more would serve, and what it serves of others at its worth."""
        rates = self.serves[candidates]
        value = np.minimum(rates[:, [phase]].toarray()[:, 0], self.unmet[phase])
        if rates.nnz > len(candidates) and duals.max() > 0:
            rates.data = duals[rates.indices] * np.minimum(rates.data, np.maximum(self.unmet[rates.indices], 0.0))
            value = np.maximum(value, rates.sum(axis=1) / max(duals[phase], 1e-12 * duals.max()))
        return np.asarray(value)

    def meet_demand(self, reduced: Floats, duals: Floats) -> bool:
        """Add instances until every demand is met, or costs less unmet; whether that worked."""
        problem, columns = self.problem, self.columns
        near = columns.least(reduced, CANDIDATES)
        demand = np.where(problem.demand > 0, problem.demand, np.inf)
        unmet = problem.unmet_prices()
        open_phases = np.ones(len(demand), dtype=np.bool_)
        while True:
            p = int(np.argmax(np.where(open_phases, self.unmet / demand, -np.inf)))
            if self.unmet[p] <= 0 or not open_phases[p]:
                return True
            mine = self.fitting(near[p])
            if not len(mine) and np.isinf(unmet[p]):
                return False
            value = self.useful(mine, p, duals)
            # Dearer by the capacity it takes from others: reduced cost plus what the served tokens are worth.
            paid = columns.cost[mine] + np.maximum(reduced[mine], 0.0)
            dear = np.divide(paid, value, out=np.full(len(value), np.inf), where=value > 0)
            shares = np.cumsum([share for share, _ in problem.tiers_of(p)])
            tier = int(np.searchsorted(shares[:-1], self.unmet[p] / demand[p], side="left"))
            if dear.min(initial=np.inf) >= unmet[p] * problem.tiers_of(p)[tier][1]:
                # The rest costs less unmet.
                open_phases[p] = False
                continue
            self.move(int(mine[np.argmin(dear)]), 1)

    def meet_constraints(self, reduced: Floats) -> bool:
        """Add instances until every "least" constraint holds; whether that worked."""
        for i, item in enumerate(self.constraints):
            if item.sense != "least" or self.total(i) >= self.limits[i]:
                continue
            useful = np.flatnonzero(self.adds[i] > 0)
            dear = (self.columns.cost[useful] + np.maximum(reduced[useful], 0.0)) / self.adds[i][useful]
            near = useful[np.argsort(dear, kind="stable")[:CANDIDATES]]
            while (total := self.total(i)) < self.limits[i]:
                mine = self.fitting(near)
                if not len(mine):
                    # Where demand may go unmet, less of it must survive; the check decides.
                    return item.measure == "tokens_s" and self.problem.unmet_price is not None
                value = np.minimum(self.adds[i][mine], self.limits[i] - total)
                cost = self.columns.cost[mine] + np.maximum(reduced[mine], 0.0)
                self.move(int(mine[np.argmin(cost / value)]), 1)
        return True

    def tidy(self) -> None:
        """Take away what nothing needs, the dearest first."""
        for k in sorted(np.flatnonzero(self.counts).tolist(), key=lambda k: -self.columns.cost[k]):
            # As many at once as no demand needs, and ever fewer where a constraint does: there may be millions.
            superfluous = self.superfluous(k)
            step = superfluous
            while step > 0:
                self.move(k, -step)
                if any(
                    item.sense == "least" and self.adds[i][k] and self.total(i) < self.limits[i]
                    for i, item in enumerate(self.constraints)
                ):
                    self.move(k, step)
                    step //= 2
                else:
                    superfluous -= step
                    step = min(step, superfluous)

    def superfluous(self, k: int) -> int:
        """Instances of a column that no demand needs."""
        phases, tokens_s = self.given(k)
        serving = tokens_s > 0
        spare = -self.unmet[phases[serving]] / tokens_s[serving]
        return int(np.floor(min(float(self.counts[k]), float(spare.min(initial=np.inf)))))
