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
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from coralopt.catalog import models, node_configurations
from coralopt.scenario.facts.serving import SERVING_PRESETS
from coralopt.throughput.layer_times import mixed_ms
from coralopt.throughput.nodes import prompt_passes
from coralopt.throughput.silicon import SiliconSource

DATA = Path(__file__).parent / "data" / "closed_loop_vllm.csv"
MODEL = "gpt-oss-120b"
#: Lengths are drawn evenly from 80 to 100 % of the figures.
MEAN_SHARE = 0.9
MOST_USERS, MOST_PROMPT = 8, 1024


@dataclass(frozen=True)
class ClosedLoop:
    """One published measurement, and what kernels alone would take.

    Attributes:
        gpu: GPU type.
        small: Few users with prompts so short that neither queues nor attention to earlier parts of a prompt count.
        tpot_ms, ttft_ms: Measured medians, ms.
        step_ms: Kernels of a mean step, ms.
        first_ms: Kernels of half a decode step and of the pass that makes the first token, ms.
        steps: Steps with host time of their own until the first token, the half one included.
    """

    gpu: str
    small: bool
    tpot_ms: float
    ttft_ms: float
    step_ms: float
    first_ms: float
    steps: float


def closed_loops() -> Iterable[ClosedLoop]:
    """Every measurement."""
    model, source = models()[MODEL], SiliconSource()
    budget = SERVING_PRESETS["engine"].step_tokens
    with DATA.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    for row in rows:
        users, prompt = float(row["concurrency"]), float(row["input_tokens"]) * MEAN_SHARE
        answer = float(row["output_tokens"]) * MEAN_SHARE
        configuration = node_configurations()[row["configuration"]]
        times = source.times(model, configuration)
        sequences, context = np.array([users]), prompt + answer / 2
        passes = float(prompt_passes(prompt, sequences, budget)[0])
        decode, with_prompt = (
            float(layer[0] * model.layers + other[0])
            for layer, other in (
                times.decode_ms(sequences, context),
                mixed_ms(times, np.maximum(sequences - 1, 1.0), context, np.array([prompt / passes])),
            )
        )
        share = min(1.0, passes * users / answer)
        yield ClosedLoop(
            configuration.gpu.name,
            users <= MOST_USERS and float(row["input_tokens"]) <= MOST_PROMPT,
            float(row["tpot_ms"]),
            float(row["ttft_ms"]),
            (1 - share) * decode + share * with_prompt,
            # A prompt waits for half of the step under way and for the one chosen already, then takes passes of its own.
            1.5 * decode + passes * with_prompt,
            passes + 1.5,
        )


def main() -> None:
    """Print the fit."""
    by_gpu: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for loop in closed_loops():
        if loop.small:
            step_ms = loop.tpot_ms - loop.step_ms
            by_gpu[loop.gpu].append((step_ms, loop.ttft_ms - loop.first_ms - loop.steps * step_ms))
    by_gpu["H100 and H200"] = by_gpu["H100"] + by_gpu["H200"]
    print(f"{'GPU':<16}{'rows':>6}{'ms a step':>12}{'ms a request':>14}   (medians; lowest and highest)")
    for gpu, pairs in by_gpu.items():
        steps, requests = (sorted(values) for values in zip(*pairs, strict=True))
        spread = f"{steps[0]:.2f} to {steps[-1]:.2f}, {requests[0]:.1f} to {requests[-1]:.1f}"
        print(f"{gpu:<16}{len(pairs):>6}{median(steps):>12.2f}{median(requests):>14.1f}   {spread}")


if __name__ == "__main__":
    main()
