"""``coralopt verify-solvers``: every solver and formulation against every other on random instances."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Annotated

import typer

from coralopt.cli.console import JsonFlag, print_json, print_rich, say


def verify_solvers(
    instances: Annotated[int, typer.Option(min=0, help="Placement instances.")] = 100,
    allocations: Annotated[int | None, typer.Option(min=0, help="Allocation instances; a fifth by default.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="First seed; instance k has seed + k.")] = 0,
    solver: Annotated[list[str] | None, typer.Option(help="MILP back end; all installed ones by default.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for disagreements.")] = Path("disagreements"),
    replay: Annotated[Path | None, typer.Option(help="Ask all arms about a saved disagreement again.")] = None,
    json_output: JsonFlag = False,
) -> None:
    """Solve random instances with every solver and formulation; exit code 1 when any two disagree."""
    from rich.progress import Progress, TimeRemainingColumn
    from rich.table import Table

    from coralopt.solving import require_backend
    from coralopt.testing.verification import load_case, milp_solvers, save_case, verify_instance, verify_seeds

    solvers = solver or milp_solvers()
    for name in solvers:
        require_backend(name)
    if replay is not None:
        verdict = verify_instance(load_case(replay), solvers)
        if json_output:
            print_json({"agree": verdict.agree, "answers": {a.arm: a.said for a in verdict.answers}})
        else:
            for answer in verdict.answers:
                say(f"{answer.arm:24} {answer.said}  ({answer.seconds:.3f} s)")
            say("all agree" if verdict.agree else "THEY DISAGREE")
        raise typer.Exit(0 if verdict.agree else 1)
    asked = {"placement": instances, "allocation": instances // 5 if allocations is None else allocations}
    count: Counter[str] = Counter()
    outcomes: Counter[tuple[str, str]] = Counter()
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    saved: list[str] = []
    stopped = False
    with Progress(*Progress.get_default_columns()[:-1], TimeRemainingColumn(), disable=json_output) as progress:
        try:
            for kind, number in asked.items():
                task = progress.add_task(f"{kind}s", total=number)
                for verdict in verify_seeds(kind, range(seed, seed + number), solvers, workers):
                    count[kind] += 1
                    first = verdict.answers[0].said
                    outcomes[kind, "solved" if isinstance(first, float) else "infeasible"] += 1
                    for answer in verdict.answers:
                        seconds[kind, answer.arm].append(answer.seconds)
                    if not verdict.agree:
                        saved.append(str(save_case(verdict, output)))
                    progress.advance(task)
        except KeyboardInterrupt:
            stopped = True
    times = [
        (kind, arm, len(values), sum(values) / len(values), max(values)) for (kind, arm), values in seconds.items()
    ]
    if json_output:
        names = ("kind", "arm", "instances", "mean_s", "max_s")
        print_json(
            {
                "instances": dict(count),
                "disagreements": saved,
                "stopped": stopped,
                "seed": seed,
                "times": [dict(zip(names, row, strict=True)) for row in times],
            }
        )
    else:
        table = Table(title="Wall time of each arm; models are built before, once for all solvers")
        for head in ("kind", "arm", "instances", "mean ms", "max ms"):
            table.add_column(head, justify="left" if head in ("kind", "arm") else "right")
        for kind, arm, number, mean, most in times:
            table.add_row(kind, arm, f"{number:,}", f"{1e3 * mean:.1f}", f"{1e3 * most:.0f}")
        print_rich(table)
        for kind in asked:
            say(
                f"{count[kind]:,} {kind} instances ({outcomes[kind, 'solved']:,} solved, "
                f"{outcomes[kind, 'infeasible']:,} infeasible)"
            )
        say(f"{len(saved)} disagreements" + (f", saved in {output}: replay one with --replay FILE" if saved else ""))
        if stopped:
            say("stopped early; the numbers above hold for what was done")
    raise typer.Exit(1 if saved else 0)
