"""Host time of engines: what published closed-loop measurements of vLLM take longer than its kernels.

``python -m benchmarks.host_time`` prints, by GPU, what a step and a request take beyond the layer times of the silicon
tables, at up to 8 users and prompts of about 1,000 tokens: there neither queues nor the attention to earlier parts of a
prompt hide it. The medians over H100 and H200 are the defaults of a scenario's ``serving: {preset: engine}``; kernels on
B200 are slower in the tables than whole engines are, so that nothing can be told apart there.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import numpy as np

from coralopt.catalog import models, node_configurations
from coralopt.throughput.layer_times import mixed_ms
from coralopt.throughput.silicon import SiliconSource

DATA = Path(__file__).parent / "data" / "closed_loop_vllm.csv"
MODEL = "gpt-oss-120b"
#: Lengths are drawn evenly from 80 to 100 % of the figures.
MEAN_SHARE = 0.9
MOST_USERS, MOST_PROMPT = 8, 1024


def differences() -> Iterable[tuple[str, float, float]]:
    """(GPU, ms of a step, ms of a request) that each measurement took longer than the kernels do."""
    model, source = models()[MODEL], SiliconSource()
    with DATA.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    for row in rows:
        users, prompt = float(row["concurrency"]), float(row["input_tokens"]) * MEAN_SHARE
        answer = float(row["output_tokens"]) * MEAN_SHARE
        if users > MOST_USERS or float(row["input_tokens"]) > MOST_PROMPT:
            continue
        configuration = node_configurations()[row["configuration"]]
        times = source.times(model, configuration)
        sequences, context = np.array([users]), prompt + answer / 2
        decode, with_prompt = (
            float(layer[0] * model.layers + other[0])
            for layer, other in (
                times.decode_ms(sequences, context),
                mixed_ms(times, np.maximum(sequences - 1, 1.0), context, np.array([prompt])),
            )
        )
        share = users / answer
        step_ms = float(row["tpot_ms"]) - (1 - share) * decode - share * with_prompt
        # A prompt waits for half of the step under way, then takes one of its own.
        request_ms = float(row["ttft_ms"]) - (decode + step_ms) / 2 - (with_prompt + step_ms)
        yield configuration.gpu.name, step_ms, request_ms


def main() -> None:
    """Print the fit."""
    by_gpu: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for gpu, step_ms, request_ms in differences():
        by_gpu[gpu].append((step_ms, request_ms))
    by_gpu["H100 and H200"] = by_gpu["H100"] + by_gpu["H200"]
    print(f"{'GPU':<16}{'rows':>6}{'ms a step':>12}{'ms a request':>14}   (medians; lowest and highest)")
    for gpu, pairs in by_gpu.items():
        steps, requests = (sorted(values) for values in zip(*pairs, strict=True))
        spread = f"{steps[0]:.2f} to {steps[-1]:.2f}, {requests[0]:.1f} to {requests[-1]:.1f}"
        print(f"{gpu:<16}{len(pairs):>6}{median(steps):>12.2f}{median(requests):>14.1f}   {spread}")


if __name__ == "__main__":
    main()
