"""The command line as a user meets it: exit codes, no tracebacks; real processes where these are the point."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from coralopt.cli import main
from coralopt.cli.app import COMMANDS, make_app

#: A command line, run in this process unless ``process=True``.
RunCli = Callable[..., Any]


def test_plan_verify_show(tmp_path: Path, run_cli: RunCli, tiny_library_file: Path) -> None:
    """The main way through: plan, verify, show, each in words and in JSON."""
    made = run_cli("plan", "tiny", "--library", str(tiny_library_file), "-o", "plan.json")
    assert made.returncode == 0, made.stderr
    assert "proven lower bound" in made.stdout
    assert "checked" in made.stderr
    checked = run_cli("verify", "plan.json", "--prove", "--json")
    assert checked.returncode == 0
    assert json.loads(checked.stdout)["ok"] is True
    shown = run_cli("show", "plan.json")
    assert shown.returncode == 0
    assert "layers 0-" in shown.stdout
    again = run_cli("plan", "tiny", "--library", str(tiny_library_file), "-o", "again.json", "--json")
    assert json.loads(again.stdout)["library_reused"] is True
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "plan.json").read_bytes()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_alone_is_the_same_as_among_all(name: str) -> None:
    """Only the command that is called is loaded; what it is and takes must not depend on that."""
    alone, among = (typer.main.get_command(make_app(first)).commands for first in (name, None))  # type: ignore[attr-defined]
    assert list(alone) == [name]
    said = [
        [(option.name, option.opts, option.default, getattr(option, "help", "")) for option in commands[name].params]
        for commands in (alone, among)
    ]
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "command",
    [
        "plan mine.json -o mine.json",
        "plan mine --page ./mine",
        "plan mine.yaml -o new --page new",
        "plan mine.yaml --simulate --trace requests -o requests",
        "sweep mine --vary demand.all=1,2 --page mine",
        "show plan --csv plan",
        "report plan -o plan",
        "simulate plan.json -o plan.json",
        "simulate plan.json 5=mine.yaml -o mine.yaml",
        "simulate plan.json --trace requests.csv -o requests.csv",
    ],
)
def test_nothing_is_written_over_what_is_read(
    command: str, tmp_path: Path, run_cli: RunCli, tiny_plan_file: Path
) -> None:
    """Nor two results into one file: refused before any work, and the files stay."""
    (tmp_path / "mine.yaml").write_text("models: {}")
    (tmp_path / "mine.json").write_text("{}")
    (tmp_path / "requests.csv").write_text("arrival_s,input_tokens,output_tokens\n0,10,10\n")
    # A name without an ending says no format, so that it is taken wherever a file is written.
    for path in list(tmp_path.iterdir()):
        path.with_suffix("").write_bytes(path.read_bytes())
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    said = run_cli(*command.split())
    assert said.returncode == 2
    assert "by the same command" in said.stderr
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_requests_go_to_a_parquet_file_only(run_cli: RunCli, tiny_plan_file: Path) -> None:
    """Another suffix would not say what is in the file."""
    said = run_cli("simulate", "plan.json", "-o", "requests.csv")
    assert said.returncode == 2
    assert "written as .parquet" in said.stderr


def test_verify_exits_1_with_the_reason(run_cli: RunCli, tiny_plan_file: Path) -> None:
    """A doctored plan is refused with the figure that is off."""
    data = json.loads(tiny_plan_file.read_text())
    data["cost_usd_h"] /= 2
    tiny_plan_file.write_text(json.dumps(data))
    result = run_cli("verify", "plan.json")
    assert result.returncode == 1
    assert "cost_usd_h" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["plan", "nosuch"], 2, "nosuch"),
        (["plan", "tiny", "--solver", "nosuch"], 4, "nosuch"),
        (["plan", "tiny", "--option", "rel_gapp=1"], 2, "rel_gap"),
        (["plan", "tiny", "--option", "rel_gap"], 2, "NAME=VALUE"),
        (["plan", "tiny", "--option", "rel_gap=1"], 2, "must be below 1"),
        (["plan", "tiny", "--formulation", "nosuch"], 2, "split"),
        (["plan", "tiny", "--simulate", "--planner", "homo"], 2, "compare --simulate"),
        (["plan", "tiny", "--simulate", "--on-infeasible", "scale"], 2, "--on-infeasible"),
        (["plan", "tiny", "--trace", "x.csv"], 2, "--simulate"),
        (["plan", "tiny", "--attainment", "1.5"], 2, "models.gpt-oss-20b.slo.attainment"),
        (["plan", "tiny", "--planner", "homo", "--on-infeasible", "scale"], 2, "--on-infeasible"),
        (["library", "check", "nosuch.parquet"], 2, "nosuch.parquet"),
        (["templates", "check", "nosuch.parquet"], 2, "coralopt library check LIB"),
        (
            ["adapt", "tiny", "--apply", "http://127.0.0.1:8000", "--every", "300"],
            2,
            "coralopt follow SCENARIO --router",
        ),
        (["adapt", "tiny", "--apply=http://127.0.0.1:8000"], 2, "coralopt follow SCENARIO --router"),
        (["follow", "tiny", "--router", "localhost", "--restart"], 2, "--restart"),
        (["follow", "tiny", "--router", "http://127.0.0.1:9", "--penalty", "0,1"], 2, "--penalty"),
        (["verify", "nosuch.json"], 2, "nosuch.json"),
        (["plan", "tiny", "--nosuch"], 2, "nosuch"),
        (["frobnicate"], 2, "frobnicate"),
    ],
)
def test_bad_input_gives_one_message(run_cli: RunCli, arguments: list[str], code: int, words: str) -> None:
    """Exit codes are documented, and no mistake of a user ends in a traceback."""
    result = run_cli(*arguments)
    assert result.returncode == code, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_infeasible_scenario_says_why(tmp_path: Path, run_cli: RunCli) -> None:
    """A demand no pool can meet exits 3 and names the model phase and what binds."""
    shown = run_cli("scenario", "show", "tiny")
    data = json.loads(shown.stdout)
    for region in data["pool"]["regions"].values():
        region["configurations"] = dict.fromkeys(region["configurations"], 1)
    first = next(iter(data["models"].values()))
    first["demand"] = {**first["demand"], "requests_s": 1000.0}
    (tmp_path / "big.json").write_text(json.dumps(data))
    result = run_cli("plan", "big.json")
    assert result.returncode == 3, result.stderr
    assert "tokens/s" in result.stderr
    assert next(iter(data["models"])) in result.stderr


def test_kill_leaves_no_broken_library(tmp_path: Path, run_cli: RunCli) -> None:
    """Killed at any time, the library is whole or absent, and the next run finishes the job."""
    for delay in (0.6, 1.2, 2.0):
        with subprocess.Popen(
            [sys.executable, "-m", "coralopt", "templates", "tiny", "-o", "l.parquet", "--rebuild"],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
    result = run_cli("templates", "tiny", "-o", "l.parquet")
    assert result.returncode == 0, result.stderr
    assert "Template library" in result.stdout


@pytest.mark.parametrize("interrupted", ["typed", "caught", "kernel"])
def test_ctrl_c_ends_with_its_exit_code(tmp_path: Path, interrupted: str) -> None:
    """130 also where Ctrl-C passed through code made from text, after which Python would end itself by the signal, and
    where it arrived in the call of a compiled kernel."""
    lines = (
        "import coralopt.cli as cli",
        "def typed(): exec('raise KeyboardInterrupt')",
        "def caught():",
        "    try: typed()",
        "    except KeyboardInterrupt: return 130",
        "def kernel(): raise SystemError('a result with an exception set') from KeyboardInterrupt()",
        f"cli._run = {interrupted}",
        "cli.main()",
    )
    (tmp_path / "started.py").write_text("\n".join(lines))
    command = [sys.executable, "-m", "started"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 130, result.stderr
    assert "Traceback" not in result.stderr


def test_import_is_light() -> None:
    """`import coralopt` must not load a solver, Pyomo or the numerical stack."""
    code = (
        "import sys, coralopt;"
        "bad = {'pyomo', 'highspy', 'numba', 'scipy', 'pyarrow', 'networkx', 'pydantic'} & set(sys.modules);"
        "sys.exit(str(sorted(bad)) if bad else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_small_commands(run_cli: RunCli) -> None:
    """Listing and schema commands answer in JSON that parses."""
    assert {row["name"] for row in json.loads(run_cli("scenario", "list", "--json").stdout)} >= {
        "tiny",
        "core",
        "extended",
    }
    assert "properties" in json.loads(run_cli("scenario", "schema").stdout)
    assert "properties" in json.loads(run_cli("scenario", "plan-schema").stdout)
    assert {row["name"] for row in json.loads(run_cli("solvers", "--json").stdout)} >= {"highs", "dp"}
    assert run_cli("scenario", "check", "tiny").returncode == 0
    assert run_cli("--version").stdout.startswith("coralopt ")


def test_ctrl_c_says_what_is_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """typer turns Ctrl-C into exit code 130 without a word; the user hears that no half-written file stays."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("coralopt.scenario.load_scenario", interrupted)
    monkeypatch.setattr(sys, "argv", ["coralopt", "plan", "tiny"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert "nothing half-written" in capsys.readouterr().err
