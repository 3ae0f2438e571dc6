"""The solver-agnostic core: problems in, checked solutions out, solvers behind one small interface."""

from coralopt.solving.attached import AttachedProblem, attach
from coralopt.solving.backend import (
    Availability,
    Backend,
    Basis,
    Capability,
    Listener,
    MatrixBackend,
    ProblemBackend,
    RawAnswer,
    RawResult,
    SolveProgress,
    is_matrix_backend,
)
from coralopt.solving.bridge import fast_build, matrix_from_pyomo
from coralopt.solving.compiled import Compiled, compile_problem
from coralopt.solving.extras import Extras, Indicator, SosSet
from coralopt.solving.files import FileCheck, check_solution_file, read_model, write_model, write_solution
from coralopt.solving.infeasibility import Conflict, SmallestRelaxation, find_conflict, smallest_relaxation
from coralopt.solving.job import Job
from coralopt.solving.matrix import Lazy, LazyNames, LazyRow, MilpMatrix
from coralopt.solving.options import SolveOptions, checked_native, unknown_option
from coralopt.solving.plugin import MatrixPlugin, Status, lazy, named_options, statuses, stopped
from coralopt.solving.problem import (
    ArrayFormulation,
    Check,
    Formulation,
    Problem,
    StartingFormulation,
    Violation,
    formulation_name,
)
from coralopt.solving.registry import (
    backend_version,
    get_backend,
    require_backend,
    solver_listing,
    solver_names,
    solvers_with,
)
from coralopt.solving.session import MatrixSession
from coralopt.solving.solution import MatrixResult, Solution
from coralopt.solving.solve import solve, solve_compiled
from coralopt.solving.solve_matrix import heeded, solve_matrix
from coralopt.solving.status import Limit, Proof, Reason, Termination, gap_reached, relative_gap

__all__ = [
    "ArrayFormulation",
    "AttachedProblem",
    "Availability",
    "Backend",
    "Basis",
    "Capability",
    "Check",
    "Compiled",
    "Conflict",
    "Extras",
    "FileCheck",
    "Formulation",
    "Indicator",
    "Job",
    "Lazy",
    "LazyNames",
    "LazyRow",
    "Limit",
    "Listener",
    "MatrixBackend",
    "MatrixPlugin",
    "MatrixResult",
    "MatrixSession",
    "MilpMatrix",
    "Problem",
    "ProblemBackend",
    "Proof",
    "RawAnswer",
    "RawResult",
    "Reason",
    "SmallestRelaxation",
    "Solution",
    "SolveOptions",
    "SolveProgress",
    "SosSet",
    "StartingFormulation",
    "Status",
    "Termination",
    "Violation",
    "attach",
    "backend_version",
    "check_solution_file",
    "checked_native",
    "compile_problem",
    "fast_build",
    "find_conflict",
    "formulation_name",
    "gap_reached",
    "get_backend",
    "heeded",
    "is_matrix_backend",
    "lazy",
    "matrix_from_pyomo",
    "named_options",
    "read_model",
    "relative_gap",
    "require_backend",
    "smallest_relaxation",
    "solve",
    "solve_compiled",
    "solve_matrix",
    "solver_listing",
    "solver_names",
    "solvers_with",
    "statuses",
    "stopped",
    "unknown_option",
    "write_model",
    "write_solution",
]
