"""Plans as tables and drawings for the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coralopt.plan.document import Plan, PlannedInstance, PlannedStage
from coralopt.report.verified import simulated_table


def plan_summary(plan: Plan) -> Table:
    """Cost, proven bound and gap in one small table."""
    table = Table(title=f"Plan for {plan.scenario.get('name', 'scenario')}", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("cost", f"{plan.cost_usd_h:,.4f} USD/h")
    table.add_row("of it initialization", f"{plan.initialization_usd_h:,.4f} USD/h")
    if plan.on_infeasible == "shortfall":
        table.add_row("of it unmet demand", f"{plan.unmet_usd_h:,.4f} USD/h")
    if plan.on_infeasible == "scale":
        bound = f" (proven: at most {plan.served_factor_bound * 100:.4f} %)"
        table.add_row("served of every demand", f"{plan.served_factor * 100:.4f} %{bound}")
    table.add_row("proven lower bound", f"{plan.lower_bound_usd_h:,.4f} USD/h")
    table.add_row("gap", f"{plan.gap * 100:.4f} % (asked for {plan.requested_gap * 100:g} %)")
    table.add_row("status", plan.status)
    table.add_row("solver", f"{plan.solver} {plan.solver_version}, formulation {plan.formulation}")
    count = sum(instance.count for instance in plan.instances)
    nodes = sum(instance.count * sum(instance.nodes().values()) for instance in plan.instances)
    table.add_row("serving instances", f"{count} on {nodes} nodes")
    return table


def demand_table(plan: Plan) -> Table:
    """Demand against planned throughput for every model phase."""
    table = Table(title="Demand")
    table.add_column("model phase")
    unmet = any(item.unmet_tokens_s for item in plan.demands)
    for head in ("SLO ms", "demand tokens/s", "planned tokens/s", "cost USD/h", *(["unmet tokens/s"] * unmet)):
        table.add_column(head, justify="right")
    for item in plan.demands:
        table.add_row(
            f"{item.model}/{item.phase}",
            f"{item.slo_ms:g}",
            f"{item.demand_tokens_s:,.1f}",
            f"{item.planned_tokens_s:,.1f}",
            f"{item.cost_usd_h:,.4f}",
            *([f"{item.unmet_tokens_s:,.1f}"] * unmet),
        )
    if plan.node_classes:
        table.caption = "cost at list prices; reserved and spot nodes cost what the table of supply classes says"
    for key, room in plan.scenario.get("headroom", {}).items():
        line = f"{key}: {room['throughput']:.1%} more tokens/s, {room['latency']:.0%} of the SLO kept free"
        table.caption = line if table.caption is None else f"{table.caption}\n{line}"
    return table


def option_table(plan: Plan) -> Table:
    """What the scenario asks for beyond demand, where the plan stands, and what binds."""
    table = Table(title="Options")
    table.add_column("option")
    for head in ("planned", "asked for"):
        table.add_column(head, justify="right")
    table.add_column("unit")
    table.add_column("binding")
    for item in plan.options:
        sign = "<=" if item.sense == "most" else ">="
        table.add_row(
            item.option, f"{item.planned:,.4g}", f"{sign} {item.asked:,.4g}", item.unit, "yes" if item.binding else ""
        )
    return table


def node_class_table(plan: Plan) -> Table:
    """Nodes by supply class."""
    table = Table(title="Nodes by supply class")
    for head in ("region", "configuration", "class"):
        table.add_column(head)
    for head in ("nodes", "USD/h each"):
        table.add_column(head, justify="right")
    for item in plan.node_classes:
        table.add_row(item.region, item.configuration, item.node_class, str(item.nodes), f"{item.usd_h:,.4f}")
    return table


def instance_table(plan: Plan) -> Table:
    """What to rent: one row a serving template and region."""
    table = Table(title="Serving instances")
    for head in ("model phase", "region"):
        table.add_column(head)
    table.add_column("count", justify="right")
    table.add_column("nodes of one instance")
    table.add_column("layers")
    table.add_column("tokens/s each", justify="right")
    table.add_column("USD/h each", justify="right")
    for instance in plan.instances:
        table.add_row(
            f"{instance.model}/{instance.phase}",
            instance.region,
            str(instance.count) + (f" ({instance.kept} kept)" if instance.kept else ""),
            " + ".join(_nodes(name, count) for name, count in instance.nodes().items()),
            "+".join(str(stage.layers) for stage in instance.stages),
            f"{instance.tokens_s:,.1f}",
            f"{instance.price_usd_h:,.4f}",
        )
    return table


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


def plan_view(plan: Plan, pipelines: bool = True) -> RenderableType:
    """All tables of a plan and, if wanted, a drawing of every instance."""
    parts: list[RenderableType] = [plan_summary(plan), demand_table(plan), instance_table(plan)]
    if plan.options:
        parts.append(option_table(plan))
    if plan.node_classes:
        parts.append(node_class_table(plan))
    missing = sorted(
        {
            node.configuration
            for instance in plan.instances
            for stage in instance.stages
            for node in stage.nodes
            if node.instance_type is None
        }
    )
    if missing:
        parts.append(
            Text(
                f"No instance type is known for these node configurations (pro-rata or own prices): {', '.join(missing)}"
            )
        )
    played = simulated_table(plan)
    if played is not None:
        parts.append(played)
    if pipelines:
        parts.append(Text("\nPipelines (layers held, nodes with their share of the stage's traffic)"))
        parts.extend(pipeline_drawing(instance) for instance in plan.instances)
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
