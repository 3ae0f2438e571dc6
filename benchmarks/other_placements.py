"""Whether anything outside the family of plans holds a model phase for less than the cheapest groups of the family.

``python -m benchmarks.other_placements [SCENARIO]`` simulates, for every model phase that asks for a share of requests,

* all placements of every node set whose equal instances cost less than the cheapest cover: groups of the search have the
  placement of highest throughput only;
* all sets of unequal instances that together cost less, behind one queue: the search divides traffic by fixed shares;

each where the throughput is enough for all demand, and prints the largest share of requests that any meets
(docs/concepts/promise.md).
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import numpy as np

from coralopt import load_scenario
from coralopt.placement import Placement, Stage
from coralopt.planning.coral import allocation_problem
from coralopt.planning.promise.capacities import PARTS, PRICE_TOLERANCE, Groups, tighten
from coralopt.planning.promise.instances import planned_placement
from coralopt.planning.promise.oracle import SURE_FAIL
from coralopt.planning.promise.search import PromiseSearch
from coralopt.planning.request import PlanRequest
from coralopt.throughput import ThroughputTables, stage_role
from coralopt.types import Ints


def main(name: str) -> None:
    """Print a line for every node set."""
    request = PlanRequest(load_scenario(name))
    library, _, warm = request.templates()
    tables = warm.tables_of(request.scenario)
    search = PromiseSearch(request, library, tables, allocation_problem(request.scenario, library, None, tables))
    for groups, price in zip(search.groups, search.price, strict=True):
        if groups.oracle.target is not None and groups.unit_tokens > 0:
            _, cover = tighten(groups, price, 0.0)
            print(f"{groups.oracle.phase.key}: the cheapest cover costs {cover:.4f} USD/h")
            cheaper = np.flatnonzero((price < cover) & (groups.allowed == PARTS))
            for j in cheaper[np.argsort(price[cheaper])].tolist():
                _cut_otherwise(groups, j, float(price[j]))
            _unequal(groups, cover)


def _unequal(groups: Groups, cover: float) -> None:
    """Sets of instances of two templates or more."""
    oracle, needed = groups.oracle, PARTS * groups.unit_tokens
    scenario = oracle.scenario
    # Slow ones, too: the router sends them short prompts.
    usd_h = oracle.templates.usage @ np.nanmin(scenario.price_usd_h, axis=0) * (1 + scenario.initialization_penalty)
    rows = np.argsort(usd_h, kind="stable")
    usd_h = usd_h[rows]
    requests = oracle.requests_at(0, PARTS * oracle.rate(groups.unit_tokens))
    assert oracle.target is not None
    best, number, text = 0.0, 0, "none"
    stack: list[tuple[tuple[int, ...], float, float]] = [((), 0.0, 0.0)]
    while stack:
        chosen, cost, tokens_s = stack.pop()
        if len(set(chosen)) > 1 and tokens_s >= needed:
            number += 1
            instances = [
                oracle.instance(int(rows[k])).model_copy(update={"count": chosen.count(k)}) for k in set(chosen)
            ]
            most = max(SURE_FAIL * (1 - oracle.target), 1 - best)
            met = 1 - oracle.simulator.simulate(instances, requests, most).missed
            if met > best:
                best = met
                text = ", ".join(
                    f"{item.count} of {item.name.split(scenario.regions[0] + '-')[-1]}" for item in instances
                )
        last = chosen[-1] if chosen else 0
        stack += [
            ((*chosen, k), cost + float(usd_h[k]), tokens_s + float(oracle.templates.throughput[rows[k]]))
            for k in range(last, len(rows))
            if cost + usd_h[k] < cover * (1 - PRICE_TOLERANCE)
        ]
    print(f"  {number:,} sets of unequal instances for less, at most {best:.2%} met ({text})", flush=True)


def _cut_otherwise(groups: Groups, j: int, usd_h: float) -> None:
    oracle, template, count = groups.oracle, int(groups.template[j]), int(groups.count[j])
    usage = oracle.templates.usage[template].astype(np.int64)
    names = (host.name for host in oracle.scenario.configurations)
    nodes = " + ".join(f"{n}x {name}" for name, n in zip(names, usage.tolist(), strict=True) if n)
    best, number, needed = 0.0, 0, PARTS * groups.unit_tokens / count
    requests = oracle.requests_at(0, PARTS * oracle.rate(groups.unit_tokens))
    assert oracle.target is not None
    for placement in placements(oracle.tables.plain[oracle.phase.key], usage, needed):
        number += 1
        instance = planned_placement(oracle.scenario, oracle.phase, oracle.tables, placement)
        most = max(SURE_FAIL * (1 - oracle.target), 1 - best)
        best = max(
            best, 1 - oracle.simulator.simulate([instance.model_copy(update={"count": count})], requests, most).missed
        )
    print(f"  {usd_h:8.4f} USD/h  {count} of {nodes}: {number:,} placements, at most {best:.2%} met", flush=True)


def placements(table: ThroughputTables, usage: Ints, needed: float) -> Iterator[Placement]:
    """All placements of all these nodes that have a throughput, tokens/s."""
    for stages in range(1, min(int(usage.sum()), table.max_stages) + 1):
        for parts in _divided(usage, stages):
            # Tokens/s of each stage by its layers.
            speeds = [
                part
                @ table.values[stages - 1, stage_role(k, stages)][:, 1:]
                * ((table.values[stages - 1, stage_role(k, stages)][part > 0, 1:] > 0).all(axis=0))
                for k, part in enumerate(parts)
            ]
            able = [(np.flatnonzero(speed >= needed) + 1).tolist() for speed in speeds]
            for layers in itertools.product(*able[:-1]):
                last = table.layers - sum(layers)
                if last in able[-1]:
                    cut = zip((*layers, last), parts, strict=True)
                    yield Placement(tuple(Stage(held, tuple(part.tolist())) for held, part in cut))


def _divided(usage: Ints, stages: int) -> Iterator[list[Ints]]:
    """Ways to give all nodes to so many stages in order, each at least one."""
    if stages == 1:
        yield [usage]
        return
    for first in itertools.product(*(range(n + 1) for n in usage.tolist())):
        part = np.array(first, dtype=np.int64)
        rest = usage - part
        if part.sum() and rest.sum() >= stages - 1:
            yield from ([part, *others] for others in _divided(rest, stages - 1))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "core-slo")
