"""``coralopt reference``: run a plan's stages on the reference engine and compare its tokens with the unsplit model's."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coralopt.cli.console import JsonFlag, print_json, print_rich, say

if TYPE_CHECKING:
    from coralopt.reference import ReferenceReport


class Device(StrEnum):
    """Where to compute."""

    CPU = "cpu"
    CUDA = "cuda"


class DType(StrEnum):
    """Type of weights and activations."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def reference(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan document.")],
    model: Annotated[list[str] | None, typer.Option(help="Model of the plan; may be repeated; all by default.")] = None,
    model_path: Annotated[
        list[str] | None,
        typer.Option("--model-path", metavar="MODEL=PATH", help="Checkpoint of a model; else a small seeded stand-in."),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, max=10_000, help="Prompts.")] = 8,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Longest prompt.")] = 32,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of every answer.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of prompts and stand-ins.")] = 0,
    device: Annotated[Device, typer.Option(help="cuda: a GPU a node over NCCL; cpu: Gloo.")] = Device.CPU,
    dtype: Annotated[DType, typer.Option(help="In half precision a tie may fall the other way.")] = DType.FLOAT32,
    copies: Annotated[
        bool, typer.Option("--copies", help="Run each instance as often as the plan deploys it.")
    ] = False,
    most_processes: Annotated[int, typer.Option(min=1, help="Most processes to start, one a node.")] = 32,
    timeout: Annotated[float, typer.Option(min=1, help="Longest wait for one model, seconds.")] = 600.0,
    python: Annotated[str, typer.Option(help="Interpreter that has torch and transformers.")] = sys.executable,
    json_output: JsonFlag = False,
) -> None:
    """Run PLAN's stages on torch.distributed, here, and check that greedy tokens equal those of the unsplit model.

    For checking plans and timing stages; not for serving. Tensor parallelism inside a node is left out.
    """
    from coralopt.errors import LaunchError
    from coralopt.plan import Plan
    from coralopt.reference import ReferenceOptions, run_reference

    document = Plan.load(plan)
    known = list(dict.fromkeys(instance.model for instance in document.instances))
    unknown = [name for name in model or () if name not in known]
    if unknown:
        raise LaunchError(f"--model {unknown[0]}: the plan has no such model; it has {', '.join(known)}")
    paths = {}
    for item in model_path or []:
        name, separator, path = item.partition("=")
        if not separator or name not in known:
            raise LaunchError(
                f"--model-path {item!r}: expected MODEL=PATH with a model of the plan: {', '.join(known)}"
            )
        if not Path(path).is_dir():
            raise LaunchError(f"--model-path {item}: no such directory")
        paths[name] = Path(path)
    reports = []
    for name in model or known:
        options = ReferenceOptions(
            folder=paths.get(name),
            requests=requests,
            prompt_tokens=prompt_tokens,
            new_tokens=new_tokens,
            seed=seed,
            device=device.value,
            dtype=dtype.value,
            copies=copies,
            most_processes=most_processes,
            timeout_s=timeout,
            python=python,
        )
        reports.append(run_reference(document, name, options, say))
        if not json_output:
            print_rich(_table(reports[-1]))
            _verdict(reports[-1])
    if json_output:
        print_json([report.to_document() for report in reports])
    raise typer.Exit(0 if all(report.ok for report in reports) else 1)


def _table(report: ReferenceReport) -> Any:
    from rich.table import Table

    weights = "seeded stand-in" if report.stand_in else "checkpoint"
    table = Table(title=f"{report.model} ({weights}) on {len(report.nodes)} processes over {report.backend}")
    for column in ("node", "instance", "layers", "requests", "share", "planned", "prefill", "decode"):
        table.add_column(column, justify="left" if column in ("node", "instance") else "right")
    for times in report.nodes:
        node = times.node
        prefill = "-" if times.prefill_ms is None else f"{times.prefill_ms:.1f} ms / {times.prefill_tokens:.0f} tok"
        decode = "-" if times.decode_ms is None else f"{times.decode_ms:.1f} ms / {times.decode_sequences:.1f} seq"
        table.add_row(
            f"{node.rank}: {node.configuration}",
            node.instance,
            f"{node.first_layer}-{node.last_layer}",
            str(times.requests),
            f"{times.share:.1%}",
            f"{node.planned_share:.1%}",
            prefill,
            decode,
        )
    return table


def _verdict(report: ReferenceReport) -> None:
    typer.echo(
        f"{report.model}: {report.equal} of {report.requests} answers "
        f"of {report.new_tokens} tokens equal the unsplit model's"
    )
    for request, (expected, found) in list(report.different.items())[:5]:
        at = next((n for n, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1]), len(found))
        typer.echo(
            f"  request {request} differs from token {at} on: {expected[at : at + 5]} became {found[at : at + 5]}"
        )
