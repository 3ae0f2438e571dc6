"""Options every back end understands, with one meaning each."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, Literal, cast, get_args

from coralopt.errors import OptionError

#: Value of an option in a solver's own terms.
OptionValue = bool | int | float | str
#: What a solver spends its time on.
Focus = Literal["solutions", "short"]


@dataclass(frozen=True)
class SolveOptions:
    """Options of one solve; nothing carries over into the next.

    Attributes:
        time_limit: Seconds of wall time for the solver, or ``None`` for no limit. A back end looks at the clock between
            its own steps; with ``isolate`` it is killed one second after the limit.
        rel_gap: Relative gap to stop at; by our one formula, abs(objective - bound) / abs(objective).
        abs_gap: Absolute gap to stop at, in units of the objective.
        threads: Threads of a solve, or ``None`` for one: several make results depend on timing. Searches of many solves run
            them side by side where it is ``None``.
        seed: Seed of whatever the solver randomises.
        node_limit: Branch-and-bound nodes, or ``None``.
        memory_limit: GiB, or ``None``. Back ends with the capability ``memory_limit`` stop by themselves; ``isolate``
            makes it hold for every one.
        log: Whether the solver prints its own log.
        presolve: On, off, or ``None`` for the solver's default.
        focus: How a solver spends its time, never what is optimal: ``"solutions"`` for good ones early at the price of a
            later proof, ``"short"`` without what pays in long solves only, as for small programmes by the hundred, and
            ``None`` for the solver's own balance. Back ends without such a setting ignore it.
        isolate: Whether the solve runs in a process of its own: ``time_limit`` is a hard deadline then, and the best
            incumbent outlives a crash.
        solutions: Solutions to keep, best first, of those that the solver meets; more than one needs the capability
            ``pool``.
        native: Options in the solver's own names, stronger than the common ones; an unknown one is an error.

    Raises:
        OptionError: A value of the wrong type or out of range.
    """

    time_limit: float | None = None
    rel_gap: float = 1e-4
    abs_gap: float = 1e-9
    threads: int | None = None
    seed: int = 0
    node_limit: int | None = None
    memory_limit: float | None = None
    log: bool = False
    presolve: bool | None = None
    focus: Focus | None = None
    isolate: bool = False
    solutions: int = 1
    native: Mapping[str, OptionValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("time_limit", "rel_gap", "abs_gap", "memory_limit"):
            value = getattr(self, name)
            if value is None and name in ("time_limit", "memory_limit"):
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value) or value < 0:
                raise OptionError(f"option {name} is {value!r}; it must be a number of at least 0")
        for name, least, optional in (
            ("threads", 1, True),
            ("seed", 0, False),
            ("node_limit", 0, True),
            ("solutions", 1, False),
        ):
            value = getattr(self, name)
            if value is None and optional:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
                raise OptionError(f"option {name} is {value!r}; it must be a whole number of at least {least}")
        for name, optional in (("log", False), ("presolve", True), ("isolate", False)):
            value = getattr(self, name)
            if not isinstance(value, bool) and not (value is None and optional):
                raise OptionError(f"option {name} is {value!r}; it must be true or false")
        if self.focus is not None and self.focus not in get_args(Focus):
            raise OptionError(f"option focus is {self.focus!r}; it must be 'solutions' or 'short', or left out")
        if not isinstance(self.native, Mapping):
            raise OptionError(f"option native is {self.native!r}; it must map the solver's option names to values")

    @staticmethod
    def from_mapping(data: Mapping[str, object]) -> SolveOptions:
        """Options from plain data.

        Raises:
            OptionError: An unknown name (the nearest ones are given) or a value of the wrong type.
        """
        known = [item.name for item in fields(SolveOptions)]
        for name in data:
            if name not in known:
                raise OptionError(unknown_option("option", name, known))
        # The constructor holds every value against its type.
        return SolveOptions(**cast("dict[str, Any]", dict(data)))

    @staticmethod
    def of(options: SolveOptions | Mapping[str, object] | None) -> SolveOptions:
        """Options as they are, from plain data, or the defaults."""
        return options if isinstance(options, SolveOptions) else SolveOptions.from_mapping(options or {})

    def to_mapping(self) -> dict[str, object]:
        """All options as plain data."""
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**data, "native": dict(self.native)}


def unknown_option(what: str, name: str, known: Iterable[str]) -> str:
    """The sentence for an unknown option, with the nearest known names."""
    choices = list(known)
    near = difflib.get_close_matches(str(name), choices, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(choices[:40])}"
    return f"unknown {what} {name!r}; {hint}"


def checked_native(
    solver: str, native: Mapping[str, OptionValue], known: Iterable[str], current: Callable[[str], object]
) -> dict[str, OptionValue]:
    """Native options held against the solver's own, with whole numbers made fractional where it wants those.

    Solvers treat a wrong name or type in their own ways, down to ignoring it; here both are errors.

    Args:
        solver: Its name in messages, ``"HiGHS"``.
        native: Options asked for.
        known: Names of all its options.
        current: The value that an option has now, which tells its type.

    Raises:
        OptionError: An unknown name (the nearest ones are given) or a value of the wrong type.
    """
    names = list(known)
    checked: dict[str, OptionValue] = {}
    for name, value in native.items():
        if name not in names:
            raise OptionError(unknown_option(f"{solver} option", name, names))
        expected = type(current(name))
        if expected is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        # Some wrappers show a whole number as an enumeration of their own, and take either.
        if type(value) is not expected and not (type(value) is int and issubclass(expected, IntEnum)):
            raise OptionError(f"{solver} option {name!r} takes a {expected.__name__}, not {value!r}")
        checked[name] = value
    return checked
