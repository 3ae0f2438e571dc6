"""`--executable-by vllm`: the planner's restriction and the runtime's judgement are two pieces of code; they must agree."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from coralopt.cli.app import make_app
from coralopt.errors import ScenarioError
from coralopt.placement import Placement, Stage
from coralopt.plan import Plan, PlannedInstance, PlannedNode, PlannedStage
from coralopt.planning import plan_scenario
from coralopt.runtime import VllmEngine, check
from coralopt.scenario import scenario_from_mapping
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates import build_library, placement_tables, scenario_tables
from coralopt.throughput import build_tables, engine_runs, stage_role, throughput_source

#: 6 query and 3 KV heads: one GPU, three, and no power of two above it.
ODD = {"layers": 4, "hidden": 768, "heads": 6, "kv_heads": 3, "head_dim": 128, "vocab": 32000, "intermediate": 2048}
EVEN = {**ODD, "heads": 8, "kv_heads": 4, "hidden": 1024}
POOL = ("1xT4", "1xL4", "2xL4", "1xL40S")


def scenario(
    engine: str, mode: str = "disaggregated", pool: tuple[str, ...] = POOL, **changes: Any
) -> ResolvedScenario:
    """Two small models over nodes of which stock vLLM cannot use all."""
    models = {
        name: {
            "model": {**shape, "weight_format": "bf16", "max_position": 8192},
            "slo": {"ttft_ms": 400, "tpot_ms": 20, "attainment": "mean"},
            "demand": {"requests_s": 20, "input_tokens": 500, "output_tokens": 100},
        }
        for name, shape in (("odd", ODD), ("even", EVEN))
    }
    prices = {name: {"available": 20, "price_usd_h": 0.5 * (n + 1)} for n, name in enumerate(pool)}
    document = {
        "mode": mode,
        "models": models,
        "pool": {"regions": {"here": {"configurations": prices}}},
        "pruning": {"max_nodes": 3, "memory_ratio": 1000},
        "placement": {"engine": engine},
        **changes,
    }
    return scenario_from_mapping(document, source="test")


def as_plan(base: Plan, resolved: ResolvedScenario, placements: list[tuple[str, Placement, Any]]) -> Plan:
    """A plan document with these placements, whatever an optimum would be."""
    instances = []
    names = [c.name for c in resolved.configurations]
    for number, (key, placement, table) in enumerate(placements):
        first, stages, count = 0, [], len(placement.stages)
        for position, stage in enumerate(placement.stages):
            cell = (count - 1, stage_role(position, count))
            nodes = tuple(
                PlannedNode(
                    configuration=names[c],
                    instance_type=None,
                    count=n,
                    tokens_s=float(table.values[cell][c, stage.layers]),
                    traffic_share=0.5,
                    batch=int(table.batch[cell][c, stage.layers]),
                )
                for c, n in enumerate(stage.nodes)
                if n
            )
            total = sum(node.count * node.tokens_s for node in nodes)
            last = first + stage.layers - 1
            stages.append(PlannedStage(first_layer=first, last_layer=last, nodes=nodes, tokens_s=total))
            first += stage.layers
        model, phase = key.rsplit("/", 1)
        instances.append(
            PlannedInstance(
                name=f"i{number}",
                model=model,
                phase=phase,  # type: ignore[arg-type]
                region="here",
                count=1,
                kept=0,
                stages=tuple(stages),
                tokens_s=min(stage.tokens_s for stage in stages),
                price_usd_h=1.0,
            )
        )
    return base.model_copy(update={"instances": tuple(instances)})


@pytest.mark.parametrize("mode", ["disaggregated", "mixed"])
def test_every_template_runs(mode: str) -> None:
    """Whatever the allocation picks from the restricted library, the runtime will not refuse it."""
    resolved = scenario("vllm", mode)
    library = build_library(resolved)
    tables = {table.key: table for table in scenario_tables(resolved)}
    every = [
        (phase.key, phase.placement(row), tables[phase.key]) for phase in library.phases for row in range(len(phase))
    ]
    assert {key for key, _, _ in every} == {phase.key for phase in resolved.model_phases}
    verdicts = check(as_plan(plan_scenario(resolved), resolved, every), VllmEngine()).verdicts
    assert [(v.instance, v.reasons) for v in verdicts if not v.runs] == []


def test_nothing_that_runs_is_forbidden() -> None:
    """By brute force: of all pipelines of single nodes, the best that the runtime accepts is no better than the template."""
    resolved, free = scenario("vllm"), scenario("any")
    library = build_library(resolved)
    tables = scenario_tables(free)
    base = plan_scenario(resolved)
    count = len(resolved.configurations)
    tried = 0
    for phase, table in zip(library.phases, tables, strict=True):
        best = {phase.usage[row].tobytes(): float(phase.throughput[row]) for row in range(len(phase))}
        placements = []
        for size in (1, 2, 3):
            for order in itertools.product(range(count), repeat=size):
                for layers in itertools.product(range(1, 5), repeat=size):
                    if sum(layers) != 4:
                        continue
                    cells = [(size - 1, stage_role(s, size), order[s], layers[s]) for s in range(size)]
                    if min(table.values[cell] for cell in cells) > 0:
                        units = [tuple(int(c == o) for c in range(count)) for o in order]
                        placements.append(Placement(tuple(Stage(j, u) for j, u in zip(layers, units, strict=True))))
        plan = as_plan(base, free, [(phase.key, placement, table) for placement in placements])
        verdicts = check(plan, VllmEngine(connector="nixl-push")).verdicts
        for placement, verdict, item in zip(placements, verdicts, plan.instances, strict=True):
            if verdict.runs:
                tried += 1
                usage = np.array(placement.node_set, dtype=phase.usage.dtype)
                assert best[usage.tobytes()] >= item.tokens_s * (1 - 1e-12), (phase.key, placement)
    assert tried > 50


def test_masks() -> None:
    """T4 has no BF16, six heads are not dealt out to four GPUs, decode is one stage; other engines forbid nothing."""
    resolved = scenario("vllm", pool=("1xT4", "1xL4", "2xL4", "4xL4"))
    allowed = {
        phase.key: engine_runs("vllm", phase, resolved.configurations, 3).tolist() for phase in resolved.model_phases
    }
    names = [c.name for c in resolved.configurations]
    row = {name: n for n, name in enumerate(names)}
    assert all(not cells[s][row["1xT4"]] for cells in allowed.values() for s in range(3))
    assert allowed["odd/prefill"][0][row["1xL4"]]
    assert not allowed["odd/prefill"][0][row["2xL4"]]
    assert not allowed["odd/prefill"][0][row["4xL4"]]
    assert allowed["even/prefill"][2][row["4xL4"]]
    assert [any(cells) for cells in allowed["even/decode"]] == [True, False, False]
    assert all(engine_runs("same-tp", p, resolved.configurations, 3).all() for p in resolved.model_phases)
    source = throughput_source("auto")
    for phase, table in zip(resolved.model_phases, scenario_tables(resolved), strict=True):
        whole = build_tables(source, phase, resolved.configurations, 3).values
        mask = np.array(allowed[phase.key])[:, None, :, None]
        assert np.array_equal(table.values, np.where(mask, whole, 0.0))


def test_cells_are_masked_too() -> None:
    """Free budgets and real links have tables of their own."""
    for placing in ({"latency_budgets": "free"}, {"network": "link"}):
        resolved = scenario("vllm", placement={"engine": "vllm", **placing})
        tables, _ = placement_tables(resolved, scenario_tables(resolved))
        for phase, values in zip(resolved.model_phases, tables, strict=True):
            runs = engine_runs("vllm", phase, resolved.configurations, 3)
            assert (values[np.broadcast_to(~runs[:, None, :], values.shape[:3])] == 0).all()
            assert (values > 0).any()


def test_a_model_that_the_engine_cannot_run_is_named() -> None:
    """Not an SLO that is blamed for it."""
    resolved = scenario("vllm", pool=("1xT4", "2xL4"))
    with pytest.raises(
        ScenarioError, match=r"models\.odd: no node of the pool runs its prefill under the engine 'vllm'"
    ):
        plan_scenario(resolved)


def test_the_option(tmp_path: Any) -> None:
    """`plan --executable-by vllm` is the scenario's own setting; the plan says so, verifies, and runs."""
    runner, app = CliRunner(), make_app()
    target = tmp_path / "plan.json"
    done = runner.invoke(app, ["plan", "tiny", "--executable-by", "vllm", "-o", str(target)])
    assert done.exit_code == 0, done.output
    assert Plan.load(target).scenario["placement"]["engine"] == "vllm"
    assert runner.invoke(app, ["verify", str(target)]).exit_code == 0
    assert runner.invoke(app, ["launch", "check", str(target)]).exit_code == 0
    built = runner.invoke(
        app, ["templates", "tiny", "--executable-by", "vllm", "--json", "-o", str(tmp_path / "l.parquet")]
    )
    assert built.exit_code == 0, built.output
    assert json.loads(built.stdout)["digest"] == Plan.load(target).library_digest
    walked = runner.invoke(
        app, ["adapt", "tiny", "--epochs", "1", "--executable-by", "vllm", "-o", str(tmp_path / "w")]
    )
    assert walked.exit_code == 0, walked.output
    assert Plan.load(tmp_path / "w" / "epoch-0000.json").scenario["placement"]["engine"] == "vllm"
