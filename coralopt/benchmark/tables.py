"""The figures of every arm as one table, for spreadsheets (CSV) and papers (LaTeX)."""

from __future__ import annotations

import csv
import io
import re

from coralopt.benchmark.summary import GAPS, Data

#: Columns of both tables, a line an arm of a section; of the virtual best arm those that it has.
_FIGURES = ("run", "solved_of_run", "sgm_1", "sgm_10", "par10", "median")
_TITLES = ("kind", "arm", "run", "solved", "SGM 1 s", "SGM 10 s", "PAR10", "median s")


def summary_csv(data: Data) -> str:
    """Figures with all their digits, empty where there is none."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(_lines(data))
    return text.getvalue()


def summary_latex(data: Data) -> str:
    """A ``tabular`` that needs no package: seconds with three digits, a dash where there is no figure."""
    lines = _lines(data)
    head, *body = (" & ".join(map(_latex, line)) + " \\\\\n" for line in lines)
    columns = "ll" + "r" * (len(lines[0]) - 2)
    rule = "\\hline\n"
    return f"\\begin{{tabular}}{{{columns}}}\n{rule}{head}{rule}{''.join(body)}{rule}\\end{{tabular}}\n"


def _lines(data: Data) -> list[list[object]]:
    """Titles, then the arms of every section, its virtual best last."""
    lines: list[list[object]] = []
    for section in data["sections"]:
        primal = {item["arm"]: item for item in section["primal"]}
        for arm in [*section["arms"], {"arm": "virtual best", **section["virtual_best"]}]:
            item = primal.get(arm["arm"], {})
            lines.append([section["kind"], arm["arm"], *(arm[name] for name in _FIGURES)])
            lines[-1] += [*item.get("seconds_to", [None] * len(GAPS)), item.get("integral")]
    return [[*_TITLES, *(f"to {gap:.3g} % s" for gap in (100 * gap for gap in GAPS)), "primal integral s"], *lines]


def _latex(value: object) -> str:
    if value is None:
        return "--"
    text = str(value)
    if isinstance(value, float):
        text = f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return re.sub(r"([%&_#$])", r"\\\1", text)
