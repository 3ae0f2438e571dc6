"""What a simulation found: columns of requests, nodes and instances, and the figures one asks of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coralopt.errors import CoraloptError
from coralopt.plan.document import Plan
from coralopt.simulation.config import SimulationConfig
from coralopt.simulation.fleet import Fleet, labels
from coralopt.simulation.layout import Layout
from coralopt.simulation.state import (
    BATCH_FULL,
    DRAINING,
    FINISHED,
    NO_INSTANCE,
    NO_MEMORY,
    PHASES,
    READY,
    Records,
    State,
)

Floats = npt.NDArray[np.float64]
STATUS = ("unfinished", "finished", "rejected")
REASONS = {"memory": NO_MEMORY, "batch": BATCH_FULL, "instance": NO_INSTANCE}


class Samples:
    """Figures taken while the simulation runs.

    Attributes:
        time_s: float64 (n,), moments of the samples.
        waiting: int64 (n, pools): requests that no node has taken in, at the coordinator or an instance.
        inside: int64 (n, pools): requests routed to an instance that have not left it, waiting ones included.
        busy: one float64 (nodes so far,) an epoch bound: busy seconds until then.
    """

    def __init__(self, time_s: Floats, pools: int, bounds: int) -> None:
        self.time_s = time_s
        self.waiting = np.zeros((len(time_s), pools), dtype=np.int64)
        self.inside = np.zeros((len(time_s), pools), dtype=np.int64)
        self.busy: list[Floats] = [np.zeros(0)] * bounds

    def note_queues(self, row: int, state: State) -> None:
        """Queue lengths now."""
        pool = state.instances["pool"]
        self.waiting[row] = state.pool_list[:, 2]
        np.add.at(self.waiting[row], pool, state.instance_list[:, 2])
        np.add.at(self.inside[row], pool, state.instances["inside"])

    def note_busy(self, bound: int, state: State, now: float) -> None:
        """Busy seconds up to now; a micro-batch under way was counted whole when it began."""
        ahead = np.where(state.nodes["busy"] == 1, np.maximum(state.nodes["free_at"] - now, 0.0), 0.0)
        self.busy[bound] = state.nodes["busy_s"] - ahead


@dataclass(frozen=True)
class PhaseOutcome:
    """Promise and outcome of one model phase. Throughputs are tokens/s over the window, latencies ms.

    Prefill is judged by the time to first token and counts input tokens; decode by the time per output token and
    counts output tokens. A mixed model has one row of either kind.

    Attributes:
        promised_tokens_s: The plan's throughput, its mean over the window; NaN for the first tokens of mixed ones.
        offered_tokens_s: Tokens of all requests that arrived.
        achieved_tokens_s: Tokens of requests that were through this phase inside the window.
        goodput_tokens_s: Tokens of the requests that met the SLO.
        attainment: Share of all requests that met the SLO; unfinished and rejected ones did not.
        attainment_served: The same share for the time at work alone: without waiting for room, without KV transfer.
        p50_ms, p95_ms, p99_ms: Percentiles over finished requests; NaN when there are none.
        waited: Share of requests that were not taken in at once, by the first reason: ``memory`` (KV cache full),
            ``batch`` (as many sequences as the plan's micro-batches hold), ``instance`` (none served).
    """

    model: str
    phase: str
    kind: str
    slo_ms: float
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


@dataclass(frozen=True)
class SimulationResult:
    """Outcome of one simulation.

    Attributes:
        models: Model names.
        window_s: Length of the measured window, s.
        end_s: When the last request left, s.
        requests: Columns, one row a request by arrival: ``arrival_s``, ``model`` (index), ``input_tokens``,
            ``output_tokens``, ``status`` (index into ``STATUS``), ``ttft_ms``, ``tpot_ms`` (NaN for one token), ``e2e_ms``,
            ``prefill_wait_ms``, ``decode_wait_ms`` (before the first step, the KV transfer apart), ``transfer_ms``,
            ``prefill_served_ms`` (from a node taking it in to the first token), ``step_ms`` (time per output token from the
            first decode step on),
            ``prefill_instance``, ``decode_instance`` (-1: none), ``blocked_prefill``, ``blocked_decode`` (why it
            waited), ``epoch``, ``met_ttft``, ``met_tpot``.
        nodes: Columns, one row a node that ever existed: ``instance``, ``stage``, ``label``, ``configuration``,
            ``busy_s``, ``batches``, ``prompt_tokens``, ``decode_tokens``, ``kv_capacity_bytes``, ``kv_peak_bytes``,
            ``utilisation`` (share of the time it was rented inside the window).
        instances: Columns, one row an instance: ``name``, ``model``, ``phase``, ``region``, ``started_s``,
            ``ready_s``, ``gone_s`` (NaN: never), ``routed``, ``inside`` (left over at the end), ``mean_inside`` over the
            window and what came after, ``cost_usd`` inside the window.
        epochs: Columns, one row an epoch and model: ``start_s``, ``model``, ``requests``, ``prefill_goodput_tokens_s``,
            ``decode_goodput_tokens_s``, ``prefill_attainment``, ``decode_attainment``.
        epoch_utilisation: float64 (epochs, nodes), busy share of each epoch.
        queues: ``time_s``, and a column of waiting and inside requests for every model phase.
        outcomes: One row a model phase.
        cost_usd: Rent inside the window, USD.
        events: Events played.
    """

    models: tuple[str, ...]
    window_s: float
    end_s: float
    requests: dict[str, npt.NDArray[Any]]
    nodes: dict[str, Any]
    instances: dict[str, Any]
    epochs: dict[str, Any]
    epoch_utilisation: Floats
    queues: dict[str, npt.NDArray[Any]]
    outcomes: tuple[PhaseOutcome, ...]
    cost_usd: float
    events: int

    @property
    def cost_usd_h(self) -> float:
        """Mean rent over the window, USD/h."""
        return self.cost_usd / self.window_s * 3600

    @property
    def attainment(self) -> float:
        """Share of requests that met both SLOs; NaN without requests."""
        both = self.requests["met_ttft"] & self.requests["met_tpot"]
        return float(both.mean()) if len(both) else float("nan")

    def save_requests(self, path: str | Path) -> None:
        """Write the request columns as Parquet, first beside ``path``, then renamed; the model by name.

        Raises:
            CoraloptError: The file cannot be written.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {name: pa.array(column) for name, column in self.requests.items()}
        for name, words in (("model", self.models), ("status", STATUS)):
            columns[name] = pa.DictionaryArray.from_arrays(self.requests[name].astype(np.int32), list(words))
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
            os.close(handle)
            try:
                pq.write_table(pa.table(columns), temporary)
                Path(temporary).chmod(0o644)
                Path(temporary).replace(target)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise CoraloptError(f"{target}: the requests cannot be written: {error.strerror or error}") from error


def collect(
    fleet: Fleet,
    schedule: Sequence[tuple[float, Plan]],
    layouts: Sequence[Layout],
    epochs: Floats,
    window: float,
    samples: Samples,
    config: SimulationConfig,
) -> SimulationResult:
    """Everything from the final state."""
    state = fleet.state
    requests = _request_columns(state, schedule, layouts, epochs, fleet.models)
    lengths = np.diff(np.append(epochs, window))
    owner, names, configurations = labels(fleet.blueprints)
    instances = _instance_columns(fleet, window)
    rented = np.minimum(np.nan_to_num(instances["gone_s"], nan=window), window) - instances["started_s"]
    rented = np.maximum(rented, 0.0)[owner] if len(owner) else np.zeros(0)
    busy = np.zeros((len(epochs), len(owner)))
    for e, column in enumerate(samples.busy):
        busy[e, : len(column)] = column
    records = state.nodes
    nodes = {
        "instance": owner,
        "stage": records["stage"].copy(),
        "label": names,
        "configuration": configurations,
        "busy_s": records["busy_s"].copy(),
        "batches": records["batches"].copy(),
        "prompt_tokens": records["prompt_tokens"].copy(),
        "decode_tokens": records["decode_tokens"].copy(),
        "kv_capacity_bytes": records["capacity"].copy(),
        "kv_peak_bytes": records["peak"].copy(),
        "utilisation": np.divide(busy[-1], rented, out=np.zeros(len(owner)), where=rented > 0),
    }
    queues: dict[str, npt.NDArray[Any]] = {"time_s": samples.time_s}
    for pool in range(3 * len(fleet.models)):
        if (state.instances["pool"] == pool).any() or samples.waiting[:, pool].any():
            key = f"{fleet.models[pool // 3]}/{PHASES[pool % 3]}"
            queues[f"{key}/waiting"], queues[f"{key}/inside"] = samples.waiting[:, pool], samples.inside[:, pool]
    finish = state.requests["finish"]
    return SimulationResult(
        models=fleet.models,
        window_s=window,
        end_s=float(np.nanmax(finish)) if np.isfinite(finish).any() else window,
        requests=requests,
        nodes=nodes,
        instances=instances,
        epochs=_epoch_columns(requests, epochs, lengths, fleet.models),
        epoch_utilisation=np.diff(busy, axis=0, prepend=0.0) / lengths[:, None],
        queues=queues,
        outcomes=_outcomes(state.requests, requests, schedule, layouts, fleet.models, window),
        cost_usd=float(np.sum(instances["cost_usd"])),
        events=int(state.clock["handled"][0]),
    )


def _request_columns(
    state: State,
    schedule: Sequence[tuple[float, Plan]],
    layouts: Sequence[Layout],
    epochs: Floats,
    models: tuple[str, ...],
) -> dict[str, npt.NDArray[Any]]:
    records = state.requests
    first, finish, output = records["first_token"], records["finish"], records["output"]
    ttft = 1e3 * (first - records["arrival"])
    tpot = np.full(len(records), np.nan)
    several = output > 1
    tpot[several] = 1e3 * (finish - first)[several] / (output[several] - 1)
    step = np.full(len(records), np.nan)
    step[several] = 1e3 * (finish - records["decode_start"])[several] / (output[several] - 1)
    # The SLO of a request is that of the plan in force when it arrived.
    starts = np.array([start for start, _ in schedule])
    in_force = np.searchsorted(starts, records["arrival"], side="right") - 1
    prefill_slo, decode_slo = np.zeros((2, len(starts), len(models)))
    for p, layout in enumerate(layouts):
        for phase in layout.scenario.model_phases:
            m = models.index(phase.model.name)
            prefill_slo[p, m], decode_slo[p, m] = phase.prefill_ms, phase.decode_ms
    # A model that the plan in force leaves out keeps the SLO of any plan that knows it.
    for slo in (prefill_slo, decode_slo):
        slo[:] = np.where(slo > 0, slo, slo.max(axis=0, initial=0.0))
    model = records["model"].astype(np.int64)
    # A mixed instance moves nothing.
    transfer = 1e3 * (records["kv_arrived"] - records["decode_admitted"])
    transfer[np.isnan(transfer) & np.isfinite(records["decode_start"])] = 0.0
    done = records["status"] == FINISHED
    with np.errstate(invalid="ignore"):
        met_ttft = ttft <= prefill_slo[in_force, model]
        met_tpot = done & (~several | (tpot <= decode_slo[in_force, model]))
    return {
        "arrival_s": records["arrival"].copy(),
        "model": model.astype(np.int32),
        "input_tokens": records["input"].astype(np.int64),
        "output_tokens": output.astype(np.int64),
        "status": records["status"].astype(np.int8),
        "ttft_ms": ttft,
        "tpot_ms": tpot,
        "e2e_ms": 1e3 * (finish - records["arrival"]),
        "prefill_wait_ms": 1e3 * (records["prefill_admitted"] - records["arrival"]),
        "decode_wait_ms": 1e3 * (records["decode_start"] - first) - transfer,
        "transfer_ms": transfer,
        "prefill_served_ms": 1e3 * (first - records["prefill_admitted"]),
        "step_ms": step,
        "prefill_instance": records["prefill_instance"].copy(),
        "decode_instance": records["decode_instance"].copy(),
        "blocked_prefill": records["blocked_prefill"].copy(),
        "blocked_decode": records["blocked_decode"].copy(),
        "epoch": (np.searchsorted(epochs, records["arrival"], side="right") - 1).astype(np.int32),
        "met_ttft": met_ttft,
        "met_tpot": met_tpot,
    }


def _instance_columns(fleet: Fleet, window: float) -> dict[str, Any]:
    state, records = fleet.state, fleet.state.instances
    gone = np.where(np.isnan(records["gone_at"]), window, np.minimum(records["gone_at"], window))
    rented = np.maximum(gone - records["started_at"], 0.0)
    now = float(state.clock["now"][0])
    area = records["area"] + records["inside"] * np.maximum(now - records["area_at"], 0.0)
    life = np.maximum(now - records["started_at"], 1e-300)
    return {
        "name": [blueprint.name for blueprint in fleet.blueprints],
        "model": [blueprint.model for blueprint in fleet.blueprints],
        "phase": [PHASES[blueprint.phase] for blueprint in fleet.blueprints],
        "region": [blueprint.region for blueprint in fleet.blueprints],
        "started_s": records["started_at"].copy(),
        "ready_s": records["ready_at"].copy(),
        "gone_s": records["gone_at"].copy(),
        "draining": records["state"] == DRAINING,
        "serving": records["state"] == READY,
        "routed": records["routed"].copy(),
        "inside": records["inside"].copy(),
        "mean_inside": area / life,
        "cost_usd": rented / 3600 * records["price_usd_h"],
    }


def _epoch_columns(
    requests: dict[str, npt.NDArray[Any]], epochs: Floats, lengths: Floats, models: tuple[str, ...]
) -> dict[str, Any]:
    cell = requests["epoch"].astype(np.int64) * len(models) + requests["model"]
    size = len(epochs) * len(models)
    count = np.bincount(cell, minlength=size)

    def total(weight: npt.NDArray[Any]) -> Floats:
        return np.bincount(cell, weights=weight, minlength=size).astype(np.float64)

    seconds = np.repeat(lengths, len(models))
    share = np.maximum(count, 1)
    return {
        "start_s": np.repeat(epochs, len(models)),
        "model": list(models) * len(epochs),
        "requests": count,
        "prefill_goodput_tokens_s": total(requests["input_tokens"] * requests["met_ttft"]) / seconds,
        "decode_goodput_tokens_s": total(requests["output_tokens"] * requests["met_tpot"]) / seconds,
        "prefill_attainment": np.where(count > 0, total(requests["met_ttft"]) / share, np.nan),
        "decode_attainment": np.where(count > 0, total(requests["met_tpot"]) / share, np.nan),
    }


def _outcomes(
    records: Records,
    requests: dict[str, npt.NDArray[Any]],
    schedule: Sequence[tuple[float, Plan]],
    layouts: Sequence[Layout],
    models: tuple[str, ...],
    window: float,
) -> tuple[PhaseOutcome, ...]:
    ends = [start for start, _ in schedule[1:]] + [window]
    share = [max(0.0, min(end, window) - start) / window for (start, _), end in zip(schedule, ends, strict=True)]
    keys = dict.fromkeys(phase.key for layout in layouts for phase in layout.scenario.model_phases)
    rows = []
    for key in keys:
        name, phase = key.rsplit("/", 1)
        mine = requests["model"] == models.index(name)
        planned = [[item for item in plan.demands if (item.model, item.phase) == (name, phase)] for _, plan in schedule]
        promised = sum(f * i.planned_tokens_s for f, items in zip(share, planned, strict=True) for i in items)
        demand = sum(f * i.demand_tokens_s for f, items in zip(share, planned, strict=True) for i in items)
        found = next(p for layout in layouts for p in layout.scenario.model_phases if p.key == key)
        for kind in ("prefill", "decode") if phase == "mixed" else (phase,):
            first = kind == "prefill"
            tokens = requests["input_tokens" if first else "output_tokens"][mine]
            met = requests["met_ttft" if first else "met_tpot"][mine]
            through = records["first_token" if first else "finish"][mine] <= window
            slo_ms = found.prefill_ms if first else found.decode_ms
            work = requests["prefill_served_ms" if first else "step_ms"][mine]
            with np.errstate(invalid="ignore"):
                served = (work <= slo_ms) | (met & np.isnan(work))
            latency = requests["ttft_ms" if first else "tpot_ms"][mine]
            latency = latency[np.isfinite(latency)]
            points = np.percentile(latency, (50, 95, 99)) if len(latency) else np.full(3, np.nan)
            blocked = requests["blocked_prefill" if first or phase == "mixed" else "blocked_decode"][mine]
            rows.append(
                PhaseOutcome(
                    model=name,
                    phase=phase,
                    kind=kind,
                    slo_ms=slo_ms,
                    promised_tokens_s=float("nan") if phase == "mixed" and first else promised,
                    demand_tokens_s=float("nan") if phase == "mixed" and first else demand,
                    offered_tokens_s=float(tokens.sum()) / window,
                    achieved_tokens_s=float(tokens[through].sum()) / window,
                    goodput_tokens_s=float(tokens[met].sum()) / window,
                    attainment=float(met.mean()) if len(met) else float("nan"),
                    attainment_served=float(served.mean()) if len(met) else float("nan"),
                    p50_ms=float(points[0]),
                    p95_ms=float(points[1]),
                    p99_ms=float(points[2]),
                    waited={
                        word: float((blocked == reason).mean()) if len(blocked) else 0.0
                        for word, reason in REASONS.items()
                    },
                )
            )
    return tuple(rows)
