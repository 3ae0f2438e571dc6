"""The router: an OpenAI API in front of all serving instances of a plan (paper, section 5.1)."""

from coralopt.runtime.router.config import BackendConfig, RouterConfig, backend_config, router_document
from coralopt.runtime.router.haproxy import haproxy_configuration
from coralopt.runtime.router.vllm_router import vllm_router_commands

__all__ = [
    "BackendConfig",
    "RouterConfig",
    "backend_config",
    "haproxy_configuration",
    "router_document",
    "vllm_router_commands",
]
