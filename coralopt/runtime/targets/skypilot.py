"""Target ``skypilot``: one job group a pipeline, one task a node; region, instance type and market from the plan."""

from __future__ import annotations

import re
from collections.abc import Mapping

from coralopt.errors import LaunchError
from coralopt.runtime.launch import Launch, NodeLaunch, PipelineLaunch
from coralopt.runtime.lower import OneNodeEach
from coralopt.runtime.targets.documents import common_files, yaml_text
from coralopt.runtime.targets.quoting import serving_lines
from coralopt.types import Json

#: Set by SkyPilot on every node of a job group.
GROUP = "SKYPILOT_JOBGROUP_NAME"
#: Our GPU names where SkyPilot's differ.
ACCELERATORS = {"A100": "A100-80GB", "A100-40": "A100"}
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
    setup: str = "pip install vllm",
    addresses: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Files by relative path: ``NAME.sky.yaml`` for every pipeline, and the launch.

    Args:
        launch: Lowered with :class:`SkyPilotAddresses`.
        spot: Whether to rent on the spot market.
        clouds: Region -> cloud, where the region's name does not tell.
        setup: Shell command that installs the engine on a fresh node.
        addresses: Machine name -> address at which the router reaches it; by the job group's own names otherwise, which
            only the nodes of that group know.
    """

    def group(pipeline: PipelineLaunch) -> list[Json]:
        tasks = [_task(pipeline, nodes, spot, clouds, setup) for nodes in pipeline.machines.values()]
        return [{"name": pipeline.name, "execution": "parallel"}, *tasks]

    def head(pipeline: PipelineLaunch) -> str:
        inside = pipeline.head.host.replace(f"${{{GROUP}}}", pipeline.name)
        return (addresses or {}).get(pipeline.head.machine, inside)

    output = {f"{pipeline.name}.sky.yaml": yaml_text(group(pipeline)) for pipeline in launch.pipelines}
    return output | common_files(launch, head)


def _task(
    pipeline: PipelineLaunch, nodes: list[NodeLaunch], spot: bool, clouds: Mapping[str, str] | None, setup: str
) -> Json:
    first = nodes[0]
    count, gpu = first.configuration.split("x", 1)
    return {
        "name": first.machine.removeprefix(f"{pipeline.name}-"),
        "resources": {
            "infra": f"{cloud_of(first.region, clouds)}/{first.region}",
            "accelerators": f"{ACCELERATORS.get(gpu, gpu)}:{count}",
            **({} if first.instance_type is None else {"instance_type": first.instance_type}),
            "use_spot": spot,
        },
        "setup": setup,
        "run": "\n".join(["set -eu", *serving_lines(nodes, GROUP)]) + "\n",
    }
