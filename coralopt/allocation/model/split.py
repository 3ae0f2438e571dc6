"""The allocation ILP without auxiliary continuous columns.

An instance count is split into kept and new instances::

    min  sum p_r(tau) kept[tau,r] + sum (1 + K) p_r(tau) new[tau,r]
    s.t. capacity and demand rows of the paper with nu = kept + new
         0 <= kept[tau,r] <= nu'[tau,r], integer          only where nu' > 0
         0 <= new[tau,r], integer

and the rows and columns of supply classes, side rows and unmet demand (:mod:`coralopt.allocation.model.rows`); with
supply classes p is the lowest price where it is rented, and the list price in the penalty K p.

Equal to the paper's: for K >= 0 an instance is cheaper kept than new, so an optimum fills ``kept`` first and the cost is
p nu + K p max(0, nu - nu'), the paper's objective with I at its lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from coralopt.allocation.model.rows import add_rows, usable
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.side_constraints import open_rows
from coralopt.allocation.supply import segments
from coralopt.solving import MilpMatrix
from coralopt.types import Floats


class SplitFormulation:
    """Kept and new instances; the module docstring has its mathematics."""

    name: ClassVar[str] = "split"

    def build(self, problem: AllocationProblem) -> Any:
        """Pyomo model with ``new``, ``kept``, ``capacity``, ``demand``."""
        import pyomo.environ as pyo
        from pyomo.core.expr.numeric_expr import LinearExpression

        template, region, rent, fresh = usable(problem)
        pairs = list(zip(template.tolist(), region.tolist(), strict=True))
        rents = dict(zip(pairs, rent.tolist(), strict=True))
        running = [] if problem.running is None else [(t, r) for t, r in pairs if problem.running[t, r] > 0]
        model = pyo.ConcreteModel(name="allocation_split")
        model.new = pyo.Var(pairs, domain=pyo.NonNegativeIntegers)
        model.kept = pyo.Var(running, domain=pyo.NonNegativeIntegers)
        for t, r in running:
            assert problem.running is not None
            model.kept[t, r].setub(int(problem.running[t, r]))
        costs, paid = add_rows(
            model,
            problem,
            [(t, r, model.new[t, r]) for t, r in pairs] + [(t, r, model.kept[t, r]) for t, r in running],
        )
        model.objective = pyo.Objective(
            expr=LinearExpression(
                constant=0,
                linear_coefs=[*fresh.tolist(), *(rents[pair] for pair in running), *costs],
                linear_vars=[*(model.new[pair] for pair in pairs), *(model.kept[pair] for pair in running), *paid],
            )
        )
        return model

    def read(self, problem: AllocationProblem, value: Callable[[str, Any], float]) -> Allocation:
        """The allocation nu = kept + new."""
        template, region, _, _ = usable(problem)
        counts: dict[tuple[int, int], int] = {}
        for t, r in zip(template.tolist(), region.tolist(), strict=True):
            counts[t, r] = round(value("new", (t, r)))
            if problem.running is not None and problem.running[t, r] > 0:
                counts[t, r] += round(value("kept", (t, r)))
        return Allocation.of(counts)

    def matrix(self, problem: AllocationProblem) -> MilpMatrix:
        """The matrix straight from the problem's arrays: the second, fast route."""
        return split_matrix(problem)

    def read_columns(self, problem: AllocationProblem, x: Floats) -> Allocation:
        """The allocation nu = kept + new from the columns of :meth:`matrix`."""
        template, region, _, _ = usable(problem)
        runs = np.zeros(len(template), dtype=np.int64) if problem.running is None else problem.running[template, region]
        counts = np.rint(x[: len(template)]).astype(np.int64)
        kept = np.flatnonzero(runs > 0)
        counts[kept] += np.rint(x[len(template) : len(template) + len(kept)]).astype(np.int64)
        used = np.flatnonzero(counts)
        return Allocation(template[used].astype(np.int64), region[used].astype(np.int64), counts[used])

    def start(self, problem: AllocationProblem, answer: Allocation) -> Mapping[tuple[str, Any], float]:
        """An allocation in the variables of this formulation: kept as far as instances run, the rest new."""
        wanted = answer.to_mapping()
        found: dict[tuple[str, Any], float] = {}
        template, region, _, _ = usable(problem)
        for t, r in zip(template.tolist(), region.tolist(), strict=True):
            running = 0 if problem.running is None else int(problem.running[t, r])
            kept = min(running, wanted.get((t, r), 0))
            found["new", (t, r)] = wanted.get((t, r), 0) - kept
            if running > 0:
                found["kept", (t, r)] = kept
        return found


def split_matrix(problem: AllocationProblem) -> MilpMatrix:
    """The matrix of this formulation straight from the problem's arrays, without Pyomo: the second, fast route.

    Columns: ``new`` for every usable pair, ``kept`` for the running ones, ``extra`` for nodes of dearer supply classes,
    ``shortfall`` for unmet demand that has a price. Rows: capacity, demand, side rows, those that some column reaches.
    """
    from scipy.sparse import csc_array, vstack

    template, region, rent, fresh = usable(problem)
    _, regions, configurations, phases = problem.shape
    runs = np.zeros(len(template), dtype=np.int64) if problem.running is None else problem.running[template, region]
    kept = np.flatnonzero(runs > 0)
    t, r = np.concatenate([template, template[kept]]), np.concatenate([region, region[kept]])
    pieces, rows = segments(problem), open_rows(problem)
    groups = problem.unmet_groups()
    priced = np.array([p for together, _ in groups for p in together], dtype=np.int64)
    group_of = np.repeat(np.arange(len(groups)), [len(together) for together, _ in groups])
    instances, cells = len(t), regions * configurations
    missing = instances + len(pieces.cell)
    count = missing + len(groups)
    used_row, used_c = np.nonzero(problem.usage[t])
    capacity = csc_array(
        (
            np.concatenate([problem.usage[t][used_row, used_c].astype(np.float64), -np.ones(len(pieces.cell))]),
            (
                np.concatenate([r[used_row] * configurations + used_c, pieces.cell]),
                np.concatenate([used_row, np.arange(instances, missing)]),
            ),
        ),
        shape=(cells, count),
    )
    demand = csc_array(
        (
            np.concatenate([problem.throughput[t], problem.demand[priced]]),
            (
                np.concatenate([problem.phase[t], priced]),
                np.concatenate([np.arange(instances), missing + group_of]),
            ),
        ),
        shape=(phases, count),
    )
    side = np.zeros((len(rows), count))
    for i, row in enumerate(rows):
        side[i, :instances] = row.coefficients(problem, t, r)
        if row.is_rent:
            inside = np.ones(len(pieces.cell), dtype=np.bool_)
            if row.regions is not None:
                inside = np.isin(pieces.cell // configurations, row.regions)
            side[i, instances:missing] = np.where(inside, pieces.surcharge, 0.0)
        if row.measure == "tokens_s" and row.phases is not None:
            side[i, missing + group_of[np.isin(priced, row.phases)]] = row.limit(problem)
    limit = np.array([row.limit(problem) for row in rows], dtype=np.float64)
    most = np.array([row.sense == "most" for row in rows], dtype=np.bool_)
    lower = np.concatenate([np.full(cells, -np.inf), problem.demand, np.where(most, -np.inf, limit)])
    upper = np.concatenate(
        [pieces.first.ravel().astype(np.float64), np.full(phases, np.inf), np.where(most, limit, np.inf)]
    )
    a = vstack([capacity, demand, csc_array(side)]).tocsr()
    # What no column reaches holds anyway, or makes the model infeasible and must stay.
    keep = np.flatnonzero((np.diff(a.indptr) > 0) | (lower > 0))
    names = [f"capacity[{r},{c}]" for r in range(regions) for c in range(configurations)]
    names += [f"demand[{p}]" for p in range(phases)] + [f"side[{i}]" for i in range(len(rows))]
    return MilpMatrix(
        c=np.concatenate([fresh, rent[kept], pieces.surcharge, [price for _, price in groups]]),
        offset=0.0,
        a=a[keep].tocsc(),
        row_lower=lower[keep],
        row_upper=upper[keep],
        lower=np.zeros(count),
        upper=np.concatenate(
            [
                np.full(len(template), np.inf),
                runs[kept].astype(np.float64),
                pieces.nodes.astype(np.float64),
                np.ones(len(groups)),
            ]
        ),
        integer=np.arange(count) < instances,
        maximize=False,
        column_names=[f"new[{i},{j}]" for i, j in zip(template, region, strict=True)]
        + [f"kept[{template[k]},{region[k]}]" for k in kept]
        + [f"extra[{cell // configurations},{cell % configurations},{k}]" for k, cell in enumerate(pieces.cell)]
        + [f"shortfall[{g}]" for g in range(len(groups))],
        row_names=[names[k] for k in keep],
    )
