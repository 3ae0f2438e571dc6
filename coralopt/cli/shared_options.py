"""The option groups that several commands take: solver, side constraints, templates, traffic."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from coralopt.cli.console import OptionList, file_to_write_as, parse_options
from coralopt.cli.option_groups import OptionGroup, option

if TYPE_CHECKING:
    from coralopt.allocation import OnInfeasible
    from coralopt.planning import EpochInputs, PlanRequest
    from coralopt.scenario.resolved import ResolvedScenario
    from coralopt.workload import Peak, Traffic


def _library_file(path: Path | None) -> Path | None:
    """A library is read where there is one, else written."""
    return path if path is not None and path.is_file() else file_to_write_as(".parquet")(path)


LibraryFile = Annotated[
    Path | None, typer.Option(help="Template library file; the cache directory by default.", callback=_library_file)
]


class Device(StrEnum):
    """Where torch computes."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True)
class SolverOptions(OptionGroup):
    """Which back end solves an allocation, and when it stops."""

    panel = "Solver"

    solver: str | None = option(None, "MILP back end; see `coralopt solvers`.")
    assignments: OptionList = None
    time_limit: float | None = option(None, "Seconds for each allocation; the best plan so far is kept.")
    rel_gap: float | None = option(None, "Proven relative gap to stop at.")

    @property
    def options(self) -> dict[str, object]:
        """Solver options by name; ``--time-limit`` and ``--rel-gap`` are stronger than an ``--option``.

        Raises:
            OptionError: An ``--option`` is not of the form NAME=VALUE.
        """
        return parse_options(self.assignments, time_limit=self.time_limit, rel_gap=self.rel_gap)

    def request(
        self, scenario: ResolvedScenario, library: Path | None = None, on_infeasible: str = "explain"
    ) -> PlanRequest:
        """What a planner is asked for.

        Raises:
            OptionError: An ``--option`` is not of the form NAME=VALUE.
        """
        from coralopt.planning import PlanRequest

        # The planners refuse a value that they do not know.
        choice = cast("OnInfeasible", on_infeasible)
        return PlanRequest(scenario, self.solver, self.options, library, choice)


@dataclass(frozen=True)
class AllocationOptions(SolverOptions):
    """The same, and how the allocation is handed to the back end."""

    formulation: str = option("split", "Allocation formulation: split or paper.")
    reductions: bool = option(True, "Exact reductions ahead of the solver.")
    restrict: int | None = option(None, "Most columns to hand to the solver at once, for licences that stop at a size.")

    @property
    def settings(self) -> dict[str, object]:
        """The settings of planner coral."""
        return {"formulation": self.formulation, "reductions": self.reductions, "restrict": self.restrict}


@dataclass(frozen=True)
class DemandOptions(OptionGroup):
    """What an allocation may cost, and what becomes of demand that cannot be met."""

    panel = "Side constraints and unmet demand"

    on_infeasible: str = option(
        "explain",
        "When demand cannot be met: say why, serve the largest common share, or leave some unmet at its price.",
        metavar="explain|scale|shortfall",
    )
    budget: float | None = option(None, "Most rent, USD/h; of epochs, in every one.", metavar="USD_H")
    unmet_price: float | None = option(
        None, "Price of a million unserved tokens, where a model has none.", metavar="USD"
    )

    def on(self, scenario: ResolvedScenario) -> ResolvedScenario:
        """The scenario with these limits and prices in it."""
        return scenario.with_limits(budget_usd_h=self.budget, unmet_usd_mtok=self.unmet_price)


@dataclass(frozen=True)
class OperatorOptions(DemandOptions):
    """The same, and what an operator asks for beyond demand."""

    min_replicas: int | None = option(None, "Least instances of every model phase.")
    survive_region_loss: float | None = option(
        None, "Share of every demand left when any one region is lost.", metavar="SHARE"
    )
    survive_instance_loss: float | None = option(
        None, "Share of every demand left when any one instance is lost.", metavar="SHARE"
    )
    forbid: list[str] | None = option(None, "A GPU or configuration not to use; may be repeated.", metavar="MODEL:GPU")

    def on(self, scenario: ResolvedScenario) -> ResolvedScenario:
        """The scenario with these limits and prices in it."""
        from coralopt.planning import parse_forbidden

        return scenario.with_limits(
            budget_usd_h=self.budget,
            min_replicas=self.min_replicas,
            survive_region_loss=self.survive_region_loss,
            survive_instance_loss=self.survive_instance_loss,
            forbidden=parse_forbidden(self.forbid or []),
            unmet_usd_mtok=self.unmet_price,
        )


@dataclass(frozen=True)
class LibraryOptions(OptionGroup):
    """Which template library a plan takes its templates from, and for which engine."""

    panel = "Templates"

    library: LibraryFile = None
    executable_by: str | None = option(
        None,
        "Only what this engine runs as it is: vllm; any for no limits. The scenario's placement.engine by default.",
        metavar="ENGINE",
    )

    def load(self, scenario: str) -> ResolvedScenario:
        """The scenario of this name or file, for this engine."""
        from coralopt.scenario import load_scenario

        return load_scenario(scenario).with_rules({"engine": self.executable_by})


@dataclass(frozen=True)
class PeakOptions(OptionGroup):
    """Which demand of a trace is planned for."""

    panel = "Bursts of a trace"

    peak: float | None = option(
        None,
        "Plan for the demand that this share of the trace's short windows does not exceed, of each model phase; 0.99, say.",
        metavar="SHARE",
    )
    window: float = option(10.0, "Length of these windows.", metavar="S")
    perfect: bool = option(
        False,
        "Also what a perfect system would cost, which rents for each window alone; takes a plan a window.",
        "--perfect",
    )

    @property
    def of_windows(self) -> Peak | None:
        """The quantile of windows, where one is asked for.

        Raises:
            WorkloadError: Out of range.
        """
        from coralopt.workload import Peak

        return None if self.peak is None else Peak(self.peak, self.window)


@dataclass(frozen=True)
class TrafficOptions(OptionGroup):
    """Requests to simulate: a trace file, or generated by seed."""

    panel = "Requests"

    trace: Path | None = option(
        None, "Requests: Azure, BurstGPT, Mooncake, or plain arrival_s, input_tokens, output_tokens, model."
    )
    model: str | None = option(None, "Model that all requests of the trace ask for.")
    sort: bool = option(False, "Sort a plain trace whose times fall.", "--sort")
    rate: float | None = option(
        None, "Requests/s of each model; a trace is stretched to it. By default as planned for."
    )
    duration: float | None = option(None, "Seconds of arrivals; by default 300, or the whole trace.")
    traffic: str = option(
        "poisson",
        "Without a trace: poisson (lengths as the scenario says), or dataset (fitted to each model's data set).",
    )
    seed: int = option(0, "Seed of arrivals, lengths and all else that is drawn.", least=0)
    length_cv: float | None = option(
        None, "With Poisson traffic: lognormal lengths of this coefficient of variation, not the scenario's."
    )

    def source(self) -> Traffic:
        """What the options ask for.

        Raises:
            WorkloadError: Options that do not go together, or are out of range.
        """
        from coralopt.workload import Traffic

        return Traffic(
            "trace" if self.trace is not None else self.traffic,
            self.trace,
            self.model,
            self.rate,
            self.duration,
            self.seed,
            self.length_cv,
            self.sort,
        )


@dataclass(frozen=True)
class PlannedTrafficOptions(TrafficOptions, PeakOptions):
    """The same, and whether the plan is made for the bursts of the trace."""

    panel = "Requests"

    def planned_for(self, scenario: ResolvedScenario) -> tuple[ResolvedScenario, EpochInputs]:
        """The scenario with the demand of the trace's busiest windows, or its mean; and every window.

        Raises:
            WorkloadError: The trace cannot be read, or has models that the scenario lacks.
        """
        from coralopt.planning import demand_of_trace, epoch_inputs
        from coralopt.workload import read_trace

        assert self.trace is not None
        trace = read_trace(self.trace, sort=self.sort or None)
        windows = demand_of_trace(trace, scenario, self.window, self.model, str(self.trace)).demand
        whole = demand_of_trace(
            trace, scenario, len(windows) * self.window, self.model, str(self.trace), self.of_windows
        )
        return scenario.with_demand(whole.demand.tokens_s[0]), epoch_inputs(scenario, windows)
