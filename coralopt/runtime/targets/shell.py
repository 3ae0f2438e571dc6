"""Target ``shell``: one script a node, a pre-flight check, and the router's configuration."""

from __future__ import annotations

from importlib.resources import files

from coralopt.runtime.launch import Launch, NodeLaunch, PipelineLaunch
from coralopt.runtime.router.config import router_document
from coralopt.runtime.targets.documents import json_text, launch_text
from coralopt.runtime.targets.quoting import command_lines, exports, own_address_lines

#: Rendezvous of the pre-flight check; its processes are gone before the servers start.
PREFLIGHT_PORT = 29400


def preflight_program() -> str:
    """Source of the stand-alone pre-flight program; it needs torch and nothing else."""
    return files("coralopt.runtime.targets").joinpath("preflight.py").read_text(encoding="utf-8")


def shell_files(launch: Launch) -> dict[str, str]:
    """Files by relative path: ``nodes/NAME.sh``, ``preflight/NAME.sh``, ``preflight.py``, router and launch."""
    output: dict[str, str] = {}
    for pipeline in launch.pipelines:
        for machine in dict.fromkeys(node.machine for node in pipeline.nodes):
            nodes = [node for node in pipeline.nodes if node.machine == machine]
            output[f"nodes/{machine}.sh"] = _node_script(pipeline, nodes)
            if sum(len(node.gpus) for node in pipeline.nodes) > 1:
                output[f"preflight/{machine}.sh"] = _preflight_script(pipeline, nodes)
    if any(name.startswith("preflight/") for name in output):
        output["preflight/preflight.py"] = preflight_program()
    output["router.json"] = json_text(router_document(launch))
    output["launch.json"] = launch_text(launch)
    return output


def _head(what: str, pipeline: PipelineLaunch, nodes: list[NodeLaunch]) -> list[str]:
    first = nodes[0]
    return [
        "#!/usr/bin/env bash",
        f"# {what} {first.machine}: {first.configuration} ({first.instance_type or 'no instance type known'}), "
        f"layers {first.first_layer}-{nodes[-1].last_layer} of {pipeline.model}/{pipeline.phase} in {first.region}",
        "set -euo pipefail",
    ]


def _node_script(pipeline: PipelineLaunch, nodes: list[NodeLaunch]) -> str:
    lines = _head("Node", pipeline, nodes)
    if len(nodes) == 1:
        lines += own_address_lines(nodes[0]) + exports(nodes[0].env)
        lines.append(command_lines(nodes[0].argv, prefix="exec "))
        return "\n".join(lines) + "\n"
    # Parts of one node live and die together; whichever ends first ends the others.
    lines.append("trap 'kill $(jobs -p) 2>/dev/null || true' EXIT TERM INT")
    for node in nodes:
        inner = own_address_lines(node) + exports(node.env) + [command_lines(node.argv, prefix="exec ")]
        lines += ["(", *inner, ") &"]
    lines.append("wait -n")
    return "\n".join(lines) + "\n"


def _preflight_script(pipeline: PipelineLaunch, nodes: list[NodeLaunch]) -> str:
    lines = _head("Pre-flight check of", pipeline, nodes)
    lines += ["# Run on all nodes of the pipeline at once, before the servers; torch must be installed."]
    lines += ['here="$(cd "$(dirname "$0")" && pwd)"']
    lines += own_address_lines(nodes[0])
    for node in nodes:
        degree = len(node.gpus)
        env = {k: v for k, v in node.env.items() if k.endswith("SOCKET_IFNAME") or k == "CUDA_VISIBLE_DEVICES"}
        argv = ["torchrun", "--nnodes", str(len(pipeline.nodes)), "--nproc-per-node", str(degree)]
        argv += ["--node-rank", str(node.rank), "--master-addr", pipeline.head.host]
        argv += ["--master-port", str(PREFLIGHT_PORT)]
        command = f'{command_lines(argv)} \\\n  "$here"/preflight.py --stage-gpus {degree}'
        lines += [*(["("] if len(nodes) > 1 else []), *exports(env), command, *([") &"] if len(nodes) > 1 else [])]
    if len(nodes) > 1:
        lines.append('for job in $(jobs -p); do wait "$job"; done')
    return "\n".join(lines) + "\n"
