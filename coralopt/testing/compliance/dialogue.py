"""Cases about starts, progress, logs, interruption, and duals: what passes between a user and a running solver."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from coralopt.solving import (
    Capability,
    LazyRow,
    Limit,
    MatrixBackend,
    MilpMatrix,
    Reason,
    SolveOptions,
    SolveProgress,
    solve_matrix,
)
from coralopt.solving.matrix import with_lazy_rows
from coralopt.solving.verdict import examine
from coralopt.testing.compliance.case import (
    INFINITY,
    best_by_enumeration,
    case,
    knapsack,
    market_split,
    matrix,
    trivial_start,
)
from coralopt.types import Floats


@case(Capability.BOXED, Capability.MIP_START, Capability.NODE_LIMIT)
def complete_start_is_accepted(backend: MatrixBackend) -> None:
    """A feasible start is taken, and said to be."""
    programme = market_split()
    result = solve_matrix(programme, backend, SolveOptions(node_limit=1), start=trivial_start(programme))
    assert result.start_accepted is not False
    assert result.x is not None


@case(Capability.BOXED, Capability.MIP_START)
def start_survives_a_limit(backend: MatrixBackend) -> None:
    """No time to find anything: the start is the answer."""
    programme = market_split()
    start = trivial_start(programme)
    result = solve_matrix(programme, backend, SolveOptions(time_limit=0.0), start=start)
    assert result.termination.reason is Reason.FEASIBLE, result.termination
    assert result.objective <= float(programme.c @ start) + 1e-6


@case(Capability.BOXED, Capability.MIP_START)
def infeasible_start_is_harmless(backend: MatrixBackend) -> None:
    """A start that violates a row must not change the optimum, nor be called accepted."""
    programme = knapsack(items=12)
    result = solve_matrix(programme, backend, SolveOptions(rel_gap=0.0), start=np.ones(12))
    assert result.objective == best_by_enumeration(programme)
    assert result.start_accepted is not True


@case(Capability.BOXED, Capability.MIP_START)
def partial_start_is_harmless(backend: MatrixBackend) -> None:
    """NaN where nothing is known."""
    programme = knapsack(items=12)
    start = np.full(12, np.nan)
    start[:3] = 1.0
    result = solve_matrix(programme, backend, SolveOptions(rel_gap=0.0), start=start)
    assert result.objective == best_by_enumeration(programme)


@case(Capability.BOXED, Capability.PROGRESS)
def progress_is_monotone(backend: MatrixBackend) -> None:
    """Incumbents only improve, bounds only tighten, and both agree with the result."""
    programme = market_split()
    events: list[SolveProgress] = []
    result = solve_matrix(programme, backend, SolveOptions(time_limit=0.5, rel_gap=0.0), on_progress=events.append)
    objectives = [event.objective for event in events if event.objective is not None]
    bounds = [event.bound for event in events if event.bound is not None]
    assert objectives, "no incumbent was reported"
    assert all(later <= earlier + 1e-6 for earlier, later in itertools.pairwise(objectives)), objectives
    assert all(later >= earlier - 1e-6 for earlier, later in itertools.pairwise(bounds)), bounds
    assert result.objective <= objectives[-1] + 1e-6
    assert all(later.seconds >= earlier.seconds for earlier, later in itertools.pairwise(events))


@case(Capability.BOXED, Capability.PROGRESS)
def progress_carries_incumbents(backend: MatrixBackend) -> None:
    """An incumbent told is a solution with the objective told."""
    programme = market_split()
    seen: list[tuple[float, Floats]] = []

    def look(event: SolveProgress) -> None:
        if event.solution is not None and event.objective is not None:
            seen.append((event.objective, event.solution()))

    solve_matrix(programme, backend, SolveOptions(time_limit=0.5, rel_gap=0.0), on_progress=look)
    assert seen, "no incumbent came with its solution"
    for objective, x in seen:
        assert math.isclose(float(programme.c @ x), objective, rel_tol=1e-6, abs_tol=1e-5)
        assert np.abs(programme.a @ x - programme.row_lower).max() < 1e-4


@case(Capability.BOXED, Capability.PROGRESS)
def errors_of_the_listener_surface(backend: MatrixBackend) -> None:
    """An exception in a callback ends the solve and reaches the caller."""

    def fail(event: SolveProgress) -> None:
        raise RuntimeError("the listener failed")

    try:
        solve_matrix(market_split(), backend, SolveOptions(time_limit=20.0), on_progress=fail)
    except RuntimeError as error:
        words = str(error)
    else:
        words = "nothing was raised"
    assert "the listener failed" in words, words


@case(Capability.BOXED)
def silent_by_default(backend: MatrixBackend) -> None:
    """Nothing on standard output unless log is asked for."""
    with _output() as words:
        solve_matrix(knapsack(items=10), backend)
    assert words == [""], words


@case(Capability.BOXED)
def log_on_demand(backend: MatrixBackend) -> None:
    """log=True shows the solver's own log."""
    with _output() as words:
        solve_matrix(knapsack(items=10), backend, SolveOptions(log=True))
    assert len(words[0]) > 100, words


@case(Capability.BOXED, Capability.INTERRUPT)
def interrupt_keeps_the_incumbent(backend: MatrixBackend) -> None:
    """Ctrl-C after half a second is a limit: no exception, and the best solution so far."""
    if threading.current_thread() is not threading.main_thread() or os.name == "nt":
        return
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    # Processes started in the background by a shell may ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        result = solve_matrix(market_split(), backend, SolveOptions(time_limit=60.0, rel_gap=0.0))
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
    assert result.termination.limit is Limit.INTERRUPTED, result.termination
    assert result.termination.reason is Reason.FEASIBLE, result.termination


@case(Capability.BOXED)
def works_in_another_thread(backend: MatrixBackend) -> None:
    """Servers solve in worker threads."""
    result: list[float] = []
    worker = threading.Thread(target=lambda: result.append(solve_matrix(knapsack(items=10), backend).objective))
    worker.start()
    worker.join()
    assert result == [best_by_enumeration(knapsack(items=10))]


@case(Capability.LP, Capability.LP_DUALS)
def duals_are_shadow_prices(backend: MatrixBackend) -> None:
    """d objective / d right-hand side, for both senses and both kinds of rows: positive where more costs more."""
    covering = matrix([2, 3], [([1, 1], 4, INFINITY)], integer=False)
    result = solve_matrix(covering, backend)
    assert result.row_duals is not None
    assert math.isclose(result.row_duals[0], 2.0, abs_tol=1e-7), result.row_duals
    packing = matrix([2, 3], [([1, 2], -INFINITY, 8)], (0, 6), integer=False, maximize=True)
    result = solve_matrix(packing, backend)
    assert result.row_duals is not None
    assert math.isclose(result.row_duals[0], 1.5, abs_tol=1e-7), result.row_duals


@case(Capability.LP, Capability.LP_DUALS)
def duals_prove_the_optimum(backend: MatrixBackend) -> None:
    """Weak duality with the reported prices gives the objective back: a proof that needs no other solver."""
    rng = np.random.default_rng(5)
    for maximize in (False, True):
        for _ in range(10):
            programme = _random_linear(rng, maximize)
            result = solve_matrix(programme, backend)
            assert result.termination.reason is Reason.OPTIMAL, result.termination
            assert result.row_duals is not None
            assert result.reduced_costs is not None
            reduced = programme.c - programme.a.T @ result.row_duals
            assert np.allclose(reduced, result.reduced_costs, atol=1e-6)
            proved = programme.offset + _least(result.row_duals, programme.row_lower, programme.row_upper, maximize)
            proved += _least(reduced, programme.lower, programme.upper, maximize)
            assert math.isclose(proved, result.objective, rel_tol=1e-6, abs_tol=1e-6), (proved, result.objective)


@case(Capability.BOXED, Capability.LP_DUALS)
def no_duals_of_integer_programmes(backend: MatrixBackend) -> None:
    """Prices of an integer programme would be a fiction."""
    result = solve_matrix(knapsack(items=8), backend)
    assert result.row_duals is None
    assert result.reduced_costs is None


@case(Capability.LP, Capability.LP_BASIS)
def a_basis_is_a_start(backend: MatrixBackend) -> None:
    """From its own basis a linear programme needs no iteration, from that of other costs it has the same optimum."""
    rng = np.random.default_rng(6)
    for maximize in (False, True):
        for _ in range(5):
            programme = _random_linear(rng, maximize)
            first = solve_matrix(programme, backend)
            assert first.basis is not None
            again = solve_matrix(programme, backend, start=first.basis)
            assert again.iterations == 0, again.iterations
            assert math.isclose(again.objective, first.objective, abs_tol=1e-6)
            other = replace(programme, c=programme.c[::-1].copy())
            value = solve_matrix(other, backend, start=first.basis).objective
            assert math.isclose(value, solve_matrix(other, backend).objective, abs_tol=1e-6)


@case(Capability.BOXED)
def rows_that_come_later(backend: MatrixBackend) -> None:
    """Rows are asked for at solutions only; the optimum is that of all rows from the beginning."""
    pairs = [(i, j) for i, j in itertools.combinations(range(10), 2) if (i + j) % 3 == 0]
    every = [LazyRow({i: 1.0, j: 1.0}, -INFINITY, 1.0) for i, j in pairs]
    lengths: list[int] = []

    def ask(x: Floats) -> list[LazyRow]:
        lengths.append(len(x))
        return [row for row in every if row.is_violated(x)][:2]

    for maximize in (True, False):
        programme = knapsack(maximize, items=10)
        result = solve_matrix(programme, backend, SolveOptions(rel_gap=0.0), lazy=ask)
        assert result.objective == best_by_enumeration(with_lazy_rows(programme, every)), result.objective
    assert set(lengths) == {10}


@case(Capability.BOXED, Capability.POOL)
def several_solutions(backend: MatrixBackend) -> None:
    """Different ones, the best first, each of them a solution."""
    programme = knapsack(items=10)
    result = solve_matrix(programme, backend, SolveOptions(rel_gap=0.0, solutions=4))
    values = [programme.objective(point) for point in result.pool]
    assert 1 < len({point.tobytes() for point in result.pool}) == len(values) <= 4
    assert values == sorted(values, reverse=True)
    assert values[0] == result.objective == best_by_enumeration(programme)
    assert not any(examine(programme, point)[1] for point in result.pool)


@case(Capability.LP, Capability.POOL)
def several_solutions_of_a_linear_programme(backend: MatrixBackend) -> None:
    """Where there is only one to keep it is the optimum."""
    programme = matrix([-3, -2], [([1, 1], -INFINITY, 3)], (0, 2), integer=False)
    result = solve_matrix(programme, backend, SolveOptions(solutions=3))
    assert math.isclose(result.objective, -8.0, abs_tol=1e-6)
    assert math.isclose(programme.objective(result.pool[0]), -8.0, abs_tol=1e-6)


@case(Capability.BOXED)
def export_and_reread_same_optimum(backend: MatrixBackend) -> None:
    """What is written as LP or MPS and read back is the same problem."""
    from pathlib import Path

    from coralopt.solving import read_model, write_model

    programme = knapsack(items=10, offset=12.5)
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("lp", "mps"):
            path = Path(folder) / f"model.{suffix}"
            write_model(programme, path)
            again = read_model(path)
            assert list(again.column_names) == list(programme.column_names)
            assert solve_matrix(again, backend).objective == best_by_enumeration(programme)


def _random_linear(rng: np.random.Generator, maximize: bool) -> MilpMatrix:
    """Feasible and bounded: rows are made around a point of the box."""
    columns, rows = int(rng.integers(2, 7)), int(rng.integers(1, 6))
    point = rng.uniform(0, 4, columns)
    lines = []
    for _ in range(rows):
        row = rng.integers(-4, 5, columns).astype(float)
        value = float(row @ point)
        kind = int(rng.integers(0, 4))
        sides = [(value - 1, INFINITY), (-INFINITY, value + 1), (value, value), (value - 2, value + 1)][kind]
        lines.append((row.tolist(), *sides))
    return matrix(
        rng.integers(-5, 6, columns).tolist(), lines, (0.0, 5.0), integer=False, maximize=maximize, offset=1.5
    )


def _least(price: Floats, lower: Floats, upper: Floats, maximize: bool) -> float:
    """Least (largest when maximising) value of price'z over lower <= z <= upper."""
    price = np.where(np.abs(price) < 1e-8, 0.0, price)
    toward_lower = (price >= 0) != maximize
    side = np.where(toward_lower, lower, upper)
    return float(np.where(price == 0, 0.0, price * np.where(price == 0, 0.0, side)).sum())


@contextlib.contextmanager
def _output() -> Iterator[list[str]]:
    """Standard output of this process, of Python and of native code alike; the list is filled at the end."""
    sys.stdout.flush()
    words: list[str] = []
    with tempfile.TemporaryFile() as file:
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        python, sys.stdout = sys.stdout, os.fdopen(os.dup(1), "w")
        try:
            yield words
        finally:
            sys.stdout.close()
            sys.stdout = python
            _flush_native()
            os.dup2(kept, 1)
            os.close(kept)
            file.seek(0)
            words.append(file.read().decode(errors="replace"))


def _flush_native() -> None:
    """C libraries buffer standard output when it is no terminal."""
    import ctypes

    with contextlib.suppress(Exception):
        ctypes.CDLL(None).fflush(None)
