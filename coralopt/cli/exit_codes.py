"""Exit codes of the command line; documented in docs/commands.md."""

from __future__ import annotations

from coralopt.errors import CoraloptError, InfeasibleError, LicenseLimitError, NoSolutionError, SolverNotFoundError

OK = 0
#: A check failed: the plan is not what it says.
CHECK_FAILED = 1
#: The input cannot be used: scenario, library, plan, option or command line.
BAD_INPUT = 2
#: The pool cannot meet every demand.
INFEASIBLE = 3
#: The solver is not installed or its licence does not cover the model.
NO_SOLVER = 4
#: A limit passed before any plan was found.
NO_PLAN_IN_TIME = 5
#: Ctrl-C.
INTERRUPTED = 130


def exit_code(error: CoraloptError) -> int:
    """The exit code that stands for this error."""
    if isinstance(error, InfeasibleError):
        return INFEASIBLE
    if isinstance(error, (SolverNotFoundError, LicenseLimitError)):
        return NO_SOLVER
    if isinstance(error, NoSolutionError):
        return NO_PLAN_IN_TIME
    return BAD_INPUT
