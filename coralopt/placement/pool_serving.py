"""How the nodes of a fixed pool serve: step times, links, and lengths of requests; what a static flow leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coralopt.errors import SolverError
from coralopt.scenario.lengths import LengthPair
from coralopt.types import Floats, Ints


@dataclass(frozen=True)
class PoolLinks:
    """What lies between the nodes of a pool; every pair of nodes has a link of its own.

    Attributes:
        bytes_s: Bandwidth of a link, bytes/s; one request at a time is sent.
        nic_bytes_s: Bandwidth of a node's network interface, bytes/s, shared by its links in proportion to their flow.
        latency_ms: Of a link, ms.
        activation_bytes: Sent for one token from stage to stage, bytes.
        token_bytes: Sent for one token from and to the coordinator, bytes.
        copy_ms: A node's time to take one token's activations over, ms.
    """

    bytes_s: float
    nic_bytes_s: float
    latency_ms: float
    activation_bytes: float
    token_bytes: float = 4.0
    copy_ms: float = 0.0


@dataclass(frozen=True)
class RequestKind:
    """Requests that are alike.

    Attributes:
        share: Of all requests.
        lengths: Of its prompts and answers, tokens.
    """

    share: float
    lengths: LengthPair


@dataclass(frozen=True, eq=False)
class PoolServing:
    """How nodes of each configuration run batches of prompts and decoding requests.

    A pass of a node with j layers over p prompt tokens and b decoding requests takes
    ``j (prompt_ms[c, p] + decode_ms[c, b])`` ms.

    Attributes:
        kinds: Requests; the shares are 1 in all. Lengths of one kind are independent of each other. Where one kind has long
            prompts and long answers, those inside are longer than those that arrive, and fewer fit into the caches.
        reserved_output: Answer tokens for which the KV cache of a request is reserved on admission.
        prompt_ms: float64 (C, P + 1), ms of one layer over p prompt tokens; 0 at p = 0.
        decode_ms: float64 (C, B + 1), ms of one layer over b decoding requests; 0 at b = 0.
        prompts: int64 (C,), most prompts in a pass.
        decodes: int64 (C, L + 1), most decoding requests in a pass, by layers.
        memory_gb: Memory of a node, GB, length C; written into files for others, 0 where not given.
        links: What lies between nodes.

    Raises:
        SolverError: The parts do not fit together.
    """

    kinds: tuple[RequestKind, ...]
    reserved_output: float
    prompt_ms: Floats
    decode_ms: Floats
    prompts: Ints
    decodes: Ints
    memory_gb: tuple[float, ...]
    links: PoolLinks

    def __post_init__(self) -> None:
        kinds = len(self.prompts)
        if not np.isclose(sum(kind.share for kind in self.kinds), 1.0):
            raise SolverError(f"shares of requests are {[kind.share for kind in self.kinds]}; they must be 1 in all")
        for name, table in (("prompt_ms", self.prompt_ms), ("decode_ms", self.decode_ms), ("decodes", self.decodes)):
            if table.ndim != 2 or table.shape[0] != kinds or table.shape[1] < 2:
                raise SolverError(f"{name} has shape {table.shape}; it must be ({kinds}, n) with n >= 2")
        if len(self.memory_gb) != kinds:
            raise SolverError(f"memory_gb has {len(self.memory_gb)} entries for {kinds} configurations")

    @property
    def most_prompt(self) -> int:
        """Longest prompt that the tables and one pass allow, tokens."""
        return int((self.prompt_ms.shape[1] - 1) // max(int(self.prompts.max()), 1))

    def sample(self, seed: int, count: int) -> tuple[Ints, Ints]:
        """int64 (count,) each: prompt and answer lengths of random requests, 1 token or more, cut at the longest prompt."""
        generator = np.random.default_rng(seed)
        which = generator.choice(len(self.kinds), count, p=[kind.share for kind in self.kinds])
        prompts, answers = np.zeros(count), np.zeros(count)
        for k, kind in enumerate(self.kinds):
            mine = which == k
            prompts[mine] = kind.lengths.input.sample(generator, int(mine.sum()))
            answers[mine] = kind.lengths.output.sample(generator, int(mine.sum()))
        return (
            np.clip(np.rint(prompts), 1, self.most_prompt).astype(np.int64),
            np.clip(np.rint(answers), 1, None).astype(np.int64),
        )

    @cached_property
    def mean_input(self) -> float:
        """Mean prompt, tokens."""
        return sum(kind.share * kind.lengths.input.mean for kind in self.kinds)

    @cached_property
    def mean_output(self) -> float:
        """Mean answer, tokens."""
        return sum(kind.share * kind.lengths.output.mean for kind in self.kinds)

    @cached_property
    def resident_input(self) -> float:
        """Mean prompt of the requests inside, tokens: each counts as long as its answer takes."""
        both = sum(kind.share * kind.lengths.input.mean * kind.lengths.output.mean for kind in self.kinds)
        return both / self.mean_output
