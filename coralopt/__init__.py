"""coralopt: which GPU nodes to rent and how to split every LLM across them, at provably minimal cost.

    >>> import coralopt
    >>> scenario = coralopt.load_scenario("tiny")
    >>> plan = coralopt.plan_scenario(scenario)
    >>> coralopt.verify_plan(plan).ok
    True

The public names below are loaded on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coralopt import display
from coralopt._version import __version__

if TYPE_CHECKING:
    from coralopt.errors import CoraloptError
    from coralopt.plan import Plan
    from coralopt.plan.verify import verify_plan
    from coralopt.planning import PlanRequest, plan_scenario
    from coralopt.scenario import load_scenario, scenario_from_mapping
    from coralopt.solving.options import SolveOptions
    from coralopt.solving.solve import solve
    from coralopt.templates import build_library, load_library


def _place_for_kernels() -> None:
    """Compiled kernels need a folder: where neither the package nor the user's cache can be written to, one for this run.

    Numba looks beside the module, then in the user's cache, and refuses to compile where it can write to neither.
    """
    places = [Path(__file__).resolve().parent]
    with contextlib.suppress(RuntimeError):  # who has no home
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()
        places.append(next(place for place in (cache, *cache.parents) if os.access(place, os.F_OK)))
    if "NUMBA_CACHE_DIR" not in os.environ and not any(
        place.is_dir() and os.access(place, os.W_OK) for place in places
    ):
        with contextlib.suppress(OSError):
            os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp(prefix="coralopt-kernels-")
            atexit.register(shutil.rmtree, os.environ["NUMBA_CACHE_DIR"], ignore_errors=True)


_place_for_kernels()
_HOME = {
    "CoraloptError": "coralopt.errors",
    "Plan": "coralopt.plan",
    "PlanRequest": "coralopt.planning",
    "SolveOptions": "coralopt.solving",
    "build_library": "coralopt.templates",
    "load_library": "coralopt.templates",
    "load_scenario": "coralopt.scenario",
    "plan_scenario": "coralopt.planning",
    "scenario_from_mapping": "coralopt.scenario",
    "solve": "coralopt.solving",
    "verify_plan": "coralopt.plan.verify",
}

__all__ = [
    "CoraloptError",
    "Plan",
    "PlanRequest",
    "SolveOptions",
    "__version__",
    "build_library",
    "load_library",
    "load_scenario",
    "plan_scenario",
    "scenario_from_mapping",
    "solve",
    "verify_plan",
]


# What values look like in notebooks is known to the floor of reports; it is imported when the first one is shown.
display.provide(lambda: importlib.import_module("coralopt.report.notebook"))


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'coralopt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
