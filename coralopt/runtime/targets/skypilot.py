"""Target ``skypilot``: one job group a pipeline, one task a node; region, instance type and market from the plan."""

from __future__ import annotations

import re
from collections.abc import Mapping

from coralopt.errors import LaunchError
from coralopt.runtime.launch import Launch, NodeLaunch, PipelineLaunch
from coralopt.runtime.lower import OneNodeEach
from coralopt.runtime.targets.documents import common_files, yaml_text
from coralopt.runtime.targets.quoting import quoted, serving_lines
from coralopt.types import Json

#: Set by SkyPilot on every node of a job group.
GROUP = "SKYPILOT_JOBGROUP_NAME"
#: Our GPU names where SkyPilot's differ.
ACCELERATORS = {"A100": "A100-80GB", "A100-40": "A100"}
#: What is installed, and what connectors need beside it.
VLLM = "vllm==0.32.0"
_CARRIERS = {
    "NixlConnector": ("nixl==1.5.1",),
    "NixlPushConnector": ("nixl==1.5.1",),
    "MooncakeConnector": ("mooncake-transfer-engine",),
    "LMCacheMPConnector": ("lmcache",),
}
_AWS = re.compile(r"[a-z]{2}(-gov)?-[a-z]+-\d")
_GCP = re.compile(r"[a-z]+-[a-z]+\d+")


class SkyPilotAddresses(OneNodeEach):
    """Tasks of a job group find each other as ``{task}-0.{group}``."""

    def host(self, pipeline: str, node: str, machine: str) -> str:
        return f"{machine.removeprefix(f'{pipeline}-')}-0.${{{GROUP}}}"

    def bind(self, host: str) -> str:
        return "0.0.0.0"


def cloud_of(region: str, clouds: Mapping[str, str] | None = None) -> str:
    """SkyPilot's name of the cloud a region belongs to: given, or told from the region's form.

    Raises:
        LaunchError: Neither given nor of a known form.
    """
    if clouds and region in clouds:
        return clouds[region]
    if _AWS.fullmatch(region):
        return "aws"
    if _GCP.fullmatch(region):
        return "gcp"
    raise LaunchError(f"region {region!r}: which cloud is it? Give --cloud {region}=NAME (aws, gcp, kubernetes, ...)")


def skypilot_files(
    launch: Launch,
    *,
    spot: bool = False,
    clouds: Mapping[str, str] | None = None,
    setup: str | None = None,
    addresses: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Files by relative path: ``NAME.sky.yaml`` for every pipeline, and the launch.

    Args:
        launch: Lowered with :class:`SkyPilotAddresses`.
        spot: Whether to rent on the spot market.
        clouds: Region -> cloud, where the region's name does not tell.
        setup: Shell command that installs the engine on a fresh node; ``None``: that vLLM which the rules are checked
            against, and what passes KV caches where prefill and decode are apart.
        addresses: Machine name -> address at which the router reaches it; by the job group's own names otherwise, which
            only the nodes of that group know.

    Raises:
        LaunchError: Servers share GPUs.
    """

    launch.require_own_machines("each task rents nodes of its own")

    def group(pipeline: PipelineLaunch) -> list[Json]:
        chosen = (
            setup
            or f"pip install {' '.join(quoted(name) for name in (VLLM, *_CARRIERS.get(pipeline.connector or '', ())))}"
        )
        tasks = [_task(pipeline, nodes, spot, clouds, chosen) for nodes in pipeline.machines.values()]
        return [{"name": pipeline.name, "execution": "parallel"}, *tasks]

    def head(pipeline: PipelineLaunch) -> str:
        inside = pipeline.head.host.replace(f"${{{GROUP}}}", pipeline.name)
        return (addresses or {}).get(pipeline.head.machine, inside)

    output = {f"{pipeline.name}.sky.yaml": yaml_text(group(pipeline)) for pipeline in launch.pipelines}
    return output | common_files(launch, head)


def _task(
    pipeline: PipelineLaunch, nodes: list[NodeLaunch], spot: bool, clouds: Mapping[str, str] | None, setup: str
) -> Json:
    first, count = nodes[0], sum(len(node.gpus) for node in nodes)
    return {
        "name": first.machine.removeprefix(f"{pipeline.name}-"),
        "resources": {
            "infra": f"{cloud_of(first.region, clouds)}/{first.region}",
            "accelerators": f"{ACCELERATORS.get(first.gpu, first.gpu)}:{count}",
            **({} if first.instance_type is None else {"instance_type": first.instance_type}),
            "use_spot": spot,
        },
        "setup": setup,
        "run": "\n".join(["set -eu", *serving_lines(nodes, GROUP)]) + "\n",
    }
