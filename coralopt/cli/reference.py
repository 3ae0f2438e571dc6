"""``coralopt reference``: run a plan's stages on the reference engine and compare its tokens with the unsplit model's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coralopt.cli.console import JsonFlag, print_json, say
from coralopt.cli.exit_codes import CHECK_FAILED
from coralopt.cli.option_groups import OptionGroup, option, takes_groups
from coralopt.cli.present import CommandOutput, present
from coralopt.cli.shared_options import Device

if TYPE_CHECKING:
    from rich.table import Table

    from coralopt.reference import ReferenceReport


class DType(StrEnum):
    """Type of weights and activations."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


@dataclass(frozen=True)
class PromptOptions(OptionGroup):
    """What is asked of the models."""

    panel = "Prompts"

    requests: int = option(8, "Prompts.", least=1, most=10_000)
    prompt_tokens: int = option(32, "Longest prompt.", least=1)
    new_tokens: int = option(8, "Tokens of every answer.", least=1)
    seed: int = option(0, "Seed of prompts and stand-ins.")


@dataclass(frozen=True)
class RunOptions(OptionGroup):
    """Where and how the stages run."""

    device: Device = option(Device.CPU, "cuda: a GPU a node over NCCL; cpu: Gloo.")
    dtype: DType = option(DType.FLOAT32, "In half precision a tie may fall the other way.")
    copies: bool = option(False, "Run each instance as often as the plan deploys it.", "--copies")
    most_processes: int = option(32, "Most processes to start, one a node.", least=1)
    timeout: float = option(600.0, "Longest wait for one model, seconds.", least=1)
    python: str = option(sys.executable, "Interpreter that has torch and transformers.")


@takes_groups
def reference(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan document.")],
    prompts: PromptOptions,
    how: RunOptions,
    model: Annotated[list[str] | None, typer.Option(help="Model of the plan; may be repeated; all by default.")] = None,
    model_path: Annotated[
        list[str] | None,
        typer.Option("--model-path", metavar="MODEL=PATH", help="Checkpoint of a model; else a small seeded stand-in."),
    ] = None,
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
            requests=prompts.requests,
            prompt_tokens=prompts.prompt_tokens,
            new_tokens=prompts.new_tokens,
            seed=prompts.seed,
            device=how.device.value,
            dtype=how.dtype.value,
            copies=how.copies,
            most_processes=how.most_processes,
            timeout_s=how.timeout,
            python=how.python,
        )
        report = run_reference(document, name, options, say)
        reports.append(report)
        if not json_output:
            present(CommandOutput(None, [_table(report), "\n".join(_verdict(report))]), json_output)
    if json_output:
        print_json([report.to_document() for report in reports])
    if not all(report.ok for report in reports):
        raise typer.Exit(CHECK_FAILED)


def _table(report: ReferenceReport) -> Table:
    from coralopt.report.table import Column, make_table

    columns = (
        *("node", "instance", Column("layers", "{}"), Column("requests", "{}"), Column("share", "{:.1%}")),
        *(Column("planned", "{:.1%}"), Column("prefill", "{}"), Column("decode", "{}")),
    )
    rows = []
    for times in report.nodes:
        node = times.node
        prefill = decode = None
        if times.prefill_ms is not None:
            prefill = f"{times.prefill_ms:.1f} ms / {times.prefill_tokens:.0f} tok"
        if times.decode_ms is not None:
            decode = f"{times.decode_ms:.1f} ms / {times.decode_sequences:.1f} seq"
        layers = f"{node.first_layer}-{node.last_layer}"
        rows.append(
            (
                *(f"{node.rank}: {node.configuration}", node.instance, layers, times.requests, times.share),
                *(node.planned_share, prefill, decode),
            )
        )
    weights = "seeded stand-in" if report.stand_in else "checkpoint"
    return make_table(
        f"{report.model} ({weights}) on {len(report.nodes)} processes over {report.backend}", columns, rows
    )


def _verdict(report: ReferenceReport) -> Iterator[str]:
    yield (
        f"{report.model}: {report.equal} of {report.requests} answers "
        f"of {report.new_tokens} tokens equal the unsplit model's"
    )
    for request, (expected, answer) in list(report.different.items())[:5]:
        pairs = zip(expected, answer, strict=False)
        at = next((n for n, (one, other) in enumerate(pairs) if one != other), len(answer))
        yield f"  request {request} differs from token {at} on: {expected[at : at + 5]} became {answer[at : at + 5]}"
