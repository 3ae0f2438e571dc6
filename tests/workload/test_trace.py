"""A trace that exists is a trace that can be simulated."""

from __future__ import annotations

import numpy as np
import pytest

from coralopt.errors import WorkloadError
from coralopt.workload import Trace


def test_defaults_and_types() -> None:
    """Plain lists become arrays of the documented types, and one model without a name."""
    trace = Trace([0, 1.5], [10, 20], [1, 2])  # type: ignore[arg-type]
    assert (trace.arrival_s.dtype, trace.input_tokens.dtype, trace.model.dtype) == (np.float64, np.int64, np.int32)
    assert len(trace) == 2
    assert trace.model.tolist() == [0, 0]
    assert not trace.is_named
    assert trace.rate_s == pytest.approx(1 / 1.5)


def test_arrays_are_read_only_and_detached() -> None:
    """Changing the caller's array must not change a trace that was validated."""
    times = np.array([0.0, 1.0])
    trace = Trace(times, np.array([1, 1]), np.array([1, 1]))
    times[1] = -5
    assert trace.arrival_s.tolist() == [0.0, 1.0]
    with pytest.raises(ValueError, match="read-only"):
        trace.arrival_s[0] = 3


def test_empty_trace() -> None:
    """An epoch may hold no request."""
    trace = Trace(np.zeros(0), np.zeros(0), np.zeros(0))
    assert len(trace) == 0
    assert trace.last_arrival_s == 0
    assert np.isnan(trace.rate_s)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([0, 1], [1], [1, 1]), "input_tokens has 1 entries"),
        (([0, 1], [1, 0], [1, 1]), "input_tokens must be at least 1: 0 in row 1"),
        (([0, 1], [1, 1], [1, -4]), "-4 in row 1"),
        (([0, 1], [1, 1.5], [1, 1]), "whole numbers: 1.5 in row 1"),
        (([2, 1], [1, 1], [1, 1]), "row 1 arrives at 1 s, after row 0 at 2 s"),
        (([-1, 1], [1, 1], [1, 1]), "at least 0 s"),
        (([0, np.nan], [1, 1], [1, 1]), "finite: nan in row 1"),
        (([0, 1], [1, 1], [1, 1], [0, 1], ("a",)), "model must be below 1"),
        (([0, 1], [1, 1], [1, 1], [0, 1], ("a", "a")), "named twice"),
        (([0, 1], [1, 1], [1, 1], [0, 0], ()), "models is empty"),
        ((["x"], [1], [1]), "must be numbers"),
        (([[0]], [1], [1]), "one dimension"),
    ],
)
def test_mistakes(arguments: tuple[object, ...], words: str) -> None:
    """Each broken trace is refused with the value and the row."""
    with pytest.raises(WorkloadError, match=words.replace("(", r"\(")):
        Trace(*arguments)  # type: ignore[arg-type]


def test_in_order_sorts_stably() -> None:
    """Requests at the same instant keep the order of the file."""
    trace = Trace.in_order([2, 1, 1], [1, 2, 3], [4, 5, 6], [0, 1, 0], ("a", "b"))
    assert trace.input_tokens.tolist() == [2, 3, 1]
    assert trace.model.tolist() == [1, 0, 0]
