"""Plans of epochs as tables: epoch by epoch, and churn against cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from coralopt.report.table import Column, make_table, numbers

if TYPE_CHECKING:
    from coralopt.planning import Epoch

#: Figures of an epoch whose mean over epochs says something.
_AVERAGED = (
    *("cost_usd_h", "provisioning_usd_h", "initialization_usd_h"),
    *("start", "stop", "keep", "started_usd_h", "seconds"),
)
_COSTS = numbers("{:,.4f}", "cost USD/h", "provisioning", "initialization")


@dataclass(frozen=True)
class Horizon:
    """The planned epochs of one run over the horizon.

    Attributes:
        epoch_s: Length of an epoch, s.
        penalty: The initialization penalty K.
        epochs: The epochs.
        perfect_usd_h: What a perfect system costs, from :func:`coralopt.planning.perfect_cost`.
    """

    epoch_s: float
    penalty: float
    epochs: Sequence[Epoch]
    perfect_usd_h: float | None = None

    @property
    def rule(self) -> str:
        """What an added instance costs once more."""
        by_template = bool(self.epochs) and "start" in self.epochs[0].plan.scenario
        return "start costs by template" if by_template else f"K = {self.penalty:g}"


def perfect_line(rent_usd_h: float, perfect_usd_h: float) -> str:
    """A rent beside what the perfect system costs."""
    times = rent_usd_h / perfect_usd_h if perfect_usd_h else math.inf
    return (
        f"perfect system, which rents for every short window alone: at least {perfect_usd_h:,.4f} USD/h; the rent here is "
        f"{rent_usd_h:,.4f} USD/h, {times:.2f} times that"
    )


def mean_figures(epochs: Sequence[Epoch]) -> dict[str, float]:
    """Means over the epochs, with the largest gap and the least share of demand served."""
    summaries = [epoch.summary for epoch in epochs]
    means = {name: sum(getattr(item, name) for item in summaries) / max(1, len(summaries)) for name in _AVERAGED}
    return means | {
        "largest_gap": max((item.gap for item in summaries), default=0.0),
        "least_served_share": min((item.served_share for item in summaries), default=1.0),
    }


def epochs_table(horizon: Horizon) -> Table:
    """A row an epoch, and the means."""
    columns = (
        Column("epoch", "{}"),
        *_COSTS,
        Column("gap %", "{:.4f}"),
        *numbers("{}", "instances", "nodes"),
        *numbers("{:.0f}", "start", "stop", "keep"),
        Column("served %", "{:.1f}"),
        Column("seconds", "{:.2f}"),
    )
    rows = [
        (
            *(item.epoch, item.cost_usd_h, item.provisioning_usd_h, item.initialization_usd_h, item.gap * 100),
            *(item.instances, item.nodes, item.start, item.stop, item.keep, item.served_share * 100, item.seconds),
        )
        for item in (epoch.summary for epoch in horizon.epochs)
    ]
    mean = mean_figures(horizon.epochs)
    footer = (
        *("mean", mean["cost_usd_h"], mean["provisioning_usd_h"], mean["initialization_usd_h"], "", "", ""),
        *(f"{mean[name]:.1f}" for name in ("start", "stop", "keep")),
        *("", mean["seconds"]),
    )
    return make_table(f"Epochs, {horizon.rule}", columns, rows, footer=footer)


def churn_table(horizons: Sequence[Horizon], by_length: bool) -> Table:
    """A row a run: means over its epochs after the first; with the length of its epochs where these differ."""
    columns = (
        *([Column("epoch s", "{:g}")] if by_length else []),
        Column("K", "{:g}"),
        *_COSTS,
        Column("started USD/h", "{:,.4f}"),
        *numbers("{:.2f}", "start", "stop", "keep", "seconds"),
    )
    rows = []
    for horizon in horizons:
        # Epoch 0 starts everything, whatever K is.
        mean = mean_figures(horizon.epochs[1:] or horizon.epochs)
        names = (
            "cost_usd_h",
            "provisioning_usd_h",
            "initialization_usd_h",
            "started_usd_h",
            *_AVERAGED[3:6],
            "seconds",
        )
        rows.append(
            (*([horizon.epoch_s] if by_length else []), horizon.penalty, *(mean[name] for name in names)),
        )
    return make_table("Churn against cost, means over epochs after the first", columns, rows)
