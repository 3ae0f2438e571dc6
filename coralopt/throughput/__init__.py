"""Throughput tables T_j(g): layer times measured or modelled, turned into tokens/s under memory and latency limits."""

from coralopt.throughput.engines import engine_runs, heads_fit, only_executable
from coralopt.throughput.layer_times import LayerTimes, LayerTimeSource
from coralopt.throughput.sources import budget_tables, build_tables, link_tables, source_tables, throughput_source
from coralopt.throughput.summary import explain_infeasible, falls_in_layers
from coralopt.throughput.tables import FIRST, LAST, MIDDLE, ThroughputTables, stage_role

__all__ = [
    "FIRST",
    "LAST",
    "MIDDLE",
    "LayerTimeSource",
    "LayerTimes",
    "ThroughputTables",
    "budget_tables",
    "build_tables",
    "engine_runs",
    "explain_infeasible",
    "falls_in_layers",
    "heads_fit",
    "link_tables",
    "only_executable",
    "source_tables",
    "stage_role",
    "throughput_source",
]
