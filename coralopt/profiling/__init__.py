"""Measuring T_j(g): run truncated models on the machine at hand, fit c0 + c1 j, write a source that scenarios use."""

from coralopt.profiling.fit import Fit, Point, fit_points
from coralopt.profiling.profile import ProfileOptions, compare_with, default_layers, measured_node, save_measurements
from coralopt.profiling.torch_run import profile_with_torch
from coralopt.profiling.vllm_files import read_bench_files
from coralopt.profiling.vllm_run import profile_with_vllm

__all__ = [
    "Fit",
    "Point",
    "ProfileOptions",
    "compare_with",
    "default_layers",
    "fit_points",
    "measured_node",
    "profile_with_torch",
    "profile_with_vllm",
    "read_bench_files",
    "save_measurements",
]
