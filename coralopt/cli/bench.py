"""``coralopt bench``: compare solvers and formulations; ``coralopt bench report``: say what came out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from coralopt.cli.console import JsonFlag, OptionList, parse_options, print_json, print_rich, say

app = typer.Typer(invoke_without_command=True, add_completion=False, pretty_exceptions_enable=False)

ResultsArgument = Annotated[Path, typer.Argument(metavar="RESULTS", help="Results file, .jsonl or .parquet.")]


@app.callback()
def bench(
    context: typer.Context,
    suite: Annotated[
        list[str] | None, typer.Option(help="Named instances: placement, allocation, small; may be repeated.")
    ] = None,
    instance: Annotated[
        list[str] | None,
        typer.Option(
            "--instance", "-i", metavar="SPEC", help="e.g. placement:*/prefill:nodes=3..8:seed=0,1; may be repeated."
        ),
    ] = None,
    solver: Annotated[
        list[str] | None, typer.Option("--solver", "-s", help="May be repeated; every registered one by default.")
    ] = None,
    formulation: Annotated[
        list[str] | None, typer.Option("--formulation", "-f", help="May be repeated; all by default.")
    ] = None,
    reductions: Annotated[str, typer.Option(help="Exact reductions ahead of allocations: on, off or both.")] = "both",
    arm: Annotated[
        list[str] | None,
        typer.Option("--arm", "-a", help="SOLVER[/FORMULATION[+reductions]] instead of combinations; may be repeated."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of every instance and arm, with seeds 0, 1, ...")] = 5,
    time_limit: Annotated[float, typer.Option(help="Seconds a run may take.")] = 30.0,
    grace: Annotated[float, typer.Option(help="Seconds after the limit until the process is killed.")] = 15.0,
    rel_gap: Annotated[float, typer.Option(help="Relative gap to prove.")] = 1e-4,
    threads: Annotated[int, typer.Option(min=1, help="Threads of a solver.")] = 1,
    permute: Annotated[bool, typer.Option(help="Seeds above 0 also permute rows and columns.")] = True,
    memory_limit: Annotated[float | None, typer.Option(help="GiB a run may take.")] = None,
    option: OptionList = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs at a time; more disturb the seconds.")] = 1,
    retry: Annotated[
        list[str] | None, typer.Option(help="Repeat runs with this outcome, e.g. 'died' or 'not run: licence'.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Results file; continued when it exists.")] = Path(
        "bench.jsonl"
    ),
    logs: Annotated[Path | None, typer.Option(help="Folder for the solvers' own logs.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be run.")] = False,
    json_output: JsonFlag = False,
) -> None:
    """Run instances x solvers x formulations x seeds, each in its own process. The same command continues it."""
    if context.invoked_subcommand is not None:
        return
    from coralopt import benchmark
    from coralopt.errors import BenchmarkError
    from coralopt.solving import solver_names, unknown_option

    patterns = list(instance or [])
    for name in suite or []:
        if name not in benchmark.SUITES:
            raise BenchmarkError(unknown_option("suite", name, benchmark.SUITES))
        patterns += benchmark.SUITES[name]
    if not patterns:
        raise BenchmarkError(f"nothing to run: give --instance, or --suite ({', '.join(benchmark.SUITES)})")
    if reductions not in ("on", "off", "both"):
        raise BenchmarkError(f"--reductions is {reductions!r}; choose on, off or both")
    chosen = {"on": (True,), "off": (False,), "both": (False, True)}[reductions]
    # A solver such as pyomo:NAME needs a name behind its colon, so it takes part only when asked for.
    solvers = solver or [name for name in solver_names() if name != "pyomo"]
    arms = (
        [benchmark.parse_arm(text) for text in arm] if arm else benchmark.make_arms(solvers, formulation or [], chosen)
    )
    settings = benchmark.Settings(time_limit, grace, rel_gap, threads, permute, memory_limit, parse_options(option))
    tasks = benchmark.make_tasks(benchmark.expand_all(patterns), arms, range(seeds))
    if not tasks:
        raise BenchmarkError("nothing to run: none of these solvers and formulations takes any of these instances")
    if dry_run:
        if json_output:
            print_json({"runs": [task.key for task in tasks]})
        else:
            sys.stdout.write("".join(f"{task.key}\n" for task in tasks))
        return
    with _progress(quiet=json_output) as progress:
        made = benchmark.run_bench(
            tasks,
            settings,
            output,
            jobs=jobs,
            retry=[_outcome(name) for name in retry or []],
            logs=logs,
            progress=progress,
        )
    wanted = {task.key for task in tasks}
    rows = [row for row in benchmark.read_rows(output) if row["key"] in wanted]
    data = benchmark.summarise(rows) if rows else None
    if json_output:
        print_json(
            {
                "results": str(output),
                "done": made.done,
                "total": made.total,
                "kept": made.kept,
                "interrupted": made.interrupted,
                "seconds": made.seconds,
                "summary": data,
            }
        )
    else:
        if data is not None:
            _print_counts(data)
        say(f"{made.done} of {made.total} runs done ({made.kept} from before), {made.seconds:.0f} s: {output}")
    if made.interrupted:
        say("interrupted; the same command continues where it stopped")
        raise KeyboardInterrupt
    _end(data)


@app.command()
def report(
    results: ResultsArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for report.md, report.json and the plots.")
    ] = None,
    clock: Annotated[str, typer.Option(help="wall or cpu: which seconds count.")] = "wall",
    recheck: Annotated[bool, typer.Option(help="Draw every instance again and check every stored answer.")] = False,
    plots: Annotated[bool, typer.Option(help="Draw plots, where matplotlib is installed.")] = True,
    title: Annotated[str, typer.Option(help="Heading of the report.")] = "Benchmark",
    json_output: JsonFlag = False,
) -> None:
    """Report RESULTS: counts, shifted geometric means, PAR10, profiles, primal gaps, build share, wrong answers."""
    from coralopt import benchmark
    from coralopt.errors import BenchmarkError

    if clock not in ("wall", "cpu"):
        raise BenchmarkError(f"--clock is {clock!r}; choose wall or cpu")
    rows = benchmark.read_rows(results)
    if not rows:
        raise BenchmarkError(f"{results} has no rows yet")
    found = benchmark.recheck(rows) if recheck else []
    data = benchmark.summarise(rows, "seconds" if clock == "wall" else "cpu_seconds", found)
    drawn: list[str] = []
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        if plots:
            try:
                drawn = benchmark.draw_plots(data, rows, output)
            except BenchmarkError as error:
                say(f"no plots: {error}")
        _write(output / "report.json", json.dumps(data, indent=1, allow_nan=False) + "\n")
        _write(output / "report.md", benchmark.report_markdown(data, drawn, title))
    if json_output:
        print_json(data)
    elif output is None:
        sys.stdout.write(benchmark.report_markdown(data, (), title))
    if output is not None:
        say("written: " + ", ".join(str(output / name) for name in ("report.md", "report.json", *drawn)))
    if recheck:
        count = sum(row.get("answer") is not None for row in rows)
        say(f"{count:,} stored answers checked again: {len(found)} wrong")
    _end(data)


@app.command()
def pack(
    results: ResultsArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="New file, .parquet or .jsonl.")],
    json_output: JsonFlag = False,
) -> None:
    """Write RESULTS anew, the last row of every run: Parquet is a tenth of the size."""
    from coralopt import benchmark

    rows = benchmark.read_rows(results)
    benchmark.write_rows(rows, output)
    size = output.stat().st_size
    if json_output:
        print_json({"results": str(output), "rows": len(rows), "bytes": size})
    else:
        say(f"{len(rows):,} rows, {size:,} bytes: {output}")


def _outcome(name: str) -> Any:
    from coralopt.benchmark import Outcome
    from coralopt.errors import BenchmarkError
    from coralopt.solving import unknown_option

    names = [outcome.value for outcome in Outcome]
    if name not in names:
        raise BenchmarkError(unknown_option("outcome", name, names))
    return Outcome(name)


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _end(data: Any) -> None:
    """Wrong answers are loud and end with exit code 1."""
    if data is None or not data["conflicts"]:
        return
    say(f"WRONG ANSWERS: {len(data['conflicts'])}")
    for item in data["conflicts"]:
        say(f"  - {item['run'] or item['instance']}: {item['text']}")
    raise typer.Exit(1)


def _print_counts(data: Any) -> None:
    from rich.table import Table

    for section in data["sections"]:
        table = Table(title=f"{section['kind'].capitalize()} (limit {section['limit']:g} s)")
        table.add_column("arm")
        for head in ("runs", "solved", "unsolved", "not run: licence", "not installed", "SGM 1 s", "PAR10"):
            table.add_column(head, justify="right")
        for arm in section["arms"]:
            counts = arm["outcomes"]
            table.add_row(
                arm["arm"],
                str(arm["runs"]),
                str(arm["solved"]),
                str(arm["run"] - arm["solved_of_run"]),
                str(counts["not run: licence"]),
                str(counts["not run: not installed"]),
                *("-" if arm[name] is None else f"{arm[name]:.3f}" for name in ("sgm_1", "par10")),
            )
        print_rich(table)


@contextmanager
def _progress(quiet: bool) -> Iterator[Any]:
    """A bar with an estimate of what is left, on standard error."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    bar = Progress(
        TextColumn("runs"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        # Runs differ a lot in length: an estimate over many of them jumps less.
        TimeRemainingColumn(),
        # The name gives way on a narrow terminal, the estimate does not.
        TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        expand=True,
        console=Console(stderr=True),
        speed_estimate_period=600.0,
        disable=quiet,
        transient=True,
    )
    with bar:
        task: Any = None

        def move(done: int, total: int, what: str) -> None:
            nonlocal task
            if task is None:
                task = bar.add_task(what, total=total, completed=done)
            bar.update(task, completed=done, total=total, description=what)

        yield move
