"""Every name of a valid document looked up: models, node configurations, prices, demand."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping

import numpy as np

from coralopt import catalog
from coralopt.catalog.mig import profiles
from coralopt.catalog.types import NodeConfiguration, RegionLink
from coralopt.scenario.architectures import find_model
from coralopt.scenario.facts.facts import Facts, KvTransfer, PlacementRules, RunningInstances, Sharing
from coralopt.scenario.facts.phases import PHASES_OF
from coralopt.scenario.file.document import Document
from coralopt.scenario.mistakes import MistakeList, Path, suggest
from coralopt.scenario.resolve.engine import check_measured, serving_of, throughput_of
from coralopt.scenario.resolve.models import FOR_A_SHARE, mode_of, model_phases, name_of
from coralopt.scenario.resolve.operations import Rentable, operations_of
from coralopt.scenario.resolve.pool import SupplyOffer, configuration_hint, keys_of, node_configurations, supply_of


def look_up(
    document: Document, raw: Mapping[str, object], mistakes: MistakeList, name: str, keep: Container[str] = ()
) -> Facts | None:
    """Look every name up.

    Args:
        document: The valid part of the scenario.
        raw: The scenario as it was given: names in it are known, even where their own entry is invalid.
        mistakes: Takes what is found.
        name: Name of the scenario when the document has none.
        keep: Node configurations that stay even when no region offers any.

    Returns:
        The facts, or ``None`` when there are mistakes.
    """
    nodes = node_configurations(document, raw, mistakes)
    phases = model_phases(document, mistakes)
    _look_up_the_rest(document, raw, nodes, mistakes)
    check_measured(document, mistakes)
    supply = supply_of(document, raw, nodes, mistakes)
    running = _running(document, raw, nodes, mistakes)
    if not document.models and not len(mistakes):
        mistakes.add(("models",), "there is no model to serve", "give at least one")
    used = {node for entries in supply.values() for node, entry in entries.items() if entry.available}
    if not used and not len(mistakes):
        mistakes.add(("pool", "regions"), "there is no node to rent", "give one configuration at least 1 node")
    for position, instances in enumerate(running):
        for node in instances.nodes:
            if node in nodes and node not in used and not len(mistakes):
                where: Path = ("running", position, "nodes", node)
                mistakes.add(
                    where, "no region of the pool has a node of this configuration", "count nodes in use as available"
                )
    operations = operations_of(document, Rentable(nodes, used, supply), phases, mistakes)
    kv_transfer = _kv_transfer(document, tuple(supply), mistakes)
    listed = dict.fromkeys(nodes[node] for entries in supply.values() for node in entries if node in nodes)
    sharing = _sharing(document, listed, mistakes)
    if len(mistakes):
        return None
    configurations = tuple(node for node in nodes.values() if node.name in used or node.name in keep)
    regions = tuple(supply)
    entries = [
        [supply[region].get(node.name, SupplyOffer(0, math.nan, None)) for node in configurations] for region in regions
    ]
    facts = Facts(
        name=document.name or name,
        mode=document.mode,
        model_phases=phases,
        configurations=configurations,
        regions=regions,
        availability=np.array([[entry.available for entry in row] for row in entries], dtype=np.int64),
        price_usd_h=np.array([[entry.price for entry in row] for row in entries], dtype=np.float64),
        instance_types=tuple(tuple(entry.instance_type for entry in row) for row in entries),
        templates=document.templates,
        max_nodes=document.pruning.max_nodes,
        memory_ratio=float(document.pruning.memory_ratio),
        throughput_source=throughput_of(document),
        initialization_penalty=float(document.initialization_penalty),
        running=running,
        solver=document.solver.name,
        solver_options=dict(document.solver.options),
        placement=PlacementRules(
            engine=document.placement.engine,
            budget_units=document.placement.budget_units if document.placement.latency_budgets == "free" else None,
            link_network=document.placement.network == "link",
        ),
        operations=operations,
        serving=serving_of(document),
        kv_transfer=kv_transfer,
        sharing=sharing,
    )
    facts.availability.setflags(write=False)
    facts.price_usd_h.setflags(write=False)
    return facts


def _kv_transfer(document: Document, regions: tuple[str, ...], mistakes: MistakeList) -> KvTransfer:
    """Ways between regions: what the document says of a pair, else of one end, else of any, else what the catalog says."""
    mode = document.kv_transfer or "priced"
    known = (*keys_of(document.pool.regions), "any")
    for source, targets in document.egress.items():
        for target in targets:
            place: Path = ("egress", source, target)
            for name in (source, target):
                if name not in known:
                    mistakes.add(place, f"there is no region '{name}'", suggest(name, known))
            if source == target != "any":
                mistakes.add(place, "within a region KV caches are sent for nothing", "leave the entry out")
    if mode == "region" and document.egress:
        mistakes.add(
            ("egress",), "nothing leaves a region where kv_transfer is region", "choose priced, or leave it out"
        )
    links = []
    for source, target in ((a, b) for a in regions for b in regions if a != b and mode != "region"):
        entries = [
            document.egress[a][b]
            for a, b in ((source, target), (source, "any"), ("any", target), ("any", "any"))
            if b in document.egress.get(a, {})
        ]
        link = catalog.region_links().get((source, target), RegionLink(source, target))
        for entry in reversed(entries):
            price = link.usd_gb if entry.usd_gb is None else float(entry.usd_gb)
            link = RegionLink(source, target, price, link.gbit_s if entry.gbit_s is None else float(entry.gbit_s))
        if (not entries or entries[0].allowed) and (mode == "free" or link.usd_gb is not None):
            links.append(link)
        elif entries and entries[0].allowed:
            place = ("egress", source, target)
            mistakes.add(place, "has no price, and the catalog knows none", "give usd_gb, or allowed: false")
    return KvTransfer(mode, tuple(links))


def _sharing(document: Document, listed: Iterable[NodeConfiguration], mistakes: MistakeList) -> Sharing:
    if document.sharing is None:
        return Sharing()
    if len(document.models) == 1:
        mistakes.add(("sharing",), "there is one model only, so none to share a node with", "leave sharing out")
    for key, entry in document.models.items():
        if entry.slo.attainment != "mean":
            problem = (
                f"models that share nodes are planned for mean requests, not for {entry.slo.attainment:.6g} of them"
            )
            hint = f"{FOR_A_SHARE}; or leave sharing out"
            mistakes.add(("models", key, "slo", "attainment"), problem, hint)
        if entry.variants:
            problem = "variants of a model do not share nodes with other models"
            mistakes.add(("models", key, "variants"), problem, "leave them or sharing out")
        if entry.survive_instance_loss > 0:
            problem = "what survives the loss of an instance is not planned for models that share nodes"
            mistakes.add(
                ("models", key, "survive_instance_loss"), problem, "ask for min_replicas, or leave sharing out"
            )
    for name, stated in (("start", document.start is not None), ("transition", document.transition != "free")):
        if stated:
            mistakes.add(
                (name,), "shared nodes know one penalty K and free transitions", f"leave {name} or sharing out"
            )
    given = document.sharing
    if "swapping" in given.ways:
        for key in document.models:
            if given.swap_gb_s is None and key not in given.swap_s:
                problem = f"how long weights of '{key}' take to come and go is not said"
                mistakes.add(("sharing",), problem, "give swap_gb_s, or measured seconds under swap_s")
            if mode_of(document, key) != "mixed":
                problem = "weights are swapped between mixed instances only: no other keeps its requests to itself"
                mistakes.add(
                    ("models", key), problem, "choose mode mixed for it, or leave swapping out of sharing.ways"
                )
    for key in given.swap_s:
        if key not in document.models:
            mistakes.add(("sharing", "swap_s", key), f"unknown model '{key}'", suggest(key, document.models))
    # Those with no node left count: what the pool has by the hour is no mistake of the scenario.
    if "slices" in given.ways and not any(map(profiles, listed)):
        problem = "no node of the pool has one GPU that MIG divides"
        mistakes.add(("sharing", "ways"), problem, "offer 1xA100, 1xH100, 1xH200 or 1xB200, or leave slices out")
    swap_s = tuple(
        (name_of(key, document.models[key]), float(s)) for key, s in given.swap_s.items() if key in document.models
    )
    return Sharing(given.models, tuple(dict.fromkeys(given.ways)), given.swap_gb_s, swap_s, float(given.asleep_gib))


def _look_up_the_rest(
    document: Document, raw: Mapping[str, object], nodes: Mapping[str, NodeConfiguration], mistakes: MistakeList
) -> None:
    """Unknown names of models and node configurations whose entries are wrong otherwise, and so left the document."""
    models, pool = raw.get("models"), raw.get("pool")
    for key, entry in models.items() if isinstance(models, Mapping) else ():
        if key not in document.models and isinstance(entry, Mapping) and isinstance(entry.get("model", key), str):
            find_model(key, entry.get("model"), mistakes)
    regions = pool.get("regions") if isinstance(pool, Mapping) else None
    for region, entry in regions.items() if isinstance(regions, Mapping) else ():
        supply = entry.get("configurations") if isinstance(entry, Mapping) else None
        kept = document.pool.regions.get(region)
        known = set() if kept is None else set(keys_of(kept.configurations))
        for name in keys_of(supply):
            if name not in known and name not in nodes and name not in keys_of(raw.get("nodes")):
                place: Path = ("pool", "regions", region, "configurations", name)
                mistakes.add(place, f"unknown node configuration '{name}'", configuration_hint(name, nodes))


def _running(
    document: Document, raw: Mapping[str, object], nodes: Mapping[str, NodeConfiguration], mistakes: MistakeList
) -> tuple[RunningInstances, ...]:
    running: list[RunningInstances] = []
    # A model may be keyed by its checkpoint's name; both names work here.
    names: dict[str, str] = {}
    #: Those whose instances have names of their own -> these.
    divided: dict[str, list[str]] = {}
    for key, entry in document.models.items():
        model = catalog.find_model(key) if entry.model is None else None
        names[key] = model.name if model else key
        parts = [f"{names[key]}.{part}" for part in (*entry.variants, *entry.demand.classes)]
        if parts:
            divided |= dict.fromkeys((key, names[key]), parts)
        names |= {part: part for part in parts}
    modes = {word: mode_of(document, key) for key, name in names.items() for word in (key, name)}
    names |= {name: name for name in names.values()}
    known = tuple(dict.fromkeys((*names, *keys_of(raw.get("models")))))
    pool = raw.get("pool")
    regions = keys_of(pool.get("regions") if isinstance(pool, dict) else None)
    seen: set[tuple[str, str, tuple[tuple[str, int], ...]]] = set()
    for position, instances in enumerate(document.running):
        place: Path = ("running", position)
        if instances.model not in known:
            mistakes.add(
                (*place, "model"), f"unknown model '{instances.model}'", suggest(instances.model, document.models)
            )
        if instances.model in divided:
            problem = f"'{instances.model}' is served in parts, each by instances of its own"
            mistakes.add((*place, "model"), problem, f"choose from {', '.join(divided[instances.model])}")
        mode = modes.get(instances.model, document.mode)
        if instances.phase not in PHASES_OF[mode]:
            hint = f"choose from {', '.join(PHASES_OF[mode])}"
            mistakes.add((*place, "phase"), f"there is no phase '{instances.phase}' in mode '{mode}'", hint)
        if instances.region not in regions:
            mistakes.add((*place, "region"), f"unknown region '{instances.region}'", suggest(instances.region, regions))
        for node in instances.nodes:
            if node not in nodes and node not in keys_of(raw.get("nodes")):
                hint = configuration_hint(node, nodes)
                mistakes.add((*place, "nodes", node), f"unknown node configuration '{node}'", hint)
        total = sum(instances.nodes.values())
        if total == 0 or total > document.pruning.max_nodes:
            problem = f"one instance has {total} nodes; a template has 1 to {document.pruning.max_nodes}"
            mistakes.add((*place, "nodes"), problem, "correct the nodes or raise pruning.max_nodes")
        key = f"{names.get(instances.model, instances.model)}/{instances.phase}"
        template = (key, instances.region, tuple(sorted(instances.nodes.items())))
        if template in seen:
            mistakes.add(
                place, "the same nodes of the same model, phase and region are listed before", "add the counts up"
            )
        seen.add(template)
        running.append(RunningInstances(key, instances.region, dict(instances.nodes), instances.count))
    return tuple(running)
