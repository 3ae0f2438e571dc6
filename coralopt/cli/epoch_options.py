"""The option groups of commands that plan epoch after epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from coralopt.cli.console import JsonFlag, folder_to_write, parse_numbers
from coralopt.cli.option_groups import OptionGroup, option
from coralopt.cli.shared_options import PeakOptions
from coralopt.errors import OptionError

if TYPE_CHECKING:
    from coralopt.planning import EpochInputs
    from coralopt.scenario.resolved import ResolvedScenario
    from coralopt.workload import EpochAvailability, EpochPrices

#: Node initialization time that several epoch lengths are compared with, s (paper, section 5.1).
INITIALIZATION_S = 360.0


@dataclass(frozen=True)
class EpochCase:
    """One run over epochs.

    Attributes:
        epoch_s: Length of an epoch, s.
        inputs: Demand, availability and prices of every epoch.
        penalty: The initialization penalty K; the scenario's own when ``None``.
        remarks: What is worth knowing of the inputs.
        windows: Short windows of the trace, where the perfect system's cost is asked for.
    """

    epoch_s: float
    inputs: EpochInputs
    penalty: float | None
    remarks: tuple[str, ...]
    windows: EpochInputs | None = None


@dataclass(frozen=True)
class EpochOptions(PeakOptions):
    """What is known of every epoch."""

    panel = "Epochs"

    demand: Path | None = option(
        None, "Table epoch,model,phase,tokens_s; or a request trace (arrival time, input, output tokens)."
    )
    epoch: str = option(
        "3600", "Epoch length of a trace, s; several print cost and churn against the interval.", metavar="S[,S...]"
    )
    initialization: float | None = option(
        None, "Node initialization time; K is this over the epoch length of a trace.", metavar="S", least=0
    )
    sort: bool = option(False, "Sort a trace whose times fall.", "--sort")
    trace_model: str | None = option(None, "The model of a trace that names none.")
    availability: Path | None = option(None, "Table epoch,region,configuration,count.")
    prices: Path | None = option(None, "Table epoch,region,configuration,usd_h.")
    epochs: int | None = option(None, "How many epochs; all by default.", least=1)
    penalty: str | None = option(None, "Initialization penalty; several print churn against cost.", metavar="K[,K...]")
    transition: str | None = option(
        None, "start-first: instances stop once the new ones run, so nodes must be there for both.", metavar="RULE"
    )

    def on(self, scenario: ResolvedScenario) -> ResolvedScenario:
        """The scenario with the rule of its transitions."""
        return scenario if self.transition is None else scenario.with_transition(self.transition)

    @cached_property
    def penalties(self) -> tuple[float | None, ...]:
        """Every K that was given; ``None`` for the scenario's own."""
        return (None,) if self.penalty is None else tuple(parse_numbers("--penalty", self.penalty, 0.0, 1000.0))

    @cached_property
    def lengths_s(self) -> tuple[float, ...]:
        """Every length of an epoch that was given, s."""
        return tuple(parse_numbers("--epoch", self.epoch, 1.0, 1e7))

    @cached_property
    def is_trace(self) -> bool:
        """Whether ``--demand`` is a request trace, which ``--epoch`` cuts."""
        from coralopt.planning import is_demand_table

        return self.demand is not None and not is_demand_table(self.demand)

    def supply(self) -> tuple[EpochAvailability | None, EpochPrices | None]:
        """The tables of availability and prices."""
        from coralopt.workload import read_availability, read_prices

        return (
            None if self.availability is None else read_availability(self.availability),
            None if self.prices is None else read_prices(self.prices),
        )

    def check(self) -> None:
        """Refuse options that do not go together.

        Raises:
            OptionError: What was found.
        """
        if not self.is_trace and (len(self.lengths_s) > 1 or self.initialization is not None or self.trace_model):
            raise OptionError(
                "--epoch, --initialization and --trace-model are for a trace in --demand; tables have epochs"
            )
        if not self.is_trace and (self.peak is not None or self.perfect):
            raise OptionError("--peak and --perfect look at short windows of a trace in --demand; tables have none")
        if self.penalty is not None and self.initialization is not None:
            raise OptionError("--initialization gives K, and so does --penalty; choose one")

    def cases(self, scenario: ResolvedScenario) -> Iterator[EpochCase]:
        """Every run asked for."""
        from coralopt.planning import epoch_inputs, read_demand_or_trace, windows_of

        offered, priced = self.supply()
        for length_s in self.lengths_s:
            needed = None
            if self.demand is not None:
                read = partial(read_demand_or_trace, self.demand, scenario, model=self.trace_model, sort=self.sort)
                needed = read(length_s, peak=self.of_windows)
            count = self.epochs
            if self.is_trace and needed is not None and count is None:
                # A trace is as long as it is; the tables beside it may end earlier.
                count = min(len(table) for table in (needed.demand, offered, priced) if table is not None)
            inputs = epoch_inputs(scenario, None if needed is None else needed.demand, offered, priced, count)
            start_s = self.initialization
            if start_s is None and len(self.lengths_s) > 1:
                start_s = INITIALIZATION_S
            remarks = () if needed is None else needed.remarks
            windows = None
            if self.perfect:
                windows = windows_of(inputs, length_s, read(self.window).demand.tokens_s, self.window)
            for k in self.penalties:
                yield EpochCase(length_s, inputs, k if start_s is None else start_s / length_s, remarks, windows)


@dataclass(frozen=True)
class ForecastOptions(OptionGroup):
    """What demand an epoch is planned for."""

    panel = "Epochs"

    forecast: str = option("given", "given, last, mean:EPOCHS, seasonal:EPOCHS, or module:function of your own.")
    headroom: float = option(0.0, "Share added to the forecast, e.g. 0.1.", least=0)


@dataclass(frozen=True)
class FolderOptions(OptionGroup):
    """Where the plans go."""

    output: Path | None = option(
        None, "Folder for plans and changes; goes on where it stopped.", "--output", "-o", check=folder_to_write
    )
    restart: bool = option(False, "Begin anew in a folder that holds other plans.", "--restart")
    json_output: JsonFlag = False
