"""The structure that docs/architecture.md promises, read off the source."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from source_tree import ROOT, circles, imports, modules

from coralopt.planning.promise.oracle import SIMULATOR_MODULES
from coralopt.simulation.compiled import COMPILED_TOGETHER

SIMULATOR = "coralopt.simulation"

#: Most parameters of a function, ``self`` and ``cls`` not counted.
MOST_PARAMETERS = 8
#: Functions that may have more, and why.
KERNEL = "compiled by numba: plain arrays go in, a grouping would be one more compiled type for one call"
MORE_PARAMETERS = {
    "coralopt.allocation.bounds.kernels:extend": KERNEL,
    "coralopt.allocation.bounds.kernels:sweep_forced": KERNEL,
}
#: Most parameters, results and attributes that are annotated with a bare ``Any``.
MOST_ANY = 80


def room(module: str) -> str:
    """``coralopt.allocation`` for everything below it; a plugin is one room; modules at the top are rooms of their own."""
    return ".".join(module.split(".")[:2]) if module.startswith("coralopt") else module.split(".")[0]


def test_no_module_imports_itself_through_others() -> None:
    """Imports in functions and for types count: such a circle is one in the reader's head, too."""
    assert circles(imports()) == []


def test_no_room_imports_itself_through_others() -> None:
    graph: dict[str, set[str]] = {}
    for source, targets in imports().items():
        graph.setdefault(room(source), set()).update(room(target) for target in targets if room(target) != room(source))
    assert circles({source: frozenset(targets) for source, targets in graph.items()}) == []


def test_floors_import_only_what_lies_below() -> None:
    """The table of docs/architecture.md lists the floors from the ground up."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    order = re.findall(r"^\| `coralopt/([a-z_]+)(?:/|\.py)` \|", text, re.M)
    assert len(order) == len(set(order))
    floors = {f"coralopt.{name}": position for position, name in enumerate(order)}
    rooms = {room(name) for name in modules() if name.startswith("coralopt.")}
    unlisted = rooms - set(floors) - {"coralopt.__main__", "coralopt._version"}
    assert not unlisted, f"docs/architecture.md does not list {sorted(unlisted)}"
    upward = [
        f"{source} imports {target}"
        for source, targets in imports().items()
        for target in targets
        if room(source) in floors and room(target) in floors and floors[room(target)] > floors[room(source)]
    ]
    assert not upward


def reached(start: str) -> set[str]:
    """A module and all in its own room that it imports, through others too."""
    seen, ahead = set[str](), [start]
    while ahead:
        module = ahead.pop()
        if module not in seen:
            seen.add(module)
            ahead += [target for target in imports()[module] if room(target) == room(start)]
    return seen


def test_kept_results_are_made_anew_when_the_simulator_changes() -> None:
    """What kept machine code and kept verdicts depend on is listed by hand: a module that is left out leaves them stale."""
    compiled = {name for name, targets in imports().items() if f"{SIMULATOR}.compiled" in targets}
    listed = {f"{SIMULATOR}.{name}" for name in COMPILED_TOGETHER}
    assert listed == set.union(*map(reached, compiled))
    assert {f"{SIMULATOR}.{name}" for name in SIMULATOR_MODULES} == reached(f"{SIMULATOR}.groups")


def test_only_plugins_import_solver_packages() -> None:
    packages = {"highspy", "pyscipopt", "gurobipy"}
    wrong = []
    for module in modules().values():
        if not module.name.startswith("coralopt."):
            continue
        for node in ast.walk(module.tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            if any(name.split(".")[0] in packages for name in names):
                wrong.append(f"{module.name}:{node.lineno}")
    assert not wrong


def test_functions_have_few_parameters() -> None:
    """What travels together is a dataclass. An exception has a reason, and goes from the list when it is not needed."""
    counted = {}
    for module in modules().values():
        for place, function in module.functions():
            a = function.args
            names = [arg.arg for arg in [*a.posonlyargs, *a.args, *a.kwonlyargs] if arg.arg not in ("self", "cls")]
            if len(names) > MOST_PARAMETERS:
                counted[f"{module.name}:{place}"] = len(names)
    unreasoned = {place: number for place, number in counted.items() if place not in MORE_PARAMETERS}
    assert not unreasoned
    assert set(MORE_PARAMETERS) <= set(counted), "reasons for functions that do not need one any more"


def test_any_is_rare() -> None:
    """A bare Any turns type checking off for everything that comes out of it."""
    places = []
    for module in modules().values():
        for node in ast.walk(module.tree):
            annotation = node.annotation if isinstance(node, ast.arg | ast.AnnAssign) else None
            annotation = node.returns if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else annotation
            if isinstance(annotation, ast.Name) and annotation.id == "Any":
                places.append(f"{module.name}:{annotation.lineno}")
    assert len(places) <= MOST_ANY, (
        f"{len(places)}, by module: {Counter(p.split(':')[0] for p in places).most_common()}"
    )


def test_classes_have_names_of_their_own() -> None:
    names = Counter(
        node.name
        for module in modules().values()
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, number in names.items() if number > 1] == []
