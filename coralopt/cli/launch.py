"""``coralopt launch``: from a plan to running servers, or to the files that start them; ``coralopt route``."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from coralopt.cli.console import JsonFlag, print_json, say
from coralopt.cli.exit_codes import CHECK_FAILED, INTERRUPTED, OK
from coralopt.cli.launch_options import (
    RUN_FOLDER,
    EngineOptions,
    LaunchMode,
    ListenOptions,
    LocalRouterOptions,
    PlanFile,
    RunFolder,
    ServerOptions,
    WhereArgument,
    controller,
    need_runtime_extra,
    require_runnable,
)
from coralopt.cli.option_groups import takes_groups
from coralopt.cli.present import CommandOutput, present
from coralopt.cli.rollout import rollout
from coralopt.cli.target_options import ManifestOptions, NodeOptions, Target, target_files
from coralopt.errors import LaunchError

if TYPE_CHECKING:
    from rich.table import Table

    from coralopt.plan import Plan
    from coralopt.runtime import Launch
    from coralopt.runtime.local import LocalCluster
    from coralopt.runtime.router.router import Router


class _LaunchGroup(TyperGroup):
    """The commands; what `coralopt launch PLAN --OPTION` did before them is refused with its new spelling."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:  # Any: typer may bring its own copy of click
        first = args[0] if args else "--help"
        known = first == "--help" or first in self.commands
        if not known and (first.startswith("-") or "." in first or "/" in first or Path(first).is_file()):
            words = shlex.join(["coralopt", "launch", *new_spelling(args)])
            raise LaunchError(f"`coralopt launch` is a group of commands now; write `{words}`")
        return super().parse_args(ctx, args)


def new_spelling(words: Sequence[str]) -> list[str]:
    """The command and its words for those of the one command ``launch`` of earlier versions."""
    rest = list(words)
    target, url = _taken(rest, "--target"), _taken(rest, "--apply")
    if "--stop" in rest:
        folder = _taken(rest, "--output") or _taken(rest, "-o")
        return ["stop", *([] if folder is None else ["-o", folder])]
    if url is not None:
        plan = next((word for word in rest if not word.startswith("-")), "PLAN")
        return ["apply", plan, url, *(["--json"] if "--json" in rest else [])]
    if "--check" in rest:
        return ["check", *(word for word in rest if word != "--check")]
    if target in (None, "local"):
        return ["start", *rest]
    return ["render", *rest, "--target", str(target)]


def _taken(words: list[str], option: str) -> str | None:
    """The value of ``option``, which is taken out of ``words`` with it."""
    value = None
    for position in reversed(range(len(words))):
        if words[position].startswith(f"{option}="):
            value = words.pop(position).partition("=")[2]
        elif words[position] == option and position + 1 < len(words):
            value = words.pop(position + 1)
            words.pop(position)
    return value


app = typer.Typer(
    cls=_LaunchGroup,
    no_args_is_help=True,
    help="Start the servers of a plan on this machine, or write the files that start them elsewhere.",
)


@app.command()
@takes_groups
def start(
    plan: PlanFile,
    mode: LaunchMode,
    servers: ServerOptions,
    options: EngineOptions,
    router: LocalRouterOptions,
    output: RunFolder = RUN_FOLDER,
    json_output: JsonFlag = False,
) -> None:
    """Start the servers of PLAN on this machine behind a router; Ctrl-C drains and stops them."""
    from coralopt.runtime import lower

    document = plan.load()
    engine = options.engine(document)
    require_runnable(lower(document, engine), mode.partial)
    need_runtime_extra()
    from coralopt.runtime.local import LocalAddresses, serve_locally
    from coralopt.runtime.router.run import run_loop

    for model, path in engine.model_paths.items():
        if path.startswith(("/", ".", "~")) and not Path(path).expanduser().is_dir():
            raise LaunchError(f"--model-path {model}={path}: no such directory")
    if mode.dry_run:
        addresses = LocalAddresses()
        launch = lower(document, engine, addresses)
        addresses.release()
        present(CommandOutput(launch.to_document(), [_verdict_table(document, launch), _commands(launch)]), json_output)
        return
    local = servers.local(output, router, needs_gpus=not engine.cpu, partial=mode.partial)

    def ready(url: str, cluster: LocalCluster, routes: Router) -> None:
        if json_output:
            print_json({"router": url, "pipelines": cluster.summary()})
        say(f"serving {', '.join(routes.models())} at {url}/v1; Ctrl-C drains and stops")

    say(f"logs in {output}/logs")
    if not run_loop(serve_locally(document, engine, engine.program[0], local, on_event=say, on_ready=ready)):
        raise typer.Exit(INTERRUPTED)


@app.command()
@takes_groups
def render(
    plan: PlanFile,
    mode: LaunchMode,
    options: EngineOptions,
    nodes: NodeOptions,
    manifests: ManifestOptions,
    target: Annotated[Target, typer.Option(help="What starts the servers.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder for the files; printed without it.")
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Write the files that start the servers of PLAN elsewhere."""
    from coralopt.runtime import lower
    from coralopt.runtime.targets import write_files

    document = plan.load()
    engine = options.engine(document)
    verdicts = lower(document, engine)
    require_runnable(verdicts, mode.partial)
    files = target_files(target, document, engine, nodes, manifests)
    if mode.dry_run or output is None:
        hidden = ("launch.json", "preflight/preflight.py")
        texts = [f"# ---- {name}\n{text}" for name, text in files.items() if name not in hidden]
        present(CommandOutput(files, texts), json_output)
        return
    written = write_files(output, files)
    counts = ", ".join(
        f"{len(getattr(written, fate))} {words}"
        for fate, words in (("added", "files added"), ("changed", "changed"), ("unchanged", "as they were"))
    )
    lines = [f"{output}: {counts}, {len(written.removed)} removed"]
    fates = {"directory": str(output), **{fate: list(names) for fate, names in vars(written).items()}}
    present(CommandOutput(fates, [_verdict_table(document, verdicts)], lines), json_output)


app.command()(takes_groups(rollout))


@app.command()
@takes_groups
def check(plan: PlanFile, options: EngineOptions, json_output: JsonFlag = False) -> None:
    """Say which instances of PLAN the engine runs, and why not; exit code 1 when it cannot run all of them."""
    from coralopt.runtime import lower

    document = plan.load()
    verdicts = lower(document, options.engine(document))
    code = CHECK_FAILED if verdicts.refused else OK
    answer = CommandOutput(verdicts.to_document()["instances"], [_verdict_table(document, verdicts)], code=code)
    present(answer, json_output)


@app.command()
@takes_groups
def apply(plan: PlanFile, where: WhereArgument = str(RUN_FOLDER), json_output: JsonFlag = False) -> None:
    """Give PLAN to the servers that run there; returns when they follow it."""
    changes = controller(where).apply(plan.load())
    lines = [f"{what}: {', '.join(changes[what]) or 'none'}" for what in ("kept", "started", "stopped")]
    present(CommandOutput(changes, lines=lines), json_output)


@app.command()
def status(where: WhereArgument = str(RUN_FOLDER), json_output: JsonFlag = False) -> None:
    """Say what runs there: every pipeline, its health and its load; exit code 1 when one is missing."""
    from coralopt.report.table import make_table
    from coralopt.runtime.local.state import controller_of

    if Path(where).is_dir() and controller_of(Path(where)) is None:
        present(_left_in(Path(where)), json_output)
        return
    report = controller(where).status()
    heads = ("pipeline", "model", "phase", "state", "in flight", "url")
    rows = [
        (
            *(backend[name] for name in ("name", "model", "phase")),
            "draining" if backend["draining"] else "healthy" if backend["healthy"] else "ill",
            *(str(backend[name]) for name in ("in_flight", "url")),
        )
        for backend in report["backends"]
    ]
    table = make_table(f"Servers of {where}", heads, rows)
    lines = [f"{name}: {n['running']} of {n['planned']} run" for name, n in report["instances"].items()]
    lines += [f"{name} is given up: {why}" for name, why in report["given_up"].items()]
    whole = all(n["running"] >= n["planned"] for n in report["instances"].values())
    present(CommandOutput(report, [table, *lines], code=OK if whole else CHECK_FAILED), json_output)


@app.command()
def stop(folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder of the run.")] = RUN_FOLDER) -> None:
    """Stop what runs there or what an earlier run left, in order; needs no plan."""
    import asyncio

    need_runtime_extra()
    from coralopt.runtime.local import LocalCluster
    from coralopt.runtime.local.state import controller_of, only_controller

    if not folder.is_dir():
        say(f"{folder}: nothing runs")
        return
    if (controller := controller_of(folder)) is not None:
        say(f"{folder}: the launch that runs here (process {controller}) drains and stops")
        os.kill(controller, signal.SIGTERM)
        while controller_of(folder) == controller:
            time.sleep(0.2)
    with only_controller(folder):
        cluster = LocalCluster(folder, say)
        if not cluster.running:
            say(f"{folder}: nothing runs")
        asyncio.run(cluster.stop_all())


def _left_in(folder: Path) -> CommandOutput:
    """What the processes that a launch left in a folder do."""
    need_runtime_extra()
    from coralopt.report.table import make_table
    from coralopt.runtime.local import LocalCluster

    left = [
        {**pipeline, "state": "runs" if pipeline["alive"] else "broken"} for pipeline in LocalCluster(folder).summary()
    ]
    heads = ("name", "state", "url", "pids")
    table = make_table(f"Servers of {folder}", heads, [[str(pipeline[head]) for head in heads] for pipeline in left])
    line = "no launch looks after them: start it again with `coralopt launch start`, or end them with `coralopt launch stop`"
    return CommandOutput({"left": left}, [table], [line if left else "nothing runs"], code=CHECK_FAILED)


@takes_groups
def route(
    config: Annotated[
        Path, typer.Argument(metavar="ROUTER_JSON", help="router.json as `coralopt launch render` writes it.")
    ],
    listen: ListenOptions,
    admin_socket: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Unix socket through which its owner manages the router.")
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, help="Processes that share the port, the slots and the weights.")
    ] = 1,
    share: Annotated[tuple[int, int] | None, typer.Option(hidden=True, help="Which of how many processes.")] = None,
    vllm_router: Annotated[
        bool,
        typer.Option(
            "--vllm-router", help="Print the commands of vLLM's own router instead, where no weights are needed."
        ),
    ] = False,
    fleet: Annotated[
        Path | None,
        typer.Option(
            metavar="PLAN",
            help="Serve a live page of servers, traffic and cost of this plan at /fleet, with the admin key.",
        ),
    ] = None,
    haproxy: Annotated[
        bool, typer.Option("--haproxy", help="Print HAProxy's configuration instead, with the weights of the plan.")
    ] = False,
) -> None:
    """Route requests to running servers, by the weights of their plan; SIGHUP reads ROUTER_JSON anew."""
    from coralopt.runtime.router import RouterConfig, haproxy_configuration, vllm_router_commands

    loaded = RouterConfig.load(config)
    if haproxy:
        typer.echo(haproxy_configuration(loaded, listen.host, listen.port or 8000, listen.tls_cert), nl=False)
        return
    if vllm_router:
        from coralopt.runtime.targets.quoting import command_lines

        for model, argv in vllm_router_commands(loaded, listen.host, listen.port or 8000).items():
            typer.echo(f"# {model}")
            typer.echo(command_lines(argv))
        return
    need_runtime_extra()
    from coralopt.plan import Plan
    from coralopt.runtime.router.admin import PlanHooks
    from coralopt.runtime.router.run import run_router
    from coralopt.runtime.router.several import run_routers
    from coralopt.runtime.router.status import PlanHistory

    opened = listen.doors(admin_socket, fleet=fleet is not None)
    if processes > 1:
        if admin_socket is not None or fleet is not None:
            raise LaunchError(
                "--admin-socket and --fleet look at one process: leave --processes out; SIGHUP reads ROUTER_JSON anew"
            )
        run_routers(["route", str(config), *listen.words()], opened, processes, on_event=say)
        return
    history = None if fleet is None else PlanHistory()
    if fleet is not None and history is not None:
        history.follow(Plan.load(fleet), kept=[backend.name for backend in loaded.backends])
    run_router(config, opened, PlanHooks(history=history), share=share, on_event=say)


def _verdict_table(plan: Plan, launch: Launch) -> Table:
    from coralopt.report.table import make_table

    rows = [
        (
            verdict.instance,
            str(instance.count),
            "yes" if verdict.runs else "NO",
            ", ".join("+".join(map(str, pipeline.layer_counts)) for pipeline in verdict.pipelines),
            ", ".join(reason.code for reason in (*verdict.reasons, *verdict.remarks)),
        )
        for instance, verdict in zip(plan.instances, launch.verdicts, strict=True)
    ]
    heads = ("instance", "count", "runs", "pipelines", "reasons and remarks")
    return make_table(f"Serving instances under {launch.engine}", heads, rows)


def _commands(launch: Launch) -> str:
    from coralopt.runtime.targets.quoting import command_lines

    lines = []
    for node in launch.nodes:
        env = " ".join(f"{key}={value}" for key, value in node.env.items())
        lines.append(f"# {node.name}: layers {node.first_layer}-{node.last_layer} on {node.configuration} {env}")
        lines.append(command_lines(node.argv))
    return "\n".join(lines)
