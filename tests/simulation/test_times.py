"""Sampled stage times."""

import numpy as np
import pytest

from coralopt.catalog import models, node_configurations
from coralopt.errors import CoraloptError
from coralopt.simulation.times import FunctionTimes, TimeTables
from coralopt.types import Floats


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0])
@pytest.mark.parametrize("of_layer", [True, False])
def test_times_that_are_no_times_are_refused(wrong: float, of_layer: bool) -> None:
    def times(batch: Floats, tokens: float) -> tuple[Floats, Floats]:
        right, off = batch + tokens, np.where(tokens > 1000, wrong, 1.0) * batch
        return (off, right) if of_layer else (right, off)

    def right(batch: Floats, tokens: float) -> tuple[Floats, Floats]:
        return batch, batch

    model, node = models()["qwen3-32b"], node_configurations()["1xH100"]
    for source, phase in ((FunctionTimes(times, right), "prefill"), (FunctionTimes(right, times), "decode")):
        with pytest.raises(
            CoraloptError, match=f"{phase} layer times of qwen3-32b on 1xH100: .* negative or not a number"
        ):
            TimeTables(8192).index(model, node, lambda model, configuration, source=source: source)
    TimeTables(800).index(model, node, lambda model, configuration: FunctionTimes(times, times))
