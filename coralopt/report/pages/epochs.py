"""The page of a rolling horizon: cost, instances and demand epoch by epoch, with a timeline that plays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coralopt.planning import Epoch
from coralopt.report.drawing import BarPart, BarRow, Line, Scale, bars, lines
from coralopt.report.epochs import Horizon, epochs_table, mean_figures
from coralopt.report.pages.page import Block, Figure, Frames, Grid, HtmlTable, Page, PageAnswer, PageSection, Words
from coralopt.report.svg import colour_numbers
from coralopt.report.table import make_table, numbers

#: Most epochs of the timeline; more are thinned out evenly.
FRAMES = 120


def epochs_page(horizon: Horizon, title: str) -> Page:
    """Epoch after epoch."""
    epochs = horizon.epochs
    mean = mean_figures(epochs)
    costs = [item.summary.cost_usd_h for item in epochs]
    first = PageAnswer(
        "What does it cost?",
        f"{mean['cost_usd_h']:,.4f} USD/h, mean",
        (
            Words(f"From {min(costs):,.4f} to {max(costs):,.4f} USD/h over {len(epochs):,} epochs."),
            Words(f"Every epoch's cost is proven up to a gap of {mean['largest_gap'] * 100:.4f} % at most."),
        ),
    )
    second = PageAnswer(
        "Is all demand served?",
        f"{mean['least_served_share'] * 100:.1f} % at least",
        (Words("Of the true demand of the worst epoch; below 100 % only where a forecast was too low."),),
        "good" if mean["least_served_share"] >= 1 else "bad",
    )
    moves = sum(item.summary.start + item.summary.stop for item in epochs[1:])
    third = PageAnswer(
        "How much changes?",
        f"{moves:,} starts and stops",
        (Words(f"After the first epoch; an added instance costs its price and more ({horizon.rule})."),),
    )
    sections = [
        PageSection("timeline", "Timeline", (Grid(tuple(_curves(epochs))), *_frames(epochs))),
        PageSection("figures", "All figures", (HtmlTable(epochs_table(horizon)),)),
    ]
    return Page(
        title, f"{len(epochs):,} epochs, initialization penalty: {horizon.rule}.", (first, second, third), sections
    )


def _curves(epochs: Sequence[Epoch]) -> list[Block]:
    x = Scale("epoch", form="{:.0f}")
    places = [float(item.summary.epoch) for item in epochs]
    last, width = places[-1] + 1, float(_frame_step(epochs))

    def curve(title: str, unit: str, curves: Mapping[str, Sequence[float]]) -> Figure:
        # Equal curves are one, with all their names.
        names: dict[tuple[float, ...], list[str]] = {}
        for label, values in curves.items():
            names.setdefault(tuple(round(value, 6) for value in values), []).append(label)
        series = [
            Line(", ".join(labels), [*places, last], [*values, values[-1]], colour, "step")
            for colour, (values, labels) in enumerate(names.items())
        ]
        return Figure(lines(title, series, x, Scale(unit, low=0.0), cursor=width), title)

    def figures(**names: str) -> dict[str, Sequence[float]]:
        return {label: [float(getattr(item.summary, name)) for item in epochs] for label, name in names.items()}

    demand: dict[str, list[float]] = {
        phase: [sum(d.demand_tokens_s for d in item.plan.demands if d.phase == phase) for item in epochs]
        for phase in dict.fromkeys(d.phase for item in epochs for d in item.plan.demands)
    }
    shares: dict[str, Sequence[float]] = {
        phase: [100 * value / (max(values) or 1.0) for value in values] for phase, values in demand.items()
    }
    return [
        curve("Cost of every epoch", "USD/h", figures(cost="cost_usd_h", rent="provisioning_usd_h")),
        curve("Demand planned for", "% of the largest epoch's tokens/s", shares),
        curve("Instances started, stopped, kept", "instances", figures(started="start", stopped="stop", kept="keep")),
    ]


def _more(moved: int) -> str | None:
    return f"{moved - 20:,} more kinds of instances started or stopped" if moved > 20 else None


def _frame_step(epochs: Sequence[Epoch]) -> int:
    """Epochs from one frame to the next."""
    return -(-len(epochs) // FRAMES)


def _frames(epochs: Sequence[Epoch]) -> Iterable[Block]:
    step = _frame_step(epochs)
    shown = epochs[::step]
    if step > 1:
        yield Words(f"Every {step}th epoch of the timeline can be looked at here; all are in the table.")
    configurations = sorted({name for item in shown for _, name in item.plan.rented_nodes()})
    colours = colour_numbers(configurations)
    longest = max((sum(item.plan.rented_nodes().values()) for item in shown), default=1)
    frames = []
    for item in shown:
        by_region: dict[str, list[BarPart]] = {}
        for (region, name), count in sorted(item.plan.rented_nodes().items()):
            by_region.setdefault(region, []).append(
                BarPart(name, count, colours[name], f"{count} of {name} in {region}")
            )
        rows = [BarRow(region, tuple(parts)) for region, parts in by_region.items()]
        drawing = bars(f"Nodes of epoch {item.summary.epoch}", rows, "{:,.0f}", longest=float(longest))
        moved = [(c.name, c.start, c.stop, c.keep) for c in item.changes.changes if c.start or c.stop]
        table = make_table(
            "", ("instance", *numbers("{}", "start", "stop", "keep")), moved[:20], caption=_more(len(moved))
        )
        blocks: list[Block] = [
            Words(
                f"{item.summary.cost_usd_h:,.4f} USD/h, {item.summary.instances} instances on {item.summary.nodes} nodes."
            ),
            Grid((Figure(drawing, "Nodes by region"), *([HtmlTable(table)] if moved else []))),
        ]
        frames.append((f"Epoch {item.summary.epoch}", tuple(blocks)))
    yield Frames("Epoch", tuple(frames))
