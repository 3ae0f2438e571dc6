"""A new scenario file, with comments, from a few facts: what is served, what can be rented, what is owned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from coralopt.scenario.checkpoints import include_checkpoints
from coralopt.scenario.load import scenario_from_mapping
from coralopt.scenario.read import parse_text

#: Region of nodes of one's own.
OWN_REGION = "own"


@dataclass(frozen=True)
class NewModel:
    """A model and its traffic.

    Attributes:
        name: Key in the scenario; ``model`` where that is no name of the catalog.
        requests_s: Mean rate.
        input_tokens, output_tokens: Mean length, or share of requests -> length that they do not exceed.
        model: Catalog or checkpoint name, or a path, as the scenario's ``model``.
        note: Said beside the rate.
    """

    name: str
    requests_s: float
    input_tokens: float | Mapping[str, float]
    output_tokens: float | Mapping[str, float]
    model: str | None = None
    note: str = "mean over time; what bursts beyond it need is for you to add"


@dataclass(frozen=True)
class NewSlo:
    """Limits of all models.

    Attributes:
        ttft_ms, tpot_ms: Time to first token, and per output token, ms.
        attainment: Share of requests within both; ``"mean"`` plans for mean requests.
    """

    ttft_ms: float = 2000.0
    tpot_ms: float = 100.0
    attainment: float | str = 0.99


def scenario_text(
    models: Sequence[NewModel],
    slo: NewSlo,
    rented: Mapping[str, Mapping[str, int] | int],
    owned: Mapping[str, int],
    file: Path,
    description: str = "",
) -> str:
    """The scenario as commented YAML.

    Args:
        models: What is served.
        slo: Their limits.
        rented: Region -> node configuration -> nodes, or nodes of each configuration that has a price there.
        owned: Node configuration -> nodes of one's own, which cost nothing more.
        file: Where it is to be: paths of checkpoints are relative to its folder.
        description: What the scenario is about.

    Raises:
        ScenarioError: It would not be a valid scenario.
    """
    lines = [
        "# A scenario of coralopt: what to serve, and what can be rented for it.",
        "# `coralopt scenario check FILE` says what is wrong with it, `coralopt plan FILE` plans it.",
    ]
    if description:
        lines.append(f"description: {_scalar(description)}")
    lines.append("models:")
    for model in models:
        lines.append(f"  {_scalar(model.name)}:")
        if model.model is not None:
            lines.append(f"    model: {_scalar(model.model)}")
        lines += [
            "    slo:",
            f"      ttft_ms: {slo.ttft_ms:g}  # time to first token, ms",
            f"      tpot_ms: {slo.tpot_ms:g}  # time per output token, ms",
            f"      attainment: {slo.attainment}  # share of requests that meet both; mean: plan for mean requests, faster",
            "    demand:",
            f"      requests_s: {model.requests_s:.6g}  # {model.note}",
        ]
        quantiles = {}
        for side, value in (("input", model.input_tokens), ("output", model.output_tokens)):
            if isinstance(value, Mapping):
                quantiles[side] = value
            else:
                lines.append(
                    f"      {side}_tokens: {value:.6g}  # mean length; {side}_cv says how lengths vary, 1 by default"
                )
        if quantiles:
            lines.append("      lengths:  # share of requests: tokens that they do not exceed")
            for side, value in quantiles.items():
                pairs = ", ".join(f"'{share}': {tokens:g}" for share, tokens in value.items())
                lines.append(f"        {side}: {{quantiles: {{{pairs}}}}}")
    lines += ["pool:", "  regions:"]
    if owned:
        lines += [f"    {OWN_REGION}:", "      configurations:  # reserved nodes are paid for already"]
        for name, count in owned.items():
            lines.append(f"        {_scalar(name)}: {{available: {count}, reserved: {count}, price_usd_h: 0}}")
    for region, supply in rented.items():
        lines.append(f"    {_scalar(region)}:")
        if isinstance(supply, int):
            lines += [
                f"      available: {supply}  # nodes of each configuration that you may rent: your quota",
                "      configurations: all  # everything that the catalog has a price for; or a list, or name: nodes",
            ]
        else:
            lines.append("      configurations:  # node configuration: nodes that you may rent, your quota")
            lines += [f"        {_scalar(name)}: {count}" for name, count in supply.items()]
    text = "\n".join(lines) + "\n"
    data, _ = parse_text(text, "the new scenario")
    include_checkpoints(data, file)
    assert isinstance(data, dict)
    scenario_from_mapping(data, source="the new scenario")
    return text


def _scalar(text: str) -> str:
    """A text as YAML on one line."""
    return yaml.safe_dump(text, width=10_000, allow_unicode=True).removesuffix("\n...\n").strip()
