"""The page of a bench: how many runs every solver solved, and performance profiles with lines one can hide."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coralopt.report.drawing import BarPart, BarRow, Line, Scale, bars, lines
from coralopt.report.pages.page import (
    Block,
    Figure,
    Folded,
    Grid,
    HtmlTable,
    Page,
    PageAnswer,
    PageSection,
    SeriesChoice,
    Words,
)
from coralopt.report.svg import colour_numbers
from coralopt.report.table import Column, make_table, numbers

#: Figures of a bench, as the benchmark's summary gives them: a tree of JSON values.
Figures = dict[str, Any]


def bench_page(data: Figures) -> Page:
    """The page of one summary of ``coralopt.benchmark``."""
    sections: list[Figures] = data["sections"]
    arms = {arm["arm"] for section in sections for arm in section["arms"]}
    first = PageAnswer(
        "What was run?",
        f"{data['runs']:,} runs, {len(arms)} arms",
        (
            Words(
                f"{data['instances']:,} instances, seeds {', '.join(map(str, data['seeds']))}, clock {data['clock']}."
            ),
        ),
    )
    wrong = data["conflicts"]
    second = PageAnswer(
        "Was every answer right?",
        f"{len(wrong)} wrong answers" if wrong else "no wrong answer",
        tuple(Words(f"{item['run']}: {item['text']}") for item in wrong[:10]),
        "bad" if wrong else "good",
    )
    most = {section["kind"]: max(arm["solved"] for arm in section["arms"]) for section in sections}
    winners = [
        (section["kind"], arm)
        for section in sections
        for arm in section["arms"]
        if arm["solved"] == most[section["kind"]]
    ]
    words = tuple(Words(f"{kind}: {arm['arm']} solved {arm['solved']} of {arm['runs']}.") for kind, arm in winners[:10])
    third = PageAnswer("Who solved most?", ", ".join(dict.fromkeys(arm["arm"] for _, arm in winners)) or "-", words)
    solvers = [(item["solver"], item["version"], item["licence"]) for item in data["solvers"]]
    pages = [
        PageSection(section["kind"], section["kind"].capitalize(), tuple(_section(section))) for section in sections
    ]
    pages.append(
        PageSection("solvers", "Solvers", (HtmlTable(make_table("", ("solver", "version", "licence"), solvers)),))
    )
    return Page("Solvers compared", f"{', '.join(sorted(arms))}.", (first, second, third), pages)


def _section(section: Figures) -> Iterable[Block]:
    names = tuple(arm["arm"] for arm in section["arms"])
    colours = colour_numbers(names)
    profile = section["profile"]
    figures: list[Block] = []
    yield SeriesChoice(names)
    if profile["runs"]:
        series = []
        for arm in profile["arms"]:
            ratios = arm["ratios"]
            most = max((ratio for other in profile["arms"] for ratio in other["ratios"]), default=1.0) * 1.2
            shares = [(k + 1) / profile["runs"] for k in range(len(ratios))]
            series.append(
                Line(
                    arm["arm"],
                    [1.0, *ratios, most],
                    [0.0, *shares, shares[-1] if shares else 0.0],
                    colours[arm["arm"]],
                    "step",
                )
            )
        x = Scale("times the seconds of the fastest", log=True)
        drawing = lines("Performance profile", series, x, Scale("share of runs", low=0.0, high=1.0, form="{:.0%}"))
        figures.append(
            Figure(drawing, f"Performance profile over {profile['runs']} runs that every arm had a chance at")
        )
    primal = [item for item in section["primal"] if item["runs"]]
    if primal:
        gaps = [
            Line(
                item["arm"],
                item["moments"],
                [100 * (1.0 if gap is None else gap) for gap in item["gaps"]],
                colours[item["arm"]],
            )
            for item in primal
        ]
        x, y = Scale("seconds", log=True), Scale("mean primal gap, %", low=0.0)
        figures.append(
            Figure(lines("Mean primal gap over time", gaps, x, y), "Mean distance to the best checked answer")
        )
    solved = [
        BarRow(
            arm["arm"], (BarPart("solved", arm["solved"], colours[arm["arm"]]),), f"{arm['solved']} of {arm['runs']}"
        )
        for arm in section["arms"]
    ]
    longest = float(max((arm["runs"] for arm in section["arms"]), default=1))
    figures.append(
        Figure(bars("Runs solved", solved, "{:,.0f}", longest=longest), f"Solved within {section['limit']:g} s")
    )
    yield Grid(tuple(figures))
    shown = ("arm", "runs", "solved", "sgm_1", "median", "par10", "memory_mib")
    rows = [tuple(arm[name] for name in shown) for arm in section["arms"]]
    heads = ("shifted geometric mean s", "median s", "PAR10 s")
    columns: tuple[Column | str, ...] = (
        "arm",
        *numbers("{}", "runs", "solved"),
        *numbers("{:,.3f}", *heads),
        Column("most MiB", "{:,.0f}"),
    )
    yield HtmlTable(make_table("Arms", columns, rows), filtered=True)
    sizes = [
        (group["size"], name, cell["run"], cell["solved_of_run"], cell.get("sgm_1"))
        for group in section["by_size"]
        for name, cell in zip(names, group["arms"], strict=True)
    ]
    columns_of_sizes = ("size", "arm", Column("run", "{}"), Column("solved", "{}"), Column("mean s", "{:,.3f}"))
    yield HtmlTable(make_table("By size", columns_of_sizes, sizes), filtered=True)
    unfinished = [(item["run"], item["outcome"], item["message"]) for item in section["unfinished"]]
    if unfinished:
        table = make_table("", ("run", "outcome", "message"), unfinished[:300])
        yield Folded(f"{len(unfinished):,} runs without an answer", (HtmlTable(table, filtered=True),))
