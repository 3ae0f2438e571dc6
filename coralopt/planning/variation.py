"""Changes of a scenario by path, and grids of them.

A change has a path into the scenario document, ``models.qwen3-32b.slo.tpot_ms``, or is one of three factors: ``price.X`` of
every price of a GPU type, a node configuration or ``all``; ``demand.X`` of all rates and ``slo.X`` of both latency limits of
a model or of ``all``.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from coralopt.errors import OptionError, ScenarioError
from coralopt.scenario import ResolvedScenario, scenario_from_mapping
from coralopt.scenario.file.requests import SLO_ALIASES
from coralopt.scenario.mistakes import suggest

#: Heads of paths that are factors.
FACTORS = ("price", "demand", "slo")
#: Most points of a grid.
MOST_POINTS = 20_000
#: Path of a change -> its value.
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
    added = []
    for path, value in values.items():
        head, _, name = path.partition(".")
        if head in ("demand", "slo") and head not in document:
            _scale(document, head, name, value)
        elif head != "price":
            added += _set(document, path, value)
    try:
        changed = scenario_from_mapping(document, scenario.name)
    except ScenarioError as error:
        if not added:
            raise
        raise OptionError(f"{added[0]}; as a new section: {error.mistakes[0]}") from error
    for path, value in values.items():
        head, _, name = path.partition(".")
        if head == "price":
            changed = _with_prices(changed, name, value)
    return changed


def _set(document: dict[str, Any], path: str, value: float) -> list[str]:
    """Put a value at a dotted path; names may hold dots themselves.

    Returns:
        What is wrong with the path if the scenario cannot have the section that was added for it.

    Raises:
        OptionError: A part of the path that holds a value.
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
        wrong = []
        if "." in last or (name and rest != name):
            known = suggest(rest.partition(".")[0], place)
            wrong = [
                f"--vary {path}: the scenario has no {path!r} to change, from {rest!r} on ({known}); factors are "
                "price.X, demand.MODEL and slo.MODEL"
            ]
        if name and rest != name:
            raise OptionError(wrong[0])
        # A name that the scenario leaves out gets its value; one that it cannot have is refused when it is read.
        *sections, last = last.split(".")
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
        return wrong


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
