"""Back ends that do not take what a problem needs."""

from __future__ import annotations

import numpy as np

from coralopt.errors import UnsupportedError
from coralopt.solving.backend import Capability, MatrixBackend, Plugin
from coralopt.solving.matrix import MilpMatrix
from coralopt.solving.registry import solvers_with


def unsupported(backend: Plugin, lacks: str, capability: Capability) -> UnsupportedError:
    """The error to raise, which names the back ends that can."""
    able = ", ".join(solvers_with(capability)) or "none is registered"
    return UnsupportedError(f"solver {backend.name!r} {lacks}; these do: {able}")


def refuse_kind(matrix: MilpMatrix, backend: MatrixBackend) -> None:
    """Refuse columns that a back end does not declare to take."""
    if Capability.MILP in backend.capabilities:
        return
    if Capability.BOXED not in backend.capabilities:
        if matrix.integer.any():
            raise unsupported(backend, "takes no integer columns", Capability.MILP)
        return
    whole = matrix.integer & np.isfinite(matrix.lower) & np.isfinite(matrix.upper)
    if not whole.all():
        first = matrix.column_names[int(whole.argmin())]
        raise unsupported(backend, f"takes integer columns between finite bounds only, not {first}", Capability.MILP)
