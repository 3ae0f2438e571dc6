"""Turns of models whose weights come and go on the same GPUs, compiled.

docs/concepts/simulator.md states every rule in words; tests hold this code equal to a second, slow writing of them.
"""

from __future__ import annotations

from coralopt.simulation.compiled import compiled
from coralopt.simulation.kernels import touch_instance
from coralopt.simulation.queues import append, pop, push_event, put_shortest
from coralopt.simulation.state import NO_TURN, NOT_BLOCKED, SHORTEST_FIRST, SWAPPED, State


@compiled
def first_node(state: State, instance: int) -> int:
    """The node that an instance begins with; the only one where weights come and go."""
    return int(state.stage_first[instance, 0])


@compiled
def takes_turns(state: State, instance: int) -> bool:
    """Whether weights come and go on the nodes of an instance; where it has none, nothing does."""
    return bool(state.instances[instance].stages > 0 and state.nodes[first_node(state, instance)].swap_s > 0)


@compiled
def nobody_inside(state: State, k: int) -> bool:
    """Whether no model on these GPUs has a request."""
    other = k
    while True:
        if state.instances[state.nodes[other].instance].inside > 0:
            return False
        other += state.nodes[other].peer
        if other == k:
            return True


@compiled
def pass_turn(state: State, k: int) -> None:
    """The turn goes from one node to the next: weights begin to go and to come."""
    following = k + state.nodes[k].peer
    state.nodes[k].turn = 0
    node = state.nodes[following]
    node.turn = 1
    push_event(state, state.clock[0].now + node.swap_s, SWAPPED, following)


@compiled
def wait_at_gate(state: State, request: int, instance: int) -> None:
    """A request waits for the next turn of its model; the first one on GPUs where nobody was sets the turns going."""
    k = first_node(state, instance)
    append(state.requests, state.gate_list, instance, request)
    if nobody_inside(state, k):
        while state.nodes[k].turn == 0:
            k += state.nodes[k].peer
        pass_turn(state, k)


@compiled
def end_turn(state: State, instance: int) -> None:
    """Pass the turn on once all that it began with have left; turns stand still while nobody is there."""
    k = first_node(state, instance)
    if state.instances[instance].inside == state.gate_list[instance, 2] and not nobody_inside(state, k):
        pass_turn(state, k)


@compiled
def open_gate(state: State, k: int) -> None:
    """The weights are there: all that wait now are this turn's requests, those that come later the next one's."""
    instance = state.nodes[k].instance
    for _ in range(state.gate_list[instance, 2]):
        request = pop(state.requests, state.gate_list, instance)
        if state.requests[request].blocked_prefill == NOT_BLOCKED:
            state.requests[request].blocked_prefill = NO_TURN
        if state.clock[0].order == SHORTEST_FIRST:
            put_shortest(state.requests, state.instance_list, instance, request)
        else:
            append(state.requests, state.instance_list, instance, request)
    touch_instance(state, instance)
    end_turn(state, instance)
