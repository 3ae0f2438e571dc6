"""Ways to serve demand as columns, and the linear programme over them, whose duals are prices of nodes and limits.

A column serves all demand of one model phase. A block serves some models and leaves a share of them unmet; where there are
blocks of models, one of them is chosen, or a mix (Dantzig-Wolfe).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from coralopt.solving import MilpMatrix, Reason, solve_matrix
from coralopt.templates.shared_supply import SharedSupply
from coralopt.templates.unmet import UnmetShares
from coralopt.types import Floats


@dataclass(frozen=True, eq=False)
class DemandColumn:
    """One way to serve all the demand of a model phase.

    Attributes:
        phase: Index of the model phase.
        usage: float64 (R, C), nodes, which may be fractions.
        usd_h: Cost, USD/h.
    """

    phase: int
    usage: Floats
    usd_h: float


@dataclass(frozen=True, eq=False)
class DemandBlock:
    """One way to serve models that leave equal shares unmet.

    Attributes:
        group: Index among :attr:`DemandProgramme.together`.
        share: Share of their demand that is unmet.
        columns: What serves the rest, by phase.
        usd_h: Cost of what is unmet, USD/h.
    """

    group: int
    share: Fraction
    columns: tuple[DemandColumn, ...]
    usd_h: float


@dataclass(frozen=True, eq=False)
class DemandMix:
    """The cheapest mix of columns and blocks.

    Attributes:
        usd_h: What it costs, USD/h.
        duals: float64 (R C + L,), prices of nodes and limits.
        short: Share of demand that is short at any price.
        blocks: float64 (B,), the part that each block has.
    """

    usd_h: float
    duals: Floats
    short: float
    blocks: Floats


@dataclass(frozen=True, eq=False)
class DemandProgramme:
    """The linear programme over columns and blocks.

    Attributes:
        phases: M, model phases.
        ways: The ways of each model, as phases.
        together: Models that leave equal shares unmet, with what that costs.
        supply: Nodes and limits.
    """

    phases: int
    ways: Sequence[Sequence[tuple[int, ...]]]
    together: Sequence[tuple[Sequence[int], UnmetShares | None]]
    supply: SharedSupply

    def solve(self, columns: Sequence[DemandColumn], blocks: Sequence[DemandBlock] = ()) -> DemandMix:
        """The cheapest mix.

        Raises:
            ArithmeticError: It could not be solved.
        """
        from scipy.sparse import csc_matrix

        chosen = {block.group for block in blocks}
        served = {model for group in chosen for model in self.together[group][0]}
        ways = [(model, way) for model, several in enumerate(self.ways) if model not in served for way in several]
        count, models, split = self.phases, len(self.ways), len(columns)
        dearer, most = self.supply.dearer_rows(), self.supply.most()
        # Columns in units of the whole demand keep the numbers near 1: a pipeline's share of its phase's demand, a way's
        # share of its model's, what of it may go unmet at a price, blocks, and what of it is short at any, which keeps the
        # programme feasible; then nodes of dearer classes.
        tiers = [
            (members, tier)
            for g, (members, group) in enumerate(self.together)
            if group is not None and g not in chosen
            for tier in group.tiers
        ]
        unmet, whole = split + len(ways), split + len(ways) + len(tiers)
        short = whole + len(blocks)
        dense = np.zeros((count + models + len(most), short + models + dearer.shape[1]))
        cost, upper = np.zeros(dense.shape[1]), np.full(dense.shape[1], np.inf)
        for position, column in enumerate(columns):
            dense[column.phase, position] = 1
            dense[count + models :, position] = self.supply.rows(column.phase, column.usage)
            cost[position] = column.usd_h
        for position, (model, way) in enumerate(ways, start=split):
            dense[list(way), position] = -1
            dense[count + model, position] = 1
        for position, (members, (usd_h, share)) in enumerate(tiers, start=unmet):
            dense[[count + model for model in members], position] = 1
            cost[position], upper[position] = usd_h, share
        for position, block in enumerate(blocks, start=whole):
            dense[[count + model for model in self.together[block.group][0]], position] = 1
            for column in block.columns:
                dense[count + models :, position] += self.supply.rows(column.phase, column.usage)
            cost[position] = block.usd_h + sum(column.usd_h for column in block.columns)
        dense[count : count + models, short : short + models] = np.eye(models)
        cost[short : short + models] = 100 * float(cost.max(initial=1.0))
        dense[count + models :, short + models :] = dearer
        cost[short + models :], upper[short + models :] = self.supply.charges, self.supply.count
        matrix = MilpMatrix(
            c=cost,
            offset=0.0,
            a=csc_matrix(dense),
            row_lower=np.concatenate([np.zeros(count), np.ones(models), np.full(len(most), -np.inf)]),
            row_upper=np.concatenate([np.full(count + models, np.inf), most]),
            lower=np.zeros(len(cost)),
            upper=upper,
            integer=np.zeros(len(cost), dtype=bool),
            maximize=False,
            column_names=[f"x{i}" for i in range(len(cost))],
            row_names=[f"r{i}" for i in range(dense.shape[0])],
        )
        result = solve_matrix(matrix, "highs")
        if result.x is None or result.row_duals is None or result.termination.reason is not Reason.OPTIMAL:
            raise ArithmeticError(f"the master of the certificate was not solved: {result.termination.raw}")
        missing = float(result.x[short : short + models].sum())
        duals = np.maximum(-result.row_duals[count + models :], 0.0)
        return DemandMix(result.objective, duals, missing, np.asarray(result.x)[whole:short])
