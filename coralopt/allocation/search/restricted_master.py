"""The step ``restricted master``: an integer programme over the templates of fractional allocations.

The master programme of the decomposition takes fractions of whole coverings, so it rests on few templates, and each of
them is in instances that fit together at good prices. An integer programme over these alone, in every region, is small
enough for a back end to find good allocations in seconds (the restricted master heuristic of column generation: Joncour
et al. 2010, "Column generation based primal heuristics"). Where they meet no demand as whole instances, columns of least
bound follow. It gives allocations, no bounds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from coralopt.allocation.search.context import SearchContext
from coralopt.allocation.search.fixing import RACED, keep_answer, solution_of, solve_part
from coralopt.allocation.search.part import Part
from coralopt.allocation.search.restriction import Restriction
from coralopt.solving import Reason
from coralopt.threads import Lanes
from coralopt.types import Floats, Ints

#: Seconds of all steps so far below which nothing is begun beside them.
SHORT = 2.0
#: Columns of least bound that join where the templates alone are infeasible, twice as many each time.
MORE, MOST = 300, 1_200
#: Share of the instances of a fractional allocation that are whole from which on what they leave is a small problem.
WHOLE = 0.5


def mostly_whole(values: Floats) -> bool:
    """Whether most instances of a fractional allocation, float64 (N,) by column, are whole ones."""
    return bool(np.floor(values + 1e-9).sum() >= WHOLE * values.sum())


def restricted_master(search: SearchContext, fractional: Sequence[Floats], ranking: Floats, share: float) -> None:
    """Look for an allocation among the templates of fractional ones; only within a time limit, which bounds the work.

    Args:
        search: What is known; templates serve one model phase each.
        fractional: float64 (N,) each, instances of every column in fractions.
        ranking: float64 (N,), bounds of columns.
        share: Of what a step may take of the time left.
    """
    if math.isinf(search.left()) or not search.open():
        return
    search.gather()
    deadline, master = time.perf_counter() + share * search.share_of_left(), _Master(search, fractional, ranking)
    more = 0
    while more <= MOST and time.perf_counter() < deadline:
        templates = master.templates(more)
        left = deadline - time.perf_counter()
        # The floor says from when on an allocation is good enough, and makes the back end look where others end.
        solution = solve_part(search, search.small, templates, search.for_solutions(left), [search.bound])
        if solution.termination.reason is not Reason.INFEASIBLE or master.restricted.full:
            break
        more = max(MORE, 2 * more)
    search.lap("restricted master")


def begin_restricted_master(search: SearchContext, fractional: Sequence[Floats], ranking: Floats) -> None:
    """The same beside the steps that raise the bound, until one comes that needs all processors; see ``gather``.

    Not where these steps are short.
    """
    short = sum(search.seconds.values()) < SHORT or math.isinf(search.left())
    if short or search.lanes == 1 or not search.open() or search.close() or search.beside is not None:
        return
    templates = _Master(search, fractional, ranking).templates(0)
    # Another seed than those that race later.
    options = replace(search.for_solutions(search.left()), seed=search.solve_options.seed + RACED)
    part = Part.of(search.small, templates, search.bound)
    lanes = Lanes(2)
    piece = lanes.begin(lambda: solution_of(search, part, options))

    def end() -> None:
        with lanes:
            lanes.stop()
            for solution in lanes.wait(piece):
                keep_answer(search, templates, solution)
        if lanes.interrupted:
            search.interrupt()

    search.beside = end


class _Master:
    """The templates of some fractional allocations, and others of least bound."""

    def __init__(self, search: SearchContext, fractional: Sequence[Floats], ranking: Floats) -> None:
        columns = self.columns = search.columns
        self.joined = columns.of_pairs(search.allocation)
        self.joined[np.any([values > 0 for values in fractional], axis=0)] = True
        licence = search.backend.probe().size_limit
        most = licence[1] if search.options.restrict is None and licence is not None else search.options.restrict
        self.restricted, self.order = Restriction.of(columns, ranking, most), np.argsort(ranking, kind="stable")

    def templates(self, more: int) -> Ints:
        """int64 (k,): theirs, and those of so many columns of least bound."""
        self.joined[self.order[:more]] = True
        return self.restricted.cut(np.unique(self.columns.template[self.joined]))
