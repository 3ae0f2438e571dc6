"""A sweep as a table, as curves, and as its Pareto front."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup
from rich.table import Table

from coralopt.planning.sweep import Sweep, SweepPoint, pareto
from coralopt.planning.variation import Variation
from coralopt.report.drawing import Line, Scale, lines
from coralopt.report.svg import COLOURS
from coralopt.report.table import Column, make_table, numbers


def sweep_table(sweep: Sweep) -> Table:
    """A row a point; a star where no other point is cheaper and better for users."""
    front = pareto(sweep.points, sweep.variations)
    columns: list[Column | str] = [
        *numbers("{:,.6g}", *(axis.path for axis in sweep.variations)),
        *numbers("{:,.4f}", "cost USD/h", "lower bound", "gap %"),
        *numbers("{:,}", "instances", "nodes"),
        "status",
        "front",
    ]
    rows = [
        (
            *point.values.values(),
            *(point.cost_usd_h, point.lower_bound_usd_h, point.gap * 100, point.instances, point.nodes, point.status),
            "*" if point in front else "",
        )
        for point in sweep.points
    ]
    return make_table(f"Sweep of {sweep.scenario}", columns, rows)


def sweep_curves(sweep: Sweep, axis: Variation) -> Markup:
    """Cost over one axis: a line for each choice of the other axes that has a colour; dots are on the Pareto front."""
    others = [item.path for item in sweep.variations if item is not axis]
    groups: dict[tuple[float, ...], list[SweepPoint]] = {}
    for point in sweep.points:
        groups.setdefault(tuple(point.values[path] for path in others), []).append(point)
    front = pareto(sweep.points, sweep.variations)
    chosen = list(groups.items())
    # Evenly over all choices, the first and the last among them.
    if len(chosen) > COLOURS:
        chosen = [chosen[round(k * (len(chosen) - 1) / (COLOURS - 1))] for k in range(COLOURS)]
    series: list[Line] = []
    for colour, (values, points) in enumerate(chosen):
        points = sorted(points, key=lambda point: point.values[axis.path])
        name = ", ".join(f"{_short(path)} {value:g}" for path, value in zip(others, values, strict=True))
        x, y = [point.values[axis.path] for point in points], [point.cost_usd_h for point in points]
        series.append(Line(name, x, y, colour))
        best = [point for point in points if point in front]
        series.append(
            Line(
                "",
                [point.values[axis.path] for point in best],
                [point.cost_usd_h for point in best],
                colour,
                "points",
                [_words(point.values, point.cost_usd_h) for point in best],
            )
        )
    title = f"Cost over {axis.path}"
    return lines(title, series, Scale(axis.path), Scale("USD/h"))


def _words(values: Mapping[str, float], cost: float) -> str:
    return (
        ", ".join(f"{path} {value:g}" for path, value in values.items()) + f": {cost:,.4f} USD/h, on the Pareto front"
    )


def _short(path: str) -> str:
    """The last two names of a path."""
    return ".".join(path.split(".")[-2:])


def cheapest(points: Sequence[SweepPoint]) -> SweepPoint | None:
    """The point of least cost; ``None`` where no point has a plan."""
    planned = [point for point in points if not math.isnan(point.cost_usd_h)]
    return min(planned, key=lambda point: point.cost_usd_h, default=None)
