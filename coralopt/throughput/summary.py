"""What throughput tables say at a glance: does T fall in j, and what SLO could be met at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, log10

import numpy as np

from coralopt.catalog.types import NodeConfiguration
from coralopt.scenario.facts.measured import MeasuredSourceChoice
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.throughput.layer_times import LayerTimes
from coralopt.throughput.nodes import node_throughput
from coralopt.throughput.sources import throughput_source
from coralopt.throughput.tables import FIRST, LAST, MIDDLE
from coralopt.types import Floats

#: SLOs searched, ms: beyond the larger one an SLO is no SLO.
_SHORTEST_MS, _LONGEST_MS = 1e-3, 1e9


def falls_in_layers(values: Floats) -> bool:
    """Whether no node gains throughput from more layers: ``values`` (..., L + 1) never rises from j = 1 on.

    Time, weights and cache all grow with j, so T must fall for honest figures; measured ones need not obey.
    """
    return bool((values[..., 2:] <= values[..., 1:-1]).all())


def explain_infeasible(
    phase: ModelPhase,
    configurations: Sequence[NodeConfiguration],
    source_name: str | MeasuredSourceChoice = "auto",
    max_stages: int = 6,
) -> str:
    """The smallest SLO that some pipeline of these nodes could meet, in words, or that memory is what lacks.

    Any number of nodes of each configuration may be used, one a stage. For ``mixed`` the time per output token is
    searched first, then, if that SLO can be met, the time to first token.
    """
    source = throughput_source(source_name)
    nodes = [(c, source.times(phase.model, c)) for c in configurations if source.covers(phase.model, c)]
    free = replace(phase, prefill_ms=_LONGEST_MS, decode_ms=_LONGEST_MS)
    if _pipeline(free, nodes, max_stages) is None:
        kept = f"weights and KV cache, with {phase.serving.reserve_gib:g} GiB of each GPU kept back"
        several = f"no {max_stages} nodes of the pool have" if max_stages > 1 else "no node of the pool has"
        return f"{several} the memory for the model ({kept}); offer larger nodes"
    fields = {"prefill": ("prefill_ms",), "decode": ("decode_ms",), "mixed": ("decode_ms", "prefill_ms")}[phase.phase]
    text = "every SLO of this phase can be met by itself"
    for field in fields:
        least, pipeline = _least(free, field, nodes, max_stages)
        shown = {"prefill_ms": "ttft_ms", "decode_ms": "tpot_ms"}[field]
        text = f"the smallest {shown} that could be met is about {least:g} ms, with {pipeline}"
        if least > getattr(phase, field):
            break
        # The next SLO is searched under this one.
        free = _with_slo(free, field, float(getattr(phase, field)))
    return f"{text}; raise the SLO or offer faster nodes"


def _with_slo(phase: ModelPhase, field: str, ms: float) -> ModelPhase:
    return replace(phase, prefill_ms=ms) if field == "prefill_ms" else replace(phase, decode_ms=ms)


def _least(
    phase: ModelPhase, field: str, nodes: Sequence[tuple[NodeConfiguration, LayerTimes]], max_stages: int
) -> tuple[float, str]:
    """Bisection to 0.1 %, rounded up to three digits so that the figure told is one that works."""
    low, high = _SHORTEST_MS, _LONGEST_MS
    while high > low * 1.001:
        middle = (low * high) ** 0.5
        if _pipeline(_with_slo(phase, field, middle), nodes, max_stages) is None:
            low = middle
        else:
            high = middle
    digits = 2 - int(np.floor(log10(high)))
    told = round(ceil(high * 10.0**digits) / 10.0**digits, max(digits, 0))
    return told, str(_pipeline(_with_slo(phase, field, told), nodes, max_stages))


def _pipeline(phase: ModelPhase, nodes: Sequence[tuple[NodeConfiguration, LayerTimes]], max_stages: int) -> str | None:
    """A pipeline of single-node stages that holds all layers within the SLOs, in words."""
    # Batch 1 is the quickest there is; only mixed prompts may be cut into shorter steps beside a larger batch.
    cells = [node_throughput(phase, c, times, max_stages, smallest=phase.phase != "mixed")[0] for c, times in nodes]
    if not cells:
        return None
    # Most layers by (stage count, role, configuration); T > 0 at j implies T > 0 below it.
    most = np.where(np.stack(cells, axis=2) > 0, np.arange(phase.model.layers + 1), 0).max(axis=-1)
    for stages in range(1, max_stages + 1):
        roles = [FIRST, *[MIDDLE] * (stages - 2), LAST] if stages > 1 else [FIRST]
        # Every stage takes a layer at least.
        reach = most[stages - 1, roles].max(axis=-1)
        if stages <= phase.model.layers and (reach > 0).all() and reach.sum() >= phase.model.layers:
            best = most[stages - 1, roles].argmax(axis=-1)
            used = sorted({nodes[int(c)][0].name for c in best})
            return f"{stages} stage{'s' if stages > 1 else ''} on {', '.join(used)}"
    return None
