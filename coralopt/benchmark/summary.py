"""From rows to the figures of a report, as plain data."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from coralopt.benchmark.consistency import WrongAnswer, best_known, conflicts, sense_of
from coralopt.benchmark.files import NOTHING, KnownValue
from coralopt.benchmark.outcome import Outcome
from coralopt.benchmark.results import Row
from coralopt.benchmark.statistics import (
    gap_at,
    gap_reached_at,
    gap_steps,
    mean_ratio_interval,
    par10,
    performance_ratios,
    primal_integral,
    profile,
    shifted_geometric_mean,
)
from coralopt.types import Floats

#: Factors of the fastest at which profiles are printed.
FACTORS = (1.0, 2.0, 5.0, 10.0, 100.0, 1000.0)
#: Shifts of the geometric means, seconds.
SHIFTS = (1.0, 10.0)
#: Shares of the time limit at which the primal gap is printed.
MOMENTS = (0.01, 0.05, 0.2, 0.5, 1.0)
#: Primal gaps the time to which is reported.
GAPS = (0.1, 0.01, 0.001)
#: Steps of a run whose shares are reported.
STEPS = ("build", "handover", "solve", "check", "other")

#: Figures of a report, as in JSON. Any: a tree of numbers, texts and lists that only the report walks.
Data = dict[str, Any]


class Runs:
    """The rows of one section as the statistics need them.

    Attributes:
        arms: Arm names, sorted.
        limit: Time limit, seconds.
    """

    def __init__(self, rows: Sequence[Row], wrong: frozenset[str], clock: str) -> None:
        self.rows, self.wrong, self.clock = rows, wrong, clock
        self.arms = sorted({row["arm"] for row in rows})
        self.limit = float(rows[0]["settings"]["time_limit"])
        self.by_arm = {arm: [row for row in rows if row["arm"] == arm] for arm in self.arms}

    def seconds(self, row: Row) -> float:
        """Seconds that count: those of the clock for a solved run, the limit for any other."""
        return float(row[self.clock]) if self.solved(row) else self.limit

    def solved(self, row: Row) -> bool:
        """Proven, within the limit, and not wrong."""
        return (
            Outcome(row["outcome"]).proven
            and row["key"] not in self.wrong
            and row.get(self.clock) is not None
            and row["seconds"] <= self.limit
        )

    def run(self, rows: Iterable[Row]) -> list[Row]:
        """Those that were run at all."""
        return [row for row in rows if Outcome(row["outcome"]).was_run]

    def common(self, arms: Sequence[str]) -> list[tuple[Row, ...]]:
        """Rows of all these arms, for every (instance, seed) that each of them ran."""
        tables = [{(row["instance"], row["seed"]): row for row in self.run(self.by_arm[arm])} for arm in arms]
        shared = [place for place in tables[0] if all(place in table for table in tables[1:])] if tables else []
        return [tuple(table[place] for table in tables) for place in shared]


def summarise(
    rows: Sequence[Row],
    clock: str = "seconds",
    extra: Sequence[WrongAnswer] = (),
    known: Mapping[str, KnownValue] = NOTHING,
) -> Data:
    """All figures of a report.

    Args:
        rows: From :func:`coralopt.benchmark.read_rows`.
        clock: ``"seconds"`` (wall) or ``"cpu_seconds"``.
        extra: Wrong answers found elsewhere.
        known: From :func:`coralopt.benchmark.read_solu`; answers are held against it.
    """
    wrong = [*conflicts(rows, known), *extra]
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    keys = frozenset(conflict.key for conflict in wrong)
    return {
        "runs": len(rows),
        "instances": len({row["instance"] for row in rows}),
        "clock": clock,
        "conflicts": [{"instance": item.instance, "run": item.key, "text": item.text} for item in wrong],
        "machines": _distinct({k: v for k, v in row["machine"].items() if k != "commit"} for row in rows),
        "commits": sorted({row["machine"]["commit"] for row in rows if row["machine"].get("commit")}),
        "settings": _distinct(row["settings"] for row in rows),
        "jobs": sorted({row["jobs"] for row in rows}),
        "seeds": sorted({row["seed"] for row in rows}),
        "load": _load(rows),
        "solvers": _solvers(rows),
        "sections": [
            _section(Runs([row for row in rows if row["kind"] == kind], keys, clock), kind, known) for kind in kinds
        ],
    }


def _section(runs: Runs, kind: str, known: Mapping[str, KnownValue]) -> Data:
    rows = runs.rows
    sizes = sorted({row["size"] for row in rows}, key=lambda size: (int(size.split()[0].replace(",", "")), size))
    ran = [arm for arm in runs.arms if runs.run(runs.by_arm[arm])]
    shared = runs.common(ran)
    best = best_known((row for row in rows if row["key"] not in runs.wrong), known)
    return {
        "kind": kind,
        "limit": runs.limit,
        "arms": [_arm(runs, arm, runs.by_arm[arm]) for arm in runs.arms],
        "virtual_best": _times(runs, _fastest(runs)),
        "by_size": [
            {"size": size, "arms": [_cell(runs, [r for r in runs.by_arm[a] if r["size"] == size]) for a in runs.arms]}
            for size in sizes
        ],
        "common": {"arms": ran, "runs": len(shared), "figures": [
            {"arm": arm, **_times(runs, [group[k] for group in shared])} for k, arm in enumerate(ran)
        ]},
        "profile": _profile(runs, ran, shared),
        "pairwise": [_pair(runs, a, b) for k, a in enumerate(ran) for b in ran[k + 1 :]],
        "primal": [_primal(runs, arm, best) for arm in ran],
        "shares": [_shares(runs, arm) for arm in ran],
        "spread": [_spread(runs, arm) for arm in ran],
        "unfinished": [
            {"run": row["key"], "outcome": row["outcome"], "message": row.get("message", "")}
            for row in rows
            if Outcome(row["outcome"]) in (Outcome.HUNG, Outcome.DIED, Outcome.ERROR, Outcome.MEMORY, Outcome.WRONG)
        ],
    }  # fmt: skip


def _arm(runs: Runs, arm: str, rows: Sequence[Row]) -> Data:
    """Counts of every outcome, and the times over what was run."""
    outcomes = Counter(row["outcome"] for row in rows)
    return {
        "arm": arm,
        "runs": len(rows),
        "solved": sum(runs.solved(row) for row in rows),
        "late": sum(Outcome(row["outcome"]).proven and row["seconds"] > runs.limit for row in rows),
        "outcomes": {outcome.value: outcomes[outcome.value] for outcome in Outcome},
        "memory_mib": max((row["memory_mib"] for row in rows if row.get("memory_mib") is not None), default=None),
        **_times(runs, runs.run(rows)),
    }


def _times(runs: Runs, rows: Sequence[Row]) -> Data:
    seconds = [runs.seconds(row) for row in rows]
    solved = [runs.solved(row) for row in rows]
    return {
        "run": len(rows),
        "solved_of_run": sum(solved),
        **{f"sgm_{shift:g}": _number(shifted_geometric_mean(seconds, shift)) for shift in SHIFTS},
        "par10": _number(par10(seconds, solved, runs.limit)),
        "median": _median(seconds),
    }


def _fastest(runs: Runs) -> list[Row]:
    """The virtual best arm: of every (instance, seed) that was run the fastest run, a solved one where there is any."""
    fastest: dict[tuple[str, int], Row] = {}
    for row in sorted(runs.run(runs.rows), key=lambda row: (not runs.solved(row), runs.seconds(row))):
        fastest.setdefault((row["instance"], row["seed"]), row)
    return list(fastest.values())


def _cell(runs: Runs, rows: Sequence[Row]) -> Data:
    missing = Counter(row["outcome"] for row in rows if not Outcome(row["outcome"]).was_run)
    return {"runs": len(rows), "not_run": dict(missing), **_times(runs, runs.run(rows))}


def _ratios(runs: Runs, groups: Sequence[tuple[Row, ...]]) -> Floats:
    """float64 (A, N): how many times longer than the fastest; see :func:`performance_ratios`."""
    seconds = np.array([[runs.seconds(row) for row in group] for group in groups]).T
    return performance_ratios(seconds, np.array([[runs.solved(row) for row in group] for group in groups]).T)


def _profile(runs: Runs, arms: Sequence[str], shared: Sequence[tuple[Row, ...]]) -> Data:
    if not shared:
        return {"runs": 0, "arms": []}
    ratios = _ratios(runs, shared)
    shares = profile(ratios, FACTORS).round(4).tolist()
    return {
        "runs": len(shared),
        "factors": list(FACTORS),
        "arms": [
            {
                "arm": arm,
                "shares": shares[k],
                "ratios": np.sort(ratios[k][np.isfinite(ratios[k])]).round(4).tolist(),
            }
            for k, arm in enumerate(arms)
        ],
    }


def _pair(runs: Runs, first: str, second: str) -> Data:
    """Two arms on the runs that both had a chance at: wins, ties within 10 %, and the ratio of their means."""
    shared = runs.common([first, second])
    if not shared:
        return {"first": first, "second": second, "runs": 0}
    ratios = _ratios(runs, shared)
    solved = np.isfinite(ratios)
    close = 1.1
    with np.errstate(invalid="ignore"):
        faster = [int(((ratios[k] * close < ratios[1 - k]) & solved[k]).sum()) for k in (0, 1)]
    times = [[runs.seconds(group[k]) for group in shared] for k in (0, 1)]
    means = [shifted_geometric_mean(seconds, SHIFTS[0]) for seconds in times]
    interval = mean_ratio_interval(times[0], times[1], [group[0]["instance"] for group in shared], SHIFTS[0])
    shares = profile(ratios, FACTORS).round(4).tolist()
    return {
        "first": first,
        "second": second,
        "runs": len(shared),
        "first_faster": faster[0],
        "second_faster": faster[1],
        "equal": int((solved & (ratios <= close)).all(axis=0).sum()),
        "neither": int((~solved).all(axis=0).sum()),
        "first_solved": int(solved[0].sum()),
        "second_solved": int(solved[1].sum()),
        "sgm_ratio": _number(means[1] / means[0] if means[0] > 0 else math.nan),
        "ratio_low": _number(interval[0]),
        "ratio_high": _number(interval[1]),
        "first_shares": shares[0],
        "second_shares": shares[1],
    }


def run_steps(row: Row, best: float) -> list[tuple[float, float]]:
    """Primal gap of a run over time; one that was killed or wrong has delivered nothing."""
    if row["outcome"] not in (Outcome.OPTIMAL.value, Outcome.FEASIBLE.value):
        return [(0.0, 1.0)]
    events = [*(row.get("events") or []), [row["seconds"], row["objective"]]]
    return gap_steps(events, best, sense_of(row))


def _primal(runs: Runs, arm: str, best: dict[str, tuple[float, str]]) -> Data:
    """Mean primal gap at shares of the limit, and the mean primal integral, over instances with a known answer."""
    rows = [row for row in runs.run(runs.by_arm[arm]) if row["instance"] in best and row["key"] not in runs.wrong]
    steps = [run_steps(row, best[row["instance"]][0]) for row in rows]
    reached = [[gap_reached_at(s, gap, runs.limit) for s in steps] for gap in GAPS]
    return {
        "arm": arm,
        "runs": len(rows),
        "targets": list(GAPS),
        "seconds_to": [_number(shifted_geometric_mean(seconds, SHIFTS[0])) for seconds in reached],
        "reached": [sum(second < runs.limit for second in seconds) for seconds in reached],
        "moments": [moment * runs.limit for moment in MOMENTS],
        "gaps": [_mean([gap_at(s, moment * runs.limit) for s in steps]) for moment in MOMENTS],
        "integral": _mean([primal_integral(s, runs.limit) for s in steps]),
        "found_best": sum(s[-1][1] <= 1e-6 for s in steps),
    }


def _shares(runs: Runs, arm: str) -> Data:
    """Where the wall seconds go, over runs that came to an end by themselves."""
    rows = [row for row in runs.run(runs.by_arm[arm]) if row.get("solve_seconds") is not None]
    total = sum(row["seconds"] for row in rows)
    sums = {step: sum(row[f"{step}_seconds"] for row in rows) for step in STEPS}
    return {
        "arm": arm,
        "runs": len(rows),
        "seconds": {step: round(value, 3) for step, value in sums.items()},
        "shares": {step: _number(value / total if total else math.nan) for step, value in sums.items()},
        "largest_build": round(max((row["build_seconds"] for row in rows), default=0.0), 3),
    }


def _spread(runs: Runs, arm: str) -> Data:
    """Longest over shortest time among the seeds of one instance, all solved."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in runs.run(runs.by_arm[arm]):
        groups[row["instance"]].append(row)
    ratios, mixed = [], 0
    for rows in groups.values():
        solved = [runs.seconds(row) for row in rows if runs.solved(row)]
        mixed += 0 < len(solved) < len(rows)
        if len(rows) > 1 and len(solved) == len(rows):
            ratios.append(max(solved) / max(min(solved), 1e-9))
    return {
        "arm": arm,
        "instances": len(ratios),
        "median": _median(ratios),
        "largest": _number(max(ratios, default=math.nan)),
        "some_seeds_only": mixed,
    }


def _solvers(rows: Sequence[Row]) -> list[Data]:
    """Version and licence of every solver, as it said itself; of one that said nothing, how its first run ended."""
    told = [(row["solver"], row["solver_version"], row.get("licence")) for row in rows if row.get("solver_version")]
    names = {name for name, _, _ in told}
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row["solver"], row)
    silent = (row for name, row in first.items() if name not in names)
    told += [(row["solver"], "", f"{row['outcome']}: {row.get('message', '')}") for row in silent]
    return [{"solver": a, "version": b, "licence": c} for a, b, c in dict.fromkeys(told)]


def _load(rows: Sequence[Row]) -> list[float]:
    loads = [row["load_before"] for row in rows if row.get("load_before") is not None]
    return [min(loads), float(np.median(loads)), max(loads)] if loads else []


def _distinct(items: Iterable[Data]) -> list[Data]:
    distinct: list[Data] = []
    for item in items:
        if item not in distinct:
            distinct.append(item)
    return distinct


def _mean(values: Sequence[float]) -> float | None:
    return _number(float(np.mean(values))) if values else None


def _median(values: Sequence[float]) -> float | None:
    return _number(float(np.median(values))) if values else None


def _number(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
