"""``coralopt launch``: from a plan to running servers, or to the files that start them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coralopt.cli.console import JsonFlag, print_json, print_rich, say
from coralopt.cli.exit_codes import INTERRUPTED
from coralopt.errors import LaunchError

if TYPE_CHECKING:
    from coralopt.plan import Plan
    from coralopt.runtime import Launch, VllmEngine

#: Environment variables with keys; keys never stand on a command line or in a file.
ROUTER_KEY, SERVER_KEY = "CORALOPT_API_KEY", "VLLM_API_KEY"


class Target(StrEnum):
    """Where servers run."""

    LOCAL = "local"
    SHELL = "shell"
    SKYPILOT = "skypilot"
    KUBERNETES = "kubernetes"


def launch(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan document.")],
    target: Annotated[Target, typer.Option(help="Where servers run.")] = Target.LOCAL,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory for the files; with local: logs and state.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be written or started, and stop.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only say which instances the engine runs, and why not.")
    ] = False,
    partial: Annotated[bool, typer.Option(help="Go on when some instances cannot run.")] = False,
    connector: Annotated[
        str, typer.Option(help="KV transfer: auto, nixl, nixl-push, mooncake, lmcache or example.")
    ] = "auto",
    kv_directory: Annotated[Path | None, typer.Option(help="Shared directory of the connector `example`.")] = None,
    kv_server: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="LMCache server, as every node reaches its own (connector `lmcache`)."),
    ] = "localhost:5555",
    virtual_nodes: Annotated[bool, typer.Option(help="Run ragged tensor parallelism as parts of nodes.")] = False,
    expert_parallel: Annotated[bool, typer.Option(help="Whole experts on single GPUs.")] = False,
    model_path: Annotated[
        list[str] | None,
        typer.Option("--model-path", metavar="MODEL=PATH", help="Checkpoint of a model; may be repeated."),
    ] = None,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="Longest context; what fits by default.")] = None,
    kv_cache: Annotated[
        str | None, typer.Option(help="KV cache of a process, e.g. 64M; what is left by default.")
    ] = None,
    interface: Annotated[str | None, typer.Option(help="Network interface of NCCL and Gloo, e.g. eth0.")] = None,
    drain: Annotated[int, typer.Option(min=0, help="Seconds for requests in flight when a server stops.")] = 120,
    vllm: Annotated[str, typer.Option(help="The vllm program.")] = "vllm",
    vllm_option: Annotated[
        list[str] | None, typer.Option("--vllm-option", metavar="WORD", help="One more word for `vllm serve`; repeat.")
    ] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="vLLM's CPU build: to try a plan without its GPUs.")] = False,
    host: Annotated[str, typer.Option(help="local: address of the router.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="local: port of the router; 0 for a free one.")] = 8000,
    ready_timeout: Annotated[float, typer.Option(help="local: longest wait for a server, seconds.")] = 1800.0,
    starts_at_once: Annotated[int | None, typer.Option(min=1, help="local: pipelines started at a time.")] = None,
    stop: Annotated[bool, typer.Option("--stop", help="local: stop what an earlier run left, and end.")] = False,
    apply: Annotated[
        str | None, typer.Option(metavar="URL", help="local: give PLAN to the launch that runs there.")
    ] = None,
    restarts: Annotated[
        int, typer.Option(min=0, help="local: times a pipeline that died is started again within ten minutes.")
    ] = 3,
    any_gpu: Annotated[
        bool, typer.Option("--any-gpu", help="local: GPUs of another type than planned will do.")
    ] = False,
    drain_first: Annotated[bool, typer.Option(help="local: stop old servers before new ones start.")] = False,
    hosts: Annotated[Path | None, typer.Option(help="shell, skypilot: JSON file, machine name -> address.")] = None,
    cloud: Annotated[
        list[str] | None, typer.Option(metavar="REGION=CLOUD", help="skypilot: cloud of a region; may be repeated.")
    ] = None,
    image: Annotated[str | None, typer.Option(help="kubernetes: container image.")] = None,
    router_image: Annotated[
        str | None, typer.Option(help="kubernetes: image with coralopt in it, for the router.")
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="kubernetes: namespace.")] = None,
    leader_worker_set: Annotated[
        bool, typer.Option(help="kubernetes: LeaderWorkerSet where the shape allows.")
    ] = False,
    json_output: JsonFlag = False,
) -> None:
    """Start the servers of PLAN on this machine, or write the files that start them elsewhere."""
    from coralopt.plan import Plan
    from coralopt.runtime import VllmEngine, lower

    document = Plan.load(plan)
    if stop:
        _stop(output or Path("coralopt-run"))
        return
    if apply is not None:
        _apply(document, apply, json_output)
        return
    engine = VllmEngine(
        program=(vllm,),
        model_paths=_pairs("--model-path", model_path, {instance.model for instance in document.instances}),
        connector=connector,
        kv_directory=None if kv_directory is None else str(kv_directory.absolute()),
        kv_server=kv_server,
        virtual_nodes=virtual_nodes,
        max_model_len=max_model_len,
        kv_cache_bytes=kv_cache,
        expert_parallel=expert_parallel,
        interface=interface,
        drain_s=drain,
        cpu=cpu,
        extra=tuple(vllm_option or ()),
    )
    verdicts = lower(document, engine)
    if check:
        if json_output:
            print_json(verdicts.to_document()["instances"])
        else:
            print_rich(_verdict_table(document, verdicts))
        raise typer.Exit(1 if verdicts.refused else 0)
    _require_runnable(verdicts, partial)
    if target is Target.LOCAL:
        _local(
            document,
            engine,
            json_output,
            dry_run,
            output,
            host,
            port,
            ready_timeout,
            starts_at_once,
            drain_first,
            partial,
            restarts,
            any_gpu,
        )
        return
    files = _files(target, document, engine, hosts, cloud, image, router_image, namespace, leader_worker_set)
    if dry_run or output is None:
        if json_output:
            print_json(files)
        else:
            for name, text in files.items():
                if name not in ("launch.json", "preflight/preflight.py"):
                    typer.echo(f"# ---- {name}\n{text}")
        return
    from coralopt.runtime.targets import write_files

    written = write_files(output, files)
    if json_output:
        print_json({"directory": str(output), **{key: list(value) for key, value in vars(written).items()}})
    else:
        print_rich(_verdict_table(document, verdicts))
        say(
            f"{output}: {len(written.added)} files added, {len(written.changed)} changed, "
            f"{len(written.unchanged)} as they were, {len(written.removed)} removed"
        )


def route(
    config: Annotated[Path, typer.Argument(metavar="ROUTER_JSON", help="router.json as `coralopt launch` writes it.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    vllm_router: Annotated[
        bool,
        typer.Option(
            "--vllm-router", help="Print the commands of vLLM's own router instead, where no weights are needed."
        ),
    ] = False,
) -> None:
    """Route requests to running servers, by the weights of their plan."""
    from coralopt.runtime.router import RouterConfig, vllm_router_commands

    loaded = RouterConfig.load(config)
    if vllm_router:
        from coralopt.runtime.targets.quoting import command_lines

        for model, argv in vllm_router_commands(loaded, host, port or 8000).items():
            typer.echo(f"# {model}")
            typer.echo(command_lines(argv))
        return
    need_runtime_extra()
    from coralopt.runtime.router.run import run_router

    _warn_open(host)
    keys = {"api_key": os.environ.get(ROUTER_KEY), "backend_key": os.environ.get(SERVER_KEY)}
    run_router(loaded, host, port, **keys, on_event=say)


def _local(
    document: Plan,
    engine: VllmEngine,
    json_output: bool,
    dry_run: bool,
    output: Path | None,
    host: str,
    port: int,
    ready_timeout: float,
    starts_at_once: int | None,
    drain_first: bool,
    partial: bool,
    restarts: int,
    any_gpu: bool,
) -> None:
    import asyncio

    need_runtime_extra()
    from coralopt.runtime import lower
    from coralopt.runtime.local import LocalAddresses, LocalOptions, Pace, RestartPolicy, serve_locally

    for model, path in engine.model_paths.items():
        if path.startswith(("/", ".", "~")) and not Path(path).expanduser().is_dir():
            raise LaunchError(f"--model-path {model}={path}: no such directory")
    if dry_run:
        addresses = LocalAddresses()
        lowered = lower(document, engine, addresses)
        addresses.release()
        if json_output:
            print_json(lowered.to_document())
        else:
            print_rich(_verdict_table(document, lowered))
            _print_commands(lowered)
        return
    _warn_open(host)
    pace = Pace(ready_timeout, starts_at_once, drain_first, needs_gpus=not engine.cpu, any_gpu=any_gpu, partial=partial)
    options = LocalOptions(
        directory=output or Path("coralopt-run"),
        host=host,
        port=port,
        api_key=os.environ.get(ROUTER_KEY),
        backend_key=os.environ.get(SERVER_KEY),
        pace=pace,
        restarts=RestartPolicy(most=restarts),
    )

    def ready(url: str, cluster: Any, router: Any) -> None:
        if json_output:
            print_json({"router": url, "pipelines": cluster.summary()})
        say(f"serving {', '.join(router.models())} at {url}/v1; Ctrl-C drains and stops")

    say(f"logs in {options.directory}/logs")
    if not asyncio.run(serve_locally(document, engine, engine.program[0], options, on_event=say, on_ready=ready)):
        raise typer.Exit(INTERRUPTED)


def _apply(document: Plan, url: str, json_output: bool) -> None:
    """Hand a plan to a running controller."""
    need_runtime_extra()
    from coralopt.runtime.local import apply_plan

    changes = apply_plan(document, url, os.environ.get(ROUTER_KEY))
    if json_output:
        print_json(changes)
    else:
        for what in ("kept", "started", "stopped"):
            say(f"{what}: {', '.join(changes[what]) or 'none'}")


def _stop(directory: Path) -> None:
    import asyncio

    need_runtime_extra()
    from coralopt.runtime.local import LocalCluster
    from coralopt.runtime.local.state import only_controller

    if not directory.is_dir():
        say(f"{directory}: nothing runs")
        return
    with only_controller(directory):
        cluster = LocalCluster(directory, say)
        if not cluster.running:
            say(f"{directory}: nothing runs")
        asyncio.run(cluster.stop_all())


def _files(
    target: Target,
    document: Plan,
    engine: VllmEngine,
    hosts: Path | None,
    cloud: list[str] | None,
    image: str | None,
    router_image: str | None,
    namespace: str | None,
    leader_worker_set: bool,
) -> dict[str, str]:
    from coralopt.runtime import OneNodeEach, lower
    from coralopt.runtime.targets import (
        KubernetesAddresses,
        SkyPilotAddresses,
        kubernetes_files,
        shell_files,
        skypilot_files,
    )
    from coralopt.runtime.targets.kubernetes import KubernetesOptions

    if target is Target.SHELL:
        return shell_files(lower(document, engine, OneNodeEach(_addresses(hosts))))
    if target is Target.SKYPILOT:
        market = document.scenario.get("pool", {}).get("market", "on-demand")
        lowered = lower(document, engine, SkyPilotAddresses())
        return skypilot_files(
            lowered, spot=market == "spot", clouds=_pairs("--cloud", cloud, None), addresses=_addresses(hosts)
        )
    options = KubernetesOptions(namespace=namespace, leader_worker_set=leader_worker_set)
    if image is not None:
        options = replace(options, image=image)
    if router_image is not None:
        options = replace(options, router_image=router_image)
    return kubernetes_files(lower(document, engine, KubernetesAddresses()), options)


def _addresses(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LaunchError(f"--hosts {path}: cannot be read: {error}") from error
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise LaunchError(f"--hosts {path}: must be a JSON object of machine name -> address")
    return data


def _pairs(option: str, items: list[str] | None, known: set[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items or []:
        name, separator, value = item.partition("=")
        if not separator or not name or not value:
            raise LaunchError(f"{option} {item!r}: expected NAME=VALUE")
        if known is not None and name not in known:
            raise LaunchError(f"{option} {item!r}: the plan has no model {name!r}; it has {', '.join(sorted(known))}")
        pairs[name] = value
    return pairs


def _require_runnable(lowered: Launch, partial: bool) -> None:
    if not lowered.refused or (partial and lowered.pipelines):
        for verdict in lowered.refused:
            say(f"left out: {verdict.instance}: {', '.join(reason.code for reason in verdict.reasons)}")
        return
    lines = [f"  - {v.instance}: {r.code}: {r.text}" for v in lowered.refused for r in v.reasons]
    count = len(lowered.refused)
    raise LaunchError(
        "\n".join([f"{lowered.engine} cannot run {count} of {len(lowered.verdicts)} instances of this plan:", *lines])
        + "\nlaunch the others with --partial; docs/runtime.md says what each reason means"
    )


def _verdict_table(document: Plan, lowered: Launch) -> Any:
    from rich.table import Table

    table = Table(title=f"Serving instances under {lowered.engine}")
    for column in ("instance", "count", "runs", "pipelines", "reasons and remarks"):
        table.add_column(column)
    for instance, verdict in zip(document.instances, lowered.verdicts, strict=True):
        notes = [reason.code for reason in (*verdict.reasons, *verdict.remarks)]
        layers = ["+".join(map(str, pipeline.layer_counts)) for pipeline in verdict.pipelines]
        table.add_row(
            verdict.instance, str(instance.count), "yes" if verdict.runs else "NO", ", ".join(layers), ", ".join(notes)
        )
    return table


def _print_commands(lowered: Launch) -> None:
    from coralopt.runtime.targets.quoting import command_lines

    for node in lowered.nodes:
        env = [f"{key}={value}" for key, value in node.env.items()]
        typer.echo(
            f"# {node.name}: layers {node.first_layer}-{node.last_layer} on {node.configuration} {' '.join(env)}"
        )
        typer.echo(command_lines(node.argv))


def _warn_open(host: str) -> None:
    if host not in ("127.0.0.1", "::1", "localhost") and not os.environ.get(ROUTER_KEY):
        say(f"the router listens on {host} without an API key; set {ROUTER_KEY} to ask for one")


def need_runtime_extra() -> None:
    """Say what to install where the router's libraries are missing.

    Raises:
        LaunchError: They are.
    """
    try:
        import aiohttp  # noqa: F401
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise LaunchError(
            f"the router needs {error.name}, which is not installed: pip install 'coralopt[runtime]'"
        ) from error
