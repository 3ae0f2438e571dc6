"""Profile with vLLM's own bench: `vllm bench sweep serve` over layer counts, dummy weights."""

from __future__ import annotations

import json
import shlex
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coralopt.errors import LaunchError
from coralopt.processes import output_of
from coralopt.profiling.child import run_child
from coralopt.profiling.fit import Point
from coralopt.profiling.profile import ProfileOptions, machine
from coralopt.profiling.vllm_files import DECODE_TOKENS, bench_parameters, read_bench_files, serve_parameters
from coralopt.throughput.engines import own_graphs
from coralopt.types import Progress

#: Nothing is fetched or told to anybody.
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def profile_with_vllm(
    model: str,
    options: ProfileOptions,
    program: str = "vllm",
    extra: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    keep: Path | None = None,
    progress: Progress | None = None,
) -> tuple[list[Point], str]:
    """Measure truncated models with dummy weights in real servers of vLLM, two servers a layer count.

    Args:
        model: Directory with ``config.json`` and a tokenizer, or a checkpoint's name.
        options: What to measure.
        program: The vllm program; its environment needs pandas.
        extra: More words for `vllm serve`.
        overrides: More entries of the model's configuration to change.
        env: Environment variables to add.
        keep: Directory for all that vLLM's bench writes; by default it is thrown away.
        progress: Called with (what, done, total).

    Returns:
        The points, and what they were measured with.

    Raises:
        LaunchError: vLLM is missing, lacks pandas, failed or took too long.
        CoraloptError: Requests failed, or the results cannot be read.
    """
    cpu = options.device == "cpu"
    variables = {**QUIET, **(env or {})}
    if cpu:
        variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(options.threads or 1)}
    version = _version(program, variables)
    total = len(options.layers) * len(bench_parameters(options))
    with tempfile.TemporaryDirectory(prefix="coralopt-profile-") as temporary:
        directory = Path(temporary) if keep is None else keep
        directory.mkdir(parents=True, exist_ok=True)
        serve, bench = directory / "serve.json", directory / "bench.json"
        serve.write_text(
            json.dumps(serve_parameters(options, overrides, not cpu and not own_graphs(extra)), indent=1),
            encoding="utf-8",
        )
        bench.write_text(json.dumps(bench_parameters(options), indent=1), encoding="utf-8")
        argv = sweep_command(program, model, options, _free_port(), serve, bench, directory / "sweep", extra)

        def look(text: str) -> None:
            if progress is not None:
                progress(f"points of {model}", text.count("[END BENCHMARK]"), total)

        try:
            run_child(argv, variables, directory / "log", options.timeout_s, look, grace_s=60.0)
        except LaunchError as error:
            if "pandas" in str(error):
                raise LaunchError(
                    f"`vllm bench sweep` needs pandas in the environment of {program}: {error}"
                ) from error
            raise
        summaries = sorted((directory / "sweep").rglob("summary.csv"))
        if not summaries:
            raise LaunchError(f"{program} bench sweep wrote no summary.csv")
        points, _ = read_bench_files(summaries[-1:])
    where = f"{options.threads or 1} threads on {machine()}" if cpu else f"{options.tensor_parallel} x {_gpu()}"
    return points, f"vllm {version}, bench sweep serve, dummy weights, {where}"


def sweep_command(
    program: str,
    model: str,
    options: ProfileOptions,
    port: int,
    serve: Path,
    bench: Path,
    output: Path,
    extra: Sequence[str] = (),
) -> list[str]:
    """The arguments of `vllm bench sweep serve`; it takes two commands as one word each."""
    longest = max((*options.prompt_tokens, *(context + DECODE_TOKENS for context in options.contexts))) + 8
    server = [program, "serve", model, "--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy"]
    server += ["--served-model-name", "profiled", "--no-enable-prefix-caching", "--max-model-len", str(longest)]
    server += ["--tensor-parallel-size", str(options.tensor_parallel), *extra]
    client = [program, "bench", "serve", "--base-url", f"http://127.0.0.1:{port}", "--model", "profiled"]
    client += ["--tokenizer", model, "--dataset-name", "random", "--ignore-eos", "--disable-tqdm"]
    command = [program, "bench", "sweep", "serve", "--serve-cmd", shlex.join(server), "--bench-cmd", shlex.join(client)]
    command += ["--serve-params", str(serve), "--bench-params", str(bench), "--num-runs", "1", "-o", str(output)]
    command += ["--link-vars", "seed=seed"]
    return command


def _version(program: str, env: Mapping[str, str]) -> str:
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        run_child([program, "--version"], env, log, 300.0)
        return log.read_text(encoding="utf-8").strip().splitlines()[-1]


def _gpu() -> str:
    """Name and driver of the first GPU, as its driver says it."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    names = output_of(command, 60)
    return (
        ", driver ".join(part.strip() for part in names.splitlines()[0].split(",")) if names else "GPU of unknown name"
    )


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
