"""``coralopt throughput``: measured layer times of a model on GPUs, from published kernels, into the user's cache."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coralopt.cli.console import JsonFlag, progress_bar
from coralopt.cli.present import CommandOutput, present

if TYPE_CHECKING:
    from coralopt.catalog.checkpoints import Config
    from coralopt.catalog.types import ModelArchitecture


class Weights(StrEnum):
    """Formats of weights that kernels were measured for."""

    BF16 = "bf16"
    FP8 = "fp8"
    MXFP4 = "mxfp4"


class Cache(StrEnum):
    """Formats of the KV cache."""

    BF16 = "bf16"
    FP8 = "fp8"


app = typer.Typer(no_args_is_help=True, help="Layer times of models on GPUs.")


@app.callback()
def _group() -> None:
    pass


@app.command("build")
def build(
    model: Annotated[str, typer.Argument(help="A model of the catalog, or the path of a config.json.")],
    gpus: Annotated[list[str], typer.Argument(help="GPUs (H200: 1, 2, 4 and 8 of them) or nodes (4xH200).")],
    name: Annotated[str, typer.Option(help="Of a config.json: what scenarios call it, its key or hf_id.")] = "",
    weight_format: Annotated[Weights | None, typer.Option(help="Other weights than the published ones.")] = None,
    kv_format: Annotated[Cache, typer.Option(help="Format of the KV cache.")] = Cache.BF16,
    json_output: JsonFlag = False,
) -> None:
    """Build layer times of MODEL on each of GPUS from measured kernels (extra `silicon`), into the user's cache.

    They keep their provenance. A scenario with `throughput: {source: auto}`, the default, takes in what concerns its models
    and nodes by itself, so that plans need no cache.
    """
    from coralopt.catalog import node_configurations, parse_configuration
    from coralopt.errors import CoraloptError
    from coralopt.profiling import save_measurements
    from coralopt.scenario.measured import built_folder
    from coralopt.throughput.build import measured_times

    architecture, config = _model(model, name)
    weights = architecture.weight_format if weight_format is None else weight_format.value
    architecture = replace(architecture, weight_format=weights, kv_format=kv_format.value)
    nodes = [
        node
        for word in gpus
        for node in (
            [parse_configuration(word)]
            if word[:1].isdigit()
            else [known for known in node_configurations().values() if known.gpu.name == word]
            or [parse_configuration(f"1x{word}")]
        )
    ]
    checkpoint = architecture.measured_as or architecture.hf_id
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in checkpoint)
    target = built_folder() / f"{safe}.json"
    built: list[str] = []
    left: dict[str, list[str]] = {}
    with progress_bar("throughput", quiet=json_output) as progress:
        for position, node in enumerate(nodes):
            progress(f"{architecture.name} on {node.name}", position, len(nodes))
            try:
                save_measurements(target, measured_times(architecture, node, config))
                built.append(node.name)
            except CoraloptError as error:
                left.setdefault(str(error), []).append(node.name)
    if not built:
        raise CoraloptError(f"nothing is built: {'; '.join(left)}")
    document = {"file": target, "model": checkpoint, "built": built, "left_out": left}
    lines = [f"{checkpoint} ({architecture.weight_format}) on {', '.join(built)}: {target}"]
    warnings = [f"left out {', '.join(names)}: {reason}" for reason, names in left.items()]
    present(CommandOutput(document, lines=lines, warnings=warnings), json_output)


def _model(word: str, name: str) -> tuple[ModelArchitecture, Config | None]:
    from coralopt.catalog import find_model, read_checkpoint
    from coralopt.catalog.checkpoints import read_config
    from coralopt.errors import CoraloptError

    known, path = find_model(word), Path(word)
    if known is not None:
        return known, None
    if not path.exists():
        raise CoraloptError(f"{word}: neither a model of the catalog nor a file or folder")
    if not name:
        raise CoraloptError(f"{word}: say what scenarios call it, its key or its hf_id: --name")
    return replace(read_checkpoint(path).architecture(name), hf_id=name), read_config(path)
