"""`coralopt launch`: commands that do one thing each, and the old spellings, refused with the new one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coralopt.cli.app import make_app

#: A command line, run in this process.
RunCli = Callable[..., Any]


@pytest.mark.parametrize(
    ("words", "new"),
    [
        ("plan.json", "start plan.json"),
        ("plan.json --target local --cpu", "start plan.json --cpu"),
        ("--cpu plan.json", "start --cpu plan.json"),
        ("plan.json --dry-run --json", "start plan.json --dry-run --json"),
        ("plan.json --target kubernetes", "render plan.json --target kubernetes"),
        ("plan.json --target=shell -o out", "render plan.json -o out --target shell"),
        ("--target skypilot plan.json --cloud here=aws", "render plan.json --cloud here=aws --target skypilot"),
        ("plan.json --check", "check plan.json"),
        ("--check plan.json --json", "check plan.json --json"),
        ("new.json --apply http://127.0.0.1:8000", "apply new.json http://127.0.0.1:8000"),
        ("--apply=http://h:1 new.json --json", "apply new.json http://h:1 --json"),
        ("plan.json --stop", "stop"),
        ("plan.json --stop -o run", "stop -o run"),
        ("./plan --check", "check ./plan"),
    ],
)
def test_old_spellings_name_the_new_one(run_cli: RunCli, words: str, new: str) -> None:
    """Exit code 2 and one sentence; nothing is started or written."""
    ended = run_cli("launch", *words.split())
    assert ended.returncode == 2
    assert f"write `coralopt launch {new}`" in ended.stderr
    assert ended.stderr.startswith("error: `coralopt launch` is a group of commands now")


def test_every_screen_is_short() -> None:
    """At most 15 options of a command's own; the others stand in named panels."""
    import typer.main

    group = typer.main.get_command(make_app()).commands["launch"]  # type: ignore[attr-defined]
    assert set(group.commands) == {"start", "status", "apply", "stop", "render", "rollout", "check"}
    for command in group.commands.values():
        own = [p for p in command.params if p.param_type_name == "option" and not getattr(p, "rich_help_panel", None)]
        assert len(own) <= 15, (command.name, len(own))


def test_check_and_render(run_cli: RunCli, tiny_plan_file: Path, tmp_path: Path) -> None:
    """The verdicts, then the files of every target; a second time nothing changes."""
    ended = run_cli("launch", "check", str(tiny_plan_file), "--json")
    assert (ended.returncode, {entry["runs"] for entry in json.loads(ended.stdout)}) == (0, {True})
    for target, name in (("shell", "nodes/*.sh"), ("skypilot", "*.sky.yaml"), ("kubernetes", "coralopt-router.yaml")):
        words = ["launch", "render", str(tiny_plan_file), "--target", target]
        folder = tmp_path / target
        first, again = (json.loads(run_cli(*words, "-o", str(folder), "--json").stdout) for _ in range(2))
        assert len(first["added"]) == len(again["unchanged"])
        assert (again["added"], again["changed"]) == ([], [])
        assert list(folder.glob(name))
        printed = run_cli(*words, "--dry-run").stdout
        assert "# ---- router.json" in printed
        assert "# ---- launch.json" not in printed
    ended = run_cli("launch", "render", str(tiny_plan_file))
    assert (ended.returncode, "--target" in ended.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("render", "PLAN", "--target", "shell", "--hosts", "nosuch.json"), "--hosts nosuch.json: cannot be read"),
        (("render", "PLAN", "--target", "skypilot", "--cloud", "x"), "--cloud 'x': expected"),
        (("check", "PLAN", "--model-path", "other=/x"), "no model 'other'"),
        (("check", "PLAN", "--connector", "nixle"), "nixl-push"),
        (("apply", "PLAN", "localhost:8000"), "must be the URL of a router"),
        (("apply", "PLAN", "http://127.0.0.1:9"), "no running `coralopt launch start`"),
        (("status", "http://127.0.0.1:9"), "no running `coralopt launch start`"),
    ],
)
def test_faults(run_cli: RunCli, tiny_plan_file: Path, words: tuple[str, ...], said: str) -> None:
    """What, which value, what to do; exit code 2."""
    ended = run_cli("launch", *(str(tiny_plan_file) if word == "PLAN" else word for word in words))
    assert (ended.returncode, said in ended.stderr) == (2, True), ended.stderr


def test_nothing_to_stop(run_cli: RunCli) -> None:
    """A folder of no launch is not made."""
    ended = run_cli("launch", "stop", "mistyped")
    assert (ended.returncode, ended.stderr) == (0, "mistyped: nothing runs\n")
