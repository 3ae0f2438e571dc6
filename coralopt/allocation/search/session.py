"""Solve again after a change of demand, price or availability, without building again.

The matrix of the split formulation over all priced (template, region) pairs is made once. A change of demand or
availability moves right-hand sides, a change of price moves costs; templates that no longer fit are held back by the
capacity rows themselves. The last answer is the next start.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.errors import UnsupportedError
from coralopt.solving import (
    Backend,
    Compiled,
    MatrixSession,
    Solution,
    SolveOptions,
    compile_problem,
    solve_compiled,
)


class AllocationSession:
    """One allocation problem, solved again and again with other demands, prices and availability.

    The instances that run and the penalty stay those of the problem it was made with: they shape the columns.

    Attributes:
        problem: The problem as it stands now.
        builds: How often the matrix was made; a price for what had none makes it anew.
    """

    def __init__(
        self,
        problem: AllocationProblem,
        solver: Backend | str = "highs",
        options: SolveOptions | Mapping[str, object] | None = None,
    ) -> None:
        if not problem.plain or problem.routes or problem.spared.any() or problem.start_penalty is not None:
            raise UnsupportedError(
                "a session moves demand, prices and availability only; solve problems with supply classes, side rows, "
                "routes, start costs by template or unmet demand by solve_allocation"
            )
        self.problem, self.builds = problem, 0
        self._solver, self._options = solver, SolveOptions.of(options)
        self._compiled: Compiled[Allocation] | None = None
        self._wide = problem
        self._session: MatrixSession | None = None

    def solve(
        self,
        demand: npt.ArrayLike | None = None,
        price: npt.ArrayLike | None = None,
        availability: npt.ArrayLike | None = None,
    ) -> Solution[Allocation]:
        """Solve the problem with these changes, which stay.

        Args:
            demand: float64 (P,), tokens/s.
            price: float64 (R, C), USD/h; NaN where nothing is sold.
            availability: int64 (R, C), nodes.

        Raises:
            SolverError: The changes do not fit the problem.
        """
        changes = {"demand": demand, "price": price, "availability": availability}
        values = {name: np.asarray(value) for name, value in changes.items() if value is not None}
        self.problem = replace(self.problem, **values)  # type: ignore[arg-type]
        started = time.perf_counter()
        session = self._rebuilt() if self._session is None or self._outgrown() else self._session
        self._move(session)
        assert self._compiled is not None
        compiled = replace(self._compiled, matrix=session.matrix, seconds=time.perf_counter() - started)
        start = session.start if isinstance(session.start, np.ndarray) else None
        solution: Solution[Allocation] = solve_compiled(
            self.problem, compiled, self._solver, self._options, start=start
        )
        if solution.answer is not None:
            session.start = Columns.of(self._wide).counts(solution.answer).astype(np.float64)
        return solution

    def _outgrown(self) -> bool:
        return bool((np.isnan(self._wide.price) & ~np.isnan(self.problem.price)).any())

    def _rebuilt(self) -> MatrixSession:
        """A matrix wide enough for any demand, and any availability of what has a price."""
        priced = ~np.isnan(self.problem.price)
        running = 0 if self.problem.running is None else int(self.problem.running.max(initial=0))
        plenty = int(self.problem.usage.max(initial=1)) * max(1, running)
        # Some demand everywhere: a row for every phase, even where nothing can serve it.
        self._wide = replace(
            self.problem, availability=np.where(priced, plenty, 0), demand=np.ones_like(self.problem.demand)
        )
        self._compiled = compile_problem(self._wide, "split", route="arrays")
        self._session = MatrixSession(self._compiled.matrix, self._solver, self._options)
        self.builds += 1
        return self._session

    def _move(self, session: MatrixSession) -> None:
        """Give the matrix the right-hand sides, costs and bounds of the problem as it stands."""
        assert self._compiled is not None
        matrix, problem = self._compiled.matrix, self.problem
        columns = Columns.of(self._wide)
        price = problem.template_price()[columns.template, columns.region]
        sold = ~np.isnan(price)
        lower, upper = matrix.row_lower.copy(), matrix.row_upper.copy()
        for i, name in enumerate(matrix.row_names):
            place = [int(part) for part in name[name.index("[") + 1 : -1].split(",")]
            if name.startswith("capacity"):
                upper[i] = float(problem.availability[place[0], place[1]])
            else:
                lower[i] = float(problem.demand[place[0]])
        session.change(
            c=np.where(sold, np.where(columns.kept, 1.0, 1.0 + problem.penalty) * np.nan_to_num(price), 0.0),
            row_lower=lower,
            row_upper=upper,
            upper=np.where(sold, matrix.upper, 0.0),
        )
