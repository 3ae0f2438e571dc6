"""Demand per epoch from a file: a demand table as it is, or a request trace cut into epochs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coralopt.errors import WorkloadError
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.workload import EpochDemand, Peak, Trace, epoch_demand, read_demand, read_trace
from coralopt.workload.files.tables import open_text
from coralopt.workload.series.epochs import DEMAND


@dataclass(frozen=True, eq=False)
class TraceDemand:
    """Demand cut from a trace.

    Attributes:
        demand: Tokens/s of every model phase of the scenario in every epoch.
        remarks: What a reader should know: epochs without requests, a last epoch that the trace does not fill.
    """

    demand: EpochDemand
    remarks: tuple[str, ...]


def is_demand_table(path: str | Path) -> bool:
    """Whether the file is a table ``epoch,model,phase,tokens_s`` rather than a trace, by its columns."""
    source = Path(path)
    if source.suffix.lower() == ".parquet":
        import pyarrow.parquet as parquet

        try:
            return set(DEMAND.columns) <= set(parquet.read_schema(source).names)
        except (OSError, ValueError):
            return True
    try:
        with open_text(source) as text:
            first = text.readline()
    except (OSError, UnicodeDecodeError, WorkloadError):
        # The reader of tables says what is wrong with it.
        return True
    names = {name.strip().strip('"') for name in first.lstrip("\ufeff").split(",")}
    return bool(names & {"epoch", "tokens_s", "phase"}) or not first.strip()


def demand_of_trace(
    trace: Trace,
    scenario: ResolvedScenario,
    epoch_s: float,
    model: str | None = None,
    name: str = "the trace",
    peak: Peak | None = None,
) -> TraceDemand:
    """Cut a trace into epochs of the scenario's model phases; models without requests need nothing.

    Args:
        trace: The requests.
        scenario: The scenario.
        epoch_s: Length of an epoch, s.
        model: Which model a trace is for that names none; needless where the scenario has one only.
        name: What messages call the trace.
        peak: Plan for the busiest short windows of an epoch rather than for its mean.

    Raises:
        WorkloadError: The trace has no requests or models that do not fit, or the epoch length makes no sense.
    """
    if scenario.models_in_classes:
        raise WorkloadError(
            f"{name}: a trace is not cut into classes of requests; give a table epoch,model,phase,tokens_s"
        )
    models = list(dict.fromkeys(phase.served for phase in scenario.model_phases))
    if len(trace.arrival_s) == 0:
        raise WorkloadError(f"{name}: no requests; there is no demand to plan for")
    if not trace.is_named:
        if model is None and len(models) > 1:
            raise WorkloadError(
                f"{name}: the trace names no model and the scenario has {', '.join(models)}; say which one it is for "
                "with --trace-model, or mix traces with `coralopt workload mix`"
            )
        chosen = model or models[0]
        trace = Trace(trace.arrival_s, trace.input_tokens, trace.output_tokens, trace.model, (chosen,))
    elif model is not None:
        raise WorkloadError(f"{name}: the trace names its models ({', '.join(trace.models)}); leave --trace-model out")
    foreign = [own for own in trace.models if own not in models]
    if foreign:
        raise WorkloadError(f"{name}: the scenario has no model {', '.join(foreign)}; it has {', '.join(models)}")
    tables = [epoch_demand(trace, epoch_s, mixed=mixed, models=models, peak=peak) for mixed in (False, True)]
    tokens_s = {key: column for table in tables for key, column in zip(table.keys, table.tokens_s.T, strict=True)}
    keys = tuple(phase.key for phase in scenario.model_phases)
    demand = EpochDemand(
        keys, np.stack([tokens_s[f"{phase.served}/{phase.phase}"] for phase in scenario.model_phases], axis=1)
    )
    remarks = []
    empty = np.flatnonzero(~(demand.tokens_s > 0).any(axis=1)).tolist()
    if empty:
        shown = ", ".join(str(e) for e in empty[:10]) + (" ..." if len(empty) > 10 else "")
        remarks.append(f"{name}: no requests in {len(empty)} of {len(demand)} epochs ({shown}); they need nothing")
    rest = float(trace.arrival_s[-1]) - (len(demand) - 1) * epoch_s
    if rest < 0.9 * epoch_s:
        remarks.append(
            f"{name}: the last epoch holds {rest:,.0f} of {epoch_s:,.0f} s, so its demand looks lower than it is"
        )
    return TraceDemand(demand, tuple(remarks))


def read_demand_or_trace(
    path: str | Path,
    scenario: ResolvedScenario,
    epoch_s: float,
    model: str | None = None,
    sort: bool = False,
    peak: Peak | None = None,
) -> TraceDemand:
    """Demand from a table ``epoch,model,phase,tokens_s`` or from a request trace; see :func:`demand_of_trace`.

    Raises:
        WorkloadError: The file is neither, or is one with mistakes; lists them.
    """
    if is_demand_table(path):
        return TraceDemand(read_demand(path), ())
    return demand_of_trace(read_trace(path, sort=sort or None), scenario, epoch_s, model, str(path), peak)
