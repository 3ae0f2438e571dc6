"""KV caches between regions: the routes that a scenario allows, and what a plan sends over them."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from coralopt.allocation.routes import Flow, ModelRoutes, Pool, Route, least_flow
from coralopt.plan.document import Plan, PlannedFlow
from coralopt.scenario.resolved import ModelPhase, ResolvedScenario


def cache_gb_s(prefill: ModelPhase) -> float:
    """1e9 bytes/s of KV cache that all requests of a model make."""
    return prefill.model.kv_bytes(prefill.mean_input_tokens) * requests_s(prefill) / 1e9


def requests_s(phase: ModelPhase) -> float:
    """Requests/s behind the demand of a prefill phase."""
    return phase.demand_tokens_s / phase.mean_input_tokens


def is_routed(scenario: ResolvedScenario) -> bool:
    """Whether it matters where prefill hands over: several regions, and transfers that are not free."""
    several = len(scenario.regions) > 1 and scenario.mode == "disaggregated"
    return several and scenario.kv_transfer.mode != "free"


def handing_over(scenario: ResolvedScenario) -> Iterator[tuple[int, int]]:
    """Positions of the prefill and decode phase of every model that has demand for both."""
    phases = scenario.model_phases
    for p, prefill in enumerate(phases):
        for d, decode in enumerate(phases):
            both = (prefill.phase, decode.phase) == ("prefill", "decode") and prefill.model.name == decode.model.name
            if both and prefill.demand_tokens_s > 0 and decode.demand_tokens_s > 0:
                yield p, d


def allowed_routes(scenario: ResolvedScenario) -> tuple[ModelRoutes, ...]:
    """The routes of every model whose requests may not go anywhere for nothing."""
    if not is_routed(scenario):
        return ()
    models = []
    for p, d in handing_over(scenario):
        usd_h_at_1 = cache_gb_s(scenario.model_phases[p]) * 3600
        routes = []
        for r, source in enumerate(scenario.regions):
            for s, target in enumerate(scenario.regions):
                link = scenario.kv_transfer.link(source, target)
                if link is not None:
                    routes.append(Route(((p, r), (d, s)), usd_h_at_1 * (link.usd_gb or 0.0)))
        models.append(ModelRoutes(scenario.model_phases[p].model.name, tuple(routes)))
    return tuple(models)


def planned_flows(scenario: ResolvedScenario, model: ModelRoutes, flow: Flow, factor: float) -> list[PlannedFlow]:
    """A flow over the routes of the whole demand as the plan states it, where ``factor`` of the demand is planned for."""
    flows = []
    for route, share in zip(model.routes, flow.shares, strict=True):
        if share > 0 and len(route.pools) == 2:
            (p, r), (_, s) = route.pools
            prefill = scenario.model_phases[p]
            assert r is not None
            assert s is not None
            flows.append(
                PlannedFlow(
                    model=prefill.model.name,
                    prefill_region=scenario.regions[r],
                    decode_region=scenario.regions[s],
                    requests_s=float(share) * factor * requests_s(prefill),
                    gb_s=float(share) * factor * cache_gb_s(prefill),
                    usd_h=float(share * Fraction(route.usd_h)) * factor,
                )
            )
    return flows


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
        for flow in planned_flows(scenario, routes, least_flow(routes, capacity), 1.0):
            link = scenario.kv_transfer.link(flow.prefill_region, flow.decode_region)
            price = 0.0 if link is None or link.usd_gb is None else link.usd_gb
            flows.append(flow.model_copy(update={"usd_h": flow.gb_s * 3600 * price}))
    return tuple(flows)
