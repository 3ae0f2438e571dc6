"""Target ``kubernetes``: a LeaderWorkerSet a pipeline where it fits, else a headless service and a StatefulSet a stage.

In front of them the router: its configuration, a Deployment that restarts when that changes, and a Service.
"""

from __future__ import annotations

import dataclasses
import hashlib

from coralopt._version import __version__
from coralopt.runtime.launch import Launch, NodeLaunch, PipelineLaunch
from coralopt.runtime.lower import OneNodeEach
from coralopt.runtime.naming import dns_label
from coralopt.runtime.targets.documents import common_files, yaml_text
from coralopt.types import Json, JsonObject

#: Resource of a vendor's device plugin, and the label in which its discovery writes the product.
GPU_RESOURCES = {
    "nvidia": ("nvidia.com/gpu", "nvidia.com/gpu.product"),
    "amd": ("amd.com/gpu", "amd.com/gpu.product-name"),
}
#: Label values that these discoveries give nodes.
GPU_PRODUCTS = {
    "MI300X": "AMD_Instinct_MI300X_OAM",
    "L4": "NVIDIA-L4",
    "L40S": "NVIDIA-L40S",
    "A10G": "NVIDIA-A10G",
    "A100": "NVIDIA-A100-SXM4-80GB",
    "A100-40": "NVIDIA-A100-SXM4-40GB",
    "H100": "NVIDIA-H100-80GB-HBM3",
    "H200": "NVIDIA-H200",
    "B200": "NVIDIA-B200",
    "GB200": "NVIDIA-GB200",
    "RTXPRO6000": "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
    "RTX4090": "NVIDIA-GeForce-RTX-4090",
    "T4": "Tesla-T4",
    "V100": "Tesla-V100-SXM2-16GB",
}
#: Seconds beyond draining before a pod is killed.
GRACE_S = 30
#: Name of everything of the router, one a namespace; and the port it listens on.
ROUTER, ROUTER_PORT = "coralopt-router", 8000
#: Seconds in which the cluster learns that the router's pod is going, before it stops listening.
LEAVE_S = 5
#: Who processes in pods are; the image must let any user run.
USER = 1000
#: Where engines keep checkpoints and compiled kernels.
CACHE = "/cache"
#: Labels of everything that is written here.
OURS = {"app.kubernetes.io/name": "coralopt", "app.kubernetes.io/managed-by": "coralopt"}
#: An optional secret of the user: key ``api-key`` protects the servers, ``router-key`` the router, ``admin-key`` opens the
#: router's admin endpoints, ``hf-token`` loads gated checkpoints.
SECRET = "coralopt"
ROUTER_LABELS = {**OURS, "app.kubernetes.io/component": "router"}


class KubernetesAddresses(OneNodeEach):
    """Pods have stable names ``{stateful set}-0.{headless service}``; slices of a GPU are resources of their own."""

    slices_apart = True

    def host(self, pipeline: str, node: str, machine: str) -> str:
        return f"{machine}-0.{pipeline}"

    def bind(self, host: str) -> str:
        return "0.0.0.0"


@dataclasses.dataclass(frozen=True)
class KubernetesOptions:
    """How manifests are written.

    Attributes:
        image: Container image of the engine; one by digest (``NAME@sha256:...``) is always the same.
        router_image: Container image with coralopt and its extra `runtime` in it; docs/deploy.md says how to build it.
        namespace: Namespace, or ``None`` for that of the context.
        shm_gib: Shared memory of a pod, GiB.
        cpu: CPUs that a pod asks for, a GPU.
        memory_gib: Main memory that a pod asks for, GiB a GPU.
        cache_claim: A persistent volume claim for checkpoints, mounted by all pods; without one each loads its own.
        leader_worker_set: Use a LeaderWorkerSet, which restarts all stages when one fails, for pipelines whose stages after
            the first are alike; needs its controller in the cluster. Other pipelines get StatefulSets.
        cloud_labels: Pin pods to region and instance type by the clouds' labels; GPU product alone otherwise.
    """

    image: str = "vllm/vllm-openai:v0.32.0"
    router_image: str = f"coralopt:{__version__}"
    namespace: str | None = None
    shm_gib: int = 8
    cpu: int = 2
    memory_gib: int = 10
    cache_claim: str | None = None
    leader_worker_set: bool = True
    cloud_labels: bool = True


def kubernetes_files(launch: Launch, options: KubernetesOptions | None = None) -> dict[str, str]:
    """Files by relative path: ``NAME.yaml`` for every pipeline, ``coralopt-router.yaml``, and the launch.

    Args:
        launch: Lowered with :class:`KubernetesAddresses`.
        options: How manifests are written.

    Raises:
        LaunchError: Servers share GPUs.
    """
    launch.require_own_machines("a pod takes whole GPUs")
    chosen = options or KubernetesOptions()
    output = {f"{p.name}.yaml": yaml_text(_manifests(p, chosen)) for p in launch.pipelines}

    def head(pipeline: PipelineLaunch) -> str:
        """The LeaderWorkerSet's controller names pods itself, and its own headless service after the set."""
        led = chosen.leader_worker_set and fits_leader_worker_set(pipeline)
        return f"{pipeline.name}-0.{pipeline.name}" if led else pipeline.head.host

    common = common_files(launch, head)
    drain_s = max((pipeline.drain_s for pipeline in launch.pipelines), default=0)
    budgets = {f"coralopt-{dns_label(p.model, p.phase)}": _served(p) for p in launch.pipelines}
    documents = [
        *_router(common["router.json"], drain_s, chosen),
        *(_disruption_budget(name, served, chosen) for name, served in budgets.items()),
    ]
    output[f"{ROUTER}.yaml"] = yaml_text(documents)
    return output | common


def fits_leader_worker_set(pipeline: PipelineLaunch) -> bool:
    """Whether one leader template and one worker template describe it: a node a stage, all workers alike."""
    workers = pipeline.nodes[1:]
    alone = len({node.machine for node in pipeline.nodes}) == len(pipeline.nodes)
    return bool(workers) and alone and len({(node.configuration, node.instance_type) for node in workers}) == 1


def _manifest(kind: str, name: str, labels: JsonObject, options: KubernetesOptions, **fields: Json) -> JsonObject:
    """A document of this kind; ``fields`` are what it has beside its head."""
    group = {"StatefulSet": "apps/v1", "Deployment": "apps/v1", "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1"}
    group |= {"NetworkPolicy": "networking.k8s.io/v1", "PodDisruptionBudget": "policy/v1"}
    metadata: JsonObject = {
        "name": name,
        **({"namespace": options.namespace} if options.namespace else {}),
        "labels": labels,
    }
    return {"apiVersion": group.get(kind, "v1"), "kind": kind, "metadata": metadata, **fields}


def _secrets(**keys: str) -> list[Json]:
    """Environment variables from keys of the user's secret."""
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": SECRET, "key": key, "optional": True}}}
        for name, key in keys.items()
    ]


def _served(pipeline: PipelineLaunch) -> dict[str, str]:
    return {"coralopt/model": dns_label(pipeline.model), "coralopt/phase": pipeline.phase}


def _labels(pipeline: PipelineLaunch) -> dict[str, str]:
    return {**OURS, "app.kubernetes.io/instance": pipeline.name, **_served(pipeline)}


def _disruption_budget(name: str, served: dict[str, str], options: KubernetesOptions) -> JsonObject:
    """Nodes are emptied one pod of a model phase at a time."""
    spec: JsonObject = {"maxUnavailable": 1, "selector": {"matchLabels": served}}
    return _manifest("PodDisruptionBudget", name, {**OURS, **served}, options, spec=spec)


def _network_policy(pipeline: PipelineLaunch, labels: dict[str, str], options: KubernetesOptions) -> JsonObject:
    """Who may reach a pipeline's pods: the router its API, its own stages everything, and the other side of KV transfers."""
    own: JsonObject = {"app.kubernetes.io/instance": pipeline.name}
    peers: list[JsonObject] = [own]
    if pipeline.connector is not None:
        peers.append({"coralopt/model": dns_label(pipeline.model)})
    ports = [port for use, port in pipeline.head.ports.items() if use in ("http", "kv")]
    ingress: list[Json] = [
        {"from": [{"podSelector": {"matchLabels": ROUTER_LABELS}}], "ports": [{"port": port} for port in ports]},
        {"from": [{"podSelector": {"matchLabels": peer}} for peer in peers]},
    ]
    spec: JsonObject = {"podSelector": {"matchLabels": own}, "policyTypes": ["Ingress"], "ingress": ingress}
    return _manifest("NetworkPolicy", pipeline.name, labels, options, spec=spec)


def _literal(text: str) -> str:
    """Text in which Kubernetes replaces no ``$(NAME)``."""
    return text.replace("$(", "$$(")


def _locked(**fields: Json) -> JsonObject:
    """Security of a container: no more rights than it starts with."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, **fields}


def _unprivileged() -> JsonObject:
    """A pod without root and without a door to the cluster's API."""
    identity = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    return {
        "automountServiceAccountToken": False,
        "securityContext": {**identity, "seccompProfile": {"type": "RuntimeDefault"}},
    }


def _manifests(pipeline: PipelineLaunch, options: KubernetesOptions) -> list[JsonObject]:
    labels = _labels(pipeline)
    policy = _network_policy(pipeline, labels, options)
    if options.leader_worker_set and fits_leader_worker_set(pipeline):
        return [_leader_worker_set(pipeline, labels, options), policy]
    spec: JsonObject = {
        "clusterIP": "None",
        # Stages must find each other before the head answers its probe.
        "publishNotReadyAddresses": True,
        "selector": {"app.kubernetes.io/instance": pipeline.name},
        "ports": [{"name": use, "port": port} for use, port in pipeline.head.ports.items()],
    }
    service = _manifest("Service", pipeline.name, labels, options, spec=spec)
    return [service, *(_stateful_set(pipeline, machine, labels, options) for machine in pipeline.machines), policy]


def _stateful_set(
    pipeline: PipelineLaunch, machine: str, labels: dict[str, str], options: KubernetesOptions
) -> JsonObject:
    mine = {**labels, "coralopt/stage": machine.removeprefix(f"{pipeline.name}-")}
    spec: JsonObject = {
        "replicas": 1,
        "serviceName": pipeline.name,
        # Stages start together; waiting for one another in order would never end.
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": mine},
        "template": {"metadata": {"labels": mine}, "spec": _pod(pipeline, pipeline.machines[machine], options)},
    }
    return _manifest("StatefulSet", machine, mine, options, spec=spec)


def _pod(pipeline: PipelineLaunch, nodes: list[NodeLaunch], options: KubernetesOptions) -> JsonObject:
    cache: JsonObject = {"emptyDir": {}}
    if options.cache_claim is not None:
        cache = {"persistentVolumeClaim": {"claimName": options.cache_claim}}
    return {
        **_unprivileged(),
        "terminationGracePeriodSeconds": pipeline.drain_s + GRACE_S,
        "nodeSelector": _selector(nodes[0], options),
        "tolerations": [{"key": GPU_RESOURCES[nodes[0].vendor][0], "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [_container(pipeline, node, len(nodes) > 1, options) for node in nodes],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{options.shm_gib}Gi"}},
            {"name": "cache", **cache},
        ],
    }


def _selector(node: NodeLaunch, options: KubernetesOptions) -> dict[str, str]:
    selector: dict[str, str] = {}
    if options.cloud_labels:
        selector["topology.kubernetes.io/region"] = node.region
        if node.instance_type is not None:
            return {**selector, "node.kubernetes.io/instance-type": node.instance_type}
    prefix = {"nvidia": "NVIDIA-", "amd": "AMD_Instinct_"}[node.vendor]
    return {**selector, GPU_RESOURCES[node.vendor][1]: GPU_PRODUCTS.get(node.gpu, f"{prefix}{node.gpu}")}


def _container(pipeline: PipelineLaunch, node: NodeLaunch, parts: bool, options: KubernetesOptions) -> JsonObject:
    # The device plugin shows every container its own GPUs, counted from 0.
    env: list[Json] = [{"name": k, "value": _literal(v)} for k, v in node.env.items() if not k.startswith("CUDA_")]
    env += [{"name": name, "value": CACHE} for name in ("HOME", "HF_HOME")]
    env += [{"name": k, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} for k in node.own_address]
    container: JsonObject = {
        "name": f"part-{node.rank}" if parts else "engine",
        "image": options.image,
        "command": [_literal(word) for word in node.argv],
        "env": [*env, *_secrets(VLLM_API_KEY="api-key", HF_TOKEN="hf-token")],
        "resources": {
            "requests": {
                "cpu": str(options.cpu * len(node.gpus)),
                "memory": f"{options.memory_gib * len(node.gpus)}Gi",
            },
            # Slices of GPUs are resources of their own (MIG strategy `mixed`).
            "limits": {
                f"nvidia.com/mig-{node.mig}" if node.mig else GPU_RESOURCES[node.vendor][0]: str(len(node.gpus))
            },
        },
        "securityContext": _locked(),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "cache", "mountPath": CACHE}],
    }
    if node.rank:
        # Other stages serve no HTTP and do not see a head that comes back: they end when it does not answer, and meet anew.
        ask: JsonObject = {"exec": {"command": ["python3", "-c", _asks(pipeline)]}, "timeoutSeconds": 10}
        return {
            **container,
            "startupProbe": {**ask, "periodSeconds": 10, "failureThreshold": 180},
            "livenessProbe": {**ask, "periodSeconds": 10, "failureThreshold": 3},
            # All pods are told to stop at once; the other stages must outlive the head's last request.
            "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(pipeline.drain_s)]}}},
        }
    probe: JsonObject = {"httpGet": {"path": pipeline.health_path, "port": node.ports["http"]}, "timeoutSeconds": 5}
    return {
        **container,
        "ports": [{"name": use, "containerPort": port} for use, port in node.ports.items()],
        "startupProbe": {**probe, "periodSeconds": 10, "failureThreshold": 180},
        "readinessProbe": {**probe, "periodSeconds": 5},
        "livenessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 6},
    }


def _asks(pipeline: PipelineLaunch) -> str:
    """A program that ends well where the head is healthy."""
    return f"import urllib.request; urllib.request.urlopen({pipeline.url + pipeline.health_path!r}, timeout=5)"


def _leader_worker_set(pipeline: PipelineLaunch, labels: dict[str, str], options: KubernetesOptions) -> JsonObject:
    """Rank and leader come from variables that the controller sets; all else is as in the StatefulSets."""
    variables = {"--master-addr": "LWS_LEADER_ADDRESS", "--node-rank": "LWS_WORKER_INDEX", "--nnodes": "LWS_GROUP_SIZE"}

    def template(node: NodeLaunch) -> JsonObject:
        argv = [_literal(word) for word in node.argv]
        for option, variable in variables.items():
            argv[argv.index(option) + 1] = f"$({variable})"
        container = {**_container(pipeline, node, False, options), "command": argv}
        if node.rank:
            # The controller restarts the whole group when one of it fails.
            container = {key: value for key, value in container.items() if not key.endswith("Probe")}
        return {"metadata": {"labels": labels}, "spec": {**_pod(pipeline, [node], options), "containers": [container]}}

    group: JsonObject = {
        "size": len(pipeline.nodes),
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": template(pipeline.nodes[0]),
        "workerTemplate": template(pipeline.nodes[1]),
    }
    spec: JsonObject = {"replicas": 1, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": group}
    return _manifest("LeaderWorkerSet", pipeline.name, labels, options, spec=spec)


def _router(configuration: str, drain_s: int, options: KubernetesOptions) -> list[JsonObject]:
    """ConfigMap, Deployment and Service of the router that reads ``configuration``."""
    labels = ROUTER_LABELS
    command = ["coralopt", "route", "/etc/coralopt/router.json", "--host", "0.0.0.0", "--port", str(ROUTER_PORT)]
    # Ready while it answers at all: what it says of models that are down is its own to say, with a Retry-After.
    probe: JsonObject = {"httpGet": {"path": "/ping", "port": ROUTER_PORT}}
    container: JsonObject = {
        "name": "router",
        "image": options.router_image,
        "command": command,
        "env": _secrets(CORALOPT_API_KEY="router-key", CORALOPT_ADMIN_KEY="admin-key", VLLM_API_KEY="api-key"),
        "ports": [{"name": "http", "containerPort": ROUTER_PORT}],
        "readinessProbe": {**probe, "periodSeconds": 2},
        "livenessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 6},
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(LEAVE_S)]}}},
        "resources": {"requests": {"cpu": "500m", "memory": "256Mi"}},
        "securityContext": _locked(readOnlyRootFilesystem=True),
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coralopt", "readOnly": True}],
    }
    pod: JsonObject = {
        **_unprivileged(),
        "terminationGracePeriodSeconds": drain_s + LEAVE_S + GRACE_S,
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": ROUTER}}],
    }
    # A new plan changes the annotation, and so replaces the pod: the new one answers before the old one goes.
    digest = {"coralopt/config": hashlib.sha256(configuration.encode()).hexdigest()[:16]}
    deployment: JsonObject = {
        "replicas": 1,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels, "annotations": digest}, "spec": pod},
    }
    service: JsonObject = {
        "selector": labels,
        "ports": [{"name": "http", "port": ROUTER_PORT, "targetPort": ROUTER_PORT}],
    }
    return [
        _manifest("ConfigMap", ROUTER, labels, options, data={"router.json": configuration}),
        _manifest("Deployment", ROUTER, labels, options, spec=deployment),
        _manifest("Service", ROUTER, labels, options, spec=service),
    ]
