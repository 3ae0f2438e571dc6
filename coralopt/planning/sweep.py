"""What-if: a scenario planned at every point of a grid of changes, warm from point to point.

The plan at a point is the plan of the changed scenario: what is warm makes it quicker, never worse.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np

from coralopt.display import Tabular
from coralopt.errors import CoraloptError, InfeasibleError, NoSolutionError, OptionError, ScenarioError
from coralopt.planning.coral import CoralPlanner
from coralopt.planning.request import PlanRequest
from coralopt.planning.variation import Values, Variation, grid, varied
from coralopt.replacing import replacing
from coralopt.templates.executors import ProcessPool

#: A growing sweep is written so often, s.
SAVE_S = 2.0


#: Bumped whenever a column changes its meaning.
FORMAT = "coralopt-sweep/1"


@dataclass(frozen=True)
class SweepPoint:
    """The plan at one point of the grid, in figures.

    Attributes:
        values: Path -> value.
        status: As the plan's; ``infeasible`` where there is none, ``no plan`` where a limit came first.
        cost_usd_h, provisioning_usd_h, initialization_usd_h, lower_bound_usd_h, gap: As in the plan; NaN without one.
        instances, nodes: Serving instances, and nodes of these.
        seconds: Wall time.
        scenario_digest: What was planned.
        error: Why there is no plan.
        plan: The plan document as text; empty without one.
    """

    values: Values
    status: str
    scenario_digest: str
    cost_usd_h: float = math.nan
    provisioning_usd_h: float = math.nan
    initialization_usd_h: float = math.nan
    lower_bound_usd_h: float = math.nan
    gap: float = math.nan
    instances: int = 0
    nodes: int = 0
    seconds: float = 0.0
    error: str = ""
    plan: str = field(default="", repr=False)


#: Figures that are those of the plan.
OF_PLANS = ("status", "cost_usd_h", "provisioning_usd_h", "initialization_usd_h", "lower_bound_usd_h", "gap")


#: Columns of a sweep file beside those of the paths.
COLUMNS = tuple(item.name for item in fields(SweepPoint) if item.name != "values")


@dataclass(frozen=True)
class Sweep(Tabular):
    """A finished or half-finished sweep.

    Attributes:
        scenario: Name of the scenario.
        variations: The axes.
        points: In the order of the grid.
        settings: Solver and options of every point.
    """

    scenario: str
    variations: tuple[Variation, ...]
    points: tuple[SweepPoint, ...]
    settings: Mapping[str, object]

    def __repr__(self) -> str:
        axes = " x ".join(f"{axis.path} ({len(axis.values)})" for axis in self.variations)
        return f"<Sweep of {self.scenario} over {axes}: {len(self.points):,} points>"

    def save(self, path: Path) -> None:
        """Write it as Parquet, first beside its place, then renamed.

        Raises:
            CoraloptError: The file cannot be written.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns: dict[str, list[object]] = {
            axis.path: [float(point.values[axis.path]) for point in self.points] for axis in self.variations
        }
        columns |= {name: [getattr(point, name) for point in self.points] for name in COLUMNS}
        facts = {
            "format": FORMAT,
            "scenario": self.scenario,
            "variations": [[axis.path, list(axis.values)] for axis in self.variations],
            "settings": dict(self.settings),
        }
        table = pa.table(columns).replace_schema_metadata({"coralopt": json.dumps(facts)})
        try:
            with replacing(path) as temporary:
                pq.write_table(table, temporary, compression="zstd")
        except OSError as error:
            raise CoraloptError(f"{path}: the sweep cannot be written: {error.strerror or error}") from error

    @staticmethod
    def load(path: Path) -> Sweep:
        """Read a sweep.

        Raises:
            CoraloptError: No such file, or not a sweep of this version.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(path, use_threads=False)
            facts = json.loads((table.schema.metadata or {})[b"coralopt"])
            if facts["format"] != FORMAT:
                raise ValueError(f"format {facts['format']}")
            variations = tuple(Variation(name, tuple(values)) for name, values in facts["variations"])
            points = tuple(
                SweepPoint({axis.path: row[axis.path] for axis in variations}, **{name: row[name] for name in COLUMNS})
                for row in table.to_pylist()
            )
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise CoraloptError(f"{path}: not a file of `coralopt sweep` ({str(error).splitlines()[0]})") from error
        return Sweep(facts["scenario"], variations, points, facts["settings"])


def is_sweep(path: Path) -> bool:
    """Whether a file says that it is a sweep."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return b"coralopt" in (pq.read_schema(path).metadata or {})
    except (pa.ArrowException, OSError):
        return False


def sweep(
    request: PlanRequest,
    variations: Sequence[Variation],
    path: Path | None = None,
    jobs: int = 1,
    restart: bool = False,
) -> Iterator[Sweep]:
    """Plan every point of the grid; yields the sweep as it grows, and keeps it in ``path``.

    Args:
        request: What to plan; the scenario is changed point by point.
        variations: The axes.
        path: Parquet file. Points that it holds of an interrupted sweep with the same paths, solver and options stand.
        jobs: Processes; each takes whole rows of the grid, warm from point to point.
        restart: Forget what the file holds.

    Raises:
        OptionError: A bad path or grid, or a file of another sweep.
        ScenarioError: A value that the scenario cannot have; before anything is planned.
    """
    points = grid(variations)
    scenarios = [varied(request.scenario, values) for values in points]
    settings = {"solver": request.backend, **{name: request.options[name] for name in sorted(request.options)}}
    known = {} if path is None or restart else _known(path, variations, settings)
    results: dict[int, SweepPoint] = {
        k: replace(known[item.digest], values=values)
        for k, (item, values) in enumerate(zip(scenarios, points, strict=True))
        if item.digest in known
    }
    empty = Sweep(request.scenario.name, tuple(variations), (), settings)

    def grown() -> Sweep:
        return replace(empty, points=tuple(results[k] for k in sorted(results)))

    row = len(variations[-1].values)
    rows = [[k for k in range(start, start + row) if k not in results] for start in range(0, len(points), row)]
    tasks = [[(k, points[k]) for k in numbers] for numbers in rows if numbers]
    saved_s = time.monotonic()
    try:
        for finished in _rows(request, tasks, jobs):
            results.update(finished)
            if path is not None and time.monotonic() - saved_s > SAVE_S:
                grown().save(path)
                saved_s = time.monotonic()
            yield grown()
        if not tasks:
            yield grown()
    finally:
        if path is not None:
            grown().save(path)


def _rows(
    request: PlanRequest, tasks: Sequence[list[tuple[int, Values]]], jobs: int
) -> Iterator[dict[int, SweepPoint]]:
    """Finished points: one by one in this process, whole rows from a pool."""
    if not tasks:
        return
    request = replace(_warmed(request), progress=None, library=None)
    if jobs > 1 and len(tasks) > 1:
        for _, finished in ProcessPool(min(jobs, len(tasks))).run(_plan_row, request, tasks):
            yield finished
        return
    # To and fro: the last point of a row is the neighbour of the last point of the next.
    chain = [item for number, task in enumerate(tasks) for item in (task if number % 2 == 0 else reversed(task))]
    for number, point in _planned(request, chain):
        yield {number: point}


def pareto(points: Sequence[SweepPoint], variations: Sequence[Variation]) -> list[SweepPoint]:
    """The points that no other beats in cost and in every axis that has a better end, equal in the other axes."""
    rated = [(axis.path, 1.0 if axis.better == "low" else -1.0) for axis in variations if axis.better]
    fixed = [axis.path for axis in variations if not axis.better]
    groups: dict[tuple[float, ...], list[SweepPoint]] = {}
    for point in points:
        if not math.isnan(point.cost_usd_h):
            groups.setdefault(tuple(point.values[path] for path in fixed), []).append(point)
    front = []
    for group in groups.values():
        scores = np.array([[p.cost_usd_h, *(sign * p.values[path] for path, sign in rated)] for p in group])
        for k, point in enumerate(group):
            beaten = (scores <= scores[k]).all(axis=1) & (scores < scores[k]).any(axis=1)
            if not beaten.any():
                front.append(point)
    return front


def _planned(request: PlanRequest, chain: Sequence[tuple[int, Values]]) -> Iterator[tuple[int, SweepPoint]]:
    """The points of a chain, each warm from the one before."""
    planner = CoralPlanner()
    for number, values in chain:
        started = time.perf_counter()
        scenario = varied(request.scenario, values)
        point = SweepPoint(values, "infeasible", scenario.digest)
        try:
            outcome = planner.plan(replace(request, scenario=scenario))
        except (InfeasibleError, ScenarioError) as error:
            point = replace(point, error=str(error))
        except NoSolutionError as error:
            point = replace(point, status="no plan", error=str(error))
        else:
            request, plan = replace(request, warm=outcome.warm), outcome.plan
            if outcome.interrupted:
                raise KeyboardInterrupt
            shared = {name: getattr(plan, name) for name in OF_PLANS}
            point = replace(
                point,
                **shared,
                instances=sum(item.count for item in plan.instances),
                nodes=plan.rented_nodes().total(),
                plan=plan.to_json(),
            )
        yield number, replace(point, seconds=time.perf_counter() - started)


def _plan_row(request: PlanRequest, chain: Sequence[tuple[int, Values]]) -> dict[int, SweepPoint]:
    """A row of the grid, for a process of its own."""
    return dict(_planned(request, chain))


def _warmed(request: PlanRequest) -> PlanRequest:
    """With tables and templates of the scenario itself at hand; an SLO that no node meets may be one that changes."""
    try:
        return request.warmed()
    except ScenarioError:
        return request


def _known(path: Path, variations: Sequence[Variation], settings: Mapping[str, object]) -> dict[str, SweepPoint]:
    """Finished points of a file by the digest of their scenario; those that a limit cut short are planned again."""
    if not path.exists():
        return {}
    before = Sweep.load(path)
    paths = [axis.path for axis in variations]
    if [axis.path for axis in before.variations] != paths or before.settings != json.loads(json.dumps(settings)):
        raise OptionError(
            f"{path}: holds a sweep of {', '.join(axis.path for axis in before.variations)} with "
            f"{json.dumps(before.settings)}; name another file, or forget it with --restart"
        )
    return {point.scenario_digest: point for point in before.points if point.status in ("optimal", "infeasible")}
