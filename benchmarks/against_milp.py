"""The allocation of random problems against their whole integer programme.

    python -m benchmarks.against_milp --cache DIR --seeds 0-199 [--several] [--limit 20] [--json NOW]

Every seed is a part of `core`: some of its model phases, some templates of each, other demands, sometimes more regions, a
pool of 1.1 to 10 times the estimated demand (benchmarks.online_instances), and mostly one kind of side constraint
(benchmarks.online_sides); with ``--several`` two or three kinds at once, and half of the time instances that run already.
It is solved as users do, to 0.1 % within the limit, and once more by HiGHS over the whole model, without reductions, bounds
or searches of ours, to a gap of 10^-6 within three times the limit. No bound of one may be above a cost of the other, nor
may one find an allocation where the other proves that there is none. Ends with exit status 1 if that happens anywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.online_instances import AMPLE, base_problem, more_regions, with_supply
from benchmarks.online_sides import SIDES, FreePlan
from coralopt.allocation import Allocation, AllocationProblem, AllocationSearchOptions, solve_allocation
from coralopt.errors import InfeasibleError, NoSolutionError, SolverError
from coralopt.solving import SolveOptions

#: Pools over the estimated demand.
POOLS = (1.1, 1.25, 1.5, 2.0, AMPLE)
#: Kinds of side constraints that are asked of every allocation, not of its share.
ASKED = tuple(side for side in SIDES if side.on_infeasible == "explain")
#: Share of the seeds with a side constraint, and with more regions than `core` has.
WITH_SIDE, WITH_REGIONS = 0.7, 0.3
#: Share of those with several kinds where instances run already.
WITH_RUNNING = 0.5
#: Relative, of costs and bounds.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Answer:
    """What one way of solving says.

    Attributes:
        cost: USD/h; infinite where none was found.
        bound: USD/h; infinite where there is no allocation.
        seconds: Wall time.
    """

    cost: float
    bound: float
    seconds: float

    @staticmethod
    def of(problem: AllocationProblem, gap: float, limit: float, search: AllocationSearchOptions) -> Answer:
        """By HiGHS."""
        start = time.perf_counter()
        cost, bound = math.inf, 0.0
        try:
            result = solve_allocation(problem, "highs", SolveOptions(rel_gap=gap, time_limit=limit), search)
            cost, bound = result.cost_usd_h, result.bound_usd_h
        except InfeasibleError:
            bound = math.inf
        except NoSolutionError:
            pass
        return Answer(cost, bound, time.perf_counter() - start)

    def contradicts(self, other: Answer) -> bool:
        """Whether a bound of either is above a cost of either."""
        cost, bound = min(self.cost, other.cost), max(self.bound, other.bound)
        return bound > cost * (1 + ROUNDING) + ROUNDING


@dataclass(frozen=True)
class Part:
    """A random part of a problem.

    Attributes:
        problem: With what is asked for.
        side: The kind of side constraint, or ``"none"``.
    """

    problem: AllocationProblem
    side: str

    @staticmethod
    def of(base: AllocationProblem, seed: int) -> Part:
        """The same for the same seed, as long as the plan without side constraints is the same."""
        problem, rng = _bare(base, seed)
        side = ASKED[int(rng.integers(len(ASKED)))]
        if rng.random() >= WITH_SIDE:
            return Part(problem, "none")
        try:
            return Part(side.add(problem, FreePlan.of(problem, _planned(problem))), side.name)
        except InfeasibleError:
            return Part(problem, "none")

    @staticmethod
    def with_several(base: AllocationProblem, seed: int) -> Part:
        """Two or three kinds that go together; each follows from a plan with those before it."""
        problem, rng = _bare(base, seed)
        names = []
        for kind in rng.choice(len(ASKED), int(rng.integers(2, 4)), replace=False).tolist():
            try:
                plan = FreePlan.of(problem, _planned(problem))
            except (InfeasibleError, NoSolutionError):
                break
            # Some kinds do not go together, and some ask for the same once more.
            with contextlib.suppress(SolverError):
                problem = ASKED[kind].add(problem, plan)
                names.append(ASKED[kind].name)
        if rng.random() < WITH_RUNNING:
            earlier = replace(problem, side_constraints=(), demand=problem.demand * rng.uniform(0.5, 1.0))
            with contextlib.suppress(InfeasibleError, NoSolutionError):
                before = _planned(earlier)
                running = np.zeros((len(problem.throughput), len(problem.price)), dtype=np.int64)
                np.add.at(running, (before.template, before.region), before.count)
                problem = replace(problem, running=running)
                names.append("running")
        return Part(problem, ", ".join(names) or "none")


def _bare(base: AllocationProblem, seed: int) -> tuple[AllocationProblem, np.random.Generator]:
    """Some model phases and templates, other demands, a pool; and what goes on drawing."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, min(len(base.demand), 6) + 1))
    phases = np.sort(rng.choice(len(base.demand), count, replace=False))
    templates = []
    for phase in phases.tolist():
        mine = np.flatnonzero(base.phase == phase)
        templates.append(rng.choice(mine, min(len(mine), int(rng.integers(15, 150))), replace=False))
    kept = np.sort(np.concatenate(templates))
    names = tuple(base.phase_names[phase] for phase in phases.tolist())
    models = [name.split("/")[0] for name in names]
    problem = replace(
        base,
        usage=base.usage[kept],
        throughput=base.throughput[kept],
        phase=np.searchsorted(phases, base.phase[kept]).astype(np.int32),
        demand=base.demand[phases] * rng.uniform(0.3, 4.0) * rng.uniform(0.5, 1.5, count),
        phase_names=names,
        unmet_together=tuple(
            tuple(k for k, other in enumerate(models) if other == model) for model in dict.fromkeys(models)
        ),
        running=None,
    )
    if rng.random() < WITH_REGIONS:
        problem = more_regions(problem, int(rng.integers(2, 6)), seed)
    problem = with_supply(problem, seed, float(rng.choice(POOLS)), whole=np.ceil)
    return problem, rng


def _planned(problem: AllocationProblem) -> Allocation:
    """What more is asked for follows from it."""
    return solve_allocation(problem, search=AllocationSearchOptions(explained=False)).allocation


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 where answers contradict one another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, help="folder for the library")
    parser.add_argument("--seeds", default="0-49", help="first and last one")
    parser.add_argument("--several", action="store_true", help="several kinds of side constraints at once")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for a problem")
    parser.add_argument("--json", type=Path, help="write the rows here")
    settings = parser.parse_args(arguments)
    first, _, last = settings.seeds.partition("-")
    base, _ = base_problem("core", settings.cache)
    width = 48 if settings.several else 22
    head = f"{'cost':>11} {'bound':>11} {'s':>6}"
    print(
        f"{'seed':>6} {'side constraint':{width}} {'phases':>6} {'templates':>9} {'regions':>7} {head} {head} of the whole"
    )
    rows, wrong_count, open_count = [], 0, 0
    for seed in range(int(first), int(last or first) + 1):
        part = (Part.with_several if settings.several else Part.of)(base, seed)
        problem = part.problem
        ours = Answer.of(problem, 1e-3, settings.limit, AllocationSearchOptions(explained=False))
        whole = Answer.of(problem, 1e-6, 3 * settings.limit, AllocationSearchOptions(reductions=False, explained=False))
        wrong = ours.contradicts(whole)
        is_open = ours.bound < ours.cost * (1 - 1.001e-3) if math.isfinite(ours.cost) else math.isfinite(ours.bound)
        figures = " ".join(f"{a.cost:11.4f} {a.bound:11.4f} {a.seconds:6.1f}" for a in (ours, whole))
        size = f"{len(problem.demand):6} {len(problem.throughput):9} {len(problem.region_names):7}"
        print(
            f"{seed:6} {part.side:{width}} {size} {figures} {'WRONG' if wrong else 'open' if is_open else ''}",
            flush=True,
        )
        answers = {"ours": asdict(ours), "whole": asdict(whole)}
        rows.append({"seed": seed, "side": part.side, "wrong": wrong, "open": is_open, **answers})
        wrong_count, open_count = wrong_count + wrong, open_count + is_open
    print(f"{len(rows)} problems; contradictions: {wrong_count}; not proven to 0.1 % within the limit: {open_count}")
    if settings.json:
        settings.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return int(wrong_count > 0)


if __name__ == "__main__":
    raise SystemExit(main())
