"""Options that commands which plan share, and what the command line says of placements, laid over a scenario."""

from __future__ import annotations

from typing import Annotated, Any

import typer

ExecutableBy = Annotated[
    str | None,
    typer.Option(
        "--executable-by",
        metavar="ENGINE",
        help="Only what this engine runs as it is: vllm; any for no limits. The scenario's placement.engine by default.",
    ),
]

OnInfeasibleOption = Annotated[
    str,
    typer.Option(
        metavar="explain|scale|shortfall",
        help="When demand cannot be met: say why, serve the largest common share, or leave some unmet at its price.",
    ),
]
UnmetPriceOption = Annotated[
    float | None, typer.Option(metavar="USD", help="Price of a million unserved tokens, where a model has none.")
]


def with_rules(
    scenario: Any, engine: str | None = None, budget_units: int | None = None, network: str | None = None
) -> Any:
    """The scenario with these fields of its section ``placement``; ``None`` leaves a field as it is.

    Raises:
        ScenarioError: A value that the section does not know.
    """
    from coralopt.scenario import scenario_from_mapping

    said: dict[str, Any] = {"engine": engine, "network": network, "budget_units": budget_units}
    said = {name: value for name, value in said.items() if value is not None}
    if not said:
        return scenario
    if budget_units is not None:
        said["latency_budgets"] = "free"
    placement = {**scenario.document.get("placement", {}), **said}
    return scenario_from_mapping({**scenario.document, "placement": placement}, source=scenario.name)
