"""Times of layer slices with plain torch and transformers: ``python -m coralopt.profiling.torch_worker JOB``.

A slice of j layers with embedding and head, dummy weights, is run on batches of equal prompts, and on single tokens of equal
sequences whose cache is already full. On a GPU each step is captured as a CUDA graph, so that launches by Python are not
in the figures; where a model cannot be captured it runs eagerly, and the answer says so.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from coralopt.reference.slices import LayerSlice
from coralopt.replacing import replacing


class UniformSlice(LayerSlice):
    """A slice for batches of equal sequences, with fixed tensors, so that a step can be captured as a graph."""

    def prepare(self, batch: int, tokens: int, decode: bool) -> None:
        """Caches for ``batch`` sequences of ``tokens`` tokens; ``decode``: all but the last token are there."""
        self._batch, self._decode, self._history = batch, decode, -1
        size = (batch, self.kv_heads, tokens, self.head_dim)
        # Every layer has its own, as in an engine: a shared one would stay in the caches of the chip.
        self._keys = {n: torch.randn(size, device=self.device, dtype=self.dtype) for n in self.layers}
        self._values = {n: torch.randn(size, device=self.device, dtype=self.dtype) for n in self.layers}
        new = 1 if decode else tokens
        self._tokens = torch.randint(0, int(self.config.vocab_size), (batch * new,), device=self.device)
        positions = torch.arange(tokens - new, tokens, device=self.device)
        self._positions = positions.repeat(batch)[None]
        self._ends = torch.arange(1, batch + 1, device=self.device) * new - 1

    def prepare_mixed(self, batch: int, context: int, prompt: int, history: int) -> None:
        """Caches of ``batch`` decoding sequences, and of a prompt whose first ``history`` tokens are computed already."""
        self.prepare(batch, context, True)
        self._history = history
        size = (1, self.kv_heads, history + prompt, self.head_dim)
        self._own = {n: torch.randn((2, *size), device=self.device, dtype=self.dtype) for n in self.layers}
        places = torch.arange(prompt, device=self.device)
        # What each of its tokens attends to: all before it.
        self._seen = torch.arange(history + prompt, device=self.device)[None, :] <= (places + history)[:, None]
        more = torch.randint(0, int(self.config.vocab_size), (prompt,), device=self.device)
        self._tokens = torch.cat([self._tokens, more])
        self._positions = torch.cat([self._positions, (places + history)[None]], 1)
        last = torch.tensor([batch + prompt - 1], device=self.device)
        self._ends = torch.cat([self._ends, last])

    def step(self) -> torch.Tensor:
        """Embedding, all layers, head, likeliest token of every sequence; nothing waits for the device."""
        assert self._embed is not None
        assert self._norm is not None
        assert self._head is not None
        with torch.inference_mode():
            rows = self.through(self._embed(self._tokens), self._positions)
            result: torch.Tensor = self._head(self._norm(rows[self._ends])).argmax(-1)
            return result

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
        """Attention of all sequences at once."""
        if window is not None or sinks is not None:
            raise ValueError("models with sliding windows or attention sinks are not profiled with torch: use vLLM")
        if self._history >= 0:
            rest = [part[:, :, self._batch :] for part in (query, key, value)]
            query, key, value = (part[:, :, : self._batch] for part in (query, key, value))
            own_keys, own_values = self._own[layer]
            own_keys[:, :, self._history :], own_values[:, :, self._history :] = rest[1], rest[2]
            grouped = rest[0].shape[1] != own_keys.shape[1]
            # A prompt from its beginning takes the faster kernel for whole prompts.
            mask = {"is_causal": True} if self._history == 0 else {"attn_mask": self._seen}
            prompt = functional.scaled_dot_product_attention(
                rest[0], own_keys, own_values, scale=scaling, enable_gqa=grouped, **mask
            ).transpose(1, 2)
        q, k, v = (part[0].unflatten(1, (self._batch, -1)).transpose(0, 1) for part in (query, key, value))
        keys, values = self._keys[layer], self._values[layer]
        if self._decode:
            keys[:, :, -1:], values[:, :, -1:] = k, v
        else:
            keys.copy_(k)
            values.copy_(v)
        out = functional.scaled_dot_product_attention(
            q, keys, values, is_causal=not self._decode, scale=scaling, enable_gqa=q.shape[1] != keys.shape[1]
        )
        rows = out.permute(0, 2, 1, 3).flatten(0, 1)[None]
        return torch.cat([rows, prompt], 1) if self._history >= 0 else rows


def configure(model: dict[str, Any], layers: int) -> Any:
    """The transformers configuration of a model truncated to ``layers`` layers."""
    from transformers import AutoConfig, Qwen3Config, Qwen3MoeConfig

    if model["folder"] is not None:
        config = AutoConfig.from_pretrained(model["folder"])
        config.num_hidden_layers = layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:layers]
        return config
    common = {
        "vocab_size": model["vocab"],
        "hidden_size": model["hidden"],
        "num_hidden_layers": layers,
        "num_attention_heads": model["heads"],
        "num_key_value_heads": model["kv_heads"],
        "head_dim": model["head_dim"],
        "max_position_embeddings": model["max_position"],
        "tie_word_embeddings": False,
    }
    if model["experts"]:
        return Qwen3MoeConfig(
            **common,
            intermediate_size=model["intermediate"] or model["expert_intermediate"],
            moe_intermediate_size=model["expert_intermediate"],
            num_experts=model["experts"],
            num_experts_per_tok=model["experts_per_token"],
        )
    return Qwen3Config(**common, intermediate_size=model["intermediate"])


def measure(step: Callable[[], Any], device: torch.device, repeats: int) -> tuple[float, bool]:
    """(median ms of one step, whether it ran as a CUDA graph)."""
    for _ in range(2):
        step()
    if device.type != "cuda":
        return statistics.median(_clock(step) for _ in range(repeats)), False
    run, captured = _capture(step)
    for _ in range(2):
        run()
    torch.cuda.synchronize(device)
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)))
    return statistics.median(times), captured


def _clock(step: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    step()
    return 1e3 * (time.perf_counter() - begun)


def _capture(step: Callable[[], Any]) -> tuple[Callable[[], Any], bool]:
    """The step as a CUDA graph, or as it is when its shapes depend on data (experts of some models)."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step()
    except RuntimeError:
        torch.cuda.synchronize()
        return step, False
    return graph.replay, True


def main(path: str) -> None:
    """Measure every point of a job and write them."""
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    torch.manual_seed(0)
    if job["threads"]:
        torch.set_num_threads(job["threads"])
    device = torch.device(job["device"])
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here; --device cpu measures the CPU")
    points: list[dict[str, Any]] = []
    graphs = True
    grid = [("prefill", b, t) for t in job["prompt_tokens"] for b in job["prompts"]]
    grid += [("decode", b, t) for t in job["contexts"] for b in job["sequences"]]
    total = (len(grid) + len(job["mixed"])) * len(job["layers"])
    for layers in job["layers"]:
        part = UniformSlice(None, range(layers), device, torch.bfloat16, configure(job["model"], layers))
        for phase, batch, tokens, *piece in [*grid, *(("mixed", *step) for step in job["mixed"])]:
            if piece:
                part.prepare_mixed(batch, tokens, *piece)
            else:
                part.prepare(batch, tokens, phase == "decode")
            ms, captured = measure(part.step, device, job["repeats"])
            graphs = graphs and captured
            points.append({"phase": phase, "layers": layers, "batch": batch, "tokens": tokens, "ms": ms})
            points[-1] |= dict(zip(("prompt", "history"), piece, strict=False))
            print(f"done {len(points)} of {total}", flush=True)
        del part
        if device.type == "cuda":
            torch.cuda.empty_cache()
    answer: dict[str, Any] = {
        "points": points,
        "torch": torch.__version__,
        "graphs": graphs,
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        answer |= {"gpu": properties.name, "cuda": torch.version.cuda, "memory_gib": properties.total_memory / 2**30}
    import transformers

    answer["transformers"] = transformers.__version__
    with replacing(Path(job["output"])) as draft:
        draft.write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
