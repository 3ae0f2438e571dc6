"""Melange on a scenario: the cheapest mix of GPU types for each model phase, one type a replica."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from coralopt.allocation import Allocation, AllocationProblem
from coralopt.errors import InfeasibleError, NoSolutionError, OptionError
from coralopt.planning.request import PlanRequest, setting
from coralopt.planning.rivals.melange import MelangeProblem
from coralopt.planning.rivals.strategies import HomogeneousPlanner, Strategies, StrategyChoice
from coralopt.solving import Reason, solve
from coralopt.types import Ints


class MelangePlanner(HomogeneousPlanner):
    """Melange (Griggs et al., 2024), whose programme is in :mod:`coralopt.planning.rivals.melange`.

    It takes one model; here every model phase is one such problem. What it calls a GPU type is a homogeneous strategy in a
    region: Melange takes the replica of each type as given, and with every strategy among the types it is given the best of
    all. ``types: configuration`` gives it one a node configuration and region, the one of most tokens/s per USD, as a
    profile of GPU types would. A scenario gives mean lengths, so a phase has one bucket.
    As published, nothing limits how many GPUs exist. Where the answer needs more than the regions offer, the phases are
    solved once more in file order with what is left as limits, and a note says so.
    """

    name = "melange"
    summary = "ILP over GPU types and load buckets, one type a replica, each model phase for itself"
    source = "Melange (Griggs et al., 2024); its release's solver, commit d46ab43"
    settings: Mapping[str, object] = {"homogeneous": "configuration", "slice_factor": 8, "types": "strategies"}

    def choose(self, strategies: Strategies, request: PlanRequest) -> StrategyChoice:
        """One programme a model phase; ``slice_factor: 0`` splits at will."""
        slices = setting(self, request, "slice_factor")
        if not isinstance(slices, int) or isinstance(slices, bool) or slices < 0:
            raise OptionError(f"slice_factor is {slices!r}; it must be a whole number, 0 for any split")
        types = setting(self, request, "types")
        if types not in ("strategies", "configuration"):
            raise OptionError(f"types is {types!r}; choose strategies or configuration")
        programmes = _Programmes(strategies, slices or None, request, types == "strategies")
        notes: list[str] = []
        counts, own_gap = programmes.solved(limited=False)
        if excess := _excess(strategies.problem, counts):
            notes.append(
                "as published, Melange knows no availability and would rent more than there is "
                f"({excess}); its phases were solved again in order with limits"
            )
            counts, own_gap = programmes.solved(limited=True)
        return StrategyChoice(Allocation.of(counts), request.backend, own_gap, tuple(notes))


#: A GPU type of one model phase: (template, region).
_Type = tuple[int, int]


@dataclass(frozen=True)
class _Programmes:
    """Melange's programmes of one scenario, one a model phase.

    Attributes:
        strategies: Its strategies.
        slices: Slices of a bucket, ``None`` for any split.
        request: Names the MILP back end and its options.
        every: Whether every strategy is a type, or one a node configuration and region.
    """

    strategies: Strategies
    slices: int | None
    request: PlanRequest
    every: bool

    def solved(self, limited: bool) -> tuple[dict[_Type, int], float]:
        """Replicas of each type over all model phases, ``limited`` by what the phases before left; the largest gap."""
        problem = self.strategies.problem
        usage, price = problem.usage.astype(np.int64), problem.template_price()
        left = problem.availability.astype(np.int64).copy()
        rented: dict[_Type, int] = {}
        gap = 0.0
        for p, phase in enumerate(self.strategies.scenario.model_phases):
            if phase.needed_tokens_s <= 0:
                continue
            types = _types(self.strategies, p, self.every)
            most = [min(int(left[r, c] // usage[t, c]) for c in np.flatnonzero(usage[t])) for t, r in types]
            melange = MelangeProblem(
                # In tokens/s: one bucket, so requests or tokens make no difference. A hair less, so that the replicas' own
                # tokens/s meet the demand whatever tolerance the solver has.
                tput=np.array([float(problem.throughput[t]) * (1 - 2e-6) for t, _ in types]).reshape(-1, 1, 1),
                cost=np.array([float(price[place]) for place in types]),
                distribution=np.ones((1, 1)),
                rate=phase.needed_tokens_s,
                slice_factor=self.slices,
                available=np.array(most, dtype=np.int64) if limited else None,
                types=tuple(problem.configuration_names[np.flatnonzero(usage[t])[0]] for t, _ in types),
            )
            request = self.request
            solution = solve(melange, request.backend, None, request.solve_options) if types else None
            if solution is None or solution.termination.reason in (Reason.INFEASIBLE, Reason.INFEASIBLE_OR_UNBOUNDED):
                raise InfeasibleError(
                    f"planner 'melange': {phase.key} cannot get {phase.needed_tokens_s:,.1f} tokens/s from what the phases "
                    "before it left"
                )
            if solution.answer is None:
                raise NoSolutionError(
                    f"planner 'melange': no answer for {phase.key} in time; allow more of it", solution
                )
            speeds = [Fraction(float(problem.throughput[t])) for t, _ in types]
            for (t, r), n in zip(types, _trimmed(speeds, solution.answer.replicas, phase.needed_tokens_s), strict=True):
                left[r] -= n * usage[t]
                rented[t, r] = rented.get((t, r), 0) + n
            gap = max(gap, solution.gap)
        return rented, gap


def _trimmed(speeds: list[Fraction], replicas: Ints, demand: float) -> list[int]:
    """Counts without a replica that the hair taken off the throughputs made necessary and that is not."""
    counts: list[int] = replicas.tolist()
    spare = sum(n * speed for n, speed in zip(counts, speeds, strict=True)) - Fraction(demand)
    for g, speed in enumerate(speeds):
        while counts[g] > 0 and spare >= speed:
            counts[g] -= 1
            spare -= speed
    return counts


def _types(strategies: Strategies, phase: int, every: bool) -> list[_Type]:
    """Every strategy of a model phase by region, or for each configuration and region that of most tokens/s per USD."""
    problem = strategies.problem
    price, most = problem.template_price(), problem.most_instances()
    best: dict[tuple[int, int], tuple[float, int]] = {}
    for t in strategies.phase_rows(phase).tolist():
        for r in range(len(problem.region_names)):
            if most[t, r] < 1 or math.isnan(price[t, r]):
                continue
            rate = float(price[t, r])
            value = float(problem.throughput[t]) / rate if rate > 0 else math.inf
            place = (t if every else int(np.flatnonzero(problem.usage[t])[0]), r)
            if place not in best or value > best[place][0]:
                best[place] = value, t
    return [(t, r) for (_, r), (_, t) in sorted(best.items())]


def _excess(problem: AllocationProblem, counts: Mapping[_Type, int]) -> str:
    """What these replicas need beyond what there is, in words; empty when they fit."""
    used = np.zeros(problem.availability.shape, dtype=np.int64)
    for (t, r), n in counts.items():
        used[r] += n * problem.usage[t].astype(np.int64)
    return ", ".join(
        f"{used[r, c]} of {problem.availability[r, c]} {problem.configuration_names[c]} in {problem.region_names[r]}"
        for r, c in np.argwhere(used > problem.availability)
    )
