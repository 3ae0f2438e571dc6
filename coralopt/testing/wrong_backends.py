"""Back ends that are wrong on purpose, each in one way: what the core and the compliance suite must catch.

All but the last three are HiGHS with one lie on top. They are importable by other processes, so that they can be isolated.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np

from coralopt.solving import (
    Availability,
    Capability,
    Limit,
    Listener,
    MilpMatrix,
    RawResult,
    Reason,
    SolveOptions,
    SolveProgress,
    get_backend,
    is_matrix_backend,
)
from coralopt.types import Floats


class Honest:
    """HiGHS as it is; the base of the liars, who change what goes in, what comes out, or what is told on the way."""

    name: ClassVar[str] = "honest"
    kind: ClassVar[str] = "matrix"
    capabilities: ClassVar[frozenset[Capability]] = get_backend("highs").capabilities

    def probe(self) -> Availability:
        return Availability(True, "1", "for tests")

    def solve(
        self,
        matrix: MilpMatrix,
        options: SolveOptions,
        *,
        start: Floats | None = None,
        on_progress: Listener | None = None,
    ) -> RawResult:
        highs = get_backend("highs")
        assert is_matrix_backend(highs)
        listener = None if on_progress is None else partial(self.tell, on_progress)
        matrix_told, options_told = self.before(matrix, options)
        return self.after(matrix, highs.solve(matrix_told, options_told, start=start, on_progress=listener))

    def before(self, matrix: MilpMatrix, options: SolveOptions) -> tuple[MilpMatrix, SolveOptions]:
        return matrix, options

    def after(self, matrix: MilpMatrix, result: RawResult) -> RawResult:
        return result

    def tell(self, listener: Listener, event: SolveProgress) -> None:
        listener(event)


class WrongBound(Honest):
    """Claims a bound that is better than the optimum."""

    def after(self, matrix: MilpMatrix, result: RawResult) -> RawResult:
        if result.x is None or not matrix.integer.any():
            return result
        step = 0.05 * max(1.0, abs(result.bound))
        return replace(result, bound=result.bound + (-step if matrix.maximize else step))


class LostIncumbent(Honest):
    """Forgets the best solution when a limit comes."""

    def after(self, matrix: MilpMatrix, result: RawResult) -> RawResult:
        if result.reason is not Reason.FEASIBLE:
            return result
        return replace(result, reason=Reason.NO_SOLUTION_FOUND, x=None, objective=None)


class LeakingOptions(Honest):
    """Keeps the tightest limits it ever saw."""

    _seen: SolveOptions | None = None

    def before(self, matrix: MilpMatrix, options: SolveOptions) -> tuple[MilpMatrix, SolveOptions]:
        seen = type(self)._seen
        if seen is not None:
            options = replace(options, rel_gap=max(options.rel_gap, seen.rel_gap), node_limit=seen.node_limit)
        type(self)._seen = options
        return matrix, options


class ClaimedOptimum(Honest):
    """Calls the first solution optimal, with itself as the bound."""

    def before(self, matrix: MilpMatrix, options: SolveOptions) -> tuple[MilpMatrix, SolveOptions]:
        return matrix, replace(options, rel_gap=1e6, node_limit=1, presolve=False)

    def after(self, matrix: MilpMatrix, result: RawResult) -> RawResult:
        if result.x is None:
            return result
        return replace(result, reason=Reason.OPTIMAL, limit=None, bound=float(matrix.c @ result.x) + matrix.offset)


class WrongSense(Honest):
    """Always minimises."""

    def before(self, matrix: MilpMatrix, options: SolveOptions) -> tuple[MilpMatrix, SolveOptions]:
        return replace(matrix, maximize=False), options


class NoConstant(Honest):
    """Drops the constant of the objective from the bound."""

    def after(self, matrix: MilpMatrix, result: RawResult) -> RawResult:
        return replace(result, bound=result.bound - matrix.offset, objective=None)


class NoIntegrality(Honest):
    """Solves the relaxation and rounds."""

    def before(self, matrix: MilpMatrix, options: SolveOptions) -> tuple[MilpMatrix, SolveOptions]:
        return replace(matrix, integer=np.zeros_like(matrix.integer)), options

    def after(self, matrix: MilpMatrix, result: RawResult) -> RawResult:
        if result.x is None:
            return result
        return replace(result, x=np.where(matrix.integer, np.rint(result.x), result.x), objective=None)


class NoLowerSides(Honest):
    """Forgets the lower side of rows with two sides."""

    def before(self, matrix: MilpMatrix, options: SolveOptions) -> tuple[MilpMatrix, SolveOptions]:
        both = np.isfinite(matrix.row_lower) & np.isfinite(matrix.row_upper) & (matrix.row_lower != matrix.row_upper)
        return replace(matrix, row_lower=np.where(both, -np.inf, matrix.row_lower)), options


class NonNegativeOnly(Honest):
    """Gives free columns the lower bound 0."""

    def before(self, matrix: MilpMatrix, options: SolveOptions) -> tuple[MilpMatrix, SolveOptions]:
        return replace(matrix, lower=np.where(np.isinf(matrix.lower), 0.0, matrix.lower)), options


class RaisesForLimits(Honest):
    """Throws where it should return."""

    def after(self, matrix: MilpMatrix, result: RawResult) -> RawResult:
        if result.limit is not None:
            raise RuntimeError("time limit reached")
        return result


class IgnoresTimeLimit(Honest):
    """Runs to a node limit of its own and calls that the end."""

    def before(self, matrix: MilpMatrix, options: SolveOptions) -> tuple[MilpMatrix, SolveOptions]:
        return matrix, replace(options, time_limit=None, node_limit=1 if options.node_limit is None else None)

    def after(self, matrix: MilpMatrix, result: RawResult) -> RawResult:
        return replace(result, limit=None)


class IgnoresUnknownOptions(Honest):
    """Takes any native option in silence."""

    def before(self, matrix: MilpMatrix, options: SolveOptions) -> tuple[MilpMatrix, SolveOptions]:
        return matrix, replace(options, native={})


class FlippedDuals(Honest):
    """Shadow prices with the wrong sign."""

    def after(self, matrix: MilpMatrix, result: RawResult) -> RawResult:
        return replace(result, row_duals=None if result.row_duals is None else -result.row_duals)


class DualsOfIntegers(Honest):
    """Prices for integer programmes."""

    def after(self, matrix: MilpMatrix, result: RawResult) -> RawResult:
        rows, columns = matrix.shape
        return replace(result, row_duals=np.zeros(rows), reduced_costs=np.zeros(columns))


class UnboundedIsOptimal(Honest):
    """Reports 1e20 as the optimum of an unbounded model."""

    def after(self, matrix: MilpMatrix, result: RawResult) -> RawResult:
        if result.reason not in (Reason.UNBOUNDED, Reason.INFEASIBLE_OR_UNBOUNDED):
            return result
        x = np.full(matrix.shape[1], 1e20)
        return replace(result, reason=Reason.OPTIMAL, x=x, bound=float(matrix.c @ x))


class InfeasibleIsOptimal(Honest):
    """Answers an infeasible model with zeros."""

    def after(self, matrix: MilpMatrix, result: RawResult) -> RawResult:
        if result.reason is not Reason.INFEASIBLE:
            return result
        return replace(result, reason=Reason.OPTIMAL, x=np.zeros(matrix.shape[1]), bound=matrix.offset)


class FeasibleIsInfeasible(Honest):
    """Gives up with "infeasible"."""

    def after(self, matrix: MilpMatrix, result: RawResult) -> RawResult:
        return RawResult(Reason.INFEASIBLE, None, "infeasible", None, float("nan"), effective=result.effective)


class BragsAboutStarts(Honest):
    """Says of every start that it was accepted."""

    def after(self, matrix: MilpMatrix, result: RawResult) -> RawResult:
        return replace(result, start_accepted=True)


class StaleIncumbents(Honest):
    """Tells of incumbents of the wrong point."""

    def tell(self, listener: Listener, event: SolveProgress) -> None:
        solution = event.solution
        listener(event if solution is None else replace(event, solution=lambda: np.zeros_like(solution())))


class BackwardProgress(Honest):
    """Tells of bounds that fall and rise."""

    _count = 0

    def tell(self, listener: Listener, event: SolveProgress) -> None:
        self._count += 1
        listener(replace(event, bound=(event.bound or 0.0) - self._count))


class Chatty(Honest):
    """Prints although nobody asked."""

    def after(self, matrix: MilpMatrix, result: RawResult) -> RawResult:
        os.write(1, b"solved!\n")
        return result


class ForgetsSeed(Honest):
    """Another random seed every time."""

    _count = 0

    def before(self, matrix: MilpMatrix, options: SolveOptions) -> tuple[MilpMatrix, SolveOptions]:
        type(self)._count += 1
        return matrix, replace(options, seed=type(self)._count, presolve=type(self)._count % 2 == 0)


class _Lone(Honest):
    """Reports the trivial point of the matrix as an incumbent, then misbehaves; for isolated solves."""

    def solve(
        self,
        matrix: MilpMatrix,
        options: SolveOptions,
        *,
        start: Floats | None = None,
        on_progress: Listener | None = None,
    ) -> RawResult:
        if start is not None and on_progress is not None:
            on_progress(SolveProgress(float(matrix.c @ start), 0.0, 0.0, lambda: start))
        self.misbehave()
        return RawResult(Reason.NO_SOLUTION_FOUND, Limit.OTHER, "came back", None, float("nan"))

    def misbehave(self) -> None:
        raise NotImplementedError


class Hangs(_Lone):
    """Never comes back."""

    def misbehave(self) -> None:
        while True:
            time.sleep(0.1)


class Crashes(_Lone):
    """Dies without a word, as native code does."""

    def misbehave(self) -> None:
        os.abort()


class Hoards(_Lone):
    """Takes ever more memory."""

    def misbehave(self) -> None:
        hoard: list[Floats] = []
        while True:
            hoard.append(np.ones(4_000_000))
            time.sleep(0.02)


#: Every liar with the compliance cases of which at least one must fail.
LIARS: dict[type[Honest], tuple[str, ...]] = {
    WrongBound: ("integer_maximum", "bound_never_passes_the_optimum"),
    LostIncumbent: ("time_limit_keeps_the_incumbent",),
    LeakingOptions: ("options_do_not_leak",),
    ClaimedOptimum: ("integer_maximum", "random_programmes_equal_enumeration", "time_limit_keeps_the_incumbent"),
    WrongSense: ("linear_maximum",),
    NoConstant: ("objective_constant",),
    NoIntegrality: ("integer_minimum", "infeasible_integer"),
    NoLowerSides: ("range_and_equality_rows", "random_programmes_equal_enumeration"),
    NonNegativeOnly: ("free_columns",),
    RaisesForLimits: ("no_time_at_all",),
    IgnoresTimeLimit: ("no_time_at_all",),
    IgnoresUnknownOptions: ("unknown_native_option_raises",),
    FlippedDuals: ("duals_are_shadow_prices",),
    DualsOfIntegers: ("no_duals_of_integer_programmes",),
    UnboundedIsOptimal: ("unbounded_linear",),
    InfeasibleIsOptimal: ("infeasible_linear",),
    FeasibleIsInfeasible: ("linear_minimum", "start_survives_a_limit"),
    BragsAboutStarts: ("infeasible_start_is_harmless",),
    StaleIncumbents: ("progress_carries_incumbents",),
    BackwardProgress: ("progress_is_monotone",),
    Chatty: ("silent_by_default",),
    ForgetsSeed: ("same_seed_same_answer",),
}
