"""What a simulation says of a plan's phases, and the simulation that a plan was verified by, run once more."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from coralopt.errors import OptionError, WorkloadError
from coralopt.plan import Plan, Simulated, SimulatedPhase
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.simulation import SimulationResult, simulate
from coralopt.simulation.possible import possible_requests
from coralopt.types import Bools
from coralopt.workload import Trace, Traffic, model_loads, trace_digest
from coralopt.workload.generation.traffic import DURATION_S

#: Difference of a share of requests up to which a repeated simulation counts as equal.
SAME = 1e-6


#: How many times as many requests as a plan says it was simulated with its traffic may be expected to make.
MOST_AGAIN = 3


def simulated_phases(result: SimulationResult, attainment: Mapping[str, float]) -> tuple[SimulatedPhase, ...]:
    """What a simulation says of every model phase that had requests and is among those of ``attainment``."""
    return tuple(
        SimulatedPhase(
            model=row.model,
            phase=row.phase,  # type: ignore[arg-type]
            kind=row.kind,  # type: ignore[arg-type]
            requests=row.requests,
            attainment=row.attainment,
            attainment_feasible=_known(row.attainment_feasible),
            p99_ms=_known(row.p99_ms),
            causes=row.causes,
        )
        for row in result.outcomes
        if row.key in attainment and not math.isnan(row.attainment)
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def simulate_again(plan: Plan, trace: Path | None = None) -> tuple[str, ...]:
    """Simulate the requests a plan was verified with once more.

    Args:
        plan: A plan with ``simulated``.
        trace: The trace file, where that is what it was simulated with.

    Returns:
        One sentence for everything that is not as the plan says; empty when it holds.

    Raises:
        OptionError: The plan was never simulated, or the trace file is missing.
        WorkloadError: The requests cannot be made.
    """
    mark = plan.simulated
    if mark is None:
        raise OptionError("the plan was never simulated with requests")
    if mark.kind == "trace" and trace is None:
        raise OptionError(f"the plan was simulated with the trace {mark.trace}; give the file with --trace")
    try:
        requests, window_s = _requests_again(mark, plan.resolved, trace)
    except WorkloadError as error:
        if mark.kind == "trace":
            raise
        return (f"simulated: {error}",)
    if trace_digest(requests) != mark.requests_digest:
        return ("simulated: these are not the requests that the plan was simulated with",)
    result = simulate(plan, requests, duration_s=window_s)
    attainment = attainment_of(result, plan.resolved, possible_requests(plan.resolved, requests), mark.over)
    passed = all(value >= mark.target for value in attainment.values())
    wrong = list(_other_outcomes(mark.phases, simulated_phases(result, attainment)))
    for name, stated, again in (
        ("requests", mark.requests, len(result.requests["status"])),
        ("passed", mark.passed, passed),
    ):
        if stated != again:
            wrong.append(f"simulated.{name} is {stated}, simulated again it is {again}")
    if not passed:
        worst = min(attainment, key=lambda key: attainment[key])
        wrong.append(
            f"the plan fails its own simulation: {attainment[worst]:.2%} of {worst}, {mark.target:.2%} asked for"
        )
    return tuple(wrong)


def _requests_again(mark: Simulated, scenario: ResolvedScenario, trace: Path | None) -> tuple[Trace, float | None]:
    """The requests that a plan says it was simulated with, and the seconds of arrivals to measure.

    Raises:
        WorkloadError: They cannot be made, or would not be as many as the plan says.
    """
    traffic = Traffic(
        mark.kind,
        trace if mark.kind == "trace" else None,
        mark.model,
        mark.rate,
        mark.duration_s,
        mark.seed,
        mark.length_cv,
        # The digest says whether they are the same requests, in whatever order their file has them.
        sort=mark.kind == "trace",
    )
    if mark.kind != "trace":
        # Said before any is made: a document may ask for more than fit in memory.
        loads = model_loads(scenario)
        rate = sum(load.rate_s if mark.rate is None else mark.rate for load in loads)
        expected = rate * (mark.duration_s or DURATION_S)
        if expected > MOST_AGAIN * max(1000, mark.requests):
            raise WorkloadError(f"about {expected:.3g} requests are described, but {mark.requests} were simulated")
    return traffic.requests(scenario), traffic.window_s


def _other_outcomes(stated: Sequence[SimulatedPhase], again: Sequence[SimulatedPhase]) -> Iterator[str]:
    """One sentence for every figure of a model phase that is not the same when simulated again."""
    simulated = {(row.key, row.kind): row for row in again}
    for key, kind in sorted(set(simulated) - {(row.key, row.kind) for row in stated}):
        yield f"simulated: {key} ({kind}) is missing"
    for item in stated:
        row = simulated.get((item.key, item.kind))
        if row is None:
            yield f"simulated: {item.key} ({item.kind}) had no requests when simulated again"
            continue
        if not abs(row.attainment - item.attainment) <= SAME:
            yield (
                f"{item.key}: {item.attainment:.4%} met the {item.kind} SLO in the plan, "
                f"{row.attainment:.4%} when simulated again"
            )
        figures = [
            (name, getattr(item, name), getattr(row, name)) for name in ("requests", "attainment_feasible", "p99_ms")
        ]
        figures += [
            (f"causes.{name}", item.causes.get(name), row.causes.get(name))
            for name in sorted({*item.causes, *row.causes})
        ]
        for name, figure, now in figures:
            if (figure is None) != (now is None) or (figure is not None and abs(figure - now) > SAME * max(1.0, now)):
                yield f"{item.key}: {name} is {figure} in the plan, {now} when simulated again"


def attainment_of(
    result: SimulationResult, scenario: ResolvedScenario, possible: Mapping[tuple[str, str], Bools], over: str
) -> dict[str, float]:
    """Model phase -> share of its requests that met; phases without requests are left out."""
    attainment: dict[str, float] = {}
    served = {phase.model.name: phase.served for phase in scenario.model_phases}
    for row in result.outcomes:
        counted = result.requests_of(row)
        met = result.requests["met_ttft" if row.kind == "prefill" else "met_tpot"]
        if over == "possible":
            # The simulation simulates the requests inside its window only: the first ones.
            of = served[row.model]
            alike = [m for m, name in enumerate(result.models) if served[name] == of]
            mine = np.flatnonzero(np.isin(result.requests["model"], alike))
            counted[mine] &= possible[of, row.kind][: len(mine)]
        met = met[counted]
        if len(met):
            key = row.key
            attainment[key] = min(attainment.get(key, 1.0), float(met.mean()))
    return attainment
