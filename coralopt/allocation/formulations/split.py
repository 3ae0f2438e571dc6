"""The allocation ILP without auxiliary continuous columns.

An instance count is split into kept and new instances::

    min  sum p_r(tau) kept[tau,r] + sum (1 + K) p_r(tau) new[tau,r]
    s.t. capacity and demand rows of the paper with nu = kept + new
         0 <= kept[tau,r] <= nu'[tau,r], integer          only where nu' > 0
         0 <= new[tau,r], integer

Equal to the paper's: for K >= 0 an instance is cheaper kept than new, so an optimum fills ``kept`` first and the cost is
p nu + K p max(0, nu - nu'), the paper's objective with I at its lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from coralopt.allocation.formulations.rows import add_rows, usable
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.solving import MilpMatrix


class SplitFormulation:
    """Kept and new instances; the module docstring has its mathematics."""

    name: ClassVar[str] = "split"

    def build(self, problem: AllocationProblem) -> Any:
        """Pyomo model with ``new``, ``kept``, ``capacity``, ``demand``."""
        import pyomo.environ as pyo
        from pyomo.core.expr.numeric_expr import LinearExpression

        template, region, price = usable(problem)
        pairs = list(zip(template.tolist(), region.tolist(), strict=True))
        prices = dict(zip(pairs, price.tolist(), strict=True))
        running = [] if problem.running is None else [(t, r) for t, r in pairs if problem.running[t, r] > 0]
        model = pyo.ConcreteModel(name="allocation_split")
        model.new = pyo.Var(pairs, domain=pyo.NonNegativeIntegers)
        model.kept = pyo.Var(running, domain=pyo.NonNegativeIntegers)
        for t, r in running:
            assert problem.running is not None
            model.kept[t, r].setub(int(problem.running[t, r]))
        add_rows(
            model,
            problem,
            [(t, r, model.new[t, r]) for t, r in pairs] + [(t, r, model.kept[t, r]) for t, r in running],
        )
        model.objective = pyo.Objective(
            expr=LinearExpression(
                constant=0,
                linear_coefs=[
                    *((1 + problem.penalty) * prices[pair] for pair in pairs),
                    *(prices[pair] for pair in running),
                ],
                linear_vars=[*(model.new[pair] for pair in pairs), *(model.kept[pair] for pair in running)],
            )
        )
        return model

    def read(self, problem: AllocationProblem, value: Callable[[str, Any], float]) -> Allocation:
        """The allocation nu = kept + new."""
        template, region, _ = usable(problem)
        counts: dict[tuple[int, int], int] = {}
        for t, r in zip(template.tolist(), region.tolist(), strict=True):
            counts[t, r] = round(value("new", (t, r)))
            if problem.running is not None and problem.running[t, r] > 0:
                counts[t, r] += round(value("kept", (t, r)))
        return Allocation.of(counts)

    def matrix(self, problem: AllocationProblem) -> MilpMatrix:
        """The matrix straight from the problem's arrays: the second, fast route."""
        return split_matrix(problem)

    def read_columns(self, problem: AllocationProblem, x: npt.NDArray[np.float64]) -> Allocation:
        """The allocation nu = kept + new from the columns of :meth:`matrix`."""
        template, region, _ = usable(problem)
        runs = np.zeros(len(template), dtype=np.int64) if problem.running is None else problem.running[template, region]
        counts = np.rint(x[: len(template)]).astype(np.int64)
        counts[np.flatnonzero(runs > 0)] += np.rint(x[len(template) :]).astype(np.int64)
        used = np.flatnonzero(counts)
        return Allocation(template[used].astype(np.int64), region[used].astype(np.int64), counts[used])

    def start(self, problem: AllocationProblem, answer: Allocation) -> Mapping[tuple[str, Any], float]:
        """An allocation in the variables of this formulation: kept as far as instances run, the rest new."""
        wanted = answer.to_mapping()
        found: dict[tuple[str, Any], float] = {}
        template, region, _ = usable(problem)
        for t, r in zip(template.tolist(), region.tolist(), strict=True):
            running = 0 if problem.running is None else int(problem.running[t, r])
            kept = min(running, wanted.get((t, r), 0))
            found["new", (t, r)] = wanted.get((t, r), 0) - kept
            if running > 0:
                found["kept", (t, r)] = kept
        return found


def split_matrix(problem: AllocationProblem) -> MilpMatrix:
    """The matrix of this formulation straight from the problem's arrays, without Pyomo: the second, fast route.

    Columns: ``new`` for every usable pair, then ``kept`` for the running ones. Rows: capacity, then demand, those that
    some column reaches.
    """
    from scipy.sparse import csc_array, vstack

    template, region, price = usable(problem)
    _, regions, configurations, phases = problem.shape
    runs = np.zeros(len(template), dtype=np.int64) if problem.running is None else problem.running[template, region]
    kept = np.flatnonzero(runs > 0)
    t, r = np.concatenate([template, template[kept]]), np.concatenate([region, region[kept]])
    count = len(t)
    used_row, used_c = np.nonzero(problem.usage[t])
    capacity = csc_array(
        (problem.usage[t][used_row, used_c].astype(np.float64), (r[used_row] * configurations + used_c, used_row)),
        shape=(regions * configurations, count),
    )
    demand = csc_array((problem.throughput[t], (problem.phase[t], np.arange(count))), shape=(phases, count))
    reached = np.concatenate([np.diff(capacity.tocsr().indptr), np.diff(demand.tocsr().indptr)]) > 0
    missing = (problem.demand > 0) & ~reached[regions * configurations :]
    reached[regions * configurations :] |= missing
    keep = np.flatnonzero(reached)
    a = vstack([capacity, demand]).tocsr()[keep].tocsc()
    names = [f"capacity[{r},{c}]" for r in range(regions) for c in range(configurations)]
    names += [f"demand[{p}]" for p in range(phases)]
    upper = np.concatenate([problem.availability.ravel().astype(np.float64), np.full(phases, np.inf)])
    lower = np.concatenate([np.full(regions * configurations, -np.inf), problem.demand])
    return MilpMatrix(
        c=np.concatenate([(1 + problem.penalty) * price, price[kept]]),
        offset=0.0,
        a=a,
        row_lower=lower[keep],
        row_upper=upper[keep],
        lower=np.zeros(count),
        upper=np.concatenate([np.full(len(template), np.inf), runs[kept].astype(np.float64)]),
        integer=np.ones(count, dtype=np.bool_),
        maximize=False,
        column_names=[f"new[{i},{j}]" for i, j in zip(template, region, strict=True)]
        + [f"kept[{template[k]},{region[k]}]" for k in kept],
        row_names=[names[k] for k in keep],
    )
