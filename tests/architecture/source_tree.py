"""The source as the architecture tests see it: modules, what they import, their functions; read, never imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Source roots: folder below the repository, and the folder that its dotted names begin in.
SOURCES = ((ROOT / "coralopt", ROOT), (ROOT / "solvers", ROOT / "solvers"))


@dataclass(frozen=True)
class Module:
    """One source file.

    Attributes:
        name: Dotted name, ``coralopt.allocation.problem``; a package has that of its folder.
        path: The file.
        tree: Its syntax tree.
    """

    name: str
    path: Path
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def functions(self) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """Every function and method with its dotted place in the file."""

        def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{prefix}{child.name}", child
                    yield from walk(child, f"{prefix}{child.name}.")
                elif isinstance(child, ast.ClassDef):
                    yield from walk(child, f"{prefix}{child.name}.")
                else:
                    yield from walk(child, prefix)

        return walk(self.tree, "")


@cache
def modules() -> dict[str, Module]:
    """All modules of the library and the plugins by name."""
    every = {}
    for folder, start in SOURCES:
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(start).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            every[name] = Module(name, path, ast.parse(path.read_text(encoding="utf-8")))
    return every


@cache
def imports() -> dict[str, frozenset[str]]:
    """Module -> the modules of this project that it imports, anywhere in the file: on top, in functions, for types only.

    ``from package import name`` counts as the submodule ``package.name`` where there is one, else as the package. A
    package's ``__init__`` that a submodule's name passes through does not count: it only re-exports.
    """
    known = modules()
    graph: dict[str, frozenset[str]] = {}
    for name, module in known.items():
        targets: set[str] = set()
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names if alias.name in known}
            elif isinstance(node, ast.ImportFrom) and node.module in known and not node.level:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    targets.add(inner if inner in known else node.module)
        graph[name] = frozenset(targets - {name})
    return graph


def circles(graph: dict[str, frozenset[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other, by size, largest first."""
    import networkx as nx

    directed = nx.DiGraph([(source, target) for source, targets in graph.items() for target in targets])
    groups = [sorted(group) for group in nx.strongly_connected_components(directed) if len(group) > 1]
    return sorted(groups, key=lambda group: (-len(group), group))
