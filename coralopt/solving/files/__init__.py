"""Models and solutions as files: LP and MPS written and strictly read, and answers checked in exact fractions."""

from coralopt.solving.files.read import read_model
from coralopt.solving.files.solution import FileCheck, check_solution_file, write_solution
from coralopt.solving.files.write import write_model

__all__ = ["FileCheck", "check_solution_file", "read_model", "write_model", "write_solution"]
