"""Which solver plugins there are: entry points of the group ``coralopt.solvers``, loaded on first use."""

from __future__ import annotations

import difflib
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from coralopt.errors import SolverError, SolverNotFoundError

GROUP = "coralopt.solvers"


def _plugins() -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        other = found.get(point.name)
        # The same distribution seen twice on the path is no conflict; two different plugins of one name are.
        if other is not None and other.value != point.value:
            owners = [str(p.dist.name) if p.dist is not None else p.value for p in (other, point)]
            raise SolverError(f"solver name {point.name!r} is registered twice: by {owners[0]} and {owners[1]}")
        found[point.name] = point
    return found


def solver_names() -> list[str]:
    """Names of all registered solvers, sorted; loads none of them."""
    return sorted(_plugins())


def get_backend(solver: Any) -> Any:
    """The back end of this name, or ``solver`` itself when it is one already.

    Raises:
        SolverNotFoundError: No plugin of this name, or one that cannot be loaded; says what there is.
    """
    if not isinstance(solver, str):
        return solver
    plugins = _plugins()
    if solver not in plugins:
        near = difflib.get_close_matches(solver, plugins, n=2)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise SolverNotFoundError(
            f"no solver is called {solver!r}; {hint}registered: {', '.join(sorted(plugins)) or 'none'} "
            "(see `coralopt solvers`)"
        )
    try:
        backend = plugins[solver].load()()
    except (ImportError, AttributeError) as error:
        raise SolverNotFoundError(f"solver {solver!r} cannot be loaded: {error}") from error
    return backend


def require_backend(solver: Any) -> Any:
    """Like :func:`get_backend`, and refuses one whose package is not installed.

    Raises:
        SolverNotFoundError: Unknown or not installed; says what to install.
    """
    backend = get_backend(solver)
    availability = backend.probe()
    if not availability.installed:
        raise SolverNotFoundError(f"solver {backend.name!r} is not installed; {availability.hint}")
    return backend


def backend_version(solver: Any) -> str:
    """Version of the solver behind this name."""
    return str(get_backend(solver).probe().version)


def solvers_with(capability: Any) -> list[str]:
    """Names of registered solvers that declare ``capability``."""
    return [name for name in solver_names() if capability in get_backend(name).capabilities]


def solver_listing() -> list[dict[str, Any]]:
    """One row a registered solver: name, kind, installed, version, licence, capabilities, what to do."""
    rows = []
    for name in solver_names():
        try:
            backend = get_backend(name)
            probe = backend.probe()
            rows.append(
                {
                    "name": name,
                    "kind": backend.kind,
                    "installed": probe.installed,
                    "version": probe.version,
                    "licence": probe.licence,
                    "capabilities": sorted(item.value for item in backend.capabilities),
                    "hint": probe.hint,
                }
            )
        except SolverNotFoundError as error:
            rows.append(
                {
                    "name": name,
                    "kind": "unknown",
                    "installed": False,
                    "version": "",
                    "licence": "",
                    "capabilities": [],
                    "hint": str(error),
                }
            )
    return rows
