"""Ways of requests: the routes that a scenario allows, and what a plan sends over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from coralopt.allocation.routes import Flow, ModelRoutes, Pool, Route, least_flow
from coralopt.plan.document import Plan, PlannedFlow, PlannedMode, share_of
from coralopt.scenario.resolved import ModelPhase, ResolvedScenario


def cache_gb_s(prefill: ModelPhase) -> float:
    """1e9 bytes/s of KV cache that all requests of a model make."""
    return prefill.model.kv_bytes(prefill.mean_input_tokens) * requests_s(prefill) / 1e9


def requests_s(phase: ModelPhase) -> float:
    """Requests/s behind the demand of a prefill phase."""
    return phase.demand_tokens_s / phase.mean_input_tokens


def is_routed(scenario: ResolvedScenario) -> bool:
    """Whether it matters where prefill hands over: several regions, and transfers that are not free."""
    several = len(scenario.regions) > 1 and scenario.kv_transfer.mode != "free"
    return several and any(phase.phase == "prefill" for phase in scenario.model_phases)


def handing_over(scenario: ResolvedScenario) -> Iterator[tuple[int, int, int | None]]:
    """Positions of the prefill, decode and, in mode auto, mixed phase of every model with demand for prefill and decode."""
    place = {phase.key: p for p, phase in enumerate(scenario.model_phases) if phase.demand_tokens_s > 0}
    for name in scenario.model_keys:
        p, d = place.get(f"{name}/prefill"), place.get(f"{name}/decode")
        if p is not None and d is not None:
            yield p, d, place.get(f"{name}/mixed")


def allowed_routes(scenario: ResolvedScenario) -> tuple[ModelRoutes, ...]:
    """The routes of every model whose requests may not go anywhere for nothing, or by more than one mode."""
    models = []
    for p, d, m in handing_over(scenario):
        routes = [] if m is None else [Route(((m, None),))]
        if is_routed(scenario):
            usd_h_at_1 = cache_gb_s(scenario.model_phases[p]) * 3600
            for r, source in enumerate(scenario.regions):
                for s, target in enumerate(scenario.regions):
                    link = scenario.kv_transfer.link(source, target)
                    if link is not None:
                        routes.append(Route(((p, r), (d, s)), usd_h_at_1 * (link.usd_gb or 0.0)))
        elif m is None:
            continue
        else:
            routes.append(Route(((p, None), (d, None))))
        models.append(ModelRoutes(scenario.model_phases[p].model.name, tuple(routes)))
    return tuple(models)


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
                    requests_s=float(share) * factor * requests_s(prefill),
                    gb_s=float(share) * factor * cache_gb_s(prefill),
                    usd_h=float(share * Fraction(route.usd_h)) * factor,
                )
            )
    return flows


def planned_modes(scenario: ResolvedScenario, flows: Sequence[Flow], planned: Sequence[float]) -> list[PlannedMode]:
    """Which share of the requests of every model in mode auto each of its modes serves.

    Args:
        scenario: The scenario.
        flows: Of every model with routes, in the order of :func:`allowed_routes`.
        planned: Tokens/s of the instances of every model phase. Where KV caches go anywhere for nothing, requests are
            split like what both modes can serve, so that neither has less to spare.
    """
    modes = []
    of_model = {model.model: (model, flow) for model, flow in zip(allowed_routes(scenario), flows, strict=True)}
    for p, d, m in handing_over(scenario):
        if m is None:
            continue
        phases = scenario.model_phases
        model, flow = of_model[phases[p].model.name]
        if is_routed(scenario):
            mixed = sum((s for s, r in zip(flow.shares, model.routes, strict=True) if len(r.pools) == 1), Fraction(0))
            apart = sum(flow.shares, Fraction(0)) - mixed
        else:
            reach = [Fraction(planned[k]) / Fraction(phases[k].needed_tokens_s) for k in (p, d, m)]
            apart, mixed = min(reach[:2]), reach[2]
        split = float(mixed / (apart + mixed))
        modes.append(PlannedMode(model=model.model, mode="disaggregated", share=1.0 - split))
        modes.append(PlannedMode(model=model.model, mode="mixed", share=split))
    return modes


def flows_of(plan: Plan) -> tuple[PlannedFlow, ...]:
    """The plan's flows; where transfers are free, those that send least between regions, at the prices that are known."""
    scenario = plan.resolved
    if plan.flows or is_routed(scenario) or len(scenario.regions) < 2:
        return plan.flows
    flows = []
    for p, d, _ in handing_over(scenario):
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
