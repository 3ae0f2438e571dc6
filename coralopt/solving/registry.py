"""Which solver plugins there are: entry points of the group ``coralopt.solvers``, loaded on first use."""

from __future__ import annotations

import contextlib
import difflib
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import TypedDict

from coralopt.errors import SolverError, SolverNotFoundError
from coralopt.solving.backend import Backend, Capability

GROUP = "coralopt.solvers"
#: Back ends that were given as objects, by name: plans made with them can be verified in the process that made them.
_USED: dict[str, Backend] = {}
#: Back ends that a probe saw installed; nothing is uninstalled under a running process, and a probe may start programs.
_INSTALLED: set[tuple[type, str]] = set()


def _load(point: EntryPoint, argument: str = "") -> Backend:
    try:
        plugin = point.load()
    except (ImportError, AttributeError) as error:
        raise SolverNotFoundError(f"solver {point.name!r} cannot be loaded: {error}") from error
    backend: Backend
    if not argument:
        backend = plugin()
        return backend
    if not getattr(plugin, "takes_argument", False):
        raise SolverNotFoundError(f"solver {point.name!r} takes nothing behind a colon, but {argument!r} is given")
    backend = plugin(argument)
    return backend


def _plugins() -> dict[str, EntryPoint]:
    return _plugins_on(tuple(sys.path), entry_points)


@cache
def _plugins_on(_path: tuple[str, ...], points: Callable[..., EntryPoints]) -> dict[str, EntryPoint]:
    """Plugins by name, read once for each state of the path: the metadata of all packages take 20 ms to read."""
    plugins: dict[str, EntryPoint] = {}
    for point in points(group=GROUP):
        other = plugins.get(point.name)
        # The same distribution seen twice on the path is no conflict; two different plugins of one name are.
        if other is not None and other.value != point.value:
            owners = [str(p.dist.name) if p.dist is not None else p.value for p in (other, point)]
            raise SolverError(f"solver name {point.name!r} is registered twice: by {owners[0]} and {owners[1]}")
        plugins[point.name] = point
    return plugins


def solver_names() -> list[str]:
    """Names of all registered solvers, sorted; loads none of them."""
    return sorted(_plugins())


def get_backend(solver: str | Backend) -> Backend:
    """The back end of this name, or ``solver`` itself when it is one already.

    A plugin with ``takes_argument`` gets what stands behind a colon: ``pyomo:cbc``; its ``choices`` are listed.

    Raises:
        SolverNotFoundError: No plugin of this name, or one that cannot be loaded; says what there is.
    """
    if not isinstance(solver, str):
        if isinstance(solver, type) or not all(hasattr(solver, part) for part in ("name", "kind", "probe")):
            raise SolverNotFoundError(
                f"{solver!r} is no solver; give a name or an object with name, kind, probe, solve"
            )
        _USED[solver.name] = solver
        return solver
    plugins = _plugins()
    name, _, argument = solver.partition(":")
    if name not in plugins:
        near = difflib.get_close_matches(name, plugins, n=2)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise SolverNotFoundError(
            f"no solver is called {solver!r}; {hint}registered: {', '.join(sorted(plugins)) or 'none'} "
            "(see `coralopt solvers`)"
        )
    return _load(plugins[name], argument)


def require_backend(solver: str | Backend) -> Backend:
    """Like :func:`get_backend`, and refuses one whose package is not installed.

    Raises:
        SolverNotFoundError: Unknown or not installed; says what to install.
    """
    backend = get_backend(solver)
    key = type(backend), backend.name
    if key not in _INSTALLED:
        availability = backend.probe()
        if not availability.installed:
            raise SolverNotFoundError(f"solver {backend.name!r} is not installed; {availability.hint}")
        _INSTALLED.add(key)
    return backend


def backend_version(solver: str | Backend) -> str:
    """Version of the solver behind this name, which may be that of an unregistered object used in this process."""
    known = _USED.get(solver) if isinstance(solver, str) and solver not in _plugins() else None
    return get_backend(known or solver).probe().version


def _offers() -> list[tuple[str, EntryPoint, str]]:
    """(word, plugin, what stands behind the colon): every plugin, and what it lists as ``choices`` behind its colon."""
    offers = []
    for name, point in sorted(_plugins().items()):
        offers.append((name, point, ""))
        # A plugin that cannot be loaded says so where it is asked for.
        with contextlib.suppress(Exception):
            offers += [(f"{name}:{choice}", point, choice) for choice in getattr(point.load(), "choices", ())]
    return offers


def solvers_with(capability: Capability) -> list[str]:
    """Names of registered solvers that declare ``capability``; one that cannot be loaded declares nothing."""
    able = []
    for name, point, choice in _offers():
        try:
            if capability in _load(point, choice).capabilities:
                able.append(name)
        except SolverNotFoundError:
            continue
    return able


class SolverRow(TypedDict):
    """A registered solver as a row of a table; ``hint`` says what to do."""

    name: str
    kind: str
    installed: bool
    version: str
    licence: str
    capabilities: list[str]
    hint: str


def solver_listing() -> list[SolverRow]:
    """One row a registered solver, in each of its choices. A broken plugin is a row with its error, not an exception."""
    rows: list[SolverRow] = []
    for name, point, choice in _offers():
        try:
            backend = _load(point, choice)
            probe = backend.probe()
            row = SolverRow(
                name=name,
                kind=backend.kind,
                installed=probe.installed,
                version=probe.version,
                licence=probe.licence,
                capabilities=sorted(item.value for item in backend.capabilities),
                hint=probe.hint,
            )
        except Exception as error:
            # Whatever a foreign plugin does, the listing must still show the others.
            row = SolverRow(
                name=name, kind="", installed=False, version="", licence="", capabilities=[], hint=str(error)
            )
        rows.append(row)
    return rows
