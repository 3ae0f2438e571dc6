"""The pool of a valid document looked up: node configurations, and what each region offers of them at which price."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping

from coralopt import catalog
from coralopt.catalog.mig import slice_of
from coralopt.catalog.types import Gpu, NodeConfiguration, Vendor
from coralopt.scenario.file.document import Document
from coralopt.scenario.file.pool import CustomGpu, PoolEntry, Region
from coralopt.scenario.mistakes import MistakeList, Path, suggest

_COUNTED = re.compile(r"([0-9]+)x(.+)")
#: Fields of a GPU that are numbers.
_FIGURES = ("memory_gib", "bandwidth_gb_s", "bf16_tflops", "fp8_tflops", "link_gb_s")


@dataclasses.dataclass(frozen=True)
class SupplyOffer:
    available: int
    price: float
    instance_type: str | None
    reserved: int = 0
    spot: int = 0
    spot_usd_h: float = 0.0
    committed: int = 0
    committed_usd_h: float = 0.0


def node_configurations(
    document: Document, raw: Mapping[str, object], mistakes: MistakeList
) -> dict[str, NodeConfiguration]:
    """All node configurations by name: the catalog's, then the document's own."""
    gpus: dict[str, Gpu] = dict(catalog.gpus())
    for name, gpu in document.gpus.items():
        if name in catalog.gpus():
            mistakes.add(("gpus", name), "the catalog has a GPU of this name", "choose another name")
        gpus[name] = _gpu(name, gpu, mistakes)
    nodes = dict(catalog.node_configurations())
    declared = keys_of(raw.get("gpus"))
    for name, node in document.nodes.items():
        place: Path = ("nodes", name)
        if name in catalog.node_configurations():
            mistakes.add(place, "the catalog has a node configuration of this name", "choose another name")
        if node.gpu not in gpus:
            if node.gpu not in declared:
                mistakes.add((*place, "gpu"), f"unknown GPU '{node.gpu}'", suggest(node.gpu, gpus))
            continue
        if gpus[node.gpu].mig and node.count > 1:
            mistakes.add((*place, "count"), "MIG slices cannot work together in one node", "give count 1")
        counted = _COUNTED.fullmatch(name)
        if counted and counted[2] in gpus and (int(counted[1]), counted[2]) != (node.count, node.gpu):
            says = f"{counted[1]} of {counted[2]}"
            mistakes.add(place, f"the name says {says}, the entry {node.count} of {node.gpu}", "make them agree")
        nodes[name] = NodeConfiguration(name, gpus[node.gpu], node.count, float(node.network_gb_s))
    return nodes


def _gpu(name: str, given: CustomGpu, mistakes: MistakeList) -> Gpu:
    base = catalog.gpus().get(given.base or "")
    if given.base is not None and base is None:
        mistakes.add(("gpus", name, "base"), f"unknown GPU '{given.base}'", suggest(given.base, catalog.gpus()))
    figures = {key: value for key, value in given if value is not None and key not in ("base", "mig")}
    figures |= {key: float(figures[key]) for key in _FIGURES if key in figures}
    if base is None:
        amd = re.match(r"MI\d", name) or (given.architecture or "").startswith(("CDNA", "RDNA"))
        vendor: Vendor = "amd" if amd else "nvidia"
        base = Gpu(name, 1.0, 1.0, 1.0, None, 1.0, False, "unknown", "given in the scenario", vendor)
        return dataclasses.replace(base, **figures)
    variant = dataclasses.replace(base, name=name, like=base.name, source=f"a variant of {base.name}")
    variant = dataclasses.replace(variant, **figures)
    return variant if given.mig is None else slice_of(variant, given.mig)


def supply_of(
    document: Document, raw: Mapping[str, object], nodes: Mapping[str, NodeConfiguration], mistakes: MistakeList
) -> dict[str, dict[str, SupplyOffer]]:
    """Region -> configuration -> what is offered."""
    declared = keys_of(raw.get("nodes"))
    supply: dict[str, dict[str, SupplyOffer]] = {}
    for region, entry in document.pool.regions.items():
        place: Path = ("pool", "regions", region)
        supply[region] = {}
        offered = _listed(region, entry, place, document.pool.market == "spot")
        custom = region not in catalog.regions()
        if custom and (not offered or any(given.price_usd_h is None for _, given, _ in offered)):
            hint = suggest(region, catalog.regions())
            own = "a region of your own needs a price_usd_h for each configuration"
            mistakes.add(place, f"unknown region '{region}'", f"{hint} {'' if hint.endswith('?') else '- '}{own}")
        without_price: list[str] = []
        for configuration, given, where in offered:
            if configuration not in nodes:
                if configuration not in declared:
                    mistakes.add(
                        where,
                        f"unknown node configuration '{configuration}'",
                        configuration_hint(configuration, nodes),
                    )
                continue
            if configuration in supply[region]:
                mistakes.add(where, f"'{configuration}' is listed twice", "keep one")
            offer = catalog.offers().get((region, configuration))
            listed = None
            if offer is not None:
                listed = offer.spot_usd_h if document.pool.market == "spot" else offer.on_demand_usd_h
            price = listed if given.price_usd_h is None else float(given.price_usd_h)
            if price is None and given.available and not custom:
                without_price.append(configuration)
            instance_type = given.instance_type or (offer.instance_type if offer is not None else None)
            if given.reserved > given.available:
                problem = f"{given.reserved} reserved nodes, but {given.available} are available in all"
                mistakes.add((*where, "reserved"), problem, "reserved nodes count as available")
            spot, spot_usd_h = 0, 0.0
            if given.spot is not None:
                catalog_spot = None if offer is None else offer.spot_usd_h
                each = catalog_spot if given.spot.price_usd_h is None else float(given.spot.price_usd_h)
                if each is None:
                    mistakes.add((*where, "spot"), f"no spot price is known for {configuration}", "give price_usd_h")
                else:
                    spot, spot_usd_h = given.spot.available, each + float(given.spot.preemption_usd_h)
                    # Where none is sold on demand, the spot price is the only one there is.
                    price = spot_usd_h if price is None and not given.available else price
            supply[region][configuration] = SupplyOffer(
                given.available + spot,
                math.nan if price is None else price,
                instance_type,
                given.reserved,
                spot,
                spot_usd_h,
                *_committed(document.horizon_h, given, where, mistakes),
            )
        if without_price:
            what = f"no {document.pool.market} price is known for {', '.join(without_price)}"
            mistakes.add((*place, "configurations"), what, "leave them out or give each a price_usd_h")
    return supply


def _committed(horizon_h: float | None, given: PoolEntry, where: Path, mistakes: MistakeList) -> tuple[int, float]:
    """How many nodes a commitment is offered for, and what one costs over the horizon, USD/h: whole terms are paid."""
    offer, place = given.commitment, (*where, "commitment")
    if offer is None:
        return 0, 0.0
    if offer.nodes + given.reserved > given.available:
        problem = (
            f"{offer.nodes} nodes to commit to and {given.reserved} reserved ones, but {given.available} are available"
        )
        mistakes.add(place, problem, "both are among the available ones")
    if horizon_h is None:
        problem = "what it costs depends on how long the plan is to hold, which is not said"
        mistakes.add(place, problem, "give horizon_h at the top of the scenario")
        return offer.nodes, float(offer.price_usd_h)
    if math.isinf(horizon_h / offer.term_h):
        mistakes.add((*place, "term_h"), f"{offer.term_h:g} h is no length of a term", "give hours, for example 8760")
        return offer.nodes, float(offer.price_usd_h)
    terms = math.ceil(horizon_h / offer.term_h * (1 - 1e-12))
    return offer.nodes, float(offer.price_usd_h) * terms * float(offer.term_h) / float(horizon_h)


def _listed(region: str, entry: Region, place: Path, spot: bool) -> list[tuple[str, PoolEntry, Path]]:
    """(configuration, supply, place in the file) of every configuration of a region, shorthand written out."""
    given, place = entry.configurations, (*place, "configurations")
    if isinstance(given, dict):
        return [
            (name, PoolEntry(available=value) if isinstance(value, int) else value, (*place, name))
            for name, value in given.items()
        ]
    each = PoolEntry(available=entry.available or 0)
    if isinstance(given, list):
        return [(name, each, (*place, position)) for position, name in enumerate(given)]
    offers = ((name, catalog.offers().get((region, name))) for name in catalog.node_configurations())
    return [(name, each, place) for name, offer in offers if offer and not (spot and offer.spot_usd_h is None)]


def configuration_hint(text: str, nodes: Mapping[str, NodeConfiguration]) -> str:
    counted = _COUNTED.fullmatch(text)
    gpus = {node.gpu.name for node in nodes.values()} | set(catalog.gpus())
    if text in gpus:
        return f"did you mean '1x{text}'?"
    if counted and counted[2] in gpus and int(counted[1]) > 0:
        return f"declare it under 'nodes' with gpu: {counted[2]}, count: {counted[1]} and network_gb_s"
    if counted and counted[2] not in gpus:
        # 'A100-80GB', 'H100-SXM5': the longest name that it begins with.
        known = sorted((gpu for gpu in gpus if re.match(rf"{gpu}(-|GB)", counted[2], re.IGNORECASE)), key=len)
        nearest = f"did you mean '{known[-1]}'?" if known else suggest(counted[2], gpus)
        return (
            f"the GPU is unknown: {nearest}" if nearest.startswith("did") else f"known GPUs: {', '.join(sorted(gpus))}"
        )
    sold = [name for (_, name), offer in catalog.offers().items() if offer.instance_type == text]
    return f"the catalog calls this instance type '{sold[0]}'" if sold else suggest(text, nodes)


def keys_of(value: object) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, Mapping) else ()
