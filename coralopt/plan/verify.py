"""Independent verification of a plan: everything in it is recomputed from the scenario it carries.

Shares no code with the planner that wrote the plan: no library, no formulation, no reduction. Sums that decide
feasibility (capacity, demand) are exact rational arithmetic on the stored figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from coralopt.catalog.types import GIB
from coralopt.errors import CoraloptError
from coralopt.placement import (
    Budgets,
    Coupling,
    Links,
    Placement,
    PlacementProblem,
    Stage,
    best_placement,
    engine_limits,
)
from coralopt.plan.document import Plan, PlannedInstance
from coralopt.plan.verify_certificate import certificate_violations
from coralopt.plan.verify_operations import (
    TOLERANCE,
    Known,
    differs,
    operations,
    rent,
    served,
    unmet_usd_h,
    used_nodes,
)
from coralopt.scenario.resolved import ModelPhase, ModelRules, ResolvedScenario
from coralopt.solving.problem import Violation
from coralopt.throughput import (
    LayerTimeSource,
    ThroughputTables,
    budget_tables,
    build_tables,
    engine_runs,
    link_tables,
    only_executable,
    stage_role,
    throughput_source,
)
from coralopt.types import Floats

#: Planners whose placements are not meant to be the best of their nodes; they must still not claim more than the best.
OTHER_PLACEMENTS = ("hexgen",)


@dataclass(frozen=True)
class Verification:
    """What was checked and what was found.

    Attributes:
        checks: Names of the checks made, with how many figures each looked at.
        violations: Everything that is off; empty for a sound plan.
    """

    checks: tuple[tuple[str, int], ...]
    violations: tuple[Violation, ...]

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def sentences(self) -> tuple[str, ...]:
        """The violations in words."""
        return tuple(map(str, self.violations))


def verify_plan(plan: Plan) -> Verification:
    """Recompute every figure of ``plan`` from the scenario inside it.

    The scenario is validated anew; throughput tables are computed anew; each placement is checked against them, its
    optimality on its node set re-derived by the dynamic programme; prices, capacity, demand, cost and gap are summed
    anew. The lower bound itself is a statement about the whole library: :func:`coralopt.planning.prove_bound`
    re-derives it.
    """
    try:
        scenario = plan.resolved
        tables = _Tables(scenario, throughput_source(scenario.throughput_source))
    except CoraloptError as error:
        return Verification((("scenario", 1),), (Violation("scenario", "scenario", str(error)),))
    names = {configuration.name for configuration in scenario.configurations}
    # Instances whose every name the scenario knows; the others are reported by the scenario check.
    known = [
        (instance, tables.phases[instance.key])
        for instance in plan.instances
        if instance.key in tables.phases and set(instance.nodes()) <= names and instance.region in scenario.regions
    ]
    checks: list[tuple[str, int]] = []
    violations: list[Violation] = []
    for name, count, sentences in (
        ("scenario", 1, _scenario(plan, scenario, known)),
        ("placements", len(plan.instances), _placements(plan, scenario, known, tables)),
        ("optimality of placements", len(plan.instances), _optimality(plan, scenario, known, tables)),
        ("prices", len(plan.instances), _prices(plan, scenario, known)),
        ("capacity", scenario.availability.size, _capacity(plan, scenario, known)),
        ("demand", len(scenario.model_phases), _demand(plan, scenario, known)),
        ("options", len(plan.options), operations(plan, scenario, known)),
        ("cost and gap", 5, _money(plan, scenario, known)),
        ("certificate", len(plan.certificate.phases) if plan.certificate else 0, certificate_violations(plan)),
    ):
        violations.extend(sentences)
        if count or name != "certificate":
            checks.append((name, count))
    return Verification(tuple(checks), tuple(violations))


class _Tables:
    """Throughput tables by model phase, and by what a stage may take of its time or link; each is made once."""

    def __init__(self, scenario: ResolvedScenario, source: LayerTimeSource) -> None:
        self.scenario, self.source = scenario, source
        self.phases = {phase.key: phase for phase in scenario.model_phases}
        self.made: dict[tuple[object, ...], ThroughputTables] = {}
        self.placed: dict[str, tuple[Floats, Coupling | None]] = {}
        for key in self.phases:
            self.plain(key)

    def plain(self, key: str, **how: Any) -> ThroughputTables:
        """Of a model phase with SLO / S for every stage and its own network, or as ``how`` says."""
        name = (key, *how.items())
        if name not in self.made:
            phase, hosts = self.phases[key], self.scenario.configurations
            made = build_tables(self.source, phase, hosts, self.scenario.max_nodes, **how)
            self.made[name] = only_executable(made, self.scenario.placement.engine, phase, hosts)
        return self.made[name]

    def of_stage(self, phase: ModelPhase, instance: PlannedInstance, position: int) -> ThroughputTables | str:
        """What holds for this stage, or the sentence that says what is off."""
        rules, stage = self.scenario.placement, instance.stages[position]
        if rules.link_network and position + 1 < len(instance.stages):
            speed = {host.name: host.network_gb_s for host in self.scenario.configurations}
            slowest = min(speed[node.configuration] for node in instance.stages[position + 1].nodes)
            return self.plain(phase.key, receiver_gb_s=slowest)
        if rules.budget_units is None:
            if stage.latency_budget_ms is None:
                return self.plain(phase.key)
            return "has a latency budget of its own, but the scenario splits the SLO equally"
        unit_ms = phase.budget_ms / (rules.budget_units * len(instance.stages))
        given = unit_ms * rules.budget_units if stage.latency_budget_ms is None else stage.latency_budget_ms
        units = round(given / unit_ms)
        if units < 1 or differs(units * unit_ms, given):
            return f"has a latency budget of {given!r} ms, no whole number of units of {unit_ms!r} ms"
        return self.plain(phase.key, budget_units=(units, rules.budget_units))

    def problem(self, phase: ModelPhase, nodes: dict[str, int]) -> PlacementProblem:
        """The placement problem of these nodes."""
        hosts = self.scenario.configurations
        values, coupling = self._values(phase)
        return PlacementProblem(
            values,
            tuple(nodes.get(host.name, 0) for host in hosts),
            tuple(host.name for host in hosts),
            limits=engine_limits(self.scenario.placement.engine),
            gpus=tuple(host.count for host in hosts),
            coupling=coupling,
        )

    def _values(self, phase: ModelPhase) -> tuple[Floats, Coupling | None]:
        """What placements of a model phase are made from, and what its cells are; made once."""
        if phase.key not in self.placed:
            self.placed[phase.key] = self._made(phase)
        return self.placed[phase.key]

    def _made(self, phase: ModelPhase) -> tuple[Floats, Coupling | None]:
        scenario, rules = self.scenario, self.scenario.placement
        coupling: Coupling | None = None
        hosts, values = scenario.configurations, self.plain(phase.key).values
        if rules.budget_units is not None:
            values = budget_tables(self.source, phase, hosts, scenario.max_nodes, rules.budget_units)
            coupling = Budgets(rules.budget_units)
        elif rules.link_network:
            values, classes = link_tables(self.source, phase, hosts, scenario.max_nodes)
            coupling = Links(classes)
        if coupling is not None:
            runs = engine_runs(rules.engine, phase, hosts, scenario.max_nodes)
            values = np.where(runs[:, None, :, None, None], values, 0.0)
        return values, coupling


def _scenario(plan: Plan, scenario: ResolvedScenario, known: Known) -> Iterator[Violation]:
    off = partial(Violation, "scenario")
    if scenario.digest != plan.scenario_digest:
        yield off(
            "scenario_digest",
            f"scenario_digest is {plan.scenario_digest[:12]} but the scenario in the plan has {scenario.digest[:12]}: "
            "the scenario or the catalog changed since the plan was made",
        )
    names_known = {id(instance) for instance, _ in known}
    for instance in plan.instances:
        if id(instance) not in names_known:
            text = f"{instance.name}: its model phase, region or a node configuration is not part of the scenario"
            yield off(instance.name, text)
    names = [instance.name for instance in plan.instances]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield off(name, f"{name}: the name occurs more than once")


def _placements(plan: Plan, scenario: ResolvedScenario, known: Known, tables: _Tables) -> Iterator[Violation]:
    index = {configuration.name: c for c, configuration in enumerate(scenario.configurations)}
    for instance, phase in known:
        table = tables.plain(phase.key)
        count = len(instance.stages)
        off = partial(Violation, "figure", instance.name)
        broken = partial(Violation, "placement", instance.name)
        nodes = sum(instance.nodes().values())
        if nodes > scenario.max_nodes:
            yield broken(f"{instance.name}: {nodes} nodes, more than max_nodes {scenario.max_nodes}")
        if count > table.max_stages:
            yield broken(f"{instance.name}: {count} stages, more than its nodes allow")
            continue
        memory = sum(n * scenario.configurations[index[name]].memory_gib for name, n in instance.nodes().items())
        cap = scenario.memory_ratio * phase.model.weight_bytes / GIB
        if nodes > 1 and memory >= cap:
            text = f"{instance.name}: {memory:.1f} GiB of GPU memory, not below memory_ratio's {cap:.1f} GiB"
            yield Violation("memory", instance.name, text)
        names = [configuration.name for configuration in scenario.configurations]
        placement = Placement(
            tuple(
                Stage(s.layers, tuple(sum(n.count for n in s.nodes if n.configuration == name) for name in names))
                for s in instance.stages
            )
        )
        gpus = [configuration.count for configuration in scenario.configurations]
        for limit in engine_limits(scenario.placement.engine).violations(placement, gpus):
            yield Violation(limit.kind, instance.name, f"{instance.name}: {limit}")
        expected_first, slowest, latency_ms = 0, float("inf"), 0.0
        for position, stage in enumerate(instance.stages):
            where = f"{instance.name}: stage {position + 1}"
            if stage.first_layer != expected_first or stage.layers < 1:
                held = f"{stage.first_layer}-{stage.last_layer}"
                yield broken(f"{where} holds layers {held}, expected to begin at {expected_first}")
            expected_first = stage.last_layer + 1
            if not 1 <= stage.layers <= table.layers:
                continue
            stage_table = tables.of_stage(phase, instance, position)
            if isinstance(stage_table, str):
                yield Violation("latency", instance.name, f"{where} {stage_table}")
                continue
            role, total, stage_ms = stage_role(position, count), 0.0, 0.0
            for node in stage.nodes:
                c, name = index[node.configuration], node.configuration
                speed = float(stage_table.values[count - 1, role, c, stage.layers])
                if speed <= 0:
                    text = f"{where}: {name} cannot hold {stage.layers} layers within its latency budget"
                    yield Violation("memory", instance.name, text)
                elif differs(speed, node.tokens_s):
                    yield off(f"{where}: {name} is given {node.tokens_s!r} tokens/s, recomputed {speed!r}")
                if node.batch != int(stage_table.batch[count - 1, role, c, stage.layers]):
                    yield off(f"{where}: {name} is given batch {node.batch}, recomputed another")
                instance_type = scenario.instance_types[scenario.regions.index(instance.region)][c]
                if node.instance_type != instance_type:
                    yield off(f"{where}: {name} is called {node.instance_type}, the scenario says {instance_type}")
                total += node.count * speed
                stage_ms = max(stage_ms, float(stage_table.stage_ms[count - 1, role, c, stage.layers]))
            for node in stage.nodes:
                if total > 0 and differs(node.traffic_share, node.tokens_s / total):
                    text = f"{where}: {node.configuration} has traffic share {node.traffic_share!r}, not its share of T"
                    yield off(text)
            if differs(total, stage.tokens_s):
                yield off(f"{where} is given {stage.tokens_s!r} tokens/s, its nodes sum to {total!r}")
            slowest, latency_ms = min(slowest, total), latency_ms + stage_ms
        if expected_first != phase.model.layers:
            yield broken(
                f"{instance.name}: the stages hold {expected_first} layers, the model has {phase.model.layers}"
            )
        if differs(slowest, instance.tokens_s):
            yield off(f"{instance.name} is given {instance.tokens_s!r} tokens/s, its slowest stage has {slowest!r}")
        room = f" less {phase.latency_headroom:.0%} headroom" if phase.latency_headroom else ""
        budgets = [stage.latency_budget_ms for stage in instance.stages]
        given_ms = sum(phase.budget_ms / count if budget is None else budget for budget in budgets)
        for what, ms in (("latency budgets add up to", given_ms), ("stages take", latency_ms)):
            if ms > phase.budget_ms * (1 + TOLERANCE):
                text = f"{instance.name}: its {what} {ms:.3f} ms, more than the SLO of {phase.slo_ms:g} ms{room}"
                yield Violation("latency", instance.name, text)


def _optimality(plan: Plan, scenario: ResolvedScenario, known: Known, tables: _Tables) -> Iterator[Violation]:
    for instance, phase in known:
        nodes = instance.nodes()
        if sum(nodes.values()) > scenario.max_nodes:
            continue
        best = best_placement(tables.problem(phase, nodes), solver="dp").objective
        if plan.planner in OTHER_PLACEMENTS and instance.tokens_s <= best * (1 + TOLERANCE):
            continue
        if differs(best, instance.tokens_s):
            text = f"{instance.name}: a placement of these nodes reaches {best!r} tokens/s, not {instance.tokens_s!r}"
            yield Violation("optimality", instance.name, text)


def _prices(plan: Plan, scenario: ResolvedScenario, known: Known) -> Iterator[Violation]:
    index = {configuration.name: c for c, configuration in enumerate(scenario.configurations)}
    for instance, _ in known:
        r = scenario.regions.index(instance.region)
        price = sum(n * Fraction(float(scenario.price_usd_h[r, index[name]])) for name, n in instance.nodes().items())
        if differs(float(price), instance.price_usd_h):
            text = f"{instance.name} is priced {instance.price_usd_h!r} USD/h, its nodes sum to {float(price)!r}"
            yield Violation("price", instance.name, text)


def _capacity(plan: Plan, scenario: ResolvedScenario, known: Known) -> Iterator[Violation]:
    used = used_nodes(known)
    for c, configuration in enumerate(scenario.configurations):
        for r, region in enumerate(scenario.regions):
            have, take = int(scenario.availability[r, c]), used.get((region, configuration.name), 0)
            if take > have:
                text = f"{region}: {take} nodes of {configuration.name} are used, {have} are available"
                yield Violation("capacity", f"{configuration.name} in {region}", text)


def _demand(plan: Plan, scenario: ResolvedScenario, known: Known) -> Iterator[Violation]:
    listed = {item.key: item for item in plan.demands}
    if set(listed) != {phase.key for phase in scenario.model_phases}:
        yield Violation("figure", "demands", "demands: the list of model phases is not that of the scenario")
        return
    for phase in scenario.model_phases:
        off = partial(Violation, "figure", phase.key)
        instances = [i for i, p in known if p.key == phase.key]
        planned = sum((i.count * Fraction(i.tokens_s) for i in instances), Fraction(0))
        item = listed[phase.key]
        rule = dict(scenario.operations.models).get(phase.model.name, ModelRules())
        demand = Fraction(phase.needed_tokens_s)
        level = served(rule, scenario, known, phase)
        # What is not promised is a rounded figure; what must be met in full is met to the last bit.
        hair = demand * Fraction(TOLERANCE) if item.unmet_tokens_s else Fraction(0)
        if level < demand - Fraction(item.unmet_tokens_s) - hair:
            room = f" and {phase.throughput_headroom:.0%} headroom" if phase.throughput_headroom else ""
            yield Violation(
                "demand",
                phase.key,
                f"{phase.key}: the plan gives {float(level):.3f} tokens/s, "
                f"the demand is {phase.demand_tokens_s - item.unmet_tokens_s:.3f} tokens/s{room}",
            )
        share = Fraction(0)
        for other in scenario.model_phases:
            if other.model.name == phase.model.name and other.needed_tokens_s > 0:
                # A request that is not served needs none of its model's phases.
                level = served(rule, scenario, known, other)
                share = max(share, 1 - level / Fraction(other.needed_tokens_s))
        yield from _unmet(plan, item.unmet_tokens_s, phase, share)
        if differs(item.demand_tokens_s, phase.demand_tokens_s) or differs(item.planned_tokens_s, float(planned)):
            yield off(f"{phase.key}: demand or planned tokens/s in `demands` are not those recomputed")
        if differs(item.cost_usd_h, float(sum(i.count * Fraction(i.price_usd_h) for i in instances))):
            yield off(f"{phase.key}: cost_usd_h in `demands` is not the sum over its instances")
        if differs(item.slo_ms, phase.slo_ms):
            yield off(f"{phase.key}: slo_ms in `demands` is {item.slo_ms:g}, the scenario says {phase.slo_ms:g}")


def _unmet(plan: Plan, stated: float, phase: ModelPhase, share: Fraction) -> Iterator[Violation]:
    """Whether unmet demand is what the plan's way of dealing with it allows."""
    demand = phase.needed_tokens_s
    expected = 0.0
    if plan.on_infeasible == "scale":
        expected = demand * (1 - plan.served_factor)
    elif plan.on_infeasible == "shortfall":
        expected = float(share * Fraction(demand))
    if abs(stated - expected) > TOLERANCE * max(1.0, demand):
        text = f"{phase.key}: unmet_tokens_s is {stated!r}, {plan.on_infeasible} gives {expected!r}"
        yield Violation("figure", phase.key, text)


def _money(plan: Plan, scenario: ResolvedScenario, known: Known) -> Iterator[Violation]:
    off = partial(Violation, "figure")
    running: dict[tuple[str, str, tuple[tuple[str, int], ...]], int] = {}
    for entry in scenario.running:
        place = (entry.key, entry.region, tuple(sorted((k, v) for k, v in entry.nodes.items() if v)))
        running[place] = running.get(place, 0) + entry.count
    provisioning, initialization, unmet = Fraction(0), Fraction(0), Fraction(0)
    provisioning = sum(rent(scenario, known).values(), Fraction(0))
    rules = dict(scenario.operations.models)
    for item in plan.demands if plan.on_infeasible == "shortfall" else ():
        missing = Fraction(item.unmet_tokens_s)
        for phase in scenario.model_phases:
            if phase.key == item.key and missing:
                price = unmet_usd_h(rules.get(phase.model.name, ModelRules()), phase, missing)
                if price is None:
                    yield Violation(
                        "price",
                        phase.key,
                        f"{phase.key}: {item.unmet_tokens_s!r} tokens/s are unmet, but the scenario gives them no price",
                    )
                unmet += price or 0
    for instance, phase in known:
        before = running.get((phase.key, instance.region, tuple(sorted(instance.nodes().items()))), 0)
        if instance.kept != min(before, instance.count):
            text = (
                f"{instance.name}: kept is {instance.kept}, but {before} run already and {instance.count} are planned"
            )
            yield off(instance.name, text)
        price = Fraction(instance.price_usd_h)
        initialization += max(0, instance.count - before) * price * Fraction(scenario.initialization_penalty)
    for name, stored, computed in (
        ("provisioning_usd_h", plan.provisioning_usd_h, provisioning),
        ("initialization_usd_h", plan.initialization_usd_h, initialization),
        ("unmet_usd_h", plan.unmet_usd_h, unmet),
        ("cost_usd_h", plan.cost_usd_h, provisioning + initialization + unmet),
    ):
        if differs(stored, float(computed)):
            yield off(name, f"{name} is {stored!r}, the instances sum to {float(computed)!r}")
    if plan.served_factor > plan.served_factor_bound * (1 + TOLERANCE):
        text = f"served_factor {plan.served_factor!r} is above served_factor_bound {plan.served_factor_bound!r}"
        yield off("served_factor", text)
    if plan.on_infeasible != "scale" and plan.served_factor != 1:
        yield off("served_factor", f"served_factor is {plan.served_factor!r}, but demand was not scaled")
    if plan.lower_bound_usd_h > plan.cost_usd_h * (1 + TOLERANCE):
        text = f"lower_bound_usd_h {plan.lower_bound_usd_h!r} is above cost_usd_h {plan.cost_usd_h!r}"
        yield off("lower_bound_usd_h", text)
    gap = abs(plan.cost_usd_h - plan.lower_bound_usd_h) / max(abs(plan.cost_usd_h), 1e-9)
    if differs(gap, plan.gap):
        yield off("gap", f"gap is {plan.gap!r}, cost and lower bound give {gap!r}")
    if (plan.status == "optimal") != (plan.gap <= plan.requested_gap):
        text = f"status is {plan.status!r} with a gap of {plan.gap:.2e} against {plan.requested_gap:.2e} asked for"
        yield off("status", text)
