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


#: ``slice PROFILE N``: UUID of the N-th MIG slice of that profile on this machine, or a sentence what to do.
SLICE = """slice() {
  local uuid
  uuid="$(nvidia-smi -L | sed -n "s/^ *MIG $1 .*UUID: \\(MIG-[^)]*\\)).*/\\1/p" | sed -n "$2p")"
  if [ -z "$uuid" ]; then
    echo "MIG slice $2 of profile $1 is missing; divide the GPU first: nvidia-smi -mig 1; nvidia-smi mig -cgi $slices -C" >&2
    return 1
  fi
  echo "$uuid"
}"""
#: Seconds in which a server that woke takes in the requests that waited.
GATE_S = 0.3


def _shared_script(machine: str, sharing: list[PipelineLaunch]) -> str:
    """Servers of several models on one machine; each begins when the one before it serves, for it measures free memory.

    Those whose weights are swapped go to sleep when they serve, and wake in turn: a server that is told to sleep with
    ``mode=wait`` finishes the requests that it has taken in and keeps those that come for its next turn.
    """
    lines = ["#!/usr/bin/env bash", f"# Node {machine}: {len(sharing)} models share its GPUs, in {sharing[0].region}"]
    lines += ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT TERM INT"]
    profiles = [pipeline.head.mig for pipeline in sharing if pipeline.sharing == "slices"]
    if profiles:
        # Large slices have few places, so they are made first.
        lines += [f"slices={','.join(sorted(profiles, key=lambda name: (-int(name[0]), name)))}", SLICE]
    swapped: list[str] = []
    for k, pipeline in enumerate(sharing):
        node, device = pipeline.head, list[str]()
        if pipeline.sharing == "slices":
            same = [other.head.mig for other in sharing[: k + 1]].count(node.mig)
            device = [f'CUDA_VISIBLE_DEVICES="$(slice {node.mig} {same})"', "export CUDA_VISIBLE_DEVICES"]
        lines += [f"# {pipeline.model}/{pipeline.phase}", "(", *device, *serving_lines([node]), ") &"]
        lines.append(f"until curl -fs -o /dev/null {pipeline.url}{pipeline.health_path}; do kill -0 $!; sleep 2; done")
        if pipeline.sharing == "swapping":
            lines.append(f'curl -fsS -o /dev/null -X POST "{pipeline.url}/sleep?level=1&mode=wait"')
            swapped.append(pipeline.url)
    if swapped:
        turns = [
            "# Weights of one model at a time: it wakes, takes in what waits, finishes that, and sleeps again.",
            f"while kill -0 $(jobs -p); do for address in {' '.join(swapped)}; do",
            '  curl -fsS -o /dev/null -X POST "$address/wake_up"',
            f"  sleep {GATE_S}",
            '  curl -fsS -o /dev/null -X POST "$address/sleep?level=1&mode=wait"',
            "done; done",
        ]
        return "\n".join([*lines, *turns]) + "\n"
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
