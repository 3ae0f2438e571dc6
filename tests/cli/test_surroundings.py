"""The command line in bad surroundings: no cache, full disks, wrong places for output, absurd numbers and files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coralopt.cli.console import file_to_write_as
from coralopt.errors import CacheWarning, PlanError
from coralopt.plan import Plan
from coralopt.scenario import ResolvedScenario
from coralopt.templates import build, obtain_library

RunCli = Callable[..., Any]


@pytest.fixture
def small(tiny_scenario: ResolvedScenario) -> ResolvedScenario:
    """One model on one node: its library takes no time."""
    data = json.loads(json.dumps(tiny_scenario.document))
    data["models"] = {"phi4-14b": data["models"]["phi4-14b"]}
    data["pool"]["regions"]["us-east-2"]["configurations"] = {"1xL40S": 4}
    data["pruning"]["max_nodes"] = 1
    from coralopt import scenario_from_mapping

    return scenario_from_mapping(data)


def test_no_cache_directory_is_no_obstacle(small: ResolvedScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that cannot be: the library is kept in memory, and that is said."""
    monkeypatch.setenv("CORALOPT_CACHE", "/dev/null/nowhere")
    with pytest.warns(CacheWarning, match="kept in memory"):
        library, reused = obtain_library(small)
    assert len(library) > 0
    assert not reused


def test_a_full_cache_is_no_obstacle(small: ResolvedScenario, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No room for any file, or none for the library after its parts."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))

    @contextmanager
    def full(path: Path, mode: int | None = 0o644) -> Iterator[Path]:
        raise OSError(28, "No space left on device", str(path))
        yield path

    with monkeypatch.context() as patch:
        patch.setattr("coralopt.templates.library.replacing", full)
        with pytest.warns(CacheWarning, match="No space left"):
            obtain_library(small)
        patch.setattr("coralopt.templates.parts.replacing", full)
        patch.setattr(build, "replacing", full)
        with pytest.warns(CacheWarning, match="No space left"):
            obtain_library(small)
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_broken_cached_library_is_built_anew(
    small: ResolvedScenario, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the cache holds is nobody's word."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    obtain_library(small)
    (file,) = tmp_path.rglob("*.parquet")
    file.write_bytes(b"PAR1 no more")
    with pytest.warns(CacheWarning, match="built anew"):
        _, reused = obtain_library(small)
    assert not reused
    assert obtain_library(small)[1]


def test_kernels_find_a_place(tmp_path: Path) -> None:
    """Where neither the package nor the home can be written to, compiled kernels have a folder for the run."""
    code = (
        "import os\nos.access = lambda path, mode: mode == os.F_OK and os.path.exists(path)\n"
        "import coralopt\nprint(os.environ['NUMBA_CACHE_DIR'])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "coralopt-kernels-" in ran.stdout
    assert not Path(ran.stdout.strip()).exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "extended", "-o", "new/plan.json"], "there is no folder new"),
        (["plan", "extended", "-o", "."], "is a folder"),
        (["plan", "extended", "--page", "/dev/null"], "no regular file"),
        (["plan", "extended", "--library", "new/lib.parquet"], "there is no folder new"),
        (["plan", "extended", "--solver", "nosuch"], "nosuch"),
        (["plan", "extended", "--option", "nosuch=1"], "unknown option"),
        (["plan", "extended", "--on-infeasible", "nosuch"], "choose from: explain"),
        (["plan", "extended", "--formulation", "nosuch"], "choose from: paper, split"),
        (["templates", "extended", "--solver", "nosuch"], "nosuch"),
        (["show", "plan.json", "--csv", "new/bill.csv"], "there is no folder new"),
        (["compare", "extended", "-o", "plan.json"], "is a file"),
        (["workload", "generate", "azure-conv", "-o", "new/t.csv"], "there is no folder new"),
        (["plan", "extended", "-o", "plan.html"], "its name says .html, which is not what is written; end it in .json"),
        (["plan", "extended", "--page", "page.json"], "end it in .html"),
        (["plan", "extended", "-o", "page.html", "--open"], "end it in .json"),
        (["plan", "extended", "--library", "lib.csv"], "end it in .parquet"),
        (["templates", "extended", "-o", "lib.json"], "end it in .parquet"),
        (["sweep", "extended", "--vary", "demand.all=1,2", "-o", "points.json"], "end it in .parquet"),
        (["show", "plan.json", "--csv", "bill.json"], "end it in .csv"),
        (["report", "plan.json", "-o", "page.pdf"], "end it in .html"),
        (["bench", "-o", "runs.json"], "end it in .jsonl"),
        (["solve", "m.lp", "-o", "m.json"], "end it in .sol"),
        (["scenario", "new", "--model", "qwen3-8b", "--requests-s", "1", "-o", "s.json"], "end it in .yaml"),
        (["workload", "generate", "azure-conv-2023", "-o", "t.json"], "end it in .csv"),
        (["workload", "generate", "azure-conv-2023", "-o", "t.parquet.gz"], "end it in .csv"),
        (["workload", "fit", "t.csv", "-o", "g.parquet"], "end it in .json"),
    ],
)
def test_what_cannot_be_is_said_before_any_work(
    run_cli: RunCli,
    tiny_plan_file: Path,
    tmp_path: Path,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Output paths, solvers and options; no folder comes into being."""
    monkeypatch.setattr("coralopt.templates.build.run_tasks", lambda *_, **__: pytest.fail("work began"))
    result = run_cli(*arguments)
    assert result.returncode in (2, 4), result.stderr
    assert words in result.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "plan.json"],
        pytest.param(["show", "plan.json", "--json"], marks=pytest.mark.slow),
        pytest.param(["scenario", "list"], marks=pytest.mark.slow),
    ],
)
def test_standard_output_may_be_full(tiny_plan_file: Path, tmp_path: Path, arguments: list[str]) -> None:
    """One sentence, no traceback."""
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "coralopt", *arguments],
            cwd=tiny_plan_file.parent,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ran.returncode == 2
    assert ran.stderr.splitlines() == ["error: standard output: No space left on device"]


def test_a_plan_that_cannot_be_written_is_shown(
    run_cli: RunCli, small: ResolvedScenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have taken an hour; the exit code and the last line tell of the file."""
    (tmp_path / "small.json").write_text(json.dumps(small.document))

    def full(plan: Plan, path: Path) -> None:
        raise PlanError(f"{path}: the plan cannot be written: No space left on device")

    monkeypatch.setattr(Plan, "save", full)
    for more in ((), ("--json",)):
        planned = run_cli("plan", "small.json", "-o", "plan.json", "--no-play", *more)
        assert planned.returncode == 2
        assert "What to rent" in planned.stdout or json.loads(planned.stdout)["plan"]["instances"]
        assert (
            planned.stderr.splitlines()[-1] == "error: plan.json: the plan cannot be written: No space left on device"
        )


@pytest.mark.parametrize("rate", ["1e9", "1e6"])
def test_too_many_requests_are_refused(run_cli: RunCli, tiny_plan_file: Path, rate: str) -> None:
    """A rate that no memory holds."""
    result = run_cli("simulate", "plan.json", "--rate", rate)
    assert result.returncode == 2
    assert "lower rate" in result.stderr


BASE: dict[str, Any] = {
    "models": {
        "qwen3-32b": {
            "slo": {"ttft_ms": 1600, "tpot_ms": 100},
            "demand": {"requests_s": 1, "input_tokens": 10, "output_tokens": 10},
        }
    },
    "pool": {"regions": {"us-east-2": {"configurations": {"1xL40S": 1}}}},
}


def _absurd(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(BASE))
    region = data["pool"]["regions"]["us-east-2"]
    if name == "keys":
        data.update({f"key{k}": 1 for k in range(100_000)})
    elif name == "configurations":
        region["configurations"] |= {f"{k}xL40Q": 1 for k in range(100_000)}
    elif name == "list":
        region |= {"configurations": ["1xL40S"] * 1_000_000, "available": 1}
    elif name == "models":
        data["models"] |= {f"m{k}": {} for k in range(100_000)}
    elif name == "regions":
        data["pool"]["regions"] |= {f"r{k}": {"configurations": {"1xL40S": 1}} for k in range(100_000)}
    return data


@pytest.mark.parametrize("name", ["keys", "configurations", "list", "models", "regions"])
def test_absurd_files_are_refused_shortly(run_cli: RunCli, tmp_path: Path, name: str) -> None:
    """100,000 wrong keys, lists of 1,000,000: some lines."""
    (tmp_path / "absurd.json").write_text(json.dumps(_absurd(name)))
    result = run_cli("scenario", "check", "absurd.json")
    assert result.returncode == 2
    assert len(result.stderr) < 5000
    assert "more" in result.stderr
    (tmp_path / "absurd.yaml").write_text((tmp_path / "absurd.json").read_text())
    result = run_cli("scenario", "check", "absurd.yaml")
    assert "YAML may have" in result.stderr


@pytest.mark.parametrize(
    ("command", "needless"),
    [
        ("--version", {"numpy", "pydantic", "numba"}),
        ("scenario check bad.yaml", {"numba", "scipy", "coralopt.templates"}),
        ("plan bad.yaml", {"numba", "scipy", "coralopt.planning"}),
        ("simulate plan.json --rate 1e9", {"numba", "scipy", "pyomo"}),
        ("show plan.json", {"numba", "scipy", "pyomo"}),
    ],
)
def test_what_is_refused_at_once_waits_for_no_import(tiny_plan_file: Path, command: str, needless: set[str]) -> None:
    """Compiled kernels and solvers take a second or two to import; an answer that needs none of them comes without."""
    (tiny_plan_file.parent / "bad.yaml").write_text("models: {}\nnosuch: 1\n")
    code = (
        f"import sys; from coralopt.cli import main\nsys.argv = ['coralopt', *{command.split()!r}]\n"
        f"try: main()\nexcept SystemExit: print('loaded:', *sorted({needless!r} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tiny_plan_file.parent, capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines()[-1] == "loaded:", ran.stdout


def test_native_chatter_stays_out_of_the_output() -> None:
    """HiGHS prints a line of its own now and then, past Python and past its log option; --json must stay JSON."""
    code = (
        "import os\nfrom coralopt import cli\n"
        "def run():\n    os.write(1, b'native')\n    print('ours')\n    return 0\n"
        "cli._run = run\ncli.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("ours\n", "native")


def test_closed_output_ends_in_no_traceback() -> None:
    """As ``coralopt solvers >&-`` does."""
    code = "import os, sys\nos.close(1)\nos.execv(sys.executable, [sys.executable, '-m', 'coralopt', 'solvers'])\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Traceback" not in ended.stderr


def test_parts_of_numpy_that_no_plan_needs_load_when_they_are_used() -> None:
    """scipy asks numpy for all of its parts; what is behind these two must not load for that, and still be there."""
    code = (
        "import sys\n"
        "from coralopt.cli import _Later\n"
        "sys.meta_path.insert(0, _Later())\n"
        "import numpy, scipy.sparse\n"
        "assert 'numpy.f2py.crackfortran' not in sys.modules and 'numpy.testing._private.utils' not in sys.modules\n"
        "numpy.testing.assert_allclose(1.0, 1.0)\n"
        "assert callable(numpy.f2py.run_main)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr


@pytest.mark.parametrize("name", ["plan.json", "plan.yaml", "plan.YML", "plan", "plan.of-may"])
def test_a_plan_goes_to_any_name_of_its_format(name: str, tmp_path: Path) -> None:
    """JSON is YAML, too, and an ending that no format has says nothing."""
    assert file_to_write_as(".json")(tmp_path / name) == tmp_path / name
