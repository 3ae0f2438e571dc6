"""When requests arrive: a gamma renewal process whose rate follows a Markov chain and the hour of the day.

Time is counted three times over:

* real time t, s;
* even time u: real time stretched by the daily shape and the rate, so that one request a unit is expected;
* own time x: even time stretched by the rate of the chain's state, in which arrivals are a plain renewal process with
  gamma intervals of mean 1.

With one state this is a gamma renewal process, with intervals of CV 1 a Markov-modulated Poisson process whose chain
moves at the borders of equal windows, and with both a Poisson process. Everything but the rate is without unit: at twice
the rate bursts are half as long, as in a trace whose clock is scaled (the paper, section 5.1, scales traces so).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np

from coralopt.errors import WorkloadError
from coralopt.types import Floats, Ints
from coralopt.workload.files.checks import positive
from coralopt.workload.files.documents import Numbers

HOUR_S = 3600.0
#: A generated trace must fit into memory.
_MOST_REQUESTS = 200_000_000
_MOST_WINDOWS = 500_000_000
#: Intervals are drawn in blocks; the size changes nothing but speed.
_BLOCK = 65_536


@dataclass(frozen=True)
class ArrivalOptions:
    """How a trace is drawn from an arrival model.

    Attributes:
        start_hour: Hour of the day (of the week for a weekly shape) at time 0; matters only with a shape.
        keep_tick: Whether arrivals keep to the clock of the log the model was fitted to, if it has one.
        exact_rate: Whether exactly ``rate_s * duration_s`` requests (rounded) arrive: a longer or shorter trace is drawn
            and its clock scaled. The rate of one bursty trace is otherwise random.

    Raises:
        WorkloadError: The hour is out of range.
    """

    start_hour: float = 0.0
    keep_tick: bool = True
    exact_rate: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.start_hour < 10_000:
            raise WorkloadError(f"the start hour must be at least 0, not {self.start_hour:g}")


@dataclass(frozen=True, eq=False)
class ArrivalModel:
    """Arrivals up to their rate.

    Attributes:
        interval_cv: Coefficient of variation of the gamma intervals in own time; 1 is exponential.
        window: Length of one step of the chain in even time: the mean number of requests in it.
        rates: float64 (k,), rate of each state over the mean rate; their mean over the chain's stationary law is 1.
        transitions: float64 (k, k), probability to go from state i to state j from one window to the next.
        tick: Step of the log's clock in even time; arrivals are moved down to it. ``None``: no visible clock.
        shape: float64 (24,) or (168,), rate of each hour of the day or of the week over the mean; ``None``: flat.
        why: How the model was chosen, for people.
    """

    interval_cv: Annotated[float, Numbers(0, gt=0)]
    window: Annotated[float, Numbers(0, gt=0)]
    rates: Annotated[Floats, Numbers(ge=0, least=1, most=64)]
    transitions: Annotated[Floats, Numbers(2, ge=0, le=1, least=1, most=64)]
    tick: Annotated[float, Numbers(0, gt=0)] | None = None
    shape: Annotated[Floats, Numbers(ge=0)] | None = None
    why: str = ""

    @property
    def states(self) -> int:
        return len(self.rates)

    @cached_property
    def stationary(self) -> Floats:
        """float64 (k,), share of windows in each state."""
        return stationary_law(self.transitions)

    def sample(
        self, rate_s: float, duration_s: float, random: np.random.Generator, options: ArrivalOptions = ArrivalOptions()
    ) -> tuple[Floats, Ints]:
        """Arrivals in [0, ``duration_s``): times in s, never falling, and the chain's state at each of them.

        Args:
            rate_s: Expected requests/s, averaged over the whole daily shape.
            duration_s: Length, s.
            random: Source of all randomness.
            options: Hour of the start, and whether the log's clock shows; the rate is never made exact here.

        Raises:
            WorkloadError: A rate or duration that is not positive and finite, or far too many requests.
        """
        from coralopt.workload.generation.kernels import walk

        positive("rate", rate_s)
        positive("duration", duration_s)
        end = rate_s * float(even_hours(self.shape, np.array([duration_s / HOUR_S]), options.start_hour)[0]) * HOUR_S
        windows = int(np.ceil(end / self.window)) + 1
        if end > _MOST_REQUESTS or windows > _MOST_WINDOWS:
            raise WorkloadError(
                f"{rate_s:g} requests/s for {duration_s:g} s is about {end:.3g} requests; at most {_MOST_REQUESTS:,} fit: "
                "generate shorter traces with several seeds"
            )
        first = int(np.searchsorted(np.cumsum(self.stationary)[:-1], random.random(), side="right"))
        path = walk(np.cumsum(self.transitions, axis=1), first, random.random(windows))
        # A state with rate 0 would make own time stand still, and the way back from it ambiguous.
        own = np.concatenate([[0.0], np.cumsum(np.maximum(self.rates, 1e-12)[path] * self.window)])
        even = np.interp(self._renewals(float(own[-1]), random), own, np.arange(windows + 1) * self.window)
        even = even[even < end]
        states = path[np.minimum((even / self.window).astype(np.int64), windows - 1)]
        if self.tick is not None and options.keep_tick:
            even = np.floor(even / self.tick) * self.tick
        times = self._real_hours(even / (rate_s * HOUR_S), duration_s / HOUR_S, options.start_hour) * HOUR_S
        # Rounding may put an arrival on the very end, which belongs to the next trace.
        return np.minimum(times, np.nextafter(duration_s, 0)), states

    def _renewals(self, end: float, random: np.random.Generator) -> Floats:
        """Points of the stationary gamma renewal process of rate 1 in [0, end)."""
        shape = 1.0 / self.interval_cv**2
        # Seen from an arbitrary instant, the running interval is length-biased, and the instant uniform inside it.
        last = random.random() * random.gamma(shape + 1.0, 1.0 / shape)
        blocks = []
        while last < end:
            size = min(_BLOCK, int(end - last) + 64)
            points = last + np.concatenate([[0.0], np.cumsum(random.gamma(shape, 1.0 / shape, size))])
            blocks.append(points[:-1])
            last = float(points[-1])
        points = np.concatenate(blocks) if blocks else np.zeros(0)
        kept: Floats = points[points < end]
        return kept

    def _real_hours(self, even: Floats, duration_h: float, start_hour: float) -> Floats:
        if self.shape is None:
            return even
        # Knots at the full hours of the day, seen from the start.
        ahead = float(np.ceil(start_hour)) - start_hour
        knots = np.unique(np.concatenate([[0.0], ahead + np.arange(int(duration_h) + 2), [duration_h]]))
        hours: Floats = np.interp(even, even_hours(self.shape, knots, start_hour), knots)
        return hours

    def inconsistencies(self) -> Iterator[tuple[str, ...]]:
        """(field, what is wrong, perhaps a hint) where the parts do not go together."""
        if self.transitions.shape != (self.states, self.states):
            yield "transitions", f"must be {self.states} rows of {self.states}, one a state"
        elif (abs(self.transitions.sum(axis=1) - 1) > 1e-3).any():
            yield "transitions", "every row must sum to 1"
        elif self.rates.max() <= 0:
            yield "rates", "one of them must be positive"
        if self.shape is not None and (len(self.shape) not in (24, 168) or self.shape.max() <= 0):
            yield "shape", "must be 24 or 168 rates, not all 0", "one an hour of the day or week"


def even_hours(shape: Floats | None, hours: Floats, start_hour: float = 0.0) -> Floats:
    """Integral of the daily (or weekly) shape from the start to each hour; the hours themselves for a flat shape."""
    if shape is None:
        return hours
    period = len(shape)
    cumulative = np.concatenate([[0.0], np.cumsum(shape)])

    def integral(hour: Floats) -> Floats:
        whole, rest = np.divmod(hour, period)
        total: Floats = whole * cumulative[-1] + np.interp(rest, np.arange(period + 1), cumulative)
        return total

    return integral(hours + start_hour) - integral(np.array([start_hour]))


def stationary_law(transitions: Floats) -> Floats:
    """Stationary probabilities of an irreducible chain."""
    size = len(transitions)
    system = np.vstack([transitions.T - np.eye(size), np.ones(size)])
    law = np.linalg.lstsq(system, np.concatenate([np.zeros(size), [1.0]]), rcond=None)[0]
    law = np.maximum(law, 0.0)
    result: Floats = law / law.sum()
    return result
