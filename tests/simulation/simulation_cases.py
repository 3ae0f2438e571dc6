"""Small random simulations, for the compiled engine and for the slow reference of the same rules."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from slow_reference import (
    Reference,
    SlowInstance,
    SlowNode,
    SlowPart,
    SlowRequest,
    SlowTurns,
    SlowWay,
)

from coralopt.routing import ROUTINGS
from coralopt.scenario.facts.serving import PAPER_SERVING, Serving
from coralopt.simulation.config import SimulationConfig
from coralopt.simulation.events import run
from coralopt.simulation.fleet import Fleet, empty_state
from coralopt.simulation.layout import Blueprint
from coralopt.simulation.state import ADMISSIONS, DECODE, MIXED, NODE, ORDERS, PHASES, PREFILL, requests_of
from coralopt.simulation.times import FunctionTimes, TimeTables
from coralopt.types import Floats, Ints


@dataclass(frozen=True)
class SimulationCase:
    """Instances with the times at which they begin to serve and to drain (infinity: never), and requests.

    Attributes:
        models: Number of models; ``mixed[m]`` is the share of the requests of model m that go to mixed instances.
        blueprints: One an instance.
        ready_s, drain_s: One an instance.
        arrival_s, input_tokens, output_tokens, model: One a request.
        config: Links and noise.
        tables: Stage times.
        serving: How engines and the router work.
        slo_s: SLO on the time to first token, s.
        paths: float64 (models, 2, 2), bytes/s between regions r0 and r1, 0 where KV caches may not go; or ``None``.
        prefix_hit: Share of every prompt that caches hold.
        shares: Numbers of nodes, counted over all instances, that share the same GPUs, each at most once; weights come and
            go on those with ``swap_s``.
    """

    models: int
    mixed: tuple[float, ...]
    blueprints: tuple[Blueprint, ...]
    ready_s: tuple[float, ...]
    drain_s: tuple[float, ...]
    arrival_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    model: Ints
    config: SimulationConfig
    tables: TimeTables
    serving: Serving = PAPER_SERVING
    slo_s: float = math.inf
    paths: Floats | None = None
    prefix_hit: float = 0.0
    shares: tuple[tuple[int, ...], ...] = ()

    def simulate(self, events_a_call: int = 2**62) -> Fleet:
        """The compiled engine, run to the end, handing control back after about so many events."""
        requests = requests_of(self.arrival_s, self.input_tokens, self.output_tokens, self.model, self.prefix_hit)
        requests["latest"] = self.arrival_s + self.slo_s
        stages = max(len(b.stage_sizes) for b in self.blueprints)
        fleet = Fleet(
            empty_state(requests, self.models, stages, self.tables, self.config, self.serving),
            tuple(f"m{m}" for m in range(self.models)),
            self.config,
        )
        if self.paths is not None:
            fleet.regions = ["r0", "r1"]
            fleet.state = fleet.state._replace(paths=self.paths)
        for m in range(self.models):
            fleet.state.entry[m] = (1.0 - self.mixed[m], 0.0, self.mixed[m])
        for blueprint, ready, drain in zip(self.blueprints, self.ready_s, self.drain_s, strict=True):
            i = fleet.add(blueprint, 0.0)
            fleet.ready.append((ready, i))
            if drain < math.inf:
                m = int(fleet.state.instances["pool"][i]) // 3
                fleet.drains.append((drain, m, (i,), fleet.state.entry[m].copy()))
        for nodes in self.shares:
            fleet.share(nodes)
        while True:
            until = fleet.next_time()
            while not run(fleet.state, until, events_a_call):
                pass
            if until == math.inf:
                return fleet
            fleet.advance(until)

    def reference(self) -> Reference:
        """The slow reference, run to the end."""
        instances = []
        for blueprint in self.blueprints:
            instance = SlowInstance(
                int(blueprint.model[1:]), PHASES[blueprint.phase], int(blueprint.region[1:]), blueprint.weight
            )
            instance.parts = {int(name[1:]): SlowPart(instance, weight) for name, weight in blueprint.serves}
            instance.stages = [[] for _ in blueprint.stage_sizes]
            for record in blueprint.nodes:
                instance.stages[record["stage"]].append(_node(instance, record))
            instance.swap_s = float(blueprint.nodes["swap_s"][0])
            instances.append(instance)
        all_nodes = [node for instance in instances for stage in instance.stages for node in stage]
        for numbers in self.shares:
            for k, number in enumerate(numbers):
                all_nodes[number].peers = [all_nodes[n] for n in (*numbers[k + 1 :], *numbers[:k])]
            members = [all_nodes[number].owner for number in numbers]
            if members[0].swap_s > 0:
                turns = SlowTurns(members)
                for member in members:
                    member.turns = turns
        requests = [
            SlowRequest(
                r, int(m), float(a), int(i), int(o), float(a) + self.slo_s, cached=math.floor(int(i) * self.prefix_hit)
            )
            for r, (m, a, i, o) in enumerate(
                zip(self.model, self.arrival_s, self.input_tokens, self.output_tokens, strict=True)
            )
        ]
        simulated = Reference(
            instances,
            requests,
            [(SlowWay("prefill", 1.0 - mixed), SlowWay("mixed", mixed)) for mixed in self.mixed],
            [_table(self.tables, t) for t in range(len(self.tables.tables))],
            self.config,
            self.serving,
            int(np.random.SeedSequence(self.config.seed).generate_state(1, np.uint64)[0]),
        )
        if self.paths is not None:
            simulated.paths = {place: float(rate) for place, rate in np.ndenumerate(self.paths)}
        moments = sorted({*self.ready_s, *(d for d in self.drain_s if d < math.inf)})
        simulated.simulate(
            (
                t,
                [i for i, ready in zip(instances, self.ready_s, strict=True) if ready == t],
                [i for i, drain in zip(instances, self.drain_s, strict=True) if drain == t],
            )
            for t in moments
        )
        return simulated


def _node(owner: SlowInstance, record: Any) -> SlowNode:
    def number(name: str) -> int:
        return int(record[name])

    def real(name: str) -> float:
        return float(record[name])

    return SlowNode(
        owner=owner,
        stage=number("stage"),
        layers=number("layers"),
        weight=real("weight"),
        capacity=number("capacity"),
        kv=(real("kv_full"), real("kv_window"), real("window"), real("kv_copies")),
        batch=number("batch"),
        limit=number("limit"),
        chunk=number("chunk"),
        budget_ms=real("budget_ms"),
        pays_head=bool(record["pays_head"]),
        token_ms=real("token_ms"),
        hop_ms=real("hop_ms"),
        tables=(number("prefill_table"), number("decode_table")),
        mixed_factor=real("mixed_factor"),
        pair_ms=real("pair_ms"),
        link=real("link"),
    )


def _table(tables: TimeTables, t: int) -> tuple[list[float], list[list[tuple[float, float]]]]:
    record = tables.tables[t]
    points, batches = int(record["points"]), int(record["batches"])
    first, at = int(record["tokens_at"]), int(record["values_at"])
    values = tables.values[at : at + points * batches].reshape(batches, points, 2)
    rows = [[(float(a), float(b)) for a, b in row] for row in values]
    return tables.tokens[first : first + points].tolist(), rows


@st.composite
def simulation_cases(
    draw: st.DrawFn, most_requests: int = 40, all_serve: bool = False, pressed: bool = False
) -> SimulationCase:
    """Random fleets of prefill, decode and mixed instances with up to 3 stages of up to 3 nodes.

    Args:
        draw: Given by Hypothesis.
        most_requests: Largest number of requests.
        all_serve: Every instance serves from 0 on and none drains.
        pressed: One instance of a phase that runs out of memory: prompts in short chunks, those evicted come back.
    """
    models = 1 if pressed else draw(st.integers(1, 2))
    mixed = tuple(draw(st.sampled_from((0.0, 0.0, 1.0, 0.3, 0.5))) for _ in range(models))
    # Real numbers come from a seeded generator: ties between events are then as rare as in life.
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tight = pressed or draw(st.booleans())
    tables = TimeTables(64)
    kinds = draw(st.integers(1, 3))
    pairs = [
        tables.index(
            SimpleNamespace(name="m"),  # type: ignore[arg-type]
            SimpleNamespace(name=f"c{c}"),  # type: ignore[arg-type]
            lambda *_: _times(rng),
        )[:2]
        for c in range(kinds)
    ]
    blueprints = []
    for m in range(models):
        for phase in (PREFILL, DECODE) * (mixed[m] < 1) + (MIXED,) * (mixed[m] > 0):
            for _ in range(1 if pressed else draw(st.integers(1, 2))):
                sizes = tuple(draw(st.integers(1, 3)) for _ in range(draw(st.integers(2 if pressed else 1, 3))))
                blueprints.append(_blueprint(rng, m, phase, sizes, pairs, tight))
    if models == 2 and mixed[0] == mixed[1] and draw(st.booleans()):
        # Both models are classes of one, whose instances may serve either.
        blueprints = [_of_classes(rng, blueprint) for blueprint in blueprints]
    if pressed:
        for blueprint in blueprints:
            blueprint.nodes["chunk"] = rng.integers(2, 9, len(blueprint.nodes))
            blueprint.nodes["limit"] *= 3
    alone = sum(len(blueprint.nodes) for blueprint in blueprints)
    takers = [m for m in range(models) if mixed[m] > 0]
    turns = draw(st.sampled_from((0, 0, 0, 2, 3, 4))) if takers else 0
    for m in rng.choice(takers, turns).tolist():
        blueprints.append(_blueprint(rng, m, MIXED, (1,), pairs, tight))
        blueprints[-1].nodes["swap_s"] = rng.uniform(0.01, 0.3)
    n = draw(st.integers(3 * most_requests // 4 if pressed else 0, most_requests))
    late = all_serve or draw(st.booleans())
    arrival = np.sort(rng.uniform(0, rng.choice([0.1, 1.0, 5.0]), n))
    if draw(st.booleans()):
        # Bursts: many requests at one moment.
        arrival = np.repeat(arrival[::4], 4)[:n] if n else arrival
    count = len(blueprints)
    order = rng.permutation(alone).tolist()
    shares: tuple[tuple[int, ...], ...] = (tuple(order[:3]), tuple(order[3:5])) if draw(st.booleans()) else ()
    shares += (tuple(range(alone, alone + turns)),)
    paths = rng.choice([0.0, 2_000.0, np.inf], (models, 2, 2), p=[0.2, 0.4, 0.4])
    paths[:, [0, 1], [0, 1]] = np.inf
    return SimulationCase(
        models=models,
        mixed=mixed,
        blueprints=tuple(blueprints),
        ready_s=(0.0,) * count if late else tuple(float(x) for x in rng.uniform(0, 2, count)),
        drain_s=(math.inf,) * count
        if late
        else tuple(float(x) if rng.random() < 0.4 else math.inf for x in rng.uniform(2, 4, count)),
        arrival_s=arrival,
        input_tokens=rng.integers(1, 40, len(arrival)),
        output_tokens=rng.integers(1, rng.choice([12, 60]), len(arrival)),
        model=rng.integers(0, models, len(arrival)),
        config=SimulationConfig(
            noise=draw(st.sampled_from([0.0, 0.0, 0.3])),
            kv_latency_ms=float(rng.choice([0.0, 3.0])),
            kv_region_latency_ms=50.0,
            kv_contention=draw(st.booleans()),
            seed=20260713,
        ),
        serving=replace(
            PAPER_SERVING,
            routing=draw(st.sampled_from(ROUTINGS)),
            order=draw(st.sampled_from(ORDERS)),
            admission="preempt" if pressed else draw(st.sampled_from(ADMISSIONS)),
            host_request_ms=float(rng.choice([0.0, 20.0])),
            async_scheduling=draw(st.booleans()),
        ),
        slo_s=float(rng.choice([0.05, 0.3])),
        paths=paths if rng.random() < 0.3 else None,
        prefix_hit=float(rng.choice([0.0, 0.0, 0.3, 0.7])),
        shares=tuple(nodes for nodes in shares if len(nodes) > 1),
        tables=tables,
    )


def _times(rng: np.random.Generator) -> FunctionTimes:
    a, b, c, d = rng.uniform(0.2, 2.0, 4)
    return FunctionTimes(
        prefill=lambda n, tokens: (a + 0.1 * b * n * tokens + 0.001 * c * n * tokens**1.5, d + 0.0 * n),
        decode=lambda n, context: (b + 0.05 * c * n + 0.002 * n * context**1.2, a + 0.01 * n),
        most_prompts=6,
        most_sequences=12,
    )


def _of_classes(rng: np.random.Generator, blueprint: Blueprint) -> Blueprint:
    """The instance, or one that serves both models."""
    if rng.random() < 0.4:
        return blueprint
    weights = rng.uniform(0.5, 3.0, 2).tolist()
    return replace(blueprint, weight=sum(weights), serves=tuple(zip(("m0", "m1"), weights, strict=True)))


def _blueprint(
    rng: np.random.Generator,
    model: int,
    phase: int,
    sizes: tuple[int, ...],
    pairs: list[tuple[int, int]],
    tight: bool,
) -> Blueprint:
    nodes = np.zeros(sum(sizes), dtype=NODE)
    nodes["stage"] = np.repeat(np.arange(len(sizes)), sizes)
    nodes["layers"] = rng.integers(1, 4, len(sizes))[nodes["stage"]]
    nodes["weight"] = rng.uniform(1, 5, len(nodes))
    nodes["kv_full"], nodes["kv_window"] = rng.choice([1.0, 2.5, 4.0], len(nodes)), rng.choice([0.0, 3.0], len(nodes))
    nodes["window"], nodes["kv_copies"] = 8.0, rng.choice([1.0, 2.0], len(nodes))
    # A sequence takes up to 51 tokens of up to 7 bytes.
    nodes["capacity"] = rng.integers(150, 900, len(nodes)) if tight else 10**6
    nodes["batch"] = rng.integers(1, 6, len(nodes))
    nodes["limit"] = nodes["batch"] * len(sizes) + rng.integers(0, 3, len(nodes))
    # Prefill instances compute whole prompts where there is no limit of tokens.
    nodes["chunk"] = rng.integers(1, 100, len(nodes)) * (phase != PREFILL or rng.random() < 0.5)
    nodes["budget_ms"] = rng.uniform(5, 60, len(nodes))
    nodes["pays_head"] = nodes["stage"] == len(sizes) - 1
    nodes["token_ms"], nodes["hop_ms"] = rng.uniform(0, 0.1, len(nodes)), rng.uniform(0, 1, len(nodes))
    chosen = np.array(pairs)[rng.integers(0, len(pairs), len(nodes))]
    nodes["prefill_table"], nodes["decode_table"] = chosen[:, 0], chosen[:, 1]
    nodes["mixed_factor"], nodes["pair_ms"] = rng.uniform(0.8, 1.5, len(nodes)), rng.uniform(0, 0.01, len(nodes))
    nodes["link"] = rng.uniform(500, 50_000, len(nodes))
    return Blueprint(
        key=(model, phase, sizes),
        name=f"m{model}-{PHASES[phase]}",
        model=f"m{model}",
        phase=phase,
        region=f"r{rng.integers(0, 2)}",
        nodes=nodes,
        stage_sizes=sizes,
        configurations=("c",) * len(nodes),
        labels=("node",) * len(nodes),
        weight=float(rng.uniform(1, 5)),
        price_usd_h=1.0,
        load_s=0.0,
    )
