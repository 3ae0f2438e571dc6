"""Throughput tables T_j(g): layer times measured or modelled, turned into tokens/s under memory and latency limits."""

from coralopt.throughput.layer_times import LayerTimes, LayerTimeSource
from coralopt.throughput.sources import build_tables, explain_infeasible, throughput_source
from coralopt.throughput.tables import FIRST, LAST, MIDDLE, ThroughputTables, stage_role

__all__ = [
    "FIRST",
    "LAST",
    "MIDDLE",
    "LayerTimeSource",
    "LayerTimes",
    "ThroughputTables",
    "build_tables",
    "explain_infeasible",
    "stage_role",
    "throughput_source",
]
