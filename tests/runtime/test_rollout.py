"""A new plan elsewhere, made before anything is broken, with stand-ins for kubectl and sky that write their calls down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from runtime_plans import instance, plan
from test_targets import files

from coralopt.errors import LaunchError
from coralopt.plan import Plan
from coralopt.runtime.targets import Rollout, successors

L4, L40S = {"1xL4": (1, 900.0)}, {"1xL40S": (1, 900.0)}
OLD = plan(instance("mixed", (3, L4), (5, L40S)), instance("mixed", (8, L40S)))
NEW = plan(instance("mixed", (3, L4), (5, L40S)), instance("mixed", (8, {"2xL4": (1, 9.0)})))
STAYS, GONE, COMES = (
    "tiny-mixed-us-east-2-1xl4-1xl40s-0",
    "tiny-mixed-us-east-2-1xl40s-0",
    "tiny-mixed-us-east-2-2xl4-0",
)


class Calls:
    """What was run, and what fails."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.broken = "nothing"

    def __call__(self, argv: Sequence[str]) -> None:
        line = " ".join(argv)
        if self.broken in line:
            raise LaunchError(line)
        self.lines.append(line)

    def at(self, *words: str) -> int:
        """Where the one call with all these words stands."""
        (place,) = [n for n, line in enumerate(self.lines) if all(word in line for word in words)]
        return place


def test_kubernetes(tmp_path: Path) -> None:
    """New, ready, routed, gone; a step that fails leaves everything, and the same call finishes it."""
    calls = Calls()
    Rollout(tmp_path, files("kubernetes", OLD), calls).kubernetes()
    assert not [line for line in calls.lines if "delete" in line]
    change = Rollout(tmp_path, files("kubernetes", NEW), calls)
    for broken in ("rollout status", "apply -f", "deployment/"):
        calls.broken = broken
        with pytest.raises(LaunchError):
            change.kubernetes("llm")
        assert (tmp_path / f"{GONE}.yaml").exists()
        assert not [line for line in calls.lines if "delete" in line]
    calls.broken, calls.lines = "nothing", []
    change.kubernetes("llm")
    assert all(line.startswith("kubectl -n llm ") for line in calls.lines)
    order = [
        calls.at("apply", f"/{COMES}.yaml"),
        calls.at("rollout status", f"statefulset/{COMES}-s0"),
        calls.at("apply", "coralopt-router.yaml"),
        calls.at("rollout status", "deployment/coralopt-router"),
        calls.at("delete", f"/{GONE}.yaml"),
    ]
    assert order == sorted(order)
    assert not [line for line in calls.lines if "delete" in line and STAYS in line]
    assert not (tmp_path / f"{GONE}.yaml").exists()
    assert (tmp_path / f"{COMES}.yaml").exists()


def test_skypilot(tmp_path: Path) -> None:
    """Groups are launched once; without addresses, or before they are healthy, nothing is routed or torn down."""
    calls, old, new = Calls(), files("skypilot", OLD), files("skypilot", NEW)
    hosts = {f"{name}-s0": "10.0.0.1" for name in (STAYS, GONE)}

    def roll(texts: dict[str, str], known: dict[str, str], healthy: Callable[[str], bool] = bool) -> None:
        Rollout(tmp_path, texts, calls, 0).skypilot(known, ["reload"], 0, healthy, lambda _: None)

    calls.broken = "sky jobs launch"
    with pytest.raises(LaunchError):
        roll(old, hosts)
    calls.broken = "nothing"
    roll(old, hosts)
    assert [line.split()[2] for line in calls.lines[:-1]] == ["launch", "launch"]
    calls.lines = []
    with pytest.raises(LaunchError, match=f"{COMES}-s0 with --hosts"):
        roll(new, hosts)
    with pytest.raises(LaunchError, match="not healthy"):
        roll(new, {**hosts, f"{COMES}-s0": "10.0.0.2"}, lambda _: False)
    assert [line for line in calls.lines if "launch" not in line] == []
    roll(new, {**hosts, f"{COMES}-s0": "10.0.0.2"})
    assert calls.at("launch", COMES) < calls.at("reload") < calls.at("cancel", GONE)
    assert len(calls.lines) == 3
    assert not (tmp_path / f"{GONE}.sky.yaml").exists()


@pytest.mark.parametrize("target", ["kubernetes", "kubernetes-led", "skypilot"])
@pytest.mark.parametrize("drain_first", [False, True])
def test_other_layers_on_the_same_nodes(target: str, drain_first: bool, tmp_path: Path) -> None:
    """Where only layers change, a successor of another name starts; the same call finishes what broke off; and back."""
    calls, first, second = (
        Calls(),
        plan(instance("mixed", (3, L4), (5, L40S))),
        plan(instance("mixed", (4, L4), (4, L40S))),
    )
    end = ".sky.yaml" if target == "skypilot" else ".yaml"

    def roll(document: Plan) -> Rollout:
        texts = files(target, document)
        names = successors(tmp_path, texts)
        texts = files(target, document, names)
        change = Rollout(tmp_path, texts, calls, drain_first=drain_first)
        if target == "skypilot":
            hosts = {f"{name}-s0": "10.0.0.1" for name in (STAYS, *names.values())}
            change.skypilot(hosts, ["reload"], 0, bool, lambda _: None)
        else:
            change.kubernetes()
        return change

    def running() -> list[str]:
        return sorted(path.name.removesuffix(end) for path in tmp_path.glob(f"tiny-*{end}"))

    roll(first)
    assert running() == [STAYS]
    calls.lines = []
    roll(first)
    assert not [line for line in calls.lines if "launch" in line or "delete" in line]
    calls.broken = "reload" if target == "skypilot" else "deployment/"
    with pytest.raises(LaunchError):
        roll(second)
    (new,) = set(running()) - {STAYS}
    assert drain_first or STAYS in running()
    calls.broken, calls.lines = "nothing", []
    change = roll(second)
    assert running() == [new]
    assert (change.comes, change.goes) == ([], [])
    word = "cancel" if target == "skypilot" else "delete"
    if not drain_first:
        routed = calls.at("reload") if target == "skypilot" else calls.at("deployment/")
        assert routed < calls.at(word, STAYS)
    calls.lines = []
    roll(first)
    assert running() == [STAYS]
    start, end_of_new = calls.at("launch" if target == "skypilot" else "apply", f"/{STAYS}{end}"), calls.at(word, new)
    assert (end_of_new < start) == drain_first


def test_the_command(
    run_cli: Callable[..., Any], tiny_plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`launch rollout` calls kubectl; --dry-run only says so, and writes nothing."""
    (tmp_path / "kubectl").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/said\n')
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    words = ["launch", "rollout", str(tiny_plan_file), "--target", "kubernetes", "-o", str(tmp_path / "out")]
    ended = run_cli(*words, "--dry-run")
    assert (ended.returncode, "$ kubectl apply -f" in ended.stderr) == (0, True), ended.stderr
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "said").exists()
    ended = run_cli(*words)
    assert (ended.returncode, "the plan is followed" in ended.stderr) == (0, True), ended.stderr
    said = (tmp_path / "said").read_text()
    assert "rollout status deployment/coralopt-router" in said
    (tmp_path / "kubectl").write_text("#!/bin/sh\nexit 1\n")
    ended = run_cli(*words)
    assert (ended.returncode, "what ran goes on" in ended.stderr) == (2, True)
    ended = run_cli(*words[:3], "--target", "skypilot", "-o", "out")
    assert (ended.returncode, "--reload" in ended.stderr) == (2, True)
