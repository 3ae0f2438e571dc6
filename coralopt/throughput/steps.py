"""Whole steps of a model phase on one node that holds all of its layers: what several phases on one node share.

Phases that share a node take turns, a step each. With batches b_p the *cycle* is ``C = sum_p ms_p(b_p)``, each phase makes
``b_p`` sequences' worth of tokens a cycle, and every SLO counts the whole cycle::

    C <= least budget of all,   sum_p longest_p(b_p) <= least wait of all for a first token,
    sum_p bytes_p(b_p) <= what engines may take of the GPUs' memory

A step's time is that of :func:`coralopt.throughput.nodes.node_throughput`, as the largest of all smaller batches', so that
more sequences never seem quicker. Alone, a phase is its T_j(g) of one stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coralopt.catalog.types import GIB, NodeConfiguration
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.throughput.layer_times import LayerTimes
from coralopt.throughput.nodes import MEMORY_SHARE, batch_grid, cache_bytes, most_at_once, step_work
from coralopt.types import Bools, Floats, Ints

#: Share of prompts, and of answers, that an engine on a shared node has KV memory for even one at a time.
LONG = 0.999


@dataclass(frozen=True, eq=False)
class NodeSteps:
    """Steps of one model phase on one node.

    Attributes:
        batch: float64 (n,), sequences (prompts for prefill) a step, ascending.
        ms: float64 (n,), mean time of a step, ms.
        longest_ms: float64 (n,), time of a step that carries prompts, ms; the mean one but for mixed instances.
        within_ms: What a cycle may take on average, ms.
        longest_within_ms: float64 (n,), what a cycle whose steps carry prompts may take, ms.
        tokens_each: Tokens that count as throughput, a sequence and step.
        fixed_bytes: Weights and the engine's reserve.
        bytes_each: KV cache of a mean sequence.
        least_bytes: KV cache of one long sequence, that of ``LONG`` of the prompts and answers; an engine holds it.
    """

    batch: Floats
    ms: Floats
    longest_ms: Floats
    within_ms: float
    longest_within_ms: Floats
    tokens_each: float
    fixed_bytes: float
    bytes_each: float
    least_bytes: float

    def kv_bytes(self, batch: int) -> float:
        """KV cache that an engine with this batch must hold."""
        return max(batch * self.bytes_each, self.least_bytes)

    def ms_of(self, batch: int) -> float:
        """Mean time of a step of this batch, ms.

        Raises:
            ValueError: No batch that was priced.
        """
        return float(self.ms[self.batch.tolist().index(batch)])


def node_steps(phase: ModelPhase, configuration: NodeConfiguration, times: LayerTimes) -> NodeSteps:
    """Steps of a phase on a node that holds all of its layers."""
    model, batch = phase.model, batch_grid(most_at_once(phase, times))
    work = step_work(phase, configuration, times, batch)

    def whole(layer_ms: Floats, nonlayer_ms: Floats) -> Floats:
        return np.maximum.accumulate(phase.serving.host_step_ms + nonlayer_ms + layer_ms * model.layers)

    ms = longest = whole(work.step.layer_ms, work.step.nonlayer_ms)
    limit = np.full(len(batch), np.inf)
    if work.carrying is not None:
        longest = whole(work.carrying.step.layer_ms, work.carrying.step.nonlayer_ms)
        ms = np.maximum.accumulate((1.0 - work.carrying.share) * ms + work.carrying.share * longest)
        limit = np.minimum.accumulate(work.carrying.slo_ms)
    return NodeSteps(
        batch=batch,
        ms=ms,
        longest_ms=longest,
        within_ms=work.slo_ms,
        longest_within_ms=limit,
        tokens_each=work.tokens_each,
        fixed_bytes=phase.serving.reserve_gib * GIB * configuration.count
        + model.layers * model.layer_bytes
        + model.end_bytes(1),
        bytes_each=cache_bytes(model, configuration, work.occupancy.held) * model.layers,
        least_bytes=cache_bytes(model, configuration, long_tokens(phase)) * model.layers,
    )


def long_tokens(phase: ModelPhase) -> float:
    """Tokens that a long sequence keeps, that of ``LONG`` of the prompts and answers."""
    long = float(phase.lengths.input.quantile([LONG])[0])
    return long if phase.phase == "prefill" else long + float(phase.lengths.output.quantile([LONG])[0])


def shared_bytes(configuration: NodeConfiguration) -> float:
    """What engines may take of a node's memory, all together."""
    return configuration.memory_gib * GIB * MEMORY_SHARE


def present_share(configuration: NodeConfiguration, asleep_gib: float, engines: int) -> float:
    """Share of a node's memory for the one of several engines whose weights are there, the others being away."""
    return MEMORY_SHARE - (engines - 1) * asleep_gib / configuration.gpu.memory_gib


def memory_shares(members: Sequence[tuple[NodeSteps, int]], configuration: NodeConfiguration) -> tuple[float, ...]:
    """Shares of a node's memory for engines with these batches: what each needs, and of the rest by its KV cache."""
    room = shared_bytes(configuration) - sum(steps.fixed_bytes for steps, _ in members)
    held = [steps.kv_bytes(batch) for steps, batch in members]
    total = configuration.memory_gib * GIB
    return tuple(
        (steps.fixed_bytes + room * own / sum(held)) / total for (steps, _), own in zip(members, held, strict=True)
    )


@dataclass(frozen=True, eq=False)
class StepTable:
    """Steps of m phases on one node as arrays, padded to n batches by what never fits.

    Attributes:
        batch: float64 (n,), the same for all.
        ms, longest_ms, longest_within_ms: float64 (m, n), a row a phase.
        within_ms, tokens_each, fixed_bytes, bytes_each, least_bytes: float64 (m,).
        memory_bytes: What all engines may take.
        asleep_bytes: What an engine keeps while another one's weights are there; ``None`` where all are there at once.
    """

    batch: Floats
    ms: Floats
    longest_ms: Floats
    longest_within_ms: Floats
    within_ms: Floats
    tokens_each: Floats
    fixed_bytes: Floats
    bytes_each: Floats
    least_bytes: Floats
    memory_bytes: float
    asleep_bytes: float | None = None

    @staticmethod
    def of(steps: Sequence[NodeSteps], configuration: NodeConfiguration, asleep_gib: float | None = None) -> StepTable:
        """The table of these phases; with ``asleep_gib`` a GPU that engines keep, their weights come and go."""
        longest = max((item.batch for item in steps), key=len)

        def padded(rows: Sequence[Floats], filling: float) -> Floats:
            return np.array([np.pad(row, (0, len(longest) - len(row)), constant_values=filling) for row in rows])

        return StepTable(
            batch=longest,
            ms=padded([item.ms for item in steps], np.inf),
            longest_ms=padded([item.longest_ms for item in steps], np.inf),
            longest_within_ms=padded([item.longest_within_ms for item in steps], -1.0),
            within_ms=np.array([item.within_ms for item in steps]),
            tokens_each=np.array([item.tokens_each for item in steps]),
            fixed_bytes=np.array([item.fixed_bytes for item in steps]),
            bytes_each=np.array([item.bytes_each for item in steps]),
            least_bytes=np.array([item.least_bytes for item in steps]),
            memory_bytes=shared_bytes(configuration),
            asleep_bytes=None if asleep_gib is None else asleep_gib * GIB * configuration.count,
        )

    def cycle_ms(self, phases: Ints, place: Ints) -> Floats:
        """float64 (k,): mean time of the cycles of sets of phases.

        Args:
            phases: int64 (k, s), a set a row.
            place: int64 (k, s), position of each one's batch.
        """
        total = np.zeros(len(phases))
        for column in range(phases.shape[1]):
            total += self.ms[phases[:, column], place[:, column]]
        return total

    def tokens_s(self, phases: Ints, place: Ints) -> Floats:
        """float64 (k, s): throughput of every phase of every set, tokens/s."""
        tokens = 1e3 * self.batch[place] * self.tokens_each[phases]
        return np.asarray(tokens / self.cycle_ms(phases, place)[:, None])

    def fits(self, phases: Ints, place: Ints) -> Bools:
        """bool (k,): whether sets with these batches fit into the node's memory, and their cycles into every SLO."""
        caches = np.maximum(self.bytes_each[phases] * self.batch[place], self.least_bytes[phases])
        own = self.fixed_bytes[phases] + caches
        held = own.sum(axis=1)
        if self.asleep_bytes is not None:
            held = own.max(axis=1) + (phases.shape[1] - 1) * self.asleep_bytes
        longest = self.longest_ms[phases, place].sum(axis=1)
        return np.asarray(
            (self.cycle_ms(phases, place) <= self.within_ms[phases].min(axis=1))
            & (longest <= self.longest_within_ms[phases, place].min(axis=1))
            & (held <= self.memory_bytes)
        )
