"""HiGHS's own reader of LP and MPS files: a second opinion on a file, never what is solved."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coralopt.errors import SolverError
from coralopt.solving import MilpMatrix
from coralopt.solving.extras import Extras
from coralopt.solving.plugin import lazy

highspy = lazy("highspy")


def read_file(path: Path) -> MilpMatrix:
    """The file as HiGHS reads it: quadratic objectives and semi-continuous columns, too, but no sets and no indicators.

    Raises:
        SolverError: HiGHS refuses the file, or warns of it.
    """
    from scipy.sparse import csc_array, diags_array

    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    status = solver.readModel(str(path))
    if status != highspy.HighsStatus.kOk:
        raise SolverError(f"{path.name}: HiGHS's reader {'refuses it' if status.value < 0 else 'warns of it'}")
    model = solver.getModel()
    programme, hessian, kinds = model.lp_, model.hessian_, highspy.HighsVarType
    n, m = programme.num_col_, programme.num_row_
    entries = programme.a_matrix_
    shape = (n, n)
    half = csc_array((hessian.value_, hessian.index_, hessian.start_), shape) if hessian.dim_ else None
    types = list(programme.integrality_) or [kinds.kContinuous] * n
    partial = (kinds.kSemiContinuous, kinds.kSemiInteger)
    return MilpMatrix(
        c=np.array(programme.col_cost_),
        offset=programme.offset_,
        a=csc_array((entries.value_, entries.index_, entries.start_), (m, n)),
        row_lower=np.array(programme.row_lower_),
        row_upper=np.array(programme.row_upper_),
        lower=np.array(programme.col_lower_),
        upper=np.array(programme.col_upper_),
        integer=np.array([kind in (kinds.kInteger, kinds.kSemiInteger) for kind in types], dtype=bool),
        maximize=programme.sense_ == highspy.ObjSense.kMaximize,
        column_names=list(programme.col_names_),
        row_names=list(programme.row_names_),
        extras=Extras(
            None if half is None else csc_array(half + half.T - diags_array(half.diagonal())),
            semicontinuous=tuple(j for j, kind in enumerate(types) if kind in partial),
        ),
    )
