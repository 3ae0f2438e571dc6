"""What an engine can run: limits on placements beyond memory and latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from coralopt.errors import OptionError
from coralopt.placement.problem_parts import Placement
from coralopt.solving.problem import Violation
from coralopt.types import Bools


@dataclass(frozen=True)
class EngineLimits:
    """Limits on one placement.

    Attributes:
        same_tp: All nodes have the same number of GPUs, so that every stage has the same tensor-parallel degree.
        one_node_stages: Every stage is one node: no data parallelism inside a stage.
        equal_replicas: Every stage has the same number of nodes d, in each stage of one configuration: d copies of one
            pipeline of single nodes, which an engine without uneven data parallelism runs as d replicas.
    """

    same_tp: bool = False
    one_node_stages: bool = False
    equal_replicas: bool = False

    @property
    def none(self) -> bool:
        """Whether nothing is forbidden."""
        return not (self.same_tp or self.one_node_stages or self.equal_replicas)

    def node_set_allowed(self, node_set: Sequence[int], gpus: Sequence[int]) -> bool:
        """Whether these nodes may be in one replica at all."""
        return not self.same_tp or len({gpus[c] for c, count in enumerate(node_set) if count > 0}) <= 1

    def violations(self, placement: Placement, gpus: Sequence[int]) -> list[Violation]:
        """Every limit that ``placement`` breaks."""
        wrong: list[Violation] = []
        stages = partial(Violation, "engine", "stages")
        if not self.node_set_allowed(placement.node_set, gpus):
            degrees = sorted({gpus[c] for c, count in enumerate(placement.node_set) if count > 0})
            text = f"nodes with {' and '.join(map(str, degrees))} GPUs are mixed; the engine needs one TP degree"
            wrong.append(Violation("engine", "nodes", text))
        sizes = [sum(stage.nodes) for stage in placement.stages]
        if self.one_node_stages and any(size != 1 for size in sizes):
            wrong.append(stages(f"stages have {sizes} nodes; the engine runs one node a stage"))
        if self.equal_replicas:
            if len(set(sizes)) > 1:
                wrong.append(stages(f"stages have {sizes} nodes; the engine needs as many in each"))
            for position, stage in enumerate(placement.stages):
                if sum(count > 0 for count in stage.nodes) > 1:
                    wrong.append(stages(f"stage {position + 1} mixes configurations; the engine needs equal replicas"))
        return wrong

    def stage_masks(self, sets: npt.NDArray[np.int8]) -> list[Bools | None]:
        """Which node sets (rows of ``sets``, int8 (M, C)) may be a stage: one mask for every class of placements.

        A placement is allowed exactly if all its stages are inside one of the masks. ``None`` allows everything.
        """
        if not (self.one_node_stages or self.equal_replicas):
            return [None]
        sizes = sets.sum(axis=1, dtype=np.int64)
        pure = (sets > 0).sum(axis=1) == 1
        if self.one_node_stages:
            return [sizes == 1]
        return [pure & (sizes == size) for size in range(1, int(sizes.max(initial=0)) + 1)]


#: Everything is allowed.
NO_LIMITS = EngineLimits()

#: Limits by name, as scenarios and the command line know them.
ENGINES: Mapping[str, EngineLimits] = MappingProxyType(
    {
        "any": NO_LIMITS,
        "same-tp": EngineLimits(same_tp=True),
        "one-node-stages": EngineLimits(one_node_stages=True),
        "equal-replicas": EngineLimits(equal_replicas=True),
        # Stock vLLM: one TP degree in a pipeline, one TP group a stage, data parallelism by whole replicas.
        "vllm": EngineLimits(same_tp=True, equal_replicas=True),
    }
)


def engine_limits(name: str) -> EngineLimits:
    """The limits of this name.

    Raises:
        OptionError: Unknown name.
    """
    if name not in ENGINES:
        raise OptionError(f"unknown engine {name!r}; choose one of: {', '.join(ENGINES)}")
    return ENGINES[name]
