"""Plans as tables and drawings for the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coralopt.display import percent
from coralopt.plan.bill import OneGpuRent, bill_of
from coralopt.plan.document import Plan
from coralopt.plan.flows import flows_of
from coralopt.plan.parts import PlannedInstance, PlannedStage
from coralopt.report.bill import bill_view
from coralopt.report.promise import certificate_table, expected_fact, unconfirmed_words
from coralopt.report.table import Column, facts_table, make_table, numbers
from coralopt.report.verified import simulated_table

#: Instances that tables and drawings have; more would take minutes to print, and nobody reads them.
MOST_SHOWN = 200


def plan_summary(plan: Plan, expected: Mapping[str, float] | None = None) -> Table:
    """Cost, proven bound, gap and, where known, the share of requests expected within SLO in one small table."""
    facts = [
        ("cost", f"{plan.cost_usd_h:,.4f} USD/h"),
        ("of it initialization", f"{plan.initialization_usd_h:,.4f} USD/h"),
    ]
    if plan.cases:
        facts.append(("of it expected unmet demand", f"{plan.unmet_usd_h:,.4f} USD/h"))
    elif plan.on_infeasible == "shortfall":
        facts.append(("of it unmet demand", f"{plan.unmet_usd_h:,.4f} USD/h"))
    if plan.on_infeasible == "scale":
        bound = f" (proven: at most {plan.served_factor_bound * 100:.4f} %)"
        facts.append(("served of every demand", f"{plan.served_factor * 100:.4f} %{bound}"))
    if plan.flows:
        facts.append(("of it egress", f"{plan.egress_usd_h:,.4f} USD/h"))
    facts += [
        (f"requests of {item.model}, {item.mode}", f"{item.share:.2%}") for item in plan.modes if 0 < item.share < 1
    ]
    # In mode auto prefill and mixed instances say the same of a model.
    facts += dict.fromkeys(
        (f"prompt tokens of {item.model} from KV caches", f"{item.prefix_hit:.2%}")
        for item in plan.demands
        if item.prefix_hit and item.phase != "decode"
    )
    priced = bool(plan.flows)
    for source, target, gb_s, usd_h in sent_between_regions(plan):
        paid = f"{usd_h:,.2f} USD/h" + ("" if priced else " at list prices, not in the cost")
        facts.append((f"KV cache {source} to {target}", f"{gb_s:,.2f} GB/s, {paid}"))
    count = sum(instance.count for instance in plan.instances)
    nodes = plan.rented_nodes().total()
    facts += [
        ("proven lower bound", f"{plan.lower_bound_usd_h:,.4f} USD/h"),
        ("gap", f"{plan.gap * 100:.4f} % (asked for {plan.requested_gap * 100:g} %)"),
        ("status", plan.status),
        *([("not confirmed", unconfirmed_words(plan))] if plan.unconfirmed else []),
        ("solver", f"{plan.solver} {plan.solver_version}, formulation {plan.formulation}"),
        ("serving instances", f"{count} on {nodes} nodes"),
    ]
    if expected is not None:
        facts.append(expected_fact(expected, plan.certificate is not None))
    return facts_table(f"Plan for {plan.scenario.get('name', 'scenario')}", facts)


def sent_between_regions(plan: Plan) -> list[tuple[str, str, float, float]]:
    """(from, to, GB/s, USD/h) of KV cache between different regions, all models together."""
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    for flow in flows_of(plan):
        if flow.prefill_region != flow.decode_region:
            gb_s, usd_h = sums.get((flow.prefill_region, flow.decode_region), (0.0, 0.0))
            sums[flow.prefill_region, flow.decode_region] = gb_s + flow.gb_s, usd_h + flow.usd_h
    return [(*pair, *total) for pair, total in sorted(sums.items())]


def demand_table(plan: Plan, expected: Mapping[str, float] | None = None) -> Table:
    """What is promised for every model phase: its SLO, for which requests, and throughput against demand.

    Args:
        plan: The plan.
        expected: Model phase -> share of requests expected within SLO, where that is known.
    """
    unmet = any(item.unmet_tokens_s for item in plan.demands)
    phases = {phase.key: phase for phase in plan.resolved.model_phases}
    captions = [
        f"{key}: {room.get('throughput', 0.0):.1%} more tokens/s, {room.get('latency', 0.0):.0%} of the SLO kept free"
        for key, room in (plan.scenario.get("headroom") or {}).items()
    ]
    rows = []
    for item in plan.demands:
        phase = phases.get(item.key)
        share = None if phase is None else phase.attainment
        slo = f"{'TTFT' if item.phase == 'prefill' else 'TPOT'} {item.slo_ms:g} ms"
        if item.phase == "mixed" and phase is not None:
            slo = f"TTFT {phase.prefill_ms:g} ms, {slo}"
        rows.append(
            (
                *(item.key, slo, "mean request" if share is None else f"{share:g} of requests"),
                *([] if expected is None else [percent(expected.get(item.key))]),
                *(item.demand_tokens_s, item.planned_tokens_s, *([item.unmet_tokens_s] * unmet)),
            )
        )
    return make_table(
        "Promises",
        [
            *("model phase", "SLO", "for"),
            *numbers("{}", *([] if expected is None else ["expected"])),
            *numbers("{:,.1f}", "demand tokens/s", "planned tokens/s", *(["unmet tokens/s"] * unmet)),
        ],
        rows,
        caption="\n".join(captions) or None,
    )


def case_table(plan: Plan) -> Table:
    """Demands that may come, and what each leaves unserved."""
    return make_table(
        "Demand cases",
        [
            *("case", Column("probability", "{:.1%}"), "model", Column("times demand", "{:,.4g}")),
            *(Column("not served", "{:.2%}"), Column("USD/h then", "{:,.4f}")),
        ],
        [
            (item.case, item.probability, item.model, item.factor, item.unmet_share, item.unmet_usd_h)
            for item in plan.cases
        ],
    )


def option_table(plan: Plan) -> Table:
    """What the scenario asks for beyond demand, where the plan stands, and what binds."""
    return make_table(
        "Options",
        ["option", Column("planned", "{:,.4g}"), Column("asked for", "{}"), "unit", "binding"],
        [
            (
                *(item.option, item.planned, f"{'<=' if item.sense == 'most' else '>='} {item.asked:,.4g}"),
                *(item.unit, "yes" if item.binding else ""),
            )
            for item in plan.options
        ],
    )


def instance_table(plan: Plan, most: int = MOST_SHOWN) -> Table:
    """What runs: one row a serving template and region; the ``most`` dearest where there are more."""
    columns: list[Column | str] = [
        *("model phase", "region", Column("count", "{}"), "nodes of one instance", "layers"),
        *(Column("tokens/s each", "{:,.1f}"), Column("USD/h each", "{:,.4f}")),
    ]
    rows = [
        (
            instance.key,
            instance.region,
            f"{instance.count} ({instance.kept} kept)" if instance.kept else instance.count,
            _nodes_of(instance),
            "+".join(str(stage.layers) for stage in instance.stages),
            instance.tokens_s,
            instance.price_usd_h,
        )
        for instance in dearest_instances(plan, most)
    ]
    few = len(rows) < len(plan.instances)
    caption = f"The {most} dearest of {len(plan.instances):,} rows; all are in the plan file." if few else None
    return make_table("Serving instances", columns, rows, caption=caption)


def dearest_instances(plan: Plan, most: int) -> tuple[PlannedInstance, ...]:
    """All of a plan's instances in its order, or the ``most`` dearest, dearest first, where there are more."""
    if len(plan.instances) <= most:
        return plan.instances
    return tuple(sorted(plan.instances, key=lambda item: -item.count * item.price_usd_h)[:most])


def _nodes_of(instance: PlannedInstance) -> str:
    """Its nodes; of a shared one which it is, and which share of its time the instance takes."""
    text = " + ".join(_nodes(name, count) for name, count in instance.nodes().items())
    if instance.shared is None:
        return text
    group = instance.shared.group.rpartition("-")[2]
    if instance.shared.slice is not None:
        return f"{instance.shared.slice} of {text} ({group})"
    return f"{float(instance.shared.part):.0%} of {text} ({group}{', swapped' if instance.shared.swap_ms else ''})"


def pipeline_drawing(instance: PlannedInstance) -> Text:
    """One instance as boxes joined by arrows: a box a stage, its layers on top, its nodes with their traffic below."""
    boxes = [_box(stage) for stage in instance.stages]
    height = max(len(box) for box in boxes)
    lines = [""] * (height + 2)
    for position, box in enumerate(boxes):
        width = max(len(line) for line in box)
        body = [line.ljust(width) for line in box] + [" " * width] * (height - len(box))
        arrow = " --> " if position + 1 < len(boxes) else ""
        frame = "+" + "-" * (width + 2) + "+"
        lines[0] += frame + " " * len(arrow)
        for row, line in enumerate(body):
            lines[row + 1] += f"| {line} |" + (arrow if row == 0 else " " * len(arrow))
        lines[-1] += frame + " " * len(arrow)
    head = (
        f"{instance.count} x {instance.model}/{instance.phase} in {instance.region}, "
        f"{instance.tokens_s:,.1f} tokens/s, {instance.price_usd_h:,.4f} USD/h each"
    )
    return Text("\n".join([head, *(f"  {line.rstrip()}" for line in lines), ""]))


def plan_view(
    plan: Plan,
    pipelines: bool = True,
    expected: Mapping[str, float] | None = None,
    one_gpu: OneGpuRent | None = None,
    alternative: str = "",
) -> RenderableType:
    """All tables of a plan, the bill first, and, if wanted, a drawing of every instance.

    Args:
        plan: The plan.
        pipelines: Whether to draw instances.
        expected: Model phase -> share of requests expected within SLO, where that is known.
        one_gpu: The rent with one GPU type, where that is known.
        alternative: A sentence about the cheapest plan that holds, where this one is not expected to.
    """
    promise = [] if expected is None else [": ".join(expected_fact(expected, plan.certificate is not None))]
    promise += [unconfirmed_words(plan)] if plan.unconfirmed else []
    promise += [alternative] if alternative else []
    parts: list[RenderableType] = [bill_view(bill_of(plan, one_gpu), promise), demand_table(plan, expected)]
    parts += [plan_summary(plan, expected), instance_table(plan)]
    if plan.options:
        parts.append(option_table(plan))
    if plan.cases:
        parts.append(case_table(plan))
    simulated = simulated_table(plan)
    if simulated is not None:
        parts.append(simulated)
    if plan.certificate is not None:
        parts.append(certificate_table(plan.certificate))
    if pipelines:
        parts.append(Text("\nPipelines (layers held, nodes with their share of the stage's traffic)"))
        parts.extend(pipeline_drawing(instance) for instance in dearest_instances(plan, MOST_SHOWN))
    return Group(*parts)


def _nodes(name: str, count: int) -> str:
    return name if count == 1 else f"{count} of {name}"


def _box(stage: PlannedStage) -> list[str]:
    head = f"layers {stage.first_layer}-{stage.last_layer} ({stage.layers})"
    nodes = [
        f"{_nodes(node.configuration, node.count)} @ {node.traffic_share * 100:.0f} %"
        + (" each" if node.count > 1 else "")
        for node in stage.nodes
    ]
    return [head, *nodes]
