"""Forecasts are what they say, and what a user's own forecast may not do is refused."""

from __future__ import annotations

import numpy as np
import pytest

from coralopt.errors import OptionError
from coralopt.planning import LastValue, MovingAverage, Seasonal, forecast_named
from coralopt.planning.rolling.forecast import foretold

HISTORY = np.array([[10.0, 0.0], [20.0, 1.0], [30.0, 2.0], [20.0, 0.0]])


def test_last_value_and_mean() -> None:
    """The two that everyone can check by hand; a window longer than the history uses what there is."""
    assert LastValue()(HISTORY).tolist() == [20.0, 0.0]
    assert MovingAverage(2)(HISTORY).tolist() == [25.0, 1.0]
    assert MovingAverage(9)(HISTORY).tolist() == [20.0, 0.75]


def test_seasonal_scales_the_last_period() -> None:
    """Two epochs ago 30 followed 20; now the level is 20 / 20 of it. Without a whole period behind it, the last value."""
    assert Seasonal(2)(HISTORY).tolist() == [30.0 * 20 / 20, 2.0 * 0 / 1]
    assert Seasonal(3)(HISTORY).tolist() == [20.0 * 20 / 10, 1.0]
    assert Seasonal(4)(HISTORY).tolist() == [20.0, 0.0]


def test_names_of_forecasts() -> None:
    """The command line's spelling; one's own is a module and a function."""
    assert forecast_named("given") is None
    assert forecast_named("last") == LastValue()
    assert forecast_named("mean:3") == MovingAverage(3)
    assert forecast_named("seasonal:24") == Seasonal(24)
    assert forecast_named("math:sqrt") is not None
    for wrong in ("foo", "mean:0", "mean:x", "seasonal:", "no_such_module:f", "math:no_such", "math:pi"):
        with pytest.raises(OptionError):
            forecast_named(wrong)


@pytest.mark.parametrize("answer", [[1.0], [1.0, -1.0], [1.0, float("nan")]])
def test_bad_answers_are_refused(answer: list[float]) -> None:
    """A negative or missing demand would plan nonsense in silence."""
    with pytest.raises(OptionError):
        foretold(lambda _: np.array(answer), HISTORY)


def test_forecast_cannot_change_the_history() -> None:
    """A user's function that sorts in place must not corrupt the walk."""

    def spoil(history: np.ndarray) -> np.ndarray:
        history[:] = 0
        return history[-1]

    before = HISTORY.copy()
    foretold(spoil, before)
    assert (before == HISTORY).all()
