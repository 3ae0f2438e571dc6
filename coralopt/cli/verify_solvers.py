"""``coralopt verify-solvers``: every solver and formulation against every other on random instances."""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from coralopt.cli.console import JsonFlag, folder_to_write, progress_bar
from coralopt.cli.exit_codes import CHECK_FAILED, OK
from coralopt.cli.present import CommandOutput, present
from coralopt.errors import OptionError


@contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Every Ctrl-C meanwhile, whoever it reaches."""
    numbers: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        numbers.append(number)
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield numbers
    finally:
        signal.signal(signal.SIGINT, before)


def verify_solvers(
    instances: Annotated[int, typer.Option(min=0, help="Placement instances.")] = 100,
    allocations: Annotated[int | None, typer.Option(min=0, help="Allocation instances; a fifth by default.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="First seed; instance k has seed + k.")] = 0,
    solver: Annotated[list[str] | None, typer.Option(help="MILP back end; all installed ones by default.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for disagreements.", callback=folder_to_write)
    ] = Path("disagreements"),
    replay: Annotated[Path | None, typer.Option(help="Ask all arms about a saved disagreement again.")] = None,
    json_output: JsonFlag = False,
) -> None:
    """Solve random instances with every solver and formulation; exit code 1 when any two disagree."""
    from coralopt.report.table import Column, make_table
    from coralopt.solving import Capability, require_backend
    from coralopt.testing.verification import (
        Unproven,
        load_case,
        milp_solvers,
        save_case,
        verify_instance,
        verify_seeds,
    )

    solvers = solver or milp_solvers()
    for name in solvers:
        if Capability.MILP not in require_backend(name).capabilities:
            raise OptionError(
                f"--solver {name}: it takes no integer programmes; name back ends that do ({', '.join(milp_solvers())}); "
                "dp answers every placement beside them"
            )
    if replay is not None:
        problem, case_seed = load_case(replay)
        verdict = verify_instance(problem, solvers, case_seed)
        answers = {answer.arm: answer.as_json for answer in verdict.answers}
        lines = [f"{answer.arm:24} {answer.said}  ({answer.seconds:.3f} s)" for answer in verdict.answers]
        lines.append("all agree" if verdict.agree else "THEY DISAGREE")
        code = OK if verdict.agree else CHECK_FAILED
        present(CommandOutput({"agree": verdict.agree, "answers": answers}, lines=lines, code=code), json_output)
        return
    wanted = {"placement": instances, "allocation": instances // 5 if allocations is None else allocations}
    total = sum(wanted.values())
    count: Counter[str] = Counter()
    outcomes: Counter[tuple[str, str]] = Counter()
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    unproven: Counter[str] = Counter()
    saved: list[str] = []
    stopped = False
    with progress_bar("instances", quiet=json_output) as progress, _noted_interrupts() as interrupts:
        try:
            for kind, number in wanted.items():
                for verdict in verify_seeds(kind, range(seed, seed + number), solvers, workers):
                    count[kind] += 1
                    solved = isinstance(verdict.answers[0].said, float)
                    outcomes[kind, "solved" if solved else "infeasible"] += 1
                    for answer in verdict.answers:
                        seconds[kind, answer.arm].append(answer.seconds)
                        unproven[answer.arm] += isinstance(answer.said, Unproven)
                    if not verdict.agree:
                        saved.append(str(save_case(verdict, output)))
                    progress(kind, count.total(), total)
                    if interrupts:
                        # A back end that had just answered took Ctrl-C for itself.
                        raise KeyboardInterrupt
        except KeyboardInterrupt:
            stopped = True
    rows = [(kind, arm, len(values), sum(values) / len(values), max(values)) for (kind, arm), values in seconds.items()]
    names = ("kind", "arm", "instances", "mean_s", "max_s")
    times = [dict(zip(names, row, strict=True)) for row in rows]
    table = make_table(
        "Wall time of each arm; models are built before, once for all solvers",
        [
            *("kind", "arm", Column("instances", "{:,}"), Column("mean ms", "{:.1f}"), Column("max ms", "{:.0f}")),
        ],
        [(*names_and_count, 1e3 * mean_s, 1e3 * max_s) for *names_and_count, mean_s, max_s in rows],
    )
    lines = [
        f"{count[kind]:,} {kind} instances ({outcomes[kind, 'solved']:,} solved, "
        f"{outcomes[kind, 'infeasible']:,} infeasible)"
        for kind in wanted
    ]
    lines.append(
        f"{len(saved)} disagreements" + (f", saved in {output}: replay one with --replay FILE" if saved else "")
    )
    unproven = +unproven
    if unproven:
        arms = ", ".join(f"{number} of {arm}" for arm, number in unproven.most_common())
        lines.append(f"{unproven.total()} answers without a proof, which fit the others unless saved: {arms}")
    if stopped:
        lines.append("stopped early; the numbers above hold for what was done")
    document = {
        "instances": count,
        "disagreements": saved,
        "unproven": unproven,
        "stopped": stopped,
        "seed": seed,
        "times": times,
    }
    present(CommandOutput(document, [table], lines, code=CHECK_FAILED if saved else OK), json_output)
