"""Hostile plans: nothing in a plan runs as a command, reaches a terminal as more than text, or costs more than it may."""

from __future__ import annotations

import io
import json
import math
import os
import random
import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from runtime_plans import golden_plan, instance, plan

from coralopt.cli.console import Harmless, harmless
from coralopt.cli.launch import _verdict_table
from coralopt.errors import CoraloptError, PlanError
from coralopt.plan import Plan
from coralopt.plan.verify import verify_plan
from coralopt.runtime import VllmEngine, lower
from coralopt.runtime.targets import (
    KubernetesAddresses,
    SkyPilotAddresses,
    kubernetes_files,
    shell_files,
    skypilot_files,
)

RunCli = Callable[..., Any]
ENGINE = VllmEngine(virtual_nodes=True)
#: Each would make a file called `canary` where one of its forms is run.
PAYLOADS = (
    "x\ntouch canary\n",
    "x\r\ntouch canary #",
    "$(touch canary)",
    "`touch canary`",
    "'; touch canary; '",
    '"; touch canary; "',
    "x & touch canary",
    "${IFS}$(touch canary)",
    "--flag",
    "../../../canary",
    "\x1b]0;canary\x07\x1b[2J",
    "\x9b2J",
    "\u202ecanary",
    "x\u2028touch canary",
    "- touch canary\n  x: &a [*a]",
    "{{ canary }}",
    "$(VLLM_API_KEY)",
    "a" * 100_000,
    "",
)
NUMBERS = (0, -1, 1, 63, 10**6, 10**9, 10**18, 10**30, -(10**18), 0.5, 1e308, 1e-300, -0.0, math.nan, math.inf)
OTHERS = (None, True, [], {}, [[[[[[]]]]]], {"a": 1}, [1] * 1000)


def places(value: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place in a JSON document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, item in items for place in places(item, (*at, key)))]


def spoiled(text: str, draw: random.Random) -> str:
    """The document with one to three values, or names of fields, that somebody else chose."""
    document = json.loads(text)
    for _ in range(draw.choice((1, 1, 2, 3))):
        place = draw.choice(places(document)[1:])
        inside = document
        for key in place[:-1]:
            inside = inside[key]
        old = inside[place[-1]]
        kind = type(old)
        if isinstance(inside, dict) and draw.random() < 0.15:
            inside[draw.choice(PAYLOADS)] = inside.pop(place[-1])
        elif draw.random() < 0.7 and kind in (str, int, float):
            inside[place[-1]] = draw.choice(PAYLOADS if kind is str else NUMBERS)
        elif kind is list and draw.random() < 0.5:
            inside[place[-1]] = old * draw.choice((2, 50))
        else:
            inside[place[-1]] = draw.choice((*PAYLOADS, *NUMBERS, *OTHERS))
    return json.dumps(document)


class Yard:
    """A folder where scripts run with harmless programs only."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, set[str]()
        self.programs = folder / "bin"
        self.programs.mkdir()
        for name in ("vllm", "torchrun", "hostname", "pip"):
            (self.programs / name).write_text("#!/bin/sh\nexit 0\n")
            (self.programs / name).chmod(0o755)

    def run(self, script: str) -> None:
        """The script, unless it ran before; it must not make the canary."""
        if script in self.seen:
            return
        self.seen.add(script)
        environment = {"PATH": f"{self.programs}:{os.defpath}", "SKYPILOT_JOBGROUP_NAME": "group"}
        subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=environment, capture_output=True, timeout=120, check=False
        )
        assert not list(self.folder.glob("*canary*")), script


def attack(document: Plan, yard: Yard) -> None:
    """Whatever a launch makes of the plan: scripts, which are run, manifests and tables."""
    for text in shell_files(launch := lower(document, ENGINE)).items():
        if text[0].endswith(".sh"):
            yard.run(text[1])
    for name, text in skypilot_files(
        lower(document, ENGINE, SkyPilotAddresses()), clouds=dict.fromkeys(REGIONS, "aws")
    ).items():
        if name.endswith(".yaml"):
            for task in list(yaml.safe_load_all(text))[1:]:
                yard.run(task["run"])
    for name, text in kubernetes_files(lower(document, ENGINE, KubernetesAddresses())).items():
        assert "canary" not in name
        assert "$(VLLM_API_KEY)" not in text.replace("$$(", "")
    printed = io.StringIO()
    Console(file=printed, width=200).print(Harmless(_verdict_table(document, launch)))
    assert not set(printed.getvalue()) & set("\x1b\x9b\x07\u202e")


REGIONS = ("us-east-2", "us-west-2", "eu-central-1", "ap-northeast-2")


def fuzz(texts: list[str], count: int, seed: int, folder: Path) -> tuple[int, float]:
    """So many spoiled plans, each loaded, verified and, whatever that says, launched.

    Returns:
        How many were launched, and the most CPU seconds that one took until it was refused or verified.
    """
    draw, yard, launched, slowest = random.Random(seed), Yard(folder), 0, 0.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(count):
        text = spoiled(draw.choice(texts), draw)
        (folder / "plan.json").write_text(text)
        begun = time.thread_time()
        document, said = None, ""
        try:
            document = Plan.load(folder / "plan.json")
            verify_plan(document)
        except CoraloptError as error:
            said = str(error)
        slowest = max(slowest, time.thread_time() - begun)
        assert not set(harmless(said)) & set("\x1b\x9b\x07\u202e")
        if document is not None:
            try:
                attack(document, yard)
                launched += 1
            except CoraloptError:
                pass
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024
    return launched, slowest


@pytest.fixture
def texts(tiny_plan: Plan) -> list[str]:
    """A plan that holds, and one of every feature."""
    for document in (tiny_plan, golden_plan()):
        # What is compiled and read once is no plan's cost.
        verify_plan(document)
    return [tiny_plan.to_json(), golden_plan().to_json()]


def test_hostile_plans(texts: list[str], tmp_path: Path) -> None:
    """A sample of the attack below."""
    assert fuzz(texts, 60, 1, tmp_path)[0] >= 3


@pytest.mark.slow
def test_two_thousand_hostile_plans(texts: list[str], tmp_path: Path) -> None:
    """No injection, each refused or verified within 2 s, all of them within 500 MB."""
    launched, slowest = fuzz(texts, 2000, 2, tmp_path)
    print(f"{launched} of 2,000 were launched; the slowest took {slowest:.2f} CPU s until it was refused or verified")
    assert launched > 100


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("region",), "us-east-2\ntouch canary"),
        (("name",), "$(touch canary)"),
        (("model",), "x; touch canary"),
        (("stages", 0, "nodes", 0, "instance_type"), "g6.xlarge\ntouch canary"),
        (("stages", 0, "nodes", 0, "configuration"), "1xL4\n"),
        (("count",), 10**18),
        (("stages", 0, "last_layer"), 10**6),
    ],
)
def test_names_and_sizes_are_checked_twice(tmp_path: Path, place: tuple[str | int, ...], value: object) -> None:
    """By the document, and by lowering where a plan was put together without it."""
    document = golden_plan().model_dump(mode="json")
    inside = document["instances"][0]
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(PlanError, match=str(place[-1])):
        Plan.load(tmp_path / "plan.json")
    unchecked = golden_plan().instances[0]
    built = _with(unchecked, place, value)
    smuggled = golden_plan().model_copy(update={"instances": (built,)})
    with pytest.raises(PlanError, match=str(place[-1])):
        lower(smuggled, ENGINE)


def _with(part: Any, place: tuple[str | int, ...], value: object) -> Any:
    """A copy with another value at ``place``, past every check."""
    if not place:
        return value
    if isinstance(part, tuple):
        index = int(place[0])
        return (*part[:index], _with(part[index], place[1:], value), *part[index + 1 :])
    return part.model_copy(update={str(place[0]): _with(getattr(part, str(place[0])), place[1:], value)})


def test_sizes_end_somewhere(tmp_path: Path) -> None:
    """A million layers and 10^18 instances are refused at once; so is a launch of more nodes than any one is made for."""
    document = plan(instance("mixed", (8, {"1xL4": (1, 9.0)}))).model_dump(mode="json")
    document["scenario"]["models"]["tiny"]["model"]["layers"] = 1_000_000
    violations = verify_plan(Plan.model_validate(document)).sentences
    assert "layers: must be at most 1,000, not 1000000" in violations[0]
    with pytest.raises(PlanError, match=r"30,000 nodes; one launch holds at most 20,000"):
        lower(plan(instance("mixed", (8, {"1xL4": (1, 9.0)}), count=30_000)), ENGINE)


def test_layers_that_the_model_has_not() -> None:
    """A plan that was not verified is refused where its stages hold other layers than the model's."""
    for layers in (7, 9):
        document = plan(instance("mixed", (8, {"1xL4": (1, 9.0)})))
        stranger = instance("mixed", (layers, {"1xL4": (1, 9.0)}))
        with pytest.raises(PlanError, match="do not hold the 8 layers"):
            lower(document.model_copy(update={"instances": (stranger,)}), ENGINE)


def test_launch_verifies_first(run_cli: RunCli, tiny_plan_file: Path, tmp_path: Path) -> None:
    """A plan whose price was lowered is not launched, unless its figures are to be believed unseen."""
    cheap = tmp_path / "cheap.json"
    document = json.loads(tiny_plan_file.read_text())
    document["instances"][0]["price_usd_h"] = 0.01
    cheap.write_text(json.dumps(document))
    for words in (["check"], ["render", "--target", "shell"], ["start", "--dry-run"], ["apply", "http://127.0.0.1:9"]):
        ended = run_cli("launch", words[0], str(cheap), *words[1:])
        assert (ended.returncode, "the plan does not hold" in ended.stderr) == (2, True), ended.stderr
        assert "is priced 0.01 USD/h" in ended.stderr
        assert "--no-verify" in ended.stderr
    ended = run_cli("launch", "check", str(cheap), "--no-verify")
    assert (ended.returncode, "not verified" in ended.stderr) == (0, True)


def test_terminals_obey_nothing_in_a_file(run_cli: RunCli, tiny_plan_file: Path, tmp_path: Path) -> None:
    """Escapes in free text are shown as what they are, in tables and in JSON."""
    document = json.loads(tiny_plan_file.read_text())
    document["planner"] = "\x1b]0;owned\x07\x9b2J\u202e"
    (tmp_path / "plan.json").write_text(json.dumps(document))
    for words in (["show"], ["verify"], ["verify", "--json"], ["launch", "check"]):
        ended = run_cli(*words, str(tmp_path / "plan.json"))
        assert not set(ended.stdout + ended.stderr) & set("\x1b\x9b\x07\u202e"), words
