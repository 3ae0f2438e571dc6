"""Which requests some node of the pool could serve in time, whatever is rented."""

from __future__ import annotations

import numpy as np

from coralopt.catalog.types import NodeConfiguration
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.simulation.config import SimulationConfig
from coralopt.throughput import LayerTimes, throughput_source
from coralopt.throughput.nodes import cache_bytes
from coralopt.types import Bools, Floats, Ints
from coralopt.workload import Trace

#: Lengths at which layer times are looked up; lines in between.
_POINTS = 200


def possible_requests(
    scenario: ResolvedScenario, trace: Trace, config: SimulationConfig | None = None
) -> dict[tuple[str, str], Bools]:
    """Whether each request of a model could meet its SLO alone on the best node for it: a bound no plan passes.

    The whole model on the quickest configuration of the pool, memory and hops left out; KV transfers at the best network,
    spread over as many nodes as an instance may have.

    Returns:
        (model as requests say it, ``"prefill"`` or ``"decode"``) -> bool (its requests,), in the order of the trace.
    """
    config = config or SimulationConfig()
    source = throughput_source(scenario.throughput_source)
    offered = [c for k, c in enumerate(scenario.configurations) if scenario.availability[:, k].any()]
    possible: dict[tuple[str, str], Bools] = {}
    for phase in scenario.model_phases:
        name = phase.served
        rows = trace.model == trace.models.index(name) if name in trace.models else np.zeros(len(trace), dtype=np.bool_)
        if not trace.is_named:
            rows = np.ones(len(trace), dtype=np.bool_)
        inputs, outputs = trace.input_tokens[rows], trace.output_tokens[rows]
        computed = np.maximum(inputs - np.floor(inputs * phase.prefix_hit).astype(np.int64), 1)
        nodes = [(c, source.times(phase.model, c)) for c in offered if source.covers(phase.model, c)]
        for kind in ("prefill", "decode") if phase.phase == "mixed" else (phase.phase,):
            if kind == "prefill":
                quickest = _quickest(phase, nodes, computed, kind)
                able = quickest <= phase.prefill_ms
                possible[name, kind] = possible.get((name, kind), False) | able
                continue
            step = _quickest(phase, nodes, inputs + outputs // 2, kind)
            if phase.phase != "mixed":
                step = step + _transfer_ms(phase, scenario, offered, computed, config) / np.maximum(outputs - 1, 1)
            # In mode auto, or with variants, a request may go either way.
            possible[name, kind] = possible.get((name, kind), False) | (outputs < 2) | (step <= phase.decode_ms)
    return possible


def quickest_steps_ms(scenario: ResolvedScenario, phase: ModelPhase, requests: Trace) -> Floats:
    """float64 (n,): least time of an output token of each request, alone on the quickest configuration of the pool, ms.

    Args:
        scenario: Configurations and layer times.
        phase: A phase of the model; all requests are for it.
        requests: Whose context is that at the middle of the answer.
    """
    source = throughput_source(scenario.throughput_source)
    nodes = [(c, source.times(phase.model, c)) for c in scenario.configurations if source.covers(phase.model, c)]
    return _quickest(phase, nodes, requests.input_tokens + requests.output_tokens // 2, "decode")


def _quickest(phase: ModelPhase, nodes: list[tuple[NodeConfiguration, LayerTimes]], tokens: Ints, kind: str) -> Floats:
    """Least time of all layers for one sequence of each length over the nodes, ms."""
    if not len(tokens) or not nodes:
        return np.full(len(tokens), np.inf)
    in_parts = kind == "prefill" and phase.phase == "mixed"
    budget = phase.serving.step_tokens
    longest = max(budget if in_parts else 2, int(tokens.max()))
    points = np.unique(np.rint(np.geomspace(1, longest, _POINTS)))
    best = np.full(len(points), np.inf)
    for _, times in nodes:
        of = times.prefill_ms if kind == "prefill" else times.decode_ms
        best = np.minimum(best, [float(of(np.ones(1), float(n))[0][0]) * phase.model.layers for n in points])
    if in_parts:
        # A mixed instance computes long prompts in parts of a whole step and does not count what attends to earlier ones.
        parts, rest = np.divmod(tokens, budget)
        step, last = np.interp(budget, points, best), np.interp(rest, points, best)
        return np.asarray(parts * step + np.where(rest > 0, last, 0.0))
    return np.asarray(np.interp(tokens, points, best))


def _transfer_ms(
    phase: ModelPhase,
    scenario: ResolvedScenario,
    offered: list[NodeConfiguration],
    tokens: Ints,
    config: SimulationConfig,
) -> Floats:
    """Least time of a KV transfer, ms: the fullest of ``max_nodes`` stages on the best network."""
    layers = -(-phase.model.layers // scenario.max_nodes)
    best = np.full(len(tokens), np.inf)
    for configuration in offered:
        copies = phase.model.kv_copies(configuration.count)
        gb_s = configuration.network_gb_s if config.kv_gb_s is None else config.kv_gb_s
        # cache_bytes is linear up to the window and beyond it.
        window = float(phase.model.sliding_window or 0)
        points = np.array([0.0, window, max(window, 1.0) * 2 + 1e6])
        held = np.array([cache_bytes(phase.model, configuration, n) if n else 0.0 for n in points])
        one = np.interp(tokens, *((points, held) if window else (points[[0, 2]], held[[0, 2]])))
        best = np.minimum(best, 1e3 * one * layers / copies / (gb_s * 1e9))
    return np.asarray(best + config.kv_latency_ms)
