"""Comparing solvers and formulations: instances, runs in fresh processes, one results file, an honest report."""

from coralopt.benchmark.arms import Arm, make_arms, parse_arm
from coralopt.benchmark.consistency import conflicts, recheck
from coralopt.benchmark.files import KnownValue, read_solu
from coralopt.benchmark.instances import SUITES, expand, expand_all, parse_instance
from coralopt.benchmark.library import archive_library, write_library
from coralopt.benchmark.markdown import report_markdown
from coralopt.benchmark.outcome import Outcome
from coralopt.benchmark.plots import draw_plots
from coralopt.benchmark.problem_file import load_problem, problem_digest, save_problem
from coralopt.benchmark.results import read_rows, read_whole_rows, write_rows
from coralopt.benchmark.runner import BenchReport, run_bench
from coralopt.benchmark.summary import summarise
from coralopt.benchmark.tables import summary_csv, summary_latex
from coralopt.benchmark.task import BenchTask, Settings, make_tasks

__all__ = [
    "SUITES",
    "Arm",
    "BenchReport",
    "BenchTask",
    "KnownValue",
    "Outcome",
    "Settings",
    "archive_library",
    "conflicts",
    "draw_plots",
    "expand",
    "expand_all",
    "load_problem",
    "make_arms",
    "make_tasks",
    "parse_arm",
    "parse_instance",
    "problem_digest",
    "read_rows",
    "read_solu",
    "read_whole_rows",
    "recheck",
    "report_markdown",
    "run_bench",
    "save_problem",
    "summarise",
    "summary_csv",
    "summary_latex",
    "write_library",
    "write_rows",
]
