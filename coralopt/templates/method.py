"""How a library is to be built: by which solver, from which sample of the node sets, by which executor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from coralopt.errors import OptionError


@dataclass(frozen=True)
class BuildMethod:
    """Who derives the templates, and of how many node sets.

    Attributes:
        solver: ``"dp"`` sweeps all node sets at once; any matrix back end goes node set by node set.
        formulation: Placement formulation for a matrix back end: ``"tight"`` (default) or ``"paper"``.
        options: Common solver options; the gap asked for is 1e-6 unless given.
        sample: Number of node sets drawn from all of the scenario's, or ``None`` for every one.
        seed: Seed of that draw.

    Raises:
        OptionError: A sample of less than one node set, or a formulation for the dynamic programme.
    """

    solver: str = "dp"
    formulation: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    sample: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.sample is not None and self.sample < 1:
            raise OptionError(f"sample is {self.sample}; it must be at least 1 node set")
        if self.solver == "dp" and self.formulation is not None:
            raise OptionError(
                f"formulation {self.formulation!r} goes with a MILP solver; the dynamic programme (dp) has none"
            )

    @property
    def swept(self) -> bool:
        """Whether one sweep answers a whole model phase."""
        return self.solver == "dp"

    @property
    def name(self) -> str:
        """Short name that tells methods apart in file names: ``"highs-paper-sample100-seed0"``; empty for the default."""
        parts = [] if self.swept else [self.solver, self.formulation or "tight"]
        parts += [] if self.sample is None else [f"sample{self.sample}", f"seed{self.seed}"]
        return "-".join(parts)

    def to_mapping(self) -> dict[str, object]:
        """As plain data, for the library's metadata."""
        return {
            "solver": self.solver,
            "formulation": None if self.swept else self.formulation or "tight",
            "options": dict(self.options),
            "sample": self.sample,
            "seed": self.seed if self.sample is not None else None,
        }

    def key(self) -> str:
        """Text that is equal for two methods only if they derive the same templates in the same way."""
        return method_key(self.to_mapping())


def method_key(method: Mapping[str, object]) -> str:
    """:meth:`BuildMethod.key` of a method as the metadata of a library has it."""
    return json.dumps({name: value for name, value in method.items() if name != "largest_gap"}, sort_keys=True)


def method_words(method: Mapping[str, object]) -> str:
    """Such a method in words."""
    return ", ".join(f"{name} {value}" for name, value in method.items() if value and name != "largest_gap")
