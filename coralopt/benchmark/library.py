"""A library of instances as files that any solver reads: placements and allocations as MPS, with the best known of each.

``write_library`` draws every instance from its name, compiles it, and finds the best answer that we know: placements by the
dynamic programme, allocations by our own search, both checked exactly; where they prove it, another solver proves the matrix
itself when it can within its limit. What is written:

===================  ==========================================================================================
``NAME.mps``         the model, with the numbers of the instance bit for bit
``NAME.sol``         the best known solution; ``coralopt check NAME.mps NAME.sol`` holds
``library.solu``     ``=opt=``, ``=best=`` or ``=inf=`` and the value, by name
``library.csv``      origin, kind, sizes, value, what it rests on, and the SHA-256 of the model file, a line an instance
===================  ==========================================================================================
"""

from __future__ import annotations

import csv
import fnmatch
import gzip
import hashlib
import io
import math
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from coralopt.allocation import Allocation, AllocationProblem, solve_allocation
from coralopt.benchmark.instances import expand, parse_instance
from coralopt.errors import InfeasibleError, NoSolutionError, WrongAnswerError
from coralopt.placement import Placement, PlacementProblem, best_placement
from coralopt.replacing import replacing
from coralopt.scenario import ResolvedScenario, load_scenario, scenario_from_mapping
from coralopt.solving import MilpMatrix, Reason, SolveOptions, compile_problem, solve_matrix, write_model
from coralopt.solving.compiled import Compiled
from coralopt.solving.files.solution import write_solution
from coralopt.solving.files.write import safe_names
from coralopt.templates import obtain_library, scenario_tables, shared_patterns
from coralopt.testing.instances import allocation_instance, is_wide, placement_instance
from coralopt.types import Floats, Progress

#: Drawn from scenarios; see :mod:`coralopt.benchmark.instances`.
PATTERNS = (
    "placement:*:nodes=3..8:seed=0",
    "placement:*:nodes=2..4:seed=0:scenario=tiny",
    "allocation:tiny:columns=40:supply=ample,scarce:seed=0..3",
    "allocation:core,extended:columns=100,1000,10000:supply=ample,scarce:seed=0..2",
    # Templates that hold SLOs for a share of all requests, not for mean lengths.
    "allocation:core-slo:columns=100,1000:supply=ample,scarce:seed=0..1",
)
#: Built-in scenarios whose allocations are in it as they are: routes, tails, operators' rules, swapped weights, ...
SCENARIOS = ("auto", "classes", "core-slo", "longtail", "operator", "prefix", "routes", "swapping", "variants")
#: Random instances with every trait that ever broke a solver; see :mod:`coralopt.testing.instances`.
RANDOM_PLACEMENTS, RANDOM_ALLOCATIONS = 45, 90
#: Further kinds of rows: parts of a scenario's document, put into those of ``tiny`` and ``core``.
ROWS: Mapping[str, Mapping[str, Any]] = {  # Any: a scenario's document
    "max-nodes": {"limits": {"max_nodes": 9}},
    "max-gpus": {"limits": {"max_gpus": {"L40S": 3}}},
    "max-rent": {"limits": {"max_usd_h": 21.0}},
    "region-only": {"kv_transfer": "region"},
    "egress": {"kv_transfer": "priced", "egress": {"us-east-2": {"any": {"usd_gb": 0.05}}}},
    "auto": {"mode": "auto"},
    "replicas": {"every_model": {"min_replicas": 2}},
    "survive": {"every_model": {"survive_region_loss": 0.5}},
    "forbidden": {"every_model": {"forbidden": ["L4"]}},
}
#: Those that need two regions; ``tiny`` has one.
TWO_REGIONS = ("egress", "survive")


@dataclass(frozen=True)
class LibraryEntry:
    """One line of ``library.csv``.

    Attributes:
        name: Of its files.
        origin: From which it is drawn again.
        kind: ``placement`` or ``allocation``.
        rows, columns, integers, nonzeros: Of the model.
        mark: ``=opt=``, ``=best=`` or ``=inf=``.
        value: Objective of the best known solution, in the model's sense; ``None`` where there is none.
        proof: Who proves it.
        sha256: Of the model file.
    """

    name: str
    origin: str
    kind: str
    rows: int
    columns: int
    integers: int
    nonzeros: int
    mark: str
    value: float | None
    proof: str
    sha256: str


def write_library(
    folder: Path, only: str = "*", time_limit: float = 10.0, progress: Progress | None = None
) -> list[LibraryEntry]:
    """Write the library, or of it what ``only``, a pattern of names, takes; equal calls write equal models.

    What the folder's index has with the file that it tells of stays, so a run that was cut short goes on.

    Args:
        folder: Made where it is missing.
        only: Names with ``*`` and ``?``.
        time_limit: Seconds for the search for an allocation, and for the second solver, an instance.
        progress: Told (name, done, all) after every instance.

    Raises:
        WrongAnswerError: Two proofs disagree.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = {name: origin for name, origin in _origins() if fnmatch.fnmatchcase(name, only)}
    known = _read_index(folder)
    for done, (name, origin) in enumerate(names.items(), 1):
        model = folder / f"{name}.mps"
        if name not in known or not model.is_file() or _digest(model) != known[name].sha256:
            known[name] = _entry(folder / name, origin, time_limit)
            _write_index(folder, [known[other] for other, _ in _origins() if other in known])
        if progress is not None:
            progress(name, done, len(names))
    return [known[name] for name in names]


def _origins() -> Iterator[tuple[str, str]]:
    """(name, origin) of every instance."""
    for instance in (instance for pattern in PATTERNS for instance in expand(pattern)):
        yield re.sub(r"[:/=]+", "-", instance.name), instance.name
    # Figures of wide placements are beyond what solvers read as they are.
    for seed in [seed for seed in range(2 * RANDOM_PLACEMENTS) if not is_wide(seed)][:RANDOM_PLACEMENTS]:
        yield f"placement-random-{seed:02}", f"random:placement:{seed}"
    for seed in range(RANDOM_ALLOCATIONS):
        yield f"allocation-random-{seed:02}", f"random:allocation:{seed}"
    for scenario in ("tiny", "core"):
        for rows in ROWS:
            if scenario == "tiny" and rows in TWO_REGIONS:
                continue
            yield f"allocation-{scenario}-{rows}", f"rows:{scenario}:{rows}"
    for scenario in SCENARIOS:
        yield f"allocation-{scenario}", f"scenario:{scenario}"


def _problem(origin: str) -> PlacementProblem | AllocationProblem:
    kind, _, rest = origin.partition(":")
    first, _, last = rest.partition(":")
    if kind == "random":
        return placement_instance(int(last)) if first == "placement" else allocation_instance(int(last))
    if kind == "scenario":
        return _allocation(load_scenario(first))
    if kind != "rows":
        problem = parse_instance(origin).problem()
        if not isinstance(problem, PlacementProblem):
            return problem  # type: ignore[return-value]
        # A model has one stage count: that of the best placement, or the largest where there is none.
        best = best_placement(problem).answer
        stages = max(problem.stage_counts, default=1) if best is None else len(best.stages)
        return replace(problem, stages=stages)
    document = {**load_scenario(first).document, **ROWS[last]}
    every = document.pop("every_model", {})
    document["models"] = {name: {**model, **every} for name, model in document["models"].items()}
    return _allocation(scenario_from_mapping(document, origin))


def _allocation(scenario: ResolvedScenario) -> AllocationProblem:
    templates = obtain_library(scenario)[0]
    # Here: every run of a bench is a process that imports this package, and none needs a planner.
    from coralopt.planning.coral import allocation_problem

    return allocation_problem(scenario, templates, shared_patterns(scenario, scenario_tables(scenario)))


def _entry(path: Path, origin: str, time_limit: float) -> LibraryEntry:
    problem = _problem(origin)
    compiled: Compiled[Any] = compile_problem(problem, None, "arrays" if problem.kind == "allocation" else "pyomo")
    matrix, model = compiled.matrix, path.with_name(path.name + ".mps")
    write_model(matrix, model)
    answer, proven = _best(problem, time_limit)
    second = solve_matrix(matrix, "highs", SolveOptions(rel_gap=0.0, time_limit=time_limit, seed=0))
    proof = ["dp" if problem.kind == "placement" else "coralopt"] if proven else []
    value = None
    if answer is not None:
        x = _completed(matrix, compiled.begin(answer))
        value = matrix.objective(x)
        names = safe_names(matrix.column_names)
        write_solution(path.with_name(path.name + ".sol"), value, dict(zip(names, x.tolist(), strict=True)))
    reason = second.termination.reason
    if reason in (Reason.OPTIMAL, Reason.INFEASIBLE):
        expected = None if reason is Reason.INFEASIBLE else second.objective
        same = math.isclose(*(math.inf if v is None else v for v in (value, expected)), rel_tol=1e-6)
        if proven and not same:
            words = f"{value} by {proof[0]}, {expected} by HiGHS, both proven"
            raise WrongAnswerError(f"{path.name}, drawn by {origin}: {words}")
        proof.append("highs")
    rows, columns = matrix.shape
    return LibraryEntry(
        path.name, origin, problem.kind, rows, columns, int(matrix.integer.sum()), int(matrix.a.nnz),
        "=best=" if not proof else "=inf=" if value is None else "=opt=", value, " and ".join(proof),
        _digest(model),
    )  # fmt: skip


def _digest(model: Path) -> str:
    return hashlib.sha256(model.read_bytes()).hexdigest()


def _best(
    problem: PlacementProblem | AllocationProblem, time_limit: float
) -> tuple[Placement | Allocation | None, bool]:
    """The best answer and whether it is proven; no answer and a proof says that there is none."""
    if isinstance(problem, PlacementProblem):
        return best_placement(problem).answer, True
    try:
        result = solve_allocation(problem, options=SolveOptions(rel_gap=0.0, time_limit=time_limit, seed=0))
    except InfeasibleError:
        return None, True
    except NoSolutionError:
        return None, False
    return result.allocation, result.gap <= 1e-9


def _completed(matrix: MilpMatrix, known: Floats) -> Floats:
    """Column values with the unknown ones as good as the known ones leave them."""
    if not np.isnan(known).any():
        return known
    lower, upper = (np.where(np.isnan(known), side, known) for side in (matrix.lower, matrix.upper))
    solved = solve_matrix(replace(matrix, lower=lower, upper=upper), "highs", SolveOptions(rel_gap=0.0))
    assert solved.x is not None, "an answer that passed its check fits the model"
    return solved.x


def archive_library(folder: Path, target: Path) -> None:
    """The library's files as one ``.tar.gz`` without times and owners: equal files give equal bytes."""
    with (
        replacing(target) as part,
        part.open("wb") as stream,
        gzip.GzipFile("", "wb", fileobj=stream, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for path in sorted(folder.glob("*")):
            if path.suffix in (".mps", ".sol", ".solu", ".csv"):
                entry = tarfile.TarInfo(f"coralopt-library/{path.name}")
                entry.size = path.stat().st_size
                with path.open("rb") as content:
                    tar.addfile(entry, content)


def _read_index(folder: Path) -> dict[str, LibraryEntry]:
    """Entries by name; none without an index."""
    if not (folder / "library.csv").is_file():
        return {}
    entries = {}
    with (folder / "library.csv").open(encoding="utf-8") as stream:
        for name, origin, kind, rows, columns, integers, nonzeros, mark, value, proof, digest in [*csv.reader(stream)][
            1:
        ]:
            known = float(value) if value else None
            sizes = int(rows), int(columns), int(integers), int(nonzeros)
            entries[name] = LibraryEntry(name, origin, kind, *sizes, mark, known, proof, digest)
    return entries


def _write_index(folder: Path, entries: list[LibraryEntry]) -> None:
    table = io.StringIO()
    writer = csv.DictWriter(table, [field.name for field in fields(LibraryEntry)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(entry) for entry in entries)
    known = "".join(
        f"{entry.mark if entry.proof or entry.value is not None else '=unkn='} {entry.name}"
        + (f" {entry.value!r}\n" if entry.value is not None else "\n")
        for entry in entries
    )
    for name, text in (("library.csv", table.getvalue()), ("library.solu", known)):
        with replacing(folder / name) as part:
            part.write_text(text, encoding="utf-8")
