"""What matrix plugins do alike: :class:`MatrixPlugin`, their base, and how a solver's statuses and options are called.

A plugin says what its solver is called, and in ``run`` hands the matrix over, solves and reads back. The base asks the
package metadata, guards the import, and turns what the solver says into a :class:`RawResult` of one meaning;
:class:`Job` keeps the clock and relays progress; :mod:`coralopt.solving.rows` has rows as solvers take them.
"""

from __future__ import annotations

import importlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from coralopt.errors import LicenseLimitError, SolverError, SolverNotFoundError
from coralopt.solving.backend import Availability, Basis, Capability, Listener, RawResult
from coralopt.solving.job import Job
from coralopt.solving.matrix import Lazy, MilpMatrix
from coralopt.solving.options import Focus, OptionValue, SolveOptions
from coralopt.solving.status import Limit, Reason
from coralopt.types import Floats

#: How a solver's own status reads: reason and limit. The base turns NO_SOLUTION_FOUND with a solution into FEASIBLE.
Status = tuple[Reason, Limit | None]
#: What most matrix back ends can do; take away what yours cannot.
MATRIX_CAPABILITIES = frozenset(Capability) - {
    *(Capability.PLACEMENT, Capability.PLACEMENT_FAMILY, Capability.BOXED, Capability.CONCURRENT)
}


class _Lazy(ModuleType):
    # Solvers' packages have no types, or wrong ones.
    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


def lazy(package: str) -> ModuleType:
    """A package that is imported when something of it is used: ``coralopt solvers`` imports every plugin, no solver."""
    return _Lazy(package)


def stopped(limit: Limit | None) -> Status:
    """The status of a solve that a limit ended."""
    return Reason.NO_SOLUTION_FOUND, limit


def statuses(words: Mapping[Reason | Limit, str]) -> dict[str, Status]:
    """How a solver's statuses read: for each meaning the solver's own words for it, with spaces between them."""
    return {
        word: stopped(meaning) if isinstance(meaning, Limit) else (meaning, None)
        for meaning, own in words.items()
        for word in own.split()
    }


def named_options(
    options: SolveOptions,
    names: Mapping[str, str],
    focus: Mapping[Focus, Mapping[str, OptionValue]] = {},
    **switches: tuple[str, OptionValue, OptionValue],
) -> dict[str, OptionValue]:
    """The common options that a solver has, under its own names; those that limit nothing stay out.

    Args:
        options: Common options.
        names: Name of a common option -> the solver's name for it.
        focus: What the solver is to spend its time on -> its own options for that, as far as it has them.
        switches: Common option that is true or false -> the solver's name for it, and its values there for both.
    """
    values: dict[str, OptionValue | None] = {
        "log": options.log,
        "rel_gap": float(options.rel_gap),
        "abs_gap": float(options.abs_gap),
        "seed": options.seed,
        "threads": options.threads or 1,
        "time_limit": None if options.time_limit in (None, math.inf) else float(options.time_limit or 0.0),
        "node_limit": options.node_limit,
        "presolve": options.presolve,
    }
    named = {own: value for name, own in names.items() if (value := values[name]) is not None}
    named |= {own: on if values[name] else off for name, (own, on, off) in switches.items() if values[name] is not None}
    return named | dict(focus.get(options.focus, {}) if options.focus else {})


def public_names(holder: object) -> list[str]:
    """Names of an object that holds a solver's options or codes as attributes."""
    return [name for name in dir(holder) if name[0] != "_"]


class MatrixPlugin(ABC):
    """Base of a matrix back end: give the class attributes and :meth:`run`.

    Attributes:
        name: The word it is asked for by.
        capabilities: What it can do.
        package: Its solver's package, as it is installed.
        module: What is imported, where that has another name.
        licence: In words, with its limits.
        hint: What to do where the package is missing.
        unknown: Figures of the solver of at least this size say that nothing is known.
    """

    name: ClassVar[str]
    kind: ClassVar[str] = "matrix"
    capabilities: ClassVar[frozenset[Capability]]
    package: ClassVar[str]
    module: ClassVar[str] = ""
    licence: ClassVar[str]
    hint: ClassVar[str]
    unknown: ClassVar[float] = math.inf

    def probe(self) -> Availability:
        """Whether the solver is installed, and which version."""
        try:
            version(self.package)
        except PackageNotFoundError:
            return Availability(False, "", self.licence, self.hint)
        return Availability(True, self.release(), self.licence)

    def release(self) -> str:
        """Version of the solver itself; that of its package where both are one."""
        return version(self.package)

    def needs_process(self, matrix: MilpMatrix, options: SolveOptions) -> bool:
        """Whether a solve must not share this process: packages may bring libraries of one name that exclude another."""
        return self._failed_import() is not None and self.probe().installed

    def _failed_import(self) -> ImportError | None:
        try:
            importlib.import_module(self.module or self.package)
        except ImportError as error:
            return error
        return None

    @abstractmethod
    def run(self, job: Job) -> RawResult:
        """Hand the matrix over, solve inside ``job.solving()``, and read back.

        Returns:
            Reason and limit, ``x`` and ``bound`` as the solver has them (NaN: unknown), ``row_duals`` of an LP.
        """

    def solve(
        self,
        matrix: MilpMatrix,
        options: SolveOptions,
        *,
        start: Floats | Basis | None = None,
        on_progress: Listener | None = None,
        lazy: Lazy | None = None,
    ) -> RawResult:
        """Solve one matrix; see :class:`coralopt.solving.MatrixBackend`.

        Raises:
            OptionError: A native option that the solver does not know or does not take with this value.
            LicenseLimitError: The licence at hand does not cover the matrix.
            SolverNotFoundError: The solver's package is not installed, or does not load in this process.
        """
        if (error := self._failed_import()) is not None:
            words = f"is not installed; {self.hint}"
            if self.probe().installed:
                words = f"does not load in this process, solve with isolate=True: {error}"
            raise SolverNotFoundError(f"solver {self.name!r} {words}") from error
        basis = start if isinstance(start, Basis) else None
        begin = start if matrix.is_mip and not isinstance(start, Basis) else None
        job = Job(matrix, options, begin, on_progress, None if matrix.is_mip else basis, lazy, self.unknown)
        if (matrix.lower > matrix.upper).any() or (matrix.row_lower > matrix.row_upper).any():
            # Some solvers take a row with crossed sides for a range the other way round.
            return job.finished(RawResult(Reason.INFEASIBLE, None, "crossed bounds", None, math.nan))
        if not matrix.shape[1]:
            return job.finished(job.without_columns())
        result = job.finished(self.run(job))
        if result.reason is Reason.INFEASIBLE_OR_UNBOUNDED and (matrix.c.any() or matrix.extras.quadratic is not None):
            return self._decided(job, result)
        return result

    def _decided(self, job: Job, result: RawResult) -> RawResult:
        """Presolve often stops at "infeasible or unbounded": the same rows without an objective tell which."""
        rest = replace(job.matrix.extras, quadratic=None)
        plain = replace(job.matrix, c=np.zeros_like(job.matrix.c), offset=0.0, extras=rest)
        second = self.solve(plain, replace(job.options, time_limit=job.time_left))
        result = replace(result, solve_seconds=result.solve_seconds + second.solve_seconds)
        if second.x is not None:
            return replace(result, reason=Reason.UNBOUNDED, raw=f"{result.raw}; feasible without the objective")
        if second.reason is Reason.INFEASIBLE:
            return replace(result, reason=Reason.INFEASIBLE, raw=f"{result.raw}; infeasible without the objective")
        return replace(result, limit=second.limit)


class SizeLimited(MatrixPlugin):
    """Base of a back end whose free licence stops at a size: ``run`` calls its solver inside :meth:`failures`.

    Attributes:
        free_limit: (rows, columns) of the free licence.
        refusal: Regular expression found in what the solver says of a larger model, and in nothing else that it raises.
    """

    free_limit: ClassVar[tuple[int, int]]
    refusal: ClassVar[str]
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.LP, Capability.MILP, Capability.LP_DUALS, Capability.MIP_START, Capability.NODE_LIMIT}
    )

    def probe(self) -> Availability:
        """Installed or not, and whether the licence at hand is the free one: a model just above its size tells."""
        plain = super().probe()
        if not plain.installed or self._failed_import() is not None:
            return plain
        if not _is_restricted(type(self)):
            return replace(plain, licence="proprietary; no size limit found")
        way_out = "larger models: solver 'highs' or 'scip', or a full licence"
        return replace(plain, hint=way_out, size_limit=self.free_limit)

    @contextmanager
    def failures(self, job: Job, solver: str, *errors: type[Exception]) -> Iterator[None]:
        """Around the solver's calls: what it raises, in this project's errors.

        Args:
            job: The solve.
            solver: Its name in messages.
            errors: What it raises.

        Raises:
            LicenseLimitError: The licence at hand does not cover the matrix.
            SolverError: The solver failed otherwise.
        """
        try:
            yield
        except errors as error:
            if not re.search(self.refusal, str(error)):
                raise SolverError(f"{solver} failed: {error}") from None
            (most_rows, most_columns), (rows, columns) = self.free_limit, job.matrix.shape
            raise LicenseLimitError(
                f"solver {self.name!r} is size-limited here ({most_columns} columns x {most_rows} rows); this model has "
                f"{columns} columns x {rows} rows; use solver 'highs' or 'scip', or install a full licence"
            ) from None


@cache
def _is_restricted(plugin: type[SizeLimited]) -> bool:
    from scipy.sparse import csc_array

    columns = plugin.free_limit[1] + 1
    zeros, ones, none = np.zeros(columns), np.ones(columns), np.zeros(0)
    a, names = csc_array((0, columns)), [f"x{j}" for j in range(columns)]
    large = MilpMatrix(zeros, 0.0, a, none, none, zeros, ones, zeros > 0, False, names, [])
    try:
        plugin().run(Job(large, SolveOptions()))
    except LicenseLimitError:
        return True
    return False
