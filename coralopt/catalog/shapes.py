"""A model as its published sizes describe it, and everything that is counted from them."""

from __future__ import annotations

from dataclasses import dataclass

from coralopt.catalog.types import KvFormat, LatentAttention, ModelArchitecture, WeightFormat


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder-only transformer with gated feed-forward blocks.

    Attributes:
        layers: Decoder layers.
        hidden: Width of the residual stream.
        heads: Query heads.
        kv_heads: Key/value heads.
        head_dim: Width of one head.
        vocab: Vocabulary size.
        intermediate: Width of the dense feed-forward block: of the dense layers where a model has both kinds, of every layer
            otherwise; 0 where there is none.
        experts: Routed experts of a layer; 0 for a dense model.
        experts_per_token: Experts a token is routed to.
        expert_intermediate: Width of one expert.
        shared_intermediate: Width of all experts together that every token takes.
        dense_layers: Layers without experts.
        tied_embeddings: Whether the output head is the embedding.
        latent: Latent attention in the place of heads with keys and values of their own.
        attention_params_per_layer: Parameters of the attention block where they do not follow from the heads.
        kv_elements_per_token_per_layer: Elements of K and V of a token where they do not follow from the heads.
        weight_format: Format of the quantised weights.
        kv_format: Format of the KV cache.
        sliding_window: Window of the sliding-window layers, tokens.
        sliding_layers: How many layers use it.
        max_position: Longest context, tokens.
        hf_id: Name or path of the checkpoint; empty where there is none.
        source: Where the figures come from.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    intermediate: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    dense_layers: int = 0
    tied_embeddings: bool = False
    latent: LatentAttention | None = None
    attention_params_per_layer: int | None = None
    kv_elements_per_token_per_layer: int | None = None
    weight_format: WeightFormat = "bf16"
    kv_format: KvFormat = "bf16"
    sliding_window: int | None = None
    sliding_layers: int = 0
    max_position: int = 131_072
    hf_id: str = ""
    source: str = "given in the scenario"

    def architecture(self, name: str) -> ModelArchitecture:
        """Everything counted, under this name. Sizes of blocks that only some layers have are means over the layers."""
        attention, sparse = self._attention_params(), self.layers - self.dense_layers
        # Gated blocks have three matrices: gate, up and down. Every layer counts as dense where none is said to be.
        dense_layers = self.dense_layers if self.dense_layers and self.experts else self.layers
        dense = 3 * self.hidden * (dense_layers * self.intermediate + sparse * self.shared_intermediate)
        expert = 3 * self.hidden * self.expert_intermediate * sparse
        embedding = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        kv_elements = 2 * self.kv_heads * self.head_dim
        if self.latent is not None:
            kv_elements = self.latent.rank + self.latent.rope
        return ModelArchitecture(
            name=name,
            hf_id=self.hf_id or name,
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            vocab=self.vocab,
            experts=self.experts,
            experts_per_token=self.experts_per_token,
            attention_params_per_layer=attention,
            dense_ffn_params_per_layer=round(dense / self.layers),
            expert_params=round(expert / self.layers),
            embedding_params=embedding,
            total_params=self.layers * attention + dense + self.experts * expert + embedding,
            kv_elements_per_token_per_layer=self.kv_elements_per_token_per_layer or kv_elements,
            weight_format=self.weight_format,
            sliding_window=self.sliding_window,
            sliding_layers=self.sliding_layers,
            max_position=self.max_position,
            source=self.source,
            kv_format=self.kv_format,
            latent=self.latent,
        )

    def _attention_params(self) -> int:
        if self.attention_params_per_layer is not None:
            return self.attention_params_per_layer
        if self.latent is None:
            return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        latent, keys = self.latent, self.heads * (self.latent.nope + self.latent.rope)
        queries = self.hidden * keys
        if latent.query_rank:
            queries = (self.hidden + keys) * latent.query_rank
        compressed = self.hidden * (latent.rank + latent.rope)
        expanded = latent.rank * self.heads * (latent.nope + latent.value)
        return queries + compressed + expanded + self.heads * latent.value * self.hidden
