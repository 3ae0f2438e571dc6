"""Every name of a valid document looked up: models, node configurations, prices, demand."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping

import numpy as np

from coralopt import catalog
from coralopt.catalog.mig import profiles, slice_of
from coralopt.catalog.types import Gpu, ModelArchitecture, NodeConfiguration, RegionLink, Vendor
from coralopt.scenario.architectures import architecture_of, find_model, variants_of, with_adapters
from coralopt.scenario.document import (
    CustomGpu,
    Demand,
    DemandClass,
    Document,
    Headroom,
    Limits,
    MeasuredTimes,
    Model,
    PoolEntry,
    Region,
)
from coralopt.scenario.lengths import USUAL_SPREAD, LengthDistribution, LengthPair, LengthSpread
from coralopt.scenario.mistakes import MistakeList, Path, suggest
from coralopt.scenario.parts import (
    PHASES_OF,
    SERVING_PRESETS,
    DemandScenario,
    Facts,
    KvTransfer,
    MeasuredNodeTimes,
    MeasuredSourceChoice,
    MeasuredTimesGrid,
    Mode,
    ModelPhase,
    ModelRules,
    NodeClass,
    Operations,
    Phase,
    PlacementRules,
    RentLimits,
    RequestClass,
    RunningInstances,
    Serving,
    Sharing,
    StartCost,
    Variant,
)

_COUNTED = re.compile(r"([0-9]+)x(.+)")
#: How a share of the requests is planned for where only mean requests can be: headroom, learnt from simulations.
FOR_A_SHARE = "give slo.attainment: mean, and ask `coralopt plan --simulate --attainment` for the share"


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
    nodes = _nodes(document, raw, mistakes)
    phases = _model_phases(document, mistakes)
    _look_up_the_rest(document, raw, nodes, mistakes)
    _check_measured(document, mistakes)
    supply = _supply(document, raw, nodes, mistakes)
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
    operations = _operations(document, nodes, used, phases, supply, mistakes)
    kv_transfer = _kv_transfer(document, tuple(supply), mistakes)
    listed = dict.fromkeys(nodes[node] for entries in supply.values() for node in entries if node in nodes)
    sharing = _sharing(document, listed, mistakes)
    if len(mistakes):
        return None
    configurations = tuple(node for node in nodes.values() if node.name in used or node.name in keep)
    regions = tuple(supply)
    entries = [
        [supply[region].get(node.name, _Offered(0, math.nan, None)) for node in configurations] for region in regions
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
        throughput_source=_throughput(document),
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
        serving=_serving(document),
        kv_transfer=kv_transfer,
        sharing=sharing,
    )
    facts.availability.setflags(write=False)
    facts.price_usd_h.setflags(write=False)
    return facts


def _serving(document: Document) -> Serving:
    """What the section says, else the longest host times that were measured, else the preset."""
    policy, throughput = document.serving, _throughput(document)
    given = {name: value for name, value in policy if name != "preset" and value is not None}
    if policy.preset == "engine" and isinstance(throughput, MeasuredSourceChoice):
        measured = zip(("host_step_ms", "host_request_ms"), throughput.host_ms, strict=True)
        given = {name: value for name, value in measured if value is not None} | given
    return dataclasses.replace(SERVING_PRESETS[policy.preset], **given)


def _kv_transfer(document: Document, regions: tuple[str, ...], mistakes: MistakeList) -> KvTransfer:
    """Ways between regions: what the document says of a pair, else of one end, else of any, else what the catalog says."""
    mode = document.kv_transfer or "priced"
    known = (*_keys(document.pool.regions), "any")
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
            if _mode(document, key) != "mixed":
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
        (_name(key, document.models[key]), float(s)) for key, s in given.swap_s.items() if key in document.models
    )
    return Sharing(given.models, tuple(dict.fromkeys(given.ways)), given.swap_gb_s, swap_s, float(given.asleep_gib))


def _throughput(document: Document) -> str | MeasuredSourceChoice:
    given = document.throughput
    if not given.measured or given.source not in ("auto", "measured"):
        return given.source
    nodes = tuple(
        MeasuredNodeTimes(
            item.model,
            item.configuration,
            item.weight_format,
            item.measured_with,
            _grid(item.prefill),
            _grid(item.decode),
            item.kv_format or "bf16",
            item.mixed_factor or 1.0,
        )
        for item in given.measured
    )
    step_ms, request_ms = (
        max((value for node in given.measured if (value := getattr(node, name)) is not None), default=None)
        for name in ("host_step_ms", "host_request_ms")
    )
    return MeasuredSourceChoice(given.source, nodes, (step_ms, request_ms))


def _grid(given: MeasuredTimes) -> MeasuredTimesGrid:
    layer, other = (tuple(tuple(map(float, row)) for row in rows) for rows in (given.layer_ms, given.other_ms))
    return MeasuredTimesGrid(tuple(map(float, given.tokens)), tuple(map(float, given.batch)), layer, other)


def _check_measured(document: Document, mistakes: MistakeList) -> None:
    given, place = document.throughput, ("throughput",)
    if given.source == "measured" and not given.measured:
        hint = "name the files that `coralopt profile` wrote: measured: [FILE]"
        mistakes.add((*place, "measured"), "source 'measured' has no measurements", hint)
    if given.measured and given.source not in ("auto", "measured"):
        hint = "choose measured, or auto: measured ones first"
        mistakes.add((*place, "source"), f"source '{given.source}' does not use the measurements that are given", hint)
    seen: set[tuple[str, ...]] = set()
    for position, item in enumerate(given.measured):
        key = (item.model, item.configuration, item.weight_format, item.kv_format or "bf16")
        if key in seen:
            what = f"{item.model} on {item.configuration} is measured twice"
            mistakes.add((*place, "measured", position), what, "keep one")
        seen.add(key)


@dataclasses.dataclass(frozen=True)
class _Offered:
    available: int
    price: float
    instance_type: str | None
    reserved: int = 0
    spot: int = 0
    spot_usd_h: float = 0.0
    committed: int = 0
    committed_usd_h: float = 0.0


def _nodes(document: Document, raw: Mapping[str, object], mistakes: MistakeList) -> dict[str, NodeConfiguration]:
    """All node configurations by name: the catalog's, then the document's own."""
    gpus: dict[str, Gpu] = dict(catalog.gpus())
    for name, gpu in document.gpus.items():
        if name in catalog.gpus():
            mistakes.add(("gpus", name), "the catalog has a GPU of this name", "choose another name")
        gpus[name] = _gpu(name, gpu, mistakes)
    nodes = dict(catalog.node_configurations())
    declared = _keys(raw.get("gpus"))
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


def _model_phases(document: Document, mistakes: MistakeList) -> tuple[ModelPhase, ...]:
    found: list[ModelPhase] = []
    names: dict[str, str] = {}
    asked_for = {_name(key, entry) for key, entry in document.models.items()}
    for key, entry in document.models.items():
        base = architecture_of(key, entry, mistakes)
        if base is None:
            continue
        mode = _mode(document, key)
        base = with_adapters(key, entry, base, asked_for, mistakes)
        if entry.demand.classes:
            _check_classes(document, key, mistakes)
            for name, part in entry.demand.classes.items():
                most = (None if most is None else float(most) for most in (part.most_input, part.most_output))
                own = dataclasses.replace(base, name=f"{base.name}.{name}")
                names[own.name] = key
                found += _phases_of(document, key, mode, part, (own, RequestClass(base.name, name, *most)), mistakes)
            continue
        if mode == "auto" or entry.variants:
            _check_choice(key, entry, "mode auto" if mode == "auto" else "a choice of variants", mistakes)
        for model, variant in variants_of(key, entry, base, mistakes):
            if model.name in names:
                what = f"is the same model as '{names[model.name]}'"
                mistakes.add(("models", key), what, "name it otherwise and give 'model'")
            names[model.name] = key
            if model.speculative is not None and mode != "disaggregated":
                place = ("models", key, "variants", "" if variant is None else variant.name, "speculative")
                problem = "times of speculative decoding are known for decode instances, not for mixed ones"
                mistakes.add(place, problem, "choose mode disaggregated for this model")
            found += _phases_of(document, key, mode, entry.demand, (model, variant), mistakes)
    modes = [_mode(document, key) for key in names.values()]
    known: list[str] = list(dict.fromkeys(phase for mode in modes or [document.mode] for phase in PHASES_OF[mode]))
    known += [
        f"{name}/{phase}"
        for pair, mode in zip(names.items(), modes, strict=True)
        for name in pair
        for phase in PHASES_OF[mode]
    ]
    for key in document.headroom or {}:
        if key not in known:
            what = f"there is no phase or model phase '{key}' in mode '{document.mode}'"
            mistakes.add(("headroom", key), what, suggest(key, dict.fromkeys(known)))
    return tuple(found)


def _phases_of(
    document: Document,
    key: str,
    mode: Mode,
    demand: Demand | DemandClass,
    served: tuple[ModelArchitecture, Variant | RequestClass | None],
    mistakes: MistakeList,
) -> Iterator[ModelPhase]:
    """The phases of a model, of one variant of it, or for one class of its requests."""
    model, part = served
    slo, lengths, place = document.models[key].slo, _lengths(demand), tuple[str, ...](("models", key, "demand"))
    if isinstance(part, RequestClass):
        place = (*place, "classes", part.name)
    mean_input, mean_output = lengths.input.mean, lengths.output.mean
    if mean_input + mean_output > model.max_position:
        problem = f"a mean request of {mean_input + mean_output:g} tokens exceeds the context of {model.max_position}"
        mistakes.add(place, problem, "shorten input_tokens and output_tokens")
    lora = document.models[key].lora
    adapted = 0.0 if lora is None else math.fsum(adapter.requests_s for adapter in lora.adapters.values())
    for phase in PHASES_OF[mode]:
        rate = _rate(demand, phase, mean_input, mean_output, adapted)
        if rate is None:
            wanted = "mixed_tokens_s or decode_tokens_s" if phase == "mixed" else f"{phase}_tokens_s"
            mistakes.add(place, f"the rate of {phase} is missing in mode '{mode}'", f"give {wanted}")
            continue
        of = key if part is None else part.of
        room = _headroom(document, phase, f"{model.name}/{phase}", f"{key}/{phase}", f"{of}/{phase}")
        yield ModelPhase(
            model,
            phase,
            float(slo.ttft_ms),
            float(slo.tpot_ms),
            rate,
            mean_input,
            mean_output,
            float(room.throughput),
            float(room.latency),
            attainment=None if slo.attainment == "mean" else slo.attainment,
            input_spread=lengths.input.spread,
            output_spread=lengths.output.spread,
            serving=_serving(document),
            variant=part if isinstance(part, Variant) else None,
            prefix_hit=document.models[key].demand.prefix_hit,
            request_class=part if isinstance(part, RequestClass) else None,
        )


def _mode(document: Document, key: str) -> Mode:
    """How a model is served: by its own word, else by that of the scenario."""
    return (document.models[key].mode if key in document.models else None) or document.mode


def _check_choice(key: str, entry: Model, what: str, mistakes: MistakeList) -> None:
    """What is said of single phases says nothing where requests may go around them."""
    place, hint = ("models", key), "choose disaggregated or mixed for this model"
    if entry.variants:
        hint = "serve one variant as the model itself"
        if entry.slo.attainment != "mean":
            problem = f"{what} plans for mean requests, not for {entry.slo.attainment:.6g} of them"
            mistakes.add((*place, "slo", "attainment"), problem, f"{FOR_A_SHARE}; or {hint}")
    for name, wanted in (
        ("min_replicas", entry.min_replicas > 0),
        ("survive_region_loss", entry.survive_region_loss > 0),
        ("survive_instance_loss", entry.survive_instance_loss > 0),
        ("unmet", entry.unmet is not None),
    ):
        if wanted:
            mistakes.add((*place, name), f"is said of every phase, and {what} leaves phases out", hint)
    rates = [value for name, value in entry.demand if name.endswith("_tokens_s") and value is not None]
    if any(rates) and not all(rates):
        problem = f"{what} splits requests over instances of several phases, so each needs a rate"
        mistakes.add((*place, "demand"), problem, "give requests_s, or rates above 0 for all phases")


def _check_classes(document: Document, key: str, mistakes: MistakeList) -> None:
    """What classes of requests go with, and what their bounds say of their own lengths."""
    entry, hint = document.models[key], "leave it out, or plan without classes"
    place: tuple[str, ...] = ("models", key)
    routed = document.kv_transfer != "free" and len(document.pool.regions) > 1 and _mode(document, key) != "mixed"
    unmet = entry.unmet is not None and entry.unmet.usd_per_1000_requests is not None
    for path, stated in (
        ((*place, "variants"), bool(entry.variants)),
        ((*place, "slo", "attainment"), entry.slo.attainment != "mean"),
        ((*place, "min_replicas"), entry.min_replicas > 0),
        ((*place, "survive_region_loss"), entry.survive_region_loss > 0),
        ((*place, "survive_instance_loss"), entry.survive_instance_loss > 0),
        ((*place, "unmet", "usd_per_1000_requests"), unmet),
        ((*place, "mode") if entry.mode else ("mode",), _mode(document, key) == "auto"),
        (("kv_transfer",), routed),
        (("sharing",), document.sharing is not None),
        (("templates",), document.templates == "on-demand"),
        (("transition",), document.transition != "free"),
        (("start",), document.start is not None),
        (("demand_cases",), bool(document.demand_cases)),
        (("placement", "latency_budgets"), document.placement.latency_budgets == "free"),
        (("placement", "network"), document.placement.network == "link"),
    ):
        if stated:
            asked = {"kv_transfer": "give kv_transfer: free", "attainment": FOR_A_SHARE}
            problem = f"is not planned for with classes of requests, which '{key}' has"
            mistakes.add(path, problem, asked.get(path[-1], hint))
    for name, part in entry.demand.classes.items():
        inside, lengths = (*place, "demand", "classes", name), _lengths(part)
        if "/" in name:
            mistakes.add(inside, f"the name '{name}' must not hold '/'", "name it otherwise")
        for side, most, mean in (
            ("input", part.most_input, lengths.input.mean),
            ("output", part.most_output, lengths.output.mean),
        ):
            if most is not None and mean > most:
                problem = f"its mean of {mean:g} tokens is above most_{side}, {most:g}"
                mistakes.add((*inside, f"most_{side}"), problem, "correct one of them")


def _lengths(demand: Demand | DemandClass) -> LengthPair:
    known = None if demand.dataset is None else catalog.request_lengths()[demand.dataset]
    sides = []
    for side in ("input", "output"):
        quantiles = None if demand.lengths is None else getattr(demand.lengths, side)
        cv = getattr(demand, f"{side}_cv")
        mean = getattr(demand if known is None else known, f"{side}_tokens")
        spread = USUAL_SPREAD if cv is None else LengthSpread(float(cv))
        sides.append(LengthDistribution(float(mean), spread) if quantiles is None else quantiles.distribution)
    return LengthPair(*sides)


def _headroom(document: Document, phase: Phase, *keys: str) -> Headroom:
    """The room of one model phase: its own entry, else that of its phase, else none."""
    given = document.headroom or {}
    return next((given[key] for key in (*keys, phase) if key in given), Headroom())


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
        known = set() if kept is None else set(_keys(kept.configurations))
        for name in _keys(supply):
            if name not in known and name not in nodes and name not in _keys(raw.get("nodes")):
                place: Path = ("pool", "regions", region, "configurations", name)
                mistakes.add(place, f"unknown node configuration '{name}'", _configuration_hint(name, nodes))


def _rate(
    demand: Demand | DemandClass, phase: Phase, mean_input: float, mean_output: float, adapted: float
) -> float | None:
    """Demand of one phase in tokens/s: input tokens for prefill, output tokens otherwise.

    Requests for adapters come on top of a rate of requests; rates of tokens count all.
    """
    if isinstance(demand, DemandClass) or demand.requests_s is not None:
        return (float(demand.requests_s or 0.0) + adapted) * (mean_input if phase == "prefill" else mean_output)
    rate = demand.prefill_tokens_s if phase == "prefill" else demand.decode_tokens_s
    if phase == "mixed" and demand.mixed_tokens_s is not None:
        rate = demand.mixed_tokens_s
    return None if rate is None else float(rate)


def _supply(
    document: Document, raw: Mapping[str, object], nodes: Mapping[str, NodeConfiguration], mistakes: MistakeList
) -> dict[str, dict[str, _Offered]]:
    """Region -> configuration -> what is offered."""
    declared = _keys(raw.get("nodes"))
    supply: dict[str, dict[str, _Offered]] = {}
    for region, entry in document.pool.regions.items():
        place: Path = ("pool", "regions", region)
        supply[region] = {}
        asked = _asked(region, entry, place, document.pool.market == "spot")
        custom = region not in catalog.regions()
        if custom and (not asked or any(given.price_usd_h is None for _, given, _ in asked)):
            hint = suggest(region, catalog.regions())
            own = "a region of your own needs a price_usd_h for each configuration"
            mistakes.add(place, f"unknown region '{region}'", f"{hint} {'' if hint.endswith('?') else '- '}{own}")
        without_price: list[str] = []
        for configuration, given, where in asked:
            if configuration not in nodes:
                if configuration not in declared:
                    mistakes.add(
                        where,
                        f"unknown node configuration '{configuration}'",
                        _configuration_hint(configuration, nodes),
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
            supply[region][configuration] = _Offered(
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
    terms = math.ceil(horizon_h / offer.term_h * (1 - 1e-12))
    return offer.nodes, float(offer.price_usd_h) * terms * float(offer.term_h) / float(horizon_h)


def _asked(region: str, entry: Region, place: Path, spot: bool) -> list[tuple[str, PoolEntry, Path]]:
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


def _configuration_hint(text: str, nodes: Mapping[str, NodeConfiguration]) -> str:
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


def _running(
    document: Document, raw: Mapping[str, object], nodes: Mapping[str, NodeConfiguration], mistakes: MistakeList
) -> tuple[RunningInstances, ...]:
    found: list[RunningInstances] = []
    # A model may be keyed by its checkpoint's name; both names work here.
    names = {}
    for key, entry in document.models.items():
        model = catalog.find_model(key) if entry.model is None else None
        names[key] = model.name if model else key
        parts = (*entry.variants, *entry.demand.classes)
        names |= {f"{names[key]}.{part}": f"{names[key]}.{part}" for part in parts}
    modes = {word: _mode(document, key) for key, name in names.items() for word in (key, name)}
    names |= {name: name for name in names.values()}
    known = tuple(dict.fromkeys((*names, *_keys(raw.get("models")))))
    pool = raw.get("pool")
    regions = _keys(pool.get("regions") if isinstance(pool, dict) else None)
    seen: set[tuple[str, str, tuple[tuple[str, int], ...]]] = set()
    for position, instances in enumerate(document.running):
        place: Path = ("running", position)
        if instances.model not in known:
            mistakes.add(
                (*place, "model"), f"unknown model '{instances.model}'", suggest(instances.model, document.models)
            )
        mode = modes.get(instances.model, document.mode)
        if instances.phase not in PHASES_OF[mode]:
            hint = f"choose from {', '.join(PHASES_OF[mode])}"
            mistakes.add((*place, "phase"), f"there is no phase '{instances.phase}' in mode '{mode}'", hint)
        if instances.region not in regions:
            mistakes.add((*place, "region"), f"unknown region '{instances.region}'", suggest(instances.region, regions))
        for node in instances.nodes:
            if node not in nodes and node not in _keys(raw.get("nodes")):
                hint = _configuration_hint(node, nodes)
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
        found.append(RunningInstances(key, instances.region, dict(instances.nodes), instances.count))
    return tuple(found)


def _operations(
    document: Document,
    nodes: Mapping[str, NodeConfiguration],
    used: set[str],
    phases: tuple[ModelPhase, ...],
    supply: Mapping[str, Mapping[str, _Offered]],
    mistakes: MistakeList,
) -> Operations:
    """Limits, replicas, forbidden nodes and supply classes, every name looked up."""

    pool = [node for node in nodes.values() if node.name in used]
    gpus = dict.fromkeys(node.gpu.name for node in pool)

    def limits(given: Limits, *place: str) -> RentLimits:
        for gpu in given.max_gpus or {}:
            if gpu not in {node.gpu.name for node in nodes.values()}:
                mistakes.add((*place, "limits", "max_gpus", gpu), f"unknown GPU '{gpu}'", suggest(gpu, gpus))
        quotas = tuple((gpu, most) for gpu, most in (given.max_gpus or {}).items() if gpu in gpus)
        return RentLimits(given.max_nodes, None if given.max_usd_h is None else float(given.max_usd_h), quotas)

    rules: list[tuple[str, ModelRules]] = []
    names = list(dict.fromkeys(phase.served for phase in phases))
    for key, entry in document.models.items():
        place = ("models", key)
        forbidden: set[str] = set()
        for position, word in enumerate(entry.forbidden):
            hit = [node.name for node in nodes.values() if word in (node.name, node.gpu.name)]
            if not hit:
                known = dict.fromkeys((*(node.gpu.name for node in pool), *(node.name for node in pool)))
                problem = f"unknown GPU or node configuration '{word}'"
                mistakes.add((*place, "forbidden", position), problem, suggest(word, known))
            forbidden |= set(hit) & used
        if entry.survive_region_loss > 0 and len(supply) < 2:
            mistakes.add(
                (*place, "survive_region_loss"),
                f"{entry.survive_region_loss:g} of the demand cannot survive the loss of the only region",
                "add a region, or ask for 0",
            )
        if entry.survive_instance_loss > 0 and entry.slo.attainment != "mean":
            problem = f"is planned for mean requests, not for {entry.slo.attainment:.6g} of them"
            hint = f"{FOR_A_SHARE}; or leave it out"
            mistakes.add((*place, "survive_instance_loss"), problem, hint)
        unmet = None
        if entry.unmet is not None:
            made = (phase.mean_output_tokens for phase in phases if phase.served in (key, _name(key, entry)))
            each = 1e3 * float(entry.unmet.usd_per_1000_requests or 0.0) / next(made, 1.0)
            unmet = float(entry.unmet.input_usd_mtok), float(entry.unmet.output_usd_mtok) + each
        rule = ModelRules(
            limits(entry.limits, *place),
            entry.min_replicas,
            float(entry.survive_region_loss),
            float(entry.survive_instance_loss),
            tuple(node.name for node in pool if node.name in forbidden),
            unmet,
        )
        name = _name(key, entry)
        if rule != ModelRules() and name in names:
            rules.append((name, rule))
    shares = [f"'{key}'" for key, entry in document.models.items() if entry.slo.attainment != "mean"]
    for where, stated in (
        ("transition", document.transition == "start-first"),
        ("start", document.start is not None),
        ("demand_cases", bool(document.demand_cases)),
    ):
        if stated and shares:
            problem = f"is planned for mean requests, not for shares of them ({', '.join(shares)})"
            mistakes.add((where,), problem, f"{FOR_A_SHARE}; or leave it out")
    classes: list[NodeClass] = []
    for region, offers in supply.items():
        for node, offer in offers.items():
            if offer.reserved:
                classes.append(NodeClass("reserved", region, node, offer.reserved, 0.0))
            if offer.spot:
                classes.append(NodeClass("spot", region, node, offer.spot, offer.spot_usd_h))
            if offer.committed and not offer.committed_usd_h >= offer.price:
                # Where a term costs more than renting on demand all along, nobody commits.
                classes.append(NodeClass("committed", region, node, offer.committed, offer.committed_usd_h))
    regions = [
        (region, limits(entry.limits, "pool", "regions", region)) for region, entry in document.pool.regions.items()
    ]
    return Operations(
        limits=limits(document.limits),
        regions=tuple((region, found) for region, found in regions if found != RentLimits()),
        models=tuple(rules),
        classes=tuple(classes),
        start_first=document.transition == "start-first",
        cases=_cases(document, mistakes),
        start=None if document.start is None else StartCost(**{name: float(value) for name, value in document.start}),
    )


def _name(key: str, entry: Model) -> str:
    """The name of a model: that of the catalog where its key is a checkpoint's."""
    model = catalog.find_model(key) if entry.model is None else None
    return model.name if model else key


def _cases(document: Document, mistakes: MistakeList) -> tuple[DemandScenario, ...]:
    """The demands that may come."""
    place: Path = ("demand_cases",)
    if not document.demand_cases:
        return ()
    total = math.fsum(case.probability for case in document.demand_cases.values())
    if abs(total - 1) > 1e-6:
        mistakes.add(
            place, f"the probabilities sum to {total:g}, not to 1", "correct them, or add the case that is missing"
        )
    for name, case in document.demand_cases.items():
        for key in case.factors:
            if key not in document.models:
                mistakes.add((*place, name, "factors", key), f"unknown model '{key}'", suggest(key, document.models))
    modes = [_mode(document, key) for key in document.models]
    anywhere = document.kv_transfer == "free" or len(document.pool.regions) == 1 or set(modes) == {"mixed"}
    if "auto" in modes or not anywhere or any(entry.variants for entry in document.models.values()):
        problem = "several demands are planned where caches go anywhere for nothing, without mode auto or variants"
        mistakes.add(place, problem, "give kv_transfer: free, and one mode and variant of each model")
    for key, entry in document.models.items():
        if entry.survive_region_loss > 0 or entry.survive_instance_loss > 0:
            problem = f"of a demand that may go unmet no share can be asked to survive ('{key}')"
            mistakes.add(place, problem, "leave survive_region_loss and survive_instance_loss out")
    return tuple(
        DemandScenario(
            name,
            float(case.probability),
            tuple(
                (_name(key, entry), float(case.factors.get(key, case.factor))) for key, entry in document.models.items()
            ),
        )
        for name, case in document.demand_cases.items()
    )


def _keys(value: object) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, Mapping) else ()


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


#: Fields of a GPU that are numbers.
_FIGURES = ("memory_gib", "bandwidth_gb_s", "bf16_tflops", "fp8_tflops", "link_gb_s")
