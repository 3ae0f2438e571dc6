"""Where an engine has no throughput at all, whatever a roofline says: nodes and stage counts that it cannot run.

These rules look at one node and one stage count, so they are zeros in T_j(g) and hold for every solver, the checker and
the verification alike. Rules about stages that go together are :class:`coralopt.placement.EngineLimits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from coralopt.catalog.types import NO_BF16, ModelArchitecture, NodeConfiguration
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.throughput.tables import ThroughputTables
from coralopt.types import Bools


def heads_fit(model: ModelArchitecture, degree: int) -> bool:
    """Whether heads can be dealt out to ``degree`` GPUs: query heads whole, KV heads whole or copied (vLLM asserts both)."""
    return model.heads % degree == 0 and (model.kv_heads % degree == 0 or degree % model.kv_heads == 0)


def engine_runs(engine: str, phase: ModelPhase, configurations: Sequence[NodeConfiguration], max_stages: int) -> Bools:
    """Which nodes may be a stage of a pipeline of s stages under this engine.

    Stock vLLM needs BF16, deals out attention heads evenly, and receives KV caches over NIXL in a decode server of one
    stage only, so that every decode instance is one node.

    Args:
        engine: A name of ``coralopt.placement.ENGINES``; only ``"vllm"`` forbids anything here.
        phase: The model phase.
        configurations: Length C.
        max_stages: S.

    Returns:
        bool (S, C), row s - 1 for pipelines of s stages.
    """
    runs = np.ones((max_stages, len(configurations)), dtype=np.bool_)
    if engine == "vllm":
        fit = [c.gpu.architecture not in NO_BF16 and heads_fit(phase.model, c.count) for c in configurations]
        runs &= np.array(fit)[None, :]
        if phase.phase == "decode":
            runs[1:] = False
    return runs


def only_executable(
    tables: ThroughputTables, engine: str, phase: ModelPhase, configurations: Sequence[NodeConfiguration]
) -> ThroughputTables:
    """The tables with zeros where :func:`engine_runs` says no."""
    runs = engine_runs(engine, phase, configurations, tables.max_stages)
    if runs.all():
        return tables
    mask = runs[:, None, :, None]
    return replace(
        tables,
        values=np.where(mask, tables.values, 0.0),
        batch=np.where(mask, tables.batch, 0).astype(tables.batch.dtype),
        stage_ms=np.where(mask, tables.stage_ms, 0.0),
    )


def graph_sizes(most_tokens: int) -> list[int]:
    """Numbers of tokens that vLLM captures CUDA graphs for, ascending; a step is padded to the next of them.

    vLLM's own sizes end at 512 tokens, or at twice the sequences of a batch. Above that the processor launches every
    kernel, which takes longer than the kernels of a few hundred prompt tokens do: 35 ms in the median instead of 13 ms
    in Qwen3-8B, 90 ms instead of 28 ms in Qwen3-30B-A3B (H100, docs/fidelity.md). At most 1 token in 9 is padding.

    Args:
        most_tokens: Tokens of the largest step; the last size.
    """
    sizes, size = [1, 2, 4], 8
    while size < most_tokens:
        sizes.append(size)
        size += 8 if size < 256 else 32 if size < 512 else max(64, 2 ** (size.bit_length() - 1) // 16)
    return [*(small for small in sizes if small < most_tokens), most_tokens]


def own_graphs(options: Iterable[str]) -> bool:
    """Whether options of ``vllm serve`` say already which CUDA graphs there are."""
    return any(
        text in option for option in options for text in ("cudagraph", "--compilation-config", "--enforce-eager")
    )
