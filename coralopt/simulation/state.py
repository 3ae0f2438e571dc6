"""The arrays a running simulation consists of: requests, instances, nodes, lists, events.

They are structured arrays, because compiled code reads and writes them and Python may look at any of them between two
calls. Lists (queues, batches) are intrusive: a request is in at most one list at a time, and ``next`` links it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coralopt.types import Floats, Ints

#: Phases of instances and pools; a pool is one model phase and has the index ``3 * model + phase``.
PREFILL, DECODE, MIXED = 0, 1, 2
PHASES = ("prefill", "decode", "mixed")
#: States of an instance.
STARTING, READY, DRAINING, GONE = 0, 1, 2, 3
#: Fate of a request.
WAITING, FINISHED, REJECTED = 0, 1, 2
#: Why a request had to wait before a phase let it in.
NOT_BLOCKED, NO_MEMORY, BATCH_FULL, NO_INSTANCE, NO_TURN = 0, 1, 2, 3, 4
#: How a request's instance is chosen, which waiting prompt an instance takes first, and what KV memory it must find:
#: positions of the words in :class:`coralopt.scenario.facts.serving.Serving`, of routing in
#: :data:`coralopt.routing.ROUTINGS`.
ROUND_ROBIN, LEAST_WORK, POWER_OF_TWO = 0, 1, 2
ORDERS = ("fifo", "hopeless-last", "shortest-first")
FIFO, HOPELESS_LAST, SHORTEST_FIRST = 0, 1, 2
ADMISSIONS = ("reserve", "preempt")
RESERVE, PREEMPT = 0, 1
#: Tokens by which a growing KV cache grows: vLLM's block.
BLOCK = 16
#: Kinds of events.
BATCH_DONE, KV_ARRIVED, SWAPPED = 0, 1, 2
#: End of a list.
NIL = -1

REQUEST = np.dtype(
    [
        # Times in seconds, NaN until they happen.
        ("arrival", "f8"),
        ("prefill_admitted", "f8"),
        ("first_token", "f8"),
        ("decode_admitted", "f8"),
        ("kv_arrived", "f8"),
        ("decode_start", "f8"),
        ("finish", "f8"),
        # The prompt must begin until then to meet its time to first token (once routed; before, the SLO's end); and
        # time between a preemption and being back at decoding.
        ("latest", "f8"),
        ("away", "f8"),
        # Since when it has waited for its next round at the first node.
        ("ready", "f8"),
        # Tokens of passes that a preemption made worthless, and how often memory was taken away.
        ("wasted", "i4"),
        ("preempted", "i4"),
        # Tokens at the beginning of the prompt whose KV cache is there already: neither computed nor sent.
        ("cached", "i4"),
        # In a heap of waiting prompts: the other child. At work: who joined its instance before and after it.
        ("left", "i4"),
        ("older", "i4"),
        ("newer", "i4"),
        # Instances; for mixed both are the same.
        ("prefill_instance", "i4"),
        ("decode_instance", "i4"),
        # What every round reads and writes lies together. Tokens done so far, tokens that its pass through the prompt must
        # do (more than the prompt after a preemption), tokens of the round under way.
        ("input", "i4"),
        ("output", "i4"),
        ("prefilled", "i4"),
        ("generated", "i4"),
        ("target", "i4"),
        ("chunk", "i4"),
        # KV tokens held at the decode or mixed instance.
        ("held", "i4"),
        ("next", "i4"),
        # Which of its first node's micro-batches in flight it is part of.
        ("slot", "i4"),
        ("model", "i2"),
        # Phase of the pool that it goes to first.
        ("way", "u1"),
        ("status", "u1"),
        ("blocked_prefill", "u1"),
        ("blocked_decode", "u1"),
        # Whether it counts as a decoding sequence of its nodes; whether its memory was taken away and its turn, at which
        # it goes back to the queue, is still to come.
        ("decoding", "u1"),
        ("evicted", "u1"),
    ],
    align=True,
)

INSTANCE = np.dtype(
    [
        ("pool", "i8"),
        ("phase", "i8"),
        ("region", "i8"),
        ("stages", "i8"),
        ("state", "i8"),
        # Tokens/s that it is planned to serve.
        ("weight", "f8"),
        # Requests routed here that have not left, the integral of that number over time (s), and its clock.
        ("inside", "i8"),
        ("area", "f8"),
        ("area_at", "f8"),
        ("routed", "i8"),
        # Work of those inside, as :mod:`coralopt.routing` counts it; who joined last; how many are evicted and not back in
        # the queue.
        ("work", "f8"),
        ("youngest", "i8"),
        ("evicted", "i8"),
        # Why the scheduler last let a request wait; it is why those behind it waited, too.
        ("reason", "i8"),
        ("started_at", "f8"),
        ("ready_at", "f8"),
        ("gone_at", "f8"),
        ("price_usd_h", "f8"),
        ("touched", "i8"),
    ],
    align=True,
)

NODE = np.dtype(
    [
        ("instance", "i8"),
        ("stage", "i8"),
        ("layers", "i8"),
        ("weight", "f8"),
        ("credit", "f8"),
        # KV memory, bytes.
        ("capacity", "i8"),
        ("used", "i8"),
        ("peak", "i8"),
        # KV bytes a token over all layers held: everywhere, and inside the window only.
        ("kv_full", "f8"),
        ("kv_window", "f8"),
        ("window", "f8"),
        ("kv_copies", "f8"),
        # Sequences (prompts) a micro-batch; most of them at work (mixed: resident); tokens a micro-batch, 0: no limit, and
        # prompts are computed whole, at most ``batch`` of them and within ``budget_ms``.
        ("batch", "i8"),
        ("limit", "i8"),
        ("chunk", "i8"),
        ("budget_ms", "f8"),
        # Stage time beyond the layers.
        ("pays_head", "i8"),
        ("token_ms", "f8"),
        ("hop_ms", "f8"),
        ("prefill_table", "i8"),
        ("decode_table", "i8"),
        # Measured mixed steps over what the tables make of them; attention of a token to one of its prompt's earlier
        # passes, ms of a layer.
        ("mixed_factor", "f8"),
        ("pair_ms", "f8"),
        # Sequences that hold memory, and those at work: prompts before their first token, sequences that decode.
        ("resident", "i8"),
        ("active", "i8"),
        ("busy", "i8"),
        # Begin and end of its last micro-batch.
        ("began_at", "f8"),
        ("free_at", "f8"),
        # Link for KV transfers: bytes/s, and when it has sent and received all it must.
        ("link", "f8"),
        # How many nodes further the next one of those stands that share its GPUs, around in a ring; 0: alone.
        ("peer", "i8"),
        # Seconds until its weights are there and those before it gone, 0: they stay; whether the turn is its own.
        ("swap_s", "f8"),
        ("turn", "i8"),
        ("sent_at", "f8"),
        ("received_at", "f8"),
        # Totals.
        ("busy_s", "f8"),
        ("batches", "i8"),
        ("prompt_tokens", "i8"),
        ("decode_tokens", "i8"),
        ("touched", "i8"),
    ],
    align=True,
)

#: Scalars of the run that compiled code changes.
CLOCK = np.dtype(
    [
        ("now", "f8"),
        ("next_arrival", "i8"),
        # Events in the heap, events ever put there, and events handled.
        ("events", "i8"),
        ("pushed", "i8"),
        ("handled", "i8"),
        ("random", "u8"),
        ("noise", "f8"),
        ("touched_instances", "i8"),
        ("touched_nodes", "i8"),
        # KV transfers: seconds of latency, of another region, and whether links are shared.
        ("kv_latency", "f8"),
        ("kv_region_latency", "f8"),
        ("kv_contention", "i8"),
        # How engines and the router work; seconds from a request's arrival until the coordinator has it.
        ("routing", "i8"),
        ("order", "i8"),
        ("admission", "i8"),
        ("host_request", "f8"),
        # Whether mixed instances of one stage choose a step while the one before it runs.
        ("async_scheduling", "i8"),
    ],
    align=True,
)

Records = npt.NDArray[np.void]
#: Columns of a table by name. They are of several types, and who takes one knows which; so their type is not said.
Columns = dict[str, npt.NDArray[Any]]
#: The same where names are columns, too: lists of texts beside arrays.
Table = dict[str, Any]


def requests_of(
    arrival_s: Floats, input_tokens: Ints, output_tokens: Ints, model: Ints, prefix_hit: Floats | float = 0.0
) -> Records:
    """Request records of a trace, nothing of them done yet but what caches hold: that share of each prompt's tokens."""
    requests = np.zeros(len(arrival_s), dtype=REQUEST)
    for name in ("prefill_admitted", "first_token", "decode_admitted", "kv_arrived", "decode_start", "finish"):
        requests[name] = np.nan
    for name in ("prefill_instance", "decode_instance", "next", "left", "older", "newer"):
        requests[name] = NIL
    requests["arrival"], requests["model"] = arrival_s, model
    requests["input"], requests["output"], requests["target"] = input_tokens, output_tokens, input_tokens
    requests["cached"] = requests["prefilled"] = np.floor(input_tokens * prefix_hit).astype(np.int64)
    requests["latest"] = np.inf
    return requests


class State(NamedTuple):
    """Everything a simulation knows at one moment; compiled code changes it in place.

    N requests, I instances, K nodes, P = 3 x models pools, W most stages of an instance.
    """

    #: (N,) of :data:`REQUEST`, by arrival.
    requests: Records
    #: int32 (N, 2 W): a request's node in each stage, of its prefill or mixed instance, then of its decode instance.
    routes: npt.NDArray[np.int32]
    #: (I,) of :data:`INSTANCE` and int64 (I, W + 1): first node of each stage; nodes of a stage have successive numbers.
    instances: Records
    stage_first: Ints
    #: (K,) of :data:`NODE`.
    nodes: Records
    #: int64 (P, >= I): instances that take requests, first ``member_count`` of each row; (P,).
    members: Ints
    member_count: Ints
    #: float64 (P, >= I) each, weighted round robin: tokens/s that an instance is planned to serve of a pool's requests, and
    #: its running credit there. An instance is in several pools where it serves several classes of requests.
    weights: Floats
    credits: Floats
    #: float64 (models, 3): shares of a model's new requests that go to the pool of each phase, and the running credits
    #: of the weighted round robin between them.
    entry: Floats
    entry_credit: Floats
    #: float64 (models, regions, regions): bytes/s at which one node sends KV caches from region to region, infinite where
    #: only its link counts, 0 where they may not go. No regions where all may go everywhere.
    paths: Floats
    #: int64 (., 3) each: head, tail and length of a list. By pool: requests that found no instance. By instance: requests
    #: routed there that wait for its next turn; those not taken in yet (shortest first: root and size of a heap, see
    #: ``put_shortest``), those of them that are too late, those that were preempted; sequences whose KV cache is there
    #: and that may not decode yet. By node: decode steps and prompts that wait, and the micro-batch under way.
    pool_list: Ints
    gate_list: Ints
    instance_list: Ints
    late_list: Ints
    returned_list: Ints
    arrived_list: Ints
    decode_list: Ints
    prompt_list: Ints
    batch_list: Ints
    #: int64 (K, W): sequences of each micro-batch in flight that have not come back to this first node.
    slots: Ints
    #: float64 (K, W): when the last micro-batch of each slot was back.
    freed_at: Floats
    #: Stage times, see :class:`coralopt.simulation.times.TimeTables`.
    tables: Records
    tokens: Floats
    values: Floats
    #: Binary heap of events: times, and (order of creation, kind, node or request).
    heap_time: Floats
    heap_what: Ints
    #: Instances and nodes to look at once everything of this instant has happened.
    touched_instances: Ints
    touched_nodes: Ints
    #: (1,) of :data:`CLOCK`.
    clock: Records


def empty_lists(count: int) -> Ints:
    """``count`` empty lists."""
    lists = np.full((count, 3), NIL, dtype=np.int64)
    lists[:, 2] = 0
    return lists
