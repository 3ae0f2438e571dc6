"""All servers of a plan on this machine, behind a router."""

from coralopt.runtime.local.addresses import LocalAddresses
from coralopt.runtime.local.client import RemoteController
from coralopt.runtime.local.cluster import LocalCluster
from coralopt.runtime.local.controller import RestartPolicy
from coralopt.runtime.local.reconcile import Changes, Pace, reconcile
from coralopt.runtime.local.serve import LocalOptions, serve_locally

__all__ = [
    "Changes",
    "LocalAddresses",
    "LocalCluster",
    "LocalOptions",
    "Pace",
    "RemoteController",
    "RestartPolicy",
    "reconcile",
    "serve_locally",
]
