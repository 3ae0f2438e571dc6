"""What a pool serves: the simulated pool against a slow one, the formula by hand, the search against all layouts."""

from __future__ import annotations

import configparser
import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from networkx.algorithms.flow import edmonds_karp
from scipy.optimize import linprog

from coralopt.errors import InfeasibleError, NoSolutionError, ScenarioError, SolverError
from coralopt.placement import (
    Placement,
    PlacementPool,
    PoolLinks,
    PoolServing,
    RequestKind,
    Stage,
    load_pool,
    place_pool,
)
from coralopt.placement.served import (
    PoolNetwork,
    ServedSearch,
    estimate_served,
    helix_files,
    place_served,
    pool_network,
    simulate_pool,
)
from coralopt.placement.served.max_flow import max_flow
from coralopt.scenario.lengths import LengthDistribution, LengthPair, LengthSpread

SHORT = ServedSearch(
    starts=2,
    moves=60,
    finalists=3,
    rounds=4,
    proposals=30,
    children=10,
    elite=3,
    seeds=(5, 6),
    repeats=1,
    window_s=20.0,
)


def random_pool(seed: int) -> PlacementPool:
    """Two kinds of nodes, 4 to 8 layers, short prompts and answers, caches for a few requests."""
    generator = np.random.default_rng(seed)
    layers = int(generator.integers(4, 9))
    speed = generator.uniform(0.5, 2.0, 2)
    most = generator.integers(2, layers + 1, 2)
    held = np.arange(layers + 1)
    fits = (held[None, :] >= 1) & (held[None, :] <= most[:, None])
    table = np.where(fits, 1000.0 * speed[:, None] / np.maximum(held, 1), 0.0)
    cache = np.where(fits, (generator.integers(2_000, 6_000, 2)[:, None] // np.maximum(held, 1)), 0).astype(np.int64)
    prompts = np.arange(401)[None, :] * generator.uniform(0.01, 0.05, 2)[:, None]
    decodes = (
        generator.uniform(1.0, 4.0, 2)[:, None] + np.arange(65)[None, :] * generator.uniform(0.01, 0.3, 2)[:, None]
    )
    decodes[:, 0] = 0.0
    return PlacementPool(
        name="random",
        values=np.broadcast_to(table, (layers, 3, 2, layers + 1)),
        counts=(int(generator.integers(1, 4)), int(generator.integers(1, 4))),
        configurations=("a", "b"),
        stage_free=True,
        cache_tokens=cache,
        serving=PoolServing(
            kinds=(
                RequestKind(0.7, LengthPair(LengthDistribution(40.0), LengthDistribution(15.0))),
                RequestKind(0.3, LengthPair(LengthDistribution(100.0), LengthDistribution(30.0))),
            ),
            reserved_output=25.0,
            prompt_ms=prompts,
            decode_ms=decodes,
            prompts=generator.integers(1, 3, 2),
            decodes=np.full((2, layers + 1), int(generator.integers(3, 60))),
            memory_gb=(16.0, 24.0),
            links=PoolLinks(
                bytes_s=float(generator.uniform(1e6, 1e8)),
                nic_bytes_s=2e8,
                latency_ms=float(generator.uniform(0.1, 5.0)),
                activation_bytes=1000.0,
                copy_ms=0.001,
            ),
        ),
    )


def flow_layout(pool: PlacementPool) -> tuple[Placement, ...] | None:
    try:
        return (place_pool(pool).placement,)
    except InfeasibleError:
        return None


# --------------------------------------------------------------------------- a second, slow writing of the rules


@dataclass
class Query:
    prompt: int
    left: int
    way: list[tuple[int, int]] = field(default_factory=list)
    place: int = -1
    decodes: bool = False
    since: float = 0.0


class SlowPool:
    """Objects, dictionaries and one agenda; the rules as docs/fixed-pools.md states them."""

    def __init__(self, pool: PlacementPool, network: PoolNetwork, seed: int, end: float) -> None:
        serving, cache = pool.serving, pool.cache_tokens
        assert serving is not None
        assert cache is not None
        self.serving, self.network, self.end = serving, network, end
        self.nodes = range(len(network.kind))
        self.hub = len(network.kind)
        self.out = {
            u: [(u, int(network.target[e])) for e in range(network.start[u], network.start[u + 1])]
            for u in [*self.nodes, self.hub]
        }
        every = [pair for u in [*self.nodes, self.hub] for pair in self.out[u]]
        self.flow = dict(zip(every, network.link_flow.tolist(), strict=True))
        self.speed = dict(zip(every, network.bytes_s.tolist(), strict=True))
        self.load = dict.fromkeys(every, 0.0)
        self.busy_until = dict.fromkeys(every, 0.0)
        self.size = {
            v: int(cache[network.kind[v], network.layers[v]]) * int(network.layers[v]) if network.flow[v] > 0 else 0
            for v in self.nodes
        }
        self.kept = dict.fromkeys(self.nodes, 0)
        self.waiting: dict[int, deque[Query]] = {v: deque() for v in self.nodes}
        self.passing: dict[int, list[Query]] = {}
        self.fresh = dict.fromkeys(self.nodes, 0)
        self.draw = iter(zip(*(lengths.tolist() for lengths in serving.sample(seed, 80_000)), strict=True))
        self.agenda: list[tuple[float, int, str, object]] = []
        self.number = itertools.count()
        self.times: list[float] = []

    def later(self, when: float, what: str, about: object = None) -> None:
        heapq.heappush(self.agenda, (when, next(self.number), what, about))

    def layers(self, v: int) -> range:
        return range(int(self.network.first[v]), int(self.network.first[v] + self.network.layers[v]))

    def fullest(self) -> float:
        depth = max(self.layers(v).stop for v in self.nodes)
        shares = []
        for layer in range(depth):
            holders = [v for v in self.nodes if layer in self.layers(v)]
            whole = sum(self.size[v] / len(self.layers(v)) for v in holders)
            shares.append(1 - (whole - sum(self.kept[v] for v in holders)) / whole)
        return max(shares)

    def run(self) -> list[float]:
        for i in range(20):
            self.later(i * 0.1, "new")
        while self.agenda and self.agenda[0][0] <= self.end:
            now, _, what, about = heapq.heappop(self.agenda)
            getattr(self, what)(now, about)
        return self.times

    def new(self, now: float, _: object) -> None:
        prompt, answer = next(self.draw)
        query = Query(prompt, answer)
        here = self.hub
        need = int(prompt + self.serving.reserved_output)
        while True:
            open_to = []
            for pair in self.out[here]:
                goal = pair[1]
                room = goal == self.hub or (
                    self.size[goal] - (self.kept[goal] + need) * len(self.layers(goal)) >= (1 - 0.85) * self.size[goal]
                )
                if self.flow[pair] > 0 and room:
                    open_to.append(pair)
            if not open_to:
                for pair in query.way:
                    self.load[pair] -= prompt / self.flow[pair]
                return
            taken = min(open_to, key=lambda pair: self.load[pair] + prompt / self.flow[pair])
            self.load[taken] += prompt / self.flow[taken]
            query.way.append(taken)
            here = taken[1]
            if here == self.hub:
                break
        for _, v in query.way[:-1]:
            self.kept[v] += need
        self.enter(now, query)

    def enter(self, now: float, query: Query) -> None:
        query.place, query.since = 0, now
        self.later(now + self.serving.links.latency_ms / 1e3, "arrive", query)

    def arrive(self, now: float, about: object) -> None:
        assert isinstance(about, Query)
        node = about.way[about.place][1]
        if node == self.hub:
            self.collect(now, about)
            return
        self.waiting[node].append(about)
        self.fresh[node] += 1 if about.decodes else about.prompt
        self.start(now, node)

    def collect(self, now: float, query: Query) -> None:
        was_prompt = not query.decodes
        if query.decodes:
            self.times.append(now)
            query.left -= 1
        query.decodes = True
        if query.left:
            for pair in query.way:
                self.load[pair] += 1.0 / self.flow[pair]
        else:
            for _, v in query.way[:-1]:
                self.kept[v] -= int(query.prompt + self.serving.reserved_output)
        if (was_prompt or not query.left) and self.fullest() <= 0.8:
            self.later(now + 0.1, "new")
        if query.left:
            self.enter(now, query)

    def start(self, now: float, node: int) -> None:
        if node in self.passing or not self.waiting[node]:
            return
        kind, layers = int(self.network.kind[node]), len(self.layers(node))
        most_prompts, most_decodes = int(self.serving.prompts[kind]), int(self.serving.decodes[kind, layers])
        batch: list[Query] = []
        rest: deque[Query] = deque()
        for query in self.waiting[node]:
            same = [other for other in batch if other.decodes == query.decodes]
            (batch if len(same) < (most_decodes if query.decodes else most_prompts) else rest).append(query)
        self.waiting[node] = rest
        tokens = sum(query.prompt for query in batch if not query.decodes)
        decodes = sum(query.decodes for query in batch)
        # Passes often end when another request arrives: the last digit decides, so sums are those of the compiled code.
        seconds = layers * (self.serving.prompt_ms[kind, tokens] / 1e3 + self.serving.decode_ms[kind, decodes] / 1e3)
        seconds += self.fresh[node] * (self.serving.links.copy_ms / 1e3)
        self.fresh[node] = 0
        self.passing[node] = batch
        self.later(now + seconds, "done", node)

    def done(self, now: float, about: object) -> None:
        assert isinstance(about, int)
        links = self.serving.links
        for query in self.passing.pop(about):
            query.place += 1
            pair = query.way[query.place]
            each = links.token_bytes + (0 if pair[1] == self.hub else links.activation_bytes)
            bytes_sent = each * (1 if query.decodes else query.prompt)
            self.busy_until[pair] = max(self.busy_until[pair], now) + bytes_sent / self.speed[pair]
            self.later(self.busy_until[pair] + links.latency_ms / 1e3, "arrive", query)
        self.start(now, about)


@settings(max_examples=15)
@given(st.integers(0, 100_000))
def test_the_simulated_pool_is_the_slow_one(seed: int) -> None:
    pool = random_pool(seed)
    layout = flow_layout(pool)
    if layout is None:
        return
    network = pool_network(pool, layout)
    slow = SlowPool(pool, network, seed=3, end=10.0).run()
    simulated = simulate_pool(pool, network, (3,), warm_up_s=4.0, window_s=6.0)
    expected = sum(when >= 4.0 for when in slow) / 6.0
    assert simulated.mean == pytest.approx(expected)


# --------------------------------------------------------------------------- the formula


def one_node(prompt_ms: float, layers: int = 4) -> PlacementPool:
    pool = random_pool(1)
    assert pool.serving is not None
    serving = replace(
        pool.serving,
        kinds=(
            RequestKind(
                1.0,
                LengthPair(
                    LengthDistribution(100.0, LengthSpread(cv=0.0)), LengthDistribution(50.0, LengthSpread(cv=0.0))
                ),
            ),
        ),
        reserved_output=50.0,
        prompt_ms=np.arange(401)[None, :] * prompt_ms / 100.0,
        decode_ms=np.concatenate([[[0.0]], np.full((1, 64), 2.0)], axis=1),
        prompts=np.array([1]),
        decodes=np.full((1, layers + 1), 64),
        memory_gb=(0.0,),
        links=PoolLinks(1e12, 1e12, 0.0, 1.0),
    )
    return PlacementPool(
        name="one",
        values=np.full((layers, 3, 1, layers + 1), 1000.0),
        counts=(2,),
        configurations=("a",),
        stage_free=True,
        cache_tokens=np.full((1, layers + 1), 2000, dtype=np.int64),
        serving=serving,
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_links_in_use_carry_the_largest_flow_that_they_can(seed: int) -> None:
    """None next to nothing, what comes goes, and a linear programme over these links finds no more."""
    pool = random_pool(seed)
    layout = flow_layout(pool)
    if layout is None:
        return
    network = pool_network(pool, layout)
    count = len(network.kind)
    sender = np.repeat(np.arange(count + 1), np.diff(network.start))
    into, out = (np.bincount(ends, weights=network.link_flow, minlength=count + 1) for ends in (network.target, sender))
    assert (network.link_flow >= 0.05 * out[sender] * (1 - 1e-9)).all()
    assert into == pytest.approx(out)
    assert network.flow == pytest.approx(into[:count])
    # Random pools have one table for all stages.
    table = pool.values[0, 0, network.kind, network.layers]
    balance = np.zeros((count, len(sender)))
    for k, (u, v) in enumerate(zip(sender, network.target, strict=True)):
        for node, sign in ((u, -1.0), (v, 1.0)):
            if node < count:
                balance[node, k] += sign
    limits = linprog(
        -(sender == count).astype(float), np.maximum(balance, 0.0), table, balance, np.zeros(count), bounds=(0, None)
    )
    assert network.throughput == pytest.approx(-limits.fun)


def random_network(seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Edges, capacities (multiples of 1/1024, so that every sum of them is exact) and nodes; no edges for some seeds."""
    generator = np.random.default_rng(seed)
    count = int(generator.integers(3, 9))
    pairs = [(u, v) for u, v in itertools.combinations(range(count), 2) if generator.random() < 0.6]
    order = generator.permutation(len(pairs))
    return (
        np.array(pairs, dtype=np.int64).reshape(-1, 2)[order],
        generator.integers(100, 10_000, len(pairs)) / 1024,
        count,
    )


def as_graph(ends: np.ndarray, capacity: np.ndarray, count: int) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(count))
    for (u, v), most in zip(ends.tolist(), capacity.tolist(), strict=True):
        graph.add_edge(u, v, capacity=most)
    return graph


@given(st.integers(0, 100_000))
def test_the_compiled_maximum_flow_is_the_one_of_networkx(seed: int) -> None:
    """networkx takes any of the active nodes of one height, the order of a set with gaps; here it takes the first, too.

    Sums that are rounded leave a node with what no edge takes back, and networkx ends in an error of its own.
    """
    ends, capacity, count = random_network(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("networkx.algorithms.flow.preflowpush.arbitrary_element", min)
        value, flows = nx.maximum_flow(as_graph(ends, capacity, count), 0, count - 1)
    most, carried = max_flow(ends, capacity, count)
    assert most == value
    assert carried.tolist() == [flows[u][v] for u, v in ends.tolist()]


@given(st.integers(0, 100_000))
@example(11225)
def test_the_compiled_maximum_flow_bears_rounding(seed: int) -> None:
    ends, capacity, count = random_network(seed)
    capacity = capacity * np.random.default_rng(seed).uniform(0.5, 1.0, len(capacity))
    most, carried = max_flow(ends, capacity, count)
    graph = as_graph(ends, capacity, count)
    assert most == pytest.approx(nx.maximum_flow_value(graph, 0, count - 1, flow_func=edmonds_karp))
    assert (carried <= capacity).all()
    into, out = (np.bincount(ends[:, side], weights=carried, minlength=count) for side in (1, 0))
    assert into[1:-1] == pytest.approx(out[1:-1])
    assert most == pytest.approx(into[-1])


def test_formula_by_hand() -> None:
    pool = one_node(prompt_ms=0.0)
    network = pool_network(pool, (Placement((Stage(4, (1,)),)),))
    # 0.9 * 0.85 * 2000 / 150 requests; each of their tokens takes one and a half passes of 4 layers of 2 ms.
    requests = 0.9 * 0.85 * 2000 / 150
    estimate = estimate_served(pool, network)
    assert estimate.requests == pytest.approx(requests)
    # A prompt costs nothing here, and yet a token that comes with one waits for half a pass less.
    rate, plain = estimate.decode_tokens_s, 4 * 0.002
    busy = rate / 50 * plain
    prompt = plain + busy * plain / (2 * (1 - busy)) + plain / 2
    assert rate * (1.5 * plain + busy * plain / 2) + rate / 50 * prompt == pytest.approx(requests, rel=1e-6)


def test_formula_knows_convoys() -> None:
    """Two equal stages one after the other keep a convoy; one stage of two nodes has none."""
    pool = one_node(prompt_ms=25.0)
    chain = pool_network(pool, (Placement((Stage(2, (1,)), Stage(2, (1,)))),))
    mean_in, mean_out, rate = 100.0, 50.0, estimate_served(pool, chain).decode_tokens_s
    plain, full = 2 * 0.002, 2 * (0.002 + 0.025)
    busy = rate / mean_out * full
    wait = busy * full / (2 * (1 - busy))
    shares = [0.0, busy * (1 - plain / full)]
    token = sum(s * (full + wait) + (1 - s) * (1.5 * plain + busy * full / 2) for s in shares)
    inside = rate * token + rate / mean_out * 2 * (full + wait + plain / 2)
    # Moving activations of one byte over 1e12 bytes/s is nothing.
    assert inside == pytest.approx(0.9 * 0.85 * 2000 / (mean_in + 50.0), rel=1e-4)


@pytest.mark.parametrize("rise_ms", [0.013, 0.05])
def test_formula_reads_times_between_batches(rise_ms: float) -> None:
    """Passes take longer the more requests decode: a batch of 3.4 takes 0.4 of the way from 3 to 4."""
    pool = one_node(prompt_ms=0.0)
    assert pool.serving is not None
    decode_ms = 2.0 + rise_ms * np.arange(65.0) ** 1.5
    decode_ms[0] = 0.0
    pool = replace(pool, serving=replace(pool.serving, decode_ms=decode_ms[None]))
    estimate = estimate_served(pool, pool_network(pool, (Placement((Stage(4, (1,)),)),)))
    rate = estimate.decode_tokens_s
    # The pass that serves as many requests as come in meanwhile.
    batch = 1.0
    for _ in range(200):
        plain = 4e-3 * float(np.interp(batch, np.arange(65), decode_ms))
        batch = max(rate * plain, 1.0)
    busy = rate / 50 * plain
    token, prompt = 1.5 * plain + busy * plain / 2, 1.5 * plain + busy * plain / (2 * (1 - busy))
    assert estimate.token_ms == pytest.approx(1e3 * token, rel=1e-4)
    assert rate * token + rate / 50 * prompt == pytest.approx(0.9 * 0.85 * 2000 / 150, rel=1e-4)


def test_lengths_of_a_pool_file_are_quantiles_or_means(tmp_path: Path) -> None:
    """Each of prompts and answers by itself; a mean alone is that of a lognormal distribution."""
    (tmp_path / "pool.yaml").write_text(
        "layers: 2\nnodes: {a: {count: 1, tokens_s: [9, 4], cache_tokens: [99, 49], prompt_ms: {8: 5}, decode_ms: {1: 2}}}\n"
        "serving: {reserved_output: 9, link_gb_s: 1, nic_gb_s: 1, latency_ms: 1, activation_bytes: 10, requests: [\n"
        "  {share: 0.25, input_tokens: 20, lengths: {output: {quantiles: {'0.5': 30, '0.9': 60}}}},\n"
        "  {share: 0.75, output_tokens: 7, lengths: {input: {quantiles: {'0.5': 300, '0.9': 700}}}}]}\n"
    )
    serving = load_pool(str(tmp_path / "pool.yaml")).serving
    assert serving is not None
    one, two = (kind.lengths for kind in serving.kinds)
    assert (one.input.mean, two.output.mean) == (20.0, 7.0)
    # Of a lognormal distribution with these quantiles: sigma is ln(p90 / p50) over the normal distribution's 1.2816.
    for lengths, p50, p90 in ((one.output, 30, 60), (two.input, 300, 700)):
        sigma = np.log(p90 / p50) / 1.2815515655
        assert lengths.mean == pytest.approx(p50 * np.exp(sigma**2 / 2), rel=0.05)


def test_formula_knows_idle_nodes() -> None:
    """A node that no token reaches changes nothing, and does not make the formula say nothing."""
    pool = replace(one_node(prompt_ms=25.0), counts=(5,))
    # The second stage is slower than one node of the first, so that one of two is enough.
    values = pool.values.copy()
    values[:, :, :, 3:] = 100.0
    pool = replace(pool, values=values)
    network = pool_network(pool, (Placement((Stage(1, (2,)), Stage(3, (1,)))),))
    alone = pool_network(pool, (Placement((Stage(1, (1,)), Stage(3, (1,)))),))
    assert sorted(network.flow > 0) == [False, True, True]
    assert estimate_served(pool, network).decode_tokens_s == pytest.approx(estimate_served(pool, alone).decode_tokens_s)
    assert simulate_pool(pool, network).mean == pytest.approx(simulate_pool(pool, alone).mean)
    assert helix_files(pool, network)["solution.ini"].count("compute_node_") == 2


def test_long_prompts_with_long_answers_leave_room_for_fewer() -> None:
    pool = load_pool("helix-24")
    assert pool.serving is not None
    network = pool_network(pool, (place_pool(pool, max_stages=12).placement,))
    means = LengthPair(
        LengthDistribution(pool.serving.mean_input, LengthSpread(cv=0.0)),
        LengthDistribution(pool.serving.mean_output, LengthSpread(cv=0.0)),
    )
    apart = replace(pool, serving=replace(pool.serving, kinds=(RequestKind(1.0, means),)))
    prompts, answers = pool.serving.sample(4, 50_000)
    assert np.corrcoef(prompts, answers)[0, 1] == pytest.approx(0.5, abs=0.02)
    assert prompts.mean() == pytest.approx(pool.serving.mean_input, rel=0.01)
    assert answers.mean() == pytest.approx(pool.serving.mean_output, rel=0.01)
    assert pool.serving.resident_input == pytest.approx((prompts * answers).sum() / answers.sum(), rel=0.01)
    assert estimate_served(pool, network).requests < estimate_served(apart, network).requests
    assert simulate_pool(pool, network).requests < simulate_pool(apart, network).requests


def test_formula_ranks_published_pools() -> None:
    """Over placements of most flow by stages, the formula ranks as the simulation does, the flow the other way."""
    pool = load_pool("helix-24")
    layouts = [place_pool(pool, max_stages=stages).placement for stages in (11, 12, 14, 16, 24)]
    networks = [pool_network(pool, (layout,)) for layout in layouts]
    simulated = [simulate_pool(pool, network, (1,), window_s=120.0).mean for network in networks]
    formula = [estimate_served(pool, network).decode_tokens_s for network in networks]
    flows = [network.throughput for network in networks]

    def ranks(values: list[float]) -> list[int]:
        return np.argsort(np.argsort(values)).tolist()

    assert np.corrcoef(ranks(simulated), ranks(formula))[0, 1] >= 0.8
    assert np.corrcoef(ranks(simulated), ranks(flows))[0, 1] < 0


# --------------------------------------------------------------------------- the search


def every_layout(pool: PlacementPool) -> list[tuple[Placement, ...]]:
    """All pipelines that use all nodes, by brute force."""
    nodes = [c for c, count in enumerate(pool.counts) for _ in range(count)]
    found: set[tuple[Placement, ...]] = set()
    for stages in range(1, len(nodes) + 1):
        cuts = itertools.combinations(range(1, pool.layers), stages - 1)
        splits = [tuple(b - a for a, b in itertools.pairwise((0, *cut, pool.layers))) for cut in cuts]
        for where in itertools.product(range(stages), repeat=len(nodes)):
            counts = [[0] * len(pool.counts) for _ in range(stages)]
            for stage, c in zip(where, nodes, strict=True):
                counts[stage][c] += 1
            for split in splits:
                placement = Placement(tuple(Stage(layers, tuple(c)) for layers, c in zip(split, counts, strict=True)))
                if pool.check(placement).feasible:
                    found.add((placement,))
    return sorted(found, key=str)


@pytest.mark.parametrize("seed", [3, 8])
def test_search_finds_the_best_of_all_layouts(seed: int) -> None:
    pool = replace(random_pool(seed), counts=(2, 1))
    options = replace(SHORT, most_pipelines=1, moves=300, rounds=15, starts=4, elite=6, repeats=2)
    best = place_served(pool, options)
    values = {
        layout: simulate_pool(pool, pool_network(pool, layout), options.seeds, window_s=options.window_s).mean
        for layout in every_layout(pool)
    }
    won = simulate_pool(pool, best.network, options.seeds, window_s=options.window_s).mean
    assert won >= max(values.values()) * (1 - 1e-9)


def test_search_serves_more_than_the_largest_flow() -> None:
    pool = load_pool("helix-24")
    best = place_served(pool, replace(SHORT, stages=14))
    again = place_served(pool, replace(SHORT, stages=14))
    assert best.pipelines == again.pipelines
    assert best.simulated.mean > best.first
    for placement in best.pipelines:
        assert pool.check(placement).feasible
        assert len(placement.stages) == 14
    used = np.sum([placement.node_set for placement in best.pipelines], axis=0)
    assert (used <= pool.counts).all()


def test_search_keeps_the_best_when_it_is_stopped() -> None:
    pool = load_pool("helix-10")
    steps = itertools.count()

    def stop(what: str, done: int, total: int) -> None:
        if next(steps) > 30:
            raise KeyboardInterrupt

    best = place_served(pool, SHORT, on_progress=stop)
    assert best.interrupted
    assert best.simulated.mean > 0
    with pytest.raises(SolverError, match="does not say how its nodes serve"):
        place_served(replace(pool, serving=None))


def test_no_start_in_time_and_no_placement_at_all_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = load_pool("helix-10")
    with pytest.raises(InfeasibleError, match="exists"):
        place_served(pool, replace(SHORT, stages=1))

    def too_late(*_: object, **__: object) -> None:
        raise NoSolutionError("none", None)

    monkeypatch.setattr("coralopt.placement.served.search.place_pool", too_late)
    with pytest.raises(NoSolutionError, match=r"no placement on .* was found in time; allow more of it"):
        place_served(pool, SHORT)


# --------------------------------------------------------------------------- files


def test_helix_files_say_the_layout() -> None:
    pool = load_pool("helix-24")
    network = pool_network(pool, (place_pool(pool, max_stages=12).placement,))
    files = helix_files(pool, network)
    parsed = {}
    for name, text in files.items():
        parsed[name] = configparser.ConfigParser()
        parsed[name].read_string(text)
    held: list[int] = []
    for name, layers in parsed["solution.ini"]["Solution"].items():
        numbers = [int(part) for part in layers.strip("[]").split(",")]
        held += numbers
        kind = parsed["cluster.ini"][f"ComputeNode-{int(name.split('_')[2]) - 2}"]["type"]
        node = parsed["simulator_cluster.ini"][name]
        assert node["machine_type"] == f'"{kind}"'
        c = pool.configurations.index(kind)
        assert pool.cache_tokens is not None
        assert int(node["kv_cache_capacity"]) == pool.cache_tokens[c, len(numbers)] * len(numbers)
    assert set(held) == set(range(80))
    ends = [
        (parsed["simulator_cluster.ini"][section]["in"], parsed["simulator_cluster.ini"][section]["out"])
        for section in parsed["simulator_cluster.ini"].sections()
        if section.startswith("link_")
    ]
    assert len(ends) == int((network.link_flow > 0).sum())


BAD = """
layers: 4
nodes:
  a: {count: 2, tokens_s: [9, 4], cache_tokens: [100, 50], prompt_ms: {100: 5}, decode_ms: {1: 2, 8: 3}}
serving:
  requests: [{input_tokens: 20, output_tokens: 10}]
  reserved_output: 10
  link_gb_s: 1
  nic_gb_s: 1
  latency_ms: 1
  activation_bytes: 10
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (", prompt_ms: {100: 5}", "", r"nodes.a.prompt_ms: missing"),
        (", cache_tokens: [100, 50]", "", r"nodes.a.cache_tokens: missing"),
        (
            "decode_ms: {1: 2, 8: 3}",
            "decode_ms: {1: 2, 8: 3}, decodes: [9]",
            "9 requests in a pass, decode_ms ends at 8",
        ),
        ("input_tokens: 20, ", "", "give either input_tokens, the mean, or lengths.input"),
        ("output_tokens: 10", "output_tokens: 10, share: 0.5", "the shares of requests are 0.5 in all; they must be 1"),
        ("latency_ms: 1", "latency_ms: -1", "serving.latency_ms"),
        ("latency_ms: 1", "latency_ms: .nan", "serving.latency_ms"),
        ("{100: 5}", "{100: -5}", "prompt_ms"),
        ("{100: 5}", "{}", "prompt_ms"),
    ],
)
def test_mistakes_in_pool_files(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(BAD.replace(old, new), encoding="utf-8")
    with pytest.raises(ScenarioError, match=message):
        load_pool(path)
    path.write_text(BAD, encoding="utf-8")
    serving = load_pool(path).serving
    assert serving is not None
    assert serving.decode_ms[0, :3].tolist() == pytest.approx([0.0, 2.0, 2.0 + 1 / 7])
    assert serving.prompt_ms[0, 50] == pytest.approx(2.5)
