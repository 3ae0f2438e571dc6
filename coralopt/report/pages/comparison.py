"""Pages that put several results side by side: planners on one scenario, epochs, solvers of a bench, points of a sweep."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coralopt.display import percent
from coralopt.plan.bill import throughput_notes
from coralopt.planning.compare import Row
from coralopt.report.comparison import attained_phases, attainment_table, comparison_table, row_name
from coralopt.report.drawing import BarPart, BarRow, bars
from coralopt.report.pages.page import Block, Figure, Folded, Grid, HtmlTable, Page, PageAnswer, PageSection, Words
from coralopt.report.pages.pipelines import pipeline_blocks
from coralopt.report.promise import bound_words
from coralopt.report.svg import colour_numbers
from coralopt.report.table import Column, make_table, numbers


def comparison_page(rows: Sequence[Row], scenario: str) -> Page:
    """Planners side by side."""
    planned = _planned(rows)
    whole = [row for row in planned if row.demand_met >= 1]
    bound = _bound(rows)
    cheapest = min(whole, key=lambda row: row.cost_usd_h, default=None)
    words = (
        f"{_bounded(rows).capitalize()} costs less than {bound:,.4f} USD/h, proven by coral."
        if not math.isnan(bound)
        else "No lower bound: coral did not take part, or did not meet all demand."
    )
    first = PageAnswer(
        "Who is cheapest?",
        "no planner meets all demand" if cheapest is None else f"{cheapest.label}: {cheapest.cost_usd_h:,.4f} USD/h",
        (Words(words),),
    )
    others = {
        row.label: _more(row.cost_usd_h / cheapest.cost_usd_h - 1)
        for row in sorted(whole, key=lambda row: row.cost_usd_h)
        if cheapest is not None and row is not cheapest
    }
    short = [row_name(row) for row in planned if row.demand_met < 1]
    lines = ["; ".join(f"{label}: {words}" for label, words in others.items()) + "."] if others else []
    lines += ["Short of demand: " + ", ".join(short) + "."] if short else []
    ends = dict.fromkeys((*list(others.values())[:1], *list(others.values())[-1:]))
    second = PageAnswer("What do the others cost?", " to ".join(ends) or "-", tuple(map(Words, lines)))
    wrong = [row for row in planned if not row.verified]
    words = "Every figure of every plan was recomputed by independent code"
    words += "." if all(row.plan for row in planned) else " when they were compared; the plan files are not there."
    third = PageAnswer(
        "Do the plans hold?",
        "every one verified" if not wrong else f"wrong: {', '.join(row.label for row in wrong)}",
        (Words(words),),
        "bad" if wrong else "good",
    )
    sections = [
        PageSection("costs", "Cost and tokens", cost_figures(rows)),
        PageSection("attainment", "Attainment by model phase", _attainment(rows)),
        PageSection("figures", "All figures", (HtmlTable(comparison_table(rows, "")), *_remarks(rows))),
        PageSection("plans", "Every plan's pipelines", tuple(_plans(planned))),
    ]
    broken = tuple(f"{row.label}: {text}" for row in wrong for text in row.violations or ("its figures do not hold",))
    summary = f"{len(rows)} planners, one scenario."
    answers = (first, second, _promise_answer(planned), third)
    return Page(f"Planners on {scenario}", summary, answers, sections, broken)


def _promise_answer(rows: Sequence[Row]) -> PageAnswer:
    """The least attainment of each plan with its interval."""
    known = {row.label: [item for item in attained_phases(row) if not math.isnan(item.share)] for row in rows}
    least = {label: min(phases, key=lambda item: item.share) for label, phases in known.items() if phases}
    question = "Do they keep their promise?"
    if not least:
        words = "No requests were simulated. `coralopt compare SCENARIO --simulate -o FOLDER` does it."
        return PageAnswer(question, "Not simulated", (Words(words),))
    best = max(least, key=lambda label: least[label].share)
    columns: tuple[Column | str, ...] = ("planner", "worst model phase", *numbers("{}", "within SLO", "95 % interval"))
    cells = [(label, item.name, *item.words) for label, item in least.items()]
    headline = f"{best} best: {percent(least[best].share)} in the worst phase"
    return PageAnswer(question, headline, (HtmlTable(make_table("", columns, cells)),))


def _attainment(rows: Sequence[Row]) -> tuple[Block, ...]:
    """All phases of all plans; nothing where nothing is known."""
    if not any(map(attained_phases, rows)):
        return ()
    words = (
        "95 % intervals of independent requests (Wilson); of a certified plan the certificate's. Requests of one burst wait "
        "for the same queue, so their true interval is wider."
    )
    return HtmlTable(attainment_table(rows, "")), Words(words, small=True)


def _more(share: float) -> str:
    return "the same" if share < 5e-4 else f"{share * 100:.1f} % more"


def _planned(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if not math.isnan(row.cost_usd_h)]


def _bound(rows: Sequence[Row]) -> float:
    return next((row.bound_usd_h for row in rows if not math.isnan(row.bound_usd_h)), math.nan)


def _bounded(rows: Sequence[Row]) -> str:
    plans = (row.plan for row in rows if not math.isnan(row.bound_usd_h) and row.plan is not None)
    return next((bound_words(plan) for plan in plans), "no plan of its kind")


def cost_figures(rows: Sequence[Row]) -> tuple[Block, ...]:
    """Cost by planner and model, and tokens for the money, promised and simulated."""
    rows, bound = _planned(rows), _bound(rows)
    models = list(dict.fromkeys(d.model for row in rows if row.plan is not None for d in row.plan.demands))
    colours = colour_numbers(models)
    cost_rows = []
    for row in rows:
        parts = [BarPart("cost", row.cost_usd_h)]
        if row.plan is not None:
            spent = {m: sum(d.cost_usd_h for d in row.plan.demands if d.model == m) for m in models}
            parts = [BarPart(model, value, colours[model]) for model, value in spent.items()]
            parts.append(BarPart("initialization, other", row.cost_usd_h - sum(spent.values()), 7))
        cost_rows.append(BarRow(row_name(row), tuple(parts), f"{row.cost_usd_h:,.4f}"))
    line = None if math.isnan(bound) else ("lower bound", bound)
    costs = Figure(bars("Cost by planner, USD/h", cost_rows, "{:,.4f}", line), "Cost, USD/h, in parts by model")
    promised = [BarRow(row_name(row), (BarPart("promised", row.tokens_usd / 1000, 0),)) for row in rows]
    figures: list[Block] = [
        costs,
        Figure(bars("Promised", promised, "{:,.1f}"), "Promised: thousand generated tokens per USD"),
    ]
    simulated = [row for row in rows if row.simulated]
    if simulated:
        drawn = [
            BarRow(row_name(r), (BarPart("met both SLOs", r.simulated.get("attainment", 0.0), 2),)) for r in simulated
        ]
        figures.append(
            Figure(bars("Attainment", drawn, "{:.1%}", longest=1.0), "Simulated: requests that met both SLOs")
        )
        drawn = [
            BarRow(row_name(r), (BarPart("tokens", r.simulated.get("tokens_usd", 0.0) / 1000, 1),)) for r in simulated
        ]
        figures.append(Figure(bars("Goodput", drawn, "{:,.1f}"), "Simulated: thousand tokens within SLO per USD"))
    return (Grid(tuple(figures)),)


def _remarks(rows: Sequence[Row]) -> list[Block]:
    lines = [f"{row.label}: {text}" for row in rows for text in (row.error, *row.notes, *row.violations) if text]
    lines += throughput_notes(row.plan for row in rows if row.plan is not None)
    return [Words(line, small=True) for line in lines]


def _plans(rows: Sequence[Row]) -> list[Block]:
    blocks: list[Block] = [
        Folded(f"{row.label}: {row.cost_usd_h:,.4f} USD/h", tuple(pipeline_blocks(row.plan)))
        for row in rows
        if row.plan is not None
    ]
    return blocks or [Words("The plan files are not there; `coralopt compare -o FOLDER` writes them.")]
