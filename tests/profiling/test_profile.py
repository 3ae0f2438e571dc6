"""Profiling: the fit against least squares, importers on what vLLM writes, the file, scenarios that use it."""

from __future__ import annotations

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from coralopt import Plan, plan_scenario, scenario_from_mapping
from coralopt.catalog import find_model, node_configurations, read_checkpoint
from coralopt.cli import main
from coralopt.cli.app import make_app
from coralopt.errors import CoraloptError, LaunchError, ScenarioError
from coralopt.plan.verify import verify_plan
from coralopt.profiling import (
    Point,
    ProfileOptions,
    compare_with,
    fit_points,
    measured_node,
    profile_with_torch,
    profile_with_vllm,
    read_bench_files,
    save_measurements,
)
from coralopt.profiling.fit import fit_line
from coralopt.profiling.vllm_files import bench_parameters, serve_parameters
from coralopt.profiling.vllm_run import sweep_command
from coralopt.scenario import load_scenario
from coralopt.throughput import build_tables, throughput_source
from coralopt.throughput.engines import graph_sizes
from coralopt.throughput.grid import GridTimes, TimeGrid
from coralopt.throughput.layer_times import mixed_ms
from coralopt.throughput.roofline import RooflineSource, pair_ms

TORCH = os.environ.get("CORALOPT_TORCH_PYTHON") or (sys.executable if find_spec("torch") else None)
needs_torch = pytest.mark.skipif(TORCH is None, reason="no torch here, and CORALOPT_TORCH_PYTHON names no interpreter")

OPTIONS = ProfileOptions(layers=(2, 4), prompts=(1, 2), prompt_tokens=(64, 256), sequences=(1, 8), contexts=(128, 512))
MODEL = find_model("phi4-14b")
assert MODEL is not None


def points_of(options: ProfileOptions = OPTIONS) -> list[Point]:
    """What the roofline of phi4-14b on 1xL40S says, as if it had been measured: exact lines."""
    assert MODEL is not None
    times = RooflineSource().times(MODEL, node_configurations()["1xL40S"])
    points = []
    for phase, batches, lengths in (
        ("prefill", options.prompts, options.prompt_tokens),
        ("decode", options.sequences, options.contexts),
    ):
        ask = times.prefill_ms if phase == "prefill" else times.decode_ms
        for tokens in lengths:
            layer, other = ask(np.array(batches, dtype=float), float(tokens))
            points += [
                Point(phase, j, b, float(tokens), float(other[n] + j * layer[n]))  # type: ignore[arg-type]
                for n, b in enumerate(batches)
                for j in options.layers
            ]
    return points


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(1, 64), st.floats(0.1, 100)), min_size=2, max_size=6, unique_by=lambda pair: pair[0])
)
def test_fit_is_the_least_of_its_kind(pairs: list[tuple[int, float]]) -> None:
    """No line with both coefficients at least 0 has a smaller sum of squared relative errors (checked on a fine grid)."""
    layers, ms = [j for j, _ in pairs], [t for _, t in pairs]
    other, slope = fit_line(layers, ms)
    assert other >= 0
    assert slope >= 0

    def loss(c0: float, c1: float) -> float:
        return sum(((c0 + c1 * j) / t - 1) ** 2 for j, t in pairs)

    best = loss(other, slope)
    a = np.array([[1 / t, j / t] for j, t in pairs])
    free = np.linalg.lstsq(a, np.ones(len(pairs)), rcond=None)[0]
    if (free > 1e-9).all():
        assert (other, slope) == pytest.approx(tuple(free), rel=1e-5, abs=1e-7)
    for c0 in np.linspace(0, 2 * max(ms), 25):
        for c1 in np.linspace(0, 2 * max(t / j for j, t in pairs), 25):
            assert best <= loss(float(c0), float(c1)) + 1e-9 or slope == 0


def test_exact_lines_are_found() -> None:
    """Points on lines give the lines back, with error 0."""
    assert MODEL is not None
    node = measured_node(MODEL, "1xL40S", "test", points_of())
    off = compare_with(RooflineSource(), MODEL, node_configurations()["1xL40S"], node)
    assert off is not None
    assert max(size for _, size in off.values()) < 1e-9
    assert max(node["fit_error"].values()) < 1e-9


def test_mixed_steps_and_host_times_reach_the_plan(tmp_path: Path) -> None:
    """An engine whose steps take 3 ms, whose requests take 20 ms, and whose mixed steps take 1.2 of their parts."""
    assert MODEL is not None
    node_configuration = node_configurations()["1xL40S"]
    roofline = RooflineSource().times(MODEL, node_configuration)
    head, prompt_head = (float(ask(np.ones(1), 64.0)[1][0]) for ask in (roofline.decode_ms, roofline.prefill_ms))
    points = [replace(point, ms=point.ms + 3.0 + (20.0 if point.phase == "prefill" else 0.0)) for point in points_of()]
    plain = measured_node(MODEL, "1xL40S", "test", points_of())
    times = GridTimes("", *(TimeGrid(*(np.array(v) for v in plain[phase].values())) for phase in ("prefill", "decode")))
    for sequences, history in ((1, 0), (2, 256)):
        earlier = history * 256 * pair_ms(MODEL, node_configuration)
        layer = float(mixed_ms(times, np.array([1.0 * sequences]), 256.0, np.array([256.0]), earlier)[0][0])
        points += [Point("mixed", j, sequences, 256.0, 3.0 + head + 1.2 * layer * j, 256, history) for j in (2, 4)]
    node = measured_node(MODEL, "1xL40S", "a test", points, engine=True)
    assert node["host_step_ms"] == pytest.approx(3.0)
    # The output head of a prompt and that of a step are taken as equal.
    request_ms = 20.0 + prompt_head - head
    assert node["host_request_ms"] == pytest.approx(request_ms)
    assert node["mixed_factor"] == pytest.approx(1.2)
    assert np.array(node["decode"]["other_ms"]) == pytest.approx(np.array(plain["decode"]["other_ms"]))
    save_measurements(tmp_path / "l40s.json", node)
    document: dict[str, Any] = {
        "name": "measured",
        "models": {
            MODEL.name: {
                "slo": {"ttft_ms": 4000, "tpot_ms": 100},
                "demand": {"requests_s": 1, "input_tokens": 200, "output_tokens": 50},
            }
        },
        "pool": {"regions": {"us-east-2": {"configurations": {"1xL40S": 4}}}},
        "throughput": {"source": "measured", "measured": ["l40s.json"]},
    }
    for serving, host in (
        ({}, (3.0, request_ms)),
        ({"host_step_ms": 1.0}, (1.0, request_ms)),
        ({"preset": "paper"}, (0.0, 0.0)),
    ):
        (tmp_path / "scenario.json").write_text(json.dumps({**document, "serving": serving}))
        scenario = load_scenario(tmp_path / "scenario.json")
        assert (scenario.serving.host_step_ms, scenario.serving.host_request_ms) == pytest.approx(host)
        source = throughput_source(scenario.throughput_source)
        line = build_tables(source, scenario.model_phases[0], scenario.configurations, 1).provenance[0]
        assert ("measured with the layers" in line) == (not serving)
        found = source.times(MODEL, scenario.configurations[0])
        assert isinstance(found, GridTimes)
        assert found.mixed_factor == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda p: [x for x in p if x.phase == "prefill"], "no decode points"),
        (lambda p: [x for x in p if x.layers == 2], "only with 2 layers"),
        (lambda p: [x for x in p if (x.batch, x.tokens) != (2, 64.0)], "2 x 64 tokens was measured not"),
        (lambda p: [Point(x.phase, x.layers, x.batch, x.tokens, 1.0) for x in p], "do not grow with the layers"),
    ],
)
def test_points_that_cannot_be_fitted(change: Any, text: str) -> None:
    """Missing phases, single layer counts, holes and noise are refused, not papered over."""
    assert MODEL is not None
    with pytest.raises(CoraloptError, match=text):
        measured_node(MODEL, "1xL40S", "test", change(points_of()))


def _scenario(folder: Path, source: str, **model: Any) -> Path:
    document = {
        "models": {
            "phi4-14b": {
                "slo": {"ttft_ms": 3000, "tpot_ms": 100, "attainment": "mean"},
                "demand": {"requests_s": 1, "input_tokens": 200, "output_tokens": 50},
                **model,
            }
        },
        "pool": {"regions": {"us-east-2": {"configurations": {"1xL40S": 4, "1xL4": 8}}}},
        "pruning": {"max_nodes": 2},
        "throughput": {"source": source, "measured": ["l40s.json"]},
    }
    (folder / "scenario.yaml").write_text(yaml.safe_dump(document))
    return folder / "scenario.yaml"


def test_a_scenario_uses_the_file(tmp_path: Path) -> None:
    """Figures from a file beside the scenario make tables, a plan and a verified plan that needs the file no more."""
    assert MODEL is not None
    assert save_measurements(tmp_path / "l40s.json", measured_node(MODEL, "1xL40S", "a test", points_of())) == 1
    scenario = load_scenario(_scenario(tmp_path, "auto"))
    source = throughput_source(scenario.throughput_source)
    nodes = {c.name: c for c in scenario.configurations}
    assert source.times(scenario.model_phases[0].model, nodes["1xL40S"]).provenance == "measured: a test"
    assert source.times(scenario.model_phases[0].model, nodes["1xL4"]).provenance.startswith("roofline")
    # On the grid the figures are the roofline's own, so the tables agree wherever both know the batch.
    grid = source.times(MODEL, nodes["1xL40S"])
    known = RooflineSource().times(MODEL, nodes["1xL40S"])
    for mine, theirs in zip(
        grid.decode_ms(np.array([1.0, 8.0]), 512.0), known.decode_ms(np.array([1.0, 8.0]), 512.0), strict=True
    ):
        assert mine == pytest.approx(theirs)
    plan = plan_scenario(scenario)
    plan.save(tmp_path / "plan.json")
    (tmp_path / "l40s.json").unlink()
    assert verify_plan(Plan.load(tmp_path / "plan.json")).ok
    assert scenario_from_mapping(plan.scenario).digest == scenario.digest
    assert "points" not in json.dumps(plan.scenario)


def test_measured_alone_covers_nothing_else(tmp_path: Path) -> None:
    """Source `measured` never falls back silently, and a changed figure is another scenario."""
    assert MODEL is not None
    save_measurements(tmp_path / "l40s.json", measured_node(MODEL, "1xL40S", "a test", points_of()))
    scenario = load_scenario(_scenario(tmp_path, "measured"))
    source = throughput_source(scenario.throughput_source)
    with pytest.raises(CoraloptError, match="no figures for phi4-14b on 1xL4"):
        build_tables(source, scenario.model_phases[0], scenario.configurations, 1)
    document = dict(scenario.document)
    document["throughput"] = json.loads(json.dumps(document["throughput"]))
    document["throughput"]["measured"][0]["decode"]["layer_ms"][0][0] *= 1.01
    assert scenario_from_mapping(document).digest != scenario.digest


def test_mistakes_in_scenarios(tmp_path: Path) -> None:
    """Missing file, foreign file, no measurements, unused measurements, bad grids: each told in place."""
    assert MODEL is not None
    with pytest.raises(ScenarioError, match="No such file"):
        load_scenario(_scenario(tmp_path, "auto"))
    (tmp_path / "l40s.json").write_text("{}")
    with pytest.raises(ScenarioError, match="not a file of measured times"):
        load_scenario(_scenario(tmp_path, "auto"))
    save_measurements(tmp_path / "other.json", measured_node(MODEL, "1xL40S", "a test", points_of()))
    (tmp_path / "l40s.json").write_bytes((tmp_path / "other.json").read_bytes())
    with pytest.raises(ScenarioError, match="does not use the measurements"):
        load_scenario(_scenario(tmp_path, "silicon"))
    document = json.loads((tmp_path / "l40s.json").read_text())
    document["nodes"][0]["decode"]["tokens"].reverse()
    document["nodes"][0]["prefill"]["layer_ms"].pop()
    (tmp_path / "l40s.json").write_text(json.dumps(document))
    with pytest.raises(ScenarioError, match=r"(?s)l40s\.json: nodes\[0\].*('tokens' must rise|must have 2 rows)"):
        load_scenario(_scenario(tmp_path, "auto"))
    data = yaml.safe_load(_scenario(tmp_path, "measured").read_text())
    del data["throughput"]["measured"]
    with pytest.raises(ScenarioError, match="has no measurements"):
        scenario_from_mapping(data)


def test_file_keeps_other_nodes(tmp_path: Path) -> None:
    """One file for a fleet: a node measured again takes its own place; a foreign file is left alone."""
    assert MODEL is not None
    file = tmp_path / "fleet.json"
    for name, count in (("1xL40S", 1), ("1xL4", 2), ("1xL40S", 2)):
        assert save_measurements(file, measured_node(MODEL, name, "test", points_of())) == count
    (tmp_path / "plan.json").write_text('{"nodes": []}')
    with pytest.raises(CoraloptError, match="left alone"):
        save_measurements(tmp_path / "plan.json", measured_node(MODEL, "1xL4", "test", points_of()))
    assert (tmp_path / "plan.json").read_text() == '{"nodes": []}'


def _bench_rows() -> list[dict[str, Any]]:
    """Rows as `vllm bench sweep serve` (0.32) writes them, with the figures of :func:`points_of`."""
    rows = []
    for point in points_of():
        n, out = 4 * point.batch, 1 if point.phase == "prefill" else 33
        prompt = int(point.tokens) - out // 2
        rows.append(
            {
                "hf_overrides": str({"num_hidden_layers": point.layers}),
                "max_concurrency": point.batch,
                "completed": n,
                "failed": 0,
                "total_input_tokens": n * prompt,
                "total_output_tokens": n * out,
                "median_tpot_ms": 0.0 if out == 1 else point.ms,
                "median_ttft_ms": point.ms if out == 1 else 1e9,
            }
        )
    return rows


def test_sweep_csv_by_the_command(tmp_path: Path) -> None:
    """`coralopt profile --from summary.csv` gives the lines behind the rows."""
    with (tmp_path / "summary.csv").open("w", newline="") as stream:
        rows = _bench_rows()
        writer = csv.DictWriter(stream, ["", *rows[0]])
        writer.writeheader()
        writer.writerows([{"": n, **row} for n, row in enumerate(rows)])
    arguments = ["profile", "--model", "phi4-14b", "--configuration", "1xL40S", "--from", str(tmp_path / "summary.csv")]
    arguments += ["-o", str(tmp_path / "out.json"), "--measured-with", "vllm 0.32.0 on a test", "--json"]
    result = CliRunner().invoke(make_app(), arguments)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["other_sources"]["roofline"]["decode"][1] < 1e-9
    assert data["other_sources"]["roofline"]["prefill"][1] < 1e-9
    assert data["node"]["measured_with"] == "vllm bench sweep serve, vllm 0.32.0 on a test"


def test_bench_json(tmp_path: Path) -> None:
    """`vllm bench serve` files, one a point, a sweep's summary.json, and `vllm bench latency` files named by parameters."""
    files = []
    for n, row in enumerate(_bench_rows()):
        named = {**row, "layers": json.loads(row.pop("hf_overrides").replace("'", '"'))["num_hidden_layers"]}
        named.pop("hf_overrides")
        (tmp_path / f"{n}.json").write_text(json.dumps(named))
        files.append(tmp_path / f"{n}.json")
    points, kind = read_bench_files(files)
    assert kind == "vllm bench serve"
    for found, expected in zip(points, points_of(), strict=True):
        assert (found.phase, found.layers, found.batch) == (expected.phase, expected.layers, expected.batch)
        assert found.tokens == pytest.approx(expected.tokens, abs=1)
        assert found.ms == pytest.approx(expected.ms)
    (tmp_path / "summary.json").write_text(json.dumps(_bench_rows()))
    assert len(read_bench_files([tmp_path / "summary.json"])[0]) == len(points)
    latency = {"model_id": "m", "avg_latency": 0.2, "latencies": [0.3, 0.1, 0.2], "percentiles": {"50": 0.2}}
    name = tmp_path / "layers-4-batch-8-in-512-out-1.json"
    name.write_text(json.dumps(latency))
    assert read_bench_files([name])[0] == [Point("prefill", 4, 8, 512.0, 200.0)]
    (tmp_path / "plain.json").write_text(json.dumps(latency))
    assert read_bench_files([tmp_path / "plain.json"], 2, 4, (100, 10))[0] == [Point("decode", 2, 4, 105.0, 20.0)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{"latencies": [1.0]}', "does not write layers"),
        ("a.json", '{"plan": 1}', "neither"),
        ("a.json", "{", "not JSON"),
        ("a.csv", "x,y\n1,2\n", "max_concurrency is missing"),
        ("a.csv", "max_concurrency,completed,failed\n1,3,1\n", "how many layers"),
        ("a.csv", "max_concurrency,completed,failed,layers\n1,3,1,2\n", "requests failed"),
        (
            "a.csv",
            "max_concurrency,completed,failed,layers,total_input_tokens,total_output_tokens,median_tpot_ms,median_e2el_ms,"
            "kv_transfer_config\n1,3,0,2,300,99,0.004,140,DecodeBenchConnector\n",
            "in bursts",
        ),
        ("a.csv", "max_concurrency,completed,failed,layers\nnan,3,0,2\n", "it must be finite|not a number"),
        ("a.json", '{"max_concurrency": 1, "completed": 2, "layers": 2, "failed": 0}', "total_input_tokens is None"),
    ],
)
def test_bad_bench_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    """A wrong file is named with what is wrong in it."""
    (tmp_path / name).write_text(text)
    with pytest.raises(CoraloptError, match=message):
        read_bench_files([tmp_path / name])
    with pytest.raises(CoraloptError, match="cannot be read"):
        read_bench_files([tmp_path / "absent.json"])


#: Stands in for the vllm program: answers --version, and writes the table of a sweep from the parameters it is given.
_FAKE_VLLM = """
import csv, json, pathlib, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("0.32.0+fake"); sys.exit()
assert words[:3] == ["bench", "sweep", "serve"], words
option = {name: words[words.index(name) + 1] for name in ("--serve-params", "--bench-params", "-o")}
serve, bench = (json.loads(pathlib.Path(option[n]).read_text()) for n in ("--serve-params", "--bench-params"))
rows = []
for s in serve:
    for b in bench:
        if b["seed"] != s["seed"]:
            continue
        j, n, out = s["hf_overrides"]["num_hidden_layers"], b["num_prompts"], b["random_output_len"]
        ms = (5 + 2 * j) * b["max_concurrency"] + b["random_input_len"] / 100
        rows.append({**b, "hf_overrides": s["hf_overrides"], "completed": n, "failed": 0,
            "total_input_tokens": n * b["random_input_len"] + j // 2, "total_output_tokens": n * out,
            "median_ttft_ms": ms, "median_tpot_ms": ms, "median_e2el_ms": ms * out,
            "kv_transfer_config": s.get("kv_transfer_config", "")})
        print("[END BENCHMARK]", flush=True)
folder = pathlib.Path(option["-o"]) / "20260101"
folder.mkdir(parents=True)
with (folder / "summary.csv").open("w", newline="") as stream:
    writer = csv.DictWriter(stream, rows[0]); writer.writeheader(); writer.writerows(rows)
"""


@pytest.fixture
def fake_vllm(tmp_path: Path) -> str:
    """A program that behaves like vllm where the profile meets it."""
    (tmp_path / "fake.py").write_text(_FAKE_VLLM)
    program = tmp_path / "vllm"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(tmp_path / "fake.py"))} "$@"\n')
    program.chmod(0o755)
    return str(program)


def test_vllm_profile_end_to_end(fake_vllm: str, tmp_path: Path) -> None:
    """Parameters out, table in, lines fitted: c1 = 2 ms a sequence, whatever the rest."""
    points, note = profile_with_vllm("model", OPTIONS, fake_vllm, keep=tmp_path / "keep")
    assert note.startswith("vllm 0.32.0+fake, bench sweep serve, dummy weights")
    assert len(points) == 2 * 8
    for phase in ("prefill", "decode"):
        fit = fit_points(points, phase)  # type: ignore[arg-type]
        assert fit.layer_ms == pytest.approx(np.array([[2.0 * b for b in fit.batch]] * len(fit.tokens)))
    assert fit.tokens == (128.0, 512.0)
    assert len(json.loads((tmp_path / "keep" / "bench.json").read_text())) == len(bench_parameters(OPTIONS))


def test_vllm_faults(
    tmp_path: Path, running_processes: Callable[[], list[str]], nothing_runs: Callable[[], bool]
) -> None:
    """No program, a program that fails, one that lacks pandas, one that hangs: each told, nothing left running."""
    with pytest.raises(LaunchError, match=r"cannot be run.*--vllm"):
        profile_with_vllm("model", OPTIONS, "/does/not/exist")
    program = tmp_path / "vllm"
    program.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 1 && exit\necho "no module pandas"; exit 3\n')
    program.chmod(0o755)
    with pytest.raises(LaunchError, match="needs pandas"):
        profile_with_vllm("model", OPTIONS, str(program))
    assert nothing_runs()
    program.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 1 && exit\nsetsid sleep 600 &\nsleep 600\n')
    options = ProfileOptions(layers=(1, 2), timeout_s=2.0)
    seen: set[str] = set()
    with pytest.raises(LaunchError, match="was not done after 2 s"):
        profile_with_vllm("model", options, str(program), progress=lambda *_: seen.update(running_processes()))
    # The shell, what it started, what left its session, and who watches for our end: all were there and are gone.
    assert "sleep 600" in seen
    assert nothing_runs(), running_processes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_nothing(
    number: int, tmp_path: Path, running_processes: Callable[[], list[str]], nothing_runs: Callable[[], bool]
) -> None:
    """Ctrl-C and a plain kill end vLLM's bench, and the server that it started in a session of its own."""
    program = tmp_path / "vllm"
    program.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 1 && exit\nsetsid sleep 600 &\nsleep 600\n')
    program.chmod(0o755)
    words = [sys.executable, "-m", "coralopt", "profile", "--model", "phi4-14b", "--configuration", "1xL4"]
    words += ["--vllm", str(program), "-o", str(tmp_path / "x.json")]
    process = subprocess.Popen(words)
    end = time.monotonic() + 60
    while running_processes().count("sleep 600") < 2:
        assert time.monotonic() < end, running_processes()
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(number)
    assert process.wait(60) == 130
    assert nothing_runs(), running_processes()
    assert not (tmp_path / "x.json").exists()


def test_sweep_command_has_no_shell_in_it() -> None:
    """The two commands inside are quoted words again; a strange path stays one word."""
    words = sweep_command("vllm", "a b;c", OPTIONS, 1, Path("s"), Path("b"), Path("o"), ("--x", "y z"))
    serve = shlex.split(words[words.index("--serve-cmd") + 1])
    assert "a b;c" in serve
    assert "y z" in serve
    assert all(value["hf_overrides"]["num_hidden_layers"] for value in serve_parameters(OPTIONS))


def test_prompts_are_profiled_in_the_graphs_that_launch_has_captured() -> None:
    """On GPUs; the server for decode keeps vLLM's own."""
    servers = serve_parameters(OPTIONS, graphs=True)
    most = max(OPTIONS.prompt_tokens) * max(OPTIONS.prompts)
    for server in servers:
        captured = server.get("compilation_config", {}).get("cudagraph_capture_sizes")
        assert captured == (graph_sizes(most) if "prefill" in server["_benchmark_name"] else None)
    assert not any("compilation_config" in server for server in serve_parameters(OPTIONS))


def test_torch_refuses_what_it_cannot_measure() -> None:
    """MXFP4 in plain torch would be BF16 under a wrong name."""
    other = find_model("gpt-oss-20b")
    assert other is not None
    with pytest.raises(LaunchError, match="mxfp4 weights"):
        profile_with_torch(other, OPTIONS)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--model", "nonsense"], "no such model"),
        (["--model", "x", "--model-path", "/does/not/exist"], "no such directory"),
        (["--model", "phi4-14b", "--layers", "2,x"], "whole numbers"),
        (["--model", "phi4-14b", "--layers", "2"], "two counts"),
        (["--model", "phi4-14b", "--prompts", "0"], "1 or more"),
    ],
)
def test_bad_options(
    arguments: list[str],
    text: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sentence, no traceback, no file."""
    words = ["coralopt", "profile", "--configuration", "1xL4", "-o", str(tmp_path / "x.json"), *arguments]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code != 0
    said = capfd.readouterr().err
    assert text in said
    assert "Traceback" not in said
    assert not (tmp_path / "x.json").exists()


@needs_torch
@pytest.mark.slow
def test_torch_profile_on_cpu(tmp_path: Path) -> None:
    """The same code as on a GPU, graphs apart: every point measured, and long prompts cost more a layer than short ones."""
    config = {"model_type": "qwen3", "hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 16}
    config |= {"vocab_size": 64, "intermediate_size": 256, "num_key_value_heads": 2, "head_dim": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = read_checkpoint(tmp_path).architecture("tiny")
    options = ProfileOptions(
        layers=(2, 16), prompts=(1,), prompt_tokens=(16, 512), sequences=(1, 4), contexts=(64,), repeats=9, threads=1
    )
    points, note = profile_with_torch(model, options, tmp_path, str(TORCH))
    assert len(points) == 8 + 2 * len(options.mixed)
    assert "1 threads" in note
    fit = fit_points(points, "prefill")
    assert fit.layer_ms[1][0] > fit.layer_ms[0][0]
    # A step with 512 tokens of a prompt takes much longer than its decode alone, and about what is put together.
    node = measured_node(model, "1xCPU", note, points)
    assert 0.4 < node["mixed_factor"] < 2.5


_UNIFORM = """
import sys, torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from coralopt.profiling.torch_worker import UniformSlice
torch.manual_seed(0)
config = Qwen3Config(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
                     num_key_value_heads=2, head_dim=8, initializer_range=0.3)
model = Qwen3ForCausalLM(config).eval()
model.save_pretrained(sys.argv[1])
part = UniformSlice(sys.argv[1], range(3), torch.device("cpu"), torch.float32)
part.prepare(2, 9, decode=False)
ids = part._tokens.view(2, 9)
with torch.no_grad():
    expected = model(ids).logits[:, -1].argmax(-1)
assert part.step().tolist() == expected.tolist(), "prefill"
keys, values = part._keys, part._values
part.prepare(2, 9, decode=True)
for n in range(3):
    part._keys[n][:, :, :8], part._values[n][:, :, :8] = keys[n][:, :, :8], values[n][:, :, :8]
part._tokens = ids[:, -1].contiguous()
assert part.step().tolist() == expected.tolist(), "decode"
for history in (0, 4):
    part.prepare_mixed(2, 9, 9 - history, history)
    for n in range(3):
        part._keys[n][:, :, :8], part._values[n][:, :, :8] = keys[n][:, :, :8], values[n][:, :, :8]
        part._own[n][0][:, :, :history] = keys[n][1:, :, :history]
        part._own[n][1][:, :, :history] = values[n][1:, :, :history]
    part._tokens = torch.cat([ids[:, -1], ids[1, history:]])
    assert part.step().tolist() == [*expected.tolist(), expected[1].item()], f"mixed after {history}"
print("equal")
"""


@needs_torch
@pytest.mark.slow
def test_what_is_timed_is_the_model(tmp_path: Path) -> None:
    """A profiled step, prefill, decode or both, computes what transformers computes with the same weights."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [str(TORCH), "-c", _UNIFORM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.stdout.strip().endswith("equal"), done.stderr
