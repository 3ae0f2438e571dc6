"""What a plan promised and what a simulation saw, as tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coralopt.plan.parts import SimulatedPhase
from coralopt.report.table import Column, facts_table, make_table, numbers
from coralopt.simulation import PhaseOutcome, SimulationResult
from coralopt.simulation.causes import BURST_S, CAUSES

#: Format of throughputs and latencies.
TENTHS = "{:,.1f}"
#: Cause of a miss -> what became of the request.
MEANING = {
    "length": "would miss alone on an idle cluster of these nodes, too: no headroom in throughput helps",
    "instance": "no instance served",
    "startup": "waited while instances of the plan in force were still starting",
    "memory": "waited for KV memory",
    "burst": f"waited for others while more tokens arrived in {BURST_S:g} s than the plan promises",
    "queue": "waited for others though no more arrived than promised",
    "batch": "its own decoding rounds were too slow: larger batches or longer contexts than planned for",
    "transfer": "its KV transfer waited for others",
}


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value * 100:.1f} %"


def simulation_summary(result: SimulationResult) -> Table:
    """Size of the run, cost and the share of requests that met both SLOs."""
    status = result.requests["status"]
    facts = {
        "window": f"{result.window_s:,.1f} s, last request left at {result.end_s:,.1f} s",
        "requests": f"{len(status):,}",
        "finished / rejected / never served": " / ".join(f"{int((status == s).sum()):,}" for s in (1, 2, 0)),
        "met both SLOs": _percent(result.attainment),
        "of those that could on an idle cluster": _percent(result.attainment_feasible),
        "rent": f"{result.cost_usd:,.4f} USD, {result.cost_usd_h:,.4f} USD/h",
        "events": f"{result.events:,}",
    }
    return facts_table("Simulation", facts.items())


#: Shares of the requests at which curves of latencies are kept: close together where SLOs lie.
LATENCY_SHARES = (*(k / 25 for k in range(24)), *(k / 100 for k in range(95, 100)), 0.995, 0.998, 0.999, 1.0)


def latency_quantiles(result: SimulationResult) -> list[dict[str, list[float | None]]]:
    """Latencies that the ``LATENCY_SHARES`` of all requests stay within, one entry an outcome.

    ``ms`` here and ``idle_ms`` alone on an idle cluster; ``None`` where so many requests were never served. An answer of one
    token has no time per output token and is left out.
    """
    columns = result.requests
    curves = []
    for row in result.outcomes:
        name = "ttft_ms" if row.kind == "prefill" else "tpot_ms"
        mine = result.requests_of(row)
        if row.kind == "decode":
            mine = mine & (columns["output_tokens"] > 1)
        curve: dict[str, list[float | None]] = {}
        for key, column in (("ms", name), ("idle_ms", f"idle_{name}")):
            values = np.sort(np.nan_to_num(columns[column][mine], nan=np.inf))
            places = [min(int(share * len(values)), len(values) - 1) for share in LATENCY_SHARES] if len(values) else []
            curve[key] = [float(values[k]) if np.isfinite(values[k]) else None for k in places]
            curve[key] += [None] * (len(LATENCY_SHARES) - len(places))
        curves.append(curve)
    return curves


def promise_table(outcomes: Sequence[PhaseOutcome]) -> Table:
    """Promised, offered and achieved throughput of every model phase."""
    heads = ("promised", "planned for", "offered", "achieved", "goodput")
    return make_table(
        "Promise and outcome, tokens/s (prefill: input tokens, decode: output tokens)",
        ("model phase", *numbers(TENTHS, *heads), *numbers("{:g}", "SLO ms", "met SLO", "met at work")),
        (
            (
                outcome_name(row),
                row.promised_tokens_s,
                row.demand_tokens_s,
                row.offered_tokens_s,
                row.achieved_tokens_s,
                row.goodput_tokens_s,
                row.slo_ms,
                _percent(row.attainment),
                _percent(row.attainment_served),
            )
            for row in outcomes
        ),
    )


def latency_table(result: SimulationResult) -> Table:
    """Percentiles of the latency the SLO is about, where the time goes, and why requests waited."""
    rows = []
    for row in result.outcomes:
        mine = result.requests_of(row)
        prefill = row.kind == "prefill"
        wait = _mean(result.requests["prefill_wait_ms" if prefill else "decode_wait_ms"][mine])
        transfer = None if prefill else _mean(result.requests["transfer_ms"][mine])
        reasons = [f"{word} {_percent(share)}" for word, share in row.waited.items() if share > 0]
        figures = (row.slo_ms, row.p50_ms, row.p95_ms, row.p99_ms, wait, transfer)
        rows.append((outcome_name(row), *figures, ", ".join(reasons) or "nothing"))
    return make_table(
        "Latency, ms: time to first token (prefill), time per output token (decode)",
        (
            "model phase",
            Column("SLO", "{:g}"),
            *numbers(TENTHS, "p50", "p95", "p99", "mean wait", "mean transfer"),
            "had to wait for",
        ),
        rows,
    )


def cause_table(outcomes: Sequence[PhaseOutcome]) -> Table:
    """Share of all requests that missed, by cause, and where and when most of them did."""
    present = [name for name in CAUSES if any(name in row.causes for row in outcomes)]
    rows = []
    for row in outcomes:
        where = "-"
        if row.causes:
            where = f"{row.worst_instance_share:.0%} of it on {row.worst_instance}; " if row.worst_instance else ""
            where += f"from {row.worst_from_s:g} s: {_percent(row.worst_attainment)} met"
        shares = (1 - row.attainment, *(row.causes.get(name, math.nan) for name in present), row.attainment_feasible)
        rows.append((outcome_name(row), *map(_percent, shares), where))
    return make_table(
        "Where and why the promise broke, share of all requests",
        ("model phase", *numbers("{}", "missed", *present, "met of feasible"), "worst instance, and half minute"),
        rows,
    )


def cause_lines(result: SimulationResult) -> str:
    """What the causes that occur mean, and for every instance that waits for memory which of its nodes is full."""
    present = [name for name in MEANING if any(name in row.causes for row in result.outcomes)]
    lines = [f"{name}: {MEANING[name]}" for name in present]
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
    nodes = result.nodes
    phases = dict(zip(result.instances["name"], result.instances["phase"], strict=True))
    rows = []
    for (name, label), where in equal_nodes(result).items():
        prefill = phases[name] == "prefill"
        work = int(nodes["prompt_tokens" if prefill else "decode_tokens"][where].sum())
        batch = f"{work / max(int(nodes['batches'][where].sum()), 1):,.1f} {'tokens' if prefill else 'sequences'}"
        busy = _percent(float(np.mean(nodes["utilisation"][where])))
        rows.append((name, label, len(where), busy, batch, _percent(kv_peak(result, where))))
    return make_table("Nodes", ("instance", "node", *numbers("{}", "nodes", "busy", "mean batch", "KV peak")), rows)


def kv_peak(result: SimulationResult, rows: Sequence[int]) -> float:
    """The largest share of its KV memory that any of these nodes ever held."""
    capacity = np.maximum(result.nodes["kv_capacity_bytes"][rows], 1)
    return float(np.max(result.nodes["kv_peak_bytes"][rows] / capacity))


def equal_nodes(result: SimulationResult) -> dict[tuple[str, str], list[int]]:
    """(Instance name, node label) -> rows of its nodes."""
    rows: dict[tuple[str, str], list[int]] = {}
    for k, label in enumerate(result.nodes["label"]):
        rows.setdefault((result.instances["name"][int(result.nodes["instance"][k])], label), []).append(k)
    return rows


def epoch_table(result: SimulationResult) -> Table:
    """Goodput and attainment of every epoch and model, by time of arrival."""
    columns = result.epochs
    attainments = ([_percent(float(v)) for v in columns[f"{kind}_attainment"]] for kind in ("prefill", "decode"))
    met_ttft, met_tpot = attainments
    prefill, decode = (columns[f"{kind}_goodput_tokens_s"].tolist() for kind in ("prefill", "decode"))
    return make_table(
        "Epochs (requests by arrival)",
        (
            Column("from s", "{:g}"),
            "model",
            Column("requests", "{:,}"),
            *numbers(TENTHS, "prefill goodput", "met TTFT", "decode goodput", "met TPOT"),
        ),
        zip(
            columns["start_s"], columns["model"], columns["requests"], prefill, met_ttft, decode, met_tpot, strict=True
        ),
    )


def simulation_view(result: SimulationResult) -> RenderableType:
    """All tables of a simulation."""
    parts: list[RenderableType] = [simulation_summary(result), promise_table(result.outcomes), latency_table(result)]
    if any(row.causes for row in result.outcomes):
        parts += [cause_table(result.outcomes), Text(cause_lines(result))]
    if len(np.unique(result.epochs["start_s"])) > 1:
        parts.append(epoch_table(result))
    return Group(*parts, node_table(result))


def outcome_name(row: PhaseOutcome | SimulatedPhase) -> str:
    """Model phase, and which of its two latencies for mixed ones."""
    return row.key + (f" ({row.kind})" if row.phase == "mixed" else "")


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")
