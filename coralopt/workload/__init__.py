"""Request traces, generators fitted to them, and tables of demand, availability and prices per epoch."""

from coralopt.workload.epochs import (
    EpochAvailability,
    EpochDemand,
    EpochPrices,
    read_availability,
    read_demand,
    read_prices,
    write_availability,
    write_demand,
    write_prices,
)
from coralopt.workload.read import TraceFile, read_trace, read_trace_file
from coralopt.workload.trace import UNNAMED, Trace
from coralopt.workload.write import write_trace

__all__ = [
    "UNNAMED",
    "EpochAvailability",
    "EpochDemand",
    "EpochPrices",
    "Trace",
    "TraceFile",
    "read_availability",
    "read_demand",
    "read_prices",
    "read_trace",
    "read_trace_file",
    "write_availability",
    "write_demand",
    "write_prices",
    "write_trace",
]
