"""Sections about how models are placed and served, and where their step times come from."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal

from pydantic import Field, model_validator

from coralopt.catalog.types import KvFormat, WeightFormat
from coralopt.routing import Routing
from coralopt.scenario.facts.facts import SharingWay
from coralopt.scenario.file.fields import HostMilliseconds, Name, Positive, Section, Text


class Pruning(Section):
    """Which node sets become templates (paper, section 4.2)."""

    max_nodes: Annotated[int, Field(ge=1, le=32)] = Field(default=6, description="N_max: most nodes in one template")
    memory_ratio: Annotated[float, Field(gt=1, le=1e6)] = Field(
        default=12.0, description="rho: several nodes hold less GPU memory than this many times the model's weights"
    )


class Placing(Section):
    """What placements may look like; the defaults are the paper's (section 4.2)."""

    engine: Literal["any", "same-tp", "one-node-stages", "equal-replicas", "vllm"] = Field(
        default="any", description="which placements the engine can run: any, or only those of a restricted engine"
    )
    latency_budgets: Literal["equal", "free"] = Field(
        default="equal", description="equal: SLO / S for each of S stages; free: any multiples of a grid that add up"
    )
    budget_units: Annotated[int, Field(ge=1, le=16)] = Field(
        default=2, description="grid of free budgets: SLO / (S * budget_units), a whole number of units a stage"
    )
    network: Literal["node", "link"] = Field(
        default="node", description="node: transfers at the sender's bandwidth; link: at the slower end's"
    )

    @model_validator(mode="after")
    def _one_extension(self) -> Placing:
        if self.latency_budgets == "free" and self.network == "link":
            raise ValueError("latency_budgets: free and network: link cannot be combined; choose one")
        return self


class ServingPolicy(Section):
    """How engines and the router work; a preset says all, single keys override it."""

    preset: Literal["engine", "paper"] = Field(
        default="engine",
        description="engine: as engines work, with what was measured of them; paper: the paper's idealised ones",
    )
    routing: Routing | None = Field(default=None, description="which instance gets a request")
    order: Literal["fifo", "hopeless-last", "shortest-first"] | None = Field(
        default=None, description="which waiting request an instance takes first"
    )
    admission: Literal["reserve", "preempt"] | None = Field(
        default=None,
        description="reserve: KV cache of the whole answer is set aside; preempt: it grows, and a sequence starts again",
    )
    reserve_gib: Annotated[float, Field(ge=0, le=1000)] | None = Field(
        default=None, description="memory of a GPU besides weights and KV cache, in GiB"
    )
    host_step_ms: HostMilliseconds | None = Field(default=None, description="host time of each step, in ms")
    host_request_ms: HostMilliseconds | None = Field(
        default=None, description="host time before the first token of a request, in ms"
    )
    step_tokens: Annotated[int, Field(ge=16, le=1_000_000)] | None = Field(
        default=None, description="most tokens of one step, prompts and decoded ones, a whole number"
    )
    async_scheduling: bool | None = Field(
        default=None, description="whether a mixed instance chooses a step while the one before it runs"
    )


class SharingPolicy(Section):
    """Small models side by side on one node: their steps take turns, or each has a slice, or their weights come and go."""

    models: Annotated[int, Field(ge=2, le=4)] = Field(default=4, description="most models on one node, 2 to 4")
    ways: list[SharingWay] = Field(
        default=["turns"],
        min_length=1,
        description="turns: a step each; slices: MIG slices of a GPU; swapping: weights come and go, a model at a time",
    )
    swap_gb_s: Positive | None = Field(
        default=None, description="rate at which weights come to a GPU or leave it, in 1e9 bytes/s"
    )
    swap_s: dict[Name, Annotated[float, Field(gt=0, le=3600)]] = Field(
        default_factory=dict,
        description="key of 'models' -> measured time from one model's last step to this one's first, in seconds",
    )
    asleep_gib: Annotated[float, Field(ge=0, le=1000)] = Field(
        default=1.0, description="memory of a GPU that an engine keeps while its weights are away, in GiB"
    )


class MeasuredTimes(Section):
    """Times of one phase on a grid of token counts and batches; ``coralopt profile`` writes them."""

    tokens: list[Positive] = Field(min_length=1, description="prompt length (prefill) or context (decode), in tokens")
    batch: list[Positive] = Field(min_length=1, description="prompts (prefill) or sequences (decode), a whole number")
    layer_ms: list[list[float]] = Field(description="a row a token count: time of one layer by batch, in ms")
    other_ms: list[list[float]] = Field(description="a row a token count: time of what is not a layer by batch, in ms")

    @model_validator(mode="after")
    def _grid(self) -> MeasuredTimes:
        for name in ("tokens", "batch"):
            values = getattr(self, name)
            if any(b <= a for a, b in itertools.pairwise(values)):
                raise ValueError(f"'{name}' must rise")
        for name in ("layer_ms", "other_ms"):
            rows = getattr(self, name)
            if len(rows) != len(self.tokens) or any(len(row) != len(self.batch) for row in rows):
                raise ValueError(f"'{name}' must have {len(self.tokens)} rows of {len(self.batch)} numbers")
            if any(value < 0 for row in rows for value in row):
                raise ValueError(f"'{name}' holds a negative time")
        return self


class MeasuredNode(Section):
    """Measured times of one model on one node configuration."""

    model: Name = Field(description="name of the model or of its checkpoint")
    configuration: Name = Field(description="node configuration, for example 1xH200")
    weight_format: WeightFormat = Field(description="format of the weights that were measured")
    kv_format: KvFormat | None = Field(default=None, description="format of the KV cache then; default: bf16")
    measured_with: Text = Field(description="engine, versions and device")
    prefill: MeasuredTimes = Field(description="times of whole prompts")
    decode: MeasuredTimes = Field(description="times of one token a sequence")
    mixed_factor: Annotated[float, Field(gt=0, le=100)] | None = Field(
        default=None, description="layers of measured mixed steps over what prefill and decode times make of them"
    )
    host_step_ms: HostMilliseconds | None = Field(
        default=None, description="host time of each step, in ms, not part of 'other_ms'"
    )
    host_request_ms: HostMilliseconds | None = Field(
        default=None, description="host time before the first token of a request, in ms, not part of 'other_ms'"
    )


class Throughput(Section):
    """Where throughput tables come from."""

    source: Literal["auto", "silicon", "roofline", "measured"] = Field(
        default="auto", description="source of the throughput tables"
    )
    measured: list[MeasuredNode] = Field(
        default_factory=list, description="measured times; in a file: paths of files that `coralopt profile` wrote"
    )
