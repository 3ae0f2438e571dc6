"""From layer times to T_j(g): memory, latency budget, batch choice. The formulas are in docs/concepts/throughput.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt

from coralopt.catalog.types import GIB, ModelArchitecture, NodeConfiguration
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.throughput.layer_times import LayerTimes, mixed_ms
from coralopt.throughput.occupancy import Occupancy, occupancy_of, transfer_tokens
from coralopt.throughput.roofline import pair_ms
from coralopt.throughput.tables import FIRST, LAST, MIDDLE
from coralopt.types import Floats

#: Share of usable GPU memory an engine takes (vLLM's default gpu_memory_utilization).
MEMORY_SHARE = 0.9
#: One-way latency between nodes of a region, ms.
HOP_MS = 0.1
#: With an attainment prompts wait for one another as little as this share of the best throughput allows.
BATCH_SHARE = 0.95

Cells = tuple[Floats, npt.NDArray[np.int32], Floats]


def batch_grid(most: int) -> Floats:
    """Batches tried: every whole number to 64, then in steps of about 5 %, to ``most``."""
    grid = _whole_grid()
    return grid[: int(np.searchsorted(grid, most, side="right"))].copy()


@cache
def _whole_grid() -> Floats:
    return np.unique(np.concatenate([np.arange(1.0, 65.0), np.rint(64 * 1.05 ** np.arange(1, 80))]))


def prompt_passes(prompt_tokens: float, sequences: Floats, step_tokens: int) -> Floats:
    """Steps that a prompt is spread over beside so many decoding sequences: one while it fits the token budget."""
    return np.maximum(1.0, np.ceil(prompt_tokens / np.maximum(step_tokens - sequences, 1.0)))


def cache_bytes(model: ModelArchitecture, configuration: NodeConfiguration, context: float) -> float:
    """KV-cache bytes of one sequence of ``context`` tokens in one layer on this node (mean over the layers).

    Sliding-window layers keep the window only; copies count (``ModelArchitecture.kv_copies``). The cache of a draft model is
    shared out over the layers.
    """
    own = model.kept_tokens(context) * model.kv_token_bytes * model.kv_copies(configuration.count)
    draft = None if model.speculative is None else model.speculative.draft
    return own if draft is None else own + draft.kv_bytes(context) * draft.kv_copies(configuration.count) / model.layers


def free_bytes(phase: ModelPhase, configuration: NodeConfiguration, role: int, stages: int) -> Floats:
    """float64 (L + 1,): bytes left for the KV cache when the node holds j layers; negative when they do not fit."""
    model = phase.model
    layers = np.arange(model.layers + 1)
    total = configuration.memory_gib * GIB * MEMORY_SHARE - phase.serving.reserve_gib * GIB * configuration.count
    ends = 0.0 if role == MIDDLE and stages > 1 else model.end_bytes(stages)
    return np.asarray(total - layers * model.layer_bytes - ends)


def node_throughput(
    phase: ModelPhase,
    configuration: NodeConfiguration,
    times: LayerTimes,
    max_stages: int,
    *,
    smallest: bool = False,
    budget_units: tuple[int, int] = (1, 1),
    receiver_gb_s: float = float("inf"),
) -> Cells:
    """T_j(g), batch and stage time of one node for every stage count, role and layer count.

    Args:
        phase: Model phase with SLOs and mean lengths.
        configuration: The node.
        times: Its layer times.
        max_stages: S.
        smallest: Only batch 1, to see the shortest stage time there is.
        budget_units: (g, u): the stage may take g / u of the equal share SLO / S.
        receiver_gb_s: Bandwidth of the slowest node that takes the activations, 1e9 bytes/s; the slower end decides.

    Returns:
        float64 (S, 3, L + 1) tokens/s, int32 (S, 3, L + 1) batch, float64 (S, 3, L + 1) ms.
    """
    from coralopt.throughput.kernels import choose_batches

    model = phase.model
    work = step_work(phase, configuration, times, batch_grid(1 if smallest else most_at_once(phase, times)))
    layers = np.arange(model.layers + 1, dtype=np.float64)
    shape = (max_stages, 3, model.layers + 1)
    values, stage_ms = np.zeros(shape), np.zeros(shape)
    chosen = np.zeros(shape, dtype=np.int32)
    per_sequence = cache_bytes(model, configuration, work.occupancy.held)
    link_gb_s = min(configuration.network_gb_s, receiver_gb_s)
    scale = budget_units[1] / budget_units[0]
    share = BATCH_SHARE if phase.phase == "prefill" and phase.attainment is not None else 1.0
    # Every GPU has its part of the KV cache; copies are made where it arrives.
    arriving_ms = transfer_tokens(phase) * model.kv_token_bytes / (configuration.network_gb_s * 1e6)
    # The largest micro-batch is the tail of the sequences at work; throughput is made by their mean.
    means, usual = [work.batch] * max_stages, [work] * max_stages
    if work.occupancy.score != 0:
        means = [work.occupancy.mean_within(stages * work.batch) / stages for stages in range(1, max_stages + 1)]
        usual = [step_work(phase, configuration, times, np.maximum(mean, 1.0)) for mean in means]
    # A role, and the pipelines in which its stages have the same times and memory.
    for role, counts in ((FIRST, range(1, 2)), *((role, range(2, max_stages + 1)) for role in (FIRST, MIDDLE, LAST))):
        room = free_bytes(phase, configuration, role, counts.start)
        with np.errstate(divide="ignore", invalid="ignore"):
            sequences = np.where(layers > 0, np.floor(room / (per_sequence * layers)), 0.0)
        resident = work.occupancy.mean_within(sequences, work.occupancy.spread)
        # No more layers, and no larger batches, are looked at than memory has room for.
        needed = np.min([stages * means[stages - 1] for stages in counts], axis=0, initial=np.inf)
        most_layers = int(np.flatnonzero(resident >= needed.min()).max(initial=0))
        batches = int(np.flatnonzero(needed <= resident[1:].max()).max(initial=-1)) + 1
        if not most_layers or not batches:
            continue
        held = layers[: most_layers + 1, None]
        stage = _Stage(phase, configuration, link_gb_s, role, counts.start == 1, held, batches)
        # Little's law: at most `resident` are there, each for up to the whole SLO.
        most = 1e3 * np.maximum(resident[: most_layers + 1], 0.0) * work.tokens_each / max(work.slo_ms, 1e-12)
        without_limit, budget_ms = np.full_like(most, np.inf), work.slo_ms - arriving_ms * held[:, 0]
        timed = rate = np.zeros(0)
        for stages in counts:
            at_work = means[stages - 1][:batches]
            ms, carrying_ms = stage.mean_ms(work, stages)
            usual_ms = stage.mean_ms(usual[stages - 1], stages)[0]
            if usual_ms is not timed:
                timed, rate = usual_ms, 1e3 * at_work * work.tokens_each / np.maximum(usual_ms, 1e-12)
            limited_ms = ms
            if work.carrying is not None:
                # Those with prompts have a limit of their own.
                limited_ms = np.where(stages * carrying_ms * scale <= work.carrying.slo_ms[:batches], ms, np.nan)
            limits = resident[: most_layers + 1], budget_ms, most if stages > 1 else without_limit
            cell = values[stages - 1, role], chosen[stages - 1, role], stage_ms[stages - 1, role]
            choose_batches(work.batch, rate, ms, (at_work, limited_ms), limits, (stages, scale), share, cell)
    return values, chosen, stage_ms


@dataclass(frozen=True, eq=False)
class _Step:
    """Times of one micro-batch for every batch tried: ms of a layer, ms of what is not one, tokens computed."""

    layer_ms: Floats
    nonlayer_ms: Floats
    tokens: Floats


@dataclass(frozen=True, eq=False)
class _Carrying:
    """Steps of a mixed instance that carry prompts: their times, share of all, and what the pipeline may take, ms."""

    step: _Step
    share: Floats
    slo_ms: Floats


@dataclass(frozen=True, eq=False)
class StepWork:
    """One phase's micro-batches: times, sizes and limits.

    Attributes:
        batch: Batches tried.
        step: The micro-batch, for mixed one without prompts.
        occupancy: What sequences at work hold.
        tokens_each: Tokens that count as throughput, a sequence and micro-batch.
        slo_ms: Latency that the pipeline as a whole may take for one micro-batch.
        carrying: Mixed: the micro-batches with prompts.
    """

    batch: Floats
    step: _Step
    occupancy: Occupancy
    tokens_each: float
    slo_ms: float
    carrying: _Carrying | None = None


@dataclass(frozen=True, eq=False)
class _Stage:
    """Times of a stage, of the layers that it ``held``, float64 (n, 1), and the first so many of the batches tried."""

    phase: ModelPhase
    configuration: NodeConfiguration
    link_gb_s: float
    role: int
    alone: bool
    held: Floats
    batches: int
    _known: dict[_Step, Floats] = field(default_factory=dict)

    def ms(self, step: _Step) -> Floats:
        """float64 (layers, batches): ms of a micro-batch."""
        if step not in self._known:
            model = self.phase.model
            fixed = np.full_like(step.tokens, self.phase.serving.host_step_ms)
            if self.alone or self.role == LAST:
                fixed = fixed + step.nonlayer_ms
            elif self.role == FIRST:
                fixed = fixed + step.tokens * model.hidden * 2.0 / (self.configuration.gpu.bandwidth_gb_s * 1e6)
            if not self.alone:
                # The last stage only returns token numbers.
                send_ms = 0.0 if self.role == LAST else step.tokens * model.hidden * 2.0 / (self.link_gb_s * 1e6)
                fixed = fixed + (send_ms + HOP_MS)
            self._known[step] = fixed[: self.batches] + step.layer_ms[: self.batches] * self.held
        return self._known[step]

    def mean_ms(self, work: StepWork, stages: int) -> tuple[Floats, Floats]:
        """(mean micro-batch, one with prompts where there are), ms."""
        ms = self.ms(work.step)
        if work.carrying is None:
            return ms, ms
        carrying_ms = self.ms(work.carrying.step)
        # The micro-batches in flight follow one another, so one that carries holds up all of them.
        share = 1.0 - (1.0 - work.carrying.share[: self.batches]) ** stages
        return (1.0 - share) * ms + share * carrying_ms, carrying_ms


def most_at_once(phase: ModelPhase, times: LayerTimes) -> int:
    """Largest batch for which times are known."""
    return times.most_prompts if phase.phase == "prefill" else times.most_sequences


def step_work(phase: ModelPhase, configuration: NodeConfiguration, times: LayerTimes, batch: Floats) -> StepWork:
    """What micro-batches of these sizes take, hold and must keep."""
    lengths_in, lengths_out = max(phase.mean_input_tokens, 1.0), max(phase.mean_output_tokens, 1.0)
    computed = max(phase.computed_tokens, 1.0)
    cached = lengths_in - computed
    if phase.phase == "prefill":
        layer_ms, other_ms = times.prefill_ms(batch, computed)
        if cached > 0:
            layer_ms = layer_ms + pair_ms(phase.model, configuration) * batch * computed * cached
        step = _Step(layer_ms, other_ms, batch * computed)
        return StepWork(batch, step, Occupancy(lengths_in, lengths_in, 1.0, 0.0), lengths_in, phase.prefill_budget_ms)
    occupancy = occupancy_of(phase)
    step = _Step(*times.decode_ms(batch, occupancy.context), batch)
    if phase.phase == "decode":
        return StepWork(batch, step, occupancy, 1.0, phase.decode_budget_ms)
    # Mixed: b / n_out prompts arrive in a step. Steps that carry none only decode; the others carry whole prompts, or
    # equal parts of them where they exceed the budget; when every step carries, it carries all that arrives.
    budget = phase.serving.step_tokens
    arriving, passes = batch / lengths_out, prompt_passes(computed, batch, budget)
    share = np.minimum(1.0, arriving * passes)
    # Whole prompts exactly: at 64 tokens of a step its time is another one.
    carried = np.where(share < 1.0, computed / passes, arriving * computed)
    # The k-th pass of a prompt attends to what a cache holds of it and to the k - 1 before it as well.
    before = cached + (computed / passes) * (passes - 1) / 2
    earlier_ms = pair_ms(phase.model, configuration) * carried * before
    mixed = _Step(*mixed_ms(times, batch, occupancy.context, carried, earlier_ms), batch + carried)
    # A prompt waits for at most the step under way, a carrying one, before its own.
    limit = np.where(batch + carried <= budget, phase.prefill_budget_ms / (passes + 1), -1.0)
    return StepWork(batch, step, occupancy, 1.0, phase.decode_budget_ms, _Carrying(mixed, share, limit))
