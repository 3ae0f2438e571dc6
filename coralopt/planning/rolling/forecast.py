"""What the next epoch will need, from what the epochs so far needed.

A forecast is any callable ``history -> demand``: float64 (E, P) tokens/s of the epochs so far (at least one), the newest
last, to float64 (P,) tokens/s. The ones here are the simple ones that every better forecast has to beat.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coralopt.errors import OptionError
from coralopt.types import Floats

Forecast = Callable[[Floats], Floats]


@dataclass(frozen=True)
class LastValue:
    """The next epoch needs what the last one did."""

    def __call__(self, history: Floats) -> Floats:
        return np.array(history[-1])


@dataclass(frozen=True)
class MovingAverage:
    """The mean of the last ``window`` epochs, of fewer while there are fewer.

    Attributes:
        window: Epochs, at least 1.
    """

    window: int

    def __post_init__(self) -> None:
        _at_least_one("window", self.window)

    def __call__(self, history: Floats) -> Floats:
        return np.asarray(history[-self.window :].mean(axis=0), dtype=np.float64)


@dataclass(frozen=True)
class Seasonal:
    """What was needed one ``period`` ago, scaled by how the last epoch compares with its own; the last value before that.

    Attributes:
        period: Epochs, at least 1: 24 for hourly epochs and a daily pattern.
    """

    period: int

    def __post_init__(self) -> None:
        _at_least_one("period", self.period)

    def __call__(self, history: Floats) -> Floats:
        if len(history) <= self.period:
            return np.array(history[-1])
        then, before = history[-self.period], history[-1 - self.period]
        # A phase that needed nothing then says nothing about the level now.
        level = np.divide(history[-1], before, out=np.ones_like(before), where=before > 0)
        return np.asarray(then * level, dtype=np.float64)


def forecast_named(text: str) -> Forecast | None:
    """``given`` (no forecast: each epoch's demand is known), ``last``, ``mean:4``, ``seasonal:24`` or ``module:function``.

    Raises:
        OptionError: None of these, a bad number, or no such module or function.
    """
    name, separator, rest = text.partition(":")
    if text == "given":
        return None
    if text == "last":
        return LastValue()
    if name in ("mean", "seasonal") and separator:
        if not rest.isascii() or not rest.isdigit() or int(rest) < 1:
            raise OptionError(f"forecast {text!r}: {rest!r} is not a number of epochs; for example {name}:24")
        return MovingAverage(int(rest)) if name == "mean" else Seasonal(int(rest))
    if not separator or not name or not rest:
        raise OptionError(
            f"unknown forecast {text!r}; choose given, last, mean:EPOCHS, seasonal:EPOCHS, or module:function of your own"
        )
    try:
        own = getattr(importlib.import_module(name), rest)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(f"forecast {text!r} cannot be loaded: {error}; is the module on PYTHONPATH?") from error
    if not callable(own):
        raise OptionError(f"forecast {text!r} is not callable; it must map a history (epochs, phases) to (phases,)")
    forecast: Forecast = own
    return forecast


def foretold(forecast: Forecast, history: Floats) -> Floats:
    """What ``forecast`` says, checked: float64 (P,) tokens/s.

    Raises:
        OptionError: It is not one finite number of at least 0 a model phase.
    """
    answer = np.asarray(forecast(history.copy()), dtype=np.float64)
    if answer.shape != history.shape[1:]:
        raise OptionError(f"the forecast gives shape {answer.shape}; expected {history.shape[1:]}, one a model phase")
    if not (np.isfinite(answer) & (answer >= 0)).all():
        raise OptionError(f"the forecast gives {answer.tolist()} tokens/s; each must be finite and not negative")
    return answer


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise OptionError(f"{name} is {value}; it must be at least 1 epoch")
