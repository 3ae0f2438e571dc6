"""Pages: their figures are those of the files, a file's text stays text, and a bad file is a sentence."""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from page_reader import read

from coralopt.display import percent
from coralopt.errors import PlanError
from coralopt.plan import Plan
from coralopt.plan.certificate import Certificate, CertifiedPhase
from coralopt.plan.parts import PlannedFlow, PlannedMode, Simulated
from coralopt.plan.verify import verify_plan
from coralopt.planning.simulated import simulated_phases
from coralopt.report.drawing import Band, bands
from coralopt.report.pages.files import ResultFiles, read_results
from coralopt.report.pages.fleet import draw_fleet
from coralopt.report.pages.page import HtmlTable, Words, blocks_html, render_page
from coralopt.report.pages.plan import PlanPage, plan_page
from coralopt.report.pages.simulation import SimulatedRequests
from coralopt.report.promise import interval, interval_words
from coralopt.report.table import make_table
from coralopt.runtime.router.status import FleetStatus, InstanceStatus, LatencyStatus
from coralopt.simulation import simulate
from coralopt.workload import Traffic

RunCli = Callable[..., Any]


def test_a_plan_page_answers_its_questions(tiny_plan: Plan) -> None:
    """Cost and bound, promise, nodes, cuts: with the very figures of the plan."""
    page = render_page(plan_page(PlanPage(tiny_plan)))
    text = read(page).text
    assert f"{tiny_plan.cost_usd_h:,.4f} USD/h" in text
    assert f"costs less than {tiny_plan.lower_bound_usd_h:,.4f} USD/h" in text
    assert "Not simulated" in text
    for instance in tiny_plan.instances:
        assert f"{instance.tokens_s:,.1f} tokens/s and {instance.price_usd_h:,.4f} USD/h each" in text
        for name in instance.nodes():
            assert name in text
    for demand in tiny_plan.demands:
        assert f"{demand.planned_tokens_s:,.1f}" in text
        for line in demand.throughput_sources.values():
            assert line in text
    assert len(page) < 500_000


def test_text_of_a_file_stays_text(tiny_plan: Plan, tmp_path: Path) -> None:
    """A model called <script> is a name; so are markup of the terminal, of templates, and quotes in attributes."""
    evil = "<script>alert(1)</script>\"'{{7*7}}[bold]&amp;"
    first = tiny_plan.demands[0].model
    with pytest.raises(PlanError, match="should match pattern"):
        Plan.parse(tiny_plan.to_json().replace(first, json.dumps(evil)[1:-1]), "evil.json")
    # Even if such a name got through.
    parts = {
        name: tuple(item.model_copy(update={"model": evil}) for item in getattr(tiny_plan, name))
        for name in ("demands", "instances")
    }
    page = render_page(plan_page(PlanPage(tiny_plan.model_copy(update=parts))))
    assert "<script>alert" not in page
    text = read(page).text
    assert evil in text
    assert "49" not in [word.strip("[]") for word in text.split()]
    row = {
        "label": evil,
        "cost_usd_h": 1.0,
        "bound_usd_h": None,
        "above_bound": None,
        "tokens_usd": 2.0,
        "notes": [evil],
    }
    (tmp_path / "rows.json").write_text(json.dumps({"scenario": evil, "rows": [row]}))
    page = render_page(read_results([tmp_path / "rows.json"]).page())
    assert "<script>alert" not in page
    assert evil in read(page).text


def test_ten_thousand_instances_stay_a_small_page(tiny_plan: Plan) -> None:
    """Rows beyond the dearest are counted, not shown; sums on the first screen still hold all of them."""
    first = tiny_plan.instances[0]
    many = tuple(
        first.model_copy(
            update={"name": f"n{k}", "region": f"region-{k % 50}", "tokens_s": 1.0 + k, "model": f"m{k % 400}"}
        )
        for k in range(10_000)
    )
    page = render_page(plan_page(PlanPage(tiny_plan.model_copy(update={"instances": many}))))
    text = read(page).text
    assert f"{10_000 * first.count:,} serving instances of 400 models" in text
    assert len(page) < 500_000


def test_a_simulation_gives_intervals_misses_and_curves(run_cli: RunCli, tiny_plan_file: Path, tmp_path: Path) -> None:
    """Plan and simulation make one page; attainment is that of the simulation."""
    simulated = run_cli("simulate", "plan.json", "--duration", "60", "--json")
    (tmp_path / "simulated.json").write_text(simulated.stdout)
    written = run_cli("report", "plan.json", "simulated.json", "-o", "page.html")
    assert written.returncode == 0, written.stderr
    assert "page.html" in written.stderr
    text = read((tmp_path / "page.html").read_text()).text
    for row in json.loads(simulated.stdout)["outcomes"]:
        assert f"{int(row['attainment'] * 1e4 + 1e-9) / 100:.2f} %" in text
        assert f"SLO {row['slo_ms']:g} ms" in text
    alone = run_cli("report", "simulated.json", "-o", "alone.html")
    assert alone.returncode == 0, alone.stderr
    assert "Requests that met both SLOs" in read((tmp_path / "alone.html").read_text()).text


def test_comparisons_epochs_and_benches_have_pages(run_cli: RunCli, tmp_path: Path) -> None:
    """Each from the files that its command writes."""
    commands: dict[str, tuple[list[str], list[str], str]] = {
        "compare": (
            ["compare", "tiny", "--planners", "coral,homo", "--simulate", "--duration", "20", "-o", "plans"],
            ["plans/comparison.json"],
            "Who is",
        ),
        "plans": ([], ["plans/coral.json", "plans/homo.json"], "every one verified"),
        "adapt": (["adapt", "tiny", "--epochs", "2", "-o", "horizon"], ["horizon"], "Epochs of tiny"),
        "bench": (
            [
                "bench",
                "-i",
                "placement:phi4-14b/prefill:nodes=2:scenario=tiny",
                "-s",
                "dp",
                "--seeds",
                "1",
                "-o",
                "b.jsonl",
            ],
            ["b.jsonl"],
            "no wrong answer",
        ),
    }
    for name, (command, files, words) in commands.items():
        if command:
            done = run_cli(*command)
            assert done.returncode == 0, done.stderr
        written = run_cli("report", *files, "-o", f"{name}.html")
        assert written.returncode == 0, written.stderr
        assert words in read((tmp_path / f"{name}.html").read_text()).text

    def shown(name: str) -> str:
        return read((tmp_path / f"{name}.html").read_text()).text

    # Figures on the pages are those of the files.
    for row in json.loads((tmp_path / "plans" / "comparison.json").read_text())["rows"]:
        assert f"{row['cost_usd_h']:,.4f}" in shown("compare")
        for phase in row["attained"].values():
            assert f"{percent(phase['attainment'])} ({interval_words(phase['low'], phase['high'])})" in shown("compare")
    for item in json.loads((tmp_path / "horizon" / "epochs.json").read_text())["epochs"]:
        words = f"{item['cost_usd_h']:,.4f} USD/h, {item['instances']} instances on {item['nodes']} nodes."
        assert words in shown("adapt")
    runs = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    for words in (
        f"{len(runs):,} runs",
        f"dp solved {sum(run['outcome'] == 'optimal' for run in runs)} of {len(runs)}.",
    ):
        assert words in shown("bench")
    assert f"{statistics.median(run['seconds'] for run in runs):,.3f}" in shown("bench")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not a result file"),
        ("[]", "not a result file"),
        ("{}", "not a result file"),
        ("\x00\x01", "not a result file"),
        (
            '{"format": "coralopt-plan", "version": 9}',
            "not a coralopt plan of version 1:\n  - another version of coralopt",
        ),
        ('{"outcomes": [{}], "epochs": {}}', "a simulation of another version"),
        ('{"outcomes": [1], "epochs": 2}', "a simulation of another version"),
        ('{"rows": [{}], "scenario": "x"}', "a comparison of another version"),
        ('{"format": "coralopt-epochs", "epochs": [{"epoch": 0}]}', "a list of epochs of another version"),
        ('{"format": "coralopt-epochs", "epochs": []}', "no epoch is finished"),
        ('{"horizons": []}', "give the folder"),
        ("[" * 100_000, "not a result file"),
    ],
)
def test_a_bad_file_is_a_sentence(run_cli: RunCli, tmp_path: Path, content: str, words: str) -> None:
    """No traceback, whatever lies in the file."""
    (tmp_path / "file.json").write_text(content)
    refused = run_cli("report", "file.json")
    assert refused.returncode == 2
    assert words in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "page.html").exists()


def test_files_that_do_not_go_together_are_refused(run_cli: RunCli, tiny_plan_file: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('{"rows": [], "scenario": "x"}')
    mixed = run_cli("report", "plan.json", "rows.json")
    assert mixed.returncode == 2
    assert "do not make one page" in mixed.stderr
    assert "make a page of their own" in run_cli("report", "plan.json", "bench.jsonl").stderr
    missing = run_cli("report", "missing.json")
    assert missing.returncode == 2
    assert "cannot be read" in missing.stderr


def test_plan_open_writes_the_page_and_opens_it(
    run_cli: RunCli, tmp_path: Path, tiny_library_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    result = run_cli("plan", "tiny", "--library", str(tiny_library_file), "-o", "mine.json", "--open")
    assert result.returncode == 0, result.stderr
    assert opened == [(tmp_path / "mine.html").resolve().as_uri()]
    assert "page written to mine.html" in result.stderr


def test_the_interval_holds_the_share_and_narrows() -> None:
    """Wilson's interval against a published value: 8 of 10 gives 0.490 to 0.943."""
    low, high = interval(0.8, 10)
    assert (round(low, 3), round(high, 3)) == (0.49, 0.943)
    assert interval(1.0, 100)[1] == 1.0
    narrow = interval(0.8, 1000)
    assert low < narrow[0] < 0.8 < narrow[1] < high
    assert interval(float("nan"), 0) == (0.0, 1.0)


def test_equal_files_give_equal_pages(tiny_plan_file: Path) -> None:
    """No dates, no hashes that differ from run to run."""
    pages = [render_page(read_results([tiny_plan_file]).page()) for _ in range(2)]
    assert pages[0] == pages[1]


def test_a_certificate_is_the_promise(tiny_plan: Plan) -> None:
    """Shares with their limits, and whether they hold; the page of a plan that has one does not ask for a simulation."""
    phase = CertifiedPhase(
        model="phi4-14b",
        kind="prefill",
        target=0.99,
        shares=(0.995, 0.997),
        low=0.9912,
        high=0.9999,
        verdict="confirmed",
    )
    mark = Certificate(first_seed=7, window_s=600, confidence=0.95, looks=(2,), phases=(phase,))
    text = read(render_page(plan_page(PlanPage(tiny_plan.model_copy(update={"certificate": mark}))))).text
    assert "99.60 % in the worst phase, confirmed" in text
    assert "99.12 %" in text
    assert "Not simulated" not in text
    refuted = mark.model_copy(update={"phases": (phase.model_copy(update={"verdict": "refuted"}),)})
    assert "not confirmed" in render_page(plan_page(PlanPage(tiny_plan.model_copy(update={"certificate": refuted}))))


def test_a_plan_whose_scenario_is_none_is_a_sentence(run_cli: RunCli, tiny_plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(tiny_plan.model_copy(update={"scenario": {}}).to_json())
    refused = run_cli("report", "plan.json")
    assert refused.returncode == 2
    assert "plan.json: the plan's scenario: 2 mistakes" in refused.stderr


def test_flows_and_modes_are_drawn(tiny_plan: Plan) -> None:
    """Bands between regions with their price, shares of modes; names stay text, and a plan of one region has neither."""
    assert 'id="flows"' not in render_page(plan_page(PlanPage(tiny_plan)))
    flows = [
        PlannedFlow(model="m", prefill_region="a", decode_region=place, requests_s=rate, gb_s=rate / 10, usd_h=usd_h)
        for place, rate, usd_h in (("a", 3.0, 0.0), ("b", 1.0, 7.5), ("c", 0.0, 0.0))
    ]
    modes = [PlannedMode(model="m", mode="disaggregated", share=0.75), PlannedMode(model="m", mode="mixed", share=0.25)]
    parts = {"flows": tuple(flows), "modes": tuple(modes), "egress_usd_h": 7.5}
    page = render_page(plan_page(PlanPage(tiny_plan.model_copy(update=parts))))
    text = read(page).text
    assert "Sending KV caches between regions costs 7.5000 USD/h, part of the cost of the plan." in text
    assert "7.5000 USD/h egress" in text
    assert "m: prefill in a, decode in b: 1 requests/s, 0.100 GB/s of KV cache, 7.5000 USD/h" in page
    assert "decode in c" not in page
    assert "disaggregated: 75.00%" in page


def test_bands_are_as_wide_as_their_values() -> None:
    drawing = bands("title", [Band("a", "x", 3.0, 0, "first"), Band("a", "y", 1.0, 1, "second")])
    sides = [float(height) for height in re.findall(r'<rect [^>]*height="([\d.]+)"', drawing)]
    assert sides[0] == pytest.approx(sides[1] + sides[2], abs=0.2)
    assert sides[1] == pytest.approx(3 * sides[2], rel=0.02)
    assert bands("empty", []).startswith("<svg")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("cost_usd_h", 1.0, "cost_usd_h"),
        ("lower_bound_usd_h", 9.0, "lower_bound_usd_h"),
        ("instances", "tokens_s", "tokens"),
        ("demands", "planned_tokens_s", "planned"),
    ],
)
def test_what_does_not_hold_stands_at_the_top(
    run_cli: RunCli, tiny_plan: Plan, tmp_path: Path, field: str, value: float | str, words: str
) -> None:
    """The page is made, begins with what is wrong, and says so on standard error, too."""
    data = json.loads(tiny_plan.to_json())
    if isinstance(value, str):
        data[field][0][value] *= 2
    else:
        data[field] = value
    (tmp_path / "plan.json").write_text(json.dumps(data))
    made = run_cli("report", "plan.json")
    assert made.returncode == 1
    assert "does NOT hold" in made.stderr
    page = (tmp_path / "page.html").read_text()
    assert words in made.stderr
    assert page.index("Do not rely on this page") < page.index("What does it cost?")
    assert words in read(page).text


def test_lists_that_contradict_their_plans_are_said(run_cli: RunCli, tiny_plan: Plan, tmp_path: Path) -> None:
    """Figures of epochs and of a comparison against the plans beside them, and a simulation of another plan."""
    assert run_cli("adapt", "tiny", "--epochs", "2", "-o", "epochs").returncode == 0
    assert run_cli("report", "epochs").returncode == 0
    listed = tmp_path / "epochs" / "epochs.json"
    data = json.loads(listed.read_text())
    data["epochs"][1]["cost_usd_h"] += 1
    data["epochs"][1]["keep"] += 1
    listed.write_text(json.dumps(data))
    wrong = run_cli("report", "epochs")
    assert wrong.returncode == 1
    assert "epoch 1: cost_usd_h is" in wrong.stderr
    assert "epoch 1: keep is" in wrong.stderr
    tiny_plan.save(tmp_path / "a.json")
    row = {
        "label": "a",
        "file": "a.json",
        "cost_usd_h": 1.0,
        "bound_usd_h": None,
        "above_bound": None,
        "tokens_usd": 2.0,
    }
    (tmp_path / "rows.json").write_text(json.dumps({"scenario": "tiny", "rows": [row | {"demand_met": 1.0}]}))
    wrong = run_cli("report", "rows.json")
    assert wrong.returncode == 1
    assert f"a: cost_usd_h is 1.0 in the comparison, {tiny_plan.cost_usd_h}" in wrong.stderr
    half = tiny_plan.model_copy(update={"instances": tiny_plan.instances[:2]})
    simulated = SimulatedRequests(
        simulate(tiny_plan, Traffic(duration_s=5.0).requests(tiny_plan.resolved)).outcomes,
        (),
        {"cost_usd_h": 1.0, "requests": 9, "traffic": ""},
    )
    broken = ResultFiles([half], [simulated]).page().broken
    assert any("the plan does not: it is of another plan" in text for text in broken)
    assert any("the simulation's rent is 1.0000" in text for text in broken)


def test_a_plan_corrected_by_simulation_has_intervals(tiny_plan: Plan) -> None:
    """Of its own requests, not of all together; verification holds their sum and each share against the counts."""
    result = simulate(tiny_plan, Traffic(duration_s=60.0).requests(tiny_plan.resolved))
    phases = simulated_phases(result, {row.key: row.attainment for row in result.outcomes})
    mark = Simulated(
        kind="poisson",
        trace=None,
        model=None,
        rate=None,
        duration_s=60.0,
        seed=0,
        length_cv=None,
        requests=len(result.requests["status"]),
        requests_digest="",
        target=0.5,
        over="all",
        passed=all(row.attainment >= 0.5 for row in phases),
        rounds=1,
        phases=phases,
    )
    plan = tiny_plan.model_copy(update={"simulated": mark})
    assert verify_plan(plan).ok
    text = read(render_page(plan_page(PlanPage(plan)))).text
    for row in phases:
        low, high = interval(row.attainment, row.requests)
        assert f"{percent(low).removesuffix(' %')} to {percent(high)}" in text
    for field, value in (("requests", phases[0].requests + 1), ("attainment", phases[0].attainment - 1e-4)):
        off = (phases[0].model_copy(update={field: value}), *phases[1:])
        assert not verify_plan(plan.model_copy(update={"simulated": mark.model_copy(update={"phases": off})})).ok


def test_the_page_of_a_new_plan_says_what_to_expect(tiny_plan: Plan) -> None:
    """What the terminal prints after planning stands on the page, too."""
    text = read(render_page(plan_page(PlanPage(tiny_plan, expected={"phi4-14b/prefill": 0.8764})))).text
    assert "87.64 % in the worst phase" in text
    assert "Not simulated" not in text


def test_half_a_headroom_is_shown(tiny_plan: Plan) -> None:
    """A scenario may name the throughput's alone."""
    scenario = {**tiny_plan.scenario, "headroom": {"phi4-14b/prefill": {"throughput": 0.25}}}
    text = read(render_page(plan_page(PlanPage(tiny_plan.model_copy(update={"scenario": scenario}))))).text
    assert "phi4-14b/prefill: 25.0% more tokens/s, 0% of the SLO kept free" in text


def test_code_and_captions_are_shown(tiny_plan: Plan) -> None:
    """Commands between backticks are set as code, whatever stands in them; the line below a table is there."""
    assert str(Words("say `<b>` twice").html) == "say <code>&lt;b&gt;</code> twice"
    assert str(Words("one ` alone <i>").html) == "one ` alone &lt;i&gt;"
    table = HtmlTable(make_table("t", ("a",), [("1",)], caption="2 more lines"))
    assert "2 more lines" in blocks_html((table,))


def test_a_fleet_of_ten_thousand_instances_stays_a_small_page() -> None:
    """Those that do not serve come first; names with markup stay text; every part may be sent by itself."""
    states = ("serves", "serves", "ill", "draining")
    instances = tuple(
        InstanceStatus(f"<b>{k}</b>", f"m{k % 400}", "decode", "r", states[k % 4], k % 7, 8, 0.04, math.nan)
        for k in range(10_000)
    )
    latencies = (LatencyStatus("m0", "time to first token", 100.0, 0.99, 50, 0.98, 40.0, 120.0),)
    drawn = draw_fleet(
        FleetStatus(2e9, 1.9e9, instances, latencies=latencies, short={"x": (1, 2)}, given_up={"y": "why"})
    )
    text = read(drawn.html).text
    assert len(drawn.html) < 500_000
    assert "5,000 of 10,000 instances serve" in text
    assert "x: 1 of 2 run" in text
    assert "y is given up: why" in text
    assert "98.00 % at least" in text
    assert "Below the share that the plan asks for: m0, time to first token." in text
    assert "<b>2</b>" in text
    assert all(f'id="{name}"' in drawn.html for name in drawn.parts)
