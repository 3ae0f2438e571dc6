"""What-if: a scenario planned at every point of a grid of changes, warm from point to point.

A change has a path into the scenario document, ``models.qwen3-32b.slo.tpot_ms``, or is one of three factors: ``price.X`` of
every price of a GPU type, a node configuration or ``all``; ``demand.X`` of all rates and ``slo.X`` of both latency limits of
a model or of ``all``. The plan at a point is the plan of the changed scenario: what is warm makes it quicker, never worse.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coralopt.display import Tabular
from coralopt.errors import CoraloptError, InfeasibleError, NoSolutionError, OptionError, ScenarioError
from coralopt.planning.coral import CoralPlanner
from coralopt.planning.request import PlanRequest
from coralopt.replacing import replacing
from coralopt.scenario import ResolvedScenario, scenario_from_mapping
from coralopt.scenario.file.requests import SLO_ALIASES
from coralopt.scenario.mistakes import suggest
from coralopt.templates.executors import ProcessPool

#: Heads of paths that are factors.
FACTORS = ("price", "demand", "slo")
#: Most points of a grid.
MOST_POINTS = 20_000
#: A growing sweep is written so often, s.
SAVE_S = 2.0
#: Bumped whenever a column changes its meaning.
FORMAT = "coralopt-sweep/1"

Values = Mapping[str, float]


@dataclass(frozen=True)
class Variation:
    """One axis of the grid.

    Attributes:
        path: What changes.
        values: In the order of the grid.
    """

    path: str
    values: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Variation:
        """From ``PATH=START:STOP:STEP``, both ends included, or ``PATH=VALUE,VALUE``; sums are exact in decimals.

        Raises:
            OptionError: Not of this form, or too many values.
        """
        path, separator, rest = text.partition("=")
        parts = rest.split(":")
        try:
            if not separator or not path or len(parts) not in (1, 3):
                raise ValueError
            if len(parts) == 1:
                numbers = [Decimal(part) for part in rest.split(",")]
            else:
                start, stop, step = map(Decimal, parts)
                if not step or (stop - start) / step < 0 or (stop - start) / step > MOST_POINTS:
                    raise ValueError
                numbers = [start + step * k for k in range(int((stop - start) / step) + 1)]
            if not all(number.is_finite() for number in numbers):
                raise ValueError
        except (ValueError, InvalidOperation, OverflowError) as error:
            raise OptionError(
                f"--vary {text!r}: expected PATH=START:STOP:STEP or PATH=VALUE,VALUE, at most {MOST_POINTS:,} values, for "
                "example models.qwen3-32b.slo.tpot_ms=40:120:20"
            ) from error
        values = [int(number) if number == int(number) else float(number) for number in numbers]
        return cls(path.strip(), tuple(dict.fromkeys(values)))

    @property
    def better(self) -> Literal["low", "high"] | None:
        """Which values serve users better; ``None`` where that cannot be said, as for prices."""
        parts = self.path.split(".")
        if parts[0] == "slo" or parts[-1].endswith("_ms"):
            return "low"
        return "high" if parts[0] == "demand" or "demand" in parts[:-1] or parts[-1] == "attainment" else None


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


def grid(variations: Sequence[Variation]) -> list[Values]:
    """Every combination, the last axis fastest.

    Raises:
        OptionError: One path twice, or too many points.
    """
    paths = [axis.path for axis in variations]
    if len(set(paths)) != len(paths):
        raise OptionError(f"--vary names a path twice: {', '.join(paths)}")
    size = math.prod(len(axis.values) for axis in variations)
    if size > MOST_POINTS:
        raise OptionError(f"the grid has {size:,} points, at most {MOST_POINTS:,} are planned; take larger steps")
    return [
        dict(zip(paths, values, strict=True)) for values in itertools.product(*(axis.values for axis in variations))
    ]


def varied(scenario: ResolvedScenario, values: Values) -> ResolvedScenario:
    """The scenario with these changes.

    Raises:
        OptionError: A path that leads nowhere.
        ScenarioError: A value that the scenario cannot have.
    """
    document = copy.deepcopy(dict(scenario.document))
    for path, value in values.items():
        head, _, name = path.partition(".")
        if head in ("demand", "slo") and head not in document:
            _scale(document, head, name, value)
        elif head != "price":
            _set(document, path, value)
    changed = scenario_from_mapping(document, scenario.name)
    for path, value in values.items():
        head, _, name = path.partition(".")
        if head == "price":
            changed = _with_prices(changed, name, value)
    return changed


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


def _set(document: dict[str, Any], path: str, value: float) -> None:
    """Put a value at a dotted path; names may hold dots themselves.

    Raises:
        OptionError: A part of the path that does not exist.
    """
    place: Any = document
    rest = path
    while True:
        name = next(
            (key for key in sorted(place, key=len, reverse=True) if rest == key or rest.startswith(f"{key}.")), ""
        )
        if name and rest != name and isinstance(place[name], dict):
            place, rest = place[name], rest[len(name) + 1 :]
            continue
        last = SLO_ALIASES.get(rest, rest) if rest not in place else rest
        if "." in last or (name and rest != name):
            known = suggest(rest.partition(".")[0], place)
            raise OptionError(
                f"--vary {path}: the scenario has no {path!r} to change, from {rest!r} on ({known}); factors are "
                "price.X, demand.MODEL and slo.MODEL"
            )
        # A name that the scenario leaves out gets its value; one that it cannot have is refused when it is read.
        place[last] = value
        return


def _scale(document: dict[str, Any], section: str, name: str, factor: float) -> None:
    models = document["models"]
    if name != "all" and name not in models:
        raise OptionError(f"--vary {section}.{name}: no such model ({suggest(name, [*models, 'all'])})")
    for key, entry in models.items():
        if name in ("all", key):
            for item, value in entry[section].items():
                if isinstance(value, int | float) and item.endswith("_ms" if section == "slo" else "s_s"):
                    entry[section][item] = value * factor


def _with_prices(scenario: ResolvedScenario, name: str, factor: float) -> ResolvedScenario:
    columns = [c for c, item in enumerate(scenario.configurations) if name in ("all", item.name, item.gpu.name)]
    if not columns:
        choices = {item.name for item in scenario.configurations} | set(scenario.gpu_types)
        raise OptionError(f"--vary price.{name}: no such GPU type or configuration ({suggest(name, sorted(choices))})")
    price = scenario.price_usd_h.copy()
    price[:, columns] *= factor
    return scenario.with_supply(scenario.availability, price)
