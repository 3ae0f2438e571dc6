"""Ways of requests: the routes that a scenario allows, and what a plan sends over them."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Literal

from coralopt.allocation.routes import Flow, ModelRoutes, Pool, Route, RouteMean, least_flow
from coralopt.plan.document import Plan
from coralopt.plan.parts import PlannedFlow, PlannedMode, PlannedOption, share_of
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.resolved import ResolvedScenario, ways_of

#: A mean binds where it is reached with less than this to spare.
MEAN_ROOM = 1e-6


def cache_gb_s(prefill: ModelPhase) -> float:
    """1e9 bytes/s of KV cache that all requests of a model make and send."""
    sent = prefill.model.kv_bytes(prefill.mean_input_tokens) * (1.0 - prefill.prefix_hit)
    return sent * prefill.requests_s / 1e9


def is_routed(scenario: ResolvedScenario) -> bool:
    """Whether it matters where prefill hands over: several regions, and transfers that are not free."""
    several = len(scenario.regions) > 1 and scenario.kv_transfer.mode != "free"
    return several and any(phase.phase == "prefill" for phase in scenario.model_phases)


def handing_over(scenario: ResolvedScenario) -> Iterator[tuple[int, int]]:
    """Positions of the prefill and decode phase of every model, or variant of one, with demand for both."""
    for ways in ways_of(scenario).values():
        yield from ((way[0], way[1]) for way in ways if len(way) == 2)


def allowed_routes(scenario: ResolvedScenario) -> tuple[ModelRoutes, ...]:
    """The routes of every model whose requests may not go anywhere for nothing, or by more than one mode or variant."""
    models, routed = [], is_routed(scenario)
    for name, ways in ways_of(scenario).items():
        routes, phases = [], scenario.model_phases
        for way in ways:
            if len(way) == 1 or not routed:
                routes.append(Route(tuple((p, None) for p in way)))
                continue
            usd_h_at_1 = cache_gb_s(phases[way[0]]) * 3600
            for r, source in enumerate(scenario.regions):
                for s, target in enumerate(scenario.regions):
                    link = scenario.kv_transfer.link(source, target)
                    if link is not None:
                        routes.append(Route(((way[0], r), (way[1], s)), usd_h_at_1 * (link.usd_gb or 0.0)))
        if len(routes) > 1:
            models.append(ModelRoutes(name, tuple(routes), _means(scenario, routes)))
    return tuple(models)


def closed_regions(scenario: ResolvedScenario) -> Iterator[str]:
    """In a sentence, regions that may exchange KV caches with no other, for want of a price or by a ban."""
    regions, link = scenario.regions, scenario.kv_transfer.link
    closed = [a for a in regions if all(link(a, b) is None and link(b, a) is None for b in regions if b != a)]
    if closed and is_routed(scenario) and scenario.kv_transfer.mode == "priced":
        named = ", ".join(closed[:6]) + (f" and {len(closed) - 6} more" if len(closed) > 6 else "")
        yield (
            f"prefill and decode of a request must share a region, since caches from {named} may not be sent elsewhere: "
            "no price is known, or `egress` forbids it; `egress` can give one, `kv_transfer: free` allows all"
        )


def _means(scenario: ResolvedScenario, routes: Sequence[Route]) -> tuple[RouteMean, ...]:
    """What the scenario asks of a model's requests over its variants, under its place there; nothing of a single one."""
    variants = [scenario.model_phases[route.pools[0][0]].variant for route in routes]
    own = [variant for variant in variants if variant is not None]
    if len(set(own)) < 2:
        return ()
    first, key = own[0], scenario.model_keys[own[0].of]
    means = []
    if first.least_quality:
        qualities = tuple(variant.quality for variant in own)
        means.append(RouteMean(f"models.{key}.demand.min_quality", qualities, first.least_quality))
    for kept in dict.fromkeys(own):
        if kept.least_share:
            inside = tuple(float(variant == kept) for variant in own)
            means.append(RouteMean(f"models.{key}.demand.min_shares.{kept.name}", inside, kept.least_share))
    return tuple(means)


def planned_flows(scenario: ResolvedScenario, model: ModelRoutes, flow: Flow, factor: float) -> list[PlannedFlow]:
    """A flow over the routes of the whole demand as the plan states it, where ``factor`` of the demand is planned for."""
    flows = []
    for route, share in zip(model.routes, flow.shares, strict=True):
        # A pool without a region is one of all.
        if share > 0 and len(route.pools) == 2 and route.pools[0][1] is not None:
            (p, r), (_, s) = route.pools
            prefill = scenario.model_phases[p]
            assert r is not None
            assert s is not None
            flows.append(
                PlannedFlow(
                    model=prefill.model.name,
                    prefill_region=scenario.regions[r],
                    decode_region=scenario.regions[s],
                    requests_s=float(share) * factor * prefill.requests_s,
                    gb_s=float(share) * factor * cache_gb_s(prefill),
                    usd_h=float(share * Fraction(route.usd_h)) * factor,
                )
            )
    return flows


def planned_modes(scenario: ResolvedScenario, flows: Sequence[Flow], planned: Sequence[float]) -> list[PlannedMode]:
    """Which share of the requests of every model in mode auto, or with variants, each of its ways serves.

    Args:
        scenario: The scenario.
        flows: Of every model with routes, in the order of :func:`allowed_routes`.
        planned: Tokens/s of the instances of every model phase. Where KV caches go anywhere for nothing, requests are
            split like what the ways can serve, so that none has less to spare, as far as the means over variants allow.
    """
    modes, phases, ways = [], scenario.model_phases, ways_of(scenario)
    for model, flow in zip(allowed_routes(scenario), flows, strict=True):
        mine = ways[model.model]
        if len(mine) < 2:
            continue
        shares = dict.fromkeys((way[0] for way in mine), Fraction(0))
        for route, share in zip(model.routes, flow.shares, strict=True):
            shares[route.pools[0][0]] += share
        if not is_routed(scenario):
            reach = (min(Fraction(planned[p]) / Fraction(phases[p].needed_tokens_s) for p in way) for way in mine)
            shares = dict(zip(shares, _nearest(list(shares.values()), list(reach), model.means), strict=True))
        total = sum(shares.values(), Fraction(0))
        stated = {p: float(share / total) for p, share in sorted(shares.items())}
        # Together they are 1 to the last digit.
        stated[min(stated)] = max(0.0, 1.0 - sum(part for p, part in stated.items() if p > min(stated)))
        for p, part in stated.items():
            kind: Literal["mixed", "disaggregated"] = "mixed" if phases[p].phase == "mixed" else "disaggregated"
            modes.append(PlannedMode(model=phases[p].model.name, mode=kind, share=part))
    return modes


def _nearest(shares: list[Fraction], even: list[Fraction], means: Sequence[RouteMean]) -> list[Fraction]:
    """The shares between these and even ones, each of a sum of 1, that are as even as the means allow."""
    shares, even = ([value / sum(values) for value in values] for values in (shares, even))
    step = Fraction(1)
    for mean in means:
        at, there = (sum(map(operator.mul, mean.terms(), values), Fraction(0)) for values in (shares, even))
        if there < 0:
            step = min(step, max(Fraction(0), at / (at - there)) if at > there else Fraction(0))
    return [a + step * (b - a) for a, b in zip(shares, even, strict=True)]


def variant_shares(plan: Plan) -> dict[str, dict[str, float]]:
    """Model with variants, as requests say it -> name of each variant -> share of the requests that the plan sends there."""
    shares: dict[str, dict[str, float]] = {}
    for phase in plan.resolved.model_phases:
        if phase.variant is not None and phase.phase != "decode":
            # A variant in mode auto has two ways.
            own = shares.setdefault(phase.served, {})
            own[phase.model.name] = own.get(phase.model.name, 0.0) + share_of(plan.modes, phase.key)
    return shares


def planned_means(scenario: ResolvedScenario, modes: Sequence[PlannedMode]) -> tuple[PlannedOption, ...]:
    """The means that the scenario asks for over the variants of its models, as the plan states them."""
    options = []
    for model in allowed_routes(scenario):
        for mean in model.means:
            values = {route.pools[0][0]: value for route, value in zip(model.routes, mean.values, strict=True)}
            planned = sum(value * share_of(modes, scenario.model_phases[p].key) for p, value in values.items())
            options.append(
                PlannedOption(
                    option=mean.name,
                    sense="least",
                    unit="of 1",
                    asked=mean.least,
                    planned=planned,
                    binding=planned < mean.least + MEAN_ROOM,
                )
            )
    return tuple(options)


def flows_of(plan: Plan) -> tuple[PlannedFlow, ...]:
    """The plan's flows; where transfers are free, those that send least between regions, at the prices that are known."""
    scenario = plan.resolved
    if plan.flows or is_routed(scenario) or len(scenario.regions) < 2:
        return plan.flows
    flows = []
    for p, d in handing_over(scenario):
        name, phases = scenario.model_phases[p].model.name, (scenario.model_phases[p], scenario.model_phases[d])
        capacity: dict[Pool, Fraction] = {
            (index, r): Fraction(
                sum(i.count * i.tokens_s for i in plan.instances if (i.key, i.region) == (phase.key, region))
            )
            / Fraction(phase.needed_tokens_s)
            for index, phase in zip((p, d), phases, strict=True)
            for r, region in enumerate(scenario.regions)
        }
        places = range(len(scenario.regions))
        routes = ModelRoutes(name, tuple(Route(((p, r), (d, s)), float(r != s)) for r in places for s in places))
        apart = Fraction(share_of(plan.modes, phases[0].key))
        for flow in planned_flows(scenario, routes, least_flow(routes, capacity, apart), 1.0):
            link = scenario.kv_transfer.link(flow.prefill_region, flow.decode_region)
            price = 0.0 if link is None or link.usd_gb is None else link.usd_gb
            flows.append(flow.model_copy(update={"usd_h": flow.gb_s * 3600 * price}))
    return tuple(flows)
