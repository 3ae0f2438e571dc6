"""One run of a bench, and the settings that all its runs share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from coralopt.benchmark.arms import Arm
from coralopt.benchmark.instances import Instance
from coralopt.errors import BenchmarkError
from coralopt.solving import SolveOptions


@dataclass(frozen=True)
class Settings:
    """What every run of one results file has in common.

    Attributes:
        time_limit: Seconds for one run, told to the solver; a run that takes longer in all has not solved anything.
        grace: Seconds after the limit until the process is killed; building a large model must fit in.
        rel_gap: Relative gap to prove.
        threads: Threads of a solver.
        permute: Whether seeds above 0 also permute rows and columns.
        memory_limit: GiB of a process, ``None`` for none.
        options: More common solver options, for a tuned bench.

    Raises:
        BenchmarkError: A value out of range.
        OptionError: A wrong solver option.
    """

    time_limit: float = 30.0
    grace: float = 15.0
    rel_gap: float = 1e-4
    threads: int = 1
    permute: bool = True
    memory_limit: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("time_limit", "grace"):
            value = getattr(self, name)
            if not 0 < value < 1e7:
                raise BenchmarkError(f"{name} is {value}; it must be a positive number of seconds")
        if self.memory_limit is not None and not self.memory_limit > 0:
            raise BenchmarkError(f"memory_limit is {self.memory_limit}; it must be a positive number of GiB")
        taken = sorted(set(self.options) & {"time_limit", "rel_gap", "threads", "seed", "log"})
        if taken:
            raise BenchmarkError(f"option {taken[0]} belongs to the bench itself; use its own flag")
        self.solve_options(0)

    def solve_options(self, seed: int) -> SolveOptions:
        """The options of a run with this seed."""
        return SolveOptions.from_mapping(
            {
                **self.options,
                "time_limit": self.time_limit,
                "rel_gap": self.rel_gap,
                "threads": self.threads,
                "seed": seed,
            }
        )

    def plain(self) -> dict[str, Any]:
        """As plain data, as it stands in every row."""
        return {**asdict(self), "options": dict(self.options)}


@dataclass(frozen=True)
class BenchTask:
    """One instance, one arm, one seed."""

    instance: Instance
    arm: Arm
    seed: int

    @property
    def key(self) -> str:
        """What the run is called in the results file."""
        return f"{self.instance.name} {self.arm.name} #{self.seed}"


@dataclass(frozen=True)
class RunJob:
    """What the process of one run reads.

    Attributes:
        problem: File of the problem.
        arm: How to solve it.
        seed: Of the solver and, above 0, of the order of rows and columns.
        permute: Whether it also permutes them.
        options: Common solver options.
    """

    problem: str
    arm: Arm
    seed: int
    permute: bool
    options: Mapping[str, Any]


def make_tasks(instances: Sequence[Instance], arms: Iterable[Arm], seeds: Iterable[int]) -> list[BenchTask]:
    """All runs, those of one instance next to each other, so that drift of the machine hits every arm alike."""
    wanted, chosen = list(seeds), list(arms)
    return [
        BenchTask(instance, arm, seed)
        for instance in instances
        for seed in wanted
        for arm in chosen
        if arm.takes(instance.kind)
    ]
