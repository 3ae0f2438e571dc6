"""A matrix that is solved again and again with other figures, columns and rows, each time from where it ended last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coralopt.errors import OptionError
from coralopt.solving.backend import Backend, Basis, Capability, Listener
from coralopt.solving.matrix import MilpMatrix, with_rows
from coralopt.solving.options import SolveOptions
from coralopt.solving.registry import require_backend
from coralopt.solving.solution import MatrixResult
from coralopt.solving.solve_matrix import solve_matrix
from coralopt.types import Floats

#: What may change of a matrix: figures, one for every row or column, and the sense.
CHANGEABLE = ("c", "offset", "row_lower", "row_upper", "lower", "upper", "integer", "maximize", "extras")


class MatrixSession:
    """One matrix, solved again and again.

    A linear programme starts from the last basis, an integer programme from the last answer, where the back end takes
    one. Every solve is a fresh one apart from that, and its answer is checked like any other.

    Attributes:
        matrix: As it stands now.
        start: What the next solve begins with: float64 (n,), NaN where unknown, or a basis; ``None`` without.
    """

    def __init__(
        self,
        matrix: MilpMatrix,
        solver: str | Backend = "highs",
        options: SolveOptions | Mapping[str, object] | None = None,
    ) -> None:
        self.matrix: MilpMatrix = matrix
        self.start: Floats | Basis | None = None
        self.solver, self.options = require_backend(solver), SolveOptions.of(options)

    def change(self, **parts: Any) -> None:  # Any: a part of the matrix each
        """Give parts of the matrix other figures, ``c``, ``row_upper``, ...; vectors of the same length.

        Raises:
            OptionError: No such part.
            SolverError: The figures do not fit.
        """
        for name in parts:
            if name not in CHANGEABLE:
                raise OptionError(f"{name!r} of a matrix cannot change; these can: {', '.join(CHANGEABLE)}")
            if name not in ("offset", "maximize", "extras"):
                parts[name] = np.asarray(parts[name], dtype=np.bool_ if name == "integer" else np.float64)
        self.matrix = replace(self.matrix, **parts)

    def add_columns(
        self,
        c: npt.ArrayLike,
        a: npt.ArrayLike,
        bounds: tuple[npt.ArrayLike, npt.ArrayLike] = (0.0, np.inf),
        integer: npt.ArrayLike = False,
        names: Sequence[str] = (),
    ) -> None:
        """Add columns behind the others.

        Args:
            c: float64 (k,), their costs.
            a: float64 (m, k) or sparse, their entries.
            bounds: Lower and upper, one for all or one each.
            integer: Whether they are integer, likewise.
            names: One each; ``new0``, ... without.
        """
        from scipy.sparse import csc_array, hstack

        old, costs = self.matrix, np.atleast_1d(np.asarray(c, dtype=np.float64))
        count, n = len(costs), len(old.c)
        low, high = (np.broadcast_to(np.asarray(side, dtype=np.float64), (count,)) for side in bounds)
        extras, start = old.extras, self.start
        if extras.quadratic is not None:
            quadratic = extras.quadratic.copy()
            quadratic.resize((n + count, n + count))
            extras = replace(extras, quadratic=quadratic)
        self.matrix = replace(
            old,
            c=np.concatenate([old.c, costs]),
            a=hstack([old.a, csc_array(a)]).tocsc(),
            lower=np.concatenate([old.lower, low]),
            upper=np.concatenate([old.upper, high]),
            integer=np.concatenate([old.integer, np.broadcast_to(np.asarray(integer, dtype=np.bool_), (count,))]),
            column_names=[*old.column_names, *(names or [f"new{n + k}" for k in range(count)])],
            extras=extras,
        )
        if isinstance(start, Basis):
            self.start = start.with_columns(low, high)
        elif start is not None:
            self.start = np.concatenate([start, np.full(count, np.nan)])

    def add_rows(self, a: npt.ArrayLike, lower: npt.ArrayLike, upper: npt.ArrayLike, names: Sequence[str] = ()) -> None:
        """Add rows behind the others: float64 (k, n) or sparse, and their sides, one for all or one each."""
        from scipy.sparse import csc_array

        rows = csc_array(a)
        count = rows.shape[0]
        low, high = (np.broadcast_to(np.asarray(side, dtype=np.float64), (count,)) for side in (lower, upper))
        self.matrix = with_rows(self.matrix, rows, low, high, names)
        if isinstance(self.start, Basis):
            self.start = self.start.with_rows(count)

    def solve(self, options: SolveOptions | None = None, on_progress: Listener | None = None) -> MatrixResult:
        """Solve the matrix as it stands; see :func:`coralopt.solving.solve_matrix`."""
        needs = Capability.LP_BASIS if isinstance(self.start, Basis) else Capability.MIP_START
        start = self.start if needs in self.solver.capabilities else None
        result = solve_matrix(self.matrix, self.solver, options or self.options, start=start, on_progress=on_progress)
        if result.basis is not None or result.x is not None:
            self.start = result.basis if result.basis is not None else result.x
        return result
