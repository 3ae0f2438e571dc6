"""The option groups that several commands take: solver, side constraints, templates, traffic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from coralopt.cli.console import OptionList, parse_options
from coralopt.cli.option_groups import OptionGroup

if TYPE_CHECKING:
    from coralopt.allocation import OnInfeasible
    from coralopt.planning import PlanRequest
    from coralopt.scenario.resolved import ResolvedScenario
    from coralopt.workload import Traffic

LibraryFile = Annotated[Path | None, typer.Option(help="Template library file; the cache directory by default.")]


@dataclass(frozen=True)
class SolverOptions(OptionGroup):
    """Which back end solves an allocation, and when it stops."""

    panel = "Solver"

    solver: Annotated[str | None, typer.Option(help="MILP back end; see `coralopt solvers`.")] = None
    option: OptionList = None
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds for each allocation; the best plan so far is kept.")
    ] = None
    rel_gap: Annotated[float | None, typer.Option(help="Proven relative gap to stop at.")] = None

    @property
    def options(self) -> dict[str, object]:
        """Solver options by name; ``--time-limit`` and ``--rel-gap`` are stronger than an ``--option``.

        Raises:
            OptionError: An ``--option`` is not of the form NAME=VALUE.
        """
        return parse_options(self.option, time_limit=self.time_limit, rel_gap=self.rel_gap)

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

    formulation: Annotated[str, typer.Option(help="Allocation formulation: split or paper.")] = "split"
    reductions: Annotated[bool, typer.Option(help="Exact reductions ahead of the solver.")] = True
    restrict: Annotated[
        int | None, typer.Option(help="Most columns to hand to the solver at once, for licences that stop at a size.")
    ] = None

    @property
    def settings(self) -> dict[str, object]:
        """The settings of planner coral."""
        return {"formulation": self.formulation, "reductions": self.reductions, "restrict": self.restrict}


@dataclass(frozen=True)
class DemandOptions(OptionGroup):
    """What an allocation may cost, and what becomes of demand that cannot be met."""

    panel = "Side constraints and unmet demand"

    on_infeasible: Annotated[
        str,
        typer.Option(
            metavar="explain|scale|shortfall",
            help="When demand cannot be met: say why, serve the largest common share, or leave some unmet at its price.",
        ),
    ] = "explain"
    budget: Annotated[
        float | None, typer.Option(metavar="USD_H", help="Most rent, USD/h; of epochs, in every one.")
    ] = None
    unmet_price: Annotated[
        float | None, typer.Option(metavar="USD", help="Price of a million unserved tokens, where a model has none.")
    ] = None

    def on(self, scenario: ResolvedScenario) -> ResolvedScenario:
        """The scenario with these limits and prices in it."""
        return scenario.with_limits(budget_usd_h=self.budget, unmet_usd_mtok=self.unmet_price)


@dataclass(frozen=True)
class OperatorOptions(DemandOptions):
    """The same, and what an operator asks for beyond demand."""

    min_replicas: Annotated[int | None, typer.Option(help="Least instances of every model phase.")] = None
    survive_region_loss: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of every demand left when any one region is lost.")
    ] = None
    forbid: Annotated[
        list[str] | None, typer.Option(metavar="MODEL:GPU", help="A GPU or configuration not to use; may be repeated.")
    ] = None

    def on(self, scenario: ResolvedScenario) -> ResolvedScenario:
        """The scenario with these limits and prices in it."""
        from coralopt.planning import parse_forbidden

        return scenario.with_limits(
            budget_usd_h=self.budget,
            min_replicas=self.min_replicas,
            survive_region_loss=self.survive_region_loss,
            forbidden=parse_forbidden(self.forbid or []),
            unmet_usd_mtok=self.unmet_price,
        )


@dataclass(frozen=True)
class LibraryOptions(OptionGroup):
    """Which template library a plan takes its templates from, and for which engine."""

    panel = "Templates"

    library: LibraryFile = None
    executable_by: Annotated[
        str | None,
        typer.Option(
            "--executable-by",
            metavar="ENGINE",
            help="Only what this engine runs as it is: vllm; any for no limits. "
            "The scenario's placement.engine by default.",
        ),
    ] = None

    def load(self, scenario: str) -> ResolvedScenario:
        """The scenario of this name or file, for this engine."""
        from coralopt.scenario import load_scenario

        return load_scenario(scenario).with_rules({"engine": self.executable_by})


@dataclass(frozen=True)
class TrafficOptions(OptionGroup):
    """Requests to play: a trace file, or generated by seed."""

    panel = "Requests"

    trace: Annotated[
        Path | None,
        typer.Option(
            help="Requests: Azure, BurstGPT, Mooncake, or plain arrival_s, input_tokens, output_tokens, model."
        ),
    ] = None
    model: Annotated[str | None, typer.Option(help="Model that all requests of the trace ask for.")] = None
    sort: Annotated[bool, typer.Option("--sort", help="Sort a plain trace whose times fall.")] = False
    rate: Annotated[
        float | None,
        typer.Option(help="Requests/s of each model; a trace is stretched to it. By default as planned for."),
    ] = None
    duration: Annotated[float | None, typer.Option(help="Seconds of arrivals; by default 300, or the whole trace.")] = (
        None
    )
    traffic: Annotated[
        str,
        typer.Option(
            help="Without a trace: poisson (lengths lognormal), or dataset (fitted to each model's data set)."
        ),
    ] = "poisson"
    seed: Annotated[int, typer.Option(min=0, help="Seed of arrivals, lengths and all else that is drawn.")] = 0
    length_cv: Annotated[float, typer.Option(help="With Poisson traffic: coefficient of variation of the lengths.")] = (
        1.0
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
