"""Who computes what and in which order: pure functions from a plan to routes and turns.

All processes read the same list of turns, so that every send has its receive without a coordinator in between. The order
(step, instance, group) is total, sends do not block, and each turn needs only earlier ones: there is no deadlock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from coralopt.errors import LaunchError
from coralopt.plan import Plan, PlannedInstance
from coralopt.plan.parts import share_of
from coralopt.routing import smooth_weighted_round_robin
from coralopt.scenario.facts.phases import Phase


@dataclass(frozen=True)
class ReferenceNode:
    """One process: a node of a stage of one serving instance.

    Attributes:
        rank: Number of the process.
        instance: Name of the serving instance, with the copy's number.
        phase: Phase of the instance.
        configuration: What it is in the plan; here it is one device.
        stage: Stage, from 0.
        stages: Stages of the instance.
        first_layer: First decoder layer held.
        last_layer: Last decoder layer held, inclusive.
        batch: Most sequences in one of its micro-batches.
        planned_share: Share of the stage's requests that the plan gives it.
    """

    rank: int
    instance: str
    phase: Phase
    configuration: str
    stage: int
    stages: int
    first_layer: int
    last_layer: int
    batch: int
    planned_share: float

    @property
    def layers(self) -> range:
        return range(self.first_layer, self.last_layer + 1)


@dataclass(frozen=True)
class Turn:
    """One micro-batch on its way through all stages; a node works on the requests that were routed to it.

    Attributes:
        step: 0: the prompts. n: the n-th token after the first.
        requests: Numbers of the requests.
    """

    step: int
    requests: tuple[int, ...]


@dataclass(frozen=True)
class Assignment:
    """The whole schedule of one model.

    Attributes:
        nodes: All processes, by rank.
        prefill: For every request the rank of each stage that computes its prompt.
        decode: For every request the rank of each stage that computes its other tokens.
        turns: In the order in which every node meets them.
    """

    nodes: tuple[ReferenceNode, ...]
    prefill: tuple[tuple[int, ...], ...]
    decode: tuple[tuple[int, ...], ...]
    turns: tuple[Turn, ...]

    def to_document(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


@dataclass
class _Candidate:
    """A node or an instance in a weighted round robin."""

    number: int
    weight: float
    credit: float = 0.0


def assign(plan: Plan, model: str, requests: int, new_tokens: int, *, copies: bool = False) -> Assignment:
    """Route ``requests`` requests of ``model`` and put their micro-batches in order.

    Requests go to instances by weighted round robin over T(tau), and inside an instance to one node of every stage by
    weighted round robin over T_j(g) (paper, section 5.1).

    Args:
        plan: The plan.
        model: Model name.
        requests: Number of requests.
        new_tokens: Tokens that each is answered with.
        copies: Run every instance as often as the plan deploys it; else once.

    Raises:
        LaunchError: The plan does not serve the model, or only one of its two phases.
    """
    instances = [item for item in plan.instances if item.model == model]
    phases = {item.phase for item in instances}
    if not (phases == {"mixed"} or {"prefill", "decode"} <= phases):
        names = ", ".join(sorted({item.model for item in plan.instances}))
        those = f"only {', '.join(sorted(phases))} instances" if phases else "no instance"
        raise LaunchError(f"the plan has {those} of model {model!r}; it serves {names}")
    nodes: list[ReferenceNode] = []
    weights: dict[int, float] = {}
    members: list[tuple[PlannedInstance, list[list[int]]]] = []
    numbers: Counter[str] = Counter()
    for item in instances:
        for _ in range(item.count if copies else 1):
            members.append((item, _nodes(item, f"{item.name}-{numbers[item.name]}", nodes, weights)))
            numbers[item.name] += 1
    mixed = share_of(plan.modes, f"{model}/mixed") if {"prefill", "mixed"} <= phases else float("mixed" in phases)
    ways = [way for way in (_Candidate(0, 1.0 - mixed), _Candidate(1, mixed)) if way.weight > 0]
    is_mixed = [way.number for _ in range(requests) if (way := smooth_weighted_round_robin(ways))]
    whole = iter(_routes(members, "mixed", weights, sum(is_mixed)))
    first, last = (iter(_routes(members, half, weights, requests - sum(is_mixed))) for half in ("prefill", "decode"))
    prefill = tuple(next(whole) if way else next(first) for way in is_mixed)
    decode = tuple(route if way else next(last) for way, route in zip(is_mixed, prefill, strict=True))
    turns = [Turn(0, group) for group in _groups(prefill, nodes)]
    decoding = _groups(decode, nodes)
    turns += [Turn(step, group) for step in range(1, new_tokens) for group in decoding]
    return Assignment(tuple(nodes), prefill, decode, tuple(turns))


def _nodes(item: PlannedInstance, name: str, nodes: list[ReferenceNode], weights: dict[int, float]) -> list[list[int]]:
    """Append the nodes of one copy; ranks by stage."""
    ranks: list[list[int]] = []
    for stage, planned in enumerate(item.stages):
        ranks.append([])
        for kind in planned.nodes:
            for _ in range(kind.count):
                rank = len(nodes)
                ranks[-1].append(rank)
                weights[rank] = kind.tokens_s
                nodes.append(
                    ReferenceNode(
                        rank=rank,
                        instance=name,
                        phase=item.phase,
                        configuration=kind.configuration,
                        stage=stage,
                        stages=len(item.stages),
                        first_layer=planned.first_layer,
                        last_layer=planned.last_layer,
                        batch=kind.batch,
                        planned_share=kind.traffic_share,
                    )
                )
    return ranks


def _routes(
    members: Sequence[tuple[PlannedInstance, list[list[int]]]], phase: str, weights: dict[int, float], requests: int
) -> tuple[tuple[int, ...], ...]:
    those = [(item, stages) for item, stages in members if item.phase == phase]
    outer = [_Candidate(number, item.tokens_s) for number, (item, _) in enumerate(those)]
    inner = [[[_Candidate(rank, weights[rank]) for rank in stage] for stage in stages] for _, stages in those]
    routes = []
    for _ in range(requests):
        instance = smooth_weighted_round_robin(outer)
        assert instance is not None
        picked = [smooth_weighted_round_robin(stage) for stage in inner[instance.number]]
        routes.append(tuple(node.number for node in picked if node is not None))
    return tuple(routes)


def _groups(routes: Sequence[tuple[int, ...]], nodes: Sequence[ReferenceNode]) -> list[tuple[int, ...]]:
    """Micro-batches: requests of one instance, in order, as many as every node on their way takes at once."""
    groups: list[tuple[int, ...]] = []
    by_instance: dict[str, list[int]] = {}
    for request, route in enumerate(routes):
        by_instance.setdefault(nodes[route[0]].instance, []).append(request)
    for members in by_instance.values():
        group: list[int] = []
        load: dict[int, int] = {}
        for request in members:
            if any(load.get(rank, 0) >= nodes[rank].batch for rank in routes[request]):
                groups.append(tuple(group))
                group, load = [], {}
            group.append(request)
            for rank in routes[request]:
                load[rank] = load.get(rank, 0) + 1
        groups.append(tuple(group))
    return groups
