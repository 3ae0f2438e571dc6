"""``coralopt launch rollout``: a new plan in the place of the one before, on Kubernetes or SkyPilot."""

from __future__ import annotations

import json
import shlex
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from coralopt.cli.console import say
from coralopt.cli.launch_options import EngineOptions, LaunchMode, PlanFile, require_runnable
from coralopt.cli.target_options import ManifestOptions, NodeOptions, RolloutOptions, Target, addresses, target_files
from coralopt.errors import LaunchError

if TYPE_CHECKING:
    from coralopt.runtime.targets import Rollout


def rollout(
    plan: PlanFile,
    mode: LaunchMode,
    options: EngineOptions,
    nodes: NodeOptions,
    manifests: ManifestOptions,
    steps: RolloutOptions,
    target: Annotated[Target, typer.Option(help="kubernetes or skypilot.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder of the plan before.")],
) -> None:
    """Put PLAN in the place of the one in DIR: start what is new, wait, route to it, drain and remove what is gone."""
    from coralopt.runtime import lower
    from coralopt.runtime.targets import Rollout, successors

    if target is Target.SHELL:
        raise LaunchError(
            "--target shell: coralopt starts nothing on nodes it does not know; choose kubernetes or skypilot"
        )
    if target is Target.SKYPILOT and not steps.reload and not mode.dry_run:
        raise LaunchError("--target skypilot: say what makes the router read router.json anew (--reload COMMAND)")
    document = plan.load()
    engine = options.engine(document)
    require_runnable(lower(document, engine), mode.partial)
    files = target_files(target, document, engine, nodes, manifests)
    names = successors(output, files)
    files = target_files(target, document, engine, nodes, manifests, names) if names else files
    with ExitStack() as held:
        folder, heads, dry = output, addresses(nodes.hosts), mode.dry_run
        if dry:
            folder = Path(held.enter_context(TemporaryDirectory())) / output.name
            shutil.copytree(output, folder) if output.is_dir() else folder.mkdir()
            heads |= {f"{backend['name']}-s0": "" for backend in json.loads(files["router.json"])["backends"]}
        change = Rollout(folder, files, _shown if dry else _run, steps.ready_timeout, steps.drain_first)
        _say_changes(change)
        if target is Target.KUBERNETES:
            change.kubernetes(manifests.namespace)
        else:
            reload = shlex.split(steps.reload or "RELOAD")
            change.skypilot(heads, reload, 0 if dry else options.drain, bool if dry else _answers)
    if dry:
        return
    say(f"{output}: the plan is followed")


def _say_changes(change: Rollout) -> None:
    """What stays, starts and goes, and what machines that takes for a while."""
    starting, going = change.comes, change.goes
    pipelines = json.loads(change.files["launch.json"])["pipelines"]
    say(f"{len(pipelines) - len(starting)} pipelines stay, {len(starting)} start, {len(going)} go")
    nodes = [node for pipeline in pipelines if pipeline["name"] in starting for node in pipeline["nodes"]]
    rented = Counter({node["machine"]: node["instance_type"] or node["configuration"] for node in nodes}.values())
    machines = ", ".join(f"{count} x {kind}" for kind, count in sorted(rented.items()))
    if starting and going:
        say(
            f"{', '.join(going)} removed first: until the new ones are ready, nobody answers in their place"
            if change.drain_first
            else f"until {', '.join(going)} are drained, both run: that takes {machines} beside what runs "
            "(without them, --drain-first removes what goes before anything starts)"
        )


def _run(argv: Sequence[str]) -> None:
    """A program of another system, to its end.

    Raises:
        LaunchError: It is missing or fails.
    """
    from coralopt.processes import Child, Ending

    _shown(argv)
    try:
        with Child.start(argv) as child:
            ended = child.wait()
    except OSError as error:
        raise LaunchError(f"{argv[0]!r} cannot be started: {error.strerror or error}") from error
    if ended is None or ended.ending is not Ending.FINISHED:
        raise LaunchError(f"`{shlex.join(argv)}` {ended}; what ran goes on. Run the rollout again once that is mended")


def _shown(argv: Sequence[str]) -> None:
    say(f"$ {shlex.join(argv)}")


def _answers(url: str) -> bool:
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status) == 200
    except OSError:
        return False
