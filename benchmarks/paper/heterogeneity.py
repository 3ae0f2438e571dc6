"""Figures 2a and 2b: what mixed node sets are worth, one template at a time.

    python -m benchmarks.paper.heterogeneity --quick

2a: tokens/s for one USD/h of Qwen3-235B prefill under 1800 ms, the best mixed pipeline of L40S and H100 against pure H100,
in every region that sells both. 2b: how finely the throughputs of GPT-OSS 120B decode are graded, with and without mixed
node sets, and by how much one instance then overshoots a demand. ``--quick`` looks at sets of at most four nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.paper.experiment import arguments, save, show
from coralopt import load_scenario
from coralopt.report.library import stages_text
from coralopt.scenario import scenario_from_mapping
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates import TemplateLibrary, build_library, rank_templates, throughput_spread

#: Figure 2a as printed, tokens/s for one USD/h: the mixed winner, and the best of the three pure H100 setups.
PAPER = {"mixed": 526.0, "pure H100": 481.0}
PREFILL, DECODE = "qwen3-235b/prefill", "gpt-oss-120b/decode"


def main() -> None:
    parser = arguments(__doc__)
    options = parser.parse_args()
    scenario = load_scenario("extended")
    if options.quick:
        pruning = {**scenario.document.get("pruning", {}), "max_nodes": 4, "memory_ratio": 8}
        scenario = scenario_from_mapping({**scenario.document, "pruning": pruning}, source="extended")
    library = build_library(scenario)
    figures = [*mixed_pipelines(library, scenario), *gradation(library, scenario)]
    save(options.output, figures)


def mixed_pipelines(library: TemplateLibrary, scenario: ResolvedScenario) -> list[Mapping[str, Any]]:
    """Figure 2a."""
    slo = next(phase.slo_ms for phase in scenario.model_phases if phase.key == PREFILL)
    show(f"2a: {PREFILL} within {slo:g} ms, tokens/s for one USD/h")
    show(f"{'region':<16}{'node sets':<12}{'ours':>10}{'paper':>7}  best pipeline")
    figures: list[Mapping[str, Any]] = []
    for region in scenario.regions:
        for name, mix, gpus in (("mixed", "mixed", ("L40S", "H100")), ("pure H100", "pure", ("H100",))):
            best = rank_templates(library, scenario, PREFILL, region=region, mix=mix, gpus=gpus, limit=1)  # type: ignore[arg-type]
            worth = best[0].tokens_s_per_usd_h if best else float("nan")
            stages = stages_text(best[0].placement, library.configurations) if best else "not sold here"
            show(f"{region:<16}{name:<12}{worth:>10,.1f}{PAPER[name]:>7g}  {stages}")
            figures.append(
                {"figure": "2a", "region": region, "node_sets": name, "tokens_s_per_usd_h": worth, "stages": stages}
            )
    return figures


def gradation(library: TemplateLibrary, scenario: ResolvedScenario) -> list[Mapping[str, Any]]:
    """Figure 2b: the distribution at its deciles, as shares of the largest throughput of all."""
    everything, pure = throughput_spread(library, scenario, DECODE)
    top = float(everything.throughput[-1])
    shares = np.linspace(0.1, 1.0, 10)
    show(
        f"\n2b: {DECODE}, throughputs over the largest ({top:,.1f} tokens/s) below which a share of the templates lies"
    )
    show(f"{'node sets':<12}{'levels':>8}{'overshoot':>11}  " + "".join(f"{share:>7.0%}" for share in shares))
    figures: list[Mapping[str, Any]] = []
    for name, spread in (("all", everything), ("one GPU type", pure)):
        deciles = np.quantile(spread.throughput, shares) / top
        show(f"{name:<12}{spread.levels:>8,}{spread.overshoot:>11.3%}  " + "".join(f"{x:>7.3f}" for x in deciles))
        figures.append(
            {"figure": "2b", "node_sets": name, "levels": spread.levels, "overshoot": spread.overshoot}
            | {"deciles": [float(x) for x in deciles]}
        )
    return figures


if __name__ == "__main__":
    main()
