"""What a simulation adds to a page: the promise with its interval, misses by cause, latency curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from coralopt.display import percent
from coralopt.errors import CoraloptError
from coralopt.plan.certificate import Certificate
from coralopt.plan.document import Plan
from coralopt.report.drawing import BarPart, BarRow, Line, Scale, bars, lines
from coralopt.report.pages.page import Block, Figure, Grid, HtmlTable, Page, PageAnswer, PageSection, Words
from coralopt.report.promise import certificate_table, interval, interval_words
from coralopt.report.simulation import (
    LATENCY_SHARES,
    MEANING,
    cause_table,
    latency_quantiles,
    outcome_name,
    promise_table,
)
from coralopt.report.svg import colour_numbers
from coralopt.report.table import Column, make_table, numbers
from coralopt.simulation import PhaseOutcome, SimulationResult

#: The question of the first screen.
PROMISE = "Does it keep its promise?"


@dataclass(frozen=True)
class SimulatedRequests:
    """The document of ``coralopt simulate --json``, read.

    Attributes:
        outcomes: One row a model phase and kind of latency.
        latencies: As :func:`coralopt.report.simulation.latency_quantiles` gives them; empty in older files.
        facts: The other figures of the document.
    """

    outcomes: tuple[PhaseOutcome, ...]
    latencies: Sequence[Mapping[str, Sequence[float | None]]]
    facts: Mapping[str, object]


def read_simulated(document: Mapping[str, object], source: str) -> SimulatedRequests:
    """From the document's JSON.

    Raises:
        CoraloptError: A part is missing or not of its kind; another version wrote it.
    """
    names = {item.name for item in fields(PhaseOutcome)}
    try:
        rows: list[dict[str, object]] = document["outcomes"]  # type: ignore[assignment]
        outcomes = tuple(
            PhaseOutcome(**{k: math.nan if v is None else v for k, v in row.items() if k in names})  # type: ignore[arg-type]
            for row in rows
        )
        latencies: Sequence[Mapping[str, Sequence[float | None]]] = document.get("latencies") or ()  # type: ignore[assignment]
        for curve in (curves[name] for curves in latencies for name in ("ms", "idle_ms")):
            if len(curve) != len(LATENCY_SHARES) or not all(isinstance(ms, int | float | None) for ms in curve):
                raise ValueError("a latency curve has a number a share")
        facts = {name: float(document[name]) for name in ("window_s", "requests", "attainment", "cost_usd_h")}  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CoraloptError(
            f"{source}: a simulation of another version, or with parts missing; repeat it with `coralopt simulate PLAN "
            "--json`"
        ) from error
    return SimulatedRequests(outcomes, latencies, facts | {"traffic": str(document.get("traffic", ""))})


def simulated_requests(result: SimulationResult) -> SimulatedRequests:
    """The same from a simulation that just ran."""
    facts: dict[str, object] = {name: getattr(result, name) for name in ("window_s", "attainment", "cost_usd_h")}
    facts |= {"requests": len(result.requests["status"]), "traffic": ""}
    return SimulatedRequests(result.outcomes, latency_quantiles(result), facts)


def promise_answer(
    plan: Plan | None, simulated: SimulatedRequests | None, expected: Mapping[str, float] | None = None
) -> PageAnswer:
    """Attainment by model phase: of the simulation, else of the certificate, else what the plan says of its own, else what a
    short window lets expect (model phase -> share)."""
    mark = None if plan is None else plan.simulated
    if simulated is not None:
        rows = [(outcome_name(row), row.attainment, row.requests) for row in simulated.outcomes]
        traffic = simulated.facts["traffic"] or "traffic not stated"
        words = f"Simulated: {simulated.facts['requests']:,.0f} requests, {traffic}."
    elif plan is not None and plan.certificate is not None:
        return _certified(plan.certificate)
    elif mark is not None:
        rows = [(outcome_name(row), row.attainment, row.requests) for row in mark.phases]
        words = f"Simulated: {mark.requests:,} requests; {percent(mark.target)} of each model phase asked for."
    elif expected:
        rows = [(key, share, 0) for key, share in expected.items()]
        words = (
            "Expected, from one short window of simulated requests. For more requests and intervals, run "
            "`coralopt simulate plan.json --json > simulation.json`, and give both files to `coralopt report`."
        )
    else:
        words = (
            "No requests were simulated. Run `coralopt simulate plan.json --json > simulation.json`, and give both files "
            "to `coralopt report`."
        )
        return PageAnswer(PROMISE, "Not simulated", (Words(words),))
    counted = any(count for _, _, count in rows)
    cells = [
        (key, percent(share), *([interval_words(*interval(share, count))] * counted)) for key, share, count in rows
    ]
    columns: tuple[Column | str, ...] = ("model phase", *numbers("{}", "met its SLO", *(["95 % interval"] * counted)))
    blocks: list[Block] = [Words(words), HtmlTable(make_table("", columns, cells))]
    if counted:
        blocks.append(Words("The interval holds for independent requests; those of one burst are not.", small=True))
    least = min((share for _, share, _ in rows if math.isfinite(share)), default=math.nan)
    verdict, kept = "", ""
    if simulated is None and mark is not None:
        verdict, kept = ("good", ", kept") if mark.passed else ("bad", ", not kept")
    elif plan is not None and not any(phase.attainment for phase in plan.resolved.model_phases):
        words = "The scenario asks that the mean request meets its SLO, not a share of the requests."
        blocks.append(Words(words, small=True))
    return PageAnswer(PROMISE, f"{percent(least)} in the worst phase{kept}", tuple(blocks), verdict)


def _certified(mark: Certificate) -> PageAnswer:
    """What fresh windows of requests confirmed."""
    least = min((phase.mean for phase in mark.phases if phase.shares), default=math.nan)
    judged = [phase for phase in mark.phases if phase.verdict != "not asked"]
    words = "nothing asked for" if not judged else "confirmed" if mark.holds else "not confirmed"
    verdict = "" if not judged else "good" if mark.holds else "bad"
    note = Words(
        "Simulated windows of requests that no search used; `coralopt verify --prove` repeats them.", small=True
    )
    table = HtmlTable(certificate_table(mark))
    return PageAnswer(PROMISE, f"{percent(least)} in the worst phase, {words}", (table, note), verdict)


def miss_figure(plan: Plan | None, simulated: SimulatedRequests | None) -> tuple[Block, ...]:
    """Share of the requests that missed, by cause; nothing where nothing was simulated."""
    if simulated is not None:
        rows = [(outcome_name(row), row.causes) for row in simulated.outcomes]
    elif plan is not None and plan.simulated is not None:
        rows = [(row.key, row.causes) for row in plan.simulated.phases]
    else:
        return ()
    present = [name for name in MEANING if any(causes.get(name) for _, causes in rows)]
    if not present:
        return (Words("Every request met its SLO."),)
    colours = colour_numbers(MEANING)
    drawn = [
        BarRow(name, tuple(_cause(word, causes.get(word, 0.0), colours) for word in present)) for name, causes in rows
    ]
    title = "Share of all requests that missed their SLO, by cause"
    meanings = make_table("", ("cause", "the request"), [(word, MEANING[word]) for word in present])
    blocks: list[Block] = [Grid((Figure(bars(title, drawn, "{:.2%}"), title), HtmlTable(meanings)))]
    if simulated is not None:
        blocks.append(HtmlTable(cause_table(simulated.outcomes)))
    return tuple(blocks)


def _cause(word: str, share: float, colours: Mapping[str, int]) -> BarPart:
    return BarPart(word, share, colours[word], f"{word}, {share:.2%} of all requests: {MEANING[word]}")


def latency_figures(simulated: SimulatedRequests | None) -> tuple[Block, ...]:
    """Latency curves of every model phase with the SLO, or a sentence on what to simulate."""
    if simulated is None:
        return ()
    if not simulated.latencies:
        return (Words("The simulation was written by a version that kept no latency curves; simulate again."),)
    figures = []
    for row, curves in zip(simulated.outcomes, simulated.latencies, strict=False):
        what = "time to first token" if row.kind == "prefill" else "time per output token"
        series = [
            Line(name, [math.inf if ms is None else ms for ms in curves[key]], LATENCY_SHARES, colour, style)
            for key, name, colour, style in (
                ("ms", "in this simulation", 0, "line"),
                ("idle_ms", "alone on an idle cluster", 1, "dashed"),
            )
        ]
        x, y = Scale("ms", log=True), Scale("share of requests", low=0.0, high=1.0, form="{:.0%}")
        drawing = lines(f"{outcome_name(row)}: {what}", series, x, y, [(f"SLO {row.slo_ms:g} ms", row.slo_ms)])
        figures.append(Figure(drawing, f"{outcome_name(row)}: {what}; {percent(row.attainment)} met the SLO"))
    return (Grid(tuple(figures)),)


def simulation_page(simulated: SimulatedRequests) -> Page:
    """The page of a simulation alone."""
    cost = PageAnswer(
        "What did it cost?", f"{simulated.facts['cost_usd_h']:,.4f} USD/h", (Words("Mean rent over the window."),)
    )
    share = float(str(simulated.facts["attainment"]))
    both = PageAnswer(
        "Requests that met both SLOs", percent(share), (Words(f"Of {simulated.facts['requests']:,.0f} requests."),)
    )
    sections = [
        PageSection("misses", "Where each miss comes from", miss_figure(None, simulated)),
        PageSection("latency", "Latency", latency_figures(simulated)),
        PageSection("figures", "All figures", (HtmlTable(promise_table(simulated.outcomes)),)),
    ]
    summary = f"{simulated.facts['window_s']:,.0f} s of arrivals: {simulated.facts['traffic']}"
    return Page("Simulation", summary, (promise_answer(None, simulated), both, cost), sections)
