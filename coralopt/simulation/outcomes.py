"""Promise and outcome of every model phase, and why requests missed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coralopt.plan.parts import share_of
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.simulation.causes import (
    CAUSES,
    bursts,
    decode_causes,
    prefill_causes,
    serving_tokens_s,
    shares,
    worst_instance,
    worst_window,
)
from coralopt.simulation.layout import Schedule
from coralopt.simulation.state import BATCH_FULL, NO_INSTANCE, NO_MEMORY, NO_TURN, Columns, Table
from coralopt.types import Bools, Floats, Ints

REASONS = {"memory": NO_MEMORY, "batch": BATCH_FULL, "instance": NO_INSTANCE, "turn": NO_TURN}


@dataclass(frozen=True)
class PhaseOutcome:
    """Promise and outcome of one model phase. Throughputs are tokens/s over the window, latencies ms.

    Prefill is judged by the time to first token and counts input tokens; decode by the time per output token and
    counts output tokens. A mixed model has one row of either kind.

    Attributes:
        requests: How many it is about; shares of requests are shares of these.
        promised_tokens_s: The plan's throughput, its mean over the window; NaN for the first tokens of mixed ones.
        offered_tokens_s: Tokens of all requests that arrived.
        achieved_tokens_s: Tokens of requests that were through this phase inside the window.
        goodput_tokens_s: Tokens of the requests that met the SLO.
        attainment: Share of all requests that met the SLO; unfinished and rejected ones did not.
        attainment_served: The same share for the time at work alone: without waiting for room, without KV transfer.
        p50_ms, p95_ms, p99_ms: Percentiles over finished requests; NaN when there are none.
        attainment_feasible: Share of the requests that would meet the SLO alone on an idle cluster and did here.
        causes: Cause (:data:`coralopt.simulation.causes.CAUSES`) -> share of all requests that missed the SLO for it.
        worst_instance: Name of the instance with most misses; empty without misses.
        worst_instance_share: Its share of the misses.
        worst_from_s: Start of the half minute of arrivals with most misses beyond its share of them, s.
        worst_attainment: Attainment in that half minute, at most ``attainment``.
        waited: Share of requests that were not taken in at once, by the first reason: ``memory`` (KV cache full),
            ``batch`` (as many sequences as the plan's micro-batches hold), ``instance`` (none served).
    """

    model: str
    phase: str
    kind: str
    slo_ms: float
    requests: int
    promised_tokens_s: float
    demand_tokens_s: float
    offered_tokens_s: float
    achieved_tokens_s: float
    goodput_tokens_s: float
    attainment: float
    attainment_served: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    waited: dict[str, float]
    attainment_feasible: float
    causes: dict[str, float]
    worst_instance: str
    worst_instance_share: float
    worst_from_s: float
    worst_attainment: float

    @property
    def key(self) -> str:
        """``"qwen3-32b/prefill"``, as :attr:`ModelPhase.key`."""
        return f"{self.model}/{self.phase}"


def of_phases(arrival_s: Floats, model: Ints, schedule: Schedule, figure: Callable[[ModelPhase], float]) -> Floats:
    """float64 (N,): a figure of every request's model, the same for its phases, by the plan in force at its arrival."""
    in_force = schedule.in_force(arrival_s)
    figures = np.zeros((len(schedule.layouts), len(schedule.models)))
    for p, layout in enumerate(schedule.layouts):
        for phase in layout.scenario.model_phases:
            figures[p, schedule.models.index(phase.model.name)] = figure(phase)
    # A model that the plan in force leaves out keeps the figure of any plan that knows it.
    figures[:] = np.where(figures > 0, figures, figures.max(axis=0, initial=0.0))
    return np.asarray(figures[in_force, model])


def slos(arrival_s: Floats, model: Ints, schedule: Schedule) -> tuple[Floats, Floats]:
    """SLOs of every request on the time to first token and per output token, float64 (N,) each, ms."""
    return (
        of_phases(arrival_s, model, schedule, lambda phase: phase.prefill_ms),
        of_phases(arrival_s, model, schedule, lambda phase: phase.decode_ms),
    )


def outcomes_of(requests: Columns, instances: Table, schedule: Schedule) -> tuple[PhaseOutcome, ...]:
    """One row a model phase that serves requests; mixed ones have two. Fills ``cause_ttft`` and ``cause_tpot``."""
    for name in ("cause_ttft", "cause_tpot"):
        requests[name] = np.zeros(len(requests["arrival_s"]), dtype=np.int8)
    keys = dict.fromkeys(
        phase.key
        for layout in schedule.layouts
        for phase in layout.scenario.model_phases
        if share_of(layout.plan.modes, phase.key) > 0
    )
    rows = []
    for key in keys:
        name, phase = key.rsplit("/", 1)
        mine = (requests["model"] == schedule.models.index(name)) & (requests["mixed"] == (phase == "mixed"))
        for kind in ("prefill", "decode") if phase == "mixed" else (phase,):
            rows.append(_outcome(requests, instances, schedule, key, kind, mine))
    return tuple(rows)


def _outcome(requests: Columns, instances: Table, schedule: Schedule, key: str, kind: str, mine: Bools) -> PhaseOutcome:
    name, phase = key.rsplit("/", 1)
    first, mixed, window = kind == "prefill", phase == "mixed", schedule.window_s
    model_phase = next(p for layout in schedule.layouts for p in layout.scenario.model_phases if p.key == key)
    slo_ms = model_phase.prefill_ms if first else model_phase.decode_ms
    listed = [[item for item in layout.plan.demands if item.key == key] for layout in schedule.layouts]
    promised = [sum(item.planned_tokens_s for item in items) for items in listed]
    needed = [sum(item.demand_tokens_s for item in items) for items in listed]
    tokens = requests["input_tokens" if first else "output_tokens"][mine]
    met = requests["met_ttft" if first else "met_tpot"][mine]
    latency, arrival = requests["ttft_ms" if first else "tpot_ms"][mine], requests["arrival_s"][mine]
    work = requests["prefill_served_ms" if first else "step_ms"][mine]
    with np.errstate(invalid="ignore"):
        through = arrival + requests["ttft_ms" if first else "e2e_ms"][mine] / 1e3 <= window
        served = (work <= slo_ms) | (met & np.isnan(work))
    latency = latency[np.isfinite(latency)]
    points = np.percentile(latency, (50, 95, 99)) if len(latency) else np.full(3, np.nan)
    blocked = requests["blocked_prefill" if first or mixed else "blocked_decode"][mine]
    # Mixed instances promise output tokens, which bring their prompts with them.
    counted = requests["output_tokens"][mine] if mixed else tokens
    in_plan = np.array(promised, dtype=np.float64)[schedule.in_force(arrival)]
    own = np.array(instances["model"], dtype=np.str_) == name
    own &= np.array(instances["phase"], dtype=np.str_) == phase
    tokens_s = np.array(instances["tokens_s"])
    parts = {item.name: item.serves() for layout in schedule.layouts for item in layout.plan.instances if item.classes}
    for i, serves in enumerate(map(parts.get, instances["name"]) if parts else ()):
        if serves is not None:
            own[i], tokens_s[i] = key in serves, serves.get(key, (0.0, 0.0))[0]
    ready, gone, tokens_s = instances["ready_s"][own], instances["gone_s"][own], tokens_s[own]
    # An answer may wait for a decode instance long after its request arrived: what counts is the first token.
    moments = arrival if first else np.fmax.accumulate(arrival + np.nan_to_num(requests["ttft_ms"][mine] / 1e3))
    starting = serving_tokens_s(moments, ready, gone, tokens_s) < in_plan * (1 - 1e-6)
    burst = bursts(arrival, counted, in_plan)
    cause = (prefill_causes if first else decode_causes)(requests, mine, slo_ms, burst, starting)
    requests["cause_ttft" if first else "cause_tpot"][mine] = cause
    feasible = met[cause != CAUSES.index("length")]
    worst, worst_share = worst_instance(cause, requests[f"{kind}_instance"][mine])
    worst_from_s, worst_attainment = worst_window(cause, arrival)
    undefined = mixed and first
    return PhaseOutcome(
        model=name,
        phase=phase,
        kind=kind,
        slo_ms=slo_ms,
        requests=len(met),
        promised_tokens_s=float("nan") if undefined else schedule.mean(promised),
        demand_tokens_s=float("nan") if undefined else schedule.mean(needed),
        offered_tokens_s=float(tokens.sum()) / window,
        achieved_tokens_s=float(tokens[through].sum()) / window,
        goodput_tokens_s=float(tokens[met].sum()) / window,
        attainment=float(met.mean()) if len(met) else float("nan"),
        attainment_served=float(served.mean()) if len(met) else float("nan"),
        p50_ms=float(points[0]),
        p95_ms=float(points[1]),
        p99_ms=float(points[2]),
        waited={word: float((blocked == reason).mean()) if len(blocked) else 0.0 for word, reason in REASONS.items()},
        attainment_feasible=float(feasible.mean()) if len(feasible) else float("nan"),
        causes=shares(cause),
        worst_instance=instances["name"][worst] if worst >= 0 else "",
        worst_instance_share=worst_share,
        worst_from_s=worst_from_s,
        worst_attainment=worst_attainment,
    )
