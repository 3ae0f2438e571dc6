"""``simulate``: simulate a trace on a plan, or on one plan an epoch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from coralopt.errors import CoraloptError
from coralopt.plan.document import Plan
from coralopt.scenario.facts.serving import Serving
from coralopt.simulation.config import SimulationConfig
from coralopt.simulation.fleet import Fleet, empty_state
from coralopt.simulation.layout import Schedule, common_models, lay_out
from coralopt.simulation.outcomes import of_phases, slos
from coralopt.simulation.results import Samples, SimulationResult, collect
from coralopt.simulation.state import State, requests_of
from coralopt.simulation.times import TimesOf, TimeTables
from coralopt.simulation.variants import by_class, by_variant
from coralopt.types import Floats, Ints, Progress
from coralopt.workload import Trace

#: Events between two looks at the keyboard: a fraction of a second.
_EVENTS_A_CALL = 300_000
#: Requests are counted in 32 bits.
_MOST_TOKENS = 2**30


def simulate(
    plans: Plan | Sequence[tuple[float, Plan]],
    trace: Trace,
    *,
    config: SimulationConfig | None = None,
    source: TimesOf | None = None,
    duration_s: float | None = None,
    epoch_s: float | None = None,
    progress: Progress | None = None,
) -> SimulationResult:
    """Simulate ``trace`` on ``plans``; the rules are in docs/concepts/simulator.md (paper, sections 5.1 and 5.2).

    Args:
        plans: One plan, or (start in s, plan) for every epoch, the first one at 0.
        trace: Requests: arrival (s, from 0, sorted), input and output tokens (1 or more), model.
        config: Links, start-up times, noise, seed.
        source: Layer times (a source, or a function from model and node to layer times); by default those the plan
            was made with.
        duration_s: Length of the measured window, s; by default up to the last arrival. Requests that arrive later are
            left out; those inside are simulated to their end, however long it takes.
        epoch_s: Length of the epochs of the report, s; by default the starts of the plans.
        progress: Called with (what, done, total) now and then.

    Returns:
        What became of every request, node and instance.

    Raises:
        CoraloptError: The trace is unusable, names a model that no plan serves, or a plan is unusable.
    """
    config = config or SimulationConfig()
    timed = [(0.0, plans)] if isinstance(plans, Plan) else list(plans)
    if len(timed) > 1 and any(instance.shared for _, plan in timed for instance in plan.instances):
        raise CoraloptError("plans whose instances share nodes cannot follow one another here; simulate each by itself")
    if len(timed) > 1 and any(plan.resolved.models_in_classes for _, plan in timed):
        raise CoraloptError("plans for classes of requests cannot follow one another here; simulate each by itself")
    starts = [start for start, _ in timed]
    _check_starts(starts)
    trace = by_class(by_variant(trace, timed), timed[0][1].resolved)
    arrival, inputs, outputs, model, window = _requests(trace, duration_s)
    # numpy.max has no answer for an empty trace. A step may have more tokens than the longest request.
    serving = _serving([plan for _, plan in timed], config)
    mixed = any(instance.phase == "mixed" for _, plan in timed for instance in plan.instances)
    step = serving.step_tokens * (mixed or serving.admission == "preempt")
    tables = TimeTables(max(step, int((inputs + outputs).max(initial=2))))
    layouts = tuple(lay_out(plan, tables, config, source) for _, plan in timed)
    models = common_models(layouts)
    schedule = Schedule(np.array(starts), layouts, models, window, _epoch_starts(starts, window, epoch_s))
    adapters = {name: served for layout in layouts for name, served in layout.scenario.adapters.items()}
    numbers = _model_numbers(trace, model, models, adapters)
    hits = of_phases(arrival, numbers, schedule, lambda phase: phase.prefix_hit)
    requests = requests_of(arrival, inputs, outputs, numbers, hits)
    stages = max((len(blueprint.stage_sizes) for layout in layouts for blueprint, _ in layout.wanted), default=1)
    requests["latest"] = arrival + slos(arrival, requests["model"].astype(np.int64), schedule)[0] / 1e3
    fleet = Fleet(empty_state(requests, len(models), stages, tables, config, serving), models, config)
    fleet.connect(layouts)
    return collect(fleet, schedule, _play(fleet, schedule, progress))


def _play(fleet: Fleet, schedule: Schedule, progress: Progress | None) -> Samples:
    """Run compiled code from one moment that Python must see to the next: plans, start-ups, samples, epochs."""
    starts, window, config = schedule.starts_s.tolist(), schedule.window_s, fleet.config
    sample_at = np.linspace(0.0, window, config.samples + 1)[1:]
    bounds = np.append(schedule.epochs_s[1:], window)
    samples = Samples(sample_at, 3 * len(fleet.models), len(bounds))
    plan, sample, bound = 0, 0, 0
    while True:
        now = min(
            starts[plan] if plan < len(starts) else math.inf,
            sample_at[sample] if sample < len(sample_at) else math.inf,
            bounds[bound] if bound < len(bounds) else math.inf,
            fleet.next_time(),
        )
        _run_until(fleet.state, float(now), window, progress)
        if now == math.inf:
            return samples
        if bound < len(bounds) and bounds[bound] == now:
            samples.note_busy(bound, fleet.state, float(now))
            bound += 1
        fleet.advance(float(now))
        if plan < len(starts) and starts[plan] == now:
            fleet.apply(schedule.layouts[plan], float(now), at_once=plan == 0 and config.warm_start)
            plan += 1
        if sample < len(sample_at) and sample_at[sample] == now:
            samples.note_queues(sample, fleet.state)
            sample += 1


def _run_until(state: State, until: float, window: float, progress: Progress | None) -> None:
    # Compiled code comes in with numba, half a second: what is refused need not wait for it.
    from coralopt.simulation.events import run

    while not run(state, until, _EVENTS_A_CALL):
        _tell(state, window, progress)
    if until != math.inf:
        # Between events nothing changes: the clock may stand at the moment asked for.
        state.clock["now"] = until
    _tell(state, window, progress)


def _tell(state: State, window: float, progress: Progress | None) -> None:
    if progress is not None:
        progress("simulated seconds", int(min(float(state.clock["now"][0]), window)), max(1, int(window)))


def _serving(plans: Sequence[Plan], config: SimulationConfig) -> Serving:
    """How engines and the router work, the same for all plans."""
    ways = list(dict.fromkeys(config.serving(plan.resolved) for plan in plans))
    if len(ways) > 1:
        both = zip(vars(ways[0]).items(), vars(ways[1]).values(), strict=True)
        differ = ", ".join(f"{name} {one} and {other}" for (name, one), other in both if one != other)
        raise CoraloptError(
            f"the plans are made for different engines and routers ({differ}); make all of them with one `serving`"
        )
    return ways[0]


def _check_starts(starts: Sequence[float]) -> None:
    if not starts or starts[0] != 0:
        raise CoraloptError(f"the first plan starts at {starts[0] if starts else 'no time'}, it must start at 0 s")
    if any(b <= a for a, b in itertools.pairwise(starts)) or not all(map(math.isfinite, starts)):
        raise CoraloptError(f"the plans start at {', '.join(map(str, starts))} s; starts must rise")


def _requests(trace: Trace, duration_s: float | None) -> tuple[Floats, Ints, Ints, npt.NDArray[np.int32], float]:
    """Columns of the requests inside the window, and the window's length in s."""
    if duration_s is not None and not (math.isfinite(duration_s) and duration_s > 0):
        raise CoraloptError(f"duration_s is {duration_s!r}; give a positive number of seconds")
    for name in ("input_tokens", "output_tokens"):
        column = getattr(trace, name)
        if (column >= _MOST_TOKENS).any():
            row = int(np.argmax(column))
            raise CoraloptError(f"the trace's request {row} has {name} {column[row]}; no model takes that many")
    window = float(duration_s or trace.last_arrival_s or 1.0)
    inside = trace.arrival_s <= window
    return (
        trace.arrival_s[inside],
        trace.input_tokens[inside],
        trace.output_tokens[inside],
        trace.model[inside],
        window,
    )


def _model_numbers(
    trace: Trace, model: npt.NDArray[np.int32], models: tuple[str, ...], adapters: Mapping[str, str]
) -> Ints:
    """The trace's model numbers as numbers in ``models``; requests that name none go to the only model there is.

    Those for an adapter are the model's.
    """
    names = tuple(adapters.get(name, name) for name in trace.models)
    if not trace.is_named:
        if len(models) > 1:
            raise CoraloptError(
                f"the trace names no model; say which of {', '.join(models)} its requests ask for (--model)"
            )
        names = models
    missing = [name for m, name in enumerate(names) if name not in models and (model == m).any()]
    if missing:
        raise CoraloptError(
            f"the trace has requests for {', '.join(missing)}; the plan serves {', '.join(models)}. "
            "Rename the trace's models or plan for them"
        )
    number = np.array([models.index(name) if name in models else -1 for name in names], dtype=np.int64)
    return number[model]


def _epoch_starts(starts: Sequence[float], window: float, epoch_s: float | None) -> Floats:
    if epoch_s is None:
        return np.array([start for start in starts if start < window])
    if not (math.isfinite(epoch_s) and epoch_s > 0):
        raise CoraloptError(f"epoch_s is {epoch_s!r}; give a positive number of seconds")
    return np.arange(0.0, window, epoch_s)
