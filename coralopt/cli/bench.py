"""``coralopt bench``: compare solvers and formulations; ``coralopt bench report``: say what came out."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from coralopt.cli.console import (
    JsonFlag,
    OptionList,
    file_to_write,
    file_to_write_as,
    folder_to_write,
    parse_options,
    print_json,
    progress_bar,
    say,
)
from coralopt.cli.option_groups import OptionGroup, option, takes_groups
from coralopt.cli.present import CommandOutput, present
from coralopt.replacing import replacing

if TYPE_CHECKING:
    from rich.table import Table

    from coralopt.benchmark import BenchTask, Outcome


class _BenchGroup(TyperGroup):
    """The commands; a pattern of model files that the shell has already expanded is one ``-i`` for each file."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:  # Any: typer may bring its own copy of click
        from coralopt.benchmark.files import is_file_pattern

        spread: list[str] = []
        for word in args:
            if is_file_pattern(word) and spread[-2:-1] in (["-i"], ["--instance"]) and is_file_pattern(spread[-1]):
                spread.append("-i")
            spread.append(word)
        return super().parse_args(ctx, spread)


app = typer.Typer(cls=_BenchGroup, invoke_without_command=True, add_completion=False, pretty_exceptions_enable=False)

ResultsArgument = Annotated[Path, typer.Argument(metavar="RESULTS", help="Results file, .jsonl or .parquet.")]


@dataclass(frozen=True)
class InstanceOptions(OptionGroup):
    """What is run."""

    panel = "What is run"

    suite: list[str] | None = option(None, "Named instances: placement, allocation, small; may be repeated.")
    instance: list[str] | None = option(
        None,
        "e.g. placement:*/prefill:nodes=3..8:seed=0,1 or folder/*.mps; may be repeated.",
        "--instance",
        "-i",
        metavar="SPEC",
    )
    solver: list[str] | None = option(None, "May be repeated; every registered one by default.", "--solver", "-s")
    formulation: list[str] | None = option(None, "May be repeated; all by default.", "--formulation", "-f")
    reductions: str = option("both", "Exact reductions ahead of allocations: on, off or both.")
    arm: list[str] | None = option(
        None, "SOLVER[/FORMULATION[+reductions]] instead of combinations; may be repeated.", "--arm", "-a"
    )
    seeds: int = option(5, "Runs of every instance and arm, with seeds 0, 1, ...", least=1)

    def tasks(self) -> Sequence[BenchTask]:
        """Every run that is asked for.

        Raises:
            BenchmarkError: There is none, or a name is unknown.
        """
        from coralopt import benchmark
        from coralopt.errors import BenchmarkError
        from coralopt.solving import solver_names, unknown_option

        patterns = list(self.instance or [])
        for name in self.suite or []:
            if name not in benchmark.SUITES:
                raise BenchmarkError(unknown_option("suite", name, benchmark.SUITES))
            patterns += benchmark.SUITES[name]
        if not patterns:
            raise BenchmarkError(f"nothing to run: give --instance, or --suite ({', '.join(benchmark.SUITES)})")
        reductions = {"on": (True,), "off": (False,), "both": (False, True)}.get(self.reductions)
        if reductions is None:
            raise BenchmarkError(f"--reductions is {self.reductions!r}; choose on, off or both")
        # A solver such as pyomo:NAME needs a name behind its colon, so it takes part only when asked for.
        solvers = self.solver or [name for name in solver_names() if name != "pyomo"]
        arms = benchmark.make_arms(solvers, self.formulation or [], reductions)
        if self.arm:
            arms = [benchmark.parse_arm(text) for text in self.arm]
        tasks = benchmark.make_tasks(benchmark.expand_all(patterns), arms, range(self.seeds))
        if not tasks:
            raise BenchmarkError("nothing to run: none of these solvers and formulations takes any of these instances")
        return tasks


@dataclass(frozen=True)
class RunLimits(OptionGroup):
    """What every run is given."""

    panel = "Each run"

    time_limit: float = option(30.0, "Seconds a run may take.")
    grace: float = option(15.0, "Seconds after the limit until the process is killed.")
    rel_gap: float = option(1e-4, "Relative gap to prove.")
    threads: int = option(1, "Threads of a solver.", least=1)
    permute: bool = option(True, "Seeds above 0 also permute rows and columns.")
    memory_limit: float | None = option(None, "GiB a run may take.")
    assignments: OptionList = None


@dataclass(frozen=True)
class BenchOutput(OptionGroup):
    """How the runs are worked off, and where results go."""

    jobs: int = option(1, "Runs at a time; more disturb the seconds.", "--jobs", "-j", least=1)
    retry: list[str] | None = option(None, "Repeat runs with this outcome, e.g. 'died' or 'not run: licence'.")
    output: Path = option(
        Path("bench.jsonl"),
        "Results file; continued when it exists.",
        "--output",
        "-o",
        check=file_to_write_as(".jsonl", ".parquet"),
    )
    solu: Path | None = option(None, "Known values of model files, in MIPLIB's form.")
    logs: Path | None = option(None, "Folder for the solvers' own logs.", check=folder_to_write)
    dry_run: bool = option(False, "Only say what would be run.", "--dry-run")
    json_output: JsonFlag = False


@app.callback()
@takes_groups
def bench(context: typer.Context, instances: InstanceOptions, limits: RunLimits, files: BenchOutput) -> None:
    """Run instances x solvers x formulations x seeds, each in its own process. The same command continues it."""
    if context.invoked_subcommand is not None:
        return
    from coralopt import benchmark

    tasks = instances.tasks()
    known = benchmark.read_solu(files.solu) if files.solu else {}
    settings = benchmark.Settings(
        **{name: value for name, value in vars(limits).items() if name != "assignments"},
        options=parse_options(limits.assignments),
    )
    if files.dry_run:
        keys = [task.key for task in tasks]
        present(CommandOutput({"runs": keys}, ["\n".join(keys)]), files.json_output)
        return
    # Runs differ a lot in length: an estimate over many of them jumps less.
    with progress_bar("runs", quiet=files.json_output, estimate_s=600.0) as progress:
        outcome = benchmark.run_bench(
            tasks,
            settings,
            files.output,
            jobs=files.jobs,
            retry=[_outcome(name) for name in files.retry or []],
            logs=files.logs,
            progress=lambda count, total, what: progress(what, count, total),
        )
    wanted = {task.key for task in tasks}
    rows = [row for row in benchmark.read_rows(files.output) if row["key"] in wanted]
    summary = benchmark.summarise(rows, known=known) if rows else None
    document = {"results": files.output, **vars(outcome), "summary": summary}
    counts = f"{outcome.done} of {outcome.total} runs done ({outcome.kept} from before)"
    line = f"{counts}, {outcome.seconds:.0f} s: {files.output}"
    present(CommandOutput(document, () if summary is None else _count_tables(summary), [line]), files.json_output)
    if outcome.interrupted:
        say("interrupted; the same command continues where it stopped")
        raise KeyboardInterrupt
    _end(summary)


@app.command()
def report(
    results: ResultsArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder for report.md, report.json, table.csv, table.tex and the plots.",
            callback=folder_to_write,
        ),
    ] = None,
    clock: Annotated[str, typer.Option(help="wall or cpu: which seconds count.")] = "wall",
    recheck: Annotated[bool, typer.Option(help="Draw every instance again and check every stored answer.")] = False,
    solu: Annotated[Path | None, typer.Option(help="Known values of model files, in MIPLIB's form.")] = None,
    plots: Annotated[bool, typer.Option(help="Draw plots, where matplotlib is installed.")] = True,
    title: Annotated[str, typer.Option(help="Heading of the report.")] = "Benchmark",
    json_output: JsonFlag = False,
) -> None:
    """Report RESULTS: counts, shifted geometric means, PAR10, profiles, primal gaps, build share, wrong answers."""
    from coralopt import benchmark
    from coralopt.errors import BenchmarkError

    if clock not in ("wall", "cpu"):
        raise BenchmarkError(f"--clock is {clock!r}; choose wall or cpu")
    rows = benchmark.read_whole_rows(results)
    if not rows:
        raise BenchmarkError(f"{results} has no rows yet")
    known = benchmark.read_solu(solu) if solu else {}
    wrong = benchmark.recheck(rows) if recheck else []
    data = benchmark.summarise(rows, "seconds" if clock == "wall" else "cpu_seconds", wrong, known)
    drawn: list[str] = []
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        if plots:
            try:
                drawn = benchmark.draw_plots(data, rows, output)
            except BenchmarkError as error:
                say(f"no plots: {error}")
        for name, text in (
            ("report.json", json.dumps(data, indent=1, allow_nan=False) + "\n"),
            ("report.md", benchmark.report_markdown(data, drawn, title)),
            ("table.csv", benchmark.summary_csv(data)),
            ("table.tex", benchmark.summary_latex(data)),
        ):
            with replacing(output / name) as temporary:
                temporary.write_text(text, encoding="utf-8")
    if json_output:
        print_json(data)
    elif output is None:
        sys.stdout.write(benchmark.report_markdown(data, (), title))
    if output is not None:
        say(
            "written: "
            + ", ".join(str(output / name) for name in ("report.md", "report.json", "table.csv", "table.tex", *drawn))
        )
    if recheck:
        count = sum(row.get("answer") is not None for row in rows)
        say(f"{count:,} stored answers checked again: {len(wrong)} wrong")
    _end(data)


@app.command()
def library(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files go.", callback=folder_to_write)],
    only: Annotated[str, typer.Option(help="Names with * and ?, e.g. 'allocation-*'.")] = "*",
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds for each of two searches, an instance.")] = 10.0,
    archive: Annotated[Path | None, typer.Option(help="All files as one .tar.gz, too.", callback=file_to_write)] = None,
    json_output: JsonFlag = False,
) -> None:
    """Write the library of instances: MPS files, best known solutions, a .solu file and an index."""
    from coralopt import benchmark
    from coralopt.errors import BenchmarkError

    with progress_bar("instances", quiet=json_output, estimate_s=600.0) as progress:
        entries = benchmark.write_library(folder, only, time_limit, progress)
    if not entries:
        raise BenchmarkError(f"no instance is called {only!r}")
    if archive is not None:
        benchmark.archive_library(folder, archive)
    proven = sum(bool(entry.proof) for entry in entries)
    twice = sum(" and " in entry.proof for entry in entries)
    line = f"{len(entries)} instances in {folder}: {proven} proven, {twice} of them in two ways"
    present(CommandOutput([vars(entry) for entry in entries], lines=[line]), json_output)


@app.command()
def pack(
    results: ResultsArgument,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="New file, .parquet or .jsonl.", callback=file_to_write_as(".parquet", ".jsonl")
        ),
    ],
    json_output: JsonFlag = False,
) -> None:
    """Write RESULTS anew, the last row of every run: Parquet is a tenth of the size."""
    from coralopt import benchmark

    rows = benchmark.read_rows(results)
    benchmark.write_rows(rows, output)
    size = output.stat().st_size
    line = f"{len(rows):,} rows, {size:,} bytes: {output}"
    present(CommandOutput({"results": output, "rows": len(rows), "bytes": size}, lines=[line]), json_output)


def _outcome(name: str) -> Outcome:
    from coralopt.benchmark import Outcome
    from coralopt.errors import BenchmarkError
    from coralopt.solving import unknown_option

    names = [outcome.value for outcome in Outcome]
    if name not in names:
        raise BenchmarkError(unknown_option("outcome", name, names))
    return Outcome(name)


# Any, here and below: a summary is a JSON document of several levels, see benchmark.summarise.
def _end(data: Mapping[str, Any] | None) -> None:
    """Wrong answers are loud and end with exit code 1."""
    if data is None or not data["conflicts"]:
        return
    say(f"WRONG ANSWERS: {len(data['conflicts'])}")
    for item in data["conflicts"]:
        say(f"  - {item['run'] or item['instance']}: {item['text']}")
    raise typer.Exit(1)


def _count_tables(summary: Mapping[str, Any]) -> list[Table]:
    from coralopt.report.table import Column, make_table, numbers

    columns: tuple[Column | str, ...] = (
        "arm",
        *numbers("{}", "runs", "solved", "unsolved", "not run: licence", "not installed"),
        *numbers("{:.3f}", "SGM 1 s", "PAR10"),
    )
    return [
        make_table(
            f"{section['kind'].capitalize()} (limit {section['limit']:g} s)",
            columns,
            [
                (
                    *(arm["arm"], arm["runs"], arm["solved"], arm["run"] - arm["solved_of_run"]),
                    *(arm["outcomes"][name] for name in ("not run: licence", "not run: not installed")),
                    *(arm["sgm_1"], arm["par10"]),
                )
                for arm in section["arms"]
            ],
        )
        for section in summary["sections"]
    ]
