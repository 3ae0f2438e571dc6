"""``coralopt adapt``: a plan for every epoch, and what changes from one to the next."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from coralopt.cli.console import ScenarioArgument, progress_bar, say
from coralopt.cli.epoch_options import EpochCase, EpochOptions, FolderOptions, ForecastOptions
from coralopt.cli.option_groups import takes_groups
from coralopt.cli.present import CommandOutput, present
from coralopt.cli.shared_options import DemandOptions, LibraryOptions, SolverOptions

if TYPE_CHECKING:
    from coralopt.planning import Epoch, PlanRequest
    from coralopt.scenario.resolved import ResolvedScenario


@takes_groups
def adapt(
    scenario: ScenarioArgument,
    files: FolderOptions,
    epochs: EpochOptions,
    forecast: ForecastOptions,
    solver: SolverOptions,
    limits: DemandOptions,
    library: LibraryOptions,
) -> None:
    """Plan SCENARIO epoch after epoch: keep what runs where that is cheaper, charge K for what is started."""
    from coralopt.errors import OptionError

    if len(epochs.penalties) > 1 and files.output is not None:
        raise OptionError("several values of --penalty are for comparing; --output takes the plans of one")
    epochs.check()
    by_length = len(epochs.lengths_s) > 1
    if by_length and (epochs.penalty or files.output or epochs.availability or epochs.prices or epochs.epochs):
        raise OptionError(
            "several values of --epoch compare adjustment intervals over one trace: leave out --penalty, --output, "
            "--epochs and the tables"
        )
    resolved = epochs.on(limits.on(library.load(scenario)))
    cases = list(epochs.cases(resolved))
    request = solver.request(resolved, library.library, limits.on_infeasible)
    runs = EpochPlanning(request, forecast, files).runs(cases)
    done = list(zip(cases, map(list, runs), strict=True))
    with progress_bar("plans", quiet=files.json_output) as progress:
        perfect = _perfect(replace(request, progress=progress), cases)
    present_runs(resolved, epochs, files, done, perfect)


def _perfect(request: PlanRequest, cases: Sequence[EpochCase]) -> list[float | None]:
    """What the perfect system costs in every case, USD/h; cases that differ by K only share it."""
    from coralopt.planning import perfect_cost

    costs: dict[int, float] = {}
    for case in cases:
        if case.windows is not None and id(case.windows) not in costs:
            costs[id(case.windows)] = perfect_cost(request, case.windows)
    return [costs.get(id(case.windows)) for case in cases]


@dataclass(frozen=True)
class EpochPlanning:
    """How the epochs of a case are planned."""

    request: PlanRequest
    forecast: ForecastOptions
    files: FolderOptions

    def runs(self, cases: Sequence[EpochCase]) -> Iterator[Iterator[Epoch]]:
        """The planned epochs of each case, all with one template library; a line on each as it is there."""
        from coralopt.planning import RollingSettings, forecast_named
        from coralopt.planning import adapt as plan_epochs

        hook, quiet = forecast_named(self.forecast.forecast), self.files.json_output
        for remark in () if quiet else dict.fromkeys(remark for case in cases for remark in case.remarks):
            say(f"note: {remark}")
        with progress_bar("templates", quiet=quiet) as progress:
            request = replace(self.request, progress=progress).warmed()
        for case in cases:
            settings = RollingSettings(
                case.penalty,
                hook,
                self.forecast.forecast,
                self.forecast.headroom,
                self.files.output,
                self.files.restart,
            )
            planned = plan_epochs(replace(request, progress=None), case.inputs, settings)
            yield planned if quiet else _told(planned, len(case.inputs))


def _told(epochs: Iterable[Epoch], total: int) -> Iterator[Epoch]:
    """The epochs, a line on each with an estimate of the seconds left."""
    started = time.perf_counter()
    count = 0
    for epoch in epochs:
        item = epoch.summary
        if epoch.resumed:
            say(f"epoch {item.epoch} of {total}: already there")
        else:
            count += 1
            left_s = (total - 1 - item.epoch) * (time.perf_counter() - started) / count
            say(
                f"epoch {item.epoch} of {total}: {item.cost_usd_h:,.4f} USD/h, gap {item.gap * 100:.3f} %, "
                f"+{item.start} -{item.stop} ={item.keep}, {item.seconds:.2f} s"
                + ("" if epoch.plan.certificate is None or epoch.plan.certificate.holds else ", NOT CERTIFIED")
                + (f", not confirmed for {', '.join(epoch.plan.unconfirmed)}" if epoch.plan.unconfirmed else "")
                + (f"; about {left_s:.0f} s left" if left_s else "")
            )
        yield epoch


def present_runs(
    scenario: ResolvedScenario,
    epochs: EpochOptions,
    files: FolderOptions,
    runs: Sequence[tuple[EpochCase, Sequence[Epoch]]],
    perfect: Sequence[float | None] = (),
) -> None:
    """Print what came of every run, beside what the perfect system costs where that is known."""
    from coralopt.report.epochs import Horizon, churn_table, epochs_table, mean_figures, perfect_line

    horizons = [
        Horizon(
            case.epoch_s,
            scenario.initialization_penalty if case.penalty is None else case.penalty,
            planned,
            perfect[k] if perfect else None,
        )
        for k, (case, planned) in enumerate(runs)
    ]
    document = {
        "horizons": [
            {
                "penalty": horizon.penalty,
                "epoch_s": horizon.epoch_s if epochs.is_trace else None,
                "mean": mean_figures(horizon.epochs),
                "perfect_usd_h": horizon.perfect_usd_h,
                "epochs": [asdict(item.summary) | {"resumed": item.resumed} for item in horizon.epochs],
            }
            for horizon in horizons
        ]
    }
    table = churn_table(horizons, len(epochs.lengths_s) > 1) if len(horizons) > 1 else epochs_table(horizons[0])
    written = [] if files.output is None else [f"plans and changes written to {files.output}"]
    lines = [
        perfect_line(mean_figures(horizon.epochs)["provisioning_usd_h"], horizon.perfect_usd_h)
        for horizon in horizons
        if horizon.perfect_usd_h is not None
    ]
    present(CommandOutput(document, [table], [*lines, *written]), files.json_output)
