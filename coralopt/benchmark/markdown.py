"""A report in Markdown, from the figures of :mod:`coralopt.benchmark.summary`."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence

from coralopt.benchmark.outcome import Outcome
from coralopt.benchmark.summary import STEPS, Data

#: Fewer seeds than this say little about a solver: order and seed alone move times by tens of percent.
ENOUGH_SEEDS = 5
#: Outcomes that always have a column, so that nothing is blank.
ALWAYS = (Outcome.LICENCE, Outcome.NOT_INSTALLED)

#: Heading -> cell, of tables with a line an arm; the cell's fields are those of the line.
_MEANS = {"SGM 1 s": "{sgm_1:s}", "SGM 10 s": "{sgm_10:s}", "PAR10": "{par10:s}"}
_PAIR = {
    "first": "{first}",
    "second": "{second}",
    "runs of both": "{runs}",
    "solved": "{first_solved} : {second_solved}",
    "first faster": "{first_faster}",
    "second faster": "{second_faster}",
    "equal (10 %)": "{equal}",
    "neither": "{neither}",
    "SGM ratio": "{sgm_ratio:.2f}",
    "95 % interval": "{ratio_low:.2f} to {ratio_high:.2f}",
}
_SPREAD = {
    "arm": "{arm}",
    "instances": "{instances}",
    "median": "{median:.2fx}",
    "largest": "{largest:.2fx}",
    "instances solved with some seeds only": "{some_seeds_only}",
}


def report_markdown(data: Data, plots: Sequence[str] = (), title: str = "Benchmark") -> str:
    """The whole report; ``plots`` are file names beside it."""
    parts = [f"# {title}", _wrong(data), _provenance(data)]
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


def _provenance(data: Data) -> str:
    """How the rows came about: machines, settings, seeds, solvers."""
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
    kind = section["kind"].capitalize()
    parts = [f"## {kind}", _counts(section), f"### {kind} by size", _sizes(section)]
    common = section["common"]
    if len({arm["run"] for arm in section["arms"] if arm["run"]}) > 1:
        parts.append("Not every arm ran everything, and no run is common to all arms; see the pairs below.")
        if common["runs"]:
            chance = f"On the {common['runs']} runs that every arm that ran at all had a chance at:"
            columns = {"arm": "{arm}", "solved": "{solved_of_run} of {run}", **_MEANS}
            parts[-1:] = [f"Not every arm ran everything. {chance}", _grid(common["figures"], columns)]
    parts += [
        f"### {kind}: performance profile",
        _profile(section["profile"]),
        *(f"![{name}]({name})" for name in plots),
    ]
    parts += [f"### {kind}: pairs", _pairs(section["pairwise"])]
    parts += [f"### {kind}: primal gap over time", _primal(section["primal"])]
    parts += [f"### {kind}: where the seconds go", _shares(section["shares"])]
    if len(data["seeds"]) > 1:
        parts += [
            f"### {kind}: spread over seeds",
            "Longest over shortest time of one instance, where every seed solved it.",
            _grid(section["spread"], _SPREAD),
        ]
    if section["unfinished"]:
        runs = (f"- `{item['run']}`: {item['outcome']}: {item['message']}" for item in section["unfinished"])
        parts += [f"### {kind}: runs that failed", "\n".join(runs)]
    return parts


def _counts(section: Data) -> str:
    arms = section["arms"]
    shown = [item.value for item in Outcome if item in ALWAYS or any(arm["outcomes"][item.value] for arm in arms)]
    columns = {
        "arm": "{arm}",
        "runs": "{runs}",
        "solved": "{solved}",
        **{name: f"{{outcomes[{name}]}}" for name in shown},
    }
    if any(arm["late"] for arm in arms):
        columns["proven too late"] = "{late}"
    best = _CELLS.format(
        "{solved_of_run} of {run} solved, SGM 1 s {sgm_1:s}, PAR10 {par10:s}", **section["virtual_best"]
    )
    grid = _grid(arms, {**columns, **_MEANS, "median s": "{median:s}", "most MiB": "{memory_mib:,.0f}"})
    return f"{grid}\n\nThe virtual best, the fastest arm of every run: {best}."


def _sizes(section: Data) -> str:
    rows = [["", *(arm["arm"] for arm in section["arms"])]]
    rows += [[line["size"], *map(_cell, line["arms"])] for line in section["by_size"]]
    return "Solved of run, and SGM with shift 1 s in seconds.\n\n" + _table(rows)


def _cell(cell: Data) -> str:
    words = [_CELLS.format("{solved_of_run}/{run}: {sgm_1:s}", **cell)] if cell["run"] else []
    return ", ".join([*words, *(f"{name} ({count})" for name, count in cell["not_run"].items())]) or "not asked for"


def _profile(data: Data) -> str:
    if not data["runs"]:
        return "No run is common to all arms."
    text = f"Share of the {data['runs']} common runs solved within a factor of the fastest arm."
    if len(data["arms"]) > 2:
        text += " With more than two arms read off the first place only; the pairs below tell the others."
    within = {f"within {factor:g}x": f"{{shares[{k}]:.0%}}" for k, factor in enumerate(data["factors"])}
    return f"{text}\n\n{_grid(data['arms'], {'arm': '{arm}', **within})}"


def _pairs(pairs: Iterable[Data]) -> str:
    blank = dict.fromkeys(
        (
            *("first_solved", "second_solved", "first_faster", "second_faster", "equal", "neither"),
            *("sgm_ratio", "ratio_low", "ratio_high"),
        )
    )
    lines = [{**blank, **pair} for pair in pairs if one_thing_apart(pair["first"], pair["second"])]
    return (
        "Arms that differ in one thing (solver, formulation or way), over the runs that both had a chance at; the "
        "ratio is SGM (shift 1 s) of the second over that of the first, its interval a paired bootstrap over instances.\n\n"
        + _grid(lines, _PAIR)
    )


def one_thing_apart(first: str, second: str) -> bool:
    """Whether two arms differ in solver, formulation or reductions only; one without a formulation stands alone."""
    a, b = (_thirds(name) for name in (first, second))
    return not a[1] or not b[1] or sum(x != y for x, y in zip(a, b, strict=True)) == 1


def _thirds(arm: str) -> tuple[str, str, str]:
    solver, _, rest = arm.partition("/")
    formulation, _, reductions = rest.partition("+")
    return solver, formulation, reductions


def _primal(items: Sequence[Data]) -> str:
    if not items:
        return "Nothing was run."
    gaps = {f"{moment:g} s": f"{{gaps[{k}]:.2%}}" for k, moment in enumerate(items[0]["moments"])}
    gaps |= {
        f"to {target:.3g}": f"{{seconds_to[{k}]:s}} ({{reached[{k}]}})" for k, target in enumerate(items[0]["targets"])
    }
    last = {"primal integral": "{integral:s}", "best answer found": "{found_best}"}
    return (
        "Mean distance to the best checked answer of any arm, or a known value, |x - best| / max(|x|, |best|); 100 % "
        "without an answer. The integral is over the time limit, in seconds; arms that did not run everything are means "
        "over fewer runs. *To 0.01* is the time to a gap of 1 %, as SGM (shift 1 s) with the limit where it was not "
        "reached, and in brackets how many runs reached it.\n\n"
        + _grid(items, {"arm": "{arm}", "runs": "{runs}", **gaps, **last})
    )


def _shares(items: Iterable[Data]) -> str:
    steps = {step: f"{{shares[{step}]:.1%}}" for step in STEPS}
    return (
        "Shares of all wall seconds. *Build* is formulation and matrix, *hand-over* the solver's own loading, *other* what "
        "lies between (for +reductions and +restrict: the reductions, bounds and searches themselves).\n\n"
        + _grid(items, {"arm": "{arm}", "runs": "{runs}", **steps, "longest build s": "{largest_build:.2f}"})
    )


class _Cells(string.Formatter):
    """Format strings that know missing figures, ``s`` for seconds of any size, and an ``x`` behind a factor."""

    def format_field(self, value: object, format_spec: str) -> str:
        if value is None:
            return "-"
        if format_spec == "s" and isinstance(value, float | int):
            format_spec = ".3f" if abs(value) < 1 else ".2f" if abs(value) < 100 else ".0f"
        return format(value, format_spec.removesuffix("x")) + ("x" if format_spec.endswith("x") else "")


_CELLS = _Cells()


def _grid(lines: Iterable[Data], columns: Mapping[str, str]) -> str:
    return _table([list(columns), *([_CELLS.format(cell, **line) for cell in columns.values()] for line in lines)])


def _table(rows: Sequence[Iterable[str]]) -> str:
    head, *body = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    width = [max(3, *(len(row[k]) for row in (head, *body))) for k in range(len(head))]
    rule = ["-" * size for size in width]
    # Padded, so that the text reads well as it is.
    padded = [
        " | ".join(cell.ljust(size) for cell, size in zip(row, width, strict=True)) for row in (head, rule, *body)
    ]
    return "\n".join(f"| {line} |" for line in padded)
