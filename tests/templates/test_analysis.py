"""Rankings, spreads, differences and the export of a library."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coralopt.errors import LibraryError
from coralopt.report.library import export_library, plot_spread, stages_text
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates import (
    TemplateLibrary,
    compare_libraries,
    rank_templates,
    throughput_spread,
)


def cheapest(scenario: ResolvedScenario, usage: np.ndarray) -> float:
    """Price of a node set in the cheapest region, plainly."""
    best = float("inf")
    for r in range(len(scenario.regions)):
        if all(scenario.availability[r, c] > 0 for c in np.flatnonzero(usage)):
            best = min(best, sum(float(usage[c]) * scenario.price_usd_h[r, c] for c in np.flatnonzero(usage)))
    return best


@pytest.mark.parametrize(
    ("mix", "only"), [("any", None), ("mixed", None), ("pure", None), ("any", 0), ("any", 1), ("mixed", 1)]
)
def test_ranking_is_by_tokens_for_a_dollar(
    tiny_scenario: ResolvedScenario, tiny_library: TemplateLibrary, mix: str, only: int | None
) -> None:
    """Held against a plain loop over all templates."""
    phase = tiny_library.phases[0]
    allowed = None if only is None else [tiny_scenario.gpu_types[only]]
    expected = []
    for row in range(len(phase)):
        gpus = {tiny_scenario.configurations[c].gpu.name for c in np.flatnonzero(phase.usage[row])}
        if (mix == "mixed" and len(gpus) < 2) or (mix == "pure" and len(gpus) > 1):
            continue
        if allowed is not None and not gpus <= set(allowed):
            continue
        expected.append(phase.throughput[row] / cheapest(tiny_scenario, phase.usage[row]))
    ranked = rank_templates(tiny_library, tiny_scenario, phase.key, mix=mix, gpus=allowed, limit=7)  # type: ignore[arg-type]
    assert [item.tokens_s_per_usd_h for item in ranked] == pytest.approx(sorted(expected, reverse=True)[:7])
    for item in ranked:
        assert item.tokens_s == phase.throughput[item.row]


def test_unknown_names_are_refused_with_the_known_ones(
    tiny_scenario: ResolvedScenario, tiny_library: TemplateLibrary
) -> None:
    """A typing error gets the list to choose from."""
    key = tiny_library.phases[0].key
    with pytest.raises(LibraryError, match=key):
        rank_templates(tiny_library, tiny_scenario, "nosuch/prefill")
    with pytest.raises(LibraryError, match=tiny_scenario.regions[0]):
        rank_templates(tiny_library, tiny_scenario, key, region="mars")
    with pytest.raises(LibraryError, match="L4"):
        rank_templates(tiny_library, tiny_scenario, key, gpus=["X9"])


def test_spread_counts_levels(tiny_scenario: ResolvedScenario, tiny_library: TemplateLibrary) -> None:
    """More node sets can only grade finer: fewer overshoots, more levels."""
    for phase in tiny_library.phases:
        everything, pure = throughput_spread(tiny_library, tiny_scenario, phase.key)
        assert everything.levels == len(set(phase.throughput.tolist()))
        assert pure.levels <= everything.levels
        assert everything.overshoot <= pure.overshoot
        assert everything.overshoot >= 0


def test_difference_of_two_libraries(tiny_library: TemplateLibrary) -> None:
    """A library equals itself; a changed and a missing template are counted, whatever the order of configurations."""
    assert all(item.same for item in compare_libraries(tiny_library, tiny_library))
    phase = tiny_library.phases[0]
    throughput = phase.throughput.copy()
    throughput[0] *= 2
    throughput[1] /= 2
    names = ("usage", "throughput", "stage_layers", "node_configuration", "node_stage")
    changed = replace(phase, throughput=throughput)
    changed = replace(changed, **{name: getattr(changed, name)[:-2] for name in names})
    turned = replace(
        tiny_library,
        configurations=tiny_library.configurations[::-1],
        phases=tuple(
            replace(p, usage=np.ascontiguousarray(p.usage[:, ::-1])) for p in (changed, *tiny_library.phases[1:])
        ),
    )
    found = compare_libraries(tiny_library, turned)
    assert (found[0].only_first, found[0].only_second, found[0].higher, found[0].lower) == (2, 0, 1, 1)
    assert found[0].largest_rise == pytest.approx(1.0)
    assert found[0].largest_fall == pytest.approx(0.5)
    assert all(item.same for item in found[1:])


def test_export_and_plot(tiny_scenario: ResolvedScenario, tiny_library: TemplateLibrary, tmp_path: Path) -> None:
    """Every template is a row with its very numbers; a picture is drawn; a bad folder is one sentence."""
    count = export_library(tiny_library, tiny_scenario, tmp_path / "l.csv")
    with (tmp_path / "l.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == count == len(tiny_library)
    phase = tiny_library.phases[0]
    assert [float(row["tokens_s"]) for row in rows[: len(phase)]] == phase.throughput.tolist()
    assert rows[3]["stages"] == stages_text(phase.placement(3), tiny_library.configurations)
    pytest.importorskip("matplotlib")
    plot_spread(tiny_library, tiny_scenario, phase.key, tmp_path / "l.svg")
    assert (tmp_path / "l.svg").stat().st_size < 300_000
    (tmp_path / "file").write_text("")
    with pytest.raises(LibraryError, match="cannot be written"):
        export_library(tiny_library, tiny_scenario, tmp_path / "file" / "l.csv")
    with pytest.raises(LibraryError, match="cannot be written"):
        plot_spread(tiny_library, tiny_scenario, phase.key, tmp_path / "no" / "l.svg")
