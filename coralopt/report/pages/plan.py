"""The page of a plan: what it costs, whether it keeps its promise, what is rented where, how each model is cut."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich.table import Table

from coralopt.plan.bill import Bill, OneGpuRent, bill_of
from coralopt.plan.document import Plan
from coralopt.plan.parts import PlannedInstance
from coralopt.planning.analysis import PlanAnalysis
from coralopt.report.bill import ATTRIBUTION, bill_table, model_table
from coralopt.report.drawing import BarPart, BarRow, Line, Scale, bars, lines
from coralopt.report.pages.page import Block, Figure, Folded, Grid, HtmlTable, Page, PageAnswer, PageSection, Words
from coralopt.report.pages.pipelines import ROWS, flow_blocks, pipeline_blocks, side_by_side, stage_words
from coralopt.report.pages.simulation import SimulatedRequests, latency_figures, miss_figure, promise_answer
from coralopt.report.promise import bound_words, unconfirmed_words
from coralopt.report.svg import colour_numbers
from coralopt.report.table import Column, make_table
from coralopt.report.tables import case_table, demand_table, instance_table, option_table, plan_summary
from coralopt.report.verified import simulated_table
from coralopt.scenario import ResolvedScenario


@dataclass(frozen=True)
class PlanPage:
    """What a page of a plan is made of.

    Attributes:
        plan: The plan.
        simulated: Requests simulated on it, where there was a simulation.
        analysis: What it hangs on, where that was asked for.
        one_gpu: The rent with one GPU type, where that is known.
        expected: Model phase -> share of requests expected within SLO, where that is known.
        broken: What does not hold, a sentence each.
    """

    plan: Plan
    simulated: SimulatedRequests | None = None
    analysis: PlanAnalysis | None = None
    one_gpu: OneGpuRent | None = None
    expected: Mapping[str, float] | None = None
    broken: tuple[str, ...] = ()


def plan_page(content: PlanPage) -> Page:
    """The page of a plan."""
    plan, simulated = content.plan, content.simulated
    bill, scenario = bill_of(plan, content.one_gpu), plan.resolved
    name = plan.scenario.get("name", "scenario")
    summary = (
        f"Planner {plan.planner}, solver {plan.solver} {plan.solver_version}, formulation {plan.formulation}, status "
        f"{plan.status}{f' ({unconfirmed_words(plan)})' if plan.unconfirmed else ''}; made by coralopt "
        f"{plan.coralopt_version}."
    )
    nodes = plan.rented_nodes()
    answers = (
        cost_answer(plan),
        promise_answer(plan, simulated, content.expected),
        _rent_answer(bill),
        _cut_answer(plan),
    )
    misses = miss_figure(plan, simulated)
    sections = [
        PageSection("pipelines", "Every pipeline, to scale", tuple(pipeline_blocks(plan))),
        PageSection("flows", "Where requests go", tuple(flow_blocks(plan))),
        PageSection("cost", "Where the money goes", (*side_by_side(_rent_figures(bill)), *_model_prices(bill))),
        PageSection("misses", "Where each miss comes from", misses),
        PageSection("latency", "Latency", latency_figures(simulated)),
        PageSection("binding", "What binds", tuple(_binding(plan, nodes, scenario, content.analysis))),
        PageSection("alternatives", "Which alternatives were close", tuple(_alternatives(content.analysis))),
        PageSection("sensitivity", "How cost follows prices, demand and SLOs", tuple(_sensitivity(content.analysis))),
        PageSection("figures", "All figures", tuple(_tables(plan, bill))),
    ]
    return Page(f"Plan for {name}", summary, answers, sections, content.broken)


def cost_answer(plan: Plan) -> PageAnswer:
    """Cost, and what is proven about it."""
    parts = [f"{plan.provisioning_usd_h:,.4f} USD/h rent"]
    if plan.initialization_usd_h:
        parts.append(f"{plan.initialization_usd_h:,.4f} USD/h initialization of what is started")
    if plan.egress_usd_h:
        parts.append(f"{plan.egress_usd_h:,.4f} USD/h egress")
    if plan.unmet_usd_h:
        parts.append(f"{plan.unmet_usd_h:,.4f} USD/h for unmet demand")
    if plan.lower_bound_usd_h > 0:
        proof = (
            f"Proven: {bound_words(plan)} costs less than {plan.lower_bound_usd_h:,.4f} USD/h, a gap "
            f"of {plan.gap * 100:.4f} % (asked for {plan.requested_gap * 100:g} %)."
        )
    else:
        proof = f"Planner {plan.planner} proves no lower bound."
    blocks: list[Block] = [Words("; ".join(parts) + "."), Words(proof)]
    if plan.on_infeasible == "scale":
        bound = f"proven: at most {plan.served_factor_bound * 100:.4f} %"
        blocks.append(Words(f"It serves {plan.served_factor * 100:.4f} % of every demand ({bound})."))
    return PageAnswer("What does it cost?", f"{plan.cost_usd_h:,.4f} USD/h", (*blocks, _model_costs(plan)))


def _rent_answer(bill: Bill) -> PageAnswer:
    regions = len({line.region for line in bill.lines})
    count = sum(line.nodes for line in bill.lines)
    headline = f"{count:,} node{'s' * (count != 1)} in {regions} region{'s' * (regions != 1)}"
    if math.isfinite(bill.usd_month):
        headline += f", {bill.usd_month:,.0f} USD/month"
    notes = [f"{note[0].upper()}{note[1:]}." for note in (bill.against, *bill.notes)]
    table = HtmlTable(bill_table(bill, 12))
    return PageAnswer("What is rented where?", headline, (table, *(Words(note, small=True) for note in notes)))


def _cut_answer(plan: Plan) -> PageAnswer:
    count = sum(item.count for item in plan.instances)
    models = len({item.model for item in plan.instances})
    rows = sorted(plan.instances, key=lambda item: -item.count * item.price_usd_h)[:12]
    rows = [item for item in plan.instances if item in rows]
    cells = [(item.key, f"{item.count:,}", _cut_words(item)) for item in rows]
    blocks: list[Block] = [
        HtmlTable(make_table("", ("model phase", Column("instances", "{}"), "layers on nodes"), cells))
    ]
    if len(plan.instances) > len(cells):
        blocks.append(Words(f"{len(plan.instances) - len(cells):,} more, below.", small=True))
    headline = f"{count:,} serving instance{'s' * (count != 1)} of {models} model{'s' * (models != 1)}"
    return PageAnswer("How is each model cut?", headline, tuple(blocks))


def _cut_words(item: PlannedInstance) -> str:
    return " → ".join(map(stage_words, item.stages)) + (", shared" if item.shared is not None else "")


def _model_costs(plan: Plan) -> Figure:
    """USD/h by model and phase, with what is paid beside rent."""
    by_model: dict[str, list[BarPart]] = defaultdict(list)
    colours = colour_numbers(("prefill", "decode", "mixed"))
    for demand in plan.demands:
        by_model[demand.model].append(BarPart(demand.phase, demand.cost_usd_h, colours[demand.phase]))
    rows = [BarRow(model, tuple(parts)) for model, parts in by_model.items()]
    other = (
        ("initialization", plan.initialization_usd_h),
        ("egress", plan.egress_usd_h),
        ("unmet demand", plan.unmet_usd_h),
    )
    rows += [BarRow(name, (BarPart(name, value, 7),)) for name, value in other if value > 0]
    return Figure(bars("Cost by model, USD/h", rows, "{:,.4f}"), "Cost by model, USD/h")


def _rent_figures(bill: Bill) -> Iterable[Figure]:
    by_gpu: dict[str, float] = defaultdict(float)
    by_region: dict[str, float] = defaultdict(float)
    for line in bill.lines:
        if math.isfinite(line.usd_h):
            by_gpu[line.gpu] += line.usd_h
            by_region[line.region] += line.usd_h
    for title, shares, colour in (("GPU", by_gpu, 6), ("region", by_region, 3)):
        rows = [
            BarRow(name, (BarPart(name, value, colour),)) for name, value in sorted(shares.items(), key=_largest)[:16]
        ]
        if rows:
            yield Figure(bars(f"Rent by {title}, USD/h", rows, "{:,.4f}"), f"Rent by {title}, USD/h")


def _model_prices(bill: Bill) -> tuple[Block, ...]:
    return HtmlTable(model_table(bill, 12)), Words(f"{ATTRIBUTION}.", small=True)


def _largest(item: tuple[str, float]) -> float:
    return -item[1]


def _binding(
    plan: Plan, nodes: Counter[tuple[str, str]], scenario: ResolvedScenario, analysis: PlanAnalysis | None
) -> Iterable[Block]:
    """What is used up, and what more of it would save."""
    names = [item.name for item in scenario.configurations]
    rows = []
    for (region, configuration), number in nodes.most_common(ROWS):
        if region in scenario.regions and configuration in names:
            offered = int(scenario.availability[scenario.regions.index(region), names.index(configuration)])
            rows.append((region, configuration, number, offered, "used up" if number >= offered else ""))
    full = [row for row in rows if row[-1]]
    if not full:
        yield Words("No kind of node is used up.")
    elif analysis is None:
        yield Words("Used up: " + ", ".join(f"{row[1]} in {row[0]}" for row in full) + ".")
    spare = {
        item.key: item.planned_tokens_s / item.demand_tokens_s - 1 for item in plan.demands if item.demand_tokens_s > 0
    }
    if spare:
        tightest = min(spare, key=lambda key: spare[key])
        words = "planned beyond its demand" if spare[tightest] >= 0 else "short of its demand"
        yield Words(f"Least capacity to spare: {tightest}, {abs(spare[tightest]):.1%} {words}.")
    if analysis is not None:
        for item in analysis.nodes:
            words = _beyond_gap(item.saved_usd_h, analysis)
            yield Words(f"One more {item.configuration} in {item.region} would save {words}.")
        for curve in analysis.sensitivities:
            head, _, model = curve.path.partition(".")
            for factor, cost in zip(curve.factors, curve.costs, strict=True):
                if head == "demand" and factor > 1:
                    more = _beyond_gap(cost - analysis.cost_usd_h, analysis)
                    words = "have no plan" if math.isnan(cost) else f"cost {more} more"
                    yield Words(f"{factor - 1:.0%} more requests of {model} would {words}.")
                    break
    columns = ("region", "nodes of", Column("rented", "{:,}"), Column("on offer", "{:,}"), "")
    yield HtmlTable(make_table("Nodes rented and on offer", columns, rows))
    if plan.options:
        yield HtmlTable(option_table(plan))
    if plan.cases:
        yield HtmlTable(case_table(plan))


def _beyond_gap(usd_h: float, analysis: PlanAnalysis) -> str:
    """A difference of two plans; what lies within the gap is nothing."""
    return f"{usd_h:,.4f} USD/h" if usd_h > analysis.gap_usd_h else "nothing"


def _alternatives(analysis: PlanAnalysis | None) -> Iterable[Block]:
    """The best plan without each template."""
    if analysis is None:
        yield Words(
            "Not computed: `coralopt report --analyse` plans again without each template in use, with one more node of what "
            "is used up, and with other prices, demand and SLOs."
        )
        return
    yield Words(
        "Each line is a plan of its own, solved to the same gap: the best one that does not use this template at all."
    )
    rows = [
        (
            item.instance.key,
            " → ".join(map(stage_words, item.instance.stages)),
            "no plan" if item.more_usd_h is None else item.more_usd_h,
            item.instead,
        )
        for item in analysis.alternatives
    ]
    columns = ("model phase", "without", Column("more USD/h", "{:,.4f}"), "instances instead")
    yield HtmlTable(make_table("", columns, rows))


def _sensitivity(analysis: PlanAnalysis | None) -> Iterable[Block]:
    """Small multiples with one scale."""
    if analysis is None:
        return
    costs = [cost for item in analysis.sensitivities for cost in item.costs if math.isfinite(cost)]
    y = Scale("USD/h", low=min(costs) * 0.95, high=max(costs) * 1.05)
    words = {"price": "Price of", "demand": "Demand of", "slo": "Both SLOs of"}
    figures = []
    for item in analysis.sensitivities:
        head, _, name = item.path.partition(".")
        tips = [f"times {factor:g}: {cost:,.4f} USD/h" for factor, cost in zip(item.factors, item.costs, strict=True)]
        series = [Line("", item.factors, item.costs), Line("", item.factors, item.costs, 0, "points", tips)]
        missing = [f"times {f:g}" for f, cost in zip(item.factors, item.costs, strict=True) if math.isnan(cost)]
        note = f"; no plan {', '.join(missing)}" if missing else ""
        title = f"{words[head]} {name}"
        figures.append(Figure(lines(title, series, Scale("times as in the scenario"), y), title + note))
    yield Grid(tuple(figures))


def _tables(plan: Plan, bill: Bill) -> Iterable[Block]:
    yield HtmlTable(demand_table(plan))
    yield HtmlTable(plan_summary(plan))
    if len(bill.lines) > 12:
        yield HtmlTable(bill_table(bill, ROWS))
    if len(bill.models) > 12:
        yield HtmlTable(model_table(bill, ROWS))
    yield HtmlTable(instance_table(plan, ROWS), filtered=True)
    simulated = simulated_table(plan)
    if simulated is not None:
        yield HtmlTable(simulated)
    yield Folded("Where the throughput figures come from", (HtmlTable(_source_table(plan)),))
    digests = f"Scenario {plan.scenario_digest}, template library {plan.library_digest}."
    yield Words(f"{digests} `coralopt verify` recomputes every figure of the plan file.", small=True)


def _source_table(plan: Plan) -> Table:
    rows = [(d.key, name, line) for d in plan.demands for name, line in d.throughput_sources.items()]
    return make_table("", ("model phase", "configuration", "source"), rows)
