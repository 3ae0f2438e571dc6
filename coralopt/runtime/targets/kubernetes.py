"""Target ``kubernetes``: a headless service a pipeline and a StatefulSet a stage, or a LeaderWorkerSet where it fits."""

from __future__ import annotations

import dataclasses
from typing import Any

from coralopt.runtime.launch import Launch, NodeLaunch, PipelineLaunch
from coralopt.runtime.lower import OneNodeEach
from coralopt.runtime.naming import dns_label
from coralopt.runtime.router.config import router_document
from coralopt.runtime.targets.documents import json_text, launch_text, yaml_text
from coralopt.runtime.targets.kubernetes_router import IMAGE as ROUTER_IMAGE
from coralopt.runtime.targets.kubernetes_router import NAME as ROUTER
from coralopt.runtime.targets.kubernetes_router import router_manifests

#: Label values that NVIDIA's feature discovery gives nodes.
GPU_PRODUCTS = {
    "L4": "NVIDIA-L4",
    "L40S": "NVIDIA-L40S",
    "A10G": "NVIDIA-A10G",
    "A100": "NVIDIA-A100-SXM4-80GB",
    "A100-40": "NVIDIA-A100-SXM4-40GB",
    "H100": "NVIDIA-H100-80GB-HBM3",
    "H200": "NVIDIA-H200",
    "B200": "NVIDIA-B200",
    "T4": "Tesla-T4",
    "V100": "Tesla-V100-SXM2-16GB",
}
#: Seconds beyond draining before a pod is killed.
GRACE_S = 30
#: An optional secret of the user: key ``api-key`` protects the servers, ``router-key`` the router, ``hf-token`` loads
#: gated checkpoints.
SECRET = "coralopt"


class KubernetesAddresses(OneNodeEach):
    """Pods have stable names ``{stateful set}-0.{headless service}``."""

    def host(self, pipeline: str, node: str, machine: str) -> str:
        return f"{machine}-0.{pipeline}"

    def bind(self, host: str) -> str:
        return "0.0.0.0"


@dataclasses.dataclass(frozen=True)
class KubernetesOptions:
    """How manifests are written.

    Attributes:
        image: Container image of the engine.
        router_image: Container image with coralopt in it, for the router.
        namespace: Namespace, or ``None`` for that of the context.
        shm_gib: Shared memory of a pod, GiB.
        leader_worker_set: Use a LeaderWorkerSet for pipelines whose stages after the first are alike.
        cloud_labels: Pin pods to region and instance type by the clouds' labels; GPU product alone otherwise.
    """

    image: str = "vllm/vllm-openai:v0.32.0"
    router_image: str = ROUTER_IMAGE
    namespace: str | None = None
    shm_gib: int = 8
    leader_worker_set: bool = False
    cloud_labels: bool = True


def kubernetes_files(launch: Launch, options: KubernetesOptions | None = None) -> dict[str, str]:
    """Files by relative path: ``NAME.yaml`` for every pipeline, ``coralopt-router.yaml``, and the launch.

    Args:
        launch: Lowered with :class:`KubernetesAddresses`.
        options: How manifests are written.
    """
    chosen = options or KubernetesOptions()
    output = {f"{p.name}.yaml": yaml_text(_manifests(p, chosen)) for p in launch.pipelines}
    router = router_document(launch)
    for backend, pipeline in zip(router["backends"], launch.pipelines, strict=True):
        if chosen.leader_worker_set and fits_leader_worker_set(pipeline):
            # The controller names pods itself, and its own headless service after the set.
            for field in {"url", "kv_url"} & set(backend):
                backend[field] = backend[field].replace(pipeline.head.host, f"{pipeline.name}-0.{pipeline.name}")
    drain_s = max((pipeline.drain_s for pipeline in launch.pipelines), default=0)
    manifests = router_manifests(router, chosen.router_image, chosen.namespace, drain_s, SECRET)
    output[f"{ROUTER}.yaml"] = yaml_text(manifests)
    output["router.json"] = json_text(router)
    output["launch.json"] = launch_text(launch)
    return output


def fits_leader_worker_set(pipeline: PipelineLaunch) -> bool:
    """Whether one leader template and one worker template describe it: a node a stage, all workers alike."""
    workers = pipeline.nodes[1:]
    alone = len({node.machine for node in pipeline.nodes}) == len(pipeline.nodes)
    return bool(workers) and alone and len({(node.configuration, node.instance_type) for node in workers}) == 1


def _labels(pipeline: PipelineLaunch) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "coralopt",
        "app.kubernetes.io/managed-by": "coralopt",
        "app.kubernetes.io/instance": pipeline.name,
        "coralopt/model": dns_label(pipeline.model),
        "coralopt/phase": pipeline.phase,
    }


def _metadata(name: str, labels: dict[str, str], options: KubernetesOptions) -> dict[str, Any]:
    return {"name": name, **({"namespace": options.namespace} if options.namespace else {}), "labels": labels}


def _manifests(pipeline: PipelineLaunch, options: KubernetesOptions) -> list[dict[str, Any]]:
    if options.leader_worker_set and fits_leader_worker_set(pipeline):
        return _leader_worker_set(pipeline, options)
    labels = _labels(pipeline)
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(pipeline.name, labels, options),
        "spec": {
            "clusterIP": "None",
            # Stages must find each other before the head answers its probe.
            "publishNotReadyAddresses": True,
            "selector": {"app.kubernetes.io/instance": pipeline.name},
            "ports": [{"name": use, "port": port} for use, port in pipeline.head.ports.items()],
        },
    }
    return [service, *(_stateful_set(pipeline, machine, labels, options) for machine in _machines(pipeline))]


def _machines(pipeline: PipelineLaunch) -> list[str]:
    return list(dict.fromkeys(node.machine for node in pipeline.nodes))


def _stateful_set(
    pipeline: PipelineLaunch, machine: str, labels: dict[str, str], options: KubernetesOptions
) -> dict[str, Any]:
    nodes = [node for node in pipeline.nodes if node.machine == machine]
    mine = {**labels, "coralopt/stage": machine.removeprefix(f"{pipeline.name}-")}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(machine, mine, options),
        "spec": {
            "replicas": 1,
            "serviceName": pipeline.name,
            # Stages start together; waiting for one another in order would never end.
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": mine},
            "template": {"metadata": {"labels": mine}, "spec": _pod(pipeline, nodes, options)},
        },
    }


def _pod(pipeline: PipelineLaunch, nodes: list[NodeLaunch], options: KubernetesOptions) -> dict[str, Any]:
    return {
        "terminationGracePeriodSeconds": pipeline.drain_s + GRACE_S,
        "nodeSelector": _selector(nodes[0], options),
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [_container(pipeline, node, len(nodes) > 1, options) for node in nodes],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{options.shm_gib}Gi"}}],
    }


def _selector(node: NodeLaunch, options: KubernetesOptions) -> dict[str, str]:
    gpu = node.configuration.split("x", 1)[1]
    selector: dict[str, str] = {}
    if options.cloud_labels:
        selector["topology.kubernetes.io/region"] = node.region
        if node.instance_type is not None:
            return {**selector, "node.kubernetes.io/instance-type": node.instance_type}
    return {**selector, "nvidia.com/gpu.product": GPU_PRODUCTS.get(gpu, f"NVIDIA-{gpu}")}


def _container(pipeline: PipelineLaunch, node: NodeLaunch, parts: bool, options: KubernetesOptions) -> dict[str, Any]:
    # The device plugin shows every container its own GPUs, counted from 0.
    env: list[dict[str, Any]] = [{"name": k, "value": v} for k, v in node.env.items() if k != "CUDA_VISIBLE_DEVICES"]
    env += [{"name": k, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} for k in node.own_address]
    env += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": SECRET, "key": key, "optional": True}}}
        for name, key in (("VLLM_API_KEY", "api-key"), ("HF_TOKEN", "hf-token"))
    ]
    container: dict[str, Any] = {
        "name": f"part-{node.rank}" if parts else "engine",
        "image": options.image,
        "command": [*node.argv],
        "env": env,
        "resources": {"limits": {"nvidia.com/gpu": str(len(node.gpus))}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    if node.rank == 0:
        probe = {"httpGet": {"path": pipeline.health_path, "port": node.ports["http"]}, "timeoutSeconds": 5}
        container["ports"] = [{"name": use, "containerPort": port} for use, port in node.ports.items()]
        container["startupProbe"] = {**probe, "periodSeconds": 10, "failureThreshold": 180}
        container["readinessProbe"] = {**probe, "periodSeconds": 5}
        container["livenessProbe"] = {**probe, "periodSeconds": 10, "failureThreshold": 6}
    else:
        # All pods are told to stop at once; the other stages must outlive the head's last request.
        container["lifecycle"] = {"preStop": {"exec": {"command": ["sleep", str(pipeline.drain_s)]}}}
    return container


def _leader_worker_set(pipeline: PipelineLaunch, options: KubernetesOptions) -> list[dict[str, Any]]:
    """Rank and leader come from variables that the controller sets; all else is as in the StatefulSets."""
    labels = _labels(pipeline)

    def template(node: NodeLaunch) -> dict[str, Any]:
        argv = list(node.argv)
        argv[argv.index("--master-addr") + 1] = "$(LWS_LEADER_ADDRESS)"
        argv[argv.index("--node-rank") + 1] = "$(LWS_WORKER_INDEX)"
        argv[argv.index("--nnodes") + 1] = "$(LWS_GROUP_SIZE)"
        pod = _pod(pipeline, [dataclasses.replace(node, argv=tuple(argv))], options)
        return {"metadata": {"labels": labels}, "spec": pod}

    return [
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": _metadata(pipeline.name, labels, options),
            "spec": {
                "replicas": 1,
                "startupPolicy": "LeaderCreated",
                "leaderWorkerTemplate": {
                    "size": len(pipeline.nodes),
                    "restartPolicy": "RecreateGroupOnPodRestart",
                    "leaderTemplate": template(pipeline.nodes[0]),
                    "workerTemplate": template(pipeline.nodes[1]),
                },
            },
        }
    ]
