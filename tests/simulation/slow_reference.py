"""The rules of docs/concepts/simulator.md once more, in slow plain Python: objects, deques and ``heapq``."""

from __future__ import annotations

import bisect
import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from coralopt.routing import choose, smooth_weighted_round_robin, work_of
from coralopt.scenario.facts.serving import Serving
from coralopt.simulation.config import SimulationConfig

MASK = 2**64 - 1


@dataclass(eq=False)
class SlowRequest:
    number: int
    model: int
    arrival: float
    input: int
    output: int
    latest: float = math.inf
    prefilled: int = 0
    generated: int = 0
    target: int = 0
    wasted: int = 0
    away: float = 0.0
    held: int = 0
    preempted: int = 0
    evicted: bool = False
    decoding: bool = False
    chunk: int = 0
    status: str = "waiting"
    prefill: SlowInstance | None = None
    decode: SlowInstance | None = None
    nodes: dict[str, list[SlowNode]] = field(default_factory=dict)
    batch: dict[str, int] = field(default_factory=dict)
    #: Since when it has waited at the first node.
    ready: float = 0.0
    times: dict[str, float] = field(default_factory=dict)
    blocked: dict[str, str] = field(default_factory=dict)

    cached: int = 0

    def __post_init__(self) -> None:
        self.target, self.prefilled = self.input, self.cached

    def nodes_of(self, instance: SlowInstance) -> list[SlowNode]:
        return self.nodes["decode" if instance.phase == "decode" else "prefill"]


@dataclass(eq=False)
class SlowWay:
    """Where new requests of a model may go, by the plan's share."""

    phase: str
    weight: float
    credit: float = 0.0


@dataclass(eq=False)
class SlowNode:
    owner: SlowInstance
    stage: int
    layers: int
    weight: float
    capacity: int
    kv: tuple[float, float, float, float]
    batch: int
    limit: int
    chunk: int
    budget_ms: float
    pays_head: bool
    token_ms: float
    hop_ms: float
    tables: tuple[int, int]
    mixed_factor: float
    pair_ms: float
    link: float
    #: Nodes on the same GPUs, in the order of their turns after this one's.
    peers: list[SlowNode] = field(default_factory=list)
    credit: float = 0.0
    used: int = 0
    peak: int = 0
    resident: int = 0
    active: int = 0
    running: list[SlowRequest] | None = None
    decodes: deque[SlowRequest] = field(default_factory=deque)
    prompts: deque[SlowRequest] = field(default_factory=deque)
    in_flight: list[dict[str, int]] = field(default_factory=list)
    #: When micro-batches were back, oldest first; those whose places others took are left out.
    back: deque[float] = field(default_factory=deque)
    sent_at: float = 0.0
    received_at: float = 0.0
    busy_s: float = 0.0
    #: Begin and end of its last micro-batch.
    span: tuple[float, float] = (-math.inf, -math.inf)
    batches: int = 0
    decode_tokens: int = 0
    prompt_tokens: int = 0

    def bytes(self, tokens: int) -> int:
        full, window_part, window, _ = self.kv
        return math.ceil(full * tokens + window_part * min(float(tokens), window))


@dataclass(eq=False)
class SlowInstance:
    model: int
    phase: str
    region: int
    weight: float
    stages: list[list[SlowNode]] = field(default_factory=list)
    state: str = "starting"
    queue: deque[SlowRequest] = field(default_factory=deque)
    arrived: deque[SlowRequest] = field(default_factory=deque)
    returned: deque[SlowRequest] = field(default_factory=deque)
    at_work: list[SlowRequest] = field(default_factory=list)
    evicted: int = 0
    work: float = 0.0
    taken: int = 0
    inside: int = 0
    reason: str = ""
    gone_at: float = math.nan
    #: Where its weights come and go: with whom it takes turns, seconds until its weights are there, who waits for that.
    turns: SlowTurns | None = None
    swap_s: float = 0.0
    gate: deque[SlowRequest] = field(default_factory=deque)
    #: How it is picked, and where it serves several classes of requests, by class.
    parts: dict[int, SlowPart] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.whole = SlowPart(self, self.weight)

    def most(self, request: SlowRequest) -> int:
        return request.input + (0 if self.phase == "prefill" else request.output)

    def holds(self, request: SlowRequest) -> int:
        return request.input if self.phase == "prefill" else request.held


@dataclass(eq=False)
class SlowTurns:
    """Instances whose weights come and go on one node, in the order of their turns, and whose turn it is."""

    members: list[SlowInstance]
    current: int = -1

    @property
    def deserted(self) -> bool:
        return not any(member.inside for member in self.members)


@dataclass(eq=False)
class SlowPart:
    """An instance as one class of requests sees it: weight and credit of its own, all of its work."""

    owner: SlowInstance
    weight: float
    credit: float = 0.0

    @property
    def work(self) -> float:
        return self.owner.work

    @property
    def taken(self) -> int:
        return self.owner.taken

    @property
    def rate(self) -> float:
        return self.owner.weight


class Reference:
    """One run; ``timeline`` is a list of (time, instances that serve from then on, instances that drain)."""

    def __init__(
        self,
        instances: Sequence[SlowInstance],
        requests: Sequence[SlowRequest],
        entry: Sequence[Sequence[SlowWay]],
        tables: Sequence[tuple[list[float], list[list[tuple[float, float]]]]],
        config: SimulationConfig,
        serving: Serving,
        seed: int,
    ) -> None:
        self.instances, self.requests, self.entry, self.tables = instances, requests, entry, tables
        self.latency, self.region_latency = config.kv_latency_ms / 1e3, config.kv_region_latency_ms / 1e3
        self.contention, self.noise, self.random = config.kv_contention, config.noise, seed
        #: (model, region, region) -> bytes/s where it is not what the nodes have, 0 where KV caches may not go.
        self.paths: dict[tuple[int, int, int], float] = {}
        self.policy, self.host_s = serving, serving.host_request_ms / 1e3
        self.now, self.order = 0.0, 0
        self.events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self.homeless: dict[tuple[int, str], deque[SlowRequest]] = {}
        self.touched_instances: dict[SlowInstance, None] = {}
        self.touched_nodes: dict[SlowNode, None] = {}

    def simulate(self, timeline: Iterable[tuple[float, list[SlowInstance], list[SlowInstance]]]) -> None:
        """Play everything to its end."""
        arrivals = deque(self.requests)
        due = deque(timeline)
        while True:
            times = [self.events[0][0] if self.events else math.inf]
            times.append(arrivals[0].arrival + self.host_s if arrivals else math.inf)
            if due and due[0][0] <= min(times):
                self.now, ready, drained = due.popleft()
                self.reconfigure(ready, drained)
                continue
            now = min(times)
            if now == math.inf:
                return
            self.now = now
            while self.events and self.events[0][0] == now:
                _, _, happens, what = heapq.heappop(self.events)
                happens(what)
            while arrivals and arrivals[0].arrival + self.host_s == now:
                request = arrivals.popleft()
                way = smooth_weighted_round_robin(way for way in self.entry[request.model] if way.weight > 0)
                assert way is not None
                self.route(request, way.phase)
            self.settle()

    def reconfigure(self, ready: list[SlowInstance], drained: list[SlowInstance]) -> None:
        pools = set()
        for instance in ready:
            instance.state = "ready"
            place = ("prefill", "decode", "mixed").index(instance.phase), instance.phase
            pools |= {(model, *place) for model in instance.parts or (instance.model,)}
        for instance in drained:
            instance.state = "draining"
            if instance.inside == 0:
                instance.state, instance.gone_at = "gone", self.now
        for model, _, phase in sorted(pools):
            waiting = self.homeless.get((model, phase), deque())
            if waiting and any(self.serving(model, phase)):
                for _ in range(len(waiting)):
                    self.route(waiting.popleft(), phase)
                self.settle()

    def serving(self, model: int, phase: str) -> list[SlowInstance]:
        ready = (i for i in self.instances if (i.phase, i.state) == (phase, "ready"))
        return [i for i in ready if model in (i.parts or (i.model,))]

    def schedule(self, time: float, happens: Callable[[Any], None], what: Any) -> None:
        heapq.heappush(self.events, (time, self.order, happens, what))
        self.order += 1

    # Coordinator

    def route(self, request: SlowRequest, phase: str) -> None:
        candidates = self.serving(request.model, phase)
        if not candidates:
            request.blocked["decode" if phase == "decode" else "prefill"] = "instance"
            self.homeless.setdefault((request.model, phase), deque()).append(request)
            return
        fitting = [
            i
            for i in candidates
            if all(any(n.bytes(i.most(request)) <= n.capacity for n in s) for s in i.stages)
            and self.path(request, i) > 0
        ]
        own = sum(work_of(phase, request.input))
        part = choose(self.policy.routing, [i.parts.get(request.model) or i.whole for i in fitting], own, self.uniform)
        chosen = None if part is None else part.owner
        if chosen is None:
            request.status = "rejected"
            if phase == "decode":
                self.leave(request, request.prefill)
            return
        if phase != "decode":
            request.prefill = chosen
            request.latest -= self.alone_s(request, chosen)
        if phase != "prefill":
            request.decode = chosen
        if chosen.turns is None:
            chosen.queue.append(request)
        else:
            chosen.gate.append(request)
            if chosen.turns.deserted:
                self.next_turn(chosen.turns)
        chosen.work += own
        chosen.taken += 1
        chosen.inside += 1
        self.touched_instances[chosen] = None

    def alone_s(self, request: SlowRequest, instance: SlowInstance) -> float:
        """The prompt alone through the first node of every stage, s."""
        there = request.cached
        computed = request.input - there
        chunk = instance.stages[0][0].chunk or computed
        whole, rest = divmod(computed, chunk)
        total = 0.0
        for nodes in instance.stages:
            total += (
                whole * self.time(nodes[0], 0, 0, 1, chunk, chunk * (there + chunk * (whole - 1) / 2)) if whole else 0.0
            )
            total += self.time(nodes[0], 0, 0, 1, rest, float(rest * (there + whole * chunk))) if rest else 0.0
        return total / 1e3

    def settle(self) -> None:
        while self.touched_instances or self.touched_nodes:
            for instance in list(self.touched_instances):
                self.begin_arrived(instance)
                self.admit(instance)
            self.touched_instances.clear()
            for node in list(self.touched_nodes):
                self.start(node)
            self.touched_nodes.clear()

    # Turns

    def next_turn(self, turns: SlowTurns) -> None:
        turns.current = (turns.current + 1) % len(turns.members)
        self.schedule(self.now + turns.members[turns.current].swap_s, self.weights_there, turns)

    def weights_there(self, turns: SlowTurns) -> None:
        instance = turns.members[turns.current]
        for request in instance.gate:
            request.blocked.setdefault("prefill", "turn")
        instance.queue.extend(instance.gate)
        instance.gate.clear()
        self.touched_instances[instance] = None
        self.look_at_turn(turns)

    def look_at_turn(self, turns: SlowTurns) -> None:
        """Over when only those are left that came too late for it, and there is somebody to have another one."""
        instance = turns.members[turns.current]
        if instance.inside == len(instance.gate) and not turns.deserted:
            self.next_turn(turns)

    # SlowInstance scheduler

    def waiting(self, instance: SlowInstance) -> SlowRequest | None:
        """Who is next: what was preempted, then by the order that serving asks for."""
        if instance.returned:
            return instance.returned[0]
        if not instance.queue:
            return None
        if self.policy.order == "hopeless-last" and instance.phase != "decode":
            return min(instance.queue, key=lambda r: self.now > r.latest)
        if self.policy.order == "shortest-first" and instance.phase != "decode":
            return min(instance.queue, key=lambda r: (r.input, r.number))
        return instance.queue[0]

    def wanted(self, request: SlowRequest, instance: SlowInstance) -> int:
        """Tokens of memory it needs now."""
        most = instance.most(request)
        if instance.phase == "prefill" or self.policy.admission == "reserve":
            return most
        there = request.input + request.generated
        return min(most, there - there % 16 + 16)

    def admit(self, instance: SlowInstance) -> None:
        while (request := self.waiting(instance)) is not None:
            if instance.evicted:
                instance.reason = "memory"
                return
            tokens, computes = self.wanted(request, instance), request.prefilled < request.target
            chosen = []
            for stage in instance.stages:
                memory = [n for n in stage if n.used + n.bytes(tokens) <= n.capacity]
                room = [n for n in memory if self.room(instance, n, computes)]
                if not room:
                    instance.reason = "batch" if memory else "memory"
                    return
                chosen.append(room)
            key = "decode" if instance.phase == "decode" else "prefill"
            since = request.times["first_token"] if key == "decode" else request.arrival + self.host_s
            if since < self.now and (key == "decode" or not request.generated):
                request.blocked.setdefault(key, instance.reason)
            (instance.returned if request in instance.returned else instance.queue).remove(request)
            nodes = [node for room in chosen if (node := smooth_weighted_round_robin(room))]
            request.nodes[key] = nodes
            for node in nodes:
                node.used += node.bytes(tokens)
                node.peak = max(node.peak, node.used)
                node.resident += 1
                node.active += computes and instance.phase != "mixed"
            if instance.phase != "prefill":
                request.held = tokens
            if not computes:
                request.times["decode_admitted"] = self.now
                self.send(request)
                continue
            if instance.phase == "decode":
                request.decoding = True
            elif not request.generated:
                request.times["prefill_admitted"] = self.now
            instance.at_work.append(request)
            nodes[0].prompts.append(request)
            request.ready = self.now
            self.touched_nodes[nodes[0]] = None

    @staticmethod
    def room(instance: SlowInstance, node: SlowNode, computes: bool) -> bool:
        if instance.phase == "decode" and not computes:
            return True
        return (node.resident if instance.phase == "mixed" else node.active) < node.limit

    def grow(self, request: SlowRequest, instance: SlowInstance) -> bool:
        """Memory for the next token, if need be that of whoever joined last; false: its own."""
        tokens = self.wanted(request, instance)
        nodes = request.nodes_of(instance)
        for node in nodes:
            while node.used + node.bytes(tokens) - node.bytes(request.held) > node.capacity:
                victim = [other for other in instance.at_work if node in other.nodes_of(instance)][-1]
                self.release(victim, instance)
                victim.evicted = True
                victim.preempted += 1
                instance.evicted += 1
                if victim is request:
                    return False
        for node in nodes:
            node.used += node.bytes(tokens) - node.bytes(request.held)
            node.peak = max(node.peak, node.used)
        request.held = tokens
        return True

    def send_back(self, request: SlowRequest, instance: SlowInstance) -> None:
        request.evicted = False
        instance.evicted -= 1
        if request.generated == 0:
            del request.times["prefill_admitted"]
            request.blocked.setdefault("prefill", "memory")
        else:
            if request.prefilled == request.target:
                request.away -= self.now
            request.blocked.setdefault("decode", "memory")
        request.wasted += request.prefilled - request.cached
        request.prefilled, request.target = request.cached, request.input + request.generated
        instance.returned.appendleft(request)
        self.touched_instances[instance] = None

    def begin_arrived(self, instance: SlowInstance) -> None:
        while instance.arrived:
            request = instance.arrived[0]
            if any(node.active >= node.limit for node in request.nodes["decode"]):
                return
            if request.times["kv_arrived"] < self.now:
                request.blocked.setdefault("decode", "batch")
            instance.at_work.append(instance.arrived.popleft())
            self.begin_decoding(request, request.nodes["decode"])

    def begin_decoding(self, request: SlowRequest, nodes: list[SlowNode]) -> None:
        if not request.decoding:
            for node in nodes:
                node.active += 1
        request.decoding = True
        nodes[0].decodes.append(request)
        request.ready = self.now
        self.touched_nodes[nodes[0]] = None

    def leave(self, request: SlowRequest, instance: SlowInstance | None) -> None:
        assert instance is not None
        if request.evicted:
            request.evicted = False
            instance.evicted -= 1
        else:
            self.release(request, instance)
        instance.inside -= 1
        instance.work -= work_of(instance.phase, request.input)[1]
        if instance.state == "draining" and instance.inside == 0:
            instance.state, instance.gone_at = "gone", self.now
        if instance.turns is not None:
            self.look_at_turn(instance.turns)
        self.touched_instances[instance] = None

    def release(self, request: SlowRequest, instance: SlowInstance) -> None:
        for node in request.nodes_of(instance):
            node.used -= node.bytes(instance.holds(request))
            node.resident -= 1
            node.active -= instance.phase != "prefill" and request.decoding
        if instance.phase != "prefill":
            request.held, request.decoding = 0, False
        if request in instance.at_work:
            instance.at_work.remove(request)

    # KV transfer

    def path(self, request: SlowRequest, instance: SlowInstance) -> float:
        """Bytes/s between the regions of a request's prefill and a decode instance."""
        if instance.phase != "decode" or request.prefill is None:
            return math.inf
        return self.paths.get((request.model, request.prefill.region, instance.region), math.inf)

    def send(self, request: SlowRequest) -> None:
        done = self.now
        assert request.decode is not None
        path = self.path(request, request.decode)
        ends = [("sent_at", n) for n in request.nodes["prefill"]] + [
            ("received_at", n) for n in request.nodes["decode"]
        ]
        for side, node in ends:
            seconds = node.bytes(request.input - request.cached) / node.kv[3] / min(node.link, path)
            begins = max(self.now, getattr(node, side)) if self.contention else self.now
            if self.contention:
                setattr(node, side, begins + seconds)
            done = max(done, begins + seconds)
        done += self.latency
        assert request.prefill is not None
        assert request.decode is not None
        if request.prefill.region != request.decode.region:
            done += self.region_latency
        self.schedule(done, self.kv_arrives, request)

    def kv_arrives(self, request: SlowRequest) -> None:
        self.leave(request, request.prefill)
        request.times["kv_arrived"] = self.now
        assert request.decode is not None
        request.decode.arrived.append(request)
        self.touched_instances[request.decode] = None

    # Nodes

    def start(self, node: SlowNode) -> None:
        if any(other.running is not None for other in (node, *node.peers)):
            return
        stages = node.owner.stages
        pipeline = all(len(stage) == 1 for stage in stages)
        if node.stage > 0 and pipeline:
            taken = self.pass_on(node)
        elif node.stage > 0 or not self.has_places(node.owner):
            taken = self.choose(node, node.batch, math.inf)
        else:
            node.in_flight = [batch for batch in node.in_flight if batch["left"]]
            if len(node.in_flight) == len(stages):
                return
            if pipeline:
                taken = self.choose(node, node.batch, self.choice(node))
            else:
                # A fair share; where none is at work those that wait were all preempted, and go back.
                taken = self.choose(node, min(node.batch, max(1, -(-node.active // len(stages)))), math.inf)
        if not taken:
            return
        decoding = [request for request in taken if request.prefilled == request.target]
        prompts = [request for request in taken if request.prefilled < request.target]
        decodes, prompt_tokens = len(decoding), sum(request.chunk for request in prompts)
        context = sum(request.input + request.generated for request in decoding)
        pairs = sum(float(request.chunk * request.prefilled) for request in prompts)
        ms = self.time(node, decodes, context, len(prompts), prompt_tokens, pairs)
        seconds = ms * self.factor() / 1e3
        node.running = taken
        node.span = (self.now, self.now + seconds)
        node.busy_s += seconds
        node.batches += 1
        node.decode_tokens += decodes
        node.prompt_tokens += prompt_tokens
        self.schedule(self.now + seconds, self.batch_ends, node)

    def has_places(self, instance: SlowInstance) -> bool:
        """Whether as many micro-batches as stages may be in flight from a first node, or any number."""
        return instance.phase != "prefill" or all(len(stage) == 1 for stage in instance.stages)

    def pass_on(self, node: SlowNode) -> list[SlowRequest]:
        """A micro-batch as it came: who came with the one that has waited longest."""
        waiting = [request for queue in (node.decodes, node.prompts) for request in queue]
        since = min((request.ready for request in waiting), default=0.0)
        for queue in (node.decodes, node.prompts):
            while queue and queue[0].ready == since:
                queue.popleft()
        return [request for request in waiting if request.ready == since]

    def choice(self, node: SlowNode) -> float:
        """When there were both a place in the pipeline and somebody for it."""
        for queue in (node.decodes, node.prompts):
            while queue and queue[0].evicted:
                self.send_back(queue.popleft(), node.owner)
        # Places that nobody has taken yet are there from the beginning.
        place = node.back[0] if len(node.back) + len(node.in_flight) == len(node.owner.stages) else 0.0
        return max(place, min((w[0].ready for w in (node.decodes, node.prompts) if w), default=math.inf))

    def choose(self, node: SlowNode, most: int, chosen: float) -> list[SlowRequest]:
        """A micro-batch of at most so many sequences or whole prompts of those that waited when it was chosen."""
        instance, first = node.owner, node.stage == 0
        taken: list[SlowRequest] = []
        while node.decodes and len(taken) < most and node.decodes[0].ready <= chosen:
            request = node.decodes.popleft()
            if first and request.evicted:
                self.send_back(request, instance)
                continue
            if first:
                request.times.setdefault("decode_start", self.now)
            taken.append(request)
        decodes = len(taken)
        # The step was chosen when the one before it began: who goes on goes on, who came since waits.
        ahead = self.policy.async_scheduling and instance.phase == "mixed" and len(instance.stages) == 1
        ahead = ahead and node.span[1] == self.now
        goes_on = decodes > 0
        while node.prompts and node.prompts[0].ready <= chosen:
            request, prompts = node.prompts[0], taken[decodes:]
            if first and request.evicted:
                self.send_back(node.prompts.popleft(), instance)
                continue
            own = request.target - request.prefilled
            tokens = sum(other.chunk for other in prompts)
            if node.chunk == 0:
                if len(prompts) == most:
                    break
                pairs = sum(float(other.chunk * other.cached) for other in prompts) + own * request.cached
                if prompts and self.time(node, 0, 0, len(prompts) + 1, tokens + own, pairs) > node.budget_ms:
                    break
                request.chunk = own
            elif not first:
                if prompts and decodes + tokens + request.chunk > node.chunk:
                    break
            else:
                new = request.prefilled == request.cached
                if ahead and new and goes_on and request.times["prefill_admitted"] > node.span[0]:
                    break
                goes_on = goes_on or not new
                if decodes + tokens >= node.chunk:
                    break
                request.chunk = min(own, node.chunk - decodes - tokens)
            taken.append(node.prompts.popleft())
        if taken and first:
            if node.back and len(node.back) + len(node.in_flight) == len(instance.stages):
                node.back.popleft()
            if not node.in_flight or self.has_places(instance):
                node.in_flight.append({"left": 0})
            for request in taken:
                request.batch = node.in_flight[-1]
                request.batch["left"] += 1
        return taken

    def batch_ends(self, node: SlowNode) -> None:
        instance, taken = node.owner, node.running or []
        node.running = None
        self.touched_nodes |= dict.fromkeys(node.peers)
        growing = []
        for request in taken:
            route = request.nodes_of(instance)
            prompt = request.prefilled < request.target
            if node.stage + 1 < len(instance.stages):
                following = route[node.stage + 1]
                request.ready = self.now
                (following.prompts if prompt else following.decodes).append(request)
                self.touched_nodes[following] = None
                continue
            request.batch["left"] -= 1
            if request.batch["left"] == 0:
                route[0].back.append(self.now)
                self.touched_nodes[route[0]] = None
            if prompt:
                request.prefilled += request.chunk
                if request.prefilled < request.target:
                    if request.evicted:
                        self.send_back(request, instance)
                    else:
                        route[0].prompts.appendleft(request)
                        request.ready = self.now
                        self.touched_nodes[route[0]] = None
                    continue
                if instance.phase == "prefill":
                    for other in route:
                        other.active -= 1
                    self.touched_instances[instance] = None
                if request.generated:
                    request.away += self.now
                else:
                    request.times["first_token"] = self.now
                    instance.work -= work_of(instance.phase, request.input)[0]
                    if instance.phase == "mixed" and request.output > 1:
                        request.times["decode_admitted"] = self.now
            request.generated += 1
            if request.generated == request.output:
                request.times["finish"] = self.now
                request.status = "finished"
                self.leave(request, instance)
            elif instance.phase == "prefill":
                self.route(request, "decode")
            elif request.evicted:
                self.send_back(request, instance)
            elif self.wanted(request, instance) > request.held:
                growing.append(request)
            else:
                self.begin_decoding(request, route)
        for request in growing:
            if request.evicted or not self.grow(request, instance):
                self.send_back(request, instance)
            else:
                self.begin_decoding(request, request.nodes_of(instance))
        self.touched_nodes[node] = None

    # Times

    def time(
        self, node: SlowNode, decodes: int, context: int, prompts: int, prompt_tokens: int, pairs: float = 0.0
    ) -> float:
        """Time of one micro-batch, ms."""
        tokens = decodes + prompt_tokens
        if not prompts:
            layer, other = self.look_up(node.tables[1], decodes, context / decodes)
        elif node.owner.phase == "prefill":
            passes = min(prompts, len(self.tables[node.tables[0]][1]))
            layer, other = self.look_up(node.tables[0], passes, prompt_tokens / passes)
            # Prompts attend to what caches hold of them.
            layer += node.pair_ms * pairs
        else:
            # One pass over all tokens, and what the contexts of the decoding sequences add to a decode step.
            layer, other = self.look_up(node.tables[0], 1, tokens)
            if tokens < 64 and tokens <= len(self.tables[node.tables[1]][1]):
                layer = min(layer, self.look_up(node.tables[1], tokens, 1)[0])
            # Chunks attend to what earlier passes computed of their prompts.
            layer += node.pair_ms * pairs
            if decodes:
                full, head = self.look_up(node.tables[1], decodes, context / decodes)
                layer += full - self.look_up(node.tables[1], decodes, 1)[0]
                other = max(other, head)
                layer *= node.mixed_factor
        ms = node.layers * layer + tokens * node.token_ms + node.hop_ms
        return ms + other if node.pays_head else ms

    def look_up(self, table: int, batch: int, tokens: float) -> tuple[float, float]:
        grid, values = self.tables[table]
        low = min(max(bisect.bisect_right(grid, tokens) - 1, 0), len(grid) - 2)
        share = (tokens - grid[low]) / (grid[low + 1] - grid[low])
        row = values[min(batch, len(values)) - 1]
        left, right = row[low], row[low + 1]
        layer, other = ((1.0 - share) * a + share * b for a, b in zip(left, right, strict=True))
        return layer, other

    def uniform(self) -> float:
        self.random = (self.random + 0x9E3779B97F4A7C15) & MASK
        z = self.random
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return float((((z ^ (z >> 31)) >> 11) + 0.5) / 2**53)

    def factor(self) -> float:
        if self.noise == 0:
            return 1.0
        radius = math.sqrt(-2.0 * math.log(self.uniform()))
        normal = radius * math.cos(2.0 * math.pi * self.uniform())
        variance = math.log1p(self.noise * self.noise)
        return math.exp(math.sqrt(variance) * normal - variance / 2.0)
