r"""Cutting planes on the supply: rounded sums of capacity rows, which only whole instances satisfy.

For whole weights w of the configurations of a region and a divisor q, let s(U) = sum_c w_c U_c for a template's nodes U,
S = s(A) for what the region has, and rho = S mod q. Every whole allocation satisfies::

    sum_tau f(s(U_tau)) nu_tau  <=  f(S),    f(s) = (q - rho) floor(s / q) + max(0, s mod q - rho)

since f(s) / (q - rho) = floor(s / q) + max(0, frac(s / q) - frac(S / q)) / (1 - frac(S / q)) is superadditive and does not
fall, and f(S) = (q - rho) floor(S / q): the inequality of mixed-integer rounding (Nemhauser and Wolsey 1988, II.1.6), which
is at least as strong as that of Chvatal and Gomory with the same w / q. With q = 2 and weights of 1 these are the zero-half
cuts: of three kinds with one node each, only one instance that needs two of them.

A cut adds up over instances like a limit on nodes. So its price enters their weights, covering knapsacks stay what they
are, and all bounds at prices of the rows hold with it. Fewer nodes never add more to a cut, so whatever replaces an
instance by one on fewer nodes keeps it. Since every whole allocation satisfies it, an allocation within the problem is also
one within its cuts, and the exact check need not know them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.side_constraints import Measured, SideConstraint
from coralopt.types import Bools, Floats, Ints

#: Divisors by how many configurations are added up in what is tried first.
DIVISORS = {1: (2, 3, 4, 5, 6, 7, 8), 2: (2, 3, 4, 5), 3: (2, 3)}
#: So many of these are changed, weight by weight, so often.
STARTS, CLIMBS = 60, 12
#: By how much a cut must be violated, in whole instances.
VIOLATED = 0.01
#: Cuts of a region at a time, and of the same configurations.
OF_REGION, ALIKE = 8, 2


@dataclass(frozen=True)
class SupplyCut(SideConstraint):
    """One of them: ``configurations`` of the one of ``regions``, ``gpus`` their weights.

    Attributes:
        divisor: q.
        remainder: rho.
    """

    divisor: int = 2
    remainder: int = 0

    @property
    def region(self) -> int:
        """The one region."""
        assert self.regions is not None
        return self.regions[0]

    @staticmethod
    def of(
        problem: AllocationProblem, region: int, configurations: tuple[int, ...], weights: tuple[int, ...], divisor: int
    ) -> SupplyCut:
        """The cut of these weights over what the region has; they add up to the divisor at least."""
        there = int(problem.availability[region, list(configurations)] @ np.array(weights, dtype=np.int64))
        remainder = there % divisor
        name = f"cut {region} {configurations} {weights} / {divisor}"
        bound = float((divisor - remainder) * (there // divisor))
        scope = (region,), configurations, weights
        return SupplyCut(name, "most", "gpus", bound, None, *scope, divisor=divisor, remainder=remainder)

    def coefficients(self, problem: Measured, template: Ints, region: Ints, kept: Bools | None = None) -> Floats:
        """float64 (n,): what one instance of each (template, region) pair adds."""
        nodes = problem.usage[template][:, list(self.configurations or ())].astype(np.int64)
        sums = nodes @ np.array(self.gpus, dtype=np.int64)
        return np.where(region == self.region, _rounded(sums, self.divisor, self.remainder), 0).astype(np.float64)


class CutRows(NamedTuple):
    """Several cuts, for coverings that count as a whole: no less than their instances one by one.

    Attributes:
        weights: float64 (R * C, K), what a node adds to the sum of each.
        region: int64 (K,), where each is.
        divisor: int64 (K,), q.
        remainder: int64 (K,), rho.
    """

    weights: Floats
    region: Ints
    divisor: Ints
    remainder: Ints

    @staticmethod
    def of(cuts: Sequence[SupplyCut], shape: tuple[int, int]) -> CutRows:
        """Those of cuts on a supply of this shape, (R, C)."""
        weights = np.zeros((len(cuts), *shape))
        for k, cut in enumerate(cuts):
            weights[k, cut.regions, list(cut.configurations or ())] = cut.gpus
        pairs = np.array([(cut.divisor, cut.remainder) for cut in cuts], dtype=np.int64).reshape(-1, 2)
        region = np.array([cut.region for cut in cuts], dtype=np.int64)
        weights = np.ascontiguousarray(weights.reshape(len(cuts), shape[0] * shape[1]).T)
        return CutRows(weights, region, pairs[:, 0].copy(), pairs[:, 1].copy())

    def added(self, use: Floats) -> Floats:
        """float64 (K,): what a covering on nodes float64 (R * C,) adds to each."""
        return _rounded(np.rint(use @ self.weights).astype(np.int64), self.divisor, self.remainder).astype(np.float64)


def violated_cuts(problem: AllocationProblem, columns: Columns, values: Floats) -> list[SupplyCut]:
    """Cuts that a fractional allocation violates, those of every region by how much.

    Args:
        problem: The problem.
        columns: Its columns.
        values: float64 (N,), instances of every column.
    """
    cuts: list[SupplyCut] = []
    used = np.flatnonzero(values > 1e-7)
    for r in np.unique(columns.region[used]).tolist():
        mine = used[columns.region[used] == r]
        nodes, there = problem.usage[columns.template[mine]].astype(np.int64), problem.availability[r]
        for configurations, weights, divisor in _most_violated(nodes, there, values[mine]):
            cuts.append(SupplyCut.of(problem, r, configurations, weights, divisor))
    return cuts


def cuts_of_coverings(problem: AllocationProblem, use: Ints, shares: Floats) -> list[SupplyCut]:
    """Cuts that shares of coverings violate where every covering counts as a whole, those of every region by how much.

    Args:
        problem: The problem.
        use: int64 (n, R, C), nodes of the coverings.
        shares: float64 (n,), of each.
    """
    cuts: list[SupplyCut] = []
    for r in np.flatnonzero(use.any(axis=(0, 2))).tolist():
        mine = use[:, r].any(axis=1)
        violated = _most_violated(use[mine, r], problem.availability[r], shares[mine])
        cuts += [SupplyCut.of(problem, r, *cut) for cut in violated]
    return cuts


def _most_violated(nodes: Ints, there: Ints, values: Floats) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Configurations, weights and divisor of the cuts of a region that so many instances on these nodes violate most.

    Every divisor with some small weights is tried, then the best of them are changed, one weight by one at a time, as long
    as that violates them more.
    """
    kinds = np.flatnonzero((there > 0) & (nodes > 0).any(axis=0))
    nodes, there = nodes[:, kinds], there[kinds]
    weights, divisor = _candidates(len(kinds))
    over = _violation(nodes, there, values, weights, divisor)
    best = np.argsort(-over, kind="stable")[:STARTS]
    weights, divisor, over = weights[best], divisor[best], over[best]
    steps = np.concatenate([np.eye(len(kinds), dtype=np.int64), -np.eye(len(kinds), dtype=np.int64)])
    for _ in range(CLIMBS):
        near = (weights[:, None] + steps) % divisor[:, None, None]
        flat = near.reshape(-1, len(kinds))
        value = _violation(nodes, there, values, flat, np.repeat(divisor, len(steps))).reshape(len(weights), -1)
        step = value.argmax(axis=1)
        better = value.max(axis=1) > over + 1e-9
        if not better.any():
            break
        weights = np.where(better[:, None], near[np.arange(len(weights)), step], weights)
        over = np.where(better, value.max(axis=1), over)
    seen: dict[tuple[int, ...], int] = {}
    taken: set[tuple[tuple[int, ...], tuple[int, ...], int]] = set()
    for k in np.argsort(-over, kind="stable").tolist():
        if over[k] <= VIOLATED or len(taken) == OF_REGION:
            break
        chosen = np.flatnonzero(weights[k])
        cut = tuple(kinds[chosen].tolist()), tuple(weights[k, chosen].tolist()), int(divisor[k])
        if cut not in taken and seen.get(cut[0], 0) < ALIKE:
            seen[cut[0]] = seen.get(cut[0], 0) + 1
            taken.add(cut)
            yield cut


def _violation(nodes: Ints, there: Ints, values: Floats, weights: Ints, divisor: Ints) -> Floats:
    """float64 (n,): by how much instances violate each cut, in whole instances; minus infinity where there is no cut."""
    total = weights @ there
    remainder = total % divisor
    each = _rounded(weights @ nodes.T, divisor[:, None], remainder[:, None])
    over = (each @ values) / (divisor - remainder) - total // divisor
    return np.where((remainder > 0) & (total >= divisor), over, -np.inf)


@cache
def _candidates(kinds: int) -> tuple[Ints, Ints]:
    """Weights int64 (n, kinds) and divisors int64 (n,) of the cuts that are tried first."""
    rows: list[Ints] = []
    divisors: list[int] = []
    for many, some in DIVISORS.items():
        for divisor in some:
            for chosen in combinations(range(kinds), many):
                for weights in product(range(1, divisor), repeat=many):
                    row = np.zeros(kinds, dtype=np.int64)
                    row[list(chosen)] = weights
                    rows.append(row)
                    divisors.append(divisor)
    return np.array(rows, dtype=np.int64).reshape(len(rows), kinds), np.array(divisors, dtype=np.int64)


def _rounded(sums: Ints, divisor: Ints | int, remainder: Ints | int) -> Ints:
    """f of the module docstring."""
    whole, part = np.divmod(sums, divisor)
    return np.asarray((divisor - remainder) * whole + np.maximum(0, part - remainder))
