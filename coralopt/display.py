"""How values show themselves in notebooks and as data frames, and what a share of requests looks like everywhere.

A value on any floor says only that it can be shown; what it looks like is registered from the floor of reports, which is
imported when the first value is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from coralopt.errors import CoraloptError

if TYPE_CHECKING:
    import pandas

V = TypeVar("V")
Columns = Mapping[str, Iterable[object]]

#: What stands for a value that is not known.
NOTHING = "-"

_renderers: dict[type, Callable[[object], str]] = {}
_columns: dict[type, Callable[[object], Columns]] = {}
_loaders: list[Callable[[], object]] = []


def percent(share: float | None) -> str:
    """A share with two digits of a percent, cut off: nothing below 1, or below what is asked for, may look like it."""
    if share is None or math.isnan(share):
        return NOTHING
    return f"{math.floor(share * 1e4 + 1e-9) / 100:.2f} %"


def provide(load: Callable[[], object]) -> None:
    """Name what registers the renderers; called once, when the first value is shown."""
    _loaders.append(load)


def register(kind: type[V], html: Callable[[V], str], columns: Callable[[V], Columns] | None = None) -> None:
    """Say how values of a kind look.

    Args:
        kind: The class.
        html: A value as HTML.
        columns: A value as columns of one length, for classes with :class:`Tabular`.
    """
    _renderers[kind] = html  # type: ignore[assignment]
    if columns is not None:
        _columns[kind] = columns  # type: ignore[assignment]


class Shown:
    """A value that notebooks show as HTML."""

    def _repr_html_(self) -> str:
        _load()
        return _renderers[type(self)](self)


class Tabular(Shown):
    """A value that is a table, too."""

    def to_frame(self) -> pandas.DataFrame:
        """The value as a pandas data frame.

        Raises:
            CoraloptError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise CoraloptError(f"to_frame() needs pandas ({error}); pip install 'coralopt[notebook]'") from error
        _load()
        return pandas.DataFrame(dict(_columns[type(self)](self)))


def _load() -> None:
    while _loaders:
        _loaders.pop()()
