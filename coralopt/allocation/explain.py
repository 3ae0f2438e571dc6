"""Why no allocation meets every demand, in the problem's words.

The elastic problem gives every demand row a shortfall s_m in [0, T_m] and minimises sum_m s_m / T_m, the sum of the
shares that go unserved, over whole instances. Its answer says which model phases fall short and by how much; capacity
rows with nothing left, used by templates of the short phases, are what binds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coralopt.allocation.problem import AllocationProblem
from coralopt.solving import MilpMatrix, SolveOptions, get_backend, solve_matrix


@dataclass(frozen=True)
class Shortfall:
    """What one model phase cannot get.

    Attributes:
        phase: Model phase name.
        demand_tokens_s: What it needs.
        missing_tokens_s: What is missing at least, when the sum of the missing shares is smallest.
        reason: ``"no template"`` when no node set of the pool can serve it at all, else ``"capacity"``.
        binding: (configuration, region) pairs that are used up and that its templates need.
    """

    phase: str
    demand_tokens_s: float
    missing_tokens_s: float
    reason: str
    binding: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Explanation:
    """Why the demands cannot be met together."""

    shortfalls: tuple[Shortfall, ...]

    def __str__(self) -> str:
        lines = ["the pool cannot meet every demand:"]
        for item in self.shortfalls:
            if item.reason == "no template":
                lines.append(
                    f"  - {item.phase}: no node set of the pool can serve it within its SLO "
                    f"(demand {item.demand_tokens_s:,.1f} tokens/s); offer larger nodes or loosen the SLO"
                )
                continue
            share = 100 * item.missing_tokens_s / item.demand_tokens_s
            names = ", ".join(f"{c} in {r}" for c, r in item.binding[:12])
            more = f" and {len(item.binding) - 12} more" if len(item.binding) > 12 else ""
            lines.append(
                f"  - {item.phase} falls short by {item.missing_tokens_s:,.1f} of {item.demand_tokens_s:,.1f} tokens/s "
                f"({share:.1f} %); used up: {names or 'nothing (too few nodes of every kind)'}{more}"
            )
        lines.append("offer more nodes of these, add regions or configurations, or lower the demand")
        return "\n".join(lines)


def explain(problem: AllocationProblem, solver: Any = "highs", options: SolveOptions | None = None) -> Explanation:
    """Solve the elastic problem and say which model phases fall short and what binds."""
    from coralopt.allocation.reductions import reduce_problem

    asked = options or SolveOptions()
    reduced = reduce_problem(problem).problem
    _, regions, configurations, phases = reduced.shape
    matrix, template, region = _elastic(reduced)
    backend = get_backend(solver)
    result = solve_matrix(
        matrix, backend, SolveOptions(rel_gap=1e-4, abs_gap=1e-7, time_limit=asked.time_limit or 60.0)
    )
    if result.x is None:
        counts, missing = np.zeros(len(template)), reduced.demand.copy()
    else:
        counts = result.x[: len(template)]
        missing = result.x[len(template) :] * np.maximum(reduced.demand, 1e-300)
    used = np.zeros((regions, configurations))
    np.add.at(used, region, reduced.usage[template] * counts[:, None])
    left = problem.availability - used
    shortfalls = []
    for p in range(phases):
        demand = float(problem.demand[p])
        if demand <= 0 or missing[p] <= 1e-9 * demand:
            continue
        mine = problem.usage[problem.phase == p]
        binding = []
        if len(mine):
            needed = mine.min(axis=0, where=mine > 0, initial=np.iinfo(np.int16).max)
            for c in range(configurations):
                for r in range(regions):
                    offered = problem.availability[r, c] > 0
                    if (mine[:, c] > 0).any() and offered and left[r, c] < needed[c]:
                        binding.append((problem.configuration_names[c], problem.region_names[r]))
        shortfalls.append(
            Shortfall(
                phase=problem.phase_names[p],
                demand_tokens_s=demand,
                missing_tokens_s=float(missing[p]),
                reason="capacity" if len(mine) else "no template",
                binding=tuple(binding),
            )
        )
    return Explanation(tuple(shortfalls))


def _elastic(problem: AllocationProblem) -> tuple[MilpMatrix, np.ndarray, np.ndarray]:
    from scipy.sparse import csc_array, vstack

    from coralopt.allocation.formulations.rows import usable

    template, region, _ = usable(problem)
    # The relative shortfall is what counts here: keep, a phase, the templates that serve most for their nodes.
    _, regions, configurations, phases = problem.shape
    if len(template) > 4_000:
        nodes = problem.usage.sum(axis=1)
        chosen = []
        for p in range(phases):
            mine = np.flatnonzero(problem.phase[template] == p)
            worth = problem.throughput[template[mine]] / nodes[template[mine]]
            chosen.append(mine[np.argsort(-worth, kind="stable")[: 4_000 // phases]])
        keep = np.sort(np.concatenate(chosen))
        template, region = template[keep], region[keep]
    count = len(template) + phases
    row, c = np.nonzero(problem.usage[template])
    capacity = csc_array(
        (problem.usage[template][row, c].astype(np.float64), (region[row] * configurations + c, row)),
        shape=(regions * configurations, count),
    )
    demand = csc_array(
        (
            np.concatenate([problem.throughput[template], np.maximum(problem.demand, 1e-300)]),
            (np.concatenate([problem.phase[template], np.arange(phases)]), np.arange(count)),
        ),
        shape=(phases, count),
    )
    return (
        MilpMatrix(
            c=np.concatenate([np.zeros(len(template)), np.ones(phases)]),
            offset=0.0,
            a=vstack([capacity, demand]).tocsc(),
            row_lower=np.concatenate([np.full(regions * configurations, -np.inf), problem.demand]),
            row_upper=np.concatenate([problem.availability.ravel().astype(np.float64), np.full(phases, np.inf)]),
            lower=np.zeros(count),
            upper=np.concatenate([np.full(len(template), np.inf), np.ones(phases)]),
            integer=np.concatenate([np.ones(len(template), dtype=np.bool_), np.zeros(phases, dtype=np.bool_)]),
            maximize=False,
            column_names=[f"nu[{i},{j}]" for i, j in zip(template, region, strict=True)]
            + [f"shortfall[{p}]" for p in range(phases)],
            row_names=[f"capacity[{i},{j}]" for i in range(regions) for j in range(configurations)]
            + [f"demand[{p}]" for p in range(phases)],
        ),
        template,
        region,
    )
