"""Requests of models with variants, shared out over these as the plans say, and of models with classes, told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coralopt.plan.document import Plan
from coralopt.plan.flows import variant_shares
from coralopt.routing import smooth_weighted_round_robin
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.workload import Trace


@dataclass
class _Candidate:
    number: int
    weight: float
    credit: float = 0.0


def by_variant(trace: Trace, plans: Sequence[tuple[float, Plan]]) -> Trace:
    """The trace with requests for variants in place of their models, by weighted round robin as the router shares them out.

    Args:
        trace: Requests for models, as their names are known outside.
        plans: (start in s, plan) of every epoch; the plan in force at its arrival decides about a request.
    """
    ways = [variant_shares(plan) for _, plan in plans]
    served = {name for way in ways for name in way}
    if not served:
        return trace
    models = list(trace.models) if trace.is_named else [next(iter(served))]
    number = np.array(trace.model)
    in_force = np.searchsorted([start for start, _ in plans], trace.arrival_s, side="right") - 1
    for position, way in enumerate(ways):
        for name, shares in way.items():
            if name not in models:
                continue
            models += [variant for variant in shares if variant not in models]
            candidates = [_Candidate(models.index(variant), share) for variant, share in shares.items() if share > 0]
            for row in np.flatnonzero((trace.model == models.index(name)) & (in_force == position)).tolist():
                if (chosen := smooth_weighted_round_robin(candidates)) is not None:
                    number[row] = chosen.number
    return _renamed(trace, number, models, served)


def by_class(trace: Trace, scenario: ResolvedScenario) -> Trace:
    """The trace with requests for classes in place of their models.

    A request belongs to the first class whose bounds hold its prompt and its answer: what the router knows where clients
    ask for as many tokens as they get (max_tokens).
    """
    served = set(scenario.models_in_classes)
    if not served:
        return trace
    models = list(trace.models) if trace.is_named else [next(iter(served))]
    number = np.array(trace.model)
    left = np.ones(len(trace), dtype=np.bool_)
    for phase in scenario.model_phases:
        part = phase.request_class
        if part is None or part.of not in models or phase.model.name in models:
            continue
        models.append(phase.model.name)
        mine = left & (trace.model == models.index(part.of)) & part.holds(trace.input_tokens, trace.output_tokens)
        number[mine], left[mine] = len(models) - 1, False
    return _renamed(trace, number, models, served)


def _renamed(trace: Trace, number: npt.NDArray[np.int32], models: list[str], served: set[str]) -> Trace:
    """The trace with these model numbers; models that are ``served`` by others are left out."""
    left = [m for m, name in enumerate(models) if name not in served or (number == m).any()]
    place = np.full(len(models), -1, dtype=np.int32)
    place[left] = np.arange(len(left), dtype=np.int32)
    return Trace(
        trace.arrival_s, trace.input_tokens, trace.output_tokens, place[number], tuple(models[m] for m in left)
    )
