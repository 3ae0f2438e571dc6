"""A validated scenario with every name looked up: what all floors above work with.

A :class:`ResolvedScenario` is a value. Its ``with_`` methods give another one with other demand, supply or limits: the
sections concerned are checked and every name is looked up again. Document and digest follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from coralopt import catalog
from coralopt.display import Tabular
from coralopt.scenario.digest import digest_of, plain_document
from coralopt.scenario.explain import explain
from coralopt.scenario.facts.facts import Facts, RunningInstances
from coralopt.scenario.file.document import Document
from coralopt.scenario.file.pool import PoolEntry
from coralopt.scenario.mistakes import MistakeList, suggest
from coralopt.scenario.resolve.look_up import look_up
from coralopt.types import Floats, Ints


@dataclass(frozen=True)
class ResolvedScenario(Facts, Tabular):
    """A scenario: the facts, and the document that they follow from.

    Attributes:
        source: The validated document.
    """

    source: Document = field(repr=False)

    def __repr__(self) -> str:
        phases = ", ".join(phase.key for phase in self.model_phases)
        nodes = f"{len(self.configurations)} node configurations in {len(self.regions)} regions"
        return f"<ResolvedScenario {self.name}: {phases}; {nodes}>"

    @staticmethod
    def of(
        source: Document,
        name: str,
        mistakes: MistakeList,
        raw: Mapping[str, object] | None = None,
        keep: Container[str] = (),
    ) -> ResolvedScenario | None:
        """The scenario of a document, ``None`` where a name in it is unknown; see :func:`look_up`."""
        if raw is None:
            raw = {**dict(source), "pool": dict(source.pool)}
        facts = look_up(source, raw, mistakes, name, keep)
        return None if facts is None else ResolvedScenario(**vars(facts), source=source)

    @cached_property
    def document(self) -> Mapping[str, Any]:  # JSON, for whoever reads it
        """The document as plain JSON data that gives the same scenario again."""
        return plain_document(self.source, self.name)

    @cached_property
    def digest(self) -> str:
        """SHA-256 hex of everything that decides the template libraries and the plan."""
        return digest_of(self)

    @property
    def model_keys(self) -> dict[str, str]:
        """Name of each model, as requests say it -> its key in the document."""
        return dict(zip(dict.fromkeys(phase.served for phase in self.model_phases), self.source.models, strict=True))

    @property
    def models_in_auto(self) -> tuple[str, ...]:
        """Names of models that disaggregated and mixed instances may serve side by side."""
        phases = {(phase.served, phase.phase) for phase in self.model_phases}
        return tuple(name for name in self.model_keys if {(name, "prefill"), (name, "mixed")} <= phases)

    @property
    def models_in_classes(self) -> tuple[str, ...]:
        """Names of models whose requests come in classes, as requests say them."""
        return tuple(dict.fromkeys(phase.served for phase in self.model_phases if phase.request_class is not None))

    @property
    def adapters(self) -> dict[str, str]:
        """LoRA adapter -> model beside which it is served, as requests say them."""
        adapted = [(phase.served, phase.model.adapters) for phase in self.model_phases]
        return {name: served for served, some in adapted if some is not None for name, _ in some.modules}

    @property
    def models_with_variants(self) -> tuple[str, ...]:
        """Names of models that are served by variants, as requests say them."""
        return tuple(dict.fromkeys(phase.served for phase in self.model_phases if phase.variant is not None))

    def with_demand(self, tokens_s: Floats) -> ResolvedScenario:
        """With this demand.

        Args:
            tokens_s: float64 (P,), tokens/s of each model phase.

        Raises:
            ScenarioError: A value out of range.
        """
        keys = self.model_keys
        demands: dict[str, dict[str, object]] = {
            key: {name: value for name, value in entry.demand if not name.endswith("_s")}
            for key, entry in self.source.models.items()
        }
        rates: dict[tuple[str, str], float] = {}
        for phase, rate in zip(self.model_phases, tokens_s.tolist(), strict=True):
            demand = demands[keys[phase.served]]
            if phase.request_class is None:
                demand[f"{phase.phase}_tokens_s"] = rate
                continue
            # A class has one rate: that of the phase that needs most.
            each = phase.mean_input_tokens if phase.phase == "prefill" else phase.mean_output_tokens
            name = phase.request_class.name
            rates[keys[phase.served], name] = max(rates.get((keys[phase.served], name), 0.0), rate / each)
        for key in {key for key, _ in rates}:
            parts = self.source.models[key].demand.classes.items()
            demands[key]["classes"] = {name: {**dict(part), "requests_s": rates[key, name]} for name, part in parts}
        return self._with_models({key: {"demand": demand} for key, demand in demands.items()})

    def with_supply(self, availability: Ints, price_usd_h: Floats) -> ResolvedScenario:
        """With these nodes on offer. Configurations that are gone everywhere stay, so that the template library fits.

        A scenario read from the document knows only those with nodes somewhere. Running instances on one that is gone
        are left out: they cannot be kept.

        Args:
            availability: int64 (R, C), nodes, spot ones included.
            price_usd_h: float64 (R, C), USD per node-hour; NaN where nothing is sold.

        Raises:
            ScenarioError: No node at all, or a value out of range.
        """
        classes = {(item.name, item.region, item.configuration): item for item in self.operations.classes}
        regions: dict[str, dict[str, object]] = {}
        for r, region in enumerate(self.regions):
            offered: dict[str, dict[str, object]] = {}
            for c, configuration in enumerate(self.configurations):
                reserved = classes.get(("reserved", region, configuration.name))
                spot = classes.get(("spot", region, configuration.name))
                committed = classes.get(("committed", region, configuration.name))
                spots = 0 if spot is None else min(spot.nodes, int(availability[r, c]))
                on_demand = int(availability[r, c]) - spots
                entry: dict[str, object] = {"available": on_demand, "instance_type": self.instance_types[r][c]}
                if reserved is not None:
                    entry["reserved"] = min(reserved.nodes, on_demand)
                if committed is not None:
                    terms = self.source.pool.regions[region].configurations
                    offer = terms[configuration.name] if isinstance(terms, dict) else None
                    least = 0 if reserved is None else min(reserved.nodes, on_demand)
                    if isinstance(offer, PoolEntry) and offer.commitment is not None:
                        most = min(offer.commitment.nodes, on_demand - least)
                        entry["commitment"] = {**dict(offer.commitment), "nodes": most}
                if spot is not None and spots:
                    # The price holds what preemptions cost.
                    entry["spot"] = {"available": spots, "price_usd_h": spot.usd_h}
                if not math.isnan(price_usd_h[r, c]):
                    entry["price_usd_h"] = float(price_usd_h[r, c])
                elif region not in catalog.regions():
                    # A region of one's own lists what has a price; a catalog region may list what it never sold.
                    continue
                offered[configuration.name] = entry
            regions[region] = {**dict(self.source.pool.regions[region]), "available": None, "configurations": offered}
        return self._changed(
            pool={**dict(self.source.pool), "regions": regions},
            running=self._running(self.running, self._gone(availability)),
        )

    def with_running(self, running: Sequence[RunningInstances]) -> ResolvedScenario:
        """With these instances running, but for those on configurations that no region offers."""
        return self._changed(running=self._running(running, self._gone(self.availability)))

    def with_limits(
        self,
        *,
        budget_usd_h: float | None = None,
        min_replicas: int | None = None,
        survive_region_loss: float | None = None,
        survive_instance_loss: float | None = None,
        forbidden: Mapping[str, Sequence[str]] | None = None,
        unmet_usd_mtok: float | None = None,
    ) -> ResolvedScenario:
        """With these limits over its own; ``None`` leaves what it says.

        Args:
            budget_usd_h: Most rent, USD/h: ``limits.max_usd_h``.
            min_replicas: Least serving instances of every phase of every model.
            survive_region_loss: Share of every demand that any one region's loss must leave served, 0 to 1.
            survive_instance_loss: The same of any one instance.
            forbidden: Key of a model -> GPU types and node configurations it must not use, besides its own list.
            unmet_usd_mtok: USD per million unserved tokens, input and output, of models without a price of their own.

        Raises:
            ScenarioError: A value out of range, or an unknown name.
        """
        models = self.source.models
        for key in forbidden or {}:
            if key not in models:
                mistakes = MistakeList(self.name)
                mistakes.add(("models", key), "is forbidden something, but is no model here", suggest(key, models))
                mistakes.raise_any()
        every = {
            "min_replicas": min_replicas,
            "survive_region_loss": survive_region_loss,
            "survive_instance_loss": survive_instance_loss,
        }
        entries: dict[str, dict[str, object]] = {
            key: {name: value for name, value in every.items() if value is not None} for key in models
        }
        for key, words in (forbidden or {}).items():
            entries[key]["forbidden"] = [*models[key].forbidden, *words]
        for key, entry in models.items():
            if unmet_usd_mtok is not None and entry.unmet is None:
                entries[key]["unmet"] = {"input_usd_mtok": unmet_usd_mtok, "output_usd_mtok": unmet_usd_mtok}
        limits = self.source.limits if budget_usd_h is None else {**dict(self.source.limits), "max_usd_h": budget_usd_h}
        changed = self._with_models(entries, limits=limits)
        return self if changed.document == self.document else changed

    def with_attainment(self, share: float, mean_only: bool = False) -> ResolvedScenario:
        """With this share of requests that must meet the SLOs of every model, or of those planned for mean requests.

        Raises:
            ScenarioError: It is no share inside (0, 1), or something in the scenario is planned for mean requests only.
        """
        return self._with_models(
            {
                key: {"slo": {**dict(entry.slo), "attainment": entry.slo.attainment if kept else share}}
                for key, entry in self.source.models.items()
                for kept in (mean_only and entry.slo.attainment != "mean",)
            }
        )

    def with_transition(self, transition: str) -> ResolvedScenario:
        """With this rule of what may use the nodes of instances that stop: ``"free"`` or ``"start-first"``.

        Raises:
            ScenarioError: It is neither, or cannot be kept here.
        """
        return self._changed(transition=transition)

    def with_headroom(self, headroom: Mapping[str, tuple[float, float]]) -> ResolvedScenario:
        """With this room and no other: model phase -> (share of the demand beyond it, share of the SLO kept free).

        Raises:
            ScenarioError: A value out of range, or an unknown model phase.
        """
        rooms = {
            key: {"throughput": throughput, "latency": latency}
            for key, (throughput, latency) in headroom.items()
            if throughput > 0 or latency > 0
        }
        return self._changed(headroom=rooms or None)

    def with_rules(self, rules: Mapping[str, str | int | None]) -> ResolvedScenario:
        """With these fields of its section ``placement``; ``None`` leaves a field as it is, a number of ``budget_units``
        makes latency budgets free.

        Raises:
            ScenarioError: A value that the section does not know.
        """
        changed = {name: value for name, value in rules.items() if value is not None}
        if not changed:
            return self
        if "budget_units" in changed:
            changed["latency_budgets"] = "free"
        return self._changed(placement={**dict(self.source.placement), **changed})

    def with_penalty(self, penalty: float) -> ResolvedScenario:
        """With this initialization penalty K.

        Raises:
            ScenarioError: It is out of range.
        """
        return self._changed(initialization_penalty=penalty)

    def named(self, name: str) -> ResolvedScenario:
        """By another name.

        Raises:
            ScenarioError: It is no name.
        """
        return self._changed(name=name)

    def _gone(self, availability: Ints) -> set[str]:
        return {c.name for c, most in zip(self.configurations, availability.max(axis=0), strict=True) if most <= 0}

    def _running(self, running: Sequence[RunningInstances], gone: Container[str]) -> list[dict[str, object]]:
        keys = self.model_keys
        return [
            {
                # Variants are known by their own names.
                "model": keys.get(name := entry.key.rsplit("/", 1)[0], name),
                "phase": entry.key.rsplit("/", 1)[1],
                "region": entry.region,
                "nodes": {node: count for node, count in entry.nodes.items() if count},
                "count": entry.count,
            }
            for entry in running
            if entry.count and not any(node in gone for node, count in entry.nodes.items() if count)
        ]

    def _with_models(self, entries: Mapping[str, Mapping[str, object]], **sections: object) -> ResolvedScenario:
        models = {key: {**dict(entry), **entries[key]} for key, entry in self.source.models.items()}
        return self._changed(models=models, **sections)

    def _changed(self, **sections: object) -> ResolvedScenario:
        """With other sections of the document, checked as those of a file; the others are not looked at again."""
        data = {**dict(self.source), "name": self.name, **sections}
        mistakes = MistakeList(str(data["name"]))
        try:
            source = Document.model_validate(data)
        except ValidationError as error:
            explain(error, data, mistakes)
        else:
            keep = {configuration.name for configuration in self.configurations}
            changed = ResolvedScenario.of(source, self.name, mistakes, keep=keep)
            if changed is not None:
                return changed
        mistakes.raise_any()
        raise AssertionError("a scenario without mistakes resolves")


def ways_of(scenario: ResolvedScenario) -> dict[str, list[tuple[int, ...]]]:
    """Model, as requests say it, or class of its requests -> the phases that a request may pass, by position.

    One a mode and variant, (mixed,) or (prefill, decode), of phases with demand.
    """
    place = {phase.key: p for p, phase in enumerate(scenario.model_phases) if phase.demand_tokens_s > 0}
    ways: dict[str, list[tuple[int, ...]]] = {}
    for name, whose in dict.fromkeys((phase.model.name, phase.requested) for phase in scenario.model_phases):
        for phases in (("mixed",), ("prefill", "decode")):
            if all(f"{name}/{phase}" in place for phase in phases):
                ways.setdefault(whose, []).append(tuple(place[f"{name}/{phase}"] for phase in phases))
    return ways
