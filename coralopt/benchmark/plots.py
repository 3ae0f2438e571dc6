"""Performance profiles and primal gap over time as pictures; matplotlib is imported when a picture is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coralopt.benchmark.consistency import best_known
from coralopt.benchmark.results import Row
from coralopt.benchmark.statistics import gap_at
from coralopt.benchmark.summary import Data, run_steps
from coralopt.errors import BenchmarkError
from coralopt.report.pyplot import pyplot

#: Line styles by turns, so that arms differ without colour too.
_STYLES = ("-", "--", "-.", ":")


def draw_plots(data: Data, rows: Sequence[Row], folder: Path, suffix: str = "svg") -> list[str]:
    """Write the pictures of every section into ``folder`` and return their names.

    Raises:
        BenchmarkError: matplotlib is not installed; says what to install.
    """
    plt = pyplot(BenchmarkError)
    names = []
    for section in data["sections"]:
        kind = section["kind"]
        if section["profile"]["runs"]:
            names.append(_draw(plt, folder / f"profile-{kind}.{suffix}", _profile, section))
        if any(item["runs"] for item in section["primal"]):
            mine = [row for row in rows if row["kind"] == kind]
            names.append(_draw(plt, folder / f"primal-gap-{kind}.{suffix}", _gaps, section, mine))
    return names


def _draw(plt: Any, path: Path, draw: Any, *arguments: Any) -> str:
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    draw(axes, *arguments)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return path.name


def _profile(axes: Any, section: Data) -> None:
    profile = section["profile"]
    most = max((ratio for arm in profile["arms"] for ratio in arm["ratios"]), default=1.0) * 1.2
    for k, arm in enumerate(profile["arms"]):
        ratios = np.array([*arm["ratios"], most])
        shares = np.array([*np.arange(1, len(arm["ratios"]) + 1), len(arm["ratios"])]) / profile["runs"]
        axes.step(
            np.concatenate([[1.0], ratios]),
            np.concatenate([[0.0], shares]),
            where="post",
            label=arm["arm"],
            linestyle=_STYLES[k % len(_STYLES)],
        )
    axes.set(
        xscale="log",
        xlim=(1.0, max(most, 1.1)),
        ylim=(0.0, 1.02),
        xlabel="time over that of the fastest arm",
        ylabel=f"share of {profile['runs']} common runs solved",
        title=f"{section['kind']}: performance profile (limit {section['limit']:g} s)",
    )


def _gaps(axes: Any, section: Data, rows: Sequence[Row]) -> None:
    best = best_known(rows)
    times = np.geomspace(0.01, section["limit"], 200)
    for k, item in enumerate(section["primal"]):
        steps = [
            run_steps(row, best[row["instance"]][0])
            for row in rows
            if row["arm"] == item["arm"] and row["instance"] in best and not row["outcome"].startswith("not run")
        ]
        if steps:
            means = [100 * np.mean([gap_at(step, float(second)) for step in steps]) for second in times]
            label = f"{item['arm']} ({len(steps)})"
            axes.plot(times, means, label=label, linestyle=_STYLES[k % len(_STYLES)])
    axes.set(
        xscale="log",
        ylim=(0.0, 102.0),
        xlabel="wall seconds",
        ylabel="mean primal gap, %",
        title=f"{section['kind']}: distance to the best checked answer (runs in brackets)",
    )
