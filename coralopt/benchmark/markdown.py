"""A report in Markdown, from the figures of :mod:`coralopt.benchmark.summary`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from coralopt.benchmark.outcome import Outcome
from coralopt.benchmark.summary import STEPS, Data

#: Fewer seeds than this say little about a solver: order and seed alone move times by tens of percent.
ENOUGH_SEEDS = 5
#: Outcomes that always have a column, so that nothing is blank.
ALWAYS = (Outcome.LICENCE.value, Outcome.NOT_INSTALLED.value)


def report_markdown(data: Data, plots: Sequence[str] = (), title: str = "Benchmark") -> str:
    """The whole report; ``plots`` are file names beside it."""
    parts = [f"# {title}", _wrong(data), _made(data)]
    for section in data["sections"]:
        parts += _section(section, data, [name for name in plots if section["kind"] in name])
    return "\n\n".join(part for part in parts if part) + "\n"


def _wrong(data: Data) -> str:
    if not data["conflicts"]:
        return (
            "**Wrong answers: none.** Every objective is the exact re-evaluation of the answer; no proven bound passes "
            "any checked answer, and nothing that was called infeasible has one."
        )
    lines = [f"**WRONG ANSWERS: {len(data['conflicts'])}.** These runs count as unsolved:"]
    lines += [f"- `{item['run'] or item['instance']}`: {item['text']}" for item in data["conflicts"]]
    return "\n".join(lines)


def _made(data: Data) -> str:
    seeds = data["seeds"]
    lines = [f"{data['runs']:,} runs on {data['instances']:,} instances, each run in a fresh process of its own."]
    if len(data["machines"]) > 1:
        lines.append(
            f"**The rows come from {len(data['machines'])} machines or with other versions; their seconds do not compare.**"
        )
    table = [["", "value"]]
    for machine in data["machines"]:
        table += [
            [name.replace("_gib", ", GiB"), str(value)] for name, value in machine.items() if value not in ("", None)
        ]
    if data["commits"]:
        table.append(["commit", ", ".join(data["commits"])])
    for settings in data["settings"]:
        table += [[name.replace("_", " "), str(value)] for name, value in settings.items() if value not in (None, {})]
    table.append(["processes at a time", ", ".join(map(str, data["jobs"]))])
    table.append(["seeds", f"{len(seeds)} ({', '.join(map(str, seeds))}); those above 0 also permute rows and columns"])
    if data["load"]:
        table.append(["load average before a run", "least {:.1f}, median {:.1f}, most {:.1f}".format(*data["load"])])
    for solver in data["solvers"]:
        table.append([f"solver {solver['solver']}", f"{solver['version']} {solver['licence']}".strip()])
    notes = [
        f"Times are {'CPU' if data['clock'] == 'cpu_seconds' else 'wall'} seconds from the problem in hand to the checked "
        "answer: build, hand-over, solve, check. Imports and compilation happen before. *Solved* means proven within "
        "the gap asked for and within the time limit; any other run that was run counts at the limit.",
        "SGM is the shifted geometric mean exp(mean(ln(max(1, t + shift)))) - shift; PAR10 the mean with unsolved runs at "
        "ten times the limit.",
    ]
    if len(seeds) < ENOUGH_SEEDS:
        notes.append(
            f"Only {len(seeds)} seed{'s' if len(seeds) != 1 else ''}: differences of tens of percent mean nothing."
        )
    return "\n\n".join([*lines, _table(table), *notes])


def _section(section: Data, data: Data, plots: Sequence[str]) -> list[str]:
    kind = section["kind"]
    parts = [f"## {kind.capitalize()}", _counts(section), f"### {kind.capitalize()} by size", _sizes(section)]
    common = section["common"]
    if len({arm["run"] for arm in section["arms"] if arm["run"]}) > 1:
        parts.append(
            f"Not every arm ran everything. On the {common['runs']} runs that every arm that ran at all had a chance at:"
            if common["runs"]
            else "Not every arm ran everything, and no run is common to all arms; see the pairs below."
        )
        if common["runs"]:
            parts.append(
                _table(
                    [["arm", "solved", "SGM 1 s", "SGM 10 s", "PAR10"]]
                    + [
                        [
                            item["arm"],
                            f"{item['solved_of_run']} of {item['run']}",
                            *(_seconds(item[name]) for name in ("sgm_1", "sgm_10", "par10")),
                        ]
                        for item in common["figures"]
                    ]
                )
            )
    parts += [f"### {kind.capitalize()}: performance profile", _profile(section)]
    parts += [f"![{name}]({name})" for name in plots]
    parts += [f"### {kind.capitalize()}: pairs", _pairs(section)]
    parts += [f"### {kind.capitalize()}: primal gap over time", _primal(section)]
    parts += [f"### {kind.capitalize()}: where the seconds go", _shares(section)]
    if len(data["seeds"]) > 1:
        parts += [f"### {kind.capitalize()}: spread over seeds", _spread(section)]
    if section["unfinished"]:
        parts += [
            f"### {kind.capitalize()}: runs that failed",
            "\n".join(f"- `{item['run']}`: {item['outcome']}: {item['message']}" for item in section["unfinished"]),
        ]
    return parts


def _counts(section: Data) -> str:
    shown = [
        outcome.value
        for outcome in Outcome
        if outcome.value in ALWAYS or any(arm["outcomes"][outcome.value] for arm in section["arms"])
    ]
    late = any(arm["late"] for arm in section["arms"])
    head = ["arm", "runs", "solved", *shown, *(["proven too late"] if late else [])]
    rows = [[*head, "SGM 1 s", "SGM 10 s", "PAR10", "median s", "most MiB"]]
    for arm in section["arms"]:
        memory = "-" if arm["memory_mib"] is None else f"{arm['memory_mib']:,.0f}"
        rows.append(
            [
                arm["arm"],
                str(arm["runs"]),
                str(arm["solved"]),
                *(str(arm["outcomes"][name]) for name in shown),
                *([str(arm["late"])] if late else []),
                *(_seconds(arm[name]) for name in ("sgm_1", "sgm_10", "par10", "median")),
                memory,
            ]
        )
    return _table(rows)


def _sizes(section: Data) -> str:
    rows = [["", *(arm["arm"] for arm in section["arms"])]]
    for line in section["by_size"]:
        rows.append([line["size"], *(_cell(cell) for cell in line["arms"])])
    return "Solved of run, and SGM with shift 1 s in seconds.\n\n" + _table(rows)


def _cell(cell: Data) -> str:
    words = []
    if cell["run"]:
        words.append(f"{cell['solved_of_run']}/{cell['run']}: {_seconds(cell['sgm_1'])}")
    words += [f"{name} ({count})" for name, count in cell["not_run"].items()]
    return ", ".join(words) or "not asked for"


def _profile(section: Data) -> str:
    data = section["profile"]
    if not data["runs"]:
        return "No run is common to all arms."
    rows = [["arm", *(f"within {factor:g}x" for factor in data["factors"])]]
    rows += [[arm["arm"], *(f"{share:.0%}" for share in arm["shares"])] for arm in data["arms"]]
    text = f"Share of the {data['runs']} common runs solved within a factor of the fastest arm."
    if len(data["arms"]) > 2:
        text += " With more than two arms read off the first place only; the pairs below tell the others."
    return f"{text}\n\n{_table(rows)}"


def _pairs(section: Data) -> str:
    rows = [
        [
            "first",
            "second",
            "runs of both",
            "solved",
            "first faster",
            "second faster",
            "equal (10 %)",
            "neither",
            "SGM ratio",
        ]
    ]
    for pair in section["pairwise"]:
        if not one_thing_apart(pair["first"], pair["second"]):
            continue
        if not pair["runs"]:
            rows.append([pair["first"], pair["second"], "0", *["-"] * 6])
            continue
        ratio = pair["sgm_ratio"]
        rows.append(
            [
                pair["first"],
                pair["second"],
                str(pair["runs"]),
                f"{pair['first_solved']} : {pair['second_solved']}",
                *(str(pair[name]) for name in ("first_faster", "second_faster", "equal", "neither")),
                "-" if ratio is None else f"{ratio:.2f}",
            ]
        )
    return (
        "Arms that differ in one thing (solver, formulation or way), over the runs that both had a chance at; the "
        "ratio is SGM (shift 1 s) of the second over that of the first.\n\n" + _table(rows)
    )


def one_thing_apart(first: str, second: str) -> bool:
    """Whether two arms differ in solver, formulation or reductions only; one without a formulation stands alone."""
    a, b = (_thirds(name) for name in (first, second))
    return not a[1] or not b[1] or sum(x != y for x, y in zip(a, b, strict=True)) == 1


def _thirds(arm: str) -> tuple[str, str, str]:
    solver, _, rest = arm.partition("/")
    formulation, _, reductions = rest.partition("+")
    return solver, formulation, reductions


def _primal(section: Data) -> str:
    first = section["primal"][0] if section["primal"] else None
    if first is None:
        return "Nothing was run."
    rows = [["arm", "runs", *(f"{moment:g} s" for moment in first["moments"]), "primal integral", "best answer found"]]
    for item in section["primal"]:
        gaps = ["-" if gap is None else f"{gap:.2%}" for gap in item["gaps"]]
        rows.append([item["arm"], str(item["runs"]), *gaps, _seconds(item["integral"]), f"{item['found_best']}"])
    return (
        "Mean distance to the best checked answer of any arm, |x - best| / max(|x|, |best|); 100 % without an answer. "
        "The integral is over the time limit, in seconds; arms that did not run everything are means over fewer "
        "runs.\n\n" + _table(rows)
    )


def _shares(section: Data) -> str:
    rows = [["arm", "runs", *STEPS, "longest build s"]]
    for item in section["shares"]:
        shares = [item["shares"][step] for step in STEPS]
        texts = ["-" if share is None else f"{share:.1%}" for share in shares]
        rows.append([item["arm"], str(item["runs"]), *texts, f"{item['largest_build']:.2f}"])
    return (
        "Shares of all wall seconds. *Build* is formulation and matrix, *hand-over* the solver's own loading, *other* what "
        "lies between (for +reductions and +restrict: the reductions, bounds and searches themselves).\n\n"
        + _table(rows)
    )


def _spread(section: Data) -> str:
    rows = [["arm", "instances", "median", "largest", "instances solved with some seeds only"]]
    for item in section["spread"]:
        texts = ["-" if item[name] is None else f"{item[name]:.2f}x" for name in ("median", "largest")]
        rows.append([item["arm"], str(item["instances"]), *texts, str(item["some_seeds_only"])])
    return "Longest over shortest time of one instance, where every seed solved it.\n\n" + _table(rows)


def _seconds(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if abs(value) < 1 else f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


def _table(rows: Sequence[Iterable[str]]) -> str:
    head, *body = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    width = [max(3, *(len(row[k]) for row in (head, *body))) for k in range(len(head))]
    rule = ["-" * size for size in width]
    # Padded, so that the text reads well as it is.
    padded = [
        " | ".join(cell.ljust(size) for cell, size in zip(row, width, strict=True)) for row in (head, rule, *body)
    ]
    return "\n".join(f"| {line} |" for line in padded)
