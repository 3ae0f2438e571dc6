"""The bill of a plan, derived from it: what to rent, what that costs an hour, a month and a million tokens."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from coralopt import catalog
from coralopt.catalog.types import unsupported
from coralopt.errors import PlanError
from coralopt.plan.document import Plan
from coralopt.plan.flows import flows_of
from coralopt.plan.parts import PlannedInstance, PlannedNodeClass
from coralopt.scenario import ResolvedScenario

#: Hours of the month that clouds quote prices for.
HOURS_A_MONTH = 730
#: Tokens/s at 1 USD/h -> USD per million tokens.
_USD_MTOK = 1e6 / 3600
#: In where a figure is from: a GPU without figures of its own, and links that nobody measured.
_ALIKE, _LINKED = re.compile(r"(prefill )?assumed like ([^:;]+):"), re.compile(r"all-reduce [\d.]+ GB/s assumed")


@dataclass(frozen=True)
class BillLine:
    """Equal nodes in one region.

    Attributes:
        region: Where.
        instance_type: The cloud's name of the instance; ``None`` when no such instance is known.
        configuration: The scenario's name of the node.
        gpus, gpu: GPUs of one node.
        supply: ``"reserved"``, ``"spot"``, ``"committed"`` or ``"on-demand"``.
        nodes: How many.
        usd_h_each: Price of one, USD/h; NaN where the plan's scenario has none.
        usd_h, usd_month: Price of all of them; a month has 730 h.
        throughput: Where the figures of its throughput are from: ``"data sheet, assumed like H100"``.
    """

    region: str
    instance_type: str | None
    configuration: str
    gpus: int
    gpu: str
    supply: str
    nodes: int
    usd_h_each: float
    usd_h: float
    usd_month: float
    throughput: str = ""


@dataclass(frozen=True)
class ModelBill:
    """What one model costs: the rent of its instances, and that rent over the tokens that are demanded and served.

    Attributes:
        model: Its name.
        usd_h, usd_month: Rent of all its instances.
        input_usd_mtok: Rent of its prefill instances, USD per million input tokens; ``None`` without any.
        output_usd_mtok: Rent of its decode (or mixed) instances, USD per million output tokens; ``None`` without any.
    """

    model: str
    usd_h: float
    usd_month: float
    input_usd_mtok: float | None
    output_usd_mtok: float | None


@dataclass(frozen=True)
class OneGpuRent:
    """The cheapest plan that takes one GPU type for all models.

    Attributes:
        gpu: That type; ``None`` when no such plan is known.
        usd_h: Its rent and egress, USD/h.
        tried: Types that were looked at.
        least_usd_h: What no plan of one type costs less than, initialization included, USD/h; infinite where none meets
            the demand.
        gap: Relative gap between the cost of the plan of that type and this bound.
        saved: Share that the plan of the bill costs less than the bound, initialization included.
        itself: Whether it is the plan of the bill.
        seconds: After so many the search ended before its time; ``None`` when it did not.
    """

    gpu: str | None
    usd_h: float
    tried: tuple[str, ...]
    least_usd_h: float
    gap: float = 0.0
    saved: float = 0.0
    itself: bool = False
    seconds: float | None = None

    def compared_with(self, usd_h: float) -> str:
        """A sentence about a plan of this rent."""
        more = "" if self.seconds is None else f"; looked for in {self.seconds:.0f} s, --one-gpu looks on"
        if self.gpu is None and math.isinf(self.least_usd_h):
            return f"one GPU type for all models: none of {', '.join(self.tried)} alone meets the demand"
        if self.gpu is None:
            saved = f"; this plan costs {self.saved:.1%} less than that" if self.saved > 0 else ""
            return (
                f"one GPU type for all models: no plan known, none costs less than {self.least_usd_h:,.4f} USD/h with "
                f"initialization{more}{saved}"
            )
        less = 1 - usd_h / self.usd_h if self.usd_h > 0 else 0.0
        words = "the same" if abs(less) < 0.0005 else f"{abs(less):.1%} {'less' if less > 0 else 'more'}"
        near = f"within {max(self.gap, 0.01):.0%} of the least{more}"
        cheapest = f"cheapest with one GPU type for all models: {self.gpu} at {self.usd_h:,.4f} USD/h"
        if self.itself:
            return f"{cheapest}, which is this plan ({near})"
        return f"{cheapest} (coral's plan without all other types, {near}); this plan costs {words}"


@dataclass(frozen=True)
class Bill:
    """What a plan costs.

    Attributes:
        lines: Nodes to rent, dearest first.
        models: Costs by model, in the plan's order.
        usd_h, usd_month: Sum of rent and egress; initialization and the price of unmet demand are not paid to a cloud.
        notes: A line each for transfers between regions, nodes of one's own that are not used, stand-in prices,
            throughput figures from data sheets, and GPUs that cannot run a model.
        one_gpu: The comparison with plans of one GPU type, where it was made.
        against: A sentence that compares with the cheapest plan of one GPU type, or says why it does not.
    """

    lines: tuple[BillLine, ...]
    models: tuple[ModelBill, ...]
    usd_h: float
    usd_month: float
    notes: tuple[str, ...]
    one_gpu: OneGpuRent | None = None
    against: str = ""


def bill_of(plan: Plan, one_gpu: OneGpuRent | None = None) -> Bill:
    """The bill of a plan.

    Raises:
        ScenarioError: The plan's scenario is not one of this version.
        PlanError: An instance has nodes that the plan does not rent.
    """
    scenario = plan.resolved
    lines = _lines(plan, scenario)
    usd_h = sum(line.usd_h for line in lines) + plan.egress_usd_h
    notes = (
        *_transfers(plan),
        *_unused(lines, scenario),
        *_stand_ins(lines, scenario),
        *throughput_notes([plan]),
        *left_out(scenario),
    )
    against = _not_compared(plan) if one_gpu is None else one_gpu.compared_with(usd_h)
    return Bill(lines, tuple(_models(plan, lines)), usd_h, usd_h * HOURS_A_MONTH, notes, one_gpu, against)


def _not_compared(plan: Plan) -> str:
    scenario = plan.resolved
    there = set(np.array(scenario.gpu_types)[(scenario.availability > 0).any(axis=0)].tolist())
    if len(there) == 1:
        return f"one GPU type for all models: the pool has no other than {there.pop()}"
    if plan.on_infeasible != "met":
        return "one GPU type for all models: not compared, since this plan does not meet the whole demand"
    rented = {item.gpu.name for item in scenario.configurations if any(item.name == n for _, n in plan.rented_nodes())}
    own = f" (this plan has one itself, {rented.pop()})" if len(rented) == 1 else ""
    return f"one GPU type for all models: not compared{own}; --one-gpu of `plan` and `show` does"


def _lines(plan: Plan, scenario: ResolvedScenario) -> tuple[BillLine, ...]:
    types: dict[tuple[str, str], str | None] = {}
    for instance in plan.instances:
        for stage in instance.stages:
            for node in stage.nodes:
                types[instance.region, node.configuration] = node.instance_type
    price = {
        (region, configuration.name): float(scenario.price_usd_h[r, c])
        for r, region in enumerate(scenario.regions)
        for c, configuration in enumerate(scenario.configurations)
    }
    # Without supply classes, all nodes are on demand.
    classes = plan.node_classes or tuple(
        PlannedNodeClass.model_construct(
            region=region,
            configuration=name,
            node_class=scenario.source.pool.market,
            nodes=nodes,
            usd_h=price.get((region, name), float("nan")),
        )
        for (region, name), nodes in plan.rented_nodes().items()
    )
    gpus = {item.name: (item.count, item.gpu.name) for item in scenario.configurations}
    lines = [
        BillLine(
            item.region,
            types.get((item.region, item.configuration)),
            item.configuration,
            *gpus.get(item.configuration, (1, item.configuration)),
            item.node_class,
            item.nodes,
            item.usd_h,
            item.nodes * item.usd_h,
            item.nodes * item.usd_h * HOURS_A_MONTH,
            _throughput(plan, item.configuration),
        )
        for item in classes
    ]
    return tuple(sorted(lines, key=lambda line: -line.usd_h))


def rents(plan: Plan) -> tuple[float, ...]:
    """Rent of one of each of the plan's instances, USD/h: nodes of several supply classes cost their mean.

    Raises:
        PlanError: An instance has nodes that the plan does not rent.
    """
    return _rents(plan, _lines(plan, plan.resolved))


def _rents(plan: Plan, lines: tuple[BillLine, ...]) -> tuple[float, ...]:
    paid: dict[tuple[str, str], float] = defaultdict(float)
    nodes: Counter[tuple[str, str]] = Counter()
    for line in lines:
        paid[line.region, line.configuration] += line.usd_h
        nodes[line.region, line.configuration] += line.nodes
    return tuple(_rent(item, paid, nodes) for item in plan.instances)


def _models(plan: Plan, lines: tuple[BillLine, ...]) -> Iterator[ModelBill]:
    rent: dict[tuple[str, str], float] = defaultdict(float)
    for item, usd_h in zip(plan.instances, _rents(plan, lines), strict=True):
        for key, (_, time_share) in item.serves().items():
            model, phase = key.rsplit("/", 1)
            rent[model, phase] += item.count * usd_h * time_share
    tokens_s: dict[tuple[str, str], float] = {
        (d.model, d.phase): max(0.0, d.demand_tokens_s - d.unmet_tokens_s) for d in plan.demands
    }

    def usd_mtok(model: str, *phases: str) -> float | None:
        served = sum(tokens_s.get((model, phase), 0.0) for phase in phases)
        paid = [rent[model, phase] for phase in phases if (model, phase) in rent]
        return sum(paid) / served * _USD_MTOK if served > 0 and paid else None

    for model in dict.fromkeys(model for model, _ in (*tokens_s, *rent)):
        usd_h = sum(value for (name, _), value in rent.items() if name == model)
        yield ModelBill(
            model, usd_h, usd_h * HOURS_A_MONTH, usd_mtok(model, "prefill"), usd_mtok(model, "decode", "mixed")
        )


def _rent(instance: PlannedInstance, paid: dict[tuple[str, str], float], nodes: Counter[tuple[str, str]]) -> float:
    places = [(instance.region, name, count) for name, count in instance.nodes().items()]
    for region, name, count in places:
        if count and not nodes[region, name]:
            raise PlanError(
                f"{instance.name} has nodes {name} in {region}, which the plan's node classes do not have: the plan was "
                "edited; `coralopt verify` lists what does not hold"
            )
    whole = sum(count * paid[region, name] / nodes[region, name] for region, name, count in places)
    return whole if instance.shared is None else whole * float(instance.shared.part)


def _transfers(plan: Plan) -> Iterator[str]:
    between = [flow for flow in flows_of(plan) if flow.prefill_region != flow.decode_region]
    if between:
        usd_h = sum(flow.usd_h for flow in between)
        where = "in the sum" if plan.flows else "not in the sum, since kv_transfer is free"
        yield (
            f"transfers between regions: {sum(flow.gb_s for flow in between):,.2f} GB/s of KV cache, {usd_h:,.2f} USD/h, "
            f"{usd_h * HOURS_A_MONTH:,.0f} USD/month, {where}"
        )


def _unused(lines: tuple[BillLine, ...], scenario: ResolvedScenario) -> Iterator[str]:
    """Nodes that cost nothing, the team's own, and are not used."""
    used = Counter[tuple[str, str]]()
    for line in lines:
        used[line.region, line.configuration] += line.nodes
    words = []
    for r, c in np.argwhere((scenario.price_usd_h == 0) & (scenario.availability > 0)).tolist():
        region, name, there = scenario.regions[r], scenario.configurations[c].name, int(scenario.availability[r, c])
        if used[region, name] < there:
            words.append(f"{there - used[region, name]} of {there} {name} in {region}")
    if words:
        yield f"not used, though they cost nothing: {', '.join(words)}"


def left_out(scenario: ResolvedScenario) -> Iterator[str]:
    """GPUs of the pool that no engine runs a model's formats on, and why."""
    models: dict[str, dict[str, None]] = defaultdict(dict)
    for c in np.flatnonzero((scenario.availability > 0).any(axis=0)).tolist():
        for phase in scenario.model_phases:
            if reason := unsupported(phase.model, scenario.configurations[c].gpu):
                models[reason][phase.key.rpartition("/")[0]] = None
    if models:
        words = (f"{reason} ({', '.join(names)})" for reason, names in models.items())
        yield f"GPUs left out: {'; '.join(words)}"


def _stand_ins(lines: tuple[BillLine, ...], scenario: ResolvedScenario) -> Iterator[str]:
    """Nodes that no cloud sells so, and what their price was taken from."""
    words = []
    for region, name in dict.fromkeys(
        (line.region, line.configuration) for line in lines if line.instance_type is None and line.usd_h_each > 0
    ):
        offer = catalog.offers().get((region, name))
        own = scenario.source.pool.regions[region].configurations if region in scenario.regions else None
        entry = own.get(name) if isinstance(own, dict) else None
        priced = "own price" if offer is None or getattr(entry, "price_usd_h", None) is not None else offer.priced_as
        words.append(f"{name} in {region} ({priced})")
    if words:
        yield f"stand-in prices, no such instance type is known: {'; '.join(words)}"


def throughput_notes(plans: Iterable[Plan]) -> Iterator[str]:
    """What of the throughput figures of the nodes in some plans is not measured, and what of it assumed."""
    sources: dict[str, set[str]] = defaultdict(set)
    gpus: dict[str, int] = {}
    for plan in plans:
        gpus |= {item.name: item.count for item in plan.resolved.configurations}
        for name, line in ((name, line) for d in plan.demands for name, line in d.throughput_sources.items()):
            sources[name].add(line)
    names = [name for name, lines in sorted(sources.items()) if any(line.startswith("roofline") for line in lines)]
    if names:
        yield f"throughput from data sheets (roofline), not measured: {', '.join(names)}"
    assumed = {(m[2], name, m[1] or "") for name in names for line in sources[name] for m in _ALIKE.finditer(line)}
    if assumed:
        words = ", ".join(
            f"{name} like {gpu}{' in prefill' if prefill else ''}" for gpu, name, prefill in sorted(assumed)
        )
        yield f"no figures of their own, assumed to reach the same shares of the data sheet: {words}"
    guessed = [name for name in names if any(" a guess" in line for line in sources[name])]
    if guessed:
        yield f"shares of the data sheet that kernels reach are guessed, not fitted: {', '.join(guessed)}"
    linked = [n for n in names if gpus.get(n, 1) > 1 and any(_LINKED.search(line) for line in sources[n])]
    if linked:
        yield f"speed of the links between the GPUs of a node is assumed: {', '.join(linked)}"


def _throughput(plan: Plan, name: str) -> str:
    """Where the figures of one node are from, in a few words."""
    words = dict[str, None]()
    for line in (d.throughput_sources[name] for d in plan.demands if name in d.throughput_sources):
        kind, _, _ = line.partition(":")
        kind = "data sheet" if kind == "roofline" else kind
        match = _ALIKE.search(line)
        alike = f", {match[1] or ''}assumed like {match[2]}" if match else ", guessed" if " a guess" in line else ""
        words[f"{kind}{alike}"] = None
    return "; ".join(words)
