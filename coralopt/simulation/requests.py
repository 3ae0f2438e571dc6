"""Requests to simulate when there is nothing better at hand: a plain table from a file, or Poisson arrivals."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coralopt.errors import WorkloadError
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.workload import UNNAMED, Trace

_COLUMNS = ("arrival_s", "input_tokens", "output_tokens")


def poisson_requests(
    scenario: ResolvedScenario,
    rate: float | None = None,
    duration_s: float = 300.0,
    seed: int = 0,
    length_cv: float = 1.0,
) -> Trace:
    """Poisson arrivals with independent lognormal lengths around the scenario's means.

    Args:
        scenario: Models, mean lengths and demand.
        rate: Requests/s of every model; by default the scenario's demand over its mean lengths.
        duration_s: Seconds of arrivals.
        seed: Seed.
        length_cv: Coefficient of variation of the lengths before they are rounded up to whole tokens and cut at the model's
            longest context; 0 makes all requests of a model equal.
    """
    for name, value in (("rate", rate), ("duration", duration_s), ("length_cv", length_cv)):
        if value is not None and not (math.isfinite(value) and (value > 0 or (value == 0 and name == "length_cv"))):
            raise WorkloadError(f"{name} is {value!r}; give a positive number")
    generator = np.random.default_rng(seed)
    models = tuple(dict.fromkeys(phase.model.name for phase in scenario.model_phases))
    columns: list[tuple[npt.NDArray[np.float64], ...]] = []
    for m, name in enumerate(models):
        phase = next(phase for phase in scenario.model_phases if phase.model.name == name)
        tokens = phase.mean_input_tokens if phase.phase == "prefill" else phase.mean_output_tokens
        requests_s = phase.demand_tokens_s / max(tokens, 1.0) if rate is None else rate
        count = int(generator.poisson(requests_s * duration_s))
        half = phase.model.max_position // 2
        arrival = np.sort(generator.uniform(0.0, duration_s, count))
        lengths = [
            np.clip(_lognormal(generator, mean, length_cv, count), 1, half)
            for mean in (phase.mean_input_tokens, phase.mean_output_tokens)
        ]
        columns.append((arrival, *lengths, np.full(count, float(m))))
    arrival, inputs, outputs, model = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    order = np.argsort(arrival, kind="stable")
    return Trace(
        arrival[order],
        inputs[order].astype(np.int64),
        outputs[order].astype(np.int64),
        model[order].astype(np.int32),
        models,
    )


def read_requests(path: str | Path, model: str | None = None) -> Trace:
    """Read a CSV or Parquet table with the columns arrival_s, input_tokens, output_tokens and, if it has one, model.

    Args:
        path: The file; ``.csv``, ``.csv.gz`` or ``.parquet``.
        model: Model of every request, whatever the table says.

    Raises:
        WorkloadError: The file cannot be read, lacks a column, or holds a value that cannot be; names the first one.
    """
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    source = Path(path)
    try:
        table = pq.read_table(source) if source.suffix == ".parquet" else pc.read_csv(source)
    except (OSError, pa.ArrowInvalid) as error:
        raise WorkloadError(f"{source}: the trace cannot be read: {error}") from error
    names = table.column_names
    missing = [name for name in _COLUMNS if name not in names]
    if missing:
        raise WorkloadError(f"{source}: no column {', '.join(missing)}; it has {', '.join(names)}")
    arrival, inputs, outputs = (_numbers(table.column(name), source, name) for name in _COLUMNS)
    try:
        if model is not None or "model" not in names:
            return Trace(arrival, inputs, outputs, models=(model or UNNAMED,))  # type: ignore[arg-type]
        words = [str(word) for word in table.column("model").to_pylist()]
        index = {word: m for m, word in enumerate(dict.fromkeys(words))}
        numbers = np.array([index[word] for word in words], dtype=np.int32)
        return Trace(arrival, inputs, outputs, numbers, tuple(index))  # type: ignore[arg-type]
    except WorkloadError as error:
        raise WorkloadError(f"{source}: {error}") from error


def at_rate(requests: Trace, rate: float) -> Trace:
    """The same requests in stretched or squeezed time, so that all models together see ``rate`` a model and second.

    Time is scaled as in the paper (section 5.1): one factor for the whole trace; shares of the models stay.
    """
    if not (math.isfinite(rate) and rate > 0):
        raise WorkloadError(f"rate is {rate!r}; give a positive number of requests/s")
    last = float(requests.arrival_s[-1]) if len(requests.arrival_s) else 0.0
    if last == 0:
        raise WorkloadError("the trace has no two arrivals; its rate cannot be changed")
    factor = len(requests.arrival_s) / last / (rate * len(requests.models))
    return Trace(
        requests.arrival_s * factor, requests.input_tokens, requests.output_tokens, requests.model, requests.models
    )


def _lognormal(generator: np.random.Generator, mean: float, variation: float, count: int) -> npt.NDArray[np.float64]:
    spread = math.log1p(variation**2)
    return np.rint(generator.lognormal(math.log(max(mean, 1.0)) - spread / 2, math.sqrt(spread), count))


def _numbers(column: object, source: Path, name: str) -> npt.NDArray[np.float64]:
    try:
        values = np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise WorkloadError(f"{source}: column {name} must hold numbers: {error}") from error
    return values
