"""The pages in a real browser: quiet, whole on a phone, usable by keyboard and with a screen reader; its controls work.

Needs a Chromium on the path, Playwright, and for one test axe-core; what is not there is skipped, and says so.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coralopt import Plan
from coralopt.cli.app import make_app
from coralopt.plan.parts import PlannedFlow, PlannedMode, PlannedShare
from coralopt.planning import PlanRequest
from coralopt.planning.compare import Contestant, compare
from coralopt.planning.sweep import sweep
from coralopt.planning.variation import Variation
from coralopt.report.pages.comparison import comparison_page
from coralopt.report.pages.page import render_page
from coralopt.report.pages.plan import PlanPage, plan_page
from coralopt.report.pages.simulation import simulated_requests
from coralopt.report.pages.sweep import sweep_page
from coralopt.scenario import ResolvedScenario
from coralopt.simulation import SimulationResult, simulate
from coralopt.workload import Traffic

sys.path.insert(0, str(Path(__file__).parent))

from fleet import FLEET_KEY, running_fleet

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install -e '.[browser]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium on the path", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
AXE = Path(os.environ.get("CORALOPT_AXE", ROOT / ".browser" / "node_modules" / "axe-core" / "axe.min.js"))
KINDS = ("plan", "flows", "broken", "comparison", "epochs", "bench", "sweep")
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
#: A page of the browser, and what it complained of or asked for.
Opened = tuple[Any, list[str]]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def result(tiny_plan: Plan, tiny_scenario: ResolvedScenario) -> SimulationResult:
    return simulate(tiny_plan, Traffic(duration_s=60.0).requests(tiny_scenario))


@pytest.fixture(scope="module")
def pages(
    tmp_path_factory: pytest.TempPathFactory, tiny_plan: Plan, tiny_scenario: ResolvedScenario, result: SimulationResult
) -> Path:
    """A folder with one page of every kind."""
    folder = tmp_path_factory.mktemp("pages")
    rows = compare(PlanRequest(tiny_scenario), [Contestant.parse(name) for name in ("coral", "homo", "random")])
    axes = [Variation.parse("demand.all=1,4"), Variation.parse("price.L40S=0.8,1.2")]
    *_, points = sweep(PlanRequest(tiny_scenario), axes)
    made = {
        "plan": plan_page(PlanPage(tiny_plan, simulated_requests(result))),
        "flows": plan_page(PlanPage(flowing(tiny_plan))),
        "broken": plan_page(PlanPage(tiny_plan, broken=tuple(f"figure {k} is off" for k in range(20)))),
        "comparison": comparison_page(rows, "tiny"),
        "sweep": sweep_page(points),
    }
    for name, page in made.items():
        (folder / f"{name}.html").write_text(render_page(page))
    instance = "placement:phi4-14b/prefill:nodes=2:scenario=tiny"
    bench = ["bench", "-i", instance, "--arm", "dp", "--arm", "highs/tight", "--seeds", "1", "--time-limit", "3"]
    for command in (
        ["adapt", "tiny", "--epochs", "3", "-o", "horizon"],
        [*bench, "-o", "bench.jsonl"],
        ["report", "horizon", "-o", "epochs.html"],
        ["report", "bench.jsonl", "-o", "bench.html"],
    ):
        with contextlib.chdir(folder):
            assert CliRunner().invoke(make_app(), command).exit_code == 0
    return folder


def flowing(plan: Plan) -> Plan:
    """The plan with KV caches between three regions, two modes of one model, and a node that two instances share."""
    model = plan.demands[0].model
    flows = tuple(
        PlannedFlow(model=model, prefill_region="a", decode_region=place, requests_s=rate, gb_s=rate / 10, usd_h=usd_h)
        for place, rate, usd_h in (("a", 3.0, 0.0), ("b", 1.0, 7.5))
    )
    modes = tuple(
        PlannedMode(model=model, mode=mode, share=share) for mode, share in (("disaggregated", 0.75), ("mixed", 0.25))
    )
    share = PlannedShare(group="node", position=0, step_ms=2.0, cycle_ms=8.0, memory_share=0.5)
    other = share.model_copy(update={"position": 1, "step_ms": 6.0})
    first, *rest = plan.instances
    second = first.model_copy(update={"name": "second", "model": plan.demands[-1].model, "shared": other})
    instances = (first.model_copy(update={"shared": share}), *rest, second)
    return plan.model_copy(update={"flows": flows, "modes": modes, "egress_usd_h": 7.5, "instances": instances})


@pytest.fixture
def opened(browser: Any, pages: Path) -> Iterator[Any]:
    """``opened("plan", viewport=PHONE)``: the page, and the list of its complaints and requests."""
    contexts = []

    def open_page(name: str, **options: Any) -> Opened:
        context = browser.new_context(**{"viewport": DESKTOP, **options})
        contexts.append(context)
        page, trouble = context.new_page(), []
        address = (pages / f"{name}.html").as_uri()
        page.on("console", lambda message: trouble.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
        page.on("request", lambda request: request.url != address and trouble.append(f"request: {request.url}"))
        page.goto(address)
        return page, trouble

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize("name", KINDS)
def test_a_page_opens_quietly_and_fits(opened: Any, name: str) -> None:
    """No console message, no request, nothing to scroll sideways but wide tables inside their own box."""
    page, trouble = opened(name, viewport=PHONE)
    for summary in page.query_selector_all("summary"):
        summary.click()
    for viewport in (PHONE, DESKTOP):
        page.set_viewport_size(viewport)
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    assert page.title() == page.inner_text("h1")
    assert trouble == []


@pytest.mark.skipif(not AXE.exists(), reason="no axe-core: npm install --prefix .browser axe-core")
@pytest.mark.parametrize("name", KINDS)
def test_axe_finds_no_serious_issue(opened: Any, name: str) -> None:
    page, _ = opened(name, color_scheme="light")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = page.evaluate("axe.run().then((results) => results.violations)")
        serious = {v["id"]: v["nodes"][0]["html"][:200] for v in found if v["impact"] in ("serious", "critical")}
        assert (scheme, serious) == (scheme, {})


def test_figures_on_the_page_are_those_of_the_plan(opened: Any, tiny_plan: Plan, result: SimulationResult) -> None:
    page, _ = opened("plan")
    text = page.inner_text("main")
    assert f"{tiny_plan.cost_usd_h:,.4f} USD/h" in page.inner_text(".answer:nth-child(1) .headline")
    for instance in tiny_plan.instances:
        assert f"{instance.tokens_s:,.1f} tokens/s and {instance.price_usd_h:,.4f} USD/h each" in text
    for row in result.outcomes:
        assert f"{int(row.attainment * 1e4 + 1e-9) / 100:.2f} %" in page.inner_text(".answer:nth-child(2)")


def test_tooltips_follow_pointer_and_keyboard(opened: Any, tiny_plan: Plan) -> None:
    page, trouble = opened("plan")
    mark, tip = page.locator("#pipelines .mark").first, page.locator("#tip")
    assert not tip.is_visible()
    mark.hover()
    dearest = max(tiny_plan.instances, key=lambda item: item.count * item.price_usd_h)
    node = dearest.stages[0].nodes[0]
    assert f"{node.tokens_s:,.1f} tokens/s" in tip.inner_text()
    demand = next(demand for demand in tiny_plan.demands if demand.key == dearest.key)
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    page.mouse.move(0, 0)
    mark.focus()
    assert tip.is_visible()
    assert demand.throughput_sources[node.configuration] in tip.inner_text()
    assert trouble == []


def test_flows_modes_and_shared_nodes_are_drawn_to_scale(opened: Any) -> None:
    """Bands as wide as their GB/s, bars as long as their shares; where each goes and what it costs on hover."""
    page, trouble = opened("flows")
    tip = page.locator("#tip")
    wide, narrow = (page.locator(f'#flows [aria-label*="decode in {place}:"]') for place in "ab")
    # The ends of a band stand upright: from the first line of its path to the last.
    ends = [re.findall(r"-?[\d.]+", band.locator("path").get_attribute("d")) for band in (wide, narrow)]
    heights = [float(d[-1]) - float(d[1]) for d in ends]
    assert heights[0] == pytest.approx(3 * heights[1], rel=0.02)
    narrow.focus()
    assert "1 requests/s, 0.100 GB/s of KV cache, 7.5000 USD/h" in tip.inner_text()
    split, mixed = (
        page.locator(f'#flows [aria-label^="{mode}"] rect').bounding_box() for mode in ("disaggregated", "mixed")
    )
    assert split["width"] == pytest.approx(3 * mixed["width"], rel=0.02)
    assert "25% of the time of a node that models share" in page.inner_text("#pipelines")
    short, long = (page.locator(f'#pipelines [aria-label*="a step of {ms} ms"]') for ms in ("2.0", "6.0"))
    widths = [mark.locator("rect").bounding_box()["width"] for mark in (short, long)]
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.02)
    long.focus()
    assert "phi4-14b/prefill: a step of 6.0 ms in a cycle of 8.0 ms, 50% of the GPUs' memory" in tip.inner_text()
    assert "7.5000 USD/h egress" in page.inner_text(".answer:nth-child(1)")
    assert trouble == []


def test_what_does_not_hold_is_seen_first(opened: Any) -> None:
    page, _ = opened("broken")
    box = page.locator(".broken")
    assert box.bounding_box()["y"] < page.locator(".answer").first.bounding_box()["y"]
    assert box.locator("li:visible").count() == 8
    box.locator("summary").click()
    assert box.locator("li:visible").count() == 20


def test_tables_of_the_first_screen_fit_a_desktop(opened: Any) -> None:
    """Nothing of the bill or the promise is cut off at 1,200 pixels."""
    page, _ = opened("plan", viewport={"width": 1200, "height": 900})
    wide = "[...document.querySelectorAll('.table')].filter((t) => t.scrollWidth > t.clientWidth).length"
    assert page.evaluate(wide) == 0


def test_filters_hide_rows_and_lines(opened: Any) -> None:
    page, _ = opened("bench")
    table = page.locator(".table:has([data-filter])").first
    every = table.locator("tbody tr").count()
    table.locator("[data-filter]").fill("dp")
    assert 0 < table.locator("tbody tr:visible").count() < every
    table.locator("[data-filter]").fill("")
    assert table.locator("tbody tr:visible").count() == every
    line = page.locator('[data-series="dp"]').first
    assert line.is_visible()
    page.locator('input[value="dp"]').first.uncheck()
    assert not line.is_visible()


def test_the_timeline_plays(opened: Any) -> None:
    page, trouble = opened("epochs")
    frames = page.locator("[data-frame]")
    assert frames.count() == 3
    assert [frame.is_visible() for frame in frames.all()] == [True, False, False]
    chart = page.locator("#timeline svg").first
    band, axis = (place.bounding_box() for place in (chart.locator(".cursor"), chart.locator(".axis").last))
    assert band["x"] == pytest.approx(axis["x"], abs=1)
    assert band["width"] == pytest.approx(axis["width"] / 3, abs=1)
    page.locator("[data-frames] input").press("ArrowRight")
    assert chart.locator(".cursor").bounding_box()["x"] == pytest.approx(band["x"] + band["width"], abs=1)
    assert [frame.is_visible() for frame in frames.all()] == [False, True, False]
    page.locator("[data-frames] button").click()
    sync_api.expect(frames.nth(2)).to_be_visible()
    sync_api.expect(page.locator("[data-frames] button")).to_have_text("Play")
    assert trouble == []


@pytest.mark.parametrize("name", KINDS)
def test_without_a_script_everything_can_be_read(opened: Any, name: str) -> None:
    """The same words, and no control that does nothing."""
    with_script, _ = opened(name)
    plain, _ = opened(name, java_script_enabled=False)
    assert plain.locator("input:visible, button:visible").count() == 0
    assert plain.inner_text(".answers") == with_script.inner_text(".answers")
    assert plain.locator("svg:visible").count() >= with_script.locator("svg:visible").count()


def test_print_shows_what_is_folded(opened: Any) -> None:
    page, _ = opened("plan")
    page.emulate_media(media="print")
    folded = page.locator("details table").first
    assert folded.bounding_box()["height"] > 0
    assert not page.locator("nav").is_visible()


def test_ten_thousand_instances_are_few_elements(browser: Any, tiny_plan: Plan, tmp_path: Path) -> None:
    """So that the page opens in two seconds; figures that nobody knows are left out of headlines."""
    first = tiny_plan.instances[0]
    many = tuple(
        first.model_copy(update={"name": f"n{k}", "region": f"region-{k % 50}", "tokens_s": 1.0 + k, "model": f"m{k}"})
        for k in range(10_000)
    )
    path = tmp_path / "many.html"
    path.write_text(render_page(plan_page(PlanPage(tiny_plan.model_copy(update={"instances": many})))))
    page = browser.new_page()
    page.goto(path.as_uri())
    # What a browser takes follows from these: 0.3 s for 240 kB on a busy machine.
    assert path.stat().st_size < 500_000
    assert 1_000 < page.locator("*").count() < 10_000
    assert "nan" not in page.inner_text(".answers")
    page.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, tiny_plan: Plan) -> Iterator[tuple[str, Any]]:
    """A router of its own with its fleet page: its URL, and the servers behind it."""
    with running_fleet(tmp_path_factory.mktemp("fleet"), tiny_plan) as (url, engines):
        yield url, engines


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_fleet_page_lives(browser: Any, fleet: tuple[str, Any], viewport: dict[str, int]) -> None:
    """Its figures are those of the router and change by themselves; what a reader typed stays; it can be paused."""
    url, engines = fleet
    context = browser.new_context(viewport=viewport, http_credentials={"username": "me", "password": FLEET_KEY})
    page, trouble = context.new_page(), []
    page.on("console", lambda message: trouble.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
    page.on("request", lambda request: request.url.startswith(url) or trouble.append(f"request: {request.url}"))
    page.goto(f"{url}/fleet")
    expect = sync_api.expect
    first = page.locator(".answer:nth-child(1) .headline")
    expect(page.locator("[data-state]")).to_have_text("Live")
    expect(first).to_have_text(f"{len(engines)} of {len(engines)} instances serve")
    status = context.request.get(f"{url}/fleet/status").json()
    assert f"{status['plans'][0]['usd_h']:,.4f} USD/h" in page.inner_text(".answer:nth-child(3)")
    for row in status["instances"]:
        assert row["name"] in page.inner_text("#instances")
    page.locator("#instances [data-filter]").fill(status["instances"][0]["name"])
    engines[0].well = False
    expect(first).to_have_text(f"{len(engines) - 1} of {len(engines)} instances serve", timeout=20_000)
    expect(page.locator("#instances tbody tr:visible")).to_have_count(1)
    expect(page.locator("#instances [data-filter]")).to_have_value(status["instances"][0]["name"])
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    page.locator("[data-pause]").click()
    expect(page.locator("[data-state]")).to_have_text("Paused")
    engines[0].well = True
    page.locator("[data-pause]").click()
    expect(first).to_have_text(f"{len(engines)} of {len(engines)} instances serve", timeout=20_000)
    if AXE.exists():
        page.evaluate(AXE.read_text(encoding="utf-8"))
        found = page.evaluate("axe.run().then((results) => results.violations)")
        assert {v["id"] for v in found if v["impact"] in ("serious", "critical")} == set()
    assert trouble == []
    context.close()


def test_the_fleet_page_can_be_read_without_a_script(browser: Any, fleet: tuple[str, Any]) -> None:
    url, engines = fleet
    key = {"username": "me", "password": FLEET_KEY}
    context = browser.new_context(java_script_enabled=False, http_credentials=key)
    page = context.new_page()
    page.goto(f"{url}/fleet")
    assert page.locator("input:visible, button:visible").count() == 0
    assert f"of {len(engines)} instances serve" in page.inner_text(".answer:nth-child(1)")
    assert "load the page again" in page.inner_text("#summary")
    context.close()
