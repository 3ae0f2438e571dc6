"""Instances by name: one short line says everything that decides a problem, so one line replays it.

    placement:gpt-oss-120b/prefill:nodes=5:seed=3
    allocation:extended:columns=10000:supply=scarce:seed=1
    file:folder/afiro.mps

A *pattern* stands for many of them: lists (``nodes=3,5``), ranges (``seed=0..4``), and ``*`` in the model phase or the path.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from coralopt.allocation import AllocationProblem
from coralopt.benchmark.draw_allocation import allocation_problem
from coralopt.benchmark.draw_placement import placement_problem, scenario_of
from coralopt.benchmark.files import FileInstance, expand_files, is_file_pattern
from coralopt.errors import BenchmarkError
from coralopt.placement import PlacementProblem
from coralopt.solving import unknown_option

#: Supplies that an allocation instance may have.
SUPPLIES = ("ample", "scarce")
#: Suite -> instance patterns.
SUITES: Mapping[str, tuple[str, ...]] = {
    "placement": ("placement:*/prefill:nodes=3,5,7:seed=0", "placement:*/decode:nodes=4,6,8:seed=0"),
    "allocation": ("allocation:extended:columns=1000,10000,100000:supply=ample,scarce:seed=0",),
    "small": ("placement:*:nodes=2:seed=0:scenario=tiny", "allocation:tiny:columns=40:supply=ample,scarce:seed=0"),
}


@dataclass(frozen=True)
class PlacementInstance:
    """One replica on a node set drawn by seed, with the real throughput tables of a scenario.

    Attributes:
        model_phase: ``"gpt-oss-120b/prefill"``.
        nodes: Nodes of the node set.
        seed: Of the draw.
        scenario: Where the tables and node configurations come from.
    """

    model_phase: str
    nodes: int
    seed: int = 0
    scenario: str = "extended"

    kind: ClassVar[str] = "placement"

    @property
    def name(self) -> str:
        scenario = "" if self.scenario == "extended" else f":scenario={self.scenario}"
        return f"placement:{self.model_phase}:nodes={self.nodes}:seed={self.seed}{scenario}"

    @property
    def size(self) -> str:
        """What instances of like difficulty have in common."""
        return f"{self.nodes} nodes"

    def problem(self) -> PlacementProblem:
        """The placement problem; see :mod:`coralopt.benchmark.draw_placement`."""
        return placement_problem(self.scenario, self.model_phase, self.nodes, self.seed)


@dataclass(frozen=True)
class AllocationInstance:
    """Columns drawn by seed from a template library.

    Attributes:
        source: A scenario whose library is drawn from, or ``"synthetic"``.
        columns: Usable pairs (template, region), up to a few.
        supply: ``"ample"`` or ``"scarce"``.
        seed: Of the draw.
    """

    source: str
    columns: int
    supply: str = "ample"
    seed: int = 0

    kind: ClassVar[str] = "allocation"

    @property
    def name(self) -> str:
        return f"allocation:{self.source}:columns={self.columns}:supply={self.supply}:seed={self.seed}"

    @property
    def size(self) -> str:
        """What instances of like difficulty have in common."""
        return f"{self.columns:,} columns, {self.supply}"

    def problem(self) -> AllocationProblem:
        """The allocation problem; see :mod:`coralopt.benchmark.draw_allocation`."""
        return allocation_problem(self.source, self.columns, self.supply, self.seed)


Instance = PlacementInstance | AllocationInstance | FileInstance


def parse_instance(text: str) -> Instance:
    """The one instance that ``text`` names.

    Raises:
        BenchmarkError: Not an instance, or a pattern that stands for several.
    """
    instances = expand(text)
    if len(instances) != 1:
        raise BenchmarkError(f"{text!r} stands for {len(instances)} instances; name one")
    return instances[0]


def expand(pattern: str) -> list[Instance]:
    """All instances that a pattern stands for, in order.

    Raises:
        BenchmarkError: What is wrong with the pattern, with the choices.
    """
    if is_file_pattern(pattern):
        return list(expand_files(pattern))
    kind, _, rest = pattern.partition(":")
    first, *parts = rest.split(":")
    if kind not in ("placement", "allocation") or not first:
        raise BenchmarkError(
            f"{pattern!r} is no instance; write placement:MODEL/PHASE:nodes=5:seed=0, "
            "allocation:SCENARIO:columns=1000:supply=ample:seed=0 or the path of an LP or MPS file"
        )
    known = ("nodes", "seed", "scenario") if kind == "placement" else ("columns", "supply", "seed")
    values: dict[str, list[str]] = {}
    for part in parts:
        name, equals, text = part.partition("=")
        if not equals:
            raise BenchmarkError(f"{pattern!r}: {part!r} is not of the form NAME=VALUE")
        if name not in known:
            raise BenchmarkError(f"{pattern!r}: {unknown_option('part', name, known)}")
        values[name] = text.split(",")
    size = known[0]
    if size not in values:
        raise BenchmarkError(f"{pattern!r} does not say {size}=...")
    seeds = _whole(pattern, "seed", values.get("seed", ["0"]), least=0)
    if kind == "placement":
        nodes = _whole(pattern, size, values[size], least=1)
        return [
            PlacementInstance(*item, scenario)
            for scenario in values.get("scenario", ["extended"])
            for item in itertools.product(_matching(pattern, first, scenario), nodes, seeds)
        ]
    supplies = values.get("supply", ["ample"])
    for supply in supplies:
        if supply not in SUPPLIES:
            raise BenchmarkError(f"{pattern!r}: supply is {supply!r}; choose from {', '.join(SUPPLIES)}")
    columns = _whole(pattern, size, values[size], least=10)
    return [AllocationInstance(*item) for item in itertools.product(first.split(","), columns, supplies, seeds)]


def _matching(pattern: str, phases: str, scenario: str) -> list[str]:
    """The model phases of a scenario that a list of wildcards stands for."""
    keys = [phase.key for phase in scenario_of(scenario).model_phases]
    matching = [key for key in keys if any(fnmatch.fnmatchcase(key, part) for part in phases.split(","))]
    if not matching:
        raise BenchmarkError(f"{pattern!r}: {unknown_option(f'model phase of {scenario}', phases, keys)}")
    return matching


def expand_all(patterns: Iterable[str]) -> list[Instance]:
    """All instances of several patterns, each once."""
    return list(dict.fromkeys(instance for pattern in patterns for instance in expand(pattern)))


def _whole(pattern: str, name: str, items: list[str], least: int) -> list[int]:
    """``["3..5", "8"]`` -> [3, 4, 5, 8]."""
    numbers: list[int] = []
    for item in items:
        low, dots, high = item.partition("..")
        try:
            first = int(low)
            last = int(high) if dots else first
        except ValueError:
            raise BenchmarkError(
                f"{pattern!r}: {name} is {item!r}; write a whole number or a range like 3..8"
            ) from None
        if first < least or last < first:
            raise BenchmarkError(f"{pattern!r}: {name} is {item!r}; it must be a rising range from {least} on")
        numbers += range(first, last + 1)
    return numbers
