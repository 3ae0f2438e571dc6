"""Classes of a trace's requests by the lengths of prompts and answers, as a scenario's demand states them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from coralopt.errors import WorkloadError
from coralopt.types import Ints, JsonObject
from coralopt.workload.traces.trace import Trace

#: Shares of a class's requests whose lengths stand for them all.
SHARES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


def request_classes(trace: Trace, inputs: Sequence[int], outputs: Sequence[int]) -> dict[str, JsonObject]:
    """``classes`` of a demand: one for every range of prompts and of answers that has requests, with its rate and lengths.

    Args:
        trace: The requests; their rate is that over the trace's whole length.
        inputs: Longest prompts of all ranges but the last one, tokens.
        outputs: The same of answers.

    Returns:
        Name -> requests_s, bounds and quantiles of both lengths, in the order in which requests are held against them.

    Raises:
        WorkloadError: No bounds, some that are not above 0, or no requests in a time above 0.
    """
    for name, bounds in (("input", inputs), ("output", outputs)):
        if any(bound < 1 for bound in bounds):
            raise WorkloadError(f"--{name} {min(bounds)}: bounds are tokens, at least 1")
    if not inputs and not outputs:
        raise WorkloadError("there is nothing to tell classes by: give --input or --output, or both")
    seconds = trace.last_arrival_s
    if not seconds > 0:
        raise WorkloadError("the trace has no requests over a time, so they have no rate")
    columns = trace.input_tokens, trace.output_tokens
    ends = [sorted({*map(float, bounds), math.inf}) for bounds in (inputs, outputs)]
    places = [np.searchsorted(end, column) for end, column in zip(ends, columns, strict=True)]
    classes: dict[str, JsonObject] = {}
    for i, most_input in enumerate(ends[0]):
        for j, most_output in enumerate(ends[1]):
            mine = (places[0] == i) & (places[1] == j)
            if not mine.any():
                continue
            known = [(word, most) for word, most in (("in", most_input), ("out", most_output)) if math.isfinite(most)]
            sides = zip(("input", "output"), columns, strict=True)
            classes["-".join(f"{word}{most:.0f}" for word, most in known) or "any"] = {
                "requests_s": float(f"{mine.sum() / seconds:.6g}"),
                **{f"most_{word}put": most for word, most in known},
                "lengths": {side: {"quantiles": _quantiles(column[mine])} for side, column in sides},
            }
    # Nothing is longer than the last class with requests, which takes the rest.
    last = list(classes)[-1]
    classes[last] = {name: value for name, value in classes[last].items() if not name.startswith("most")}
    return classes


def _quantiles(tokens: Ints) -> JsonObject:
    return {f"{share:g}": round(float(np.quantile(tokens, share)), 1) for share in SHARES}
