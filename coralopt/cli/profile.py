"""``coralopt profile``: measure layer times on this machine, or take them from vLLM's bench files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coralopt.cli.console import JsonFlag, parse_whole_numbers, progress_bar
from coralopt.cli.option_groups import OptionGroup, takes_groups
from coralopt.cli.present import Answer, present

if TYPE_CHECKING:
    from rich.table import Table

    from coralopt.catalog.types import ModelArchitecture
    from coralopt.profiling import Point, ProfileOptions
    from coralopt.types import Progress


class Engine(StrEnum):
    """What measures."""

    VLLM = "vllm"
    TORCH = "torch"


class Device(StrEnum):
    """Where."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True)
class PointOptions(OptionGroup):
    """Which points are measured."""

    panel = "What is measured"

    layers: Annotated[str, typer.Option(help="Layer counts of the truncated models; by default 2,4,8.")] = ""
    prompts: Annotated[str, typer.Option(help="Batches of prompts.")] = "1,2,4"
    prompt_tokens: Annotated[str, typer.Option(help="Prompt lengths.")] = "128,512,2048"
    sequences: Annotated[str, typer.Option(help="Decode batches.")] = "1,8,32,128"
    contexts: Annotated[str, typer.Option(help="Contexts of decode.")] = "512,2048"
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Measured repeats of a point.")] = 5


@dataclass(frozen=True)
class EngineOptions(OptionGroup):
    """What measures, and where."""

    engine: Annotated[Engine, typer.Option(help="vllm: vLLM's own bench; torch: layer slices.")] = Engine.VLLM
    model_path: Annotated[
        Path | None, typer.Option(help="Directory with config.json (vLLM: and a tokenizer); weights are not needed.")
    ] = None
    device: Annotated[Device, typer.Option(help="cuda, or cpu to try it out.")] = Device.CUDA
    tensor_parallel: Annotated[int, typer.Option(min=1, help="vllm: GPUs of the node.")] = 1
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None
    timeout: Annotated[float, typer.Option(min=1, help="Longest run, seconds.")] = 7200.0


@dataclass(frozen=True)
class ProgramOptions(OptionGroup):
    """The programs that measure."""

    panel = "Programs"

    python: Annotated[str, typer.Option(help="torch: interpreter that has torch and transformers.")] = sys.executable
    vllm: Annotated[str, typer.Option(help="vllm: the program.")] = "vllm"
    vllm_option: Annotated[
        list[str] | None, typer.Option("--vllm-option", metavar="WORD", help="One more word for `vllm serve`; repeat.")
    ] = None
    keep: Annotated[Path | None, typer.Option(help="vllm: directory for all files of its bench.")] = None


@dataclass(frozen=True)
class FileOptions(OptionGroup):
    """Measurements that exist already."""

    panel = "Files instead of measuring"

    files: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="FILE", help="Measure nothing: take vLLM's bench JSON or sweep CSV; repeat."),
    ] = None
    batch: Annotated[int | None, typer.Option(min=1, help="--from: batch of files that do not say it.")] = None
    input_tokens: Annotated[int | None, typer.Option(min=1, help="--from: prompt length of such files.")] = None
    output_tokens: Annotated[int | None, typer.Option(min=1, help="--from: answer length of such files.")] = None
    measured_with: Annotated[str, typer.Option(help="--from: versions and device, for the record.")] = ""


@takes_groups
def profile(
    model: Annotated[str, typer.Option(help="A model of the catalog, or a name of your own with --model-path.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File of measured times; other nodes in it are kept.")],
    configuration: Annotated[str, typer.Option(help="Node configuration that is measured, for example 1xH200.")],
    engine: EngineOptions,
    points: PointOptions,
    programs: ProgramOptions,
    source: FileOptions,
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

    folder = engine.model_path
    known = find_model(model)
    if known is None and folder is None:
        raise CoraloptError(
            f"--model {model}: the catalog has no such model; say where its config.json is: --model-path"
        )
    if folder is not None and not folder.is_dir():
        raise CoraloptError(f"--model-path {folder}: no such directory")
    architecture = known if known is not None else architecture_of(model, folder or Path())
    layers = parse_whole_numbers("--layers", points.layers) if points.layers else None
    if source.files:
        lengths = None
        if source.input_tokens is not None and source.output_tokens is not None:
            lengths = (source.input_tokens, source.output_tokens)
        times, kind = read_bench_files(source.files, layers[0] if layers else None, source.batch, lengths)
        note = f"{kind}, {source.measured_with}" if source.measured_with else kind
    else:
        options = ProfileOptions(
            layers=layers or default_layers(architecture),
            prompts=parse_whole_numbers("--prompts", points.prompts),
            prompt_tokens=parse_whole_numbers("--prompt-tokens", points.prompt_tokens),
            sequences=parse_whole_numbers("--sequences", points.sequences),
            contexts=parse_whole_numbers("--contexts", points.contexts),
            repeats=points.repeats,
            device=engine.device.value,
            tensor_parallel=engine.tensor_parallel,
            threads=engine.threads,
            timeout_s=engine.timeout,
        )
        with progress_bar("profile", quiet=json_output) as progress:
            times, note = _measure(engine, programs, architecture, options, progress)
    node = measured_node(architecture, configuration, note, times)
    count = save_measurements(output, node)
    others = _comparison(architecture, configuration, node)
    lines = [f"{phase}: points are within {error:.1%} of c0 + c1 j" for phase, error in node["fit_error"].items()]
    for name, phases in others.items():
        text = ", ".join(f"{phase} {mean:+.1%} (absolute {size:.1%})" for phase, (mean, size) in phases.items())
        lines.append(f"layer times of source {name} against these: {text}")
    lines.append(
        f"{output}: {count} measured nodes; in a scenario: throughput: {{source: measured, measured: [{output.name}]}}"
    )
    document = {"file": output, "nodes": count, "node": node, "other_sources": others}
    present(Answer(document, [_table(node)], lines), json_output)


def _measure(
    engine: EngineOptions,
    programs: ProgramOptions,
    model: ModelArchitecture,
    options: ProfileOptions,
    progress: Progress,
) -> tuple[list[Point], str]:
    from coralopt.errors import CoraloptError
    from coralopt.profiling import profile_with_torch, profile_with_vllm

    folder = engine.model_path
    if engine.engine is Engine.TORCH:
        if options.tensor_parallel > 1:
            raise CoraloptError("--engine torch measures one device; --tensor-parallel needs --engine vllm")
        return profile_with_torch(model, options, folder, programs.python, progress)
    target = str(folder.absolute()) if folder is not None else model.hf_id
    words = tuple(programs.vllm_option or ())
    return profile_with_vllm(target, options, programs.vllm, words, keep=programs.keep, progress=progress)


def _comparison(model: ModelArchitecture, configuration: str, node: dict[str, Any]) -> dict[str, Any]:
    """Source -> phase -> how far its layer times are off, for nodes of the catalog."""
    from coralopt.catalog import node_configurations
    from coralopt.profiling import compare_with
    from coralopt.throughput import throughput_source

    known = node_configurations().get(configuration)
    if known is None:
        return {}
    errors = {name: compare_with(throughput_source(name), model, known, node) for name in ("roofline", "silicon")}
    return {name: phases for name, phases in errors.items() if phases is not None}


def _table(node: Mapping[str, Any]) -> Table:
    from coralopt.report.table import Column, make_table, numbers

    return make_table(
        f"{node['model']} ({node['weight_format']}) on {node['configuration']}: {node['measured_with']}",
        [
            "phase",
            *(Column("tokens", "{:g}"), Column("batch", "{}")),
            *numbers("{:.3f}", "one layer ms", "the rest ms"),
        ],
        [
            (phase, tokens, batch, layer_ms, other_ms)
            for phase in ("prefill", "decode")
            for tokens, layers, others in zip(
                *(node[phase][k] for k in ("tokens", "layer_ms", "other_ms")), strict=True
            )
            for batch, layer_ms, other_ms in zip(node[phase]["batch"], layers, others, strict=True)
        ],
    )
