"""Result files as one page: what each file is, and which page they make together."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from coralopt.errors import CoraloptError, ScenarioError
from coralopt.plan import Plan, PlanDifference
from coralopt.plan.difference import difference
from coralopt.plan.verify import verify_plan
from coralopt.planning import Epoch, EpochSummary
from coralopt.planning.analysis import PlanAnalysis
from coralopt.planning.compare import Row, planned_row, with_bound
from coralopt.report.epochs import Horizon
from coralopt.report.pages.comparison import comparison_page
from coralopt.report.pages.epochs import epochs_page
from coralopt.report.pages.page import Page
from coralopt.report.pages.plan import PlanPage, plan_page
from coralopt.report.pages.simulation import SimulatedRequests, read_simulated, simulation_page

#: Largest result file that is read, bytes; far more than any of them has.
LARGEST = 400_000_000
#: Most plans of epochs that are verified, spread evenly; each takes some tenths of a second.
RECOMPUTED = 50
_KINDS = (
    "a plan, the JSON of `coralopt compare --json` or `coralopt simulate --json`, the folder of `coralopt adapt -o`, or the "
    "results of `coralopt bench` or `coralopt sweep`"
)


@dataclass
class ResultFiles:
    """What was found in the files.

    Attributes:
        plans, simulated, horizons: Plans, simulations and rolling horizons, each with its file.
        comparisons: Name of the scenario and rows.
    """

    plans: list[Plan] = field(default_factory=list)
    simulated: list[SimulatedRequests] = field(default_factory=list)
    horizons: list[tuple[str, Horizon]] = field(default_factory=list)
    comparisons: list[tuple[str, list[Row]]] = field(default_factory=list)

    def page(self, analyse: Callable[[Plan], PlanAnalysis] | None = None) -> Page:
        """The page that they make together.

        Args:
            analyse: Says what a plan hangs on; ``None`` leaves that out.

        Raises:
            CoraloptError: They do not go together.
        """
        kinds = (len(self.plans), len(self.simulated), len(self.horizons), len(self.comparisons))
        match kinds:
            case (1, 0 | 1, 0, 0):
                plan, simulated = self.plans[0], self.simulated[0] if self.simulated else None
                broken = (*verify_plan(plan).sentences, *([] if simulated is None else _foreign(plan, simulated)))
                analysis = None if analyse is None or broken else analyse(plan)
                return plan_page(PlanPage(plan, simulated, analysis, broken=broken))
            case (0, 1, 0, 0):
                return simulation_page(self.simulated[0])
            case (0, 0, 1, 0):
                scenario, horizon = self.horizons[0]
                return replace(epochs_page(horizon, f"Epochs of {scenario}"), broken=tuple(_broken_epochs(horizon)))
            case (0, 0, 0, 1):
                scenario, rows = self.comparisons[0]
                return comparison_page(rows, scenario)
            case (_, 0, 0, 0) if len(self.plans) > 1:
                names = dict.fromkeys(str(plan.scenario.get("name", "scenario")) for plan in self.plans)
                numbered = enumerate(self.plans, 1)
                rows = [planned_row(f"{k}: {plan.planner}", plan) for k, plan in numbered]
                return comparison_page(with_bound(rows) if len(names) == 1 else rows, ", ".join(names))
        raise CoraloptError(
            f"{kinds[0]} plans, {kinds[1]} simulations, {kinds[2]} rolling horizons and {kinds[3]} comparisons do not make "
            "one page: give one plan with its simulation, several plans, or one of the others"
        )


def _foreign(plan: Plan, simulated: SimulatedRequests) -> Iterator[str]:
    """What shows that a simulation is not one of this plan."""
    own = {item.key for item in plan.instances}
    for row in simulated.outcomes:
        if row.key not in own and row.requests:
            yield f"the simulation served {row.key}, the plan does not: it is of another plan"
    rent = float(str(simulated.facts["cost_usd_h"]))
    if abs(rent - plan.provisioning_usd_h) > 1e-6 * max(rent, plan.provisioning_usd_h):
        yield (
            f"the simulation's rent is {rent:,.4f} USD/h, the plan's {plan.provisioning_usd_h:,.4f} USD/h: it is of another "
            "plan, or of several"
        )


def _broken_epochs(horizon: Horizon) -> Iterator[str]:
    """What of the epochs does not follow from their plans, and of the plans from their scenarios."""
    before: Plan | None = None
    step = -(-len(horizon.epochs) // RECOMPUTED)
    for number, item in enumerate(horizon.epochs):
        said, plan, changes = item.summary, item.plan, item.changes
        own = EpochSummary.of(said.epoch, plan, changes, said.served_share, said.seconds)
        for name in (f.name for f in fields(own) if getattr(own, f.name) != getattr(said, f.name)):
            yield f"epoch {said.epoch}: {name} is {getattr(said, name)} in the list, {getattr(own, name)} by its plan"
        if before is not None and difference(before, plan) != changes:
            yield f"epoch {said.epoch}: its changes are not those from the plan before to its own"
        if number % step == 0:
            yield from (f"epoch {said.epoch}: {sentence}" for sentence in verify_plan(plan).sentences)
        before = plan


def read_results(paths: Sequence[Path]) -> ResultFiles:
    """Read the files, each by what is in it.

    Raises:
        CoraloptError: A file cannot be read, or is no result; says what would be.
    """
    results = ResultFiles()
    for path in paths:
        _read(path / "epochs.json" if path.is_dir() else path, results)
    return results


def _read(path: Path, results: ResultFiles) -> None:
    try:
        if path.stat().st_size > LARGEST:
            raise CoraloptError(f"{path}: {path.stat().st_size:,} bytes; no result file is larger than {LARGEST:,}")
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CoraloptError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CoraloptError(f"{path}: not a result file of coralopt; give {_KINDS}") from error
    if not isinstance(document, dict):
        raise CoraloptError(f"{path}: not a result file of coralopt; give {_KINDS}")
    if isinstance(document.get("plan"), dict):
        # What `coralopt plan --json` prints.
        document = document["plan"]
    if document.get("format") == "coralopt-plan":
        results.plans.append(_plan(document, path))
    elif document.get("format") == "coralopt-epochs":
        results.horizons.append(_horizon(document, path))
    elif isinstance(document.get("rows"), list) and "scenario" in document:
        results.comparisons.append(_comparison(document, path))
    elif isinstance(document.get("outcomes"), list):
        results.simulated.append(read_simulated(document, str(path)))
    elif isinstance(document.get("horizons"), list):
        raise CoraloptError(f"{path}: figures of epochs without their plans; give the folder of `coralopt adapt -o`")
    else:
        raise CoraloptError(f"{path}: not a result file of coralopt; give {_KINDS}")


def _plan(document: Mapping[str, object], path: Path) -> Plan:
    plan = Plan.parse(json.dumps(document), str(path))
    try:
        assert plan.resolved
    except ScenarioError as error:
        raise CoraloptError(f"{path}: {error}") from error
    return plan


def _horizon(document: Mapping[str, object], path: Path) -> tuple[str, Horizon]:
    names = {item.name for item in fields(EpochSummary)}
    epochs: list[Epoch] = []
    entries = document.get("epochs")
    try:
        assert isinstance(entries, list)
        summaries = [EpochSummary(**{k: v for k, v in entry.items() if k in names}) for entry in entries]
    except (AssertionError, TypeError, AttributeError) as error:
        raise CoraloptError(f"{path}: a list of epochs of another version; run `coralopt adapt -o` again") from error
    for summary in summaries:
        stem = path.parent / f"epoch-{summary.epoch:04d}"
        plan = Plan.load(stem.with_name(f"{stem.name}.json"))
        epochs.append(Epoch(summary, plan, PlanDifference.load(stem.with_name(f"{stem.name}-changes.json"))))
    if not epochs:
        raise CoraloptError(f"{path}: no epoch is finished yet")
    scenario = epochs[0].plan.scenario
    penalty = scenario.get("initialization_penalty", 0.0)
    return str(scenario.get("name", "scenario")).removesuffix("-epoch-0"), Horizon(math.nan, float(penalty), epochs)


def _checked(row: Row, plan: Plan) -> Row:
    """The row with its plan, verified anew."""
    own = planned_row(row.label, plan, row.share)
    wrong = tuple(
        f"{name} is {getattr(row, name)} in the comparison, {getattr(own, name)} by the plan"
        for name in ("cost_usd_h", "demand_met", "tokens_usd")
        if not math.isclose(getattr(row, name), getattr(own, name), rel_tol=1e-9)
    )
    return replace(row, plan=plan, verified=own.verified and not wrong, violations=(*own.violations, *wrong))


def _comparison(document: Mapping[str, object], path: Path) -> tuple[str, list[Row]]:
    names = {item.name for item in fields(Row)} - {"plan"}
    rows = []
    try:
        entries: list[dict[str, object]] = document["rows"]  # type: ignore[assignment]
        for entry in entries:
            values = {k: v for k, v in entry.items() if k in names}
            for name in ("cost_usd_h", "bound_usd_h", "above_bound", "tokens_usd"):
                values[name] = math.nan if values[name] is None else float(values[name])  # type: ignore[arg-type]
            row = Row(plan=None, **values)  # type: ignore[arg-type]
            file = entry.get("file")
            if file and (path.parent / str(file)).is_file():
                row = _checked(row, Plan.load(path.parent / str(file)))
            rows.append(row)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CoraloptError(
            f"{path}: a comparison of another version ({error}); run `coralopt compare` again"
        ) from error
    return str(document["scenario"]), rows
