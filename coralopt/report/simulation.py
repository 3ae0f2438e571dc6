"""What a plan promised and what a simulation saw, as tables for the terminal."""

from __future__ import annotations

import math

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coralopt.simulation import PhaseOutcome, SimulationResult
from coralopt.simulation.causes import BURST_S, CAUSES

_MEANING = {
    "length": "would miss alone on an idle cluster of these nodes, too: no headroom in throughput helps",
    "instance": "no instance served",
    "startup": "waited while instances of the plan in force were still starting",
    "memory": "waited for KV memory",
    "burst": f"waited for others while more tokens arrived in {BURST_S:g} s than the plan promises",
    "queue": "waited for others though no more arrived than promised",
    "batch": "its own decoding rounds were too slow: larger batches or longer contexts than planned for",
    "transfer": "its KV transfer waited for others",
}


def _number(value: float, digits: int = 1) -> str:
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value * 100:.1f} %"


def simulation_summary(result: SimulationResult) -> Table:
    """Size of the run, cost and the share of requests that met both SLOs."""
    status = result.requests["status"]
    table = Table(title="Simulation", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("window", f"{result.window_s:,.1f} s, last request left at {result.end_s:,.1f} s")
    table.add_row("requests", f"{len(status):,}")
    table.add_row("finished / rejected / never served", " / ".join(f"{int((status == s).sum()):,}" for s in (1, 2, 0)))
    table.add_row("met both SLOs", _percent(result.attainment))
    table.add_row("of those that could on an idle cluster", _percent(result.attainment_feasible))
    table.add_row("rent", f"{result.cost_usd:,.4f} USD, {result.cost_usd_h:,.4f} USD/h")
    table.add_row("events", f"{result.events:,}")
    return table


def promise_table(result: SimulationResult) -> Table:
    """Promised, offered and achieved throughput of every model phase."""
    table = Table(title="Promise and outcome, tokens/s (prefill: input tokens, decode: output tokens)")
    table.add_column("model phase")
    for head in ("promised", "planned for", "offered", "achieved", "goodput", "SLO ms", "met SLO", "met at work"):
        table.add_column(head, justify="right")
    for row in result.outcomes:
        table.add_row(
            outcome_name(row),
            *(
                _number(value)
                for value in (
                    row.promised_tokens_s,
                    row.demand_tokens_s,
                    row.offered_tokens_s,
                    row.achieved_tokens_s,
                    row.goodput_tokens_s,
                )
            ),
            f"{row.slo_ms:g}",
            _percent(row.attainment),
            _percent(row.attainment_served),
        )
    return table


def latency_table(result: SimulationResult) -> Table:
    """Percentiles of the latency the SLO is about, where the time goes, and why requests waited."""
    table = Table(title="Latency, ms: time to first token (prefill), time per output token (decode)")
    table.add_column("model phase")
    for head in ("SLO", "p50", "p95", "p99", "mean wait", "mean transfer"):
        table.add_column(head, justify="right")
    table.add_column("had to wait for")
    for row in result.outcomes:
        mine = result.requests["model"] == result.models.index(row.model)
        prefill = row.kind == "prefill"
        wait = result.requests["prefill_wait_ms" if prefill else "decode_wait_ms"][mine]
        transfer = result.requests["transfer_ms"][mine]
        reasons = [f"{word} {_percent(share)}" for word, share in row.waited.items() if share > 0]
        table.add_row(
            outcome_name(row),
            f"{row.slo_ms:g}",
            *(_number(value) for value in (row.p50_ms, row.p95_ms, row.p99_ms, _mean(wait))),
            "-" if prefill else _number(_mean(transfer)),
            ", ".join(reasons) or "nothing",
        )
    return table


def cause_table(result: SimulationResult) -> Table:
    """Share of all requests that missed, by cause, and where and when most of them did."""
    present = [name for name in CAUSES if any(name in row.causes for row in result.outcomes)]
    table = Table(title="Where and why the promise broke, share of all requests")
    table.add_column("model phase")
    for head in ("missed", *present, "met of feasible"):
        table.add_column(head, justify="right")
    table.add_column("worst instance, and half minute")
    for row in result.outcomes:
        where = "-"
        if row.causes:
            where = f"{row.worst_instance_share:.0%} of it on {row.worst_instance}; " if row.worst_instance else ""
            where += f"from {row.worst_from_s:g} s: {_percent(row.worst_attainment)} met"
        table.add_row(
            outcome_name(row),
            _percent(1 - row.attainment),
            *(_percent(row.causes[name]) if name in row.causes else "-" for name in present),
            _percent(row.attainment_feasible),
            where,
        )
    return table


def cause_lines(result: SimulationResult) -> str:
    """What the causes that occur mean, and for every instance that waits for memory which of its nodes is full."""
    present = [name for name in _MEANING if any(name in row.causes for row in result.outcomes)]
    lines = [f"{name}: {_MEANING[name]}" for name in present]
    nodes, names = result.nodes, result.instances["name"]
    told = set()
    for row in result.outcomes:
        if "memory" not in row.causes:
            continue
        for k, label in enumerate(nodes["label"]):
            name = names[int(nodes["instance"][k])]
            full = nodes["kv_peak_bytes"][k] > 0.98 * nodes["kv_capacity_bytes"][k]
            if name == row.worst_instance and full and (name, label) not in told:
                told.add((name, label))
                lines.append(f"memory of {label} in {name} was full")
    return "\n".join(lines)


def node_table(result: SimulationResult) -> Table:
    """Equal nodes of equal instances in one row: utilisation and KV memory."""
    table = Table(title="Nodes")
    table.add_column("instance")
    table.add_column("node")
    for head in ("nodes", "busy", "mean batch", "KV peak"):
        table.add_column(head, justify="right")
    nodes, names = result.nodes, result.instances["name"]
    phases = dict(zip(names, result.instances["phase"], strict=True))
    for (name, label), rows in equal_nodes(result).items():
        batches = int(nodes["batches"][rows].sum())
        decode, prompt = int(nodes["decode_tokens"][rows].sum()), int(nodes["prompt_tokens"][rows].sum())
        unit = "tokens" if phases[name] == "prefill" else "sequences"
        work = prompt if phases[name] == "prefill" else decode
        capacity = np.maximum(nodes["kv_capacity_bytes"][rows], 1)
        table.add_row(
            name,
            label,
            str(len(rows)),
            _percent(float(np.mean(nodes["utilisation"][rows]))),
            f"{work / max(batches, 1):,.1f} {unit}",
            _percent(float(np.max(nodes["kv_peak_bytes"][rows] / capacity))),
        )
    return table


def equal_nodes(result: SimulationResult) -> dict[tuple[str, str], list[int]]:
    """(Instance name, node label) -> rows of its nodes."""
    rows: dict[tuple[str, str], list[int]] = {}
    for k, label in enumerate(result.nodes["label"]):
        rows.setdefault((result.instances["name"][int(result.nodes["instance"][k])], label), []).append(k)
    return rows


def epoch_table(result: SimulationResult) -> Table:
    """Goodput and attainment of every epoch and model, by time of arrival."""
    table = Table(title="Epochs (requests by arrival)")
    table.add_column("from s", justify="right")
    table.add_column("model")
    for head in ("requests", "prefill goodput", "met TTFT", "decode goodput", "met TPOT"):
        table.add_column(head, justify="right")
    columns = result.epochs
    for e, model in enumerate(columns["model"]):
        table.add_row(
            f"{columns['start_s'][e]:g}",
            model,
            f"{columns['requests'][e]:,}",
            _number(columns["prefill_goodput_tokens_s"][e]),
            _percent(float(columns["prefill_attainment"][e])),
            _number(columns["decode_goodput_tokens_s"][e]),
            _percent(float(columns["decode_attainment"][e])),
        )
    return table


def simulation_view(result: SimulationResult, nodes: bool = True) -> RenderableType:
    """All tables of a simulation."""
    parts: list[RenderableType] = [simulation_summary(result), promise_table(result), latency_table(result)]
    if any(row.causes for row in result.outcomes):
        parts += [cause_table(result), Text(cause_lines(result))]
    if len(np.unique(result.epochs["start_s"])) > 1:
        parts.append(epoch_table(result))
    if nodes:
        parts.append(node_table(result))
    return Group(*parts)


def outcome_name(row: PhaseOutcome) -> str:
    """Model phase, and which of its two latencies for mixed ones."""
    return f"{row.model}/{row.phase}" + (f" ({row.kind})" if row.phase == "mixed" else "")


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")
