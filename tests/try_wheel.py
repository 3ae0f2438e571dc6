"""Build the distributions, check them, and try the wheel far from the source tree, under every interpreter that is named.

``python tests/try_wheel.py python3.11 python3.12 /opt/python3.13/bin/python3 --extras scip gurobi``: a fresh environment
for each, with the wheel and pytest; commands; the stories of ``tests/stories`` from a folder of their own; then every extra
by itself, used once. Needs a package index. Nothing here imports coralopt.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: What the stories need besides the wheel.
TOOLS = ("pytest>=8", "hypothesis>=6.100")
#: Extra -> one use of it: words for the command, or a statement of Python.
SOLVE = "solve small.lp --solver "
EXTRAS = {
    **{name: SOLVE + name for name in ("scip", "gurobi", "xpress", "copt", "cplex")},
    "ortools": SOLVE + "cp-sat",
    "silicon": "throughput build qwen3-8b 1xH200",
    "ray": "templates tiny --executor ray -o library.parquet",
    "notebook": "import coralopt; print(coralopt.plan_scenario(coralopt.load_scenario('tiny')).to_frame())",
    "runtime": "import coralopt.runtime.router.app, coralopt.runtime.router.run",
    "fast": "import coralopt, uvloop",
    "otel": "import coralopt.runtime.router.tracing, opentelemetry.exporter.otlp.proto.http",
    "torch": "import coralopt.reference.run, torch, transformers",
    "plot": "import matplotlib, coralopt.report.library, coralopt.benchmark.plots",
    "browser": "import coralopt, playwright.sync_api",
    "docs": "import coralopt, sphinx, myst_parser, furo",
}
MODEL = "minimize\n cost: 3 x + 2 y\nsubject to\n a: x + y >= 2.5\nbounds\n x <= 2\n y <= 2\ngeneral\n x y\nend\n"


def run(words: Sequence[str | Path], folder: Path) -> None:
    """Run a command in a folder, with nothing of this source tree in its environment.

    Raises:
        SystemExit: It failed.
    """
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment = {**kept, "CORALOPT_CACHE": str(folder / "cache"), "PYTHONSAFEPATH": "1"}
    print("+", *words, flush=True)
    if subprocess.run([str(word) for word in words], cwd=folder, env=environment, check=False).returncode:
        raise SystemExit(f"failed: {' '.join(map(str, words))}")


def environment(python: str, folder: Path, *packages: str | Path) -> Path:
    """A fresh virtual environment with these packages; its folder of programs."""
    run([python, "-m", "venv", folder / "venv"], folder)
    programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    run([programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages], folder)
    return programs


def build(folder: Path) -> Path:
    """The wheel, built from a clean source distribution and checked."""
    programs = environment(sys.executable, folder, "build", "twine")
    run([programs / "python", "-m", "build", "--outdir", folder / "dist", ROOT], folder)
    run([programs / "twine", "check", "--strict", *(folder / "dist").iterdir()], folder)
    return next((folder / "dist").glob("*.whl"))


def try_stories(python: str, wheel: Path, folder: Path) -> None:
    """The wheel without extras: commands, then all stories, the slow ones too: minutes."""
    programs = environment(python, folder, wheel, *TOOLS)
    coralopt = programs / "coralopt"
    for words in (
        "--version",
        "scenario check tiny",
        "plan tiny -o plan.json --no-play",
        "verify plan.json",
        "solvers",
    ):
        run([coralopt, *words.split()], folder)
    stories = folder / "stories"
    shutil.copytree(ROOT / "tests" / "stories", stories, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "tests" / "conftest.py", stories)
    options = [
        "-q",
        "--import-mode=importlib",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore::pytest.PytestUnknownMarkWarning",
    ]
    run([programs / "python", "-m", "pytest", *options, "-m", "not installed", stories], folder)


def main() -> None:
    """Command line of the script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="*", default=[sys.executable], help="interpreters to try the wheel under")
    parser.add_argument("--extras", nargs="*", choices=EXTRAS, default=[], help="extras to install by themselves")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="coralopt-wheel-") as temporary:
        folders = Path(temporary)

        def folder(name: str) -> Path:
            made = folders / name
            made.mkdir()
            return made

        wheel = build(folder("build"))
        for number, name in enumerate(arguments.pythons):
            interpreter = shutil.which(name) or name
            try_stories(interpreter, wheel, folder(f"stories-{number}"))
            for extra in arguments.extras:
                own = folder(f"{extra}-{number}")
                programs = environment(interpreter, own, f"{wheel}[{extra}]")
                (own / "small.lp").write_text(MODEL)
                use = EXTRAS[extra]
                python = [programs / "python", "-c", use]
                run(python if use.startswith("import") else [programs / "coralopt", *use.split()], own)
    print(f"the wheel works under {len(arguments.pythons)} interpreters")


if __name__ == "__main__":
    main()
