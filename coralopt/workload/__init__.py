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
from coralopt.workload.trace import UNNAMED, Trace

__all__ = [
    "UNNAMED",
    "EpochAvailability",
    "EpochDemand",
    "EpochPrices",
    "Trace",
    "read_availability",
    "read_demand",
    "read_prices",
    "write_availability",
    "write_demand",
    "write_prices",
]
