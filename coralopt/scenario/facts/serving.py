"""How engines and the router work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coralopt.routing import Routing


@dataclass(frozen=True)
class Serving:
    """How engines and the router work.

    Attributes:
        routing: Which instance gets a request: ``"weighted-round-robin"``, ``"least-work"`` (tokens outstanding over planned
            rate) or ``"power-of-two"`` (the less loaded of two drawn ones).
        order: Which waiting request an instance takes first: ``"fifo"``, ``"hopeless-last"`` (those too late) or
            ``"shortest-first"``.
        admission: ``"reserve"``: KV cache of the whole answer is set aside. ``"preempt"``: it grows, and where it runs out
            the youngest sequence gives way and is computed again; prefill instances cut prompts to the tokens of a step.
        reserve_gib: Memory of a GPU besides weights and KV cache: activations, workspace, graphs, GiB.
        host_step_ms: Host time of each step (scheduling, sampling), ms.
        host_request_ms: Host time before a request's first token (HTTP, tokenising), ms.
        step_tokens: Most tokens of one step, prompts and decoded ones (vLLM's max_num_batched_tokens).
        async_scheduling: A mixed instance of one stage chooses a step while the one before it runs, so that a prompt waits
            for one more decode step; ``False``: when the one before has ended.
    """

    routing: Routing
    order: Literal["fifo", "hopeless-last", "shortest-first"]
    admission: Literal["reserve", "preempt"]
    reserve_gib: float
    host_step_ms: float
    host_request_ms: float
    step_tokens: int
    async_scheduling: bool


#: Tokens that a step of prompts may have at least, however small its micro-batch is planned.
LEAST_STEP_TOKENS = 512
#: Prompts that an engine may have at work at least, of which many short ones fit in a step.
LEAST_PROMPTS = 4
#: The engines that the paper's planner assumes.
PAPER_SERVING = Serving("weighted-round-robin", "fifo", "reserve", 1.0, 0.0, 0.0, 2048, False)
#: Preset -> how engines and the router work. Of ``engine`` the reserve is aiconfigurator's least (3.5 to 3.9 GiB a GPU, its
#: 0.12.0), host times are what published closed-loop measurements of vLLM on H100 and H200 take longer than its kernels
#: (benchmarks/host_time.py), 2,048 tokens a step are vLLM's default.
SERVING_PRESETS = {
    "paper": PAPER_SERVING,
    "engine": Serving("least-work", "hopeless-last", "preempt", 3.5, 0.6, 14.0, 2048, True),
}
