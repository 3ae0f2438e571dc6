"""Sections about models: architectures, checkpoints, variants, adapters, and what an operator asks for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from coralopt.catalog.types import KvFormat, WeightFormat
from coralopt.scenario.facts.phases import Mode
from coralopt.scenario.file.fields import Count, Layers, Name, Positive, Rate, Section, Share, Size, Text, Usd, Word
from coralopt.scenario.file.requests import Demand, Slo


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
