"""A matrix, a basis and a start in HiGHS's own form, and its basis in ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from coralopt.errors import SolverError
from coralopt.solving import Basis, MilpMatrix
from coralopt.solving.job import Job
from coralopt.solving.plugin import lazy

if TYPE_CHECKING:
    from highspy import Highs

highspy = lazy("highspy")


def pass_model(solver: Highs, matrix: MilpMatrix) -> None:
    """The matrix by its arrays, and a quadratic objective.

    Raises:
        SolverError: HiGHS refuses it.
    """
    (rows, columns), a = matrix.shape, matrix.a
    status = solver.passModel(
        columns,
        rows,
        int(a.nnz),
        int(highspy.MatrixFormat.kColwise),
        int(highspy.ObjSense.kMaximize if matrix.maximize else highspy.ObjSense.kMinimize),
        float(matrix.offset),
        np.ascontiguousarray(matrix.c, dtype=np.float64),
        matrix.lower,
        matrix.upper,
        matrix.row_lower,
        matrix.row_upper,
        a.indptr.astype(np.int32, copy=False),
        a.indices.astype(np.int32, copy=False),
        a.data.astype(np.float64, copy=False),
        matrix.integer.astype(np.int32),
    )
    # A warning (small coefficients dropped) is no error; the answer is checked against the matrix anyway.
    if status == highspy.HighsStatus.kError:
        largest = float(np.abs(a.data).max(initial=0.0))
        raise SolverError(
            f"HiGHS refuses a matrix of {rows} rows and {columns} columns; its largest coefficient is {largest:g}, "
            "HiGHS takes less than 1e15: choose other units"
        )
    if (quadratic := matrix.extras.quadratic) is not None:
        from scipy.sparse import tril

        half, triangular = tril(quadratic).tocsc(), highspy.HessianFormat.kTriangular
        starts, places = half.indptr.astype(np.int32), half.indices.astype(np.int32)
        solver.passHessian(columns, int(half.nnz), int(triangular), starts, places, half.data)


def pass_basis(solver: Highs, basis: Basis) -> None:
    """Where the simplex method begins; HiGHS refuses one that does not fit, and begins from nothing."""
    kinds, start = highspy.HighsBasisStatus, highspy.HighsBasis()
    names = {Basis.LOWER: kinds.kLower, Basis.BASIC: kinds.kBasic, Basis.UPPER: kinds.kUpper, Basis.FREE: kinds.kZero}
    start.col_status = [names[status] for status in basis.columns.tolist()]
    start.row_status = [names[status] for status in basis.rows.tolist()]
    start.valid = True
    solver.setBasis(start)


def basis_of(solver: Highs) -> Basis | None:
    """Where the simplex method ended, ``None`` where it did not run."""
    basis, kinds = solver.getBasis(), highspy.HighsBasisStatus
    if not basis.valid:
        return None
    numbers = {kinds.kLower: Basis.LOWER, kinds.kBasic: Basis.BASIC, kinds.kUpper: Basis.UPPER}
    numbers |= {kinds.kZero: Basis.FREE, kinds.kNonbasic: Basis.FREE}
    columns, rows = (
        np.array([numbers[s] for s in part], dtype=np.int8) for part in (basis.col_status, basis.row_status)
    )
    return Basis(columns, rows)


def pass_start(solver: Highs, job: Job) -> list[bool]:
    """Hand over a start, complete or in part; the list gets an entry when HiGHS takes it."""
    positions, values = job.known_start
    solver.setSolution(len(positions), positions.astype(np.int32), values)
    # Only its log tells whether HiGHS took the start.
    solver.setOptionValue("log_to_console", job.options.log)
    solver.setOptionValue("output_flag", True)
    taken: list[bool] = []

    def read(event: Any) -> None:
        if "MIP start solution is feasible" in event.message:
            taken.append(True)

    solver.cbLogging += read
    return taken
