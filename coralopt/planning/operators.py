"""What operators ask for in a scenario, as terms of the allocation problem; and back again in a plan.

Every side constraint is named by its place in the scenario file, so that a message says where to change it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from coralopt.allocation import (
    Allocation,
    AllocationProblem,
    SideConstraint,
    SupplyClass,
    pieces_of,
    side_constraint_uses,
    taken,
)
from coralopt.plan import PlannedCase, PlannedNodeClass, PlannedOption
from coralopt.scenario.facts.operations import RentLimits
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.solving.tolerance import TOLERANCE
from coralopt.templates import TemplateLibrary
from coralopt.types import Floats

#: USD/h for a token/s at 1 USD per million tokens.
USD_H_PER_TOKEN_S = 3600 / 1e6
#: Measure -> the unit that a plan states it in, where that is another word.
_UNITS = {"usd_h": "USD/h", "tokens_s": "tokens/s", "gpus": "GPUs", "new_nodes": "nodes"}


def operator_terms(scenario: ResolvedScenario, configurations: Sequence[str]) -> dict[str, Any]:
    """``supply``, ``side_constraints`` and ``unmet_together`` of the allocation problem over these configurations."""
    models = list(dict.fromkeys(phase.served for phase in scenario.model_phases))
    together = tuple(
        tuple(p for p, phase in enumerate(scenario.model_phases) if phase.served == model) for model in models
    )
    return {
        "supply": _supply(scenario, configurations),
        "side_constraints": _rows(scenario, configurations) + _starts(scenario, configurations),
        "unmet_together": together,
    }


def unmet_prices(scenario: ResolvedScenario) -> Floats | None:
    """float64 (P,): USD/h for one token/s of unmet demand, infinite where a model has no price; ``None`` if none has.

    Mixed instances are measured in output tokens; one of these stands for its share of input tokens, too.
    """
    rules = dict(scenario.operations.models)
    prices = np.full(len(scenario.model_phases), np.inf)
    for p, phase in enumerate(scenario.model_phases):
        unmet = rules[phase.served].unmet_usd_mtok if phase.served in rules else None
        if unmet is not None:
            per_input, per_output = unmet
            mixed = per_output + per_input * phase.mean_input_tokens / max(phase.mean_output_tokens, 1e-9)
            usd_mtok = {"prefill": per_input, "decode": per_output, "mixed": mixed}[phase.phase]
            prices[p] = usd_mtok * USD_H_PER_TOKEN_S
    return prices if np.isfinite(prices).any() else None


def case_terms(scenario: ResolvedScenario) -> dict[str, Any]:
    """``demand``, ``unmet_price`` and ``unmet_tiers``: all of the largest demand, where several may come.

    With the factors f_1 < f_2 < ... of a model, what is planned beyond f_k is of use in the cases above it only: so what is
    missing between f_k and f_k+1 costs its price times their probability.
    """
    needed = np.array([phase.needed_tokens_s for phase in scenario.model_phases])
    cases, prices = scenario.operations.cases, unmet_prices(scenario)
    if not cases:
        return {"demand": needed}
    largest, tiers = [], []
    for phase in scenario.model_phases:
        chance: dict[float, float] = {}
        for case in cases:
            factor = dict(case.factors)[phase.served]
            chance[factor] = chance.get(factor, 0.0) + case.probability
        ends = sorted(chance, reverse=True)
        above = np.cumsum([chance[end] for end in ends]).tolist()
        steps = [
            ((end - lower) / ends[0], likely)
            for end, lower, likely in zip(ends, [*ends[1:], 0.0], above, strict=True)
            if end > lower
        ]
        largest.append(ends[0])
        # The last price is for all the rest.
        tiers.append((*steps[:-1], (1.0, steps[-1][1] if steps else 1.0)))
    return {"demand": needed * largest, "unmet_price": prices, "unmet_tiers": () if prices is None else tuple(tiers)}


def planned_cases(
    scenario: ResolvedScenario, problem: AllocationProblem, unmet: Sequence[Fraction]
) -> tuple[PlannedCase, ...]:
    """What every case leaves unserved where ``unmet`` tokens/s of the problem's demand are."""
    rows = []
    for case in scenario.operations.cases:
        for name, factor in case.factors:
            mine = [p for p, phase in enumerate(scenario.model_phases) if phase.served == name]
            wanted = {p: Fraction(factor) * Fraction(scenario.model_phases[p].needed_tokens_s) for p in mine}
            missing = {p: unmet[p] - (Fraction(float(problem.demand[p])) - wanted[p]) for p in mine}
            share = max((missing[p] / wanted[p] for p in mine if wanted[p] > 0), default=Fraction(0))
            # A demand times its factor is rounded.
            share = share if share > TOLERANCE else Fraction(0)
            prices = problem.unmet_prices()
            rows.append(
                PlannedCase(
                    case=case.name,
                    probability=case.probability,
                    model=name,
                    factor=factor,
                    unmet_share=float(share),
                    unmet_usd_h=float(sum(share * wanted[p] * Fraction(float(prices[p])) for p in mine if share)),
                )
            )
    return tuple(rows)


def _supply(scenario: ResolvedScenario, configurations: Sequence[str]) -> tuple[SupplyClass, ...]:
    shape = scenario.availability.shape
    names = list(dict.fromkeys(item.name for item in scenario.operations.classes))
    classes = {name: SupplyClass(name, np.zeros(shape, np.int64), np.zeros(shape)) for name in names}
    left = scenario.availability.copy()
    # Where an epoch offers less than the classes hold, reserved nodes stay longest.
    for item in sorted(scenario.operations.classes, key=lambda item: item.name != "reserved"):
        if item.configuration in configurations and item.region in scenario.regions:
            place = scenario.regions.index(item.region), list(configurations).index(item.configuration)
            count = min(item.nodes, int(left[place]))
            classes[item.name].nodes[place] = count
            classes[item.name].price[place] = item.usd_h
            left[place] -= count
    return tuple(item for item in classes.values() if item.nodes.any())


def _rows(scenario: ResolvedScenario, configurations: Sequence[str]) -> tuple[SideConstraint, ...]:
    operations = scenario.operations
    keys = scenario.model_keys
    node = {configuration.name: configuration for configuration in scenario.configurations}
    hosts = [(c, node[name].gpu.name, node[name].count) for c, name in enumerate(configurations)]
    rows = _limits("limits", operations.limits, hosts)
    for region, limits in operations.regions:
        rows += _limits(f"pool.regions.{region}.limits", limits, hosts, regions=(scenario.regions.index(region),))
    for model, rule in operations.models:
        place = f"models.{keys[model]}"
        mine = tuple(p for p, phase in enumerate(scenario.model_phases) if phase.served == model)
        rows += _limits(f"{place}.limits", rule.limits, hosts, phases=mine)
        banned = tuple(c for c, name in enumerate(configurations) if name in rule.forbidden)
        if banned:
            rows.append(SideConstraint(f"{place}.forbidden", "most", "instances", 0.0, mine, None, banned))
        for p in mine:
            phase = scenario.model_phases[p].phase
            if rule.min_replicas:
                name = f"{place}.min_replicas ({phase})"
                rows.append(SideConstraint(name, "least", "instances", float(rule.min_replicas), (p,)))
            if rule.survive_region_loss > 0:
                for lost, region in enumerate(scenario.regions):
                    others = tuple(r for r in range(len(scenario.regions)) if r != lost)
                    name = f"{place}.survive_region_loss ({phase} without {region})"
                    rows.append(SideConstraint(name, "least", "tokens_s", rule.survive_region_loss, (p,), others))
            if rule.survive_instance_loss > 0:
                name, share = f"{place}.survive_instance_loss ({phase})", rule.survive_instance_loss
                rows.append(SideConstraint(name, "least", "tokens_s", share, (p,), one_lost=True))
    return tuple(rows)


def start_penalties(scenario: ResolvedScenario, library: TemplateLibrary) -> Floats | None:
    """float64 (T,): K of each template by the weights that its fullest node loads; ``None`` where one K holds for all."""
    start = scenario.operations.start
    if start is None:
        return None
    penalties = []
    for phase, templates in zip(scenario.model_phases, library.phases, strict=True):
        held = templates.stage_layers * phase.model.layer_bytes
        stages = (templates.stage_layers > 0).sum(axis=1)
        ends = np.array([0.0, *(phase.model.end_bytes(count) for count in range(1, held.shape[1] + 1))])[stages]
        held[:, 0] += ends
        every = np.arange(len(held))
        held[every, stages - 1] += np.where(stages > 1, ends, 0.0)
        load_s = held.max(axis=1, initial=0.0) / (start.load_gb_s * 1e9)
        penalties.append((start.boot_s + load_s) / start.interval_s)
    return np.concatenate(penalties)


def _starts(scenario: ResolvedScenario, configurations: Sequence[str]) -> tuple[SideConstraint, ...]:
    """Where something runs: nodes of new instances beside all of it, if nothing stops before they serve."""
    runs: Counter[tuple[int, int]] = Counter()
    for entry in scenario.running if scenario.operations.start_first else ():
        for node, count in entry.nodes.items():
            runs[scenario.regions.index(entry.region), list(configurations).index(node)] += count * entry.count
    return tuple(
        SideConstraint(
            f"transition ({configurations[c]} in {scenario.regions[r]})",
            "most",
            "new_nodes",
            float(max(0, int(scenario.availability[r, c]) - count)),
            regions=(r,),
            configurations=(c,),
        )
        for (r, c), count in sorted(runs.items())
    )


def _limits(
    place: str, limits: RentLimits, hosts: Sequence[tuple[int, str, int]], **scope: Any
) -> list[SideConstraint]:
    """Those of one place; ``hosts`` are (position, GPU type, GPUs) of the configurations."""
    rows = []
    for gpu, most in limits.max_gpus:
        mine = [(c, count) for c, name, count in hosts if name == gpu]
        if mine:
            kinds, gpus = zip(*mine, strict=True)
            name = f"{place}.max_gpus.{gpu}"
            rows.append(SideConstraint(name, "most", "gpus", float(most), configurations=kinds, gpus=gpus, **scope))
    if limits.max_nodes is not None:
        rows.append(SideConstraint(f"{place}.max_nodes", "most", "nodes", float(limits.max_nodes), **scope))
    if limits.max_usd_h is not None:
        rows.append(SideConstraint(f"{place}.max_usd_h", "most", "usd_h", limits.max_usd_h, **scope))
    return rows


def planned_options(problem: AllocationProblem, allocation: Allocation) -> tuple[PlannedOption, ...]:
    """Every side constraint as the plan states it."""
    return tuple(
        PlannedOption(
            option=use.constraint.name,
            sense=use.constraint.sense,
            unit=_UNITS.get(use.constraint.measure, use.constraint.measure),
            asked=use.limit,
            planned=use.value,
            binding=use.binding,
        )
        for use in side_constraint_uses(problem, allocation)
    )


def planned_classes(problem: AllocationProblem, allocation: Allocation) -> tuple[PlannedNodeClass, ...]:
    """How many nodes of every supply class the plan takes; nothing where there are no classes."""
    if not problem.supply:
        return ()
    used = np.zeros(problem.price.shape, dtype=np.int64)
    np.add.at(used, allocation.region, problem.usage[allocation.template].astype(np.int64) * allocation.count[:, None])
    classes = []
    for r, c in np.argwhere(used > 0).tolist():
        for name, price, count in taken(pieces_of(problem, r, c), int(used[r, c])):
            classes.append(
                PlannedNodeClass(
                    region=problem.region_names[r],
                    configuration=problem.configuration_names[c],
                    node_class=name,
                    nodes=count,
                    usd_h=price,
                )
            )
    return tuple(classes)


def parse_forbidden(items: Sequence[str]) -> Mapping[str, list[str]]:
    """``["qwen3-32b:L4"] -> {"qwen3-32b": ["L4"]}``.

    Raises:
        OptionError: An item is not MODEL:GPU.
    """
    from coralopt.errors import OptionError

    by_model: dict[str, list[str]] = {}
    for item in items:
        model, separator, word = item.rpartition(":")
        if not separator or not model or not word:
            raise OptionError(f"--forbid {item!r}: expected MODEL:GPU or MODEL:CONFIGURATION, for example qwen3-32b:L4")
        by_model.setdefault(model, []).append(word)
    return by_model
