"""Facts without logic: GPUs, node configurations, prices, model architectures, each with its source."""

from coralopt.catalog.checkpoints import read_checkpoint
from coralopt.catalog.loaders import (
    RequestLengths,
    configuration_name,
    find_model,
    gpus,
    models,
    node_configurations,
    offers,
    parse_configuration,
    region_links,
    regions,
    request_lengths,
)
from coralopt.catalog.types import GIB, Gpu, ModelArchitecture, NodeConfiguration, Offer, RegionLink

__all__ = [
    "GIB",
    "Gpu",
    "ModelArchitecture",
    "NodeConfiguration",
    "Offer",
    "RegionLink",
    "RequestLengths",
    "configuration_name",
    "find_model",
    "gpus",
    "models",
    "node_configurations",
    "offers",
    "parse_configuration",
    "read_checkpoint",
    "region_links",
    "regions",
    "request_lengths",
]
