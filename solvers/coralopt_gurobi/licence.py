"""Gurobi under the licence at hand: fresh models, and what the free one does not cover."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from coralopt.errors import LicenseLimitError, SolverError
from coralopt.solving import MilpMatrix
from coralopt.solving.plugin import lazy

if TYPE_CHECKING:
    from gurobipy import Model

gurobipy = lazy("gurobipy")
#: Size limit of the licence that comes with the package: columns, and rows with a range counted twice.
FREE_LIMIT = 2000
TOO_LARGE, NO_LICENCE = 10010, 10009


def refuse_large(matrix: MilpMatrix) -> None:
    ranges = np.isfinite(matrix.row_lower) & np.isfinite(matrix.row_upper) & (matrix.row_lower != matrix.row_upper)
    rows, columns = matrix.shape[0] + int(ranges.sum()), matrix.shape[1]
    if max(rows, columns) > FREE_LIMIT and is_restricted():
        raise LicenseLimitError(
            f"solver 'gurobi' is size-limited here ({FREE_LIMIT} columns x {FREE_LIMIT} rows); this model has "
            f"{columns} columns x {rows} rows; use solver 'highs' or 'scip', hand over fewer columns (restrict of an "
            f"allocation: coralopt plan --restrict {FREE_LIMIT - 100}), or install a full licence"
        )


@contextmanager
def fresh_model(log: bool) -> Iterator[Model]:
    """A fresh model in an environment of its own; Gurobi's errors become ours."""
    environment = gurobipy.Env(empty=True)
    try:
        environment.setParam("OutputFlag", 0)
        environment.start()
        environment.setParam("OutputFlag", int(log))
        with gurobipy.Model(env=environment) as model:
            yield model
    except gurobipy.GurobiError as error:
        if error.errno == TOO_LARGE:
            raise LicenseLimitError(f"Gurobi's licence does not cover a model of this size: {error}") from None
        if error.errno == NO_LICENCE:
            raise LicenseLimitError(f"Gurobi finds no valid licence: {error}; use solver 'highs' or 'scip'") from None
        raise SolverError(f"Gurobi failed: {error} (code {error.errno})") from None
    finally:
        environment.dispose()


def is_restricted() -> bool:
    """Whether the licence at hand has the size limit: a model just above it tells."""
    with fresh_model(log=False) as model:
        model.addMVar(FREE_LIMIT + 1, ub=1.0)
        try:
            model.optimize()
        except gurobipy.GurobiError as error:
            if error.errno != TOO_LARGE:
                raise
            return True
        return False
