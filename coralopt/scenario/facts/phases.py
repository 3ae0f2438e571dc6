"""Model phases: what the instances of a model serve, with their SLO and demand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coralopt.catalog.types import ModelArchitecture
from coralopt.scenario.facts.serving import PAPER_SERVING, Serving
from coralopt.scenario.lengths import USUAL_SPREAD, LengthDistribution, LengthPair, LengthSpread
from coralopt.types import Bools, Ints

Phase = Literal["prefill", "decode", "mixed"]
Mode = Literal["disaggregated", "mixed", "auto"]
#: How a model is served -> the phases that instances may have.
PHASES_OF: dict[Mode, tuple[Phase, ...]] = {
    "disaggregated": ("prefill", "decode"),
    "mixed": ("mixed",),
    "auto": ("prefill", "decode", "mixed"),
}


@dataclass(frozen=True)
class Variant:
    """One of the ways to serve a model, which requests may go.

    Attributes:
        of: Name of the model that requests ask for.
        name: Its name among the variants.
        quality: How good its answers are, inside (0, 1].
        least_share: Least share of the requests that it serves.
        least_quality: Least mean quality over all requests of the model; 0 where none is asked for.
    """

    of: str
    name: str
    quality: float
    least_share: float = 0.0
    least_quality: float = 0.0

    @property
    def may_serve_all(self) -> bool:
        """Whether it is good enough to serve all requests of the model."""
        return self.quality >= self.least_quality


@dataclass(frozen=True)
class RequestClass:
    """Some of a model's requests, told apart by their lengths.

    Attributes:
        of: Name of the model that requests ask for.
        name: Its name among the classes.
        most_input: Longest prompt, tokens; ``None`` for any.
        most_output: Most tokens that the answer may have; ``None`` for any.
    """

    of: str
    name: str
    most_input: float | None = None
    most_output: float | None = None

    def holds(self, input_tokens: Ints, output_tokens: Ints) -> Bools:
        """bool (n,): whether requests are within its bounds; they belong to the first class that holds them."""
        most_input, most_output = (np.inf if most is None else most for most in (self.most_input, self.most_output))
        return np.asarray((input_tokens <= most_input) & (output_tokens <= most_output))


@dataclass(frozen=True)
class ModelPhase:
    """One phase of one model with its SLO and demand; served by its own instances.

    Attributes:
        model: The architecture.
        phase: ``"prefill"``, ``"decode"`` or ``"mixed"``.
        prefill_ms: SLO on the time to first token, ms.
        decode_ms: SLO on the time per output token, ms.
        demand_tokens_s: Required throughput T_m in tokens/s: input tokens for prefill, output tokens otherwise.
        mean_input_tokens: Mean prompt length in tokens.
        mean_output_tokens: Mean answer length in tokens.
        throughput_headroom: Share of the demand planned beyond it, dimensionless; 0.2 plans 20 % more.
        latency_headroom: Share of the SLO that execution may not take, 0 up to below 1: room for queues, KV transfers and
            requests longer than the mean.
        attainment: Share of requests that must meet the SLOs, inside (0, 1); ``None`` plans for mean requests.
        input_spread: How prompt lengths vary around their mean.
        output_spread: How answer lengths vary around theirs.
        serving: How engines and the router work.
        variant: Which of the model's variants it is of; ``None`` where the model has none.
        prefix_hit: Share of every prompt whose KV cache is there already, inside [0, 1).
        request_class: Which class of the model's requests it is for; ``None`` where there are none.
    """

    model: ModelArchitecture
    phase: Phase
    prefill_ms: float
    decode_ms: float
    demand_tokens_s: float
    mean_input_tokens: float
    mean_output_tokens: float
    throughput_headroom: float = 0.0
    latency_headroom: float = 0.0
    attainment: float | None = None
    input_spread: LengthSpread = USUAL_SPREAD
    output_spread: LengthSpread = USUAL_SPREAD
    serving: Serving = PAPER_SERVING
    variant: Variant | None = None
    prefix_hit: float = 0.0
    request_class: RequestClass | None = None

    @property
    def computed_tokens(self) -> float:
        """Tokens of a mean prompt that are computed, and whose KV cache is sent."""
        return self.mean_input_tokens * (1.0 - self.prefix_hit)

    @property
    def served(self) -> str:
        """Name of the model that requests ask for."""
        part = self.variant or self.request_class
        return self.model.name if part is None else part.of

    @property
    def requested(self) -> str:
        """Name of the requests that this phase, or another one in its place, serves: the model's, or those of a class."""
        return self.model.name if self.request_class else self.served

    @property
    def lengths(self) -> LengthPair:
        """Lengths of prompts and answers as distributions."""
        return LengthPair(
            LengthDistribution(self.mean_input_tokens, self.input_spread),
            LengthDistribution(self.mean_output_tokens, self.output_spread),
        )

    @property
    def needed_tokens_s(self) -> float:
        """Throughput that a plan must give, tokens/s: the demand and its headroom."""
        return self.demand_tokens_s * (1.0 + self.throughput_headroom)

    @property
    def request_tokens(self) -> float:
        """Tokens of a mean request that this phase counts in its demand; 1 at least, since a simulated request has one."""
        return max(self.mean_input_tokens if self.phase == "prefill" else self.mean_output_tokens, 1.0)

    @property
    def simulated_requests_s(self) -> float:
        """Requests/s whose tokens make the demand where each has one at least."""
        return self.demand_tokens_s / self.request_tokens

    @property
    def requests_s(self) -> float:
        """Requests/s behind the demand."""
        return self.demand_tokens_s / (self.mean_input_tokens if self.phase == "prefill" else self.mean_output_tokens)

    @property
    def prefill_budget_ms(self) -> float:
        """Time that the execution of a mean prompt may take, ms: the SLO less its headroom and the host's time."""
        return self.prefill_ms * (1.0 - self.latency_headroom) - self.serving.host_request_ms

    @property
    def decode_budget_ms(self) -> float:
        """Time that one decoding round of mean sequences may take, ms: the SLO less its headroom."""
        return self.decode_ms * (1.0 - self.latency_headroom)

    @property
    def budget_ms(self) -> float:
        """The budget of this phase, ms (for ``mixed`` the one per output token)."""
        return self.prefill_budget_ms if self.phase == "prefill" else self.decode_budget_ms

    @property
    def key(self) -> str:
        """``"qwen3-32b/prefill"``: unique inside a scenario, used in every file and table."""
        return f"{self.model.name}/{self.phase}"

    @property
    def slo_ms(self) -> float:
        """The SLO of this phase, ms (for ``mixed`` the one per output token)."""
        return self.prefill_ms if self.phase == "prefill" else self.decode_ms
