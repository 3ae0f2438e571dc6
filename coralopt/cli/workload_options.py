"""Arguments and option groups of the commands about requests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coralopt.cli.console import file_to_write_as
from coralopt.cli.option_groups import OptionGroup, option

if TYPE_CHECKING:
    from coralopt.workload import ArrivalOptions


TraceArgument = Annotated[
    Path,
    typer.Argument(metavar="TRACE", help="Azure, BurstGPT, Mooncake or plain trace; CSV, JSON lines, Parquet, .gz."),
]
GeneratorArgument = Annotated[str, typer.Argument(metavar="GEN", help="Packaged generator or generator file.")]
#: Callback of options for tables and traces.
table_to_write = file_to_write_as(".csv", ".gz", ".parquet")
OutputOption = Annotated[
    Path, typer.Option("--output", "-o", help="Write here; .parquet and .gz are understood.", callback=table_to_write)
]
ModelFile = Annotated[
    Path, typer.Option("--output", "-o", help="Write the model here.", callback=file_to_write_as(".json"))
]
SortFlag = Annotated[bool, typer.Option("--sort", help="Sort a plain trace that is out of order.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Equal seeds give equal results.")]
DurationOption = Annotated[float, typer.Option(help="Length of the trace, s.")]


@dataclass(frozen=True)
class DrawOptions(OptionGroup):
    """How a trace is drawn."""

    duration: DurationOption = 3600.0
    seed: SeedOption = 0
    start_hour: float = option(0.0, "Hour of the day at time 0, for a generator with a daily shape.")
    tick: bool = option(True, "Keep the clock of the fitted log, such as one stamp every 3 s.", "--tick/--no-tick")
    exact_rate: bool = option(
        False, "Exactly rate x duration requests; a bursty trace's rate is random otherwise.", "--exact-rate"
    )

    @property
    def arrivals(self) -> ArrivalOptions:
        """The same as the generators take it."""
        from coralopt.workload import ArrivalOptions

        return ArrivalOptions(self.start_hour, self.tick, self.exact_rate)


@dataclass(frozen=True)
class MixOptions(DrawOptions):
    """The same for a trace of all models."""

    duration: DurationOption = 1800.0


@dataclass(frozen=True)
class OriginOptions(OptionGroup):
    """What a fitted model is called, and what it was fitted to."""

    name: str | None = option(None, "Name of the fitted model; the file's by default.")
    source: str = option("", "Where the data comes from.")
    licence: str = option("", "Licence of the data.")


@dataclass(frozen=True)
class ConvertOptions(OptionGroup):
    """What a trace goes through, in this order."""

    start: float = option(0.0, "Leave out what arrives before this, s.")
    end: float | None = option(None, "Leave out what arrives from here on, s.")
    only: str | None = option(None, "Only the requests of this model.")
    keep: float | None = option(None, "Keep each request with this probability.")
    repeat: int = option(1, "How many times over.", least=1)
    rate: float | None = option(None, "Scale the clock to this many requests/s.")
    share: list[str] | None = option(
        None, "Give requests to models at random by share; may be repeated.", metavar="MODEL=SHARE"
    )
    seed: SeedOption = 0


@dataclass(frozen=True)
class EstimateOptions(OptionGroup):
    """How much a pool is to offer."""

    panel = "How much"

    plan: Path | None = option(None, "Estimated demand: the nodes that this plan uses.")
    required: float | None = option(None, "Estimated demand as a number, in --unit.")
    rule: str = option("ample", "ample (+300 %), scarce-core (+25 %) or scarce-extended (+75 %).")
    headroom: float | None = option(None, "Headroom in place of a rule; 0.25: 25 % above the estimate.")
    unit: str = option("gpus", "What counts: gpus, memory (GiB) or bandwidth (GB/s).")
    at: str = option("mean", "The headroom holds for the mean over epochs, or the tightest: min.")


@dataclass(frozen=True)
class HourOptions(OptionGroup):
    """Which hours the epochs follow."""

    panel = "Which hours"

    hourly: Path | None = option(None, "Hourly GPU table to follow, in place of the generator.")
    generator: str = option("gfs", "Packaged availability model or a file.")
    hours_per_epoch: float = option(1.0, "How far the hourly table moves on with each epoch.")
    first_hour: int | None = option(None, "Hour at epoch 0, the same in all regions.")
    seed: SeedOption = 0
