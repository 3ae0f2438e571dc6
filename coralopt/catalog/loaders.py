"""Typed, cached access to the packaged figures."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from coralopt.catalog.types import GIB, Gpu, LatentAttention, ModelArchitecture, NodeConfiguration, Offer, RegionLink
from coralopt.errors import CoraloptError

_MIB = 1024**2
_CONFIGURATION = re.compile(r"([1-9][0-9]{0,2})x(\S+)")


@dataclass(frozen=True)
class RequestLengths:
    """Mean request lengths of a published trace.

    Attributes:
        name: ``"azure-code"``, ``"azure-conv"`` or ``"burstgpt"`` (paper, section 6.1).
        input_tokens: Mean prompt length in tokens.
        output_tokens: Mean answer length in tokens.
        source: Where the figures come from.
    """

    name: str
    input_tokens: float
    output_tokens: float
    source: str


def _text(name: str) -> str:
    return files("coralopt.catalog").joinpath("data", name).read_text(encoding="utf-8")


def _rows(name: str) -> Iterator[dict[str, str]]:
    return csv.DictReader(_text(name).splitlines())


def configuration_name(count: int, gpu: str) -> str:
    """``(4, "L40S") -> "4xL40S"``."""
    return f"{count}x{gpu}"


@cache
def gpus() -> Mapping[str, Gpu]:
    """GPU types by name, each with its source; ``A100`` is the 80 GB part and ``H100`` the SXM one."""
    return MappingProxyType(
        {
            row["name"]: Gpu(
                name=row["name"],
                memory_gib=int(row["memory_mib"]) * _MIB / GIB,
                bandwidth_gb_s=float(row["bandwidth_gb_s"]),
                bf16_tflops=float(row["bf16_tflops"]),
                fp8_tflops=float(row["fp8_tflops"]) if row["fp8_tflops"] else None,
                link_gb_s=float(row["link_gb_s"]),
                nvlink=row["nvlink"] == "yes",
                architecture=row["architecture"],
                source=row["source"],
                vendor="amd" if row["vendor"] == "amd" else "nvidia",
            )
            for row in _rows("gpus.csv")
        }
    )


@cache
def node_configurations() -> Mapping[str, NodeConfiguration]:
    """Node configurations by name, in the catalog's order: the paper's 20 first (section 6.1), then other GPUs.

    ``network_gb_s`` is the figure of the slowest instance on sale, one direction. For ``1xL40S``, ``1xL4`` and
    ``1xA10G`` that is a burst figure; for counts that no cloud sells it is a share of the larger instance.
    """
    nodes = {}
    for row in _rows("nodes.csv"):
        gpu, count = gpus()[row["gpu"]], int(row["count"])
        name = configuration_name(count, gpu.name)
        nodes[name] = NodeConfiguration(name, gpu, count, float(row["network_gbit_s"]) / 8)
    return MappingProxyType(nodes)


@cache
def offers() -> Mapping[tuple[str, str], Offer]:
    """Offers by (region, configuration), USD per node-hour.

    ``instance_type`` is ``None`` for a stand-in: no such instance is sold and the price is what ``priced_as`` says.
    ``spot_usd_h`` is ``None`` where no price was found.
    """
    return MappingProxyType(
        {
            (row["region"], row["configuration"]): Offer(
                configuration=row["configuration"],
                region=row["region"],
                instance_type=row["instance_type"] or None,
                priced_as=row["priced_as"],
                on_demand_usd_h=float(row["on_demand_usd_h"]),
                spot_usd_h=float(row["spot_usd_h"]) if row["spot_usd_h"] else None,
            )
            for row in _rows("offers.csv")
        }
    )


@cache
def regions() -> tuple[str, ...]:
    """Names of the regions with offers, in the catalog's order."""
    return tuple(dict.fromkeys(region for region, _ in offers()))


@cache
def region_links() -> Mapping[tuple[str, str], RegionLink]:
    """What is known about sending data between regions, by source and target."""
    return MappingProxyType(
        {
            (row["source"], row["target"]): RegionLink(
                row["source"], row["target"], float(row["usd_gb"]), float(row["gbit_s"])
            )
            for row in _rows("egress.csv")
        }
    )


@cache
def models() -> Mapping[str, ModelArchitecture]:
    """Model architectures by short name, the paper's six first (Table 3), then checkpoints of the same shapes."""
    base, others = {}, {}
    for row in json.loads(_text("models.json")):
        variants = row.pop("variants", ())
        latent = row.pop("latent", None)
        model = ModelArchitecture(**row, latent=None if latent is None else LatentAttention(**latent))
        base[model.name] = model
        for variant in variants:
            others[variant["name"]] = replace(model, **{"measured_as": model.measured_as or model.hf_id, **variant})
    return MappingProxyType(base | others)


@cache
def _by_checkpoint() -> Mapping[str, ModelArchitecture]:
    return {model.hf_id.lower(): model for model in models().values()}


def find_model(name: str) -> ModelArchitecture | None:
    """The model of this short name or published checkpoint name (any case), or ``None``."""
    return models().get(name.lower()) or _by_checkpoint().get(name.lower())


@cache
def request_lengths() -> Mapping[str, RequestLengths]:
    """Mean request lengths in tokens of the paper's three data sets (section 6.1), with sources."""
    return MappingProxyType(
        {name: RequestLengths(name, **row) for name, row in json.loads(_text("lengths.json")).items()}
    )


def parse_configuration(text: str, network_gb_s: float | None = None) -> NodeConfiguration:
    """Read ``"4xL40S"``; counts that the catalog does not list are allowed.

    Args:
        text: GPU count, ``x``, GPU name of the catalog.
        network_gb_s: Network bandwidth of the node, one direction, 1e9 bytes/s. Without it the catalog's figure is
            used; for a count that is not listed, a pro-rata share of the nearest larger (else largest) node.

    Raises:
        CoraloptError: the text has another form, or the GPU is unknown.
    """
    match = _CONFIGURATION.fullmatch(text)
    if match is None:
        raise CoraloptError(f"'{text}' is no node configuration: write the GPU count, x and the GPU, like 4xL40S")
    count, gpu = int(match[1]), gpus().get(match[2])
    if gpu is None:
        raise CoraloptError(f"'{text}': the catalog has no GPU '{match[2]}'; it has {', '.join(gpus())}")
    if network_gb_s is None:
        if text in node_configurations():
            return node_configurations()[text]
        known = sorted((n for n in node_configurations().values() if n.gpu == gpu), key=lambda node: node.count)
        base = next((node for node in known if node.count >= count), known[-1])
        network_gb_s = base.network_gb_s * count / base.count
    return NodeConfiguration(text, gpu, count, network_gb_s)
