"""How one run ended, in one word; the report counts these and leaves none out."""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """The end of one run."""

    #: A checked answer, proven to the gap asked for.
    OPTIMAL = "optimal"
    #: Proven that there is no answer.
    INFEASIBLE = "infeasible"
    #: A checked answer that is not proven.
    FEASIBLE = "feasible"
    #: A limit came before any answer.
    NO_SOLUTION = "no solution"
    #: Killed after the time limit and the grace.
    HUNG = "hung"
    #: Killed over the memory limit.
    MEMORY = "out of memory"
    #: The process ended without a word: a crash or a signal.
    DIED = "died"
    #: An error that it could still tell.
    ERROR = "error"
    #: An answer or a bound that coralopt's own check refuses.
    WRONG = "wrong answer"
    #: Not run: the licence does not cover the model.
    LICENCE = "not run: licence"
    #: Not run: the solver is not installed.
    NOT_INSTALLED = "not run: not installed"
    #: Not run: the solver cannot take this.
    UNSUPPORTED = "not run: unsupported"

    @property
    def was_run(self) -> bool:
        """Whether the solver had its chance."""
        return self not in (Outcome.LICENCE, Outcome.NOT_INSTALLED, Outcome.UNSUPPORTED)

    @property
    def proven(self) -> bool:
        """Whether nothing is left to prove."""
        return self in (Outcome.OPTIMAL, Outcome.INFEASIBLE)
