"""Pictures of a simulation: latency CDFs, goodput per epoch, utilisation. Needs the extra ``plot``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coralopt.errors import CoraloptError
from coralopt.replacing import replacing
from coralopt.report.simulation import equal_nodes, kv_peak, outcome_name
from coralopt.simulation import SimulationResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_simulation(result: SimulationResult, folder: Path) -> tuple[Path, ...]:
    """Write ``latency.svg``, ``goodput.svg`` and ``utilisation.svg`` into ``folder``.

    Raises:
        CoraloptError: matplotlib is not installed, or a file cannot be written.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise CoraloptError("--plot needs matplotlib; install coralopt[plot]") from error
    # Equal figures give equal bytes.
    with matplotlib.rc_context({"svg.hashsalt": "coralopt", "font.size": 8}):
        drawn = {
            "latency.svg": _latency(result),
            "goodput.svg": _goodput(result),
            "utilisation.svg": _utilisation(result),
        }
        written = []
        for name, figure in drawn.items():
            path = folder / name
            try:
                with replacing(path) as temporary:
                    figure.savefig(temporary, format="svg", metadata={"Date": None})
            except OSError as error:
                raise CoraloptError(f"{path}: the picture cannot be written: {error.strerror or error}") from error
            written.append(path)
    return tuple(written)


def _figure(rows: int, columns: int, width: float, height: float) -> tuple[Figure, npt.NDArray[np.object_]]:
    # Not pyplot: nothing is shown, and no figure outlives its file.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _latency(result: SimulationResult) -> Figure:
    from matplotlib.ticker import LogLocator, NullFormatter

    columns = min(3, max(1, (len(result.outcomes) + 1) // 2))
    rows = max(1, -(-len(result.outcomes) // columns))
    figure, axes = _figure(rows, columns, 3.2 * columns, 2.4 * rows)
    for axis, row in zip(axes.ravel(), result.outcomes, strict=False):
        mine = result.requests_of(row)
        name = "ttft_ms" if row.kind == "prefill" else "tpot_ms"
        for column, label, style in ((name, "here", "-"), (f"idle_{name}", "alone on an idle cluster", ":")):
            values = np.sort(result.requests[column][mine])
            values = values[np.isfinite(values)]
            if len(values):
                # Two thousand points are more than a picture shows.
                ranks = np.unique(np.linspace(0, len(values) - 1, min(len(values), 2000)).astype(int))
                axis.plot(values[ranks], (ranks + 1) / len(values), style, label=label)
        axis.axvline(row.slo_ms, color="black", linewidth=0.8, linestyle="--", label="SLO")
        axis.set_xscale("log")
        # A range below a decade would have no tick with a figure, or minor ones over each other.
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_title(f"{outcome_name(row)}: {row.attainment:.1%} met")
        axis.set_xlabel("TTFT, ms" if row.kind == "prefill" else "TPOT, ms")
        axis.set_ylabel("share of requests")
    for axis in axes.ravel()[len(result.outcomes) :]:
        axis.set_axis_off()
    _legend(figure, axes[0, 0])
    return figure


def _goodput(result: SimulationResult) -> Figure:
    figure, axes = _figure(1, 2, 8, 3)
    columns = result.epochs
    starts = np.unique(columns["start_s"])
    for axis, kind in zip(axes[0], ("prefill", "decode"), strict=True):
        for model in result.models:
            values = [
                value
                for value, name in zip(columns[f"{kind}_goodput_tokens_s"], columns["model"], strict=True)
                if name == model
            ]
            axis.stairs(values, [*starts, result.window_s], label=model, baseline=None)
        axis.set_ylim(bottom=0)
        axis.set_title(f"{kind} goodput by arrival, tokens/s")
        axis.set_xlabel("s")
    _legend(figure, axes[0, 0])
    return figure


def _utilisation(result: SimulationResult) -> Figure:
    from matplotlib.ticker import PercentFormatter

    rows = equal_nodes(result)
    figure, axes = _figure(1, 1, 8, 0.8 + 0.28 * max(1, len(rows)))
    axis = axes[0, 0]
    labels = [f"{name}: {label}" for name, label in rows]
    busy = [float(np.mean(result.nodes["utilisation"][k])) for k in rows.values()]
    full = [kv_peak(result, k) for k in rows.values()]
    place = np.arange(len(rows))
    axis.barh(place - 0.2, busy, height=0.38, label="busy")
    axis.barh(place + 0.2, full, height=0.38, label="KV memory at its peak")
    axis.set_yticks(place, labels, fontsize=6)
    axis.invert_yaxis()
    axis.set_xlim(0, 1)
    axis.xaxis.set_major_formatter(PercentFormatter(1.0))
    _legend(figure, axis)
    return figure


def _legend(figure: Figure, axis: Axes) -> None:
    """What the lines of one picture, and of those beside it, are: below all of them, over no line."""
    handles, labels = axis.get_legend_handles_labels()
    if labels:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(labels)), fontsize=7)
