"""Deliberate errors, one at a time, and whether the tests see them: ``make mutants PACKAGE=solving SAMPLE=20``.

A sample of places in a package is drawn by seed. At each place one small error is put in: a comparison turned, a sign
flipped, a number off by one, a branch never or always taken, a statement left out. The package's own tests then run against
a copy of the tree with that error. An error that they pass is a *survivor*: either a test is missing, or the code does
not matter. The working tree is never changed.

Numbers are of the sample: with 20 of 20 caught, 95 % confidence says that at least 86 % of all would be.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("coralopt", "solvers", "tests", "docs", "benchmarks", "pyproject.toml", "README.md", "Makefile")
#: Tests of packages whose tests are not in the folder of the same name.
TESTS = {
    "coralopt_dp": ("solvers", "templates"),
    "coralopt_highs": ("solvers",),
    "coralopt_scip": ("solvers",),
    "coralopt_gurobi": ("solvers",),
    "coralopt_pyomo": ("solvers",),
    "plan": ("plan", "planning/test_operations.py"),
    "report": ("cli",),
    "scenario": (
        "scenario",
        "plan/test_classes.py",
        "cli/test_new.py",
        "catalog/test_price_files.py",
        "planning/test_operations.py",
    ),
    "templates": ("templates", "planning/test_on_demand.py"),
    "throughput": ("throughput", "templates/test_patterns.py"),
}
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
}
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil"}
#: Seconds on top of three times what the tests take without an error, until they count as having seen it.
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Mutant:
    """One error: the source between two offsets (in bytes of UTF-8) is replaced.

    Attributes:
        path: File, relative to the repository.
        line: Where it begins.
        start: First byte that goes.
        end: First byte that stays.
        text: What stands there instead.
        before: What stood there.
    """

    path: Path
    line: int
    start: int
    end: int
    text: str
    before: str

    def __str__(self) -> str:
        before, after = (" ".join(part.split()) for part in (self.before, self.text))
        return f"{self.path}:{self.line}: {before[:70]!r} -> {after[:70]!r}"

    def apply(self, tree: Path) -> None:
        file = tree / self.path
        source = file.read_bytes()
        file.write_bytes(source[: self.start] + self.text.encode() + source[self.end :])


class _Finder(ast.NodeVisitor):
    """All mutants of one file. Annotations, docstrings, sentences of errors and ``__all__`` are left alone."""

    def __init__(self, path: Path, source: bytes) -> None:
        self.path, self.source = path, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.mutants: list[Mutant] = []

    def offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def add(self, line: int, start: int, end: int, text: str) -> None:
        self.mutants.append(Mutant(self.path, line, start, end, text, self.source[start:end].decode()))

    def between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """Replace the operator that stands between two expressions."""
        start, end = self.span(left)[1], self.span(right)[0]
        place = self.source[start:end].find(old.encode())
        if place >= 0:
            self.add(left.lineno, start + place, start + place + len(old), new)

    def visit_Raise(self, node: ast.Raise) -> None:
        """What an error says is not looked into; that it is raised is."""
        self.add(node.lineno, *self.span(node), "pass")

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_If(self, node: ast.If) -> None:
        test = ast.unparse(node.test)
        if "TYPE_CHECKING" in test or "__name__" in test:
            return
        start, end = self.span(node.test)
        self.add(node.lineno, start, end, "False")
        self.add(node.lineno, start, end, "True")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add(node.lineno, *self.span(node), "pass")
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add(node.lineno, *self.span(node), "pass")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        for left, right, operator in zip(sides, sides[1:], node.ops, strict=False):
            self.between(left, right, _WORDS[type(operator)], COMPARISONS[type(operator)])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        text = isinstance(node.left, ast.Constant | ast.JoinedStr) and not isinstance(
            getattr(node.left, "value", None), int | float
        )
        if type(node.op) in OPERATORS and not text:
            self.between(node.left, node.right, _SIGNS[type(node.op)], OPERATORS[type(node.op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        self.between(node.values[0], node.values[1], old, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            start = self.span(node)[0]
            self.add(node.lineno, start, start + (4 if isinstance(node.op, ast.Not) else 1), "")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in SWAPPED:
            end = self.span(node.func)[1]
            self.add(node.lineno, end - len(name), end, SWAPPED[name])
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add(node.lineno, *self.span(node), str(not node.value))
        elif isinstance(node.value, int):
            self.add(node.lineno, *self.span(node), str(node.value + 1))
        elif isinstance(node.value, float):
            self.add(node.lineno, *self.span(node), repr(node.value * 2 + 1))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Words for people are left alone."""


_WORDS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}
_SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}


def mutants(package: str) -> Iterator[Mutant]:
    """Every mutant of a package: a room below ``coralopt`` or a plugin."""
    folder = ROOT / "solvers" / package if package.startswith("coralopt_") else ROOT / "coralopt" / package
    if not folder.is_dir():
        raise SystemExit(f"no package {package!r}: give a folder of coralopt/ or solvers/")
    for file in sorted(folder.rglob("*.py")):
        source = file.read_bytes()
        finder = _Finder(file.relative_to(ROOT), source)
        finder.visit(ast.parse(source))
        yield from finder.mutants


def copy_tree(target: Path) -> None:
    """The repository without its history; modification times stay, so that compiled kernels stay valid."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name)
        elif source.exists():
            shutil.copy2(source, target / name)


def caught(tree: Path, tests: list[str], limit_s: float | None) -> bool:
    """Whether the tests fail; hanging is failing."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'solvers'}",
        "CORALOPT_CACHE": str(tree / "cache"),
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        "--hypothesis-seed=0",
        "--hypothesis-profile=mutants",
    ]
    process = subprocess.Popen(
        [*command, *tests],
        cwd=tree,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(limit_s) != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "packages", nargs="+", help="rooms of coralopt/ (solving, allocation, ...) or plugins (coralopt_dp)"
    )
    parser.add_argument("--sample", type=int, default=20, help="errors a package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", nargs="*", help="tests to run instead of the package's own folder")
    options = parser.parse_args()
    survivors: list[Mutant] = []
    total = 0
    for package in options.packages:
        every = list(mutants(package))
        sample = random.Random(options.seed).sample(every, min(options.sample, len(every)))
        tests = options.tests or [f"tests/{name}" for name in TESTS.get(package, (package,))]
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            tree = Path(folder)
            copy_tree(tree)
            started = time.perf_counter()
            if caught(tree, tests, None):
                raise SystemExit(f"{package}: {' '.join(tests)} fail without any error put in; mend that first")
            limit_s = 3 * (time.perf_counter() - started) + PATIENCE_S
            for number, mutant in enumerate(sample, 1):
                original = (tree / mutant.path).read_bytes()
                mutant.apply(tree)
                seen = caught(tree, tests, limit_s)
                (tree / mutant.path).write_bytes(original)
                total += 1
                if not seen:
                    survivors.append(mutant)
                print(f"{package} {number}/{len(sample)} {'caught  ' if seen else 'SURVIVED'} {mutant}", flush=True)
        print(f"{package}: {len(every):,} places, {len(sample)} drawn with seed {options.seed}", flush=True)
    print(f"{total - len(survivors)} of {total} caught ({1 - len(survivors) / max(1, total):.0%}); survivors:")
    for mutant in survivors:
        print(f"  {mutant}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
