"""What a simulation found: columns of requests, nodes and instances, and the figures one asks of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coralopt.display import Tabular
from coralopt.errors import CoraloptError
from coralopt.replacing import replacing
from coralopt.simulation.causes import CAUSES
from coralopt.simulation.fleet import Fleet, labels
from coralopt.simulation.layout import Schedule
from coralopt.simulation.outcomes import PhaseOutcome, outcomes_of, slos
from coralopt.simulation.state import DRAINING, FINISHED, MIXED, PHASES, READY, Columns, State, Table
from coralopt.types import Bools, Floats, Ints

STATUS = ("unfinished", "finished", "rejected")


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
        lists = (state.gate_list, state.instance_list, state.late_list, state.returned_list)
        waiting = np.sum([lengths[:, 2] for lengths in lists], axis=0)
        np.add.at(self.waiting[row], pool, waiting)
        np.add.at(self.inside[row], pool, state.instances["inside"])

    def note_busy(self, bound: int, state: State, now: float) -> None:
        """Busy seconds up to now; a micro-batch under way was counted whole when it began."""
        ahead = np.where(state.nodes["busy"] == 1, np.maximum(state.nodes["free_at"] - now, 0.0), 0.0)
        self.busy[bound] = state.nodes["busy_s"] - ahead


@dataclass(frozen=True)
class SimulationResult(Tabular):
    """Outcome of one simulation.

    Attributes:
        models: Model names.
        window_s: Length of the measured window, s.
        end_s: When the last request left, s.
        requests: Columns, one row a request by arrival: ``arrival_s``, ``model`` (index), ``input_tokens``,
            ``output_tokens``, ``mixed`` (went to mixed instances), ``status`` (index into ``STATUS``), ``ttft_ms``,
            ``tpot_ms`` (NaN for one token), ``e2e_ms``,
            ``prefill_wait_ms``, ``decode_wait_ms`` (before the first step, the KV transfer apart, and after preemptions
            until it is back), ``transfer_ms``, ``prefill_served_ms`` (host time, and from a node taking it in to the
            first token), ``step_ms`` (time per output token from the first decode step on, preemptions apart),
            ``idle_ttft_ms``, ``idle_tpot_ms`` (alone on an idle cluster, on the same nodes), ``prefill_instance``,
            ``decode_instance`` (-1: none), ``preemptions``, ``blocked_prefill``, ``blocked_decode`` (why it waited),
            ``epoch``, ``met_ttft``, ``met_tpot``, ``cause_ttft``, ``cause_tpot`` (index into ``CAUSES``).
        nodes: Columns, one row a node that ever existed: ``instance``, ``stage``, ``label``, ``configuration``,
            ``busy_s``, ``batches``, ``prompt_tokens``, ``decode_tokens``, ``kv_capacity_bytes``, ``kv_peak_bytes``,
            ``utilisation`` (share of the time it was rented inside the window).
        instances: Columns, one row an instance: ``name``, ``model``, ``phase``, ``region``, ``tokens_s`` (planned),
            ``started_s``, ``ready_s``, ``gone_s`` (NaN: never), ``routed``, ``inside`` (left over at the end),
            ``mean_inside`` over the window and what came after, ``cost_usd`` inside the window.
        epochs: Columns, one row an epoch and model: ``start_s``, ``model``, ``requests``, ``prefill_goodput_tokens_s``,
            ``decode_goodput_tokens_s``, ``prefill_attainment``, ``decode_attainment``.
        epoch_utilisation: float64 (epochs, nodes), busy share of each epoch.
        queues: ``time_s``, and a column of waiting and inside requests for every model phase.
        outcomes: One row a model phase.
        cost_usd: Rent inside the window, USD.
        events: Events processed.
    """

    models: tuple[str, ...]
    window_s: float
    end_s: float
    requests: Columns
    nodes: Table
    instances: Table
    epochs: Table
    epoch_utilisation: Floats
    queues: Columns
    outcomes: tuple[PhaseOutcome, ...]
    cost_usd: float
    events: int

    def __repr__(self) -> str:
        return (
            f"<SimulationResult of {len(self.requests['status']):,} requests in {self.window_s:,.1f} s: "
            f"{self.attainment:.2%} met both SLOs, {self.cost_usd_h:,.4f} USD/h>"
        )

    @property
    def cost_usd_h(self) -> float:
        """Mean rent over the window, USD/h."""
        return self.cost_usd / self.window_s * 3600

    @property
    def attainment(self) -> float:
        """Share of requests that met both SLOs; NaN without requests."""
        both = self.requests["met_ttft"] & self.requests["met_tpot"]
        return float(both.mean()) if len(both) else float("nan")

    @property
    def attainment_feasible(self) -> float:
        """The same share over the requests that would meet both SLOs alone on an idle cluster; NaN without any."""
        length = CAUSES.index("length")
        feasible = (self.requests["cause_ttft"] != length) & (self.requests["cause_tpot"] != length)
        both = (self.requests["met_ttft"] & self.requests["met_tpot"])[feasible]
        return float(both.mean()) if len(both) else float("nan")

    def requests_of(self, outcome: PhaseOutcome) -> Bools:
        """bool (N,): the requests that an outcome is about."""
        mixed = self.requests["mixed"] == (outcome.phase == "mixed")
        return np.asarray((self.requests["model"] == self.models.index(outcome.model)) & mixed)

    def save_requests(self, path: str | Path) -> None:
        """Write the request columns as Parquet, first beside ``path``, then renamed; the model by name.

        Raises:
            CoraloptError: The file cannot be written.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {name: pa.array(column) for name, column in self.requests.items()}
        words_of = {"model": self.models, "status": STATUS, "cause_ttft": CAUSES, "cause_tpot": CAUSES}
        for name, words in words_of.items():
            columns[name] = pa.DictionaryArray.from_arrays(self.requests[name].astype(np.int32), list(words))
        target = Path(path)
        try:
            with replacing(target) as temporary:
                pq.write_table(pa.table(columns), temporary)
        except OSError as error:
            raise CoraloptError(f"{target}: the requests cannot be written: {error.strerror or error}") from error


def collect(fleet: Fleet, schedule: Schedule, samples: Samples) -> SimulationResult:
    """Everything from the final state."""
    state, epochs, window = fleet.state, schedule.epochs_s, schedule.window_s
    requests = _request_columns(state, schedule)
    lengths = np.diff(np.append(epochs, window))
    owner, names, configurations = labels(fleet.blueprints)
    instances = _instance_columns(fleet, window)
    gone: Floats = np.minimum(np.nan_to_num(instances["gone_s"], nan=window), window)
    lifetime: Floats = np.maximum(gone - instances["started_s"], 0.0)
    rented = lifetime[owner] if len(owner) else np.zeros(0)
    busy = np.zeros((len(epochs), len(owner)))
    for e, column in enumerate(samples.busy):
        busy[e, : len(column)] = column
    utilisation: Floats = np.divide(busy[-1], rented, out=np.zeros(len(owner)), where=rented > 0)
    nodes: Table = {
        "instance": owner,
        "label": names,
        "configuration": configurations,
        **{name: state.nodes[name].copy() for name in ("stage", "busy_s", "batches", "prompt_tokens", "decode_tokens")},
        "kv_capacity_bytes": state.nodes["capacity"].copy(),
        "kv_peak_bytes": state.nodes["peak"].copy(),
        "utilisation": utilisation,
    }
    queues: Columns = {"time_s": samples.time_s}
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
        outcomes=outcomes_of(requests, instances, schedule),
        cost_usd=float(np.sum(instances["cost_usd"])),
        events=int(state.clock["handled"][0]),
    )


def _request_columns(state: State, schedule: Schedule) -> Columns:
    from coralopt.simulation.idle import idle_times

    records = state.requests
    arrival: Floats = records["arrival"]
    first: Floats = records["first_token"]
    finish: Floats = records["finish"]
    prefill_admitted: Floats = records["prefill_admitted"]
    decode_start: Floats = records["decode_start"]
    away: Floats = records["away"]
    output: Ints = records["output"]
    ttft = 1e3 * (first - arrival)
    tpot = np.full(len(records), np.nan)
    several = output > 1
    tpot[several] = 1e3 * (finish - first)[several] / (output[several] - 1)
    step = np.full(len(records), np.nan)
    step[several] = 1e3 * (finish - decode_start - away)[several] / (output[several] - 1)
    model, host = records["model"].astype(np.int64), float(state.clock["host_request"][0])
    prefill_slo, decode_slo = slos(arrival, model, schedule)
    # A mixed instance moves nothing.
    transfer: Floats = 1e3 * (records["kv_arrived"] - records["decode_admitted"])
    transfer[np.isnan(transfer) & np.isfinite(decode_start)] = 0.0
    idle_ttft, idle_tpot = idle_times(state)
    finished: Bools = records["status"] == FINISHED
    with np.errstate(invalid="ignore"):
        met_ttft = ttft <= prefill_slo
        met_tpot = finished & (~several | (tpot <= decode_slo))
    return {
        "arrival_s": arrival.copy(),
        "model": model.astype(np.int32),
        "input_tokens": records["input"].astype(np.int64),
        "output_tokens": output.astype(np.int64),
        "mixed": records["way"] == MIXED,
        "status": records["status"].astype(np.int8),
        "ttft_ms": ttft,
        "tpot_ms": tpot,
        "e2e_ms": 1e3 * (finish - arrival),
        "prefill_wait_ms": 1e3 * (prefill_admitted - host - arrival),
        "decode_wait_ms": 1e3 * (decode_start - first + away) - transfer,
        "transfer_ms": transfer,
        "prefill_served_ms": 1e3 * (first - (prefill_admitted - host)),
        "step_ms": step,
        "idle_ttft_ms": idle_ttft,
        "idle_tpot_ms": idle_tpot,
        **{f"{phase}_instance": records[f"{phase}_instance"].copy() for phase in PHASES[:2]},
        "preemptions": records["preempted"].copy(),
        **{f"blocked_{phase}": records[f"blocked_{phase}"].copy() for phase in PHASES[:2]},
        "epoch": (np.searchsorted(schedule.epochs_s, arrival, side="right") - 1).astype(np.int32),
        "met_ttft": met_ttft,
        "met_tpot": met_tpot,
    }


def _instance_columns(fleet: Fleet, window: float) -> Table:
    state, records = fleet.state, fleet.state.instances
    gone_at: Floats = records["gone_at"]
    started_at: Floats = records["started_at"]
    inside: Ints = records["inside"]
    gone = np.where(np.isnan(gone_at), window, np.minimum(gone_at, window))
    rented = np.maximum(gone - started_at, 0.0)
    now = float(state.clock["now"][0])
    since: Floats = np.maximum(now - records["area_at"], 0.0)
    area: Floats = records["area"] + inside * since
    life = np.maximum(now - started_at, 1e-300)
    return {
        "name": [blueprint.name for blueprint in fleet.blueprints],
        "model": [blueprint.model for blueprint in fleet.blueprints],
        "phase": [PHASES[blueprint.phase] for blueprint in fleet.blueprints],
        "region": [blueprint.region for blueprint in fleet.blueprints],
        "tokens_s": records["weight"].copy(),
        "started_s": started_at.copy(),
        "ready_s": records["ready_at"].copy(),
        "gone_s": gone_at.copy(),
        "draining": records["state"] == DRAINING,
        "serving": records["state"] == READY,
        "routed": records["routed"].copy(),
        "inside": inside.copy(),
        "mean_inside": area / life,
        "cost_usd": rented / 3600 * records["price_usd_h"],
    }


def _epoch_columns(requests: Columns, epochs: Floats, lengths: Floats, models: tuple[str, ...]) -> Table:
    cell = requests["epoch"].astype(np.int64) * len(models) + requests["model"]
    size = len(epochs) * len(models)
    count = np.bincount(cell, minlength=size)

    def total(weight: Floats | Ints | Bools) -> Floats:
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
