"""The fleet page: what runs behind a router, whether it keeps its SLOs, what it costs, and the last change of plan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from coralopt.display import percent
from coralopt.report.drawing import BarPart, BarRow, bars
from coralopt.report.pages.page import (
    Block,
    Figure,
    Folded,
    Grid,
    HtmlTable,
    Page,
    PageAnswer,
    PageSection,
    Words,
    page_parts,
    render_page,
)
from coralopt.report.table import Column, make_table, numbers
from coralopt.runtime.router.doors import DrawnFleet
from coralopt.runtime.router.status import WINDOW_S, FleetStatus, FollowedPlan, InstanceStatus, LatencyStatus

#: Most rows of a table, and most model phases whose shares are drawn open and folded; the page is sent again and again.
ROWS, DRAWN, FOLDED = 300, 12, 36
#: Most names of pipelines in a sentence.
NAMED = 8


def draw_fleet(status: FleetStatus) -> DrawnFleet:
    """The page as one HTML document, and its parts for those that have it open."""
    page = fleet_page(status)
    return DrawnFleet(render_page(page), page_parts(page))


def fleet_page(status: FleetStatus) -> Page:
    """The page of one look at a fleet."""
    summary = (
        f"As of {_time(status.at)}; the router started {_ago(status.at - status.since)}. Without a script, load the page "
        "again for newer figures."
    )
    answers = (_up_answer(status), _slo_answer(status.latencies), _cost_answer(status), _change_answer(status))
    sections = [
        PageSection("traffic", "Shares of the traffic, wanted and seen", tuple(_traffic(status.instances))),
        PageSection("latency", "Latencies and SLOs", tuple(_latencies(status.latencies))),
        PageSection("queues", "Queues", tuple(_queues(status))),
        PageSection("instances", "Instances", tuple(_instances(status.instances))),
        PageSection("plans", "Plans that were followed", tuple(_plans(status))),
    ]
    return Page("Fleet", summary, answers, sections, events="fleet/events")


def _up_answer(status: FleetStatus) -> PageAnswer:
    count, good = len(status.instances), sum(item.state == "serves" for item in status.instances)
    words = []
    for state in ("ill", "on trial", "draining"):
        names = [item.name for item in status.instances if item.state == state]
        if names:
            words.append(f"{state.capitalize()}: {_named(names)}.")
    words += [f"{name}: {n} of {most} run." for name, (n, most) in list(status.short.items())[:NAMED]]
    words += [f"{name} is given up: {why}." for name, why in list(status.given_up.items())[:NAMED]]
    headline = f"{good:,} of {count:,} instances serve" if count else "no instance is known"
    whole = bool(count) and good == count and not status.short and not status.given_up
    return PageAnswer("Is everything up?", headline, tuple(map(Words, words)), "good" if whole else "bad")


def _slo_answer(rows: Sequence[LatencyStatus]) -> PageAnswer:
    question = "Are answers within the SLO?"
    told = [row for row in rows if not math.isnan(row.met)]
    if not told:
        words = (
            "No streamed answer in the last ten minutes."
            if any(not math.isnan(row.slo_ms) for row in rows) or not rows
            else "The router knows no plan, and so no SLO: name one with --fleet PLAN."
        )
        return PageAnswer(question, "nothing to tell", (Words(words),))
    worst = min(told, key=lambda row: row.met)
    promised = [row for row in told if not math.isnan(row.target)]
    missed = [f"{row.model}, {row.kind}" for row in promised if row.met < row.target]
    words = f"Least: {worst.model}, {worst.kind}, over {worst.answers:,} answers of the last {WINDOW_S / 60:g} minutes."
    blocks = [Words(words)]
    if missed:
        blocks.append(Words(f"Below the share that the plan asks for: {_named(missed)}."))
    elif promised:
        blocks.append(Words("Every model meets the share that the plan asks for."))
    verdict = "" if not promised else "bad" if missed else "good"
    return PageAnswer(question, f"{percent(worst.met)} at least", tuple(blocks), verdict)


def _cost_answer(status: FleetStatus) -> PageAnswer:
    question = "What does it cost?"
    if not status.plans:
        return PageAnswer(question, "not known", (Words("The router knows no plan: name one with --fleet PLAN."),))
    words = f"{status.spent_usd:,.2f} USD so far: rent of the plans followed since {_time(status.plans[-1].at)}."
    return PageAnswer(question, f"{status.plans[0].usd_h:,.4f} USD/h", (Words(words),))


def _change_answer(status: FleetStatus) -> PageAnswer:
    question = "What was the last change of plan, and why?"
    if not status.plans:
        return PageAnswer(question, "none", (Words("The router knows no plan."),))
    newest = status.plans[0]
    return PageAnswer(question, _ago(status.at - newest.at), (*map(Words, newest.why), Words(_moves(newest))))


def _moves(plan: FollowedPlan) -> str:
    words = [
        f"{len(names):,} {what} ({_named(names)})"
        for what, names in (("started", plan.started), ("stopped", plan.stopped))
        if names
    ]
    return "; ".join([*words, f"{len(plan.kept):,} kept"]) + "."


def _traffic(instances: Sequence[InstanceStatus]) -> Iterable[Block]:
    groups: dict[tuple[str, str], list[InstanceStatus]] = {}
    for item in instances:
        groups.setdefault((item.model, item.phase), []).append(item)
    figures = []
    for (model, phase), items in groups.items():
        shown = sorted(items, key=lambda item: -item.wanted)[:NAMED]
        rows = []
        for item in shown:
            seen = "nothing yet" if math.isnan(item.seen) else f"{item.seen:.1%}"
            tip = f"{item.name}: wanted {item.wanted:.1%}, seen {seen}"
            part = BarPart("seen", 0.0 if math.isnan(item.seen) else item.seen, 0, tip)
            rows.append(BarRow(item.name, (part,), seen, item.wanted))
        more = f"; {len(items) - len(shown):,} more in the table" if len(items) > len(shown) else ""
        title = f"{model}/{phase}"
        figures.append(Figure(bars(title, rows, "{:.1%}", longest=1.0), title + more))
    yield Words(
        "Bars are the shares of requests since the pool changed last. Dashed lines are what the plan wants: the planned "
        "throughput of an instance over that of its model phase."
    )
    yield Grid(tuple(figures[:DRAWN]))
    folded = figures[DRAWN : DRAWN + FOLDED]
    if folded:
        yield Folded(f"{len(folded)} more model phases", (Grid(tuple(folded)),))
    if len(figures) > DRAWN + FOLDED:
        yield Words(f"{len(figures) - DRAWN - FOLDED:,} more model phases are not drawn.", small=True)


def _latencies(rows: Sequence[LatencyStatus]) -> Iterable[Block]:
    cells = [
        (row.model, row.kind, row.slo_ms, percent(row.target), row.answers, percent(row.met), row.p50_ms, row.p99_ms)
        for row in rows[:ROWS]
    ]
    columns: tuple[Column | str, ...] = (
        "model",
        "latency",
        *numbers("{:,.0f}", "SLO ms"),
        *numbers("{}", "asked for"),
        *numbers("{:,}", "answers"),
        *numbers("{}", "within the SLO"),
        *numbers("{:,.1f}", "median ms", "99 % ms"),
    )
    yield HtmlTable(make_table("", columns, cells))
    yield Words(
        f"Whole streamed answers of the last {WINDOW_S / 60:g} minutes, timed from the request's arrival at this router.",
        small=True,
    )


def _queues(status: FleetStatus) -> Iterable[Block]:
    cells = [(f"{row.model}/{row.phase}", row.waiting, row.in_flight, row.slots) for row in status.queues[:ROWS]]
    yield HtmlTable(make_table("", ("model phase", *numbers("{:,}", "waiting", "at instances", "room for")), cells))


def _instances(instances: Sequence[InstanceStatus]) -> Iterable[Block]:
    # Those with something to say first.
    order = sorted(instances, key=lambda item: item.state == "serves")
    cells = [
        (item.name, f"{item.model}/{item.phase}", item.region or "", item.state, item.in_flight, item.wanted, item.seen)
        for item in order[:ROWS]
    ]
    columns: tuple[Column | str, ...] = (
        "instance",
        "model phase",
        "region",
        "state",
        *numbers("{:,}", "at work"),
        *numbers("{:.1%}", "wanted", "seen"),
    )
    yield HtmlTable(make_table("", columns, cells), filtered=True)
    if len(instances) > ROWS:
        yield Words(f"{ROWS} of {len(instances):,}; those that do not serve come first.", small=True)


def _plans(status: FleetStatus) -> Iterable[Block]:
    if not status.plans:
        yield Words("None is known.")
        return
    cells = [(_time(plan.at), plan.usd_h, " ".join(plan.why), _moves(plan)) for plan in status.plans]
    yield HtmlTable(make_table("", ("since", Column("USD/h", "{:,.4f}"), "why", "pipelines"), cells))


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _ago(seconds: float) -> str:
    for name, length in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count:,} {name}{'s' * (count != 1)} ago"
    return "less than a minute ago"
