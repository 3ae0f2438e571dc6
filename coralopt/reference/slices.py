"""Some decoder layers of a Hugging Face causal language model, with a KV cache a request and no padding.

The rows of all requests of a micro-batch are laid one after the other, so that every matrix product sees the whole of it;
attention alone is computed request by request, by a function registered with transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.nn import functional

#: Name under which the attention function is registered with transformers.
ATTENTION = "coralopt_reference"

Function = TypeVar("Function", bound=Callable[..., Any])


def _inference(function: Function) -> Function:
    """No gradients; typed where torch is not installed, too."""
    decorated: Function = torch.inference_mode()(function)
    return decorated


class LayerSlice:
    """Decoder layers ``layers`` of the checkpoint in ``folder``; the embedding with the first, the head with the last.

    Args:
        folder: Checkpoint with ``config.json`` and safetensors; ``None``: dummy weights.
        layers: Consecutive layer numbers.
        device: Where to compute.
        dtype: Type of weights and activations.
        config: The transformers configuration; by default the checkpoint's.

    Raises:
        ValueError: The model is not built like Llama, Qwen, Mistral, Phi-3 or GPT-OSS, or weights are missing.
    """

    def __init__(
        self, folder: str | None, layers: range, device: torch.device, dtype: torch.dtype, config: Any = None
    ) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(folder) if config is None else config
        _register(config)
        with torch.device("meta"):
            whole = AutoModelForCausalLM.from_config(config, dtype=dtype)
        body: Any = getattr(whole, "model", None)
        wanted = ("embed_tokens", "layers", "norm", "rotary_emb")
        missing = [name for name in wanted if not hasattr(body, name)]
        if missing:
            raise ValueError(f"{type(whole).__name__} has no model.{missing[0]}: the reference engine cannot cut it")
        total = len(body.layers)
        if layers.stop > total:
            raise ValueError(f"the plan has layer {layers.stop - 1}, the checkpoint has {total} layers")
        self.config, self.device, self.dtype, self.layers = config, device, dtype, layers
        self.is_first, self.is_last = layers.start == 0, layers.stop == total
        parts = _parts(whole, layers, self.is_first, self.is_last)
        if folder is None:
            _fill(parts, device)
        elif not _load(folder, parts, bool(getattr(config, "tie_word_embeddings", False)), device, dtype):
            # transformers renames and joins tensors of some models (experts) when it loads them: load all, keep a part.
            whole = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=dtype)
            parts = _parts(whole, layers, self.is_first, self.is_last)
            for part in parts.values():
                part.to(device)
        self._blocks = [parts[f"model.layers.{n}"].eval() for n in layers]
        self._embed, self._norm, self._head = (
            parts.get("model.embed_tokens"),
            parts.get("model.norm"),
            parts.get("lm_head"),
        )
        # Its buffers are computed, not loaded: made anew, away from the meta device.
        self._rotary = type(body.rotary_emb)(config=config).to(device)
        for block in self._blocks:
            block.self_attn.coralopt = self
        self.hidden = int(config.hidden_size)
        self.kv_heads = int(config.num_key_value_heads)
        self.head_dim = int(getattr(config, "head_dim", None) or self.hidden // config.num_attention_heads)
        #: (layer, request) -> keys and values, each (KV heads, tokens, head).
        self.cache: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._lengths: list[int] = []
        self._requests: Sequence[int] = ()

    @_inference
    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        """(tokens, hidden) of token numbers; only the first slice."""
        assert self._embed is not None
        rows: torch.Tensor = self._embed(torch.tensor(tokens, device=self.device))
        return rows

    @_inference
    def forward(
        self, rows: torch.Tensor, requests: Sequence[int], lengths: Sequence[int], starts: Sequence[int]
    ) -> torch.Tensor:
        """Through all layers of the slice.

        Args:
            rows: (sum of ``lengths``, hidden), the requests' rows one after the other.
            requests: Their numbers: the keys of the cache.
            lengths: New tokens of each.
            starts: Tokens of each that are in the cache already.

        Returns:
            Rows of the same shape.
        """
        self._requests, self._lengths = requests, list(lengths)
        positions = torch.cat(
            [torch.arange(s, s + n, device=self.device) for s, n in zip(starts, lengths, strict=True)]
        )[None]
        return self.through(rows, positions)

    def through(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """(rows, hidden) through all layers, at ``positions`` (1, rows)."""
        rows = rows[None]
        angles = self._rotary(rows, positions)
        for block in self._blocks:
            output = block(
                rows, position_embeddings=angles, position_ids=positions, attention_mask=None, use_cache=False
            )
            rows = output[0] if isinstance(output, tuple) else output
        return rows[0]

    @_inference
    def greedy(self, rows: torch.Tensor, lengths: Sequence[int]) -> list[int]:
        """The likeliest next token of every request, from its last row; only the last slice."""
        assert self._norm is not None
        assert self._head is not None
        ends = torch.tensor(lengths, device=self.device).cumsum(0) - 1
        numbers: list[int] = self._head(self._norm(rows[ends])).argmax(-1).tolist()
        return numbers

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        window: int | None,
        sinks: Any,
    ) -> torch.Tensor:
        """Attention of every request over its own cache, which grows by the new rows. (1, heads, rows, head) in."""
        outputs, at = [], 0
        for request, length in zip(self._requests, self._lengths, strict=True):
            q, k, v = (part[0, :, at : at + length] for part in (query, key, value))
            at += length
            if (layer, request) in self.cache:
                before = self.cache[layer, request]
                k, v = torch.cat([before[0], k], 1), torch.cat([before[1], v], 1)
            self.cache[layer, request] = (k, v)
            outputs.append(_attention(q, k, v, scaling, window, sinks))
        return torch.cat(outputs, 1).transpose(0, 1)[None]

    def take_cache(self, request: int, layers: Iterable[int]) -> torch.Tensor:
        """(layers, 2, KV heads, tokens, head) of a request, which is then forgotten here."""
        pairs = [torch.stack(self.cache.pop((layer, request))) for layer in layers]
        return torch.stack(pairs)

    def put_cache(self, request: int, layers: Iterable[int], tensor: torch.Tensor) -> None:
        """What :meth:`take_cache` gave elsewhere."""
        for layer, (key, value) in zip(layers, tensor.to(self.device), strict=True):
            self.cache[layer, request] = (key, value)


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, window: int | None, sinks: Any
) -> torch.Tensor:
    """Causal attention of the last rows of a sequence, (heads, rows, head); softmax in float32."""
    groups, new, total = query.shape[0] // key.shape[0], query.shape[1], key.shape[1]
    if new == total and window is None and sinks is None:
        return functional.scaled_dot_product_attention(
            query[None], key[None], value[None], is_causal=True, scale=scaling, enable_gqa=groups > 1
        )[0]
    distance = torch.arange(total - new, total, device=query.device)[:, None] - torch.arange(total, device=query.device)
    seen = distance >= 0
    if window is not None:
        seen &= distance < window
    if sinks is None:
        return functional.scaled_dot_product_attention(
            query[None], key[None], value[None], attn_mask=seen, scale=scaling, enable_gqa=groups > 1
        )[0]
    key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
    scores = (query.float() @ key.float().transpose(1, 2) * scaling).masked_fill(~seen, float("-inf"))
    # A sink takes part in the softmax and gives nothing.
    scores = torch.cat([scores, sinks.float().view(-1, 1, 1).expand(-1, new, 1)], -1)
    weights = scores.softmax(-1)[..., :-1]
    return (weights @ value.float()).to(query.dtype)


def _attention_interface(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    sliding_window: int | None = None,
    s_aux: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """What a transformers attention block calls; the slice that owns the block knows whose rows these are."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return module.coralopt.attend(module.layer_idx, query, key, value, scale, sliding_window, s_aux), None


def _register(config: Any) -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _attention_interface)
    config._attn_implementation = ATTENTION


def _parts(whole: Any, layers: range, first: bool, last: bool) -> dict[str, torch.nn.Module]:
    parts: dict[str, torch.nn.Module] = {f"model.layers.{n}": whole.model.layers[n] for n in layers}
    if first:
        parts["model.embed_tokens"] = whole.model.embed_tokens
    if last:
        parts["model.norm"], parts["lm_head"] = whole.model.norm, whole.lm_head
    return parts


def _fill(parts: dict[str, torch.nn.Module], device: torch.device) -> None:
    """Small numbers: an answer means nothing, its time is that of the real weights."""
    for part in parts.values():
        part.to_empty(device=device)
        for tensor in part.state_dict().values():
            if tensor.is_floating_point():
                tensor.normal_(0.0, 0.02)
            else:
                tensor.zero_()


def _load(folder: str, parts: dict[str, torch.nn.Module], tied: bool, device: torch.device, dtype: torch.dtype) -> bool:
    """Read the weights of ``parts`` only; ``False`` when the checkpoint does not have all of them under their names."""
    from safetensors import safe_open

    index = Path(folder) / "model.safetensors.index.json"
    if index.exists():
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    else:
        files = {"model.safetensors"}
    names: dict[str, str] = {}
    for file in sorted(files):
        with safe_open(str(Path(folder) / file), framework="pt") as reader:
            names |= dict.fromkeys(reader.keys(), file)
    targets: dict[str, dict[str, list[tuple[str, str]]]] = {}
    for prefix, part in parts.items():
        for name in part.state_dict():
            source = "model.embed_tokens.weight" if tied and prefix == "lm_head" else f"{prefix}.{name}"
            if source not in names:
                return False
            targets.setdefault(names[source], {}).setdefault(source, []).append((prefix, name))
    for part in parts.values():
        part.to_empty(device=device)
    states = {prefix: part.state_dict() for prefix, part in parts.items()}
    for file, sources in targets.items():
        with safe_open(str(Path(folder) / file), framework="pt") as reader:
            for source, places in sources.items():
                for prefix, name in places:
                    states[prefix][name].copy_(reader.get_tensor(source).to(dtype))
    return True
