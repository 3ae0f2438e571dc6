"""What else a plan must keep to, looked up: limits, replicas, forbidden nodes, supply classes, demands that may come."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from coralopt.catalog.types import NodeConfiguration
from coralopt.scenario.facts.operations import DemandScenario, ModelRules, NodeClass, Operations, RentLimits, StartCost
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.file.document import Document
from coralopt.scenario.file.models import Limits
from coralopt.scenario.mistakes import MistakeList, Path, suggest
from coralopt.scenario.resolve.models import FOR_A_SHARE, mode_of, name_of
from coralopt.scenario.resolve.pool import SupplyOffer


@dataclass(frozen=True)
class Rentable:
    """What can be rented.

    Attributes:
        nodes: Every known node configuration by name.
        used: Names of those that some region offers.
        supply: Region -> configuration -> offer.
    """

    nodes: Mapping[str, NodeConfiguration]
    used: Set[str]
    supply: Mapping[str, Mapping[str, SupplyOffer]]

    @property
    def pool(self) -> list[NodeConfiguration]:
        """The configurations that some region offers."""
        return [node for node in self.nodes.values() if node.name in self.used]

    def named(self, word: str) -> set[str]:
        """Names of the configurations that a word means: its own name, or that of a GPU."""
        return {node.name for node in self.nodes.values() if word in (node.name, node.gpu.name)}


def operations_of(
    document: Document, rentable: Rentable, phases: Sequence[ModelPhase], mistakes: MistakeList
) -> Operations:
    """Limits, replicas, forbidden nodes and supply classes, every name looked up."""
    rules = _rules(document, rentable, phases, mistakes)
    _check_shares(document, mistakes)
    regions = [
        (region, _limits(entry.limits, ("pool", "regions", region), rentable, mistakes))
        for region, entry in document.pool.regions.items()
    ]
    return Operations(
        limits=_limits(document.limits, (), rentable, mistakes),
        regions=tuple((region, limits) for region, limits in regions if limits != RentLimits()),
        models=rules,
        classes=tuple(_classes(rentable.supply)),
        start_first=document.transition == "start-first",
        cases=_cases(document, mistakes),
        start=None if document.start is None else StartCost(**{name: float(value) for name, value in document.start}),
    )


def _limits(given: Limits, place: Path, rentable: Rentable, mistakes: MistakeList) -> RentLimits:
    gpus = dict.fromkeys(node.gpu.name for node in rentable.pool)
    known = {node.gpu.name for node in rentable.nodes.values()}
    for gpu in given.max_gpus or {}:
        if gpu not in known:
            mistakes.add((*place, "limits", "max_gpus", gpu), f"unknown GPU '{gpu}'", suggest(gpu, gpus))
    quotas = tuple((gpu, most) for gpu, most in (given.max_gpus or {}).items() if gpu in gpus)
    return RentLimits(given.max_nodes, None if given.max_usd_h is None else float(given.max_usd_h), quotas)


def _rules(
    document: Document, rentable: Rentable, phases: Sequence[ModelPhase], mistakes: MistakeList
) -> tuple[tuple[str, ModelRules], ...]:
    """The rules of every model that has any, by its name."""
    rules: list[tuple[str, ModelRules]] = []
    names = {phase.served for phase in phases}
    for key, entry in document.models.items():
        place = ("models", key)
        name = name_of(key, entry)
        if entry.survive_region_loss > 0 and len(rentable.supply) < 2:
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
            lengths = (phase.mean_output_tokens for phase in phases if phase.served in (key, name))
            each = 1e3 * float(entry.unmet.usd_per_1000_requests or 0.0) / next(lengths, 1.0)
            unmet = float(entry.unmet.input_usd_mtok), float(entry.unmet.output_usd_mtok) + each
        rule = ModelRules(
            _limits(entry.limits, place, rentable, mistakes),
            entry.min_replicas,
            float(entry.survive_region_loss),
            float(entry.survive_instance_loss),
            _forbidden(entry.forbidden, (*place, "forbidden"), rentable, mistakes),
            unmet,
        )
        if rule != ModelRules() and name in names:
            rules.append((name, rule))
    return tuple(rules)


def _forbidden(words: Sequence[str], place: Path, rentable: Rentable, mistakes: MistakeList) -> tuple[str, ...]:
    """Names of the pool's configurations that these words mean."""
    forbidden: set[str] = set()
    for position, word in enumerate(words):
        named = rentable.named(word)
        if not named:
            known = dict.fromkeys((*(node.gpu.name for node in rentable.pool), *(node.name for node in rentable.pool)))
            mistakes.add((*place, position), f"unknown GPU or node configuration '{word}'", suggest(word, known))
        forbidden |= named
    return tuple(node.name for node in rentable.pool if node.name in forbidden)


def _check_shares(document: Document, mistakes: MistakeList) -> None:
    """Refuse, for models planned for a share of their requests, what is planned for mean requests only."""
    shares = [f"'{key}'" for key, entry in document.models.items() if entry.slo.attainment != "mean"]
    for where, stated in (
        ("transition", document.transition == "start-first"),
        ("start", document.start is not None),
        ("demand_cases", bool(document.demand_cases)),
    ):
        if stated and shares:
            problem = f"is planned for mean requests, not for shares of them ({', '.join(shares)})"
            mistakes.add((where,), problem, f"{FOR_A_SHARE}; or leave it out")


def _classes(supply: Mapping[str, Mapping[str, SupplyOffer]]) -> Iterator[NodeClass]:
    """Nodes that are not rented on demand."""
    for region, offers in supply.items():
        for node, offer in offers.items():
            if offer.reserved:
                yield NodeClass("reserved", region, node, offer.reserved, 0.0)
            if offer.spot:
                yield NodeClass("spot", region, node, offer.spot, offer.spot_usd_h)
            # Where a term costs more than renting on demand all along, nobody commits.
            if offer.committed and not offer.committed_usd_h >= offer.price:
                yield NodeClass("committed", region, node, offer.committed, offer.committed_usd_h)


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
    modes = [mode_of(document, key) for key in document.models]
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
                (name_of(key, entry), float(case.factors.get(key, case.factor)))
                for key, entry in document.models.items()
            ),
        )
        for name, case in document.demand_cases.items()
    )
