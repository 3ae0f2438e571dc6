"""Values in notebooks: HTML with their figures, a line as text, a data frame where one is natural."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from page_reader import Reader

from coralopt import Plan
from coralopt.display import Shown, Tabular
from coralopt.errors import CoraloptError
from coralopt.planning import PlanRequest
from coralopt.planning.compare import Comparison, Contestant, compare
from coralopt.planning.sweep import sweep
from coralopt.planning.variation import Variation
from coralopt.scenario import ResolvedScenario
from coralopt.simulation import simulate
from coralopt.solving.solution import Solution
from coralopt.solving.status import Reason, Termination
from coralopt.templates import TemplateLibrary
from coralopt.workload import Traffic


@pytest.fixture(scope="module")
def values(tiny_plan: Plan, tiny_scenario: ResolvedScenario, tiny_library: TemplateLibrary) -> dict[str, Shown]:
    """One of each kind, by a word of its line of text."""
    request = PlanRequest(tiny_scenario)
    termination = Termination(Reason.OPTIMAL, None, "done <well>")
    return {
        "USD/h, proven gap": tiny_plan,
        "node configurations in 1 regions": tiny_scenario,
        "templates of": tiny_library,
        "Solution optimal by highs": Solution(None, termination, 1.5, 1.5, 0.0, 1e-4, "highs", "tight", {"solve": 0.1}),
        "met both SLOs": simulate(tiny_plan, Traffic(duration_s=20.0).requests(tiny_scenario)),
        "Comparison in USD/h: homo": compare(request, [Contestant.parse("homo")]),
        "Sweep of tiny over": list(sweep(request, [Variation.parse("price.all=1,2")]))[-1],
    }


def test_every_kind_shows_itself(values: dict[str, Shown]) -> None:
    """Whole HTML without a request, a script or a handler, and a short line of text."""
    for words, value in values.items():
        assert words in repr(value)
        assert len(repr(value)) < 400
        html = value._repr_html_()
        assert type(html) is str, "text that a caller joins to its own is not escaped"
        reader = Reader(html)
        assert not reader.open
        assert html.startswith('<div class="coralopt">')
        tags = {tag for tag, _ in reader.tags}
        assert not tags & {"script", "link", "img", "iframe"}
        assert "table" in tags
        assert len(html) < 200_000


def test_figures_are_those_of_the_value(values: dict[str, Shown], tiny_plan: Plan) -> None:
    text = Reader(tiny_plan._repr_html_()).text
    assert f"{tiny_plan.cost_usd_h:,.4f} USD/h" in text
    assert all(item.region in text for item in tiny_plan.instances)
    assert "done <well>" in Reader(values["Solution optimal by highs"]._repr_html_()).text


def test_frames_have_a_row_for_every_thing(
    values: dict[str, Shown], tiny_plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes to pandas has columns of one length; with pandas itself where it is installed."""
    lengths = {Plan: len(tiny_plan.instances), Comparison: 1}
    tables = [value for value in values.values() if isinstance(value, Tabular)]
    assert len(tables) == len(values) - 1
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
        for value in tables:
            columns = {name: list(column) for name, column in value.to_frame().items()}
            assert len({len(column) for column in columns.values()}) == 1
            assert len(next(iter(columns.values()))) == lengths.get(type(value), len(next(iter(columns.values()))))
    pandas = pytest.importorskip("pandas")
    frame = tiny_plan.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert (frame["count"] * frame["price_usd_h"]).sum() == pytest.approx(tiny_plan.provisioning_usd_h)


def test_without_pandas_a_sentence_says_what_to_install(tiny_plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(CoraloptError, match=r"pip install 'coralopt\[notebook\]'"):
        tiny_plan.to_frame()
