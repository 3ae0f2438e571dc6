"""Which planners there are: those of coralopt, and those of other packages by the entry points ``coralopt.planners``.

An entry point names a callable without arguments that returns a :class:`~coralopt.planning.request.Planner`.
"""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import EntryPoint, entry_points

from coralopt.errors import OptionError
from coralopt.planning.request import Planner

GROUP = "coralopt.planners"

#: Our own planners: name -> module and class; loaded on first use. The order is that of tables.
BUILTIN: dict[str, tuple[str, str]] = {
    "coral": ("coralopt.planning.coral", "CoralPlanner"),
    "homo": ("coralopt.planning.rivals.without_solver", "HomoPlanner"),
    "cauchy": ("coralopt.planning.rivals.cauchy", "CauchyPlanner"),
    "melange": ("coralopt.planning.rivals.melange_planner", "MelangePlanner"),
    "single-best": ("coralopt.planning.rivals.without_solver", "SingleBestPlanner"),
    "random": ("coralopt.planning.rivals.without_solver", "RandomPlanner"),
    "helix": ("coralopt.planning.rivals.pool_planners", "HelixPlanner"),
    "hexgen": ("coralopt.planning.rivals.pool_planners", "HexgenPlanner"),
}


def _others() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in BUILTIN}


def planner_names() -> list[str]:
    """Names of all planners; loads none of them."""
    return [*BUILTIN, *sorted(_others())]


def get_planner(name: str | Planner) -> Planner:
    """The planner of this name, or ``name`` itself when it is one already.

    Raises:
        OptionError: There is none, or another package's cannot be loaded; says what there is.
    """
    if not isinstance(name, str):
        return name
    if name in BUILTIN:
        module, kind = BUILTIN[name]
        planner: Planner = getattr(importlib.import_module(module), kind)()
        return planner
    others = _others()
    if name in others:
        try:
            foreign: Planner = others[name].load()()
        except (ImportError, AttributeError) as error:
            raise OptionError(f"planner {name!r} cannot be loaded: {error}") from error
        return foreign
    near = difflib.get_close_matches(name, planner_names(), n=2)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise OptionError(f"no planner is called {name!r}; {hint}there are: {', '.join(planner_names())}")
