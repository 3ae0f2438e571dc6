"""All servers of a plan on this machine, behind a router."""

from coralopt.runtime.local.addresses import LocalAddresses
from coralopt.runtime.local.cluster import LocalCluster
from coralopt.runtime.local.serve import LocalOptions, lower_locally, serve_locally

__all__ = ["LocalAddresses", "LocalCluster", "LocalOptions", "lower_locally", "serve_locally"]
