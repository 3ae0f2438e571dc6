"""The router in Kubernetes: its configuration, a Deployment that restarts when that changes, and a Service in front."""

from __future__ import annotations

import hashlib
from typing import Any

from coralopt._version import __version__
from coralopt.runtime.targets.documents import json_text

#: Name of everything of the router; one a namespace.
NAME = "coralopt-router"
PORT = 8000
#: Image that holds coralopt with its extra `runtime`; docs/runtime.md says how to build it.
IMAGE = f"coralopt:{__version__}"
#: Seconds in which the cluster learns that a pod is going, before the router stops listening.
LEAVE_S = 5


def router_manifests(
    router: dict[str, Any], image: str, namespace: str | None, drain_s: int, secret: str
) -> list[dict[str, Any]]:
    """ConfigMap, Deployment and Service.

    Args:
        router: What ``coralopt route`` reads.
        image: Container image with coralopt in it.
        namespace: Or ``None`` for that of the context.
        drain_s: Seconds that requests in flight are given when a pod stops.
        secret: Optional secret of the user: ``router-key`` is asked of clients, ``api-key`` of the servers.
    """
    text = json_text(router)
    labels = {
        "app.kubernetes.io/name": "coralopt",
        "app.kubernetes.io/managed-by": "coralopt",
        "app.kubernetes.io/component": "router",
    }
    metadata = {"name": NAME, **({"namespace": namespace} if namespace else {}), "labels": labels}
    keys = (("CORALOPT_API_KEY", "router-key"), ("VLLM_API_KEY", "api-key"))
    container = {
        "name": "router",
        "image": image,
        "command": ["coralopt", "route", "/etc/coralopt/router.json", "--host", "0.0.0.0", "--port", str(PORT)],
        "env": [
            {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": True}}}
            for name, key in keys
        ],
        "ports": [{"name": "http", "containerPort": PORT}],
        # Ready while it answers at all: what it says of models that are down is its own to say, with a Retry-After.
        "readinessProbe": {"httpGet": {"path": "/ping", "port": PORT}, "periodSeconds": 2},
        "livenessProbe": {"httpGet": {"path": "/ping", "port": PORT}, "periodSeconds": 10, "failureThreshold": 6},
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(LEAVE_S)]}}},
        "resources": {"requests": {"cpu": "500m", "memory": "256Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coralopt", "readOnly": True}],
    }
    pod = {
        "terminationGracePeriodSeconds": drain_s + LEAVE_S + 30,
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": NAME}}],
    }
    # A new plan changes the annotation, and so replaces the pod: the new one answers before the old one goes.
    digest = {"coralopt/config": hashlib.sha256(text.encode()).hexdigest()[:16]}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"router.json": text}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "replicas": 1,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels, "annotations": digest}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": labels, "ports": [{"name": "http", "port": PORT, "targetPort": PORT}]},
        },
    ]
