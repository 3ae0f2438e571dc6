"""Melange on a scenario: the cheapest mix of GPU types for each model phase, one type a replica."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from coralopt.allocation import Allocation
from coralopt.errors import InfeasibleError, NoSolutionError, OptionError
from coralopt.planning.request import PlanRequest, setting
from coralopt.planning.rivals.melange import MelangeProblem
from coralopt.planning.rivals.strategies import Choice, HomogeneousPlanner, Strategies
from coralopt.solving import Reason, SolveOptions, solve
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

    def choose(self, strategies: Strategies, request: PlanRequest) -> Choice:
        """One programme a model phase; ``slice_factor: 0`` splits at will."""
        slices = setting(self, request, "slice_factor")
        if not isinstance(slices, int) or isinstance(slices, bool) or slices < 0:
            raise OptionError(f"slice_factor is {slices!r}; it must be a whole number, 0 for any split")
        types = setting(self, request, "types")
        if types not in ("strategies", "configuration"):
            raise OptionError(f"types is {types!r}; choose strategies or configuration")
        programmes = _Programmes(
            strategies, slices or None, request.backend, request.solve_options, types == "strategies"
        )
        notes: list[str] = []
        answers = programmes.solved(limited=False)
        if _over(strategies, answers):
            notes.append(
                "as published, Melange knows no availability and would rent more than there is "
                f"({_over(strategies, answers)}); its phases were solved again in order with limits"
            )
            answers = programmes.solved(limited=True)
        counts: dict[tuple[int, int], int] = {}
        for answer in answers:
            for kind, n in zip(answer.types, answer.counts.tolist(), strict=True):
                place = kind.template, kind.region
                counts[place] = counts.get(place, 0) + n
        own_gap = max((answer.gap for answer in answers), default=0.0)
        return Choice(Allocation.of(counts), request.backend, own_gap, tuple(notes))


@dataclass(frozen=True)
class _Type:
    """A GPU type of one model phase: a template in a region."""

    template: int
    region: int


@dataclass(frozen=True, eq=False)
class _Answer:
    types: list[_Type]
    counts: Ints
    gap: float


@dataclass(frozen=True)
class _Programmes:
    """Melange's programmes of one scenario, one a model phase.

    Attributes:
        strategies: Its strategies.
        slices: Slices of a bucket, ``None`` for any split.
        solver: MILP back end.
        options: Its options.
        every: Whether every strategy is a type, or one a node configuration and region.
    """

    strategies: Strategies
    slices: int | None
    solver: str
    options: SolveOptions
    every: bool

    def solved(self, limited: bool) -> list[_Answer]:
        """The answers in order of the model phases; ``limited`` by what the phases before left."""
        problem = self.strategies.problem
        usage = problem.usage.astype(np.int64)
        left = problem.availability.astype(np.int64).copy()
        answers = []
        for p, phase in enumerate(self.strategies.scenario.model_phases):
            if phase.needed_tokens_s <= 0:
                continue
            types = _types(self.strategies, p, self.every)
            most = np.array(
                [
                    min(int(left[t.region, c] // usage[t.template, c]) for c in np.flatnonzero(usage[t.template]))
                    for t in types
                ],
                dtype=np.int64,
            )
            price = problem.template_price()
            melange = MelangeProblem(
                # In tokens/s: one bucket, so requests or tokens make no difference. A hair less, so that the replicas' own
                # tokens/s meet the demand whatever tolerance the solver has.
                tput=np.array([float(problem.throughput[t.template]) * (1 - 2e-6) for t in types]).reshape(-1, 1, 1),
                cost=np.array([float(price[t.template, t.region]) for t in types]),
                distribution=np.ones((1, 1)),
                rate=phase.needed_tokens_s,
                slice_factor=self.slices,
                available=most if limited else None,
                types=tuple(f"{problem.configuration_names[_configuration(self.strategies, t)]}" for t in types),
            )
            solution = solve(melange, self.solver, None, self.options) if types else None
            if solution is None or solution.termination.reason in (Reason.INFEASIBLE, Reason.INFEASIBLE_OR_UNBOUNDED):
                raise InfeasibleError(
                    f"planner 'melange': {phase.key} cannot get {phase.needed_tokens_s:,.1f} tokens/s from what the phases "
                    "before it left"
                )
            if solution.answer is None:
                raise NoSolutionError(
                    f"planner 'melange': no answer for {phase.key} in time; allow more of it", solution
                )
            counts = _trimmed(self.strategies, types, solution.answer.replicas, phase.needed_tokens_s)
            for kind, n in zip(types, counts.tolist(), strict=True):
                left[kind.region] -= n * usage[kind.template]
            answers.append(_Answer(types, counts, solution.gap))
        return answers


def _trimmed(strategies: Strategies, types: list[_Type], counts: Ints, demand: float) -> Ints:
    """Counts without a replica that the hair taken off the throughputs made necessary and that is not."""
    speeds = [Fraction(float(strategies.problem.throughput[t.template])) for t in types]
    counts = counts.copy()
    for g in range(len(types)):
        while counts[g] > 0 and sum(int(n) * s for n, s in zip(counts, speeds, strict=True)) - speeds[g] >= Fraction(
            demand
        ):
            counts[g] -= 1
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
    return [_Type(t, r) for (_, r), (_, t) in sorted(best.items())]


def _configuration(strategies: Strategies, kind: _Type) -> int:
    return int(np.flatnonzero(strategies.problem.usage[kind.template])[0])


def _over(strategies: Strategies, answers: list[_Answer]) -> str:
    """What the answers together need beyond what there is, in words; empty when they fit."""
    problem = strategies.problem
    used = np.zeros_like(problem.availability)
    for answer in answers:
        for kind, n in zip(answer.types, answer.counts.tolist(), strict=True):
            used[kind.region] += n * problem.usage[kind.template].astype(np.int64)
    return ", ".join(
        f"{used[r, c]} of {problem.availability[r, c]} {problem.configuration_names[c]} in {problem.region_names[r]}"
        for r, c in np.argwhere(used > problem.availability)
    )
