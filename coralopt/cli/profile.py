"""``coralopt profile``: measure layer times on this machine, or take them from vLLM's bench files."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coralopt.cli.console import JsonFlag, print_json, print_rich, progress_bar, say

if TYPE_CHECKING:
    from coralopt.catalog.types import ModelArchitecture
    from coralopt.profiling import Point, ProfileOptions


class Engine(StrEnum):
    """What measures."""

    VLLM = "vllm"
    TORCH = "torch"


class Device(StrEnum):
    """Where."""

    CPU = "cpu"
    CUDA = "cuda"


def profile(
    model: Annotated[str, typer.Option(help="A model of the catalog, or a name of your own with --model-path.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File of measured times; other nodes in it are kept.")],
    configuration: Annotated[str, typer.Option(help="Node configuration that is measured, for example 1xH200.")],
    engine: Annotated[Engine, typer.Option(help="vllm: vLLM's own bench; torch: layer slices.")] = Engine.VLLM,
    model_path: Annotated[
        Path | None, typer.Option(help="Directory with config.json (vLLM: and a tokenizer); weights are not needed.")
    ] = None,
    device: Annotated[Device, typer.Option(help="cuda, or cpu to try it out.")] = Device.CUDA,
    layers: Annotated[str, typer.Option(help="Layer counts of the truncated models; by default 2,4,8.")] = "",
    prompts: Annotated[str, typer.Option(help="Batches of prompts.")] = "1,2,4",
    prompt_tokens: Annotated[str, typer.Option(help="Prompt lengths.")] = "128,512,2048",
    sequences: Annotated[str, typer.Option(help="Decode batches.")] = "1,8,32,128",
    contexts: Annotated[str, typer.Option(help="Contexts of decode.")] = "512,2048",
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Measured repeats of a point.")] = 5,
    tensor_parallel: Annotated[int, typer.Option(min=1, help="vllm: GPUs of the node.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Longest run, seconds.")] = 7200.0,
    python: Annotated[str, typer.Option(help="torch: interpreter that has torch and transformers.")] = sys.executable,
    vllm: Annotated[str, typer.Option(help="vllm: the program.")] = "vllm",
    vllm_option: Annotated[
        list[str] | None, typer.Option("--vllm-option", metavar="WORD", help="One more word for `vllm serve`; repeat.")
    ] = None,
    keep: Annotated[Path | None, typer.Option(help="vllm: directory for all files of its bench.")] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="FILE", help="Measure nothing: take vLLM's bench JSON or sweep CSV; repeat."),
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="--from: batch of files that do not say it.")] = None,
    input_tokens: Annotated[int | None, typer.Option(min=1, help="--from: prompt length of such files.")] = None,
    output_tokens: Annotated[int | None, typer.Option(min=1, help="--from: answer length of such files.")] = None,
    measured_with: Annotated[str, typer.Option(help="--from: versions and device, for the record.")] = "",
    json_output: JsonFlag = False,
) -> None:
    """Measure T_j(g) of MODEL here: times of truncated models, fitted as c0 + c1 j for every batch and length.

    A scenario uses the file with `throughput: {source: measured, measured: [FILE]}`.
    """
    from coralopt.catalog import find_model
    from coralopt.errors import CoraloptError
    from coralopt.profiling import (
        ProfileOptions,
        architecture_of,
        default_layers,
        measured_node,
        read_bench_files,
        save_measurements,
    )

    known = find_model(model)
    if known is None and model_path is None:
        raise CoraloptError(
            f"--model {model}: the catalog has no such model; say where its config.json is: --model-path"
        )
    if model_path is not None and not model_path.is_dir():
        raise CoraloptError(f"--model-path {model_path}: no such directory")
    architecture = known if known is not None else architecture_of(model, model_path or Path())
    if files:
        counts = _numbers("--layers", layers) if layers else (None,)
        lengths = None if input_tokens is None or output_tokens is None else (input_tokens, output_tokens)
        points, kind = read_bench_files(files, counts[0], batch, lengths)
        note = f"{kind}, {measured_with}" if measured_with else kind
    else:
        options = ProfileOptions(
            layers=_numbers("--layers", layers) if layers else default_layers(architecture),
            prompts=_numbers("--prompts", prompts),
            prompt_tokens=_numbers("--prompt-tokens", prompt_tokens),
            sequences=_numbers("--sequences", sequences),
            contexts=_numbers("--contexts", contexts),
            repeats=repeats,
            device=device.value,
            tensor_parallel=tensor_parallel,
            threads=threads,
            timeout_s=timeout,
        )
        points, note = _measure(
            engine, architecture, options, model_path, python, vllm, tuple(vllm_option or ()), keep, json_output
        )
    node = measured_node(architecture, configuration, note, points)
    count = save_measurements(output, node)
    off = _comparison(architecture, configuration, node)
    if json_output:
        print_json({"file": str(output), "nodes": count, "node": node, "other_sources": off})
        return
    print_rich(_table(node))
    for phase, error in node["fit_error"].items():
        say(f"{phase}: points are within {error:.1%} of c0 + c1 j")
    for name, phases in off.items():
        text = ", ".join(f"{phase} {mean:+.1%} (absolute {size:.1%})" for phase, (mean, size) in phases.items())
        say(f"layer times of source {name} against these: {text}")
    say(f"{output}: {count} measured nodes; in a scenario: throughput: {{source: measured, measured: [{output.name}]}}")


def _measure(
    engine: Engine,
    model: ModelArchitecture,
    options: ProfileOptions,
    folder: Path | None,
    python: str,
    vllm: str,
    extra: tuple[str, ...],
    keep: Path | None,
    quiet: bool,
) -> tuple[list[Point], str]:
    from coralopt.errors import CoraloptError
    from coralopt.profiling import profile_with_torch, profile_with_vllm

    with progress_bar("profile", quiet=quiet) as progress:
        if engine is Engine.TORCH:
            if options.tensor_parallel > 1:
                raise CoraloptError("--engine torch measures one device; --tensor-parallel needs --engine vllm")
            return profile_with_torch(model, options, folder, python, progress)
        target = str(folder.absolute()) if folder is not None else model.hf_id
        return profile_with_vllm(target, options, vllm, extra, keep=keep, progress=progress)


def _comparison(model: ModelArchitecture, configuration: str, node: dict[str, Any]) -> dict[str, Any]:
    """Source -> phase -> how far its layer times are off, for nodes of the catalog."""
    from coralopt.catalog import node_configurations
    from coralopt.profiling import compare_with
    from coralopt.throughput import throughput_source

    found = node_configurations().get(configuration)
    if found is None:
        return {}
    off = {name: compare_with(throughput_source(name), model, found, node) for name in ("roofline", "silicon")}
    return {name: phases for name, phases in off.items() if phases is not None}


def _numbers(option: str, text: str) -> tuple[int, ...]:
    from coralopt.errors import OptionError

    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise OptionError(
            f"{option} {text!r}: expected whole numbers with commas between them, for example 2,4,8"
        ) from None


def _table(node: dict[str, Any]) -> Any:
    from rich.table import Table

    title = f"{node['model']} ({node['weight_format']}) on {node['configuration']}: {node['measured_with']}"
    table = Table(title=title)
    for column in ("phase", "tokens", "batch", "one layer ms", "the rest ms"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    for phase in ("prefill", "decode"):
        grid = node[phase]
        for tokens, layer, other in zip(grid["tokens"], grid["layer_ms"], grid["other_ms"], strict=True):
            for batch, one, rest in zip(grid["batch"], layer, other, strict=True):
                table.add_row(phase, f"{tokens:g}", str(batch), f"{one:.3f}", f"{rest:.3f}")
    return table
