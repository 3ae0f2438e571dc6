"""A scenario with some of what operators ask for set from outside, for example by flags of the command line."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from coralopt.scenario.load import scenario_from_mapping
from coralopt.scenario.mistakes import MistakeList, suggest
from coralopt.scenario.resolved import ResolvedScenario


def with_operations(
    scenario: ResolvedScenario,
    *,
    budget_usd_h: float | None = None,
    min_replicas: int | None = None,
    survive_region_loss: float | None = None,
    forbidden: Mapping[str, Sequence[str]] | None = None,
    unmet_usd_mtok: float | None = None,
) -> ResolvedScenario:
    """The scenario with these options over its own; ``None`` leaves what it says.

    Args:
        scenario: The scenario.
        budget_usd_h: Most rent, USD/h: ``limits.max_usd_h``.
        min_replicas: Least serving instances of every phase of every model.
        survive_region_loss: Share of every demand that any one region's loss must leave served, 0 to 1.
        forbidden: Key of a model -> GPU types and node configurations it must not use, besides its own list.
        unmet_usd_mtok: USD per million unserved tokens, input and output, of models without a price of their own.

    Raises:
        ScenarioError: A value out of range, or an unknown name.
    """
    document: dict[str, Any] = copy.deepcopy(dict(scenario.document))
    if budget_usd_h is not None:
        document.setdefault("limits", {})["max_usd_h"] = budget_usd_h
    models = document["models"]
    for name, words in (forbidden or {}).items():
        if name not in models:
            mistakes = MistakeList(scenario.name)
            mistakes.add(("models", name), "is forbidden something, but is no model here", suggest(name, models))
            mistakes.raise_any()
        entry = models[name]
        entry["forbidden"] = [*entry.get("forbidden", []), *words]
    for entry in models.values():
        if min_replicas is not None:
            entry["min_replicas"] = min_replicas
        if survive_region_loss is not None:
            entry["survive_region_loss"] = survive_region_loss
        if unmet_usd_mtok is not None and "unmet" not in entry:
            entry["unmet"] = {"input_usd_mtok": unmet_usd_mtok, "output_usd_mtok": unmet_usd_mtok}
    if document == scenario.document:
        return scenario
    return scenario_from_mapping(document, source=scenario.name)
