"""The page of a sweep: cost over every axis, and the Pareto front."""

from __future__ import annotations

import math
from dataclasses import replace

from coralopt.planning.sweep import Sweep, pareto
from coralopt.report.pages.page import Block, Figure, Grid, HtmlTable, Page, PageAnswer, PageSection, Words
from coralopt.report.sweep import cheapest, sweep_curves, sweep_table

#: Most rows of the table of points.
ROWS = 500


def sweep_page(sweep: Sweep) -> Page:
    """Cost over every axis, the front, all points."""
    planned = [point for point in sweep.points if not math.isnan(point.cost_usd_h)]
    least = cheapest(sweep.points)
    costs = [point.cost_usd_h for point in planned]
    first = PageAnswer(
        "What does it cost?",
        f"{min(costs):,.4f} to {max(costs):,.4f} USD/h" if costs else "no point has a plan",
        (
            Words(f"{len(planned):,} of {len(sweep.points):,} points have a plan."),
            Words(f"Every cost is proven up to {max((p.gap for p in planned), default=0.0) * 100:.4f} %."),
        ),
    )
    values = "" if least is None else ", ".join(f"{path} = {value:g}" for path, value in least.values.items())
    second = PageAnswer("Where is it cheapest?", f"{least.cost_usd_h:,.4f} USD/h" if least else "-", (Words(values),))
    front = pareto(sweep.points, sweep.variations)
    words = [
        f"{axis.path}: {'lower' if axis.better == 'low' else 'higher'} is better"
        if axis.better
        else f"{axis.path}: neither end is better, every value has a front of its own"
        for axis in sweep.variations
    ]
    third = PageAnswer("What is on the Pareto front?", f"{len(front):,} points", tuple(Words(line) for line in words))
    figures: list[Block] = [
        Figure(sweep_curves(sweep, axis), f"Cost over {axis.path}; dots are on the Pareto front")
        for axis in sweep.variations
        if len(axis.values) > 1
    ]
    missing = [point for point in sweep.points if math.isnan(point.cost_usd_h)]
    reasons: list[Block] = [
        Words(", ".join(f"{path} = {value:g}" for path, value in p.values.items()) + f": {p.error}", small=True)
        for p in missing[:20]
    ]
    # A page of all points of a large grid would be larger than its file.
    shown = sweep if len(sweep.points) <= ROWS else replace(sweep, points=tuple(front[:ROWS]))
    left = (
        [] if shown is sweep else [Words(f"The Pareto front alone; all {len(sweep.points):,} points are in the file.")]
    )
    sections = [
        PageSection("curves", "Cost over every axis", (Grid(tuple(figures)),) if figures else ()),
        PageSection("points", "All points", (HtmlTable(sweep_table(shown), filtered=True), *left)),
        PageSection("missing", f"{len(missing)} points without a plan", tuple(reasons)),
    ]
    paths = ", ".join(axis.path for axis in sweep.variations)
    return Page(f"What if: {sweep.scenario}", f"Planned over {paths}.", (first, second, third), sections)
