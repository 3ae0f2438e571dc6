"""The page of a plan: what it costs, whether it keeps its promise, what is rented where, how each model is cut."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from coralopt.plan.bill import Bill, OneGpuRent, bill_of
from coralopt.plan.document import Plan
from coralopt.plan.flows import flows_of
from coralopt.plan.parts import PlannedInstance, PlannedShare, PlannedStage
from coralopt.planning.analysis import PlanAnalysis
from coralopt.report.bill import ATTRIBUTION, bill_table, model_table
from coralopt.report.drawing import Band, BarPart, BarRow, Line, Scale, bands, bars, colour_numbers, lines, pipeline
from coralopt.report.pages.page import Block, Figure, Folded, Grid, HtmlTable, Page, PageAnswer, PageSection, Words
from coralopt.report.pages.simulation import SimulatedRequests, latency_figures, miss_figure, promise_answer
from coralopt.report.promise import bound_words, unconfirmed_words
from coralopt.report.table import Column, make_table
from coralopt.report.tables import case_table, demand_table, instance_table, option_table, plan_summary
from coralopt.report.verified import simulated_table
from coralopt.scenario import ResolvedScenario

#: Most pipelines drawn open and folded, and most rows of a table; a plan of thousands of instances stays a small page.
DRAWN, FOLDED, ROWS = 12, 36, 300
#: Most flows that are drawn.
BANDS = 24


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
        PageSection("flows", "Where requests go", tuple(_flows(plan))),
        PageSection("cost", "Where the money goes", (*_grid(_rent_figures(bill)), *_model_prices(bill))),
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


def pipeline_blocks(plan: Plan) -> Iterable[Block]:
    """A drawing of every different pipeline, dearest first; those after the first few folded or only counted."""
    colours = colour_numbers(sorted({name for _, name in plan.rented_nodes()}))
    sources = {demand.key: demand.throughput_sources for demand in plan.demands}
    groups: dict[tuple[object, ...], list[PlannedInstance]] = defaultdict(list)
    for instance in plan.instances:
        groups[instance.model, instance.phase, instance.stages].append(instance)
    order = sorted(groups.values(), key=lambda group: -sum(item.count * item.price_usd_h for item in group))
    figures = [_pipeline_figure(group, colours, sources.get(group[0].key, {})) for group in order[: DRAWN + FOLDED]]
    yield Words(
        "A stage is as wide as the layers it holds, a node as high as its share of the stage's traffic. Point at a node, or "
        "move to it with the tab key, for its throughput and where that figure comes from."
    )
    yield Grid(tuple(figures[:DRAWN]))
    yield from _grid(_shared_figure(plan))
    if len(figures) > DRAWN:
        yield Folded(f"{len(figures) - DRAWN} more pipelines", (Grid(tuple(figures[DRAWN:])),))
    if len(order) > len(figures):
        left = [item for group in order[len(figures) :] for item in group]
        spent = sum(item.count * item.price_usd_h for item in left)
        yield Words(
            f"{len(order) - len(figures):,} more pipelines with {sum(item.count for item in left):,} serving instances for "
            f"{spent:,.4f} USD/h are in the plan file and not drawn here."
        )


def _pipeline_figure(group: Sequence[PlannedInstance], colours: dict[str, int], sources: dict[str, str]) -> Figure:
    first = group[0]
    places = ", ".join(f"{item.count} in {item.region}" for item in group[:6])
    if len(group) > 6:
        places += f", {sum(item.count for item in group[6:]):,} elsewhere"
    prices = sorted({item.price_usd_h for item in group})
    price = f"{prices[0]:,.4f}" + (f" to {prices[-1]:,.4f}" if len(prices) > 1 else "")
    kept = sum(item.kept for item in group)
    caption = f"{first.key}: {places}; {first.tokens_s:,.1f} tokens/s and {price} USD/h each"
    if first.shared is not None:
        what = "time" if first.shared.slice is None else "rent"
        caption += f"; {float(first.shared.part):.0%} of the {what} of a node that models share"
    return Figure(pipeline(first, colours, sources), caption + (f"; {kept} run already" if kept else ""))


def _shared_figure(plan: Plan) -> Iterable[Figure]:
    """Which models share a node: the steps of each in one cycle of the node."""
    groups: dict[str, list[PlannedInstance]] = defaultdict(list)
    for item in plan.instances:
        if item.shared is not None and item.shared.slice is None:
            groups[item.shared.group].append(item)
    if not groups:
        return
    colours = colour_numbers(sorted({item.model for group in groups.values() for item in group}))
    rows = []
    for group in list(groups.values())[:FOLDED]:
        first = group[0]
        label = f"{first.count} x {first.stages[0].nodes[0].configuration} in {first.region}: one cycle"
        parts = [
            BarPart(item.model, item.shared.step_ms, colours[item.model], _step_words(item, item.shared))
            for item in group
            if item.shared is not None
        ]
        rows.append(BarRow(label, tuple(parts)))
    caption = "Nodes that models share: whose step takes how much of a cycle, ms"
    if len(groups) > len(rows):
        caption += f"; the first {len(rows)} of {len(groups):,}"
    yield Figure(bars("Nodes that models share, ms of a cycle", rows, "{:,.1f} ms"), caption)


def _step_words(item: PlannedInstance, share: PlannedShare) -> str:
    return (
        f"{item.key}: a {'step' if share.swap_ms is None else 'turn'} of {share.step_ms:,.1f} ms "
        f"in a cycle of {share.cycle_ms:,.1f} ms, "
        f"{share.memory_share:.0%} of the GPUs' memory, {item.tokens_s:,.1f} tokens/s"
    )


def _flows(plan: Plan) -> Iterable[Block]:
    """Shares of modes, and KV caches between regions with what sending them costs."""
    shares: dict[str, list[BarPart]] = defaultdict(list)
    for item in plan.modes:
        shares[item.model].append(BarPart(item.mode, item.share, 1 if item.mode == "mixed" else 0))
    rows = [BarRow(model, tuple(parts), " ") for model, parts in shares.items()]
    title = "Share of requests by mode"
    figures = [Figure(bars(title, rows[:ROWS], "{:.2%}", longest=1.0), title)] if rows else []
    flows = sorted((flow for flow in flows_of(plan) if flow.requests_s > 0), key=lambda flow: -flow.gb_s)
    if len({region for flow in flows for region in (flow.prefill_region, flow.decode_region)}) < 2:
        flows = []
    if flows:
        shown = flows[:ROWS]
        colours = colour_numbers(flow.model for flow in shown)
        items = [
            Band(
                flow.prefill_region,
                flow.decode_region,
                flow.gb_s,
                colours[flow.model],
                f"{flow.model}: prefill in {flow.prefill_region}, decode in {flow.decode_region}: {flow.requests_s:,.4g} "
                f"requests/s, {flow.gb_s:,.3f} GB/s of KV cache, {flow.usd_h:,.4f} USD/h",
            )
            for flow in shown[:BANDS]
        ]
        models = ", ".join(dict.fromkeys(flow.model for flow in shown[:BANDS]))
        caption = f"KV cache from prefill (left) to decode (right), as wide as its GB/s: {models}"
        if len(flows) > BANDS:
            caption += f"; the {BANDS} largest of {len(flows):,}"
        figures.append(Figure(bands("KV cache between regions", items), caption))
    yield from _grid(figures)
    if not flows:
        return
    paid = sum(flow.usd_h for flow in flows)
    yield Words(
        f"Sending KV caches between regions costs {plan.egress_usd_h:,.4f} USD/h, part of the cost of the plan."
        if plan.flows
        else f"KV caches go anywhere for nothing in this scenario; at list prices {paid:,.4f} USD/h, not in the cost."
    )
    columns: tuple[Column | str, ...] = (
        "model",
        "prefill in",
        "decode in",
        Column("requests/s", "{:,.3f}"),
        Column("GB/s", "{:,.3f}"),
        Column("USD/h", "{:,.4f}"),
    )
    cells = [(f.model, f.prefill_region, f.decode_region, f.requests_s, f.gb_s, f.usd_h) for f in shown]
    yield HtmlTable(make_table("", columns, cells))


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
    return " → ".join(map(_stage_words, item.stages)) + (", shared" if item.shared is not None else "")


def _stage_words(stage: PlannedStage) -> str:
    nodes = " + ".join(n.configuration if n.count == 1 else f"{n.count} of {n.configuration}" for n in stage.nodes)
    return f"{stage.layers} on {nodes}"


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


def _grid(figures: Iterable[Block]) -> tuple[Block, ...]:
    """Side by side; nothing where there is none."""
    blocks = tuple(figures)
    return (Grid(blocks),) if blocks else ()


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
            " → ".join(map(_stage_words, item.instance.stages)),
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
