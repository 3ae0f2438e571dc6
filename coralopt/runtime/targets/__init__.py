"""Launches as files: shell scripts, SkyPilot job groups, Kubernetes manifests."""

from coralopt.runtime.targets.kubernetes import KubernetesAddresses, KubernetesOptions, kubernetes_files
from coralopt.runtime.targets.output import write_files
from coralopt.runtime.targets.rollout import Rollout, successors
from coralopt.runtime.targets.shell import preflight_program, shell_files
from coralopt.runtime.targets.skypilot import SkyPilotAddresses, skypilot_files

__all__ = [
    "KubernetesAddresses",
    "KubernetesOptions",
    "Rollout",
    "SkyPilotAddresses",
    "kubernetes_files",
    "preflight_program",
    "shell_files",
    "skypilot_files",
    "successors",
    "write_files",
]
