"""Which instance gets a request: the router's and the slow reference's choice; the simulator's compiled twin is equal.

=======================  ====================================================================================
routing                  rule
=======================  ====================================================================================
``weighted-round-robin`` blind: every instance in proportion to its planned rate, spread evenly
``least-work``           least (work there + the request's own) / planned rate; of equal ones that with fewest requests so
                         far / planned rate, then the first
``power-of-two``         two instances are drawn in proportion to their planned rates; the one with less work,
                         measured the same way, the first drawn of equal ones
=======================  ====================================================================================

Work is what a router can know, in prompt tokens (:func:`work_of`): a prompt counts whole until its first token is made, and
a sequence that is answered counts a little for its cache and its answer, whose length is known to nobody.

Where requests come in classes, those of one class are shared out by the planned rates for that class alone; an instance
without one gets none of them. Work is compared with the planned rate of all that an instance does.

Requests that share a session or the beginning of a prompt are better off where its KV cache is (:func:`choose_by_key`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol, TypeVar, get_args

#: How far beyond its share of the work a key may fill an instance before its requests go on to the next one.
MOST_OF_SHARE = 1.25

Routing = Literal["weighted-round-robin", "least-work", "power-of-two"]
ROUTINGS: tuple[Routing, ...] = get_args(Routing)


#: What a sequence counts as where its answer is made, in prompt tokens: a share of its prompt, and so many for the answer.
#: Both are whole parts of two, so that sums of them are exact.
ANSWER_SHARE, ANSWER_TOKENS = 0.125, 128.0


def work_of(phase: str, prompt_tokens: float) -> tuple[float, float]:
    """Work that a request brings to an instance of a phase: (until its first token is made, until it leaves)."""
    answer = 0.0 if phase == "prefill" else ANSWER_SHARE * prompt_tokens + ANSWER_TOKENS
    return 0.0 if phase == "decode" else float(prompt_tokens), answer


class Weighted(Protocol):
    """Something that can be picked.

    Attributes:
        weight: How often, relative to the others: its planned rate.
        credit: State of the weighted round robin; 0 at first.
    """

    @property
    def weight(self) -> float: ...

    credit: float


class Loaded(Weighted, Protocol):
    """Something that can be picked by its work.

    Attributes:
        work: What it has to do, in the unit of a request's own work.
    """

    @property
    def work(self) -> float: ...


class Rated(Loaded, Protocol):
    """Something that can be picked for some of what it does.

    Attributes:
        rate: Planned rate of all that it does; its weight, but where that is for one class of requests only.
        taken: Requests that it got so far. Among idle ones of one rate they decide, lest the first get every request.
    """

    @property
    def rate(self) -> float: ...

    @property
    def taken(self) -> int: ...


class Named(Loaded, Protocol):
    """Something that can be picked by a key.

    Attributes:
        name: The same wherever and whenever it is picked.
    """

    @property
    def name(self) -> str: ...


Item = TypeVar("Item", bound=Weighted)
Home = TypeVar("Home", bound=Named)
Busy = TypeVar("Busy", bound=Rated)


def choose(routing: Routing, items: Sequence[Busy], own: float, uniform: Callable[[], float]) -> Busy | None:
    """Pick one of ``items`` for a request; ``None`` when there are none.

    Args:
        routing: A rule of the table above.
        items: Who could take it.
        own: Work that the request brings.
        uniform: Random numbers inside (0, 1); asked for power of two alone, and only where there is a choice.
    """
    if routing == "weighted-round-robin" or not items:
        return smooth_weighted_round_robin(items)
    if routing == "power-of-two":
        first = _drawn(items, uniform)
        rest = [item for item in items if item is not first]
        items = [first, _drawn(rest, uniform)] if rest else [first]
        return min(items, key=lambda item: (item.work + own) / item.rate)
    return min(items, key=lambda item: ((item.work + own) / item.rate, item.taken / item.rate))


def choose_by_key(items: Sequence[Home], key: str, own: float) -> Home | None:
    """Pick the same one of ``items`` for the same key while its load allows; ``None`` when there are none.

    Every key has an order of all items, in which each stands first as often as its weight says (weighted rendezvous
    hashing). The first is taken whose work is at most ``MOST_OF_SHARE`` times its share of all work, and one request (as
    in consistent hashing with bounded loads, Mirrokni, Thorup and Zadimoghaddam 2018). No state is kept: several routers
    agree, and of an item that goes only its own keys move.
    """
    if not items:
        return None
    load = (sum(item.work for item in items) + own) / sum(item.weight for item in items)
    # There is always one: whoever has least work for its weight.
    fitting = [item for item in items if item.work <= MOST_OF_SHARE * load * item.weight + own]
    return min(fitting, key=lambda item: -math.log(_fraction(f"{key}\n{item.name}")) / item.weight)


def _fraction(text: str) -> float:
    """A number inside (0, 1) that looks random and depends on the text alone."""
    return (int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=6).digest()) + 0.5) / 2**48


def _drawn(items: Sequence[Item], uniform: Callable[[], float]) -> Item:
    """One of ``items``, in proportion to the weights."""
    total = 0.0
    for item in items:
        total += item.weight
    point = uniform() * total if len(items) > 1 else 0.0
    for item in items:
        point -= item.weight
        if point < 0:
            return item
    return items[-1]


def smooth_weighted_round_robin(items: Iterable[Item]) -> Item | None:
    """Pick the next of ``items`` and move the credits on; ``None`` when there are none.

    Every pick gives each item its weight as credit and takes the sum of weights from the one picked, the first with the
    largest credit. Credits sum to zero, so while the set stays the same, picks are never further from their shares than
    the number of items, and they are spread evenly: weights 5, 1, 1 give a a b a c a a.
    """
    best: Item | None = None
    total = 0.0
    for item in items:
        item.credit += item.weight
        total += item.weight
        if best is None or item.credit > best.credit:
            best = item
    if best is not None:
        best.credit -= total
    return best
