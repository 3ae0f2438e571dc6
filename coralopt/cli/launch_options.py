"""What the commands of ``coralopt launch`` are told: option groups, and what they mean to the runtime."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coralopt.cli.console import parse_pairs, say
from coralopt.cli.option_groups import OptionGroup
from coralopt.errors import LaunchError, PlanError
from coralopt.types import JsonObject

if TYPE_CHECKING:
    from coralopt.plan import Plan
    from coralopt.runtime import Launch, VllmEngine
    from coralopt.runtime.local import LocalOptions, RemoteController
    from coralopt.runtime.router.config import RouterConfig
    from coralopt.runtime.router.doors import Doors

#: Environment variable with the servers' key; keys never stand on a command line or in a file.
SERVER_KEY = "VLLM_API_KEY"
#: Logs and state of servers on this machine.
RUN_FOLDER = Path("coralopt-run")

PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan document.")]
WhereArgument = Annotated[
    str,
    typer.Argument(
        metavar="[DIR|URL]",
        help="A running `coralopt launch start`: its folder, or its router's URL with CORALOPT_ADMIN_KEY set.",
    ),
]
RunFolder = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder of logs and state.")]


@dataclass(frozen=True)
class PlanFile(OptionGroup):
    """The plan, which is verified before anything is made of it."""

    plan: PlanArgument
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Believe the plan's figures unseen.")] = False

    def load(self) -> Plan:
        """The plan.

        Raises:
            PlanError: It is no plan, or does not hold what it says.
        """
        from coralopt.plan import Plan
        from coralopt.plan.verify import verify_plan

        document = Plan.load(self.plan)
        if self.no_verify:
            say(
                f"{self.plan}: not verified; its placements, latencies, prices, capacity and demand are believed unseen"
            )
            return document
        # Who made it with which versions decides nothing about running it.
        violations = [item.text for item in verify_plan(document).violations if item.kind != "origin"]
        if violations:
            lines = [f"{self.plan}: the plan does not hold:", *(f"  - {text}" for text in violations[:20])]
            raise PlanError("\n".join(lines) + "\nmake it again, or launch it as it is with --no-verify")
        return document


@dataclass(frozen=True)
class LaunchMode(OptionGroup):
    """How much of it is done."""

    partial: Annotated[bool, typer.Option(help="Go on when some instances cannot run.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be started or written, and stop.")] = (
        False
    )


@dataclass(frozen=True)
class EngineOptions(OptionGroup):
    """How vLLM runs the instances of a plan."""

    panel = "Engine (vLLM)"

    connector: Annotated[
        str, typer.Option(help="KV transfer: auto, nixl, nixl-push, mooncake, lmcache or example.")
    ] = "auto"
    kv_directory: Annotated[Path | None, typer.Option(help="Shared directory of the connector `example`.")] = None
    kv_server: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="LMCache server, as every node reaches its own (connector `lmcache`)."),
    ] = "localhost:5555"
    virtual_nodes: Annotated[bool, typer.Option(help="Run ragged tensor parallelism as parts of nodes.")] = False
    expert_parallel: Annotated[bool, typer.Option(help="Whole experts on single GPUs.")] = False
    model_path: Annotated[
        list[str] | None,
        typer.Option("--model-path", metavar="MODEL=PATH", help="Checkpoint of a model; may be repeated."),
    ] = None
    max_model_len: Annotated[int | None, typer.Option(min=1, help="Longest context; what fits by default.")] = None
    kv_cache: Annotated[str | None, typer.Option(help="KV cache of a process, e.g. 64M; what is left by default.")] = (
        None
    )
    interface: Annotated[str | None, typer.Option(help="Network interface of NCCL and Gloo, e.g. eth0.")] = None
    drain: Annotated[int, typer.Option(min=0, help="Seconds for requests in flight when a server stops.")] = 120
    vllm: Annotated[str, typer.Option(help="The vllm program.")] = "vllm"
    vllm_option: Annotated[
        list[str] | None, typer.Option("--vllm-option", metavar="WORD", help="One more word for `vllm serve`; repeat.")
    ] = None
    cpu: Annotated[bool, typer.Option("--cpu", help="vLLM's CPU build: to try a plan without its GPUs.")] = False

    def engine(self, plan: Plan) -> VllmEngine:
        """The engine for ``plan``.

        Raises:
            LaunchError: A ``--model-path`` of no model of the plan, or a choice that vLLM does not have.
        """
        from coralopt.runtime import VllmEngine

        models = {instance.model for instance in plan.instances}
        paths = parse_pairs("--model-path", self.model_path, error=LaunchError)
        for name in sorted(set(paths) - models):
            have = ", ".join(sorted(models))
            raise LaunchError(f"--model-path {name}={paths[name]}: the plan has no model {name!r}; it has {have}")
        return VllmEngine(
            program=(self.vllm,),
            model_paths=paths,
            connector=self.connector,
            kv_directory=None if self.kv_directory is None else str(self.kv_directory.absolute()),
            kv_server=self.kv_server,
            virtual_nodes=self.virtual_nodes,
            max_model_len=self.max_model_len,
            kv_cache_bytes=self.kv_cache,
            expert_parallel=self.expert_parallel,
            interface=self.interface,
            drain_s=self.drain,
            cpu=self.cpu,
            extra=tuple(self.vllm_option or ()),
        )


@dataclass(frozen=True)
class ServerOptions(OptionGroup):
    """How servers on this machine start, stop and come back."""

    panel = "Servers on this machine"

    ready_timeout: Annotated[float, typer.Option(help="Longest wait for a server, seconds.")] = 1800.0
    starts_at_once: Annotated[int | None, typer.Option(min=1, help="Pipelines started at a time.")] = None
    restarts: Annotated[
        int, typer.Option(min=0, help="Times a pipeline that died is started again within ten minutes.")
    ] = 3
    any_gpu: Annotated[bool, typer.Option("--any-gpu", help="GPUs of another type than planned will do.")] = False
    drain_first: Annotated[bool, typer.Option(help="Stop old servers before new ones start.")] = False
    fleet: Annotated[
        bool,
        typer.Option("--fleet", help="Serve a live page of servers, traffic and cost at /fleet, with the admin key."),
    ] = False

    def local(self, directory: Path, router: LocalRouterOptions, *, needs_gpus: bool, partial: bool) -> LocalOptions:
        """The same for the launcher, behind ``router``."""
        from coralopt.runtime.local import LocalOptions, Pace, RestartPolicy

        pace = Pace(
            self.ready_timeout,
            self.starts_at_once,
            self.drain_first,
            needs_gpus=needs_gpus,
            any_gpu=self.any_gpu,
            partial=partial,
        )
        return LocalOptions(
            directory, router.doors(fleet=self.fleet), pace, RestartPolicy(most=self.restarts), router.settings()
        )


@dataclass(frozen=True)
class ListenOptions(OptionGroup):
    """Where a router listens, and what it tells about its requests."""

    panel = "Router"

    host: Annotated[str, typer.Option(help="Address that the router listens on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the router; 0 for a free one.")] = 8000
    tls_cert: Annotated[Path | None, typer.Option(metavar="PEM", help="Serve HTTPS with this certificate.")] = None
    tls_key: Annotated[Path | None, typer.Option(metavar="PEM", help="Its key, where it is in a file of its own.")] = (
        None
    )
    access_log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append a JSON line for every request, without prompts.")
    ] = None
    otel: Annotated[
        bool, typer.Option("--otel", help="Send OpenTelemetry traces, to where OTEL_EXPORTER_OTLP_ENDPOINT says.")
    ] = False

    def doors(self, admin_socket: Path | None = None, *, fleet: bool = False) -> Doors:
        """With the keys of the environment; says so where others reach the router without one.

        Raises:
            LaunchError: A certificate or a log that cannot be used, OpenTelemetry is not installed, or a fleet page has no
                admin key.
        """
        from coralopt.runtime.router.doors import ADMIN_KEY, ROUTER_KEY, Doors, Keys

        keys = Keys(*(os.environ.get(name) or None for name in (ROUTER_KEY, ADMIN_KEY, SERVER_KEY)))
        if self.host not in ("127.0.0.1", "::1", "localhost") and keys.client is None:
            say(f"the router listens on {self.host} without an API key; set {ROUTER_KEY} to ask for one")
        if self.tls_key is not None and self.tls_cert is None:
            raise LaunchError("--tls-key needs --tls-cert, the certificate that it belongs to")
        context, log = None, None
        if self.tls_cert is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            try:
                context.load_cert_chain(self.tls_cert, self.tls_key)
            except OSError as error:
                pair = f"--tls-cert {self.tls_cert}" + (f" --tls-key {self.tls_key}" if self.tls_key else "")
                raise LaunchError(f"{pair}: cannot be used: {error.strerror or error}") from error
        if self.access_log is not None:
            try:
                log = _json_lines(self.access_log.open("ab", buffering=0))
            except OSError as error:
                raise LaunchError(f"--access-log {self.access_log}: cannot be used: {error.strerror}") from error
        tracing = None
        if self.otel:
            from coralopt.runtime.router.tracing import Tracing

            tracing = Tracing.sending()
        opened = Doors(self.host, self.port, keys, admin_socket, context, log, tracing=tracing)
        if not fleet:
            return opened
        from coralopt.report.pages.fleet import draw_fleet

        return replace(opened, fleet=draw_fleet)

    def words(self) -> list[str]:
        """These options but the port, as on a command line."""
        files = {"--tls-cert": self.tls_cert, "--tls-key": self.tls_key, "--access-log": self.access_log}
        named = [word for name, path in files.items() if path is not None for word in (name, str(path))]
        return ["--host", self.host, *named, *(["--otel"] if self.otel else [])]


@dataclass(frozen=True)
class LocalRouterOptions(ListenOptions):
    """The router of servers on this machine."""

    router: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Fields of router.json but the backends: limits, aliases, clients, affinity."
        ),
    ] = None

    def settings(self) -> RouterConfig:
        """What it is told beside its backends, which come with the plan.

        Raises:
            LaunchError: The file is none, or names backends.
        """
        from coralopt.runtime.router.config import RouterConfig

        settings = RouterConfig() if self.router is None else RouterConfig.load(self.router)
        if settings.backends:
            raise LaunchError(f"--router {self.router}: the backends come with the plan; leave `backends` out")
        return settings


def _json_lines(file: RawIOBase) -> Callable[[JsonObject], None]:
    def write(line: JsonObject) -> None:
        # On a full disk lines are lost, not requests.
        with suppress(OSError):
            file.write(f"{json.dumps(line)}\n".encode())

    return write


def controller(where: str) -> RemoteController:
    """The running ``coralopt launch start`` in a folder, or behind a URL with the admin key of the environment."""
    from coralopt.runtime.local.client import RemoteController
    from coralopt.runtime.router.doors import ADMIN_KEY

    return RemoteController(where, os.environ.get(ADMIN_KEY))


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


def require_runnable(launch: Launch, partial: bool) -> None:
    """Name the instances that are left out.

    Raises:
        LaunchError: The engine cannot run every instance, or with ``partial`` not one.
    """
    launch.require_runnable(partial, "\nlaunch the others with --partial; docs/runtime.md says what each reason means")
    for verdict in launch.refused:
        say(f"left out: {verdict.instance}: {', '.join(reason.code for reason in verdict.reasons)}")
