"""Template libraries as text, CSV and plots."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coralopt.errors import LibraryError
from coralopt.placement import Placement
from coralopt.replacing import replacing
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates import TemplateLibrary, phase_of, template_prices, throughput_spread


def stages_text(placement: Placement, configurations: Sequence[str]) -> str:
    """One line a pipeline: ``"2x[1xL4]:11 > 1xL40S:42"``, nodes of each stage and the layers it holds."""
    parts = []
    for stage in placement.stages:
        nodes = " + ".join(
            name if count == 1 else f"{count}x[{name}]"
            for name, count in zip(configurations, stage.nodes, strict=True)
            if count
        )
        parts.append(f"{nodes}:{stage.layers}")
    return " > ".join(parts)


def export_library(
    library: TemplateLibrary, scenario: ResolvedScenario, path: Path, keys: Sequence[str] | None = None
) -> int:
    """Write templates as CSV: one row a template, with its cheapest price and its stages in words.

    Args:
        library: The library.
        scenario: Prices come from here.
        path: The CSV file; written beside its place, then renamed.
        keys: Model phases; all when ``None``.

    Returns:
        Number of rows.

    Raises:
        LibraryError: Unknown model phase, or the file cannot be written.
    """
    count = 0
    try:
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(
                ["model_phase", "tokens_s", "price_usd_h", "region", "tokens_s_per_usd_h"]
                + [f"nodes_{name}" for name in library.configurations]
                + ["stages"]
            )
            for key in keys if keys is not None else library.by_key:
                phase = phase_of(library, key)
                price, where = template_prices(library, scenario, key)
                for row in range(len(phase)):
                    tokens, usd = float(phase.throughput[row]), float(price[row])
                    sold = usd != float("inf")
                    writer.writerow(
                        [key, repr(tokens), repr(usd) if sold else ""]
                        + [scenario.regions[int(where[row])] if sold else "", repr(tokens / usd) if sold else ""]
                        + [int(n) for n in phase.usage[row]]
                        + [stages_text(phase.placement(row), library.configurations)]
                    )
                    count += 1
    except OSError as error:
        raise LibraryError(f"{path}: the export cannot be written: {error.strerror or error}") from error
    return count


def plot_spread(library: TemplateLibrary, scenario: ResolvedScenario, key: str, path: Path) -> None:
    """Draw the share of node sets below each throughput, for all node sets and for those of one GPU type (figure 2b).

    Raises:
        LibraryError: Unknown model phase, matplotlib is missing, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LibraryError("plots need matplotlib: pip install 'coralopt[plot]'") from error
    figure = Figure(figsize=(5.4, 3.4), layout="constrained")
    axis = figure.subplots()
    everything, pure = throughput_spread(library, scenario, key)
    most = max(everything.throughput[-1:], default=1.0)
    for spread, label, colour in ((everything, "all node sets", "tab:orange"), (pure, "one GPU type", "tab:gray")):
        count = len(spread.throughput)
        if count:
            # More points than the picture has dots only make the file large.
            at = np.unique(np.linspace(0, count - 1, min(count, 1500)).astype(np.int64))
            axis.step(
                spread.throughput[at] / most, (at + 1) / count, where="post", label=f"{label} ({count:,})", color=colour
            )
    axis.set(xlabel=f"tokens/s over {most:,.0f}", ylabel="share of templates", title=key)
    axis.legend()
    axis.grid(True, alpha=0.3)
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except (OSError, ValueError) as error:
        raise LibraryError(f"{path}: the plot cannot be written: {error}") from error
