"""Drawings as SVG text: pipelines to scale, bars, lines. Pages and notebooks show the same ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from coralopt.plan.parts import PlannedInstance
from coralopt.report.svg import CHARACTER, WIDTH, cut, element, short, svg, text_at, tipped


@dataclass(frozen=True)
class BarPart:
    """One part of a bar.

    Attributes:
        name: What it is.
        value: Its length, in the unit of the drawing.
        colour: Number of its colour.
        tip: Shown when the pointer or the focus is on it; its name and value by default.
    """

    name: str
    value: float
    colour: int = 0
    tip: str = ""


@dataclass(frozen=True)
class BarRow:
    """A bar with its label above it.

    Attributes:
        label: Stands above, on the left.
        parts: From left to right.
        text: Stands above, on the right; the sum of the parts by default.
        mark: Where a dashed line crosses this bar, for what was wanted; ``None`` for no line.
    """

    label: str
    parts: tuple[BarPart, ...]
    text: str = ""
    mark: float | None = None


def bars(
    title: str,
    rows: Sequence[BarRow],
    form: str = "{:,.2f}",
    line: tuple[str, float] | None = None,
    longest: float | None = None,
) -> Markup:
    """Horizontal bars.

    Args:
        title: What a screen reader calls the drawing.
        rows: One bar each; parts below zero are left out.
        form: Format of the values.
        line: Name and place of a dashed line over all bars.
        longest: Value of a bar of full width; the longest one by default.
    """
    sums = [sum(max(part.value, 0.0) for part in row.parts) for row in rows]
    scale = WIDTH / max(longest or max([*sums, line[1] if line else 0.0], default=0.0), 1e-12)
    drawn: list[Markup] = []
    for number, (row, total) in enumerate(zip(rows, sums, strict=True)):
        top, x = 34 * number, 0.0
        text = row.text or form.format(total)
        drawn.append(text_at(cut(row.label, WIDTH - CHARACTER * (len(text) + 2)), 0, top + 12))
        drawn.append(text_at(text, WIDTH, top + 12, text_anchor="end", class_="strong"))
        drawn.append(element("rect", x=0, y=top + 17, width=WIDTH, height=11, class_="rail"))
        for part in row.parts:
            width = min(max(part.value, 0.0) * scale, WIDTH - x)
            if width > 0:
                tip = part.tip or f"{part.name}: {form.format(part.value)}"
                shape = element("rect", x=x, y=top + 17, width=width, height=11, class_=f"f{part.colour}")
                drawn.append(tipped(shape, tip))
                x += width
        if row.mark is not None:
            at = min(row.mark * scale, WIDTH - 1)
            drawn.append(element("line", x1=at, x2=at, y1=top + 15, y2=top + 31, class_="limit"))
    height = 34 * len(rows)
    named = {part.name: part.colour for row in rows for part in row.parts if part.value > 0}
    if line:
        at = min(line[1] * scale, WIDTH - 1)
        # Beside the bars only: it must not cross the figures above them.
        drawn += [
            element("line", x1=at, x2=at, y1=34 * k + 15, y2=34 * k + 31, class_="limit") for k in range(len(rows))
        ]
        anchor = "end" if at > WIDTH / 2 else "start"
        drawn.append(text_at(f"{line[0]} {form.format(line[1])}", at, height + 12, text_anchor=anchor, class_="small"))
        height += 18
    return svg(title, *_with_legend(drawn, height, named if len(set(named.values())) > 1 else {}, 0))


@dataclass(frozen=True)
class Line:
    """A line of a chart, or points.

    Attributes:
        name: Stands in the legend; empty for none.
        x, y: Its points.
        colour: Number of its colour.
        style: ``"line"``, ``"dashed"``, ``"step"`` (the value holds until the next point) or ``"points"``.
        tips: A text a point; ``"points"`` only.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    style: str = "line"
    tips: Sequence[str] = ()


@dataclass(frozen=True)
class Scale:
    """An axis.

    Attributes:
        label: What it measures, with the unit.
        log: Whether it is logarithmic; values must then be positive.
        low, high: Its ends; those of the data by default.
        form: Format of the numbers at its ticks.
    """

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    form: str = "{:,.4g}"

    def spread(self, values: Sequence[float]) -> tuple[float, float]:
        """Both ends, apart from each other."""
        finite = [value for value in values if math.isfinite(value) and (value > 0 or not self.log)]
        low = min(finite, default=1.0) if self.low is None else self.low
        high = max(finite, default=2.0) if self.high is None else self.high
        if high <= low:
            low, high = (low / 1.5, low * 1.5) if self.log else (low - abs(low) * 0.1 - 1e-9, low + abs(low) * 0.1 + 1)
        return low, high

    def share(self, value: float, ends: tuple[float, float]) -> float:
        """Where a value lies between the ends, 0 to 1."""
        low, high = ends
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, 1e-300))
        return min(max((value - low) / (high - low), 0.0), 1.0)

    def ticks(self, ends: tuple[float, float]) -> list[float]:
        """A few round values between the ends."""
        low, high = ends
        if self.log:
            powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            fine = (1, 2, 5) if len(powers) <= 3 else (1,)
            values = [m * 10.0**p for p in powers for m in fine]
            return [value for value in values if low <= value <= high][:8]
        raw = (high - low) / 4
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
        first = math.ceil(low / step - 1e-9)
        return [step * k for k in range(first, math.floor(high / step + 1e-9) + 1)]


def lines(
    title: str,
    series: Sequence[Line],
    x: Scale,
    y: Scale,
    limits: Sequence[tuple[str, float]] = (),
    cursor: float = 0.0,
) -> Markup:
    """Lines and points over two axes, a legend below.

    Args:
        title: What a screen reader calls the drawing.
        series: What to draw; points that are not finite are left out.
        x, y: The axes.
        limits: Names and places of upright dashed lines.
        cursor: Width, in units of ``x``, of a band that shows which frame of a player is looked at; 0 for none.
    """
    left, right, top, bottom = 46, WIDTH - 8, 18, 160
    x_ends = x.spread([*(value for line in series for value in line.x), *(place for _, place in limits)])
    y_ends = y.spread([value for line in series for value in line.y])

    def across(value: float) -> float:
        return left + (right - left) * x.share(value, x_ends)

    def down(value: float) -> float:
        return bottom - (bottom - top) * y.share(value, y_ends)

    drawn: list[Markup] = []
    if cursor:
        width = across(x_ends[0] + cursor) - left
        drawn.append(element("rect", x=left, y=top, width=width, height=bottom - top, class_="cursor"))
    for tick in y.ticks(y_ends):
        drawn.append(element("line", x1=left, x2=right, y1=down(tick), y2=down(tick), class_="grid"))
        drawn.append(text_at(y.form.format(tick), left - 5, down(tick) + 4, text_anchor="end", class_="small"))
    for tick in x.ticks(x_ends):
        drawn.append(element("line", x1=across(tick), x2=across(tick), y1=bottom, y2=bottom + 4, class_="axis"))
        drawn.append(text_at(x.form.format(tick), across(tick), bottom + 15, text_anchor="middle", class_="small"))
    drawn.append(element("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis"))
    drawn.append(text_at(x.label, (left + right) / 2, bottom + 30, text_anchor="middle", class_="small"))
    drawn.append(text_at(y.label, 0, 9, class_="small"))
    for name, place in limits:
        drawn.append(element("line", x1=across(place), x2=across(place), y1=top, y2=bottom, class_="limit"))
        anchor = "end" if across(place) > WIDTH * 0.7 else "start"
        shift = -4 if anchor == "end" else 4
        drawn.append(text_at(name, across(place) + shift, bottom - 6, text_anchor=anchor, class_="small"))
    for line in series:
        shown = [
            k for k, (a, b) in enumerate(zip(line.x, line.y, strict=True)) if math.isfinite(a) and math.isfinite(b)
        ]
        tips = [line.tips[k] for k in shown] if line.tips else ()
        shapes = _shapes(replace(line, tips=tips), [(across(line.x[k]), down(line.y[k])) for k in shown])
        drawn.append(element("g", *shapes, data_series=line.name) if line.name else Markup("").join(shapes))
    named = {line.name: line.colour for line in series if line.name}
    return svg(title, *_with_legend(drawn, bottom + 36, named, left))


def _with_legend(drawn: list[Markup], height: int, named: Mapping[str, int], left: int) -> tuple[int, list[Markup]]:
    """New height, and the marks with a line a name below them, up to three side by side where they are short."""
    longest = max((len(name) * CHARACTER + 24 for name in named), default=0)
    columns = next((count for count in (3, 2) if longest * count <= WIDTH - left), 1)
    for k, (name, colour) in enumerate(named.items()):
        x, y = left + (WIDTH - left) / columns * (k % columns), height + 16 * (k // columns + 1)
        drawn.append(element("rect", x=x, y=y - 9, width=14, height=6, class_=f"f{colour}"))
        drawn.append(text_at(cut(name, WIDTH - x - 20), x + 20, y - 2, class_="small"))
    return height + 16 * -(-len(named) // columns) + 2, drawn


def _shapes(line: Line, points: Sequence[tuple[float, float]]) -> list[Markup]:
    if line.style == "points":
        tips = line.tips or [""] * len(points)
        circles = [element("circle", cx=a, cy=b, r=4, class_=f"f{line.colour} point") for a, b in points]
        return [tipped(circle, tip) if tip else circle for circle, tip in zip(circles, tips, strict=True)]
    if line.style == "step":
        points = [
            corner for k, (a, b) in enumerate(points) for corner in ([(a, points[k - 1][1])] * (k > 0) + [(a, b)])
        ]
    if not points:
        return []
    path = " ".join(f"{'L' if k else 'M'}{short(a)} {short(b)}" for k, (a, b) in enumerate(points))
    return [element("path", d=path, class_=f"l{line.colour}" + (" dashed" if line.style == "dashed" else ""))]


@dataclass(frozen=True)
class Band:
    """What goes from one place to another, as wide as its value; the tip is shown when the pointer or the focus is on it."""

    source: str
    target: str
    value: float
    colour: int
    tip: str


def bands(title: str, items: Sequence[Band]) -> Markup:
    """Bands from places on the left to places on the right, each place as high as what leaves or reaches it."""
    left, right, thick, gap = 104.0, WIDTH - 104.0, 8.0, 12.0
    sides = ([band.source for band in items], [band.target for band in items])
    places = [list(dict.fromkeys(names)) for names in sides]
    height = 130.0
    scale = (height - gap * (max(map(len, places), default=0) - 1)) / max(sum(band.value for band in items), 1e-12)
    drawn: list[Markup] = []
    tops: list[dict[str, float]] = []
    for side, names in enumerate(places):
        y = 0.0
        tops.append({})
        for name in names:
            high = scale * sum(band.value for band, own in zip(items, sides[side], strict=True) if own == name)
            tops[side][name] = y
            x, at, anchor = (
                (left - thick, left - thick - 5, "end") if side == 0 else (right, right + thick + 5, "start")
            )
            drawn.append(element("rect", x=x, y=y, width=thick, height=max(high, 1.0), class_="f7"))
            drawn.append(text_at(cut(name, left - thick - 5), at, y + high / 2 + 4, text_anchor=anchor))
            y += max(high, 1.0) + gap
    middle = short((left + right) / 2)
    for band in items:
        high = max(scale * band.value, 0.5)
        y0, y1 = tops[0][band.source], tops[1][band.target]
        tops[0][band.source] += high
        tops[1][band.target] += high
        a, b, c, d = map(short, (y0, y1, y1 + high, y0 + high))
        x0, x1 = short(left), short(right)
        path = f"M{x0} {a} C{middle} {a} {middle} {b} {x1} {b} L{x1} {c} C{middle} {c} {middle} {d} {x0} {d} Z"
        drawn.append(tipped(element("path", d=path, class_=f"f{band.colour} band"), band.tip))
    return svg(title, height + gap * max(map(len, places), default=0), drawn)


def pipeline(instance: PlannedInstance, colours: Mapping[str, int], sources: Mapping[str, str]) -> Markup:
    """One serving instance to scale: a stage is as wide as the layers it holds, a node as high as its share of the traffic.

    Args:
        instance: The instance.
        colours: Configuration -> number of its colour.
        sources: Configuration -> where its figures come from.
    """
    total = sum(stage.layers for stage in instance.stages)
    gap, height, x = 10.0, 84.0, 0.0
    room = WIDTH - gap * (len(instance.stages) - 1)
    least = min(22.0, room / len(instance.stages))
    spare = room - least * len(instance.stages)
    drawn: list[Markup] = []
    for position, stage in enumerate(instance.stages):
        width, y = least + spare * stage.layers / total, 0.0
        for node in stage.nodes:
            tip = (
                f"layers {stage.first_layer} to {stage.last_layer} ({stage.layers}): {node.configuration}, "
                f"{node.count} of them, {node.tokens_s:,.1f} tokens/s and {node.traffic_share:.1%} of the traffic each, "
                f"batch {node.batch}; figures: {sources.get(node.configuration, 'source not stated')}"
            )
            share = node.count * node.traffic_share
            box = element(
                "rect", x=x, y=y, width=width, height=height * share, class_=f"t{colours[node.configuration]} node"
            )
            inside = [box]
            # Equal nodes are told apart by thin lines while there are few.
            for k in range(1, node.count if node.count <= 12 else 1):
                at = y + height * node.traffic_share * k
                inside.append(element("line", x1=x, x2=x + width, y1=at, y2=at, class_="seam"))
            words = node.configuration if node.count == 1 else f"{node.count} of {node.configuration}"
            upright = len(words) * CHARACTER > width - 4
            middle_x, middle_y = x + width / 2, y + height * share / 2
            if not upright and height * share >= 14:
                more = f"{node.tokens_s:,.1f} tokens/s"
                if len(stage.nodes) > 1 or node.count > 1:
                    more += f" and {node.traffic_share:.0%} of the traffic each"
                both = height * share >= 34 and len(more) * CHARACTER <= width - 4
                inside.append(text_at(words, middle_x, middle_y + (-3 if both else 4), text_anchor="middle"))
                if both:
                    inside.append(text_at(more, middle_x, middle_y + 12, text_anchor="middle", class_="small"))
            elif width >= 16 and height * share >= len(words) * CHARACTER:
                turn = f"rotate(-90 {short(middle_x)} {short(middle_y)})"
                inside.append(text_at(words, middle_x, middle_y + 4, text_anchor="middle", transform=turn))
            drawn.append(tipped(Markup("").join(inside), tip))
            y += height * share
        words = f"{stage.first_layer}-{stage.last_layer}"
        if len(words) * CHARACTER > width:
            words = str(stage.layers)
        drawn.append(text_at(words, x + width / 2, height + 14, text_anchor="middle", class_="small"))
        x += width
        if position + 1 < len(instance.stages):
            tip_x, mid = x + gap - 2, height / 2
            drawn.append(
                element(
                    "path",
                    d=f"M{short(x + 2)} {mid - 4} L{short(tip_x)} {mid} L{short(x + 2)} {mid + 4}",
                    class_="arrow",
                )
            )
            x += gap
    name = f"Pipeline of {instance.key} in {instance.region}: {len(instance.stages)} stages, {total} layers"
    return svg(name, height + 20, drawn)
