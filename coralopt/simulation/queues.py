"""Lists of requests, heaps of prompts by their length, and the heap of events, compiled."""

from __future__ import annotations

from coralopt.simulation.compiled import Array, compiled
from coralopt.simulation.state import NIL, State


@compiled
def append(requests: Array, lists: Array, row: int, request: int) -> None:
    """Put a request at the end of a list."""
    requests[request].next = NIL
    if lists[row, 2] == 0:
        lists[row, 0] = request
    else:
        requests[lists[row, 1]].next = request
    lists[row, 1] = request
    lists[row, 2] += 1


@compiled
def put_first(requests: Array, lists: Array, row: int, request: int) -> None:
    """Put a request at the head of a list."""
    requests[request].next = lists[row, 0]
    if lists[row, 2] == 0:
        lists[row, 1] = request
    lists[row, 0] = request
    lists[row, 2] += 1


@compiled
def pop(requests: Array, lists: Array, row: int) -> int:
    """Take the first request of a list that is not empty."""
    request = lists[row, 0]
    lists[row, 0] = requests[request].next
    lists[row, 2] -= 1
    if lists[row, 2] == 0:
        lists[row, 0] = NIL
        lists[row, 1] = NIL
    return int(request)


@compiled
def meld(requests: Array, first: int, second: int) -> int:
    """The root of one heap out of two: a skew heap, shortest prompt first, then by arrival; ``next`` is the right child."""
    root, above = NIL, NIL
    while first != NIL and second != NIL:
        if (requests[second].input, second) < (requests[first].input, first):
            first, second = second, first
        if above == NIL:
            root = first
        else:
            requests[above].left = first
        above = first
        right = requests[first].next
        # Children change places, so that no branch grows long; the new left one is what is melded next.
        requests[first].next = requests[first].left
        first = right
    rest = first if first != NIL else second
    if above == NIL:
        return int(rest)
    requests[above].left = rest
    return int(root)


@compiled
def put_shortest(requests: Array, lists: Array, row: int, request: int) -> None:
    """Put a request into a list that is a heap."""
    requests[request].next = NIL
    requests[request].left = NIL
    lists[row, 0] = meld(requests, lists[row, 0], request)
    lists[row, 2] += 1


@compiled
def pop_shortest(requests: Array, lists: Array, row: int) -> int:
    """Take the shortest prompt out of a heap that is not empty."""
    request = lists[row, 0]
    lists[row, 0] = meld(requests, requests[request].left, requests[request].next)
    lists[row, 2] -= 1
    return int(request)


@compiled
def put_event(state: State, at: int, time: float, order: int, kind: int, what: int) -> None:
    """Write an event into a place of the heap."""
    state.heap_time[at] = time
    state.heap_what[at, 0] = order
    state.heap_what[at, 1] = kind
    state.heap_what[at, 2] = what


@compiled
def move_event(state: State, source: int, target: int) -> None:
    """Copy an event to another place of the heap."""
    what = state.heap_what[source]
    put_event(state, target, state.heap_time[source], what[0], what[1], what[2])


@compiled
def push_event(state: State, time: float, kind: int, what: int) -> None:
    """Add an event; equal times keep the order in which they were added."""
    clock = state.clock[0]
    at = clock.events
    clock.events = at + 1
    order = clock.pushed
    clock.pushed = order + 1
    while at > 0:
        parent = (at - 1) >> 1
        if state.heap_time[parent] <= time:
            break
        move_event(state, parent, at)
        at = parent
    put_event(state, at, time, order, kind, what)


@compiled
def drop_event(state: State) -> None:
    """Remove the first event."""
    clock = state.clock[0]
    count = clock.events - 1
    clock.events = count
    time = state.heap_time[count]
    order, kind, what = state.heap_what[count, 0], state.heap_what[count, 1], state.heap_what[count, 2]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        right = child + 1
        if right < count and (
            state.heap_time[right] < state.heap_time[child]
            or (
                state.heap_time[right] == state.heap_time[child]
                and state.heap_what[right, 0] < state.heap_what[child, 0]
            )
        ):
            child = right
        if time < state.heap_time[child] or (time == state.heap_time[child] and order < state.heap_what[child, 0]):
            break
        move_event(state, child, at)
        at = child
    put_event(state, at, time, order, kind, what)
