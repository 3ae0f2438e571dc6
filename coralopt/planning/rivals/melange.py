"""Melange's integer programme: load buckets, GPU types, one type a replica.

Requests are sorted into buckets of (input length, output length). A replica of GPU type g serves ``tput[g, b]`` requests/s
of bucket b within its SLO, so that one request/s of it is a load of 1 / tput[g, b] on that type. Each bucket's rate is cut
into ``slice_factor`` equal slices, and every slice goes to one type (Griggs et al., "Melange: Cost Efficient Large Language
Model Serving by Exploiting GPU Heterogeneity", 2024; its release's solver, commit d46ab43)::

    min  sum_g cost[g] y[g]
    s.t. sum_g x[s, g] = 1                                  for every slice s
         sum_s rate_s / tput[g, b(s)] x[s, g] <= y[g]       for every GPU type g
         x binary, y integer >= 0

The formulation ``published`` is that, letter for letter. ``grouped`` counts the slices of a bucket on a type instead, since
slices of one bucket are interchangeable. Without a slice factor, ``grouped`` splits buckets at will, as a router
with weights can. Published, there is no limit on how many GPUs exist; ``available`` adds it
(aibrix issue 637 asks for just that).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from coralopt.errors import SolverError
from coralopt.solving import Check, Formulation, Violation
from coralopt.solving.problem import VariableIndex
from coralopt.types import Floats, Ints

if TYPE_CHECKING:
    from pyomo.environ import ConcreteModel

#: Relative slack allowed to a replica count and to shares, a solver's own feasibility tolerance.
TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class MelangeAnswer:
    """How many replicas of each type, and which share of each bucket they take.

    Attributes:
        replicas: int64 (G,).
        share: float64 (G, I, O), shares of a bucket; they sum to 1 over the types where the bucket has requests.
    """

    replicas: Ints
    share: Floats


@dataclass(frozen=True, eq=False)
class MelangeProblem:
    """Serve one model's requests at least cost with replicas of single GPU types.

    Attributes:
        tput: float64 (G, I, O), requests/s of one replica by type and bucket; 0: not within the SLO. The published
            solver divides by it and fails there; here such a pair is left out.
        cost: float64 (G,), USD/h of a replica.
        distribution: float64 (I, O), share of requests by bucket, summing to 1.
        rate: requests/s in all.
        slice_factor: Slices a bucket, or ``None`` for any split.
        available: int64 (G,), replicas that can be had, or ``None`` for no limit, as published.
        types: Names of the types.

    Raises:
        SolverError: The parts do not fit together.
    """

    tput: Floats
    cost: Floats
    distribution: Floats
    rate: float
    slice_factor: int | None = 1
    available: Ints | None = None
    types: tuple[str, ...] = ()

    kind: ClassVar[str] = "melange"
    sense: ClassVar[Literal["min", "max"]] = "min"
    default_formulation: ClassVar[str] = "grouped"

    def __post_init__(self) -> None:
        if self.tput.ndim != 3 or self.tput.shape[1:] != self.distribution.shape:
            raise SolverError(
                f"tput has shape {self.tput.shape}, expected (types, *{self.distribution.shape}): one value a bucket"
            )
        if self.cost.shape != self.tput.shape[:1]:
            raise SolverError(f"cost has shape {self.cost.shape}, tput knows {len(self.tput)} GPU types")
        for name, values in (("tput", self.tput), ("cost", self.cost), ("distribution", self.distribution)):
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise SolverError(f"{name} holds a negative or non-finite number; use 0 for what is not possible")
        if abs(float(self.distribution.sum()) - 1) > 1e-6:
            raise SolverError(f"distribution sums to {float(self.distribution.sum())!r}; it must sum to 1")
        if not (np.isfinite(self.rate) and self.rate >= 0):
            raise SolverError(f"rate is {self.rate}; it must be a number of requests/s, at least 0")
        if self.slice_factor is not None and self.slice_factor < 1:
            raise SolverError(f"slice_factor is {self.slice_factor}; it must be at least 1, or None for any split")

    def buckets(self) -> list[tuple[int, int]]:
        """Buckets that have requests."""
        return [(int(i), int(o)) for i, o in np.argwhere(self.distribution * self.rate > 0)]

    def load(self, g: int, bucket: tuple[int, int]) -> float | None:
        """Replicas of type g that the whole bucket takes, or ``None`` where it cannot serve the bucket."""
        speed = float(self.tput[g][bucket])
        return None if speed <= 0 else float(self.rate * self.distribution[bucket]) / speed

    def formulations(self) -> Mapping[str, Formulation[MelangeProblem, MelangeAnswer]]:
        """Formulations by name."""
        return {name: MelangeFormulation(name) for name in ("grouped", "published")}

    def check(self, answer: MelangeAnswer) -> Check:
        """Every bucket served whole, no type overloaded, and the cost."""
        wrong = []
        if answer.replicas.shape != self.cost.shape or answer.share.shape != self.tput.shape:
            return Check.no_answer("replicas and share have the wrong shape")
        names = self.types or tuple(map(str, range(len(self.cost))))
        if (answer.replicas < 0).any() or (answer.share < -TOLERANCE).any():
            wrong.append(Violation("answer", "answer", "a count or a share is negative"))
        for bucket in self.buckets():
            unserved = partial(Violation, "demand", f"bucket {bucket}")
            total = float(sum(Fraction(float(answer.share[g][bucket])) for g in range(len(self.cost))))
            if abs(total - 1) > TOLERANCE:
                wrong.append(unserved(f"bucket {bucket} is served {total:.6f} times"))
            for g, name in enumerate(names):
                share = float(answer.share[g][bucket])
                if share > TOLERANCE and self.tput[g][bucket] <= 0:
                    wrong.append(unserved(f"bucket {bucket} goes to {name}, which cannot serve it"))
                whole = share * (self.slice_factor or 1)
                if self.slice_factor is not None and abs(whole - round(whole)) > TOLERANCE:
                    wrong.append(unserved(f"bucket {bucket} gives {name} a part of a slice"))
        for g, name in enumerate(names):
            need = Fraction(0)
            for bucket in self.buckets():
                if self.tput[g][bucket] > 0:
                    need += (
                        Fraction(float(answer.share[g][bucket]))
                        * Fraction(float(self.rate))
                        * Fraction(float(self.distribution[bucket]))
                        / Fraction(float(self.tput[g][bucket]))
                    )
            if need > int(answer.replicas[g]) * (1 + TOLERANCE) + TOLERANCE:
                text = f"{name} carries a load of {float(need):.6f} with {int(answer.replicas[g])} replicas"
                wrong.append(Violation("capacity", name, text))
            if self.available is not None and answer.replicas[g] > self.available[g]:
                text = f"{int(answer.replicas[g])} replicas of {name}, {int(self.available[g])} can be had"
                wrong.append(Violation("capacity", name, text))
        cost = sum(int(n) * Fraction(float(c)) for n, c in zip(answer.replicas, self.cost, strict=True))
        return Check(not wrong, float(cost), tuple(wrong))


@dataclass(frozen=True)
class MelangeFormulation:
    """How many slices of a bucket go to a type.

    Attributes:
        name: ``"published"``: one binary variable for each slice and type, as published; ``"grouped"``: the slices of a
            bucket on a type counted in one variable, or any share of it without a slice factor.
    """

    name: str

    def build(self, problem: MelangeProblem) -> ConcreteModel:
        """Pyomo model with ``x[i, o, s, g]`` (s counts variables of one bucket and type) and ``y``.

        Raises:
            SolverError: ``published``, and the problem has no slice factor.
        """
        import pyomo.environ as pyo

        slices, available = problem.slice_factor, problem.available
        if slices is None and self.name == "published":
            raise SolverError("formulation 'published' needs a slice_factor; 'grouped' splits buckets at will")
        each = self._parts(problem)
        # Slices that one variable counts.
        whole = (slices or 1) // each
        model = pyo.ConcreteModel(name=f"melange_{self.name}")
        types = range(len(problem.cost))
        model.y = pyo.Var(
            types,
            domain=pyo.NonNegativeIntegers,
            bounds=lambda _, g: (0, None if available is None else int(available[g])),
        )
        model.objective = pyo.Objective(expr=sum(float(problem.cost[g]) * model.y[g] for g in types))
        parts = [(i, o, s) for i, o in problem.buckets() for s in range(each)]
        able = [(*part, g) for part in parts for g in types if problem.load(g, part[:2]) is not None]
        model.x = pyo.Var(
            able, domain=pyo.NonNegativeReals if slices is None else pyo.NonNegativeIntegers, bounds=(0, whole)
        )
        model.nowhere = pyo.Var(bounds=(0, 0))
        model.whole = pyo.ConstraintList()
        for part in parts:
            takers = [model.x[*part, g] for g in types if (*part, g) in model.x]
            model.whole.add((sum(takers) if takers else model.nowhere) == whole)
        model.carried = pyo.Constraint(
            types,
            rule=lambda _, g: (
                sum(
                    (problem.load(g, (i, o)) or 0.0) / (slices or 1) * model.x[i, o, s, h]
                    for i, o, s, h in able
                    if h == g
                )
                <= model.y[g]
            ),
        )
        return model

    def read(self, problem: MelangeProblem, value: Callable[[str, VariableIndex], float]) -> MelangeAnswer:
        """Replicas and shares."""
        slices = problem.slice_factor
        share = np.zeros(problem.tput.shape)
        for i, o in problem.buckets():
            for g in range(len(problem.cost)):
                if problem.load(g, (i, o)) is not None:
                    x = [value("x", (i, o, s, g)) for s in range(self._parts(problem))]
                    share[g, i, o] = x[0] if slices is None else sum(map(round, x)) / slices
        counts = np.array([round(value("y", g)) for g in range(len(problem.cost))], dtype=np.int64)
        return MelangeAnswer(counts, share)

    def _parts(self, problem: MelangeProblem) -> int:
        """Variables for one bucket and type."""
        return (problem.slice_factor or 1) if self.name == "published" else 1
