"""Profile layer slices with plain torch and transformers, in a process of their own."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coralopt.catalog.types import ModelArchitecture
from coralopt.errors import LaunchError
from coralopt.processes import own_environment
from coralopt.profiling.child import run_child
from coralopt.profiling.fit import Point
from coralopt.profiling.profile import ProfileOptions, machine
from coralopt.types import Progress

WORKER = "coralopt.profiling.torch_worker"


def profile_with_torch(
    model: ModelArchitecture,
    options: ProfileOptions,
    folder: Path | None = None,
    python: str = sys.executable,
    progress: Progress | None = None,
) -> tuple[list[Point], str]:
    """Measure truncated models with BF16 dummy weights on one device.

    Args:
        model: The architecture.
        options: What to measure.
        folder: With ``config.json`` of the model, for its exact blocks; else Qwen3's blocks in the architecture's sizes.
        python: Interpreter that has torch and transformers.
        progress: Called with (what, done, total).

    Returns:
        The points, and what they were measured with.

    Raises:
        LaunchError: torch is missing, there is no GPU, or the run failed or took too long.
    """
    if model.weight_format != "bf16" or model.sliding_layers:
        what = f"{model.weight_format} weights" if model.weight_format != "bf16" else "sliding windows"
        raise LaunchError(f"{model.name} has {what}; plain torch measures BF16 and full attention: use --engine vllm")
    with tempfile.TemporaryDirectory(prefix="coralopt-profile-") as directory:
        job, answer, log = (Path(directory) / name for name in ("job.json", "answer.json", "log"))
        document = {
            "model": _sizes(model, folder),
            **asdict(options),
            "mixed": options.mixed,
            "output": str(answer),
        }
        job.write_text(json.dumps(document), encoding="utf-8")
        env = {**own_environment(), "HF_HUB_OFFLINE": "1"}
        try:
            run_child([python, "-m", WORKER, str(job)], env, log, options.timeout_s, _look(progress, model.name))
        except LaunchError as error:
            missing = [p for p in ("torch", "transformers", "safetensors") if f"No module named '{p}'" in str(error)]
            if missing:
                raise LaunchError(
                    f"--engine torch needs {missing[0]}, which {python} does not have: pip install 'coralopt[torch]'"
                ) from error
            raise
        data = json.loads(answer.read_text(encoding="utf-8"))
    return [Point(**point) for point in data["points"]], _measured_with(data)


def _look(progress: Progress | None, name: str) -> Callable[[str], None] | None:
    if progress is None:
        return None

    def look(text: str) -> None:
        points = [line for line in text.splitlines() if line.startswith("done ")]
        if points:
            _, number, _, total = points[-1].split()
            progress(f"points of {name}", int(number), int(total))

    return look


def _sizes(model: ModelArchitecture, folder: Path | None) -> dict[str, Any]:
    return {
        "folder": None if folder is None else str(folder.absolute()),
        "vocab": model.vocab,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "max_position": model.max_position,
        # Gated blocks have three matrices.
        "intermediate": model.dense_ffn_params_per_layer // (3 * model.hidden),
        "experts": model.experts,
        "experts_per_token": model.experts_per_token,
        "expert_intermediate": model.expert_params // (3 * model.hidden),
    }


def _measured_with(data: dict[str, Any]) -> str:
    versions = f"torch {data['torch']}, transformers {data['transformers']}, BF16 dummy weights"
    if "gpu" in data:
        graphs = "CUDA graphs" if data["graphs"] else "eager"
        return f"{versions}, {graphs}, CUDA {data['cuda']} on {data['gpu']}"
    return f"{versions}, {data['threads']} threads on {machine()}"
