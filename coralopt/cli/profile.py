"""``coralopt profile``: measure layer times on this machine, or take them from vLLM's bench files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coralopt.cli.console import JsonFlag, file_to_write_as, parse_whole_numbers, progress_bar
from coralopt.cli.option_groups import OptionGroup, option, takes_groups
from coralopt.cli.present import CommandOutput, present
from coralopt.cli.shared_options import Device

if TYPE_CHECKING:
    from rich.table import Table

    from coralopt.catalog.types import ModelArchitecture
    from coralopt.profiling import Point, ProfileOptions
    from coralopt.types import Progress


class ProfileEngine(StrEnum):
    """What measures."""

    VLLM = "vllm"
    TORCH = "torch"


@dataclass(frozen=True)
class PointOptions(OptionGroup):
    """Which points are measured."""

    panel = "What is measured"

    layers: str = option("", "Layer counts of the truncated models; by default 2,4,8.")
    prompts: str = option("1,2,4", "Batches of prompts.")
    prompt_tokens: str = option("128,512,2048", "Prompt lengths.")
    sequences: str = option("1,8,32,128", "Decode batches.")
    contexts: str = option("512,2048", "Contexts of decode.")
    repeats: int = option(5, "Measured repeats of a point.", least=1, most=1000)


@dataclass(frozen=True)
class MeasuringOptions(OptionGroup):
    """What measures, and where."""

    engine: ProfileEngine = option(ProfileEngine.VLLM, "vllm: vLLM's own bench; torch: layer slices.")
    model_path: Path | None = option(
        None, "Directory with config.json (vLLM: and a tokenizer); weights are not needed."
    )
    device: Device = option(Device.CUDA, "cuda, or cpu to try it out.")
    tensor_parallel: int = option(1, "vllm: GPUs of the node.", least=1)
    threads: int | None = option(None, "CPU threads.", least=1)
    timeout: float = option(7200.0, "Longest run, seconds.", least=1)


@dataclass(frozen=True)
class ProgramOptions(OptionGroup):
    """The programs that measure."""

    panel = "Programs"

    python: str = option(sys.executable, "torch: interpreter that has torch and transformers.")
    vllm: str = option("vllm", "vllm: the program.")
    vllm_option: list[str] | None = option(None, "One more word for `vllm serve`; repeat.", metavar="WORD")
    keep: Path | None = option(None, "vllm: directory for all files of its bench.")


@dataclass(frozen=True)
class FileOptions(OptionGroup):
    """Measurements that exist already."""

    panel = "Files instead of measuring"

    files: list[Path] | None = option(
        None, "Measure nothing: take vLLM's bench JSON or sweep CSV; repeat.", "--from", metavar="FILE"
    )
    batch: int | None = option(None, "--from: batch of files that do not say it.", least=1)
    input_tokens: int | None = option(None, "--from: prompt length of such files.", least=1)
    output_tokens: int | None = option(None, "--from: answer length of such files.", least=1)
    measured_with: str = option("", "--from: versions and device, for the record.")


@takes_groups
def profile(
    model: Annotated[str, typer.Option(help="A model of the catalog, or a name of your own with --model-path.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="File of measured times; other nodes in it are kept.",
            callback=file_to_write_as(".json"),
        ),
    ],
    configuration: Annotated[str, typer.Option(help="Node configuration that is measured, for example 1xH200.")],
    engine: MeasuringOptions,
    points: PointOptions,
    programs: ProgramOptions,
    source: FileOptions,
    json_output: JsonFlag = False,
) -> None:
    """Measure T_j(g) of MODEL here: times of truncated models, fitted as c0 + c1 j for every batch and length.

    A scenario uses the file with `throughput: {source: measured, measured: [FILE]}`.
    """
    from coralopt.catalog import find_model, read_checkpoint
    from coralopt.errors import CoraloptError
    from coralopt.profiling import ProfileOptions, default_layers, measured_node, read_bench_files, save_measurements

    folder = engine.model_path
    known = find_model(model)
    if known is None and folder is None:
        raise CoraloptError(
            f"--model {model}: the catalog has no such model; say where its config.json is: --model-path"
        )
    if folder is not None and not folder.is_dir():
        raise CoraloptError(f"--model-path {folder}: no such directory")
    architecture = known if known is not None else read_checkpoint(folder or Path()).architecture(model)
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
    node = measured_node(architecture, configuration, note, times, engine="vllm" in note)
    count = save_measurements(output, node)
    others = _comparison(architecture, configuration, node)
    lines = [f"{phase}: points are within {error:.1%} of c0 + c1 j" for phase, error in node["fit_error"].items()]
    if "mixed_factor" in node:
        lines.append(f"mixed steps take {node['mixed_factor']:.3f} of what prefill and decode times make of them")
    if "host_step_ms" in node:
        lines.append(f"host: {node['host_step_ms']:.2f} ms a step, {node['host_request_ms']:.1f} ms a request")
    for name, phases in others.items():
        text = ", ".join(f"{phase} {mean:+.1%} (absolute {size:.1%})" for phase, (mean, size) in phases.items())
        lines.append(f"layer times of source {name} against these: {text}")
    lines.append(
        f"{output}: {count} measured nodes; in a scenario: throughput: {{source: measured, measured: [{output.name}]}}"
    )
    document = {"file": output, "nodes": count, "node": node, "other_sources": others}
    present(CommandOutput(document, [_table(node)], lines), json_output)


def _measure(
    engine: MeasuringOptions,
    programs: ProgramOptions,
    model: ModelArchitecture,
    options: ProfileOptions,
    progress: Progress,
) -> tuple[list[Point], str]:
    from coralopt.errors import CoraloptError
    from coralopt.profiling import profile_with_torch, profile_with_vllm

    folder = engine.model_path
    if engine.engine is ProfileEngine.TORCH:
        if options.tensor_parallel > 1:
            raise CoraloptError("--engine torch measures one device; --tensor-parallel needs --engine vllm")
        return profile_with_torch(model, options, folder, programs.python, progress)
    target = str(folder.absolute()) if folder is not None else model.hf_id
    words = tuple(programs.vllm_option or ())
    return profile_with_vllm(target, options, programs.vllm, words, keep=programs.keep, progress=progress)


# Any, here and below: a measured node is a JSON document of several levels, see profiling.measured_node.
def _comparison(
    model: ModelArchitecture, configuration: str, node: dict[str, Any]
) -> dict[str, dict[str, tuple[float, float]]]:
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
