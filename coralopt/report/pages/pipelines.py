"""Pipelines of a plan to scale, nodes that models share, and where requests and their KV caches go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from coralopt.plan.document import Plan
from coralopt.plan.flows import flows_of
from coralopt.plan.parts import PlannedInstance, PlannedShare, PlannedStage
from coralopt.report.drawing import Band, BarPart, BarRow, bands, bars, pipeline
from coralopt.report.pages.page import Block, Figure, Folded, Grid, HtmlTable, Words
from coralopt.report.svg import colour_numbers
from coralopt.report.table import Column, make_table

#: Most pipelines drawn open and folded, and most rows of a table; a plan of thousands of instances stays a small page.
DRAWN, FOLDED, ROWS = 12, 36, 300
#: Most flows that are drawn.
BANDS = 24


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
    yield from side_by_side(_shared_figure(plan))
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


def flow_blocks(plan: Plan) -> Iterable[Block]:
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
    yield from side_by_side(figures)
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


def stage_words(stage: PlannedStage) -> str:
    nodes = " + ".join(n.configuration if n.count == 1 else f"{n.count} of {n.configuration}" for n in stage.nodes)
    return f"{stage.layers} on {nodes}"


def side_by_side(figures: Iterable[Block]) -> tuple[Block, ...]:
    """Side by side; nothing where there is none."""
    blocks = tuple(figures)
    return (Grid(blocks),) if blocks else ()
