"""Sections about what can be rented: GPUs, nodes, regions, prices, and the links between regions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from coralopt.catalog.types import Vendor
from coralopt.scenario.file.fields import Count, Name, Positive, Section, Text, Usd, Word
from coralopt.scenario.file.models import Limits


class CustomGpu(Section):
    """A GPU type that the catalog does not have."""

    base: Name | None = Field(
        default=None, description="GPU of the catalog that this is a variant of: its figures hold"
    )
    mig: Annotated[str, Field(pattern=r"^[1-7]g\.[1-9][0-9]{0,2}gb$")] | None = Field(
        default=None, description="MIG profile of the slice of 'base' that this is, for example 3g.40gb"
    )
    memory_gib: Positive | None = Field(default=None, description="usable device memory, in GiB")
    bandwidth_gb_s: Positive | None = Field(default=None, description="peak memory bandwidth, in 1e9 bytes/s")
    bf16_tflops: Positive | None = Field(default=None, description="dense BF16 peak, in 1e12 FLOP/s")
    fp8_tflops: Positive | None = Field(
        default=None, description="dense FP8 peak, in 1e12 FLOP/s; leave out if there is none"
    )
    link_gb_s: Positive | None = Field(
        default=None, description="GPU to GPU inside a node, one direction, in 1e9 bytes/s a GPU"
    )
    nvlink: bool | None = Field(default=None, description="whether that link is NVLink or its equal; default: no")
    architecture: Text | None = Field(default=None, description="silicon generation")
    vendor: Vendor | None = Field(
        default=None, description="whose drivers it needs: nvidia or amd; default: as its name says"
    )
    source: Text | None = Field(default=None, description="where the figures come from")

    @model_validator(mode="after")
    def _complete(self) -> CustomGpu:
        wanted = ("memory_gib", "bandwidth_gb_s", "bf16_tflops", "link_gb_s")
        missing = [name for name in wanted if getattr(self, name) is None]
        if self.base is None and missing:
            raise ValueError(f"give {', '.join(missing)}, or the GPU of the catalog whose figures hold: base")
        if self.mig is not None and (self.base is None or len(missing) < len(wanted)):
            raise ValueError("a MIG slice has its figures from base and mig alone")
        return self


class CustomNode(Section):
    """A node configuration that the catalog does not have."""

    gpu: Name = Field(description="GPU type of the catalog or of 'gpus'")
    count: Annotated[int, Field(ge=1, le=64)] = Field(description="GPUs in the node")
    network_gb_s: Positive = Field(description="network of the node, one direction, in 1e9 bytes/s (Gbit/s / 8)")


class SpotEntry(Section):
    """Spot nodes of one configuration in one region, beside those on demand."""

    available: Count = Field(description="spot nodes that can be rented, a whole number")
    price_usd_h: Usd | None = Field(
        default=None, description="spot price in place of the catalog's, in USD per node-hour"
    )
    preemption_usd_h: Usd = Field(
        default=0.0, description="what preemptions cost on top, on average, in USD per node-hour"
    )


class Commitment(Section):
    """Nodes that may be had at a price of their own by paying for whole terms."""

    nodes: Count = Field(description="how many of the available nodes may be committed to, a whole number")
    price_usd_h: Usd = Field(description="price while committed, in USD per node-hour")
    term_h: Positive = Field(description="what is paid for at least, and again when it is over, in hours")


class PoolEntry(Section):
    """Supply of one node configuration in one region."""

    available: Count = Field(description="nodes that can be rented, a whole number; 0 beside spot nodes alone")
    reserved: Count = Field(
        default=0, description="how many of these are paid for already and cost nothing more, a whole number"
    )
    spot: SpotEntry | None = Field(default=None, description="spot nodes beside those")
    commitment: Commitment | None = Field(
        default=None, description="nodes among those on demand that a term makes cheaper: nodes, price_usd_h and term_h"
    )
    price_usd_h: Usd | None = Field(default=None, description="price in place of the catalog's, in USD per node-hour")
    instance_type: Word | None = Field(
        default=None, description="the cloud's name of the instance; overrides the catalog"
    )


def _entry_form(value: object) -> str:
    return "<entry>" if isinstance(value, Mapping | PoolEntry) else "<count>"


def _supply_form(value: object) -> str:
    return "<all>" if isinstance(value, str) else "<list>" if isinstance(value, list) else "<each>"


Entry = Annotated[Annotated[Count, Tag("<count>")] | Annotated[PoolEntry, Tag("<entry>")], Discriminator(_entry_form)]
Supply = Annotated[
    Annotated[Literal["all"], Tag("<all>")]
    | Annotated[list[Name], Tag("<list>")]
    | Annotated[dict[Name, Entry], Tag("<each>")],
    Discriminator(_supply_form),
]


class Region(Section):
    """Supply of one region."""

    available: Count | None = Field(
        default=None, description="nodes of each configuration when 'configurations' is a list or 'all', a whole number"
    )
    configurations: Supply = Field(
        description="configuration -> nodes available (a whole number, or available, price_usd_h, instance_type); "
        "or a list of configurations; or all: everything the catalog has a price for"
    )
    limits: Limits = Field(default_factory=Limits, description="most nodes and USD/h in this region")

    @model_validator(mode="after")
    def _availability(self) -> Region:
        if isinstance(self.configurations, dict) and self.available is not None:
            raise ValueError(
                "'available' goes with a list of configurations or 'all'; here each configuration has its own"
            )
        if not isinstance(self.configurations, dict) and self.available is None:
            raise ValueError("'available' is missing: the number of nodes of each listed configuration")
        return self


class Pool(Section):
    """What can be rented, and at what price."""

    market: Literal["on-demand", "spot"] = Field(default="on-demand", description="which catalog price applies")
    catalog: Text | None = Field(
        default=None, description="in a scenario file: path of a catalog of prices, or user for the user's own"
    )
    regions: dict[Name, Region] = Field(description="region -> its supply")

    @model_validator(mode="after")
    def _no_catalog_left(self) -> Pool:
        if self.catalog is not None:
            raise ValueError("a catalog of prices is read with a scenario file; here give each price_usd_h")
        return self


class Egress(Section):
    """What it takes to send KV caches from one region to another; over what the catalog says."""

    usd_gb: Annotated[float, Field(ge=0, le=1000)] | None = Field(
        default=None, description="price, in USD per 1e9 bytes"
    )
    gbit_s: Positive | None = Field(default=None, description="what one node sends, in Gbit/s")
    allowed: bool = Field(default=True, description="whether KV caches may go this way at all")
