"""What files that start servers elsewhere are made of: options of shell, SkyPilot and Kubernetes, and the files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coralopt.cli.console import parse_pairs, say
from coralopt.cli.option_groups import OptionGroup
from coralopt.errors import LaunchError

if TYPE_CHECKING:
    from coralopt.plan import Plan
    from coralopt.runtime import Launch, VllmEngine


class Target(StrEnum):
    """Where files start servers."""

    SHELL = "shell"
    SKYPILOT = "skypilot"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True)
class NodeOptions(OptionGroup):
    """Addresses and clouds of nodes."""

    panel = "shell, skypilot"

    hosts: Annotated[Path | None, typer.Option(help="JSON file, machine name -> address.")] = None
    cloud: Annotated[
        list[str] | None, typer.Option(metavar="REGION=CLOUD", help="skypilot: cloud of a region; may be repeated.")
    ] = None
    setup: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="skypilot: installs the engine; pip and a pinned vLLM by default."),
    ] = None


@dataclass(frozen=True)
class ManifestOptions(OptionGroup):
    """How Kubernetes manifests are written."""

    panel = "kubernetes"

    image: Annotated[str | None, typer.Option(help="Container image; best by digest, NAME@sha256:...")] = None
    router_image: Annotated[str | None, typer.Option(help="Image with coralopt in it, for the router.")] = None
    namespace: Annotated[str | None, typer.Option(help="Namespace.")] = None
    model_cache: Annotated[
        str | None, typer.Option(metavar="CLAIM", help="Persistent volume claim with checkpoints, for all pods.")
    ] = None
    leader_worker_set: Annotated[
        bool, typer.Option(help="LeaderWorkerSets, whose controller must be there, where the shape allows.")
    ] = True


@dataclass(frozen=True)
class RolloutOptions(OptionGroup):
    """How a new plan takes the place of the one before."""

    ready_timeout: Annotated[float, typer.Option(help="Longest wait for a server, seconds.")] = 1800.0
    drain_first: Annotated[
        bool, typer.Option(help="Remove what goes before anything starts, where there are no nodes for both.")
    ] = False
    reload: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="skypilot: makes the router read router.json anew, without a shell."),
    ] = None


def target_files(
    target: Target,
    plan: Plan,
    engine: VllmEngine,
    nodes: NodeOptions,
    manifests: ManifestOptions,
    called: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Files by relative path that start the servers of ``plan``.

    Args:
        target: Whose files.
        plan: What they start.
        engine: With what.
        nodes: Options of nodes.
        manifests: Options of manifests.
        called: Other names for pipelines, by those they have; what there is to remark was said with the first ones.

    Raises:
        LaunchError: ``--hosts`` or ``--cloud`` cannot be read.
    """
    from coralopt.runtime import OneNodeEach, lower, targets

    def lowered(places: OneNodeEach) -> Launch:
        return lower(plan, engine, places, lambda name: (called or {}).get(name, name))

    if target is Target.SHELL:
        return targets.shell_files(lowered(OneNodeEach(addresses(nodes.hosts))))
    if target is Target.SKYPILOT:
        market = plan.scenario.get("pool", {}).get("market", "on-demand")
        return targets.skypilot_files(
            lowered(targets.SkyPilotAddresses()),
            spot=market == "spot",
            clouds=parse_pairs("--cloud", nodes.cloud, error=LaunchError),
            setup=nodes.setup,
            addresses=addresses(nodes.hosts),
        )
    defaults = targets.KubernetesOptions
    options = defaults(
        image=manifests.image or defaults.image,
        router_image=manifests.router_image or defaults.router_image,
        namespace=manifests.namespace,
        cache_claim=manifests.model_cache,
        leader_worker_set=manifests.leader_worker_set,
    )
    files = targets.kubernetes_files(lowered(targets.KubernetesAddresses()), options)
    if called is None:
        for image in (options.image, options.router_image):
            if "@sha256:" not in image:
                say(f"image {image} is a tag, which may become another image: name it by digest (NAME@sha256:...)")
        if any("kind: LeaderWorkerSet" in text for text in files.values()):
            say("pipelines are LeaderWorkerSets: the cluster needs their controller, or give --no-leader-worker-set")
    return files


def addresses(path: Path | None) -> dict[str, str]:
    """Machine name -> address, from a JSON file.

    Raises:
        LaunchError: It cannot be read.
    """
    if path is None:
        return {}
    try:
        addresses = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LaunchError(f"--hosts {path}: cannot be read: {error}") from error
    if not isinstance(addresses, dict) or not all(isinstance(value, str) for value in addresses.values()):
        raise LaunchError(f"--hosts {path}: must be a JSON object of machine name -> address")
    return addresses
