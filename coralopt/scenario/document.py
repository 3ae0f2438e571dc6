"""The scenario document: the shape of the file, as pydantic models. Names are looked up in ``resolve``.

Every description of a quantity ends with its unit; it is shown as the hint when the value is refused.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    field_validator,
    model_validator,
)

from coralopt.catalog.types import KvFormat, Vendor, WeightFormat
from coralopt.routing import Routing
from coralopt.scenario.lengths import LengthDistribution, through_quantiles
from coralopt.scenario.parts import Mode, SharingWay

#: Characters of names: none that a shell, YAML, a terminal or a DNS server reads as more than itself.
NAME_FORM = r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"
Name = Annotated[str, Field(pattern=NAME_FORM, max_length=100)]
#: Names that others gave, of checkpoints (paths too) and instance types; empty where there is none.
Word = Annotated[str, Field(pattern=r"^([A-Za-z0-9._/~][A-Za-z0-9._/~@+:=-]*)?$", max_length=300)]
Text = Annotated[str, Field(max_length=2000)]
Milliseconds = Annotated[float, Field(ge=1, le=3_600_000)]
HostMilliseconds = Annotated[float, Field(ge=0, le=60_000)]


def _zero_or_some(rate: float) -> float:
    if 0 < rate < LEAST_RATE:
        raise ValueError(f"must be 0 or at least {LEAST_RATE:g}, not {rate:g}")
    return rate


#: Requests or tokens a second below which nobody asks for anything: one in thirty years.
LEAST_RATE = 1e-9
Rate = Annotated[float, Field(ge=0, le=1e12), AfterValidator(_zero_or_some)]
Tokens = Annotated[float, Field(gt=0, le=1e8)]
Variation = Annotated[float, Field(ge=0, le=20)]
Usd = Annotated[float, Field(ge=0, le=1e6)]
Positive = Annotated[float, Field(gt=0, le=1e9)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Size = Annotated[int, Field(ge=1, le=10_000_000)]
Layers = Annotated[int, Field(ge=1, le=1000)]


class Section(BaseModel):
    """Unknown keys are refused, and a number is a number: no text, no truth values, no NaN."""

    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


#: Names of the time limits before they had those of the field, which stay readable -> name.
SLO_ALIASES = {"prefill_ms": "ttft_ms", "decode_ms": "tpot_ms"}


def _slo_schema(schema: dict[str, JsonValue]) -> None:
    """Editors accept either name of a limit."""
    fields, required = schema["properties"], schema["required"]
    assert isinstance(fields, dict)
    assert isinstance(required, list)
    for old, name in SLO_ALIASES.items():
        fields[old] = {**dict(fields[name]), "deprecated": True}  # type: ignore[arg-type]
        required.remove(name)
    schema["allOf"] = [{"oneOf": [{"required": [name]}, {"required": [old]}]} for old, name in SLO_ALIASES.items()]


class Slo(Section):
    """Latency service-level objectives of a model."""

    model_config = ConfigDict(json_schema_extra=_slo_schema)

    ttft_ms: Milliseconds = Field(
        validation_alias=AliasChoices("ttft_ms", "prefill_ms"), description="time to first token, in ms"
    )
    tpot_ms: Milliseconds = Field(
        validation_alias=AliasChoices("tpot_ms", "decode_ms"), description="time per output token, in ms"
    )
    attainment: Literal["mean"] | Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.99,
        description="share of requests that meet both, above 0 and below 1; or mean: plan for mean requests, as the paper",
    )

    @model_validator(mode="before")
    @classmethod
    def _one_name(cls, data: object) -> object:
        for old, name in SLO_ALIASES.items():
            if isinstance(data, Mapping) and old in data and name in data:
                raise ValueError(f"give {name} or {old} (the same limit by its old name), not both")
        return data

    @field_validator("attainment", mode="before")
    @classmethod
    def _share(cls, value: object) -> object:
        if value == "mean" or (isinstance(value, float) and 0 < value < 1):
            return value
        raise ValueError(f"must be mean, or a share of requests above 0 and below 1 (0.99 is 99 %), not {value!r}")


class Quantiles(Section):
    """Lengths by the shares of requests that do not exceed them."""

    quantiles: dict[str, Tokens] = Field(description="share ('0.5', '0.95'; '1' is the longest) -> length, in tokens")

    @field_validator("quantiles", mode="after")
    @classmethod
    def _add_up(cls, quantiles: dict[str, float]) -> dict[str, float]:
        through_quantiles(_pairs(quantiles))
        return quantiles

    @property
    def distribution(self) -> LengthDistribution:
        """The distribution through them."""
        return through_quantiles(_pairs(self.quantiles))


def _pairs(quantiles: Mapping[str, float]) -> list[tuple[float, float]]:
    pairs = []
    for text, tokens in quantiles.items():
        try:
            share = float(text)
        except ValueError:
            share = math.nan
        if not 0 < share <= 1:
            raise ValueError(f"'{text[:30]}' is no share; write shares above 0 and at most 1, for example '0.95'")
        pairs.append((share, float(tokens)))
    return pairs


class Lengths(Section):
    """Lengths of requests as quantiles, where they are not lognormal; a trace's become quantiles when a file is read."""

    input: Quantiles | None = Field(default=None, description="of prompts: quantiles, in tokens")
    output: Quantiles | None = Field(default=None, description="of answers: quantiles, in tokens")
    trace: Text | None = Field(
        default=None,
        description="in a scenario file: path of a CSV file with the columns input_tokens and output_tokens",
    )

    @model_validator(mode="after")
    def _no_trace_left(self) -> Lengths:
        if self.trace is not None:
            raise ValueError("a trace is read with a scenario file, and stands alone: no input or output beside it")
        return self


class DemandClass(Section):
    """Some of the requests, told apart by their lengths: the first class that holds a request has it."""

    requests_s: Rate = Field(description="request rate, in requests/s")
    most_input: Tokens | None = Field(default=None, description="longest prompt, in tokens; default: any")
    most_output: Tokens | None = Field(
        default=None, description="longest answer that is asked for (max_tokens), in tokens; default: any"
    )
    input_tokens: Tokens | None = Field(default=None, description="mean prompt length, in tokens")
    output_tokens: Tokens | None = Field(default=None, description="mean answer length, in tokens")
    dataset: Literal["azure-code", "azure-conv", "burstgpt"] | None = Field(
        default=None, description="published trace whose mean lengths are used"
    )
    input_cv: Variation | None = Field(
        default=None, description="coefficient of variation of prompt lengths (lognormal); default: 1"
    )
    output_cv: Variation | None = Field(
        default=None, description="coefficient of variation of answer lengths (lognormal); default: 1"
    )
    lengths: Lengths | None = Field(default=None, description="input and output: quantiles, in tokens")

    @model_validator(mode="after")
    def _one_length(self) -> DemandClass:
        _check_lengths(self)
        return self


class Demand(Section):
    """What must be served: a rate (requests, or tokens of each phase) and mean lengths (or a data set with them)."""

    requests_s: Rate | None = Field(default=None, description="request rate, in requests/s")
    prefill_tokens_s: Rate | None = Field(default=None, description="input tokens to process, in tokens/s")
    decode_tokens_s: Rate | None = Field(default=None, description="output tokens to generate, in tokens/s")
    mixed_tokens_s: Rate | None = Field(default=None, description="output tokens of mixed instances, in tokens/s")
    input_tokens: Tokens | None = Field(default=None, description="mean prompt length, in tokens")
    output_tokens: Tokens | None = Field(default=None, description="mean answer length, in tokens")
    dataset: Literal["azure-code", "azure-conv", "burstgpt"] | None = Field(
        default=None, description="published trace whose mean lengths are used"
    )
    input_cv: Variation | None = Field(
        default=None, description="coefficient of variation of prompt lengths (lognormal); default: 1"
    )
    output_cv: Variation | None = Field(
        default=None, description="coefficient of variation of answer lengths (lognormal); default: 1"
    )
    lengths: Lengths | None = Field(default=None, description="input and output: quantiles, in tokens")
    prefix_hit: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="share of the prompt tokens whose KV cache is there already, 0 to below 1"
    )
    min_quality: Share | None = Field(
        default=None, description="least mean quality of the requests over the model's variants, above 0 to 1"
    )
    min_shares: dict[Name, Share] = Field(
        default_factory=dict, description="variant -> least share of the requests that it serves, above 0 to 1"
    )
    classes: dict[Name, DemandClass] = Field(
        default_factory=dict, description="name -> some of the requests, by their lengths, with their rate"
    )

    @model_validator(mode="after")
    def _one_rate_and_one_length(self) -> Demand:
        given = {name for name, value in self if value is not None}
        rates = given & {"prefill_tokens_s", "decode_tokens_s", "mixed_tokens_s"}
        if self.classes:
            _check_classes(self, given)
            return self
        if "requests_s" in given and rates:
            raise ValueError(f"give requests_s or {', '.join(sorted(rates))}, not both")
        if "requests_s" not in given and not rates:
            raise ValueError("the rate is missing: give requests_s, or prefill_tokens_s and decode_tokens_s")
        _check_lengths(self)
        return self


def _check_lengths(demand: Demand | DemandClass) -> None:
    """Lengths are said once: as means, by quantiles, or by a data set."""
    given = {name for name, value in demand if value is not None}
    lengths = given & {"input_tokens", "output_tokens"}
    if "dataset" in given and (lengths or demand.lengths):
        others = sorted(lengths | ({"lengths"} if demand.lengths else set()))
        raise ValueError(f"give dataset or {', '.join(others)}, not both")
    for side in ("input", "output"):
        quantiles = None if demand.lengths is None else getattr(demand.lengths, side)
        mean = getattr(demand, f"{side}_tokens")
        if quantiles is None:
            if "dataset" not in given and mean is None:
                raise ValueError("the lengths are missing: give input_tokens and output_tokens, or a dataset")
            continue
        if f"{side}_cv" in given:
            raise ValueError(f"give {side}_cv or lengths.{side}, not both")
        own = quantiles.distribution.mean
        if mean is not None and abs(mean - own) > 0.05 * own:
            raise ValueError(
                f"{side}_tokens says a mean of {mean:g} tokens, the quantiles of lengths.{side} have one of {own:.4g}; "
                f"leave {side}_tokens out, or correct one of them"
            )


def _check_classes(demand: Demand, given: set[str]) -> None:
    """Classes have rates and lengths of their own, and the last one takes what no other holds."""
    beside = sorted(given - {"requests_s", "prefix_hit", "classes", "min_quality", "min_shares"})
    if beside:
        raise ValueError(f"{', '.join(beside)}: classes have rates and lengths of their own; leave it out beside them")
    total = sum(entry.requests_s for entry in demand.classes.values())
    if demand.requests_s is not None and abs(demand.requests_s - total) > 1e-6 * max(total, demand.requests_s):
        raise ValueError(
            f"requests_s is {demand.requests_s:g}, those of the classes sum to {total:g}; leave it out, or correct one"
        )
    *others, last = demand.classes
    for name in others:
        if demand.classes[name].most_input is None and demand.classes[name].most_output is None:
            raise ValueError(f"class '{name}' holds every request, so none is left for those behind it; give it bounds")
    if demand.classes[last].most_input is not None or demand.classes[last].most_output is not None:
        raise ValueError(f"class '{last}' is the last one and takes what no other does; leave its bounds out")


class Latent(Section):
    """Multi-head latent attention: one compressed vector a token in place of every head's keys and values."""

    rank: Size = Field(description="width of the compressed keys and values (kv_lora_rank)")
    rope: Size = Field(description="width of the shared key that carries positions (qk_rope_head_dim)")
    nope: Size = Field(description="width of a head's key without it (qk_nope_head_dim)")
    value: Size = Field(description="width of a head's value (v_head_dim)")
    query_rank: Count = Field(default=0, description="width of compressed queries (q_lora_rank); 0 for none")


class InlineModel(Section):
    """A decoder-only transformer that the catalog does not have; parameter counts follow from the sizes.

    The fields are those of :class:`coralopt.catalog.shapes.ModelShape`.
    """

    layers: Layers = Field(description="decoder layers")
    hidden: Size = Field(description="width of the residual stream")
    heads: Size = Field(description="query heads")
    kv_heads: Size = Field(description="key/value heads")
    head_dim: Size = Field(description="width of one head")
    vocab: Size = Field(description="vocabulary size")
    intermediate: Count = Field(
        default=0, description="width of the gated dense feed-forward block; 0 for a pure MoE model"
    )
    experts: Count = Field(default=0, description="routed experts a layer")
    experts_per_token: Count = Field(default=0, description="experts a token is routed to")
    expert_intermediate: Count = Field(default=0, description="width of one gated expert")
    shared_intermediate: Count = Field(default=0, description="width of all experts together that every token takes")
    dense_layers: Count = Field(default=0, description="layers of an MoE model without experts")
    tied_embeddings: bool = Field(default=False, description="whether the output head shares the embedding")
    latent: Latent | None = Field(default=None, description="multi-head latent attention (DeepSeek, Kimi)")
    attention_params_per_layer: Annotated[int, Field(ge=1, le=10**12)] | None = Field(
        default=None, description="parameters of the attention block, when they do not follow from the heads"
    )
    kv_elements_per_token_per_layer: Size | None = Field(
        default=None, description="elements of K and V a token, when they do not follow from the heads"
    )
    weight_format: WeightFormat = Field(default="bf16", description="format of the quantised weights")
    kv_format: KvFormat = Field(default="bf16", description="format of the KV cache")
    sliding_window: Size | None = Field(default=None, description="window of the sliding-window layers, in tokens")
    sliding_layers: Count = Field(default=0, description="how many layers use that window")
    max_position: Annotated[int, Field(ge=1, le=10**9)] = Field(
        default=131_072, description="longest context, in tokens"
    )
    hf_id: Word = Field(default="", description="name of the published checkpoint")
    source: Text = Field(default="given in the scenario", description="where the figures come from")

    @model_validator(mode="after")
    def _consistent(self) -> InlineModel:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        moe = (self.experts, self.experts_per_token, self.expert_intermediate)
        if any(moe) and not all(moe):
            raise ValueError("an MoE model needs experts, experts_per_token and expert_intermediate, all above 0")
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token ({self.experts_per_token}) exceeds experts ({self.experts})")
        if not self.experts and not self.intermediate:
            raise ValueError("give intermediate (dense model) or the three expert sizes (MoE model)")
        if self.dense_layers and not 0 < self.dense_layers < self.layers:
            raise ValueError(f"dense_layers ({self.dense_layers}) must be fewer than layers ({self.layers})")
        if not self.experts and (self.dense_layers or self.shared_intermediate):
            raise ValueError(
                "dense_layers and shared_intermediate are for MoE models; a dense model has intermediate only"
            )
        if self.sliding_layers > self.layers:
            raise ValueError(f"sliding_layers ({self.sliding_layers}) exceeds layers ({self.layers})")
        if bool(self.sliding_layers) != (self.sliding_window is not None):
            raise ValueError("sliding_window and sliding_layers go together")
        return self


def _model_form(value: object) -> str:
    return "<inline>" if isinstance(value, Mapping | InlineModel) else "<name>"


class Limits(Section):
    """The most that may be rented: of the whole pool, in a region, or for a model."""

    max_nodes: Count | None = Field(default=None, description="most nodes, a whole number")
    max_usd_h: Usd | None = Field(default=None, description="most rent, in USD/h")
    max_gpus: dict[Name, Count] | None = Field(
        default=None, description="quota: GPU type -> most GPUs of that type, in nodes of any size, a whole number"
    )


class Unmet(Section):
    """What a token that is not served costs, where demand may go unmet (--on-infeasible shortfall, demand_cases)."""

    input_usd_mtok: Usd = Field(default=0.0, description="price of unserved input tokens, in USD per million tokens")
    output_usd_mtok: Usd = Field(default=0.0, description="price of unserved output tokens, in USD per million tokens")
    usd_per_1000_requests: Usd | None = Field(
        default=None, description="price of unserved requests on top, in USD per 1,000 requests"
    )


class DemandCase(Section):
    """One of several demands that may come: that of the models, times a factor."""

    probability: Annotated[float, Field(gt=0, le=1)] = Field(description="how likely it is, above 0, at most 1")
    factor: Annotated[float, Field(ge=0, le=1000)] = Field(
        default=1.0, description="what every demand is multiplied by"
    )
    factors: dict[Name, Annotated[float, Field(ge=0, le=1000)]] = Field(
        default_factory=dict, description="a key of 'models' -> its own factor"
    )


class Speculation(Section):
    """Speculative decoding: tokens are proposed, and the model checks all of them in one pass."""

    tokens: Annotated[int, Field(ge=1, le=64)] = Field(description="proposed tokens a step, a whole number")
    acceptance_length: Annotated[float, Field(ge=1, le=65)] = Field(
        description="mean tokens that a step makes, 1 to tokens + 1"
    )
    draft: Name | None = Field(
        default=None, description="catalog name of the model that proposes; default: the prompt itself (n-grams)"
    )

    @model_validator(mode="after")
    def _at_most_all(self) -> Speculation:
        if self.acceptance_length > self.tokens + 1:
            raise ValueError(
                f"acceptance_length is {self.acceptance_length:g}, but a step with {self.tokens} proposed tokens makes at "
                f"most {self.tokens + 1}"
            )
        return self


class Checkpoint(Section):
    """What engines load."""

    model: (
        Annotated[Annotated[Name, Tag("<name>")] | Annotated[InlineModel, Tag("<inline>")], Discriminator(_model_form)]
        | None
    ) = Field(
        default=None,
        description="catalog name, checkpoint name, an inline architecture, or in a file the path of a config.json or of "
        "a checkpoint's folder; default: the key",
    )
    hf_id: Word | None = Field(default=None, description="name or path of the checkpoint that engines are to load")
    weight_format: WeightFormat | None = Field(
        default=None, description="format of the weights, if another one is wanted"
    )
    kv_format: KvFormat | None = Field(default=None, description="format of the KV cache; default: bf16")


class VariantEntry(Checkpoint):
    """One of the ways to serve a model: what differs from the model, or from another variant."""

    base: Name | None = Field(default=None, description="variant that this one differs from; default: the model")
    speculative: Speculation | None = Field(default=None, description="tokens, acceptance_length and draft")
    quality: Share = Field(description="how good its answers are, above 0 to 1 (the best: 1)")


class Adapter(Section):
    """One LoRA adapter of a model; lengths of its requests are those of the model's demand."""

    requests_s: Rate = Field(description="request rate for this adapter, on top of the model's, in requests/s")
    hf_id: Word | None = Field(default=None, description="name or path of its checkpoint; default: its name")


class Lora(Section):
    """LoRA adapters of a model, served together with it: one phase, more memory, slower steps."""

    adapters: dict[Name, Adapter] = Field(min_length=1, description="name that requests use -> its rate and checkpoint")
    step_factor: Annotated[float, Field(ge=1, le=100)] = Field(
        description="time of a step with adapters over one without, as measured, at least 1"
    )
    rank: Literal[8, 16, 32, 64, 128, 256, 320, 512] = Field(
        default=16, description="rank that engines set memory aside for, at least the largest of an adapter"
    )
    adapter_gib: Positive | None = Field(
        default=None, description="memory of one adapter; default: from rank and the model's shape, in GiB"
    )


class Model(Checkpoint):
    """One model to serve."""

    variants: dict[Name, VariantEntry] = Field(
        default_factory=dict, description="name -> one of the ways to serve it; the plan chooses"
    )
    lora: Lora | None = Field(default=None, description="LoRA adapters: adapters, step_factor and rank")
    mode: Mode | None = Field(default=None, description="how this model is served; default: the scenario's mode")
    slo: Slo = Field(description="ttft_ms and tpot_ms, in ms, and attainment, a share")
    demand: Demand = Field(description="rate and mean lengths")
    limits: Limits = Field(default_factory=Limits, description="most nodes and USD/h at list prices for this model")
    min_replicas: Annotated[int, Field(ge=0, le=100_000)] = Field(
        default=0, description="least serving instances of each phase, a whole number"
    )
    survive_region_loss: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="share of the demand that is still served when any one region is lost, 0 to 1"
    )
    survive_instance_loss: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="share of the demand that is still served when any one instance is lost, 0 to 1"
    )
    forbidden: list[Name] = Field(default_factory=list, description="GPU types and node configurations not to use")
    unmet: Unmet | None = Field(default=None, description="price of unserved tokens, in USD per million tokens")


class CustomGpu(Section):
    """A GPU type that the catalog does not have."""

    base: Name | None = Field(
        default=None, description="GPU of the catalog that this is a variant of: its figures hold"
    )
    mig: Annotated[str, Field(pattern=r"^[1-7]g\.[1-9][0-9]{0,2}gb$")] | None = Field(
        default=None, description="MIG profile of the slice of 'base' that this is, for example 3g.40gb"
    )
    memory_gib: Positive | None = Field(default=None, description="usable device memory, in GiB")
    bandwidth_gb_s: Positive | None = Field(default=None, description="peak memory bandwidth, in 1e9 bytes/s")
    bf16_tflops: Positive | None = Field(default=None, description="dense BF16 peak, in 1e12 FLOP/s")
    fp8_tflops: Positive | None = Field(
        default=None, description="dense FP8 peak, in 1e12 FLOP/s; leave out if there is none"
    )
    link_gb_s: Positive | None = Field(
        default=None, description="GPU to GPU inside a node, one direction, in 1e9 bytes/s a GPU"
    )
    nvlink: bool | None = Field(default=None, description="whether that link is NVLink or its equal; default: no")
    architecture: Text | None = Field(default=None, description="silicon generation")
    vendor: Vendor | None = Field(
        default=None, description="whose drivers it needs: nvidia or amd; default: as its name says"
    )
    source: Text | None = Field(default=None, description="where the figures come from")

    @model_validator(mode="after")
    def _complete(self) -> CustomGpu:
        wanted = ("memory_gib", "bandwidth_gb_s", "bf16_tflops", "link_gb_s")
        missing = [name for name in wanted if getattr(self, name) is None]
        if self.base is None and missing:
            raise ValueError(f"give {', '.join(missing)}, or the GPU of the catalog whose figures hold: base")
        if self.mig is not None and (self.base is None or len(missing) < len(wanted)):
            raise ValueError("a MIG slice has its figures from base and mig alone")
        return self


class CustomNode(Section):
    """A node configuration that the catalog does not have."""

    gpu: Name = Field(description="GPU type of the catalog or of 'gpus'")
    count: Annotated[int, Field(ge=1, le=64)] = Field(description="GPUs in the node")
    network_gb_s: Positive = Field(description="network of the node, one direction, in 1e9 bytes/s (Gbit/s / 8)")


class SpotEntry(Section):
    """Spot nodes of one configuration in one region, beside those on demand."""

    available: Count = Field(description="spot nodes that can be rented, a whole number")
    price_usd_h: Usd | None = Field(
        default=None, description="spot price in place of the catalog's, in USD per node-hour"
    )
    preemption_usd_h: Usd = Field(
        default=0.0, description="what preemptions cost on top, on average, in USD per node-hour"
    )


class Commitment(Section):
    """Nodes that may be had at a price of their own by paying for whole terms."""

    nodes: Count = Field(description="how many of the available nodes may be committed to, a whole number")
    price_usd_h: Usd = Field(description="price while committed, in USD per node-hour")
    term_h: Positive = Field(description="what is paid for at least, and again when it is over, in hours")


class PoolEntry(Section):
    """Supply of one node configuration in one region."""

    available: Count = Field(description="nodes that can be rented, a whole number; 0 beside spot nodes alone")
    reserved: Count = Field(
        default=0, description="how many of these are paid for already and cost nothing more, a whole number"
    )
    spot: SpotEntry | None = Field(default=None, description="spot nodes beside those")
    commitment: Commitment | None = Field(
        default=None, description="nodes among those on demand that a term makes cheaper: nodes, price_usd_h and term_h"
    )
    price_usd_h: Usd | None = Field(default=None, description="price in place of the catalog's, in USD per node-hour")
    instance_type: Word | None = Field(
        default=None, description="the cloud's name of the instance; overrides the catalog"
    )


def _entry_form(value: object) -> str:
    return "<entry>" if isinstance(value, Mapping | PoolEntry) else "<count>"


def _supply_form(value: object) -> str:
    return "<all>" if isinstance(value, str) else "<list>" if isinstance(value, list) else "<each>"


Entry = Annotated[Annotated[Count, Tag("<count>")] | Annotated[PoolEntry, Tag("<entry>")], Discriminator(_entry_form)]
Supply = Annotated[
    Annotated[Literal["all"], Tag("<all>")]
    | Annotated[list[Name], Tag("<list>")]
    | Annotated[dict[Name, Entry], Tag("<each>")],
    Discriminator(_supply_form),
]


class Region(Section):
    """Supply of one region."""

    available: Count | None = Field(
        default=None, description="nodes of each configuration when 'configurations' is a list or 'all', a whole number"
    )
    configurations: Supply = Field(
        description="configuration -> nodes available (a whole number, or available, price_usd_h, instance_type); "
        "or a list of configurations; or all: everything the catalog has a price for"
    )
    limits: Limits = Field(default_factory=Limits, description="most nodes and USD/h in this region")

    @model_validator(mode="after")
    def _availability(self) -> Region:
        if isinstance(self.configurations, dict) and self.available is not None:
            raise ValueError(
                "'available' goes with a list of configurations or 'all'; here each configuration has its own"
            )
        if not isinstance(self.configurations, dict) and self.available is None:
            raise ValueError("'available' is missing: the number of nodes of each listed configuration")
        return self


class Pool(Section):
    """What can be rented, and at what price."""

    market: Literal["on-demand", "spot"] = Field(default="on-demand", description="which catalog price applies")
    catalog: Text | None = Field(
        default=None, description="in a scenario file: path of a catalog of prices, or user for the user's own"
    )
    regions: dict[Name, Region] = Field(description="region -> its supply")

    @model_validator(mode="after")
    def _no_catalog_left(self) -> Pool:
        if self.catalog is not None:
            raise ValueError("a catalog of prices is read with a scenario file; here give each price_usd_h")
        return self


class Egress(Section):
    """What it takes to send KV caches from one region to another; over what the catalog says."""

    usd_gb: Annotated[float, Field(ge=0, le=1000)] | None = Field(
        default=None, description="price, in USD per 1e9 bytes"
    )
    gbit_s: Positive | None = Field(default=None, description="what one node sends, in Gbit/s")
    allowed: bool = Field(default=True, description="whether KV caches may go this way at all")


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


class Headroom(Section):
    """Room that a plan leaves beyond mean demand and mean requests."""

    throughput: Annotated[float, Field(ge=0, le=100)] = Field(
        default=0.0, description="share of the demand planned beyond it: 0.2 plans 20 % more"
    )
    latency: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0,
        description="share of the SLO kept free for queues, KV transfers and long requests: 0.3 plans for 70 %",
    )


class Start(Section):
    """What starting an instance costs: its nodes are paid while they boot and load their weights."""

    load_gb_s: Positive = Field(
        default=0.31, description="rate at which one node loads weights into its GPUs, in 1e9 bytes/s"
    )
    boot_s: Annotated[float, Field(ge=0, le=86_400)] = Field(
        default=0.0, description="time of a node before it loads, in seconds"
    )
    interval_s: Annotated[float, Field(gt=0, le=1e8)] = Field(
        default=3600.0, description="time between two plans, over which it is spread, in seconds"
    )


class Running(Section):
    """Serving instances that run already."""

    model: Name = Field(description="a key of 'models'")
    phase: Literal["prefill", "decode", "mixed"] = Field(description="phase that the instances serve")
    region: Name = Field(description="a key of 'pool.regions'")
    nodes: dict[Name, Annotated[int, Field(ge=1, le=1000)]] = Field(
        description="node configuration -> number of nodes of one instance"
    )
    count: Annotated[int, Field(ge=1, le=1_000_000)] = Field(default=1, description="number of running instances")


class Solver(Section):
    """Who solves the allocation."""

    name: Annotated[str, Field(min_length=1, max_length=100)] = Field(default="highs", description="solver name")
    options: dict[str, JsonValue] = Field(
        default_factory=dict, description="common solver options, for example rel_gap"
    )

    @field_validator("options", mode="after")
    @classmethod
    def _finite(cls, options: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for name, value in options.items():
            try:
                json.dumps(value, allow_nan=False)
            except ValueError:
                raise ValueError(f"option '{name}' holds a number that is not finite") from None
        return options


class Document(Section):
    """A coralopt scenario: models with latency SLOs and demand, and the pool of nodes that may be rented."""

    name: Name | None = Field(default=None, description="name of the scenario; default: the name of the file")
    description: Text | None = Field(default=None, description="what this scenario is about")
    mode: Mode = Field(
        default="disaggregated",
        description="disaggregated: prefill and decode instances; mixed: instances that do both; auto: what costs less, "
        "or both with the requests split",
    )
    models: dict[Name, Model] = Field(description="model name -> its SLO and demand")
    pool: Pool = Field(description="regions and the nodes that they offer")
    kv_transfer: Literal["free", "region", "priced"] | None = Field(
        default=None,
        description="where decode may stand: free: anywhere; region: where the prefill is; priced (the default): anywhere "
        "at the price of egress, as far as there is one",
    )
    egress: dict[Name, dict[Name, Egress]] = Field(
        default_factory=dict, description="sending region -> receiving region, or any -> its price and bandwidth"
    )
    limits: Limits = Field(default_factory=Limits, description="most nodes and USD/h (the budget) of the whole plan")
    gpus: dict[Name, CustomGpu] = Field(default_factory=dict, description="GPU types beyond the catalog")
    nodes: dict[Name, CustomNode] = Field(default_factory=dict, description="node configurations beyond the catalog")
    templates: Literal["every", "on-demand"] | None = Field(
        default=None,
        description="every: all node sets of pruning become templates; on-demand: those that pay, with a bound over "
        "node sets of any size; default: every, as long as there are few enough",
    )
    pruning: Pruning = Field(default_factory=Pruning, description="which node sets become templates")
    placement: Placing = Field(default_factory=Placing, description="what placements may look like")
    serving: ServingPolicy = Field(default_factory=ServingPolicy, description="how engines and the router work")
    sharing: SharingPolicy | None = Field(
        default=None, description="models that may share a node; default: every instance has nodes of its own"
    )
    throughput: Throughput = Field(default_factory=Throughput, description="source of the throughput tables")
    headroom: dict[Annotated[str, Field(min_length=1, max_length=300)], Headroom] | None = Field(
        default=None,
        description="room by phase ('prefill') or model phase ('qwen3-32b/prefill', which wins); default: none",
    )
    running: list[Running] = Field(default_factory=list, description="serving instances that run already")
    transition: Literal["free", "start-first"] = Field(
        default="free",
        description="free: a new instance may have the nodes of one that stops; start-first: instances stop once the new "
        "ones run, so there must be nodes for both",
    )
    initialization_penalty: Annotated[float, Field(ge=0, le=1000)] = Field(
        default=0.1,
        description="K: node initialization time divided by the time between two plans (6 min / 60 min), a ratio",
    )
    demand_cases: dict[Name, DemandCase] = Field(
        default_factory=dict, description="name -> one of several demands that may come: probability and factor"
    )
    start: Start | None = Field(
        default=None,
        description="start costs by template, in place of initialization_penalty: load_gb_s, boot_s, interval_s",
    )
    horizon_h: Positive | None = Field(
        default=None, description="how long the plan is to hold, which says what a commitment costs, in hours"
    )
    solver: Solver = Field(default_factory=Solver, description="who solves the allocation")

    @model_validator(mode="before")
    @classmethod
    def _any_size(cls, data: object) -> object:
        """On demand, templates may be of any size unless the scenario says otherwise."""
        if isinstance(data, dict) and data.get("templates") == "on-demand":
            pruning = data.get("pruning") or {}
            if isinstance(pruning, dict):
                return {**data, "pruning": {"max_nodes": 32, "memory_ratio": 1e6, **pruning}}
        return data
