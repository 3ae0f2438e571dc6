"""Kept machine code: it loads without what compiling needs, and gives what compiled code gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coralopt.compiling import compiled, loads_alone

KERNEL = """
import sys
import numpy as np
from coralopt.compiling import compiled

@compiled()
def twice(values):
    result = np.empty_like(values)
    for k in range(len(values)):
        result[k] = 2 * values[k] + {added}
    return result

found = twice(np.arange(4.0))
hits = sum(twice.stats.cache_hits.values())
print(found.tolist(), hits, "numba.np.npyimpl" in sys.modules, "scipy.linalg" in sys.modules)
"""


def run(folder: Path, added: int = 1) -> str:
    """What a new process says that calls a kernel kept in this folder."""
    path = folder / "kernel.py"
    source = KERNEL.format(added=added)
    if not path.exists() or path.read_text(encoding="utf-8") != source:
        path.write_text(source, encoding="utf-8")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "kept")}
    return subprocess.run(
        [sys.executable, str(path)], env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_kept_code_loads_without_what_compiling_needs(tmp_path: Path) -> None:
    """The first process compiles and keeps, the second loads; another source is compiled anew."""
    assert run(tmp_path).startswith("[1.0, 3.0, 5.0, 7.0] 0 True")
    assert run(tmp_path) == "[1.0, 3.0, 5.0, 7.0] 1 False False"
    assert run(tmp_path, added=10).startswith("[10.0, 12.0, 14.0, 16.0] 0 True")


def test_a_warm_plan_loads_nothing_that_compiles(tmp_path: Path) -> None:
    """The kernels of a plan and of its verification name no module that brings all of Numba or scipy's linear algebra."""
    program = (
        "import sys; from coralopt import load_scenario; from coralopt.plan.verify import verify_plan\n"
        "from coralopt.planning import PlanRequest, cheapest_of_one_gpu, get_planner\n"
        "request = PlanRequest(load_scenario('tiny')); outcome = get_planner('coral').plan(request)\n"
        "cheapest_of_one_gpu(request, outcome); assert verify_plan(outcome.plan).ok\n"
        "print([name for name in ('scipy.linalg', 'numba.np.npyimpl', 'numba.np.arraymath') if name in sys.modules])"
    )
    environment = {**os.environ, "CORALOPT_CACHE": str(tmp_path)}
    for _ in range(2):
        output = subprocess.run(
            [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
        ).stdout
    assert output.strip() == "[]"


def test_other_insides_of_numba_change_nothing() -> None:
    """What has no cache, or one of another kind, stays as it is."""

    class Other:
        _cache = object()

    for dispatcher in (object(), Other()):
        assert loads_alone(dispatcher) is dispatcher
    assert not hasattr(Other._cache, "load_overload")


@pytest.mark.parametrize("options", [{}, {"nogil": True}, {"parallel": True}])
def test_options_reach_numba(options: dict[str, bool]) -> None:
    """What is compiled has the options that were given."""

    def double(value: float) -> float:
        return 2 * value

    assert compiled(**options)(double).targetoptions.items() >= options.items()  # type: ignore[attr-defined]
