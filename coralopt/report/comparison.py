"""Plans of several planners as one table and one picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from coralopt.display import percent
from coralopt.errors import CoraloptError
from coralopt.planning.compare import Row
from coralopt.report.promise import interval, interval_words
from coralopt.report.pyplot import pyplot
from coralopt.report.simulation import outcome_name
from coralopt.report.table import Column, make_table, numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def comparison_table(rows: Sequence[Row], title: str) -> Table:
    """Cost, lower bound, demand met, generated tokens per USD, seconds, gap; simulated figures where there are any."""
    simulated = any(row.simulated for row in rows)
    columns: list[Column | str] = [
        *("planner", Column("cost USD/h", "{:,.4f}"), Column("above lower bound", "{:.1f} %")),
        *(Column("demand met", "{:g} %"), Column("ktokens/USD", "{:,.1f}")),
    ]
    if simulated:
        columns.append(Column("SLO met", "{:.1f} %"))
        columns += numbers("{:,.1f}", "goodput tokens/s", "simulated ktokens/USD")
    columns += [Column("own gap", "{:.3f} %"), Column("seconds", "{:.1f}"), Column("plan", "{}")]
    cells: list[list[object]] = []
    for row in rows:
        if math.isnan(row.cost_usd_h):
            cells.append([row.label, *[None] * (len(columns) - 3), row.seconds, "none"])
            continue
        # Nothing below 1 may look like 1.
        met = math.floor(row.demand_met * 1000) / 10
        figures: list[object] = [row.label, row.cost_usd_h, row.above_bound * 100, met, row.tokens_usd / 1000]
        if simulated:
            outcome = row.simulated
            figures += [outcome.get("attainment", math.nan) * 100, outcome.get("goodput_tokens_s")]
            figures.append(outcome.get("tokens_usd", math.nan) / 1000)
        gap = None if row.own_gap is None else row.own_gap * 100
        cells.append([*figures, gap, row.seconds, "verified" if row.verified else "WRONG"])
    return make_table(title, columns, cells)


@dataclass(frozen=True)
class AttainedPhase:
    """Share of the requests of one model phase that met the SLO, with the ends of its interval."""

    name: str
    share: float
    low: float
    high: float

    @property
    def words(self) -> tuple[str, str]:
        """The share, and its interval."""
        return percent(self.share), interval_words(self.low, self.high)


def attained_phases(row: Row) -> list[AttainedPhase]:
    """Of the comparison's simulation, else of the plan's certificate, else of the simulation that the plan carries."""
    if row.attained:
        return [
            AttainedPhase(name, item["attainment"], item["low"], item["high"]) for name, item in row.attained.items()
        ]
    if row.plan is not None and row.plan.certificate is not None:
        phases = row.plan.certificate.phases
        return [AttainedPhase(f"{item.model}/{item.kind}", item.mean, item.low, item.high) for item in phases]
    if row.plan is not None and row.plan.simulated is not None:
        return [
            AttainedPhase(outcome_name(item), item.attainment, *interval(item.attainment, item.requests))
            for item in row.plan.simulated.phases
        ]
    return []


def attainment_table(rows: Sequence[Row], title: str) -> Table:
    """Attainment by model phase with its interval, the planners side by side."""
    attained = {
        row.label: {item.name: item for item in attained_phases(row) if not math.isnan(item.share)} for row in rows
    }
    attained = {label: phases for label, phases in attained.items() if phases}
    cells = [
        (name, *("{} ({})".format(*phases[name].words) if name in phases else None for phases in attained.values()))
        for name in dict.fromkeys(name for phases in attained.values() for name in phases)
    ]
    return make_table(title, ("model phase", *numbers("{}", *attained)), cells)


def require_drawable(path: Path) -> None:
    """Whether a picture of this name can be drawn here; asked before there is work to lose.

    Raises:
        CoraloptError: matplotlib is not installed, or it does not know the format.
    """
    known = pyplot().figure().canvas.get_supported_filetypes()
    pyplot().close("all")
    if path.suffix.lstrip(".").lower() not in known:
        raise CoraloptError(f"{path}: not the name of a picture; end it in .svg, .png or .pdf")


def draw_comparison(rows: Sequence[Row], path: Path, title: str) -> None:
    """Write bars of cost by model, the proven lower bound, and generated tokens per USD.

    Raises:
        CoraloptError: matplotlib is not installed, no row has a plan, or the file cannot be written.
    """
    planned = [row for row in rows if row.plan is not None]
    if not planned:
        raise CoraloptError("there is nothing to draw: no planner made a plan")
    plt = pyplot()
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 1.2 + 0.55 * len(planned)), layout="constrained", sharey=True
    )
    places = list(range(len(planned)))
    _costs(left, planned, places)
    right.barh(places, [row.tokens_usd / 1000 for row in planned], height=0.38, label="promised", color="#8da0cb")
    if any(row.simulated for row in planned):
        values = [row.simulated.get("tokens_usd", math.nan) / 1000 for row in planned]
        right.barh([p + 0.4 for p in places], values, height=0.38, label="simulated", color="#fc8d62")
        right.legend(fontsize="small")
    right.set_xlabel("generated tokens within SLO per USD, thousands")
    left.set_yticks(places, [row_name(row) for row in planned])
    left.invert_yaxis()
    figure.suptitle(title)
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except (OSError, ValueError) as error:
        raise CoraloptError(f"{path}: the picture cannot be written: {error}") from error
    finally:
        plt.close(figure)


def row_name(row: Row) -> str:
    """The contestant, and the share of the demand it meets where that is not all."""
    return row.label if row.demand_met >= 1 else f"{row.label} ({math.floor(row.demand_met * 100)} % of demand)"


def _costs(axes: Axes, rows: Sequence[Row], places: Sequence[int]) -> None:
    plans = [row.plan for row in rows if row.plan is not None]
    models = list(dict.fromkeys(demand.model for plan in plans for demand in plan.demands))
    start = [0.0] * len(rows)
    for model in models:
        widths = [sum(d.cost_usd_h for d in plan.demands if d.model == model) for plan in plans]
        axes.barh(places, widths, left=start, label=model)
        start = [a + b for a, b in zip(start, widths, strict=True)]
    axes.barh(
        places, [plan.initialization_usd_h for plan in plans], left=start, label="initialization", color="#999999"
    )
    bounds = [row.bound_usd_h for row in rows if not math.isnan(row.bound_usd_h)]
    if bounds:
        axes.axvline(bounds[0], color="black", linestyle="--", label="proven lower bound")
    axes.set_xlabel("USD/h")
    axes.legend(fontsize="x-small")
