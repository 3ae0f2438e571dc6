"""Request traces, generators fitted to them, and tables of demand, availability and prices per epoch."""

from coralopt.workload.generation.arrivals import ArrivalOptions
from coralopt.workload.generation.for_scenario import ModelLoad, generate_for_scenario, model_loads
from coralopt.workload.generation.generator import (
    Generator,
    fit_generator,
    load_generator,
    packaged_generators,
    save_generator,
)
from coralopt.workload.generation.poisson import poisson_for_scenario
from coralopt.workload.generation.traffic import Traffic, trace_digest
from coralopt.workload.series.availability import (
    RULES,
    HourlyAvailability,
    PoolHours,
    PoolScale,
    pool_availability,
    read_hourly,
)
from coralopt.workload.series.availability_model import (
    AvailabilityModel,
    fit_availability,
    load_availability_model,
    save_availability_model,
)
from coralopt.workload.series.epochs import (
    EpochAvailability,
    EpochDemand,
    EpochPrices,
    Peak,
    read_availability,
    read_demand,
    read_prices,
    write_availability,
    write_demand,
)
from coralopt.workload.traces.classes import request_classes
from coralopt.workload.traces.operations import (
    EPOCH_S,
    IMBALANCES,
    assign_models,
    cut,
    cut_epochs,
    epoch_demand,
    mix,
    only_model,
    repeat,
    request_shares,
    scale_time,
    scale_to_rate,
    scenario_demand,
    thin,
)
from coralopt.workload.traces.prefix_hits import PrefixHits, prefix_hits
from coralopt.workload.traces.read import TraceFile, read_trace, read_trace_file
from coralopt.workload.traces.statistics import TraceStatistics, describe
from coralopt.workload.traces.trace import UNNAMED, Trace
from coralopt.workload.traces.write import write_trace

__all__ = [
    "EPOCH_S",
    "IMBALANCES",
    "RULES",
    "UNNAMED",
    "ArrivalOptions",
    "AvailabilityModel",
    "EpochAvailability",
    "EpochDemand",
    "EpochPrices",
    "Generator",
    "HourlyAvailability",
    "ModelLoad",
    "Peak",
    "PoolHours",
    "PoolScale",
    "PrefixHits",
    "Trace",
    "TraceFile",
    "TraceStatistics",
    "Traffic",
    "assign_models",
    "cut",
    "cut_epochs",
    "describe",
    "epoch_demand",
    "fit_availability",
    "fit_generator",
    "generate_for_scenario",
    "load_availability_model",
    "load_generator",
    "mix",
    "model_loads",
    "only_model",
    "packaged_generators",
    "poisson_for_scenario",
    "pool_availability",
    "prefix_hits",
    "read_availability",
    "read_demand",
    "read_hourly",
    "read_prices",
    "read_trace",
    "read_trace_file",
    "repeat",
    "request_classes",
    "request_shares",
    "save_availability_model",
    "save_generator",
    "scale_time",
    "scale_to_rate",
    "scenario_demand",
    "thin",
    "trace_digest",
    "write_availability",
    "write_demand",
    "write_trace",
]
