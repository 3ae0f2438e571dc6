"""Should placements of equal throughput be told apart by what their nodes have to send of a KV cache?

``python -m benchmarks.placement_ties [SCENARIO]`` draws node sets of two and three nodes from the template library, and for
each goes through all placements that have the throughput of the library's. Where one has less to send (or, for decode, to
receive) from the node that takes longest, both are simulated alone, with the requests and rates that the search for a share
of requests uses. A line a model phase: node sets drawn, those with such a tie, median of the time to send over the
library's, and at each load how many of them miss fewer requests then, and how many more (docs/concepts/placement.md).
"""

from __future__ import annotations

import sys

import numpy as np

from benchmarks.other_placements import placements
from coralopt import load_scenario
from coralopt.placement import Placement
from coralopt.planning.promise.instances import planned_placement
from coralopt.planning.promise.oracle import PhaseOracle
from coralopt.planning.request import PlanRequest
from coralopt.planning.stages import StageTables
from coralopt.simulation import GroupSimulator
from coralopt.throughput.nodes import cache_bytes
from coralopt.types import Floats

DRAWN, NODES, LOADS = 300, (2, 3), (0.3, 0.5, 0.7)
#: Shares of misses closer than this count as equal.
SAME = 0.001


def main(name: str) -> None:
    """Print a line a model phase."""
    request = PlanRequest(load_scenario(name))
    library, _, warm = request.templates()
    scenario, tables = request.scenario, warm.tables_of(request.scenario)
    of_stages, simulator, draw = StageTables(scenario, tables), GroupSimulator(scenario), np.random.default_rng(0)
    for phase, table, templates in zip(scenario.model_phases, tables, library.phases, strict=True):
        oracle = PhaseOracle(scenario, phase, templates, of_stages, simulator, remember=False)
        each_s = np.array(
            [
                cache_bytes(phase.model, host, phase.mean_input_tokens)
                / (phase.model.kv_copies(host.count) * host.network_gb_s * 1e9)
                for host in scenario.configurations
            ]
        )
        several = np.flatnonzero(np.isin(templates.usage.sum(axis=1), NODES))
        rows = several if len(several) <= DRAWN else draw.choice(several, DRAWN, replace=False)
        ratios: list[float] = []
        fewer, more = np.zeros(len(LOADS), dtype=int), np.zeros(len(LOADS), dtype=int)
        for row in rows.tolist():
            own, tokens_s = templates.placement(row), float(templates.throughput[row])
            # Sums in another order may differ in their last bit.
            equal = placements(table, templates.usage[row].astype(np.int64), tokens_s * (1 - 1e-12))
            least = min(equal, key=lambda item: longest_s(item, each_s))
            ratio = longest_s(least, each_s) / longest_s(own, each_s)
            if ratio > 1 - 1e-9:
                continue
            ratios.append(ratio)
            pair = oracle.instance(row), planned_placement(scenario, phase, of_stages, least)
            for k, load in enumerate(LOADS):
                trace = oracle.requests_at(0, load * oracle.rate(tokens_s))
                before, then = (simulator.simulate([instance], trace, 1.0).missed for instance in pair)
                fewer[k] += then < before - SAME
                more[k] += then > before + SAME
        simulated = ", ".join(f"load {load:g}: {a} and {b}" for load, a, b in zip(LOADS, fewer, more, strict=True))
        ratio = float(np.median(ratios)) if ratios else 1.0
        print(f"{phase.key}: {len(rows)} drawn, {len(ratios)} ties, time {ratio:.2f}; {simulated}", flush=True)


def longest_s(placement: Placement, each_s: Floats) -> float:
    """Seconds that the node with most of a KV cache for its link has to send; ``each_s`` a layer, by configuration."""
    return max(stage.layers * float(each_s[np.array(stage.nodes) > 0].max()) for stage in placement.stages)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "core-slo")
