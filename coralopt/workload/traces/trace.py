"""A request trace: when requests arrive, how long they are, and which model they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from coralopt.errors import WorkloadError
from coralopt.types import Bools, Floats, Ints

#: Name of the one model of a trace that names none.
UNNAMED = ""

#: Latest arrival, s: what counts windows from 0 on would not end beyond it.
_MOST_S = 1e9

#: Most values of one array that a message quotes.
_QUOTED = 3

_Scalar = TypeVar("_Scalar", bound=np.generic)


def _no_model() -> npt.NDArray[np.int32]:
    return np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in order of arrival. All arrays have one entry a request and are read-only.

    Attributes:
        arrival_s: float64 (n,), seconds since the start of the trace; finite, at least 0, never falling.
        input_tokens: int64 (n,), prompt length in tokens; at least 1.
        output_tokens: int64 (n,), answer length in tokens; at least 1.
        model: int32 (n,), position in ``models``; all 0 when left out.
        models: Distinct model names; ``("",)``, one model without a name, when left out.

    An empty trace is allowed: an epoch may hold no request.

    Raises:
        WorkloadError: Arrays of unequal length, values that are no numbers, negative, falling or
            too late times, lengths below 1
            or not whole, model positions outside ``models``, or a name that appears twice.
    """

    arrival_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    model: npt.NDArray[np.int32] = field(default_factory=_no_model)
    models: tuple[str, ...] = (UNNAMED,)

    def __post_init__(self) -> None:
        arrival_s = _frozen(_numbers("arrival_s", self.arrival_s), np.float64)
        count = len(arrival_s)
        lengths = {
            name: _frozen(_whole(name, getattr(self, name)), np.int64) for name in ("input_tokens", "output_tokens")
        }
        position = self.model if len(self.model) or count == 0 else np.zeros(count, dtype=np.int32)
        model = _frozen(np.minimum(_whole("model", position), np.iinfo(np.int32).max), np.int32)
        models = tuple(self.models)
        columns: dict[str, Ints | npt.NDArray[np.int32]] = {**lengths, "model": model}
        for name, array in columns.items():
            if len(array) != count:
                raise WorkloadError(f"trace: {name} has {len(array)} entries but arrival_s has {count}")
            lowest = 0 if name == "model" else 1
            if count and array.min() < lowest:
                raise WorkloadError(f"trace: {name} must be at least {lowest}: {_examples(array, array < lowest)}")
        if count and not np.isfinite(arrival_s).all():
            raise WorkloadError(f"trace: arrival_s must be finite: {_examples(arrival_s, ~np.isfinite(arrival_s))}")
        if count and arrival_s.min() < 0:
            raise WorkloadError(f"trace: arrival_s must be at least 0 s: {_examples(arrival_s, arrival_s < 0)}")
        if count and arrival_s.max() > _MOST_S:
            raise WorkloadError(
                f"trace: requests arrive until {arrival_s.max():g} s, more than {_MOST_S:g} s (30 years); look for a wrong "
                "time, or one in another unit"
            )
        falls = np.flatnonzero(np.diff(arrival_s) < 0)
        if len(falls):
            row = int(falls[0]) + 1
            raise WorkloadError(
                f"trace: arrival_s must never fall, but row {row} arrives at {arrival_s[row]:g} s, after row {row - 1} "
                f"at {arrival_s[row - 1]:g} s; sort the requests by arrival (Trace.in_order does)"
            )
        if not models:
            raise WorkloadError("trace: models is empty; leave it out for a trace that names no model")
        if len(set(models)) != len(models):
            raise WorkloadError(f"trace: a model is named twice: {', '.join(models)}")
        if count and model.max() >= len(models):
            raise WorkloadError(
                f"trace: model must be below {len(models)}, the number of names: {_examples(model, model >= len(models))}"
            )
        for name, value in {"arrival_s": arrival_s, **columns, "models": models}.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.arrival_s)

    @classmethod
    def in_order(
        cls,
        arrival_s: npt.ArrayLike,
        input_tokens: npt.ArrayLike,
        output_tokens: npt.ArrayLike,
        model: npt.ArrayLike | None = None,
        models: Sequence[str] = (UNNAMED,),
    ) -> Trace:
        """A trace from requests in any order; equal arrival times keep the order given."""
        times = _numbers("arrival_s", arrival_s)
        order = np.argsort(times, kind="stable")
        columns = [np.asarray(values) for values in (input_tokens, output_tokens)]
        positions = np.zeros(len(times), dtype=np.int32) if model is None else np.asarray(model)
        for name, array in zip(("input_tokens", "output_tokens", "model"), (*columns, positions), strict=True):
            if len(array) != len(times):
                raise WorkloadError(f"trace: {name} has {len(array)} entries but arrival_s has {len(times)}")
        return cls(times[order], columns[0][order], columns[1][order], positions[order], tuple(models))

    def take(self, rows: Bools | Ints | slice, start_s: float = 0.0) -> Trace:
        """The chosen requests, in order, with ``start_s`` as the new time 0 (seconds of this trace)."""
        return Trace(
            self.arrival_s[rows] - start_s,
            self.input_tokens[rows],
            self.output_tokens[rows],
            self.model[rows],
            self.models,
        )

    @property
    def is_named(self) -> bool:
        """Whether the trace says which model each request asks for."""
        return self.models != (UNNAMED,)

    @property
    def last_arrival_s(self) -> float:
        """Arrival of the last request, s; 0 for an empty trace."""
        return float(self.arrival_s[-1]) if len(self) else 0.0

    @property
    def rate_s(self) -> float:
        """Mean arrival rate in requests/s between the first and the last arrival; NaN below two distinct times."""
        span = self.last_arrival_s - float(self.arrival_s[0]) if len(self) else 0.0
        return (len(self) - 1) / span if span > 0 else float("nan")


def _numbers(name: str, values: npt.ArrayLike) -> Floats:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise WorkloadError(f"trace: {name} must be numbers: {error}") from error
    if array.ndim != 1:
        raise WorkloadError(f"trace: {name} must have one dimension, not shape {array.shape}")
    return array


def _whole(name: str, values: npt.ArrayLike) -> Ints:
    array = np.asarray(values)
    if array.ndim == 1 and array.dtype.kind in "iu":
        return array.astype(np.int64, copy=False)
    numbers = _numbers(name, values)
    with np.errstate(invalid="ignore"):
        broken = ~np.isfinite(numbers) | (numbers != np.floor(numbers)) | (np.abs(numbers) >= 2**62)
    if broken.any():
        raise WorkloadError(f"trace: {name} must be whole numbers: {_examples(numbers, broken)}")
    return numbers.astype(np.int64)


def _frozen(array: npt.NDArray[np.generic], dtype: type[_Scalar]) -> npt.NDArray[_Scalar]:
    """A read-only array of this type; copied unless nobody can write to it already."""
    same = array.dtype == dtype and not array.flags.writeable
    frozen = np.asarray(array, dtype=dtype) if same else np.array(array, dtype=dtype)
    frozen.setflags(write=False)
    return frozen


def _examples(array: npt.NDArray[np.generic], broken: Bools) -> str:
    rows = np.flatnonzero(broken)
    shown = ", ".join(f"{array[row]} in row {row}" for row in rows[:_QUOTED])
    return shown + (f" and {len(rows) - _QUOTED} more" if len(rows) > _QUOTED else "")
