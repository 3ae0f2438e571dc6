"""vLLM's bench files: what `vllm bench sweep serve` is given, and points out of what vLLM's bench commands wrote."""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coralopt.errors import CoraloptError
from coralopt.numbers import read_number
from coralopt.profiling.fit import Point
from coralopt.profiling.profile import ProfileOptions
from coralopt.scenario.facts.phases import Phase
from coralopt.throughput.engines import graph_sizes

#: Tokens of an answer when decode is measured; their mean distance is one step.
DECODE_TOKENS = 33
#: CUDA graphs of prompts end here, tokens.
MOST_CAPTURED = 8192
#: Which server a point belongs to.
SEEDS = {"prefill": 0, "decode": 1}
#: Random prompts come out a token or two longer or shorter; lengths that differ by less are one.
SAME_LENGTH = 0.03
#: Largest CSV or JSON file read, bytes.
MOST_BYTES = 200 * 1024 * 1024


def serve_parameters(
    options: ProfileOptions, overrides: Mapping[str, Any] | None = None, graphs: bool = False
) -> list[dict[str, Any]]:
    """Two servers for every layer count, for prefill and for decode; ``overrides`` joins ``--hf-overrides``.

    The one for decode fills its KV cache with anything, so that no prompt is computed between decode steps. With
    ``graphs`` the one for prefill has CUDA graphs for its prompts, as `coralopt launch` starts servers. The seeds say
    which points belong to which server (``--link-vars seed=seed``).
    """
    most_tokens = max(options.prompt_tokens) * max(options.prompts)
    captured = {"compilation_config": {"cudagraph_capture_sizes": graph_sizes(min(most_tokens, MOST_CAPTURED))}}
    filled = {"kv_transfer_config": {"kv_connector": "DecodeBenchConnector", "kv_role": "kv_both"}}
    return [
        {
            "_benchmark_name": f"{phase}-layers-{count}",
            "hf_overrides": {**(overrides or {}), "num_hidden_layers": count},
            **(filled if phase == "decode" else captured if graphs else {}),
            "seed": seed,
        }
        for count in options.layers
        for phase, seed in SEEDS.items()
    ]


def bench_parameters(options: ProfileOptions) -> list[dict[str, Any]]:
    """Every point, as parameters of `vllm bench serve`.

    Prefill: answers of one token, ``batch`` prompts at a time. Decode: waves of ``batch`` sequences.
    """
    prefill = [
        {
            "_benchmark_name": f"prefill-{batch}x{tokens}",
            "seed": SEEDS["prefill"],
            "random_input_len": tokens,
            "random_output_len": 1,
            "max_concurrency": batch,
            "num_prompts": batch * options.repeats,
        }
        for tokens, batch in itertools.product(options.prompt_tokens, options.prompts)
    ]
    return prefill + [
        {
            "_benchmark_name": f"decode-{batch}x{context}",
            "seed": SEEDS["decode"],
            # The context grows while the answer does: in the middle it is what was asked for.
            "random_input_len": max(1, context - DECODE_TOKENS // 2),
            "random_output_len": DECODE_TOKENS,
            "max_concurrency": batch,
            "num_prompts": batch * max(1, math.ceil(3 / batch)),
        }
        for context, batch in itertools.product(options.contexts, options.sequences)
    ]


def read_bench_files(
    paths: Sequence[str | Path],
    layers: int | None = None,
    batch: int | None = None,
    lengths: tuple[int, int] | None = None,
) -> tuple[list[Point], str]:
    """Points from files of vLLM's bench commands, in any mixture.

    * ``summary.csv`` (or other CSV) of `vllm bench sweep serve`: layers from the column ``hf_overrides``;
    * JSON of `vllm bench serve --save-result`: layers from ``--metadata layers=N`` or the argument;
    * JSON of `vllm bench latency --output-json`: holds no parameters at all: layers, batch and lengths are the arguments,
      or stand in the file's name as ``layers-4-batch-8-in-512-out-1.json``.

    Answers of one token are prefill points, others decode points; these need servers that compute no prompts meanwhile
    (DecodeBenchConnector) or long answers. From `bench latency` a decode point is the whole
    latency over the tokens, so it needs long answers to be right.

    Args:
        paths: The files.
        layers: Layer count of files that do not say it.
        batch: Batch of files that do not say it.
        lengths: (prompt, answer) of files that do not say them, tokens.

    Returns:
        The points, and what they were measured with.

    Raises:
        CoraloptError: A file cannot be read, is no such file, lacks a parameter, or holds failed requests.
    """
    points: list[Point] = []
    kinds: set[str] = set()
    for item in paths:
        path = Path(item)
        try:
            if path.stat().st_size > MOST_BYTES:
                raise CoraloptError(f"{path}: larger than {MOST_BYTES // 2**20} MiB; no bench file is")
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not a UTF-8 text file"
            raise CoraloptError(f"{path}: cannot be read: {reason}") from error
        if path.suffix == ".csv":
            rows: list[dict[str, Any]] = list(csv.DictReader(text.splitlines()))
            if not rows or "max_concurrency" not in rows[0]:
                raise CoraloptError(
                    f"{path}: no table of `vllm bench sweep serve`: a column max_concurrency is missing"
                )
            points += [_serve_point(row, f"{path}, row {n}", layers) for n, row in enumerate(rows, 1)]
            kinds.add("vllm bench sweep serve")
            continue
        try:
            data = json.loads(text)
        except ValueError as error:
            raise CoraloptError(f"{path}: not JSON: {error}") from error
        # A summary.json of a sweep holds a list of runs.
        for number, entry in enumerate(data if isinstance(data, list) else [data], 1):
            where = f"{path}, entry {number}" if isinstance(data, list) else str(path)
            if isinstance(entry, dict) and "latencies" in entry:
                points.append(_latency_point(entry, path, layers, batch, lengths))
                kinds.add("vllm bench latency")
            elif isinstance(entry, dict) and "max_concurrency" in entry:
                points.append(_serve_point(entry, where, layers))
                kinds.add("vllm bench serve")
            else:
                raise CoraloptError(f"{where}: neither `vllm bench latency` nor `vllm bench serve` wrote this")
    return _joined(points), " and ".join(sorted(kinds))


def _joined(points: Sequence[Point]) -> list[Point]:
    """Points whose lengths differ by next to nothing, put at one length."""
    result = []
    for point in points:
        near = sorted({p.tokens for p in points if p.phase == point.phase})
        # The first length of the run that this one belongs to.
        first = previous = near[0]
        for tokens in near:
            if tokens > previous * (1 + SAME_LENGTH) + 1:
                first = tokens
            previous = tokens
            if tokens == point.tokens:
                break
        result.append(replace(point, tokens=first))
    return result


def _serve_point(row: Mapping[str, Any], where: str, layers: int | None) -> Point:
    """A point of `vllm bench serve`: rows of a CSV hold text, of JSON numbers."""
    count = _layers_of(row, where, layers)
    batch = round(_number(row, "max_concurrency", where))
    completed, failed = _number(row, "completed", where), _number(row, "failed", where, 0.0)
    if completed < 1 or failed > 0:
        raise CoraloptError(
            f"{where}: {failed:.0f} requests failed and {completed:.0f} did not; measure this point again"
        )
    # What was asked for, where a sweep says it: a random prompt comes out a token longer or shorter.
    total = _number(row, "total_input_tokens", where)
    stated = str(row.get("random_input_len") or "").strip()
    prompt = _number(row, "random_input_len", where) if stated else total / completed
    answer = _number(row, "total_output_tokens", where) / completed
    if answer <= 1.5:
        # With B prompts always inside, the time to the first token is that of B prompts (Little's law), whether they go
        # through together or in turns.
        ms = _number(row, "median_ttft_ms", where)
        return Point("prefill", count, batch, float(round(prompt)), ms)
    ms = _number(row, "median_tpot_ms", where)
    whole = _number(row, "median_e2el_ms", where, 0.0)
    if "DecodeBenchConnector" in str(row.get("kv_transfer_config") or "") and 2 * ms * answer < whole:
        raise CoraloptError(
            f"{where}: {ms:.3g} ms a token, but {whole:.3g} ms for {answer:.0f} tokens: the client read them in bursts; "
            "the machine was too busy, measure this point again"
        )
    return Point("decode", count, batch, float(round(prompt + answer / 2)), ms)


def _latency_point(
    data: Mapping[str, Any], path: Path, layers: int | None, batch: int | None, lengths: tuple[int, int] | None
) -> Point:
    named = re.search(r"layers-(\d+)-batch-(\d+)-in-(\d+)-out-(\d+)", path.stem)
    if named:
        layers, batch = int(named[1]), int(named[2])
        lengths = (int(named[3]), int(named[4]))
    if layers is None or batch is None or lengths is None:
        raise CoraloptError(
            f"{path}: `vllm bench latency` does not write layers, batch and lengths; give --layers, --batch, --input-tokens "
            "and --output-tokens, or name the file layers-J-batch-B-in-I-out-O.json"
        )
    times = data["latencies"]
    if not isinstance(times, list) or not times or not all(isinstance(t, int | float) and t > 0 for t in times):
        raise CoraloptError(f"{path}: 'latencies' must be a list of positive seconds")
    median = 1e3 * sorted(times)[len(times) // 2]
    phase: Phase = "prefill" if lengths[1] == 1 else "decode"
    if phase == "prefill":
        return Point(phase, layers, batch, float(lengths[0]), median)
    return Point(phase, layers, batch, float(round(lengths[0] + lengths[1] / 2)), median / lengths[1])


def _layers_of(row: Mapping[str, Any], where: str, layers: int | None) -> int:
    overrides = row.get("hf_overrides")
    if isinstance(overrides, str) and overrides.strip():
        match = re.search(r"['\"]num_hidden_layers['\"]\s*:\s*(\d+)", overrides)
        if match:
            return int(match[1])
    if isinstance(overrides, dict) and isinstance(overrides.get("num_hidden_layers"), int):
        return int(overrides["num_hidden_layers"])
    for key in ("hf_overrides.num_hidden_layers", "hf-overrides.num_hidden_layers", "num_hidden_layers", "layers"):
        if str(row.get(key) or "").strip():
            return round(_number(row, key, where))
    if layers is None:
        raise CoraloptError(f"{where}: does not say how many layers the model had; give --layers")
    return layers


def _number(row: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
    value = row.get(key)
    if value in (None, "") and default is not None:
        return default
    try:
        number = read_number(value)
    except (TypeError, ValueError):
        raise CoraloptError(f"{where}: {key} is {value!r}, not a number") from None
    if not math.isfinite(number) or number < 0:
        raise CoraloptError(f"{where}: {key} is {value!r}; it must be finite and not negative")
    return number
