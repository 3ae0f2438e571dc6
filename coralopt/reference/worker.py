"""One node of the reference engine: ``python -m coralopt.reference.worker JOB RANK``.

``JOB`` is a JSON file that :mod:`coralopt.reference.run` writes. ``RANK`` is a node's number, ``unsplit`` for the
whole model as transformers generates with it; that one first makes a small seeded checkpoint when none is given.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from coralopt.replacing import replacing

#: Tags of messages: what is sent, so that no two kinds meet.
TOKEN, CACHE = 0, 1


def main(arguments: Sequence[str]) -> None:
    """Do one part of a job."""
    job = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    if arguments[1] == "unsplit":
        _write(job, "unsplit", unsplit(job))
    else:
        rank = int(arguments[1])
        _write(job, str(rank), Node(job, rank).run())


def make_stand_in(folder: str, layers: int, seed: int, vocabulary: int) -> None:
    """A small seeded Qwen3 with that many layers, wide enough that greedy answers vary."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


def unsplit(job: dict[str, Any]) -> dict[str, Any]:
    """Greedy tokens of the whole model, by transformers' own generate, one request at a time; GPUs found."""
    import torch
    from transformers import AutoModelForCausalLM

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if job["device"] == "cuda" and not gpus:
        raise SystemExit("torch sees no GPU here; --device cpu runs on the CPU")
    if job["stand_in"] is not None:
        make_stand_in(job["folder"], **job["stand_in"])
    device = _device(job["device"], 0)
    model = AutoModelForCausalLM.from_pretrained(job["folder"], dtype=getattr(torch, job["dtype"])).to(device).eval()
    count = job["new_tokens"]
    answers = []
    for prompt in job["prompts"]:
        numbers = torch.tensor([prompt], device=device)
        mask = torch.ones_like(numbers)
        # An end token must not end an answer, here or in the split model.
        model.generation_config.eos_token_id = None
        out = model.generate(
            numbers, attention_mask=mask, do_sample=False, max_new_tokens=count, min_new_tokens=count, pad_token_id=0
        )
        answers.append(out[0, len(prompt) :].tolist())
    return {"tokens": answers, "gpus": gpus}


class Node:
    """A process of the split model."""

    def __init__(self, job: dict[str, Any], rank: int) -> None:
        import torch
        import torch.distributed as dist

        from coralopt.reference.slices import LayerSlice

        self.job, self.rank, self.torch, self.dist = job, rank, torch, dist
        self.nodes: list[dict[str, Any]] = job["nodes"]
        self.me = self.nodes[rank]
        self.device = _device(job["device"], rank)
        backend = job["backend"]
        wait = timedelta(seconds=job["timeout_s"])
        store: Any
        if job["store"].startswith("tcp://"):
            host, port = job["store"].removeprefix("tcp://").rsplit(":", 1)
            store = dist.TCPStore(host, int(port), len(self.nodes), is_master=rank == 0, timeout=wait)
        else:
            store = dist.FileStore(job["store"], len(self.nodes))
        dist.init_process_group(backend, store=store, rank=rank, world_size=len(self.nodes), timeout=wait)
        # Token numbers and KV caches go over Gloo, out of order; activations go over NCCL in the order of the turns and in
        # one direction only: NCCL has one queue for each pair, and two directions could wait for each other.
        self.loose = dist.new_group(backend="gloo", timeout=wait)
        self.wire = self.device if backend == "nccl" else torch.device("cpu")
        layers = range(self.me["first_layer"], self.me["last_layer"] + 1)
        self.slice = LayerSlice(job["folder"], layers, self.device, getattr(torch, job["dtype"]))
        self.prompts: list[list[int]] = job["prompts"]
        self.answers: dict[int, list[int]] = {}
        #: Next token to compute with, on first stages.
        self.next: dict[int, int] = {}
        self.pending: list[tuple[Any, Any]] = []
        self.times: list[dict[str, Any]] = []

    def run(self) -> dict[str, Any]:
        """Every turn in order."""
        last = self.job["new_tokens"] - 1
        for turn in self.job["turns"]:
            step, requests = turn["step"], turn["requests"]
            routes = self.job["prefill" if step == 0 else "decode"]
            # All requests of a turn go to one instance.
            if self.nodes[routes[requests[0]][0]]["instance"] == self.me["instance"]:
                mine = [r for r in requests if routes[r][self.me["stage"]] == self.rank]
                if mine:
                    self._turn(step, mine, routes, last)
        for work, _ in self.pending:
            work.wait()
        # Nobody leaves while a neighbour still reads from it.
        self.dist.barrier(group=self.loose)
        self.dist.destroy_process_group()
        return {"answers": self.answers, "times": self.times}

    def _turn(self, step: int, mine: list[int], routes: Sequence[Sequence[int]], last: int) -> None:
        stage = self.me["stage"]
        lengths = [len(self.prompts[r]) if step == 0 else 1 for r in mine]
        starts = [0 if step == 0 else len(self.prompts[r]) + step - 1 for r in mine]
        if step == 1 and self.me["phase"] == "decode":
            for request in mine:
                self._receive_cache(request)
        if stage == 0:
            if step > 0:
                self._receive_tokens(step, mine)
            numbers = [t for r in mine for t in (self.prompts[r] if step == 0 else [self.next.pop(r)])]
        else:
            rows = self._receive_rows(mine, lengths, [routes[r][stage - 1] for r in mine])
        self._settle()
        begun = time.perf_counter()
        if stage == 0:
            rows = self.slice.embed(numbers)
        rows = self.slice.forward(rows, mine, lengths, starts)
        tokens = self.slice.greedy(rows, lengths) if self.slice.is_last else []
        self._settle()
        ms = 1e3 * (time.perf_counter() - begun)
        self.times.append({"step": step, "requests": len(mine), "tokens": sum(lengths), "ms": ms})
        if self.slice.is_last:
            self._send_tokens(step, mine, tokens, last)
        else:
            self._send_rows(rows, mine, lengths, [routes[r][stage + 1] for r in mine])
        if step == 0 and self.me["phase"] == "prefill" and last > 0:
            for request in mine:
                self._send_cache(request)

    def _settle(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)

    def _receive_rows(self, mine: list[int], lengths: list[int], sources: list[int]) -> Any:
        """Rows of ``mine`` from the nodes of the stage before, put in order."""
        torch = self.torch
        got: dict[int, Any] = {}
        for source in sorted(set(sources)):
            those = [(r, n) for r, n, s in zip(mine, lengths, sources, strict=True) if s == source]
            buffer = torch.empty(sum(n for _, n in those), self.slice.hidden, dtype=self.slice.dtype, device=self.wire)
            self.dist.recv(buffer, source)
            for (request, _), part in zip(those, buffer.split([n for _, n in those]), strict=True):
                got[request] = part
        return torch.cat([got[r] for r in mine]).to(self.device)

    def _send_rows(self, rows: Any, mine: list[int], lengths: list[int], targets: list[int]) -> None:
        parts = dict(zip(mine, rows.split(lengths), strict=True))
        for target in sorted(set(targets)):
            buffer = self.torch.cat([parts[r] for r, t in zip(mine, targets, strict=True) if t == target])
            buffer = buffer.to(self.wire).contiguous()
            self._keep(self.dist.isend(buffer, target), buffer)

    def _send_tokens(self, step: int, mine: list[int], tokens: list[int], last: int) -> None:
        for request, token in zip(mine, tokens, strict=True):
            self.answers.setdefault(request, []).append(token)
            target = self.job["decode"][request][0]
            if step == last:
                continue
            if target == self.rank:
                self.next[request] = token
                continue
            buffer = self.torch.tensor([token])
            self._keep(self.dist.isend(buffer, target, group=self.loose, tag=self._tag(TOKEN, request, step)), buffer)

    def _receive_tokens(self, step: int, mine: list[int]) -> None:
        for request in mine:
            if request not in self.next:
                source = self.job["prefill" if step == 1 else "decode"][request][-1]
                buffer = self.torch.zeros(1, dtype=self.torch.int64)
                self.dist.recv(buffer, source, group=self.loose, tag=self._tag(TOKEN, request, step - 1))
                self.next[request] = int(buffer)

    def _send_cache(self, request: int) -> None:
        """Each layer's keys and values to the decode node that holds the layer."""
        for target in self.job["decode"][request]:
            shared = self._shared(target)
            if shared:
                buffer = self.slice.take_cache(request, shared).cpu().contiguous()
                tag = self._tag(CACHE, request, 0)
                self._keep(self.dist.isend(buffer, target, group=self.loose, tag=tag), buffer)

    def _receive_cache(self, request: int) -> None:
        size = (self.slice.kv_heads, len(self.prompts[request]), self.slice.head_dim)
        for source in self.job["prefill"][request]:
            shared = self._shared(source)
            if shared:
                buffer = self.torch.empty(len(shared), 2, *size, dtype=self.slice.dtype)
                self.dist.recv(buffer, source, group=self.loose, tag=self._tag(CACHE, request, 0))
                self.slice.put_cache(request, shared, buffer)

    def _shared(self, other: int) -> range:
        theirs, mine = self.nodes[other], self.me
        low = max(theirs["first_layer"], mine["first_layer"])
        return range(low, min(theirs["last_layer"], mine["last_layer"]) + 1)

    def _tag(self, kind: int, request: int, step: int) -> int:
        return int((step * len(self.prompts) + request) * 2 + kind)

    def _keep(self, work: Any, buffer: Any) -> None:
        """A tensor must live until it is sent."""
        self.pending = [item for item in self.pending if not item[0].is_completed()]
        self.pending.append((work, buffer))


def _device(kind: str, rank: int) -> Any:
    import torch

    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _write(job: dict[str, Any], name: str, data: dict[str, Any]) -> None:
    with replacing(Path(job["directory"]) / f"{name}.json") as draft:
        draft.write_text(json.dumps(data), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
