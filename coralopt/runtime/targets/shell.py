"""Target ``shell``: one script a node, a pre-flight check, and the router's configuration."""

from __future__ import annotations

from importlib.resources import files

from coralopt.runtime.launch import Launch, NodeLaunch, PipelineLaunch
from coralopt.runtime.targets.documents import common_files
from coralopt.runtime.targets.quoting import command_lines, exports, own_address_lines, serving_lines

#: Rendezvous of the pre-flight check; its processes are gone before the servers start.
PREFLIGHT_PORT = 29400


def preflight_program() -> str:
    """Source of the stand-alone pre-flight program; it needs torch and nothing else."""
    return files("coralopt.runtime.targets").joinpath("preflight.py").read_text(encoding="utf-8")


def shell_files(launch: Launch) -> dict[str, str]:
    """Files by relative path: ``nodes/NAME.sh``, ``preflight/NAME.sh``, ``preflight.py``, router and launch."""
    output: dict[str, str] = {}
    for machine, sharing in launch.machines.items():
        if len(sharing) > 1:
            output[f"nodes/{machine}.sh"] = _shared_script(machine, sharing)
    for pipeline in launch.pipelines:
        for machine, nodes in pipeline.machines.items():
            output.setdefault(f"nodes/{machine}.sh", _node_script(pipeline, nodes))
            if sum(len(node.gpus) for node in pipeline.nodes) > 1:
                output[f"preflight/{machine}.sh"] = _preflight_script(pipeline, nodes)
    if any(name.startswith("preflight/") for name in output):
        output["preflight/preflight.py"] = preflight_program()
    return output | common_files(launch)


def _script(what: str, pipeline: PipelineLaunch, nodes: list[NodeLaunch], lines: list[str]) -> str:
    first = nodes[0]
    head = [
        "#!/usr/bin/env bash",
        f"# {what} {first.machine}: {first.configuration} ({first.instance_type or 'no instance type known'}), "
        f"layers {first.first_layer}-{nodes[-1].last_layer} of {pipeline.model}/{pipeline.phase} in {first.region}",
        "set -euo pipefail",
    ]
    return "\n".join([*head, *lines]) + "\n"


def _node_script(pipeline: PipelineLaunch, nodes: list[NodeLaunch]) -> str:
    # Parts of one node live and die together; whichever ends first ends the others.
    trap = ["trap 'kill $(jobs -p) 2>/dev/null || true' EXIT TERM INT"] if len(nodes) > 1 else []
    return _script("Node", pipeline, nodes, trap + serving_lines(nodes))


def _shared_script(machine: str, sharing: list[PipelineLaunch]) -> str:
    """Servers of several models on one machine; each begins when the one before it serves, for it measures free memory."""
    lines = ["#!/usr/bin/env bash", f"# Node {machine}: {len(sharing)} models share its GPUs, in {sharing[0].region}"]
    lines += ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT TERM INT"]
    for pipeline in sharing:
        node = pipeline.head
        lines += [f"# {pipeline.model}/{pipeline.phase}", "(", *serving_lines([node]), ") &"]
        address = f"http://127.0.0.1:{node.ports['http']}{pipeline.health_path}"
        lines.append(f"until curl -fs -o /dev/null {address}; do kill -0 $!; sleep 2; done")
    return "\n".join([*lines, "wait -n"]) + "\n"


def _preflight_script(pipeline: PipelineLaunch, nodes: list[NodeLaunch]) -> str:
    lines = ["# Run on all nodes of the pipeline at once, before the servers; torch must be installed."]
    lines += ['here="$(cd "$(dirname "$0")" && pwd)"', *own_address_lines(nodes[0])]
    several = len(nodes) > 1
    for node in nodes:
        degree = len(node.gpus)
        env = {k: v for k, v in node.env.items() if k.endswith("SOCKET_IFNAME") or k.startswith("CUDA_")}
        argv = ["torchrun", "--nnodes", str(len(pipeline.nodes)), "--nproc-per-node", str(degree)]
        argv += ["--node-rank", str(node.rank), "--master-addr", pipeline.head.host]
        argv += ["--master-port", str(PREFLIGHT_PORT)]
        command = f'{command_lines(argv)} \\\n  "$here"/preflight.py --stage-gpus {degree}'
        lines += [*["("] * several, *exports(env), command, *[") &"] * several]
    lines += ['for job in $(jobs -p); do wait "$job"; done'] * several
    return _script("Pre-flight check of", pipeline, nodes, lines)
