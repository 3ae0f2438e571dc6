"""Start the workers of the reference engine, wait, compare their tokens with the unsplit model's, add up their times."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from coralopt.errors import LaunchError
from coralopt.plan import Plan
from coralopt.processes import LOOK_S, Child, Ending, last_words, own_environment
from coralopt.reference.schedule import Assignment, ReferenceNode, assign

WORKER = "coralopt.reference.worker"
#: Token numbers of the seeded stand-in.
STAND_IN_VOCABULARY = 512


@dataclass(frozen=True)
class ReferenceOptions:
    """How to run.

    Attributes:
        folder: Checkpoint; ``None``: a small seeded stand-in with as many layers as the plan's model.
        requests: Prompts.
        prompt_tokens: Longest prompt; lengths vary from half of it.
        new_tokens: Tokens of every answer.
        seed: Seed of prompts and of the stand-in's weights.
        device: ``"cpu"`` (Gloo) or ``"cuda"`` (a GPU a node and NCCL; with fewer GPUs than nodes they share, over Gloo).
        dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"``. In half precision a tie may fall the other way.
        copies: Run every instance as often as the plan deploys it; else once.
        most_processes: More nodes than this are refused.
        timeout_s: Longest wait for the whole run, s.
        python: Interpreter that has torch and transformers.
    """

    folder: Path | None = None
    requests: int = 8
    prompt_tokens: int = 32
    new_tokens: int = 8
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    copies: bool = False
    most_processes: int = 32
    timeout_s: float = 600.0
    python: str = sys.executable


@dataclass(frozen=True)
class NodeTimes:
    """What one node did.

    Attributes:
        node: The node.
        requests: Requests routed to it.
        share: Their share of the stage's requests.
        prefill_ms: Median time of its prompt micro-batches, ms; ``None`` without any.
        prefill_tokens: Mean prompt tokens in one.
        decode_ms: Median time of its decode micro-batches, ms; ``None`` without any.
        decode_sequences: Mean sequences in one.
    """

    node: ReferenceNode
    requests: int
    share: float
    prefill_ms: float | None
    prefill_tokens: float
    decode_ms: float | None
    decode_sequences: float


@dataclass(frozen=True)
class ReferenceReport:
    """Whether the split model answers like the unsplit one, and how long its stages took.

    Attributes:
        model: Model of the plan.
        stand_in: The checkpoint was a seeded stand-in.
        backend: ``gloo`` or ``nccl``.
        equal: Requests whose tokens are equal, all of them.
        requests: Requests simulated.
        new_tokens: Tokens an answer.
        different: Request -> (tokens of the unsplit model, tokens of the split one), where they differ.
        nodes: By rank.
        seconds: Wall time of the split model's run, start of processes included.
    """

    model: str
    stand_in: bool
    backend: str
    equal: int
    requests: int
    new_tokens: int
    different: dict[int, tuple[list[int], list[int]]]
    nodes: tuple[NodeTimes, ...]
    seconds: float = field(compare=False)

    @property
    def ok(self) -> bool:
        return not self.different

    def to_document(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "ok": self.ok}


def run_reference(
    plan: Plan, model: str, options: ReferenceOptions | None = None, on_event: Callable[[str], None] | None = None
) -> ReferenceReport:
    """Run ``model`` as ``plan`` splits it and in one piece, and compare.

    All processes run on this machine and end with this call, whatever happens.

    Raises:
        LaunchError: The plan does not serve the model in all phases, torch or the checkpoint is missing, there are too
            many nodes, a process failed (with the end of what it said), or time ran out.
    """
    options = options or ReferenceOptions()
    tell = on_event or (lambda _: None)
    schedule = assign(plan, model, options.requests, options.new_tokens, copies=options.copies)
    count = len(schedule.nodes)
    if count > options.most_processes:
        raise LaunchError(
            f"{model}: the plan has {count} nodes, one process each; at most {options.most_processes} are started. "
            "Raise the limit, or leave out copies of instances"
        )
    layers = 1 + max(node.last_layer for node in schedule.nodes)
    with tempfile.TemporaryDirectory(prefix="coralopt-reference-") as directory:
        folder = Path(directory) / "model" if options.folder is None else options.folder
        vocabulary = STAND_IN_VOCABULARY if options.folder is None else _check_checkpoint(folder, layers, model)
        document: dict[str, Any] = {
            "directory": directory,
            "folder": str(folder.absolute()),
            "stand_in": {"layers": layers, "seed": options.seed, "vocabulary": vocabulary}
            if options.folder is None
            else None,
            "device": options.device,
            "dtype": options.dtype,
            "new_tokens": options.new_tokens,
            "prompts": _prompts(options, vocabulary),
        }
        weights = "a seeded stand-in" if options.folder is None else str(options.folder)
        tell(f"{model}: {options.requests} requests through {weights} of {layers} layers, unsplit")
        _run([("unsplit", _write_job(directory, "unsplit", document))], directory, options)
        whole = json.loads((Path(directory) / "unsplit.json").read_text(encoding="utf-8"))
        expected = whole["tokens"]
        backend = "nccl" if options.device == "cuda" and whole["gpus"] >= count else "gloo"
        document |= {
            "backend": backend,
            "store": str(Path(directory) / "store"),
            "timeout_s": options.timeout_s,
            **schedule.to_document(),
        }
        job = _write_job(directory, "split", document)
        tell(f"{model}: the same through {count} processes over {backend}")
        begun = time.monotonic()
        _run([(str(node.rank), job) for node in schedule.nodes], directory, options)
        seconds = time.monotonic() - begun
        results = [
            json.loads((Path(directory) / f"{node.rank}.json").read_text(encoding="utf-8")) for node in schedule.nodes
        ]
    return _report(model, options, backend, schedule, expected, results, seconds)


def _check_checkpoint(folder: Path, layers: int, model: str) -> int:
    """Size of the vocabulary."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        depth, vocabulary = int(config["num_hidden_layers"]), int(config["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"{folder}: not a checkpoint of a causal language model: {error}") from error
    if depth != layers:
        raise LaunchError(f"{folder}: the checkpoint has {depth} layers, the plan splits {layers} layers of {model}")
    return vocabulary


def _prompts(options: ReferenceOptions, vocabulary: int) -> list[list[int]]:
    draw = random.Random(options.seed)
    lengths = [draw.randint(max(1, options.prompt_tokens // 2), options.prompt_tokens) for _ in range(options.requests)]
    # Random numbers tell layers and requests apart better than any text does.
    return [[draw.randrange(vocabulary) for _ in range(length)] for length in lengths]


def _write_job(directory: str, name: str, document: dict[str, Any]) -> str:
    path = Path(directory) / f"{name}-job.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def _run(parts: Sequence[tuple[str, str]], directory: str, options: ReferenceOptions) -> None:
    """Run workers side by side until all are done; kill all when one fails, time runs out, or on an interrupt."""
    env = {
        **own_environment(max(1, (os.cpu_count() or 1) // max(1, len(parts)))),
        # Messages of processes on one machine stay on it; whoever sets an interface has several.
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    end = time.monotonic() + options.timeout_s
    with ExitStack() as stack:
        running: dict[str, Child] = {}
        for name, job in parts:
            argv = [options.python, "-m", WORKER, job, name]
            try:
                running[name] = stack.enter_context(Child.start(argv, env=env, log=Path(directory) / f"{name}.log"))
            except OSError as error:
                raise LaunchError(f"{options.python}: cannot be run: {error.strerror}") from error
        while running:
            for name, child in list(running.items()):
                if (exit := child.poll()) is None:
                    continue
                if exit.ending is not Ending.FINISHED:
                    raise LaunchError(_why(options, name, last_words(Path(directory) / f"{name}.log", 6)))
                del running[name]
            if running and time.monotonic() > end:
                names = ", ".join(running)
                raise LaunchError(f"the reference engine was not done after {options.timeout_s:g} s: {names}")
            time.sleep(LOOK_S)


def _why(options: ReferenceOptions, name: str, said: str) -> str:
    for package in ("torch", "transformers", "safetensors"):
        if f"No module named '{package}'" in said:
            return (
                f"the reference engine needs {package}, which {options.python} does not have: "
                "pip install 'coralopt[torch]'"
            )
    return f"the reference engine's process {name} failed:\n{said}"


def _report(
    model: str,
    options: ReferenceOptions,
    backend: str,
    schedule: Assignment,
    expected: list[list[int]],
    results: list[dict[str, Any]],
    seconds: float,
) -> ReferenceReport:
    answers: dict[int, list[int]] = {request: [] for request in range(options.requests)}
    # The first token may come from another node than the others.
    for node, result in sorted(zip(schedule.nodes, results, strict=True), key=lambda pair: pair[0].phase == "decode"):
        del node
        for request, tokens in result["answers"].items():
            answers[int(request)] += tokens
    different = {r: (expected[r], answers[r]) for r in answers if answers[r] != expected[r]}
    return ReferenceReport(
        model=model,
        stand_in=options.folder is None,
        backend=backend,
        equal=options.requests - len(different),
        requests=options.requests,
        new_tokens=options.new_tokens,
        different=different,
        nodes=tuple(
            _times(node, schedule, result["times"]) for node, result in zip(schedule.nodes, results, strict=True)
        ),
        seconds=seconds,
    )


def _times(node: ReferenceNode, schedule: Assignment, times: list[dict[str, Any]]) -> NodeTimes:
    routes = schedule.decode if node.phase == "decode" else schedule.prefill
    peers = {n.rank for n in schedule.nodes if (n.instance, n.stage) == (node.instance, node.stage)}
    taken = [route[node.stage] for route in routes if len(route) > node.stage and route[node.stage] in peers]
    prompts = [item for item in times if item["step"] == 0]
    decoding = [item for item in times if item["step"] > 0]
    return NodeTimes(
        node=node,
        requests=taken.count(node.rank),
        share=taken.count(node.rank) / max(1, len(taken)),
        prefill_ms=_median([item["ms"] for item in prompts]),
        prefill_tokens=sum(item["tokens"] for item in prompts) / max(1, len(prompts)),
        decode_ms=_median([item["ms"] for item in decoding]),
        decode_sequences=sum(item["requests"] for item in decoding) / max(1, len(decoding)),
    )


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
