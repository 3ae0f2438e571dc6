"""What a plan promised and what a simulation saw, as tables for the terminal."""

from __future__ import annotations

import math

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table

from coralopt.simulation import PhaseOutcome, SimulationResult


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
            _name(row),
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
            _name(row),
            f"{row.slo_ms:g}",
            *(_number(value) for value in (row.p50_ms, row.p95_ms, row.p99_ms, _mean(wait))),
            "-" if prefill else _number(_mean(transfer)),
            ", ".join(reasons) or "nothing",
        )
    return table


def node_table(result: SimulationResult) -> Table:
    """Equal nodes of equal instances in one row: utilisation and KV memory."""
    table = Table(title="Nodes")
    table.add_column("instance")
    table.add_column("node")
    for head in ("nodes", "busy", "mean batch", "KV peak"):
        table.add_column(head, justify="right")
    nodes, names = result.nodes, result.instances["name"]
    groups: dict[tuple[str, str], list[int]] = {}
    for k, label in enumerate(nodes["label"]):
        groups.setdefault((names[int(nodes["instance"][k])], label), []).append(k)
    phases = dict(zip(names, result.instances["phase"], strict=True))
    for (name, label), rows in groups.items():
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
    if len(np.unique(result.epochs["start_s"])) > 1:
        parts.append(epoch_table(result))
    if nodes:
        parts.append(node_table(result))
    return Group(*parts)


def _name(row: PhaseOutcome) -> str:
    return f"{row.model}/{row.phase}" + (f" ({row.kind})" if row.phase == "mixed" else "")


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")
