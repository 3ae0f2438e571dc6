"""Scenarios that are wrong: every mistake is told at once, at its place, with a hint, and never as a traceback."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coralopt.errors import ScenarioError
from coralopt.scenario import ResolvedScenario, load_scenario, scenario_from_mapping
from coralopt.scenario.read import parse_text

TINY: dict[str, Any] = {
    "models": {
        "phi4-14b": {
            "slo": {"prefill_ms": 1200, "decode_ms": 60},
            "demand": {"requests_s": 1, "dataset": "azure-conv"},
        }
    },
    "pool": {"regions": {"us-east-2": {"configurations": {"1xL4": 8, "4xL4": {"available": 2}}}}},
    "pruning": {"max_nodes": 3, "memory_ratio": 12},
    "running": [{"model": "phi4-14b", "phase": "decode", "region": "us-east-2", "nodes": {"1xL4": 2}, "count": 1}],
    "gpus": {"Mine": {"memory_gib": 30, "bandwidth_gb_s": 900, "bf16_tflops": 100, "link_gb_s": 32}},
    "nodes": {"2xMine": {"gpu": "Mine", "count": 2, "network_gb_s": 5}},
    "solver": {"name": "highs", "options": {"rel_gap": 0.001}},
}
MODEL, SUPPLY, RUN = ("models", "phi4-14b"), ("pool", "regions", "us-east-2", "configurations"), ("running", 0)
DELETE = object()
P = "models.phi4-14b"
C = "pool.regions.us-east-2.configurations"
INPUT = f"{P}.demand.lengths.input.quantiles"


def quantiles(**shares: float) -> dict[str, Any]:
    """The section of lengths with these quantiles."""
    return {"quantiles": shares}


def measured(**grid: list[float]) -> dict[str, Any]:
    """An entry of measured times whose prefill grid is this one."""
    times = {"tokens": [1, 2], "batch": [1, 2], "layer_ms": [[1, 1], [1, 1]], "other_ms": [[0, 0], [0, 0]]}
    return {
        "model": "phi4-14b",
        "configuration": "1xL4",
        "weight_format": "bf16",
        "measured_with": "a test",
        "prefill": times | grid,
        "decode": times,
    }


# (path in TINY, new value, place of the mistake, in the problem, in the hint)
WRONG: list[tuple[tuple[Any, ...], Any, str, str, str]] = [
    # keys
    (("modles",), {}, "modles", "unknown key", "'models'"),
    (
        (*MODEL, "slo", "decode"),
        60,
        f"{P}.slo.decode",
        "unknown key",
        "'decode_ms'? It is the time per output token, in ms",
    ),
    ((*MODEL, "slo", "prefill_s"), 1.2, f"{P}.slo.prefill_s", "unknown key", "in ms"),
    ((*MODEL, "demand", "rps"), 1, f"{P}.demand.rps", "unknown key", "requests_s"),
    (("solver", "option"), {}, "solver.option", "unknown key", "'options'"),
    (("models",), DELETE, "models", "missing", ""),
    (("pool",), DELETE, "pool", "missing", ""),
    ((*MODEL, "slo"), DELETE, f"{P}.slo", "missing", "ms"),
    ((*MODEL, "slo", "decode_ms"), DELETE, f"{P}.slo.tpot_ms", "missing", "in ms"),
    ((*MODEL, "slo", "tpot_ms"), 60, f"{P}.slo", "tpot_ms or decode_ms (the same limit by its old name), not both", ""),
    ((*MODEL, "slo", "tpot"), 60, f"{P}.slo.tpot", "unknown key", "'tpot_ms'? It is the time per output token"),
    *(
        ((*MODEL, "slo", "attainment"), value, f"{P}.slo.attainment", "above 0 and below 1 (0.99 is 99 %), not", "")
        for value in (0, 1, 1.0, 0.0, 99, -0.5, True, None, "0.99", "median", float("nan"), [0.99])
    ),
    # numbers and units
    ((*MODEL, "slo", "prefill_ms"), "1.5s", f"{P}.slo.prefill_ms", "the text '1.5s'", "1500"),
    ((*MODEL, "slo", "prefill_ms"), "800", f"{P}.slo.prefill_ms", "the text '800'", "write the plain number 800 "),
    ((*MODEL, "slo", "prefill_ms"), "800 ms", f"{P}.slo.prefill_ms", "the text '800 ms'", "write the plain number 800"),
    ((*MODEL, "slo", "prefill_ms"), "1.5 s", f"{P}.slo.prefill_ms", "the text '1.5 s'", "write the plain number 1500"),
    (
        (*MODEL, "slo", "prefill_ms"),
        "250 us",
        f"{P}.slo.prefill_ms",
        "the text '250 us'",
        "write the plain number 0.25 ",
    ),
    *(
        ((*MODEL, "slo", "prefill_ms"), text, f"{P}.slo.prefill_ms", f"the text '{text}'", hint)
        for text, hint in (
            ("0.5 min", "write the plain number 30000 "),
            ("2 sec", "write the plain number 2000 "),
            ("1 Seconds", "write the plain number 1000 "),
            # No time: the description says which unit is meant.
            ("3 tokens", "first token, in ms"),
        )
    ),
    (
        ("throughput",),
        {"measured": [measured(tokens=[1, 1])]},
        "throughput.measured[0].prefill",
        "'tokens' must rise",
        "",
    ),
    (
        ("throughput",),
        {"measured": [measured(batch=[2, 1])]},
        "throughput.measured[0].prefill",
        "'batch' must rise",
        "",
    ),
    ((*MODEL, "slo", "prefill_ms"), "soon", f"{P}.slo.prefill_ms", "the text 'soon'", "in ms"),
    ((*MODEL, "slo", "decode_ms"), 0.06, f"{P}.slo.decode_ms", "at least 1", "write 60"),
    ((*MODEL, "slo", "decode_ms"), 0, f"{P}.slo.decode_ms", "at least 1", "in ms"),
    ((*MODEL, "slo", "decode_ms"), 4e6, f"{P}.slo.decode_ms", "at most 3,600,000", "in ms"),
    ((*MODEL, "slo", "decode_ms"), True, f"{P}.slo.decode_ms", "the truth value true", ""),
    ((*MODEL, "slo", "decode_ms"), None, f"{P}.slo.decode_ms", "nothing", ""),
    ((*MODEL, "slo", "decode_ms"), [60], f"{P}.slo.decode_ms", "a list", ""),
    ((*MODEL, "slo"), 60, f"{P}.slo", "must be a mapping, not 60", "ttft_ms"),
    ((*MODEL, "demand", "requests_s"), -1, f"{P}.demand.requests_s", "at least 0, not -1", "requests/s"),
    ((*MODEL, "demand", "requests_s"), float("nan"), f"{P}.demand.requests_s", "finite number, not nan", ""),
    ((*MODEL, "demand", "requests_s"), float("inf"), f"{P}.demand.requests_s", "finite number, not inf", ""),
    ((*MODEL, "demand", "requests_s"), 10**400, f"{P}.demand.requests_s", "too large", ""),
    ((*SUPPLY, "1xL4"), -3, f"{C}.1xL4", "at least 0, not -3", "nodes available"),
    ((*SUPPLY, "1xL4"), 1.5, f"{C}.1xL4", "whole number, not 1.5", ""),
    ((*SUPPLY, "1xL4"), True, f"{C}.1xL4", "whole number, not the truth value true", ""),
    ((*SUPPLY, "1xL4"), "many", f"{C}.1xL4", "the text 'many'", "available"),
    ((*SUPPLY, "4xL4", "available"), -1, f"{C}.4xL4.available", "at least 0", ""),
    ((*SUPPLY, "4xL4", "price_usd_h"), -0.5, f"{C}.4xL4.price_usd_h", "at least 0, not -0.5", "USD"),
    ((*SUPPLY, "4xL4", "price_usd_h"), "$3", f"{C}.4xL4.price_usd_h", "the text '$3'", "USD"),
    ((*SUPPLY, "4xL4", "price_usd_h"), "1,86", f"{C}.4xL4.price_usd_h", "the text '1,86'", "plain number 1.86 without"),
    ((*SUPPLY, "4xL4", "price_usd_h"), "1,860.5", f"{C}.4xL4.price_usd_h", "", "plain number 1860.5 without"),
    (
        (*SUPPLY, "4xL4", "price_usd_h"),
        "2026-01-31",
        f"{C}.4xL4.price_usd_h",
        "",
        "price in place of the catalog's, in",
    ),
    ((*SUPPLY, "4xL4", "price"), 3, f"{C}.4xL4.price", "unknown key", "'price_usd_h'"),
    ((*MODEL, "slo", "itl_ms"), 60, f"{P}.slo.itl_ms", "unknown key", "'tpot_ms'"),
    ((*MODEL, "demand", "requests_s"), 1e-300, f"{P}.demand.requests_s", "0 or at least 1e-09, not 1e-300", ""),
    *(
        ((*SUPPLY, name), 1, f"{C}.{name}", "unknown node configuration", hint)
        for name, hint in (
            ("8xA100-80GB", "did you mean 'A100'?"),
            ("1xA100-40GB-SXM", "did you mean 'A100-40'?"),
            ("0xL4", "did you mean"),
            ("p5.48xlarge", "this instance type '8xH100'"),
            ("nothing", " more"),
        )
    ),
    (("pruning", "max_nodes"), 0, "pruning.max_nodes", "at least 1", "N_max"),
    (("pruning", "memory_ratio"), 1, "pruning.memory_ratio", "above 1", "rho"),
    (("initialization_penalty",), -0.1, "initialization_penalty", "at least 0", "K"),
    (("solver", "options", "rel_gap"), float("nan"), "solver.options.rel_gap", "finite", ""),
    # choices
    (("mode",), "aggregated", "mode", "no choice", "disaggregated"),
    (("throughput",), {"source": "rooflne"}, "throughput.source", "no choice", "'roofline'"),
    (("pool", "market"), "preemptible", "pool.market", "no choice", "spot"),
    ((*MODEL, "demand", "dataset"), "azure-cod", f"{P}.demand.dataset", "no choice", "'azure-code'"),
    # forms of the demand
    ((*MODEL, "demand"), {"dataset": "burstgpt"}, f"{P}.demand", "rate is missing", ""),
    ((*MODEL, "demand"), {"requests_s": 1}, f"{P}.demand", "lengths are missing", ""),
    ((*MODEL, "demand", "input_tokens"), 5, f"{P}.demand", "dataset or input_tokens, not both", ""),
    ((*MODEL, "demand", "decode_tokens_s"), 5, f"{P}.demand", "requests_s or decode_tokens_s, not both", ""),
    (
        (*MODEL, "demand"),
        {"decode_tokens_s": 5, "dataset": "burstgpt"},
        f"{P}.demand",
        "the rate of prefill is missing",
        "prefill_tokens_s",
    ),
    (
        (*MODEL, "demand"),
        {"requests_s": 5, "input_tokens": 20000, "output_tokens": 10},
        f"{P}.demand",
        "exceeds the context of 16384",
        "shorten",
    ),
    # lengths that do not add up
    ((*MODEL, "demand", "input_cv"), -0.1, f"{P}.demand.input_cv", "at least 0, not -0.1", "coefficient of variation"),
    *(
        ((*MODEL, "demand"), {"requests_s": 1, "output_tokens": 9} | demand, place, problem, "")
        for demand, place, problem in (
            (
                {"lengths": {"input": quantiles(**{"0.5": 900, "0.9": 800})}},
                INPUT,
                "fall: 900 tokens at 0.5, but 800 at",
            ),
            ({"lengths": {"input": quantiles(**{"0.5": 900})}}, INPUT, "at least two quantiles below 1"),
            ({"lengths": {"input": quantiles(**{"0.5": 900, "1": 800})}}, INPUT, "at least two quantiles below 1"),
            ({"lengths": {"input": quantiles(**{"0.5": 9, "0.50": 800})}}, INPUT, "the quantile 0.5 is there twice"),
            ({"lengths": {"input": quantiles(**{"0.5": 9, "p90": 800})}}, INPUT, "'p90' is no share"),
            ({"lengths": {"input": quantiles(**{"0.5": 9, "90": 800})}}, INPUT, "'90' is no share"),
            (
                {"lengths": {"input": quantiles(**{"0.5": 1, "0.6": 1e8})}},
                INPUT,
                "so steeply that lengths have no mean",
            ),
            ({"lengths": {"input": quantiles(**{"0.5": 9, "0.9": 0})}}, f"{INPUT}.0.9", "above 0"),
            (
                {"lengths": {"input": quantiles(**{"0.5": 9, "0.9": 20})}, "input_tokens": 90},
                f"{P}.demand",
                "a mean of 90",
            ),
            ({"lengths": {"input": quantiles(**{"0.5": 9, "0.9": 20})}, "input_cv": 1}, f"{P}.demand", "not both"),
            ({"lengths": {"output": quantiles(**{"0.5": 9, "0.9": 9})}}, f"{P}.demand", "lengths are missing"),
            ({"lengths": {}, "dataset": "burstgpt"}, f"{P}.demand", "dataset or lengths, output_tokens, not both"),
        )
    ),
    # variants
    *(
        ((*MODEL, "variants"), {"a": {"quality": 1.0}, "b": {"quality": 0.9} | entry}, place, problem, hint)
        for entry, place, problem, hint in (
            ({"base": "c"}, f"{P}.variants.b.base", "there is no variant 'c'", "the model itself is the base"),
            ({"base": "b"}, f"{P}.variants.b.base", "its bases lead back to itself", "leave one"),
            ({"quality": 0}, f"{P}.variants.b.quality", "above 0, not 0", "0 to 1"),
            ({"quality": 1.01}, f"{P}.variants.b.quality", "at most 1, not 1.01", "0 to 1"),
            ({"quality": "good"}, f"{P}.variants.b.quality", "the text 'good'", ""),
            ({"model": "phi4-15b"}, f"{P}.variants.b.model", "unknown model 'phi4-15b'", "'phi4-14b'"),
            ({"slo": {}}, f"{P}.variants.b.slo", "unknown key", ""),
            (
                {"speculative": {"tokens": 3, "acceptance_length": 4.5}},
                f"{P}.variants.b.speculative",
                "makes at most 4",
                "",
            ),
            (
                {"speculative": {"tokens": 3, "acceptance_length": 2, "draft": "qwen3-32b"}},
                f"{P}.variants.b.speculative.draft",
                "a vocabulary of 151,936 tokens, the model one of 100,352",
                "own tokens",
            ),
        )
    ),
    ((*MODEL, "variants"), {"a": {}}, f"{P}.variants.a.quality", "missing", "above 0 to 1"),
    ((*MODEL, "variants"), {"a/b": {"quality": 1}}, f"{P}.variants.a/b", "must not hold '/'", ""),
    (
        MODEL,
        {
            "slo": {"ttft_ms": 1200, "tpot_ms": 60, "attainment": 0.99},
            "demand": {"requests_s": 1, "dataset": "azure-conv", "min_shares": {"a": 0.5}},
            "variants": {"a": {"quality": 1}},
        },
        f"{P}.demand.min_shares",
        "one variant serves all requests where 0.99 of them",
        "attainment: mean",
    ),
    *(
        (
            MODEL,
            {
                "slo": {"ttft_ms": 1200, "tpot_ms": 60, "attainment": "mean"},
                "demand": {"requests_s": 1, "dataset": "azure-conv"} | demand,
                "variants": {"a": {"quality": 0.9}, "b": {"quality": 0.8}} if varied else {},
            },
            f"{P}.demand.{place}",
            problem,
            "",
        )
        for demand, varied, place, problem in (
            ({"min_quality": 0.95}, True, "min_quality", "no mix of the variants has 0.95: the best has 0.9"),
            ({"min_quality": 0.9}, False, "min_quality", "there are no variants"),
            ({"min_quality": 0}, True, "min_quality", "above 0, not 0"),
            ({"min_shares": {"a": 0.7, "b": 0.4}}, True, "min_shares", "sum to 1.1, above 1"),
            ({"min_shares": {"c": 0.7}}, True, "min_shares.c", "there is no variant 'c'"),
            (
                {"min_shares": {"b": 0.5}, "min_quality": 0.9},
                True,
                "min_quality",
                "no mix of the variants has 0.9: with these least shares it is at most 0.85",
            ),
        )
    ),
    ((*MODEL, "demand", "prefix_hit"), 1, f"{P}.demand.prefix_hit", "below 1, not 1", "prompt tokens"),
    ((*MODEL, "demand", "prefix_hit"), -0.1, f"{P}.demand.prefix_hit", "at least 0, not -0.1", "prompt tokens"),
    # how engines work
    (("serving",), {"preset": "vllm"}, "serving.preset", "no choice", "engine"),
    (("serving",), {"routing": "least-wrok"}, "serving.routing", "no choice", "'least-work'"),
    (("serving",), {"order": "lifo"}, "serving.order", "no choice", "fifo"),
    (("serving",), {"admission": "drop"}, "serving.admission", "no choice", "preempt"),
    (("serving",), {"reserve_gib": -1}, "serving.reserve_gib", "at least 0", "GiB"),
    (("serving",), {"host_step_ms": "2 ms"}, "serving.host_step_ms", "the text '2 ms'", "number 2"),
    (("serving",), {"step_tokens": 2048.5}, "serving.step_tokens", "whole number", ""),
    (("serving",), {"host_ms": 1}, "serving.host_ms", "unknown key", "host"),
    # names
    ((*MODEL, "model"), "phi4-15b", f"{P}.model", "unknown model 'phi4-15b'", "'phi4-14b'"),
    (("models", "phi"), TINY["models"]["phi4-14b"] | {"slo": {}}, "models.phi", "unknown model 'phi'", ""),
    (("models", "a b"), TINY["models"]["phi4-14b"], "models.a b", "is no name", "letters"),
    ((*MODEL, "hf_id"), "rm -rf", f"{P}.hf_id", "the text 'rm -rf' is no hf_id", "name or path of the checkpoint"),
    (("gpus",), {"X": {"base": "H100", "mig": "9g.1gb"}}, "gpus.X.mig", "is no mig", "for example 3g.40gb"),
    (("models", "x/y"), TINY["models"]["phi4-14b"] | {"model": "phi4-14b"}, "models.x/y", "must not hold '/'", ""),
    (("models", "microsoft/phi-4"), TINY["models"]["phi4-14b"], "models.microsoft/phi-4", "same model", "model"),
    ((*SUPPLY, "4xL40"), 1, f"{C}.4xL40", "unknown node configuration", "'L40S'"),
    ((*SUPPLY, "3xL4"), 1, f"{C}.3xL4", "unknown node configuration", "declare it under 'nodes'"),
    ((*SUPPLY, "3xL5"), -1, f"{C}.3xL5", "unknown node configuration", "GPU"),
    ((*SUPPLY, "L4"), 1, f"{C}.L4", "unknown node configuration", "1xL4"),
    (SUPPLY, ["1xL4"], "pool.regions.us-east-2", "'available' is missing", ""),
    (SUPPLY, "every", C, "no choice", "all"),
    (SUPPLY, {}, "pool.regions", "no node to rent", ""),
    (SUPPLY[:3], {"available": 1, "configurations": ["1xL4", "1xL9"]}, f"{C}[1]", "unknown node configuration", ""),
    (SUPPLY[:3], {"available": 1, "configurations": ["1xL4", "1xL4"]}, f"{C}[1]", "listed twice", ""),
    (SUPPLY[:3], {"available": 1, "configurations": {"1xL4": 1}}, "pool.regions.us-east-2", "goes with a list", ""),
    (
        ("pool", "regions", "us-east-1"),
        {"configurations": {"1xL4": 1}},
        "pool.regions.us-east-1",
        "unknown region",
        "'us-east-2'",
    ),
    (("pool", "market"), "spot", C, "no spot price is known for 4xL4", "price_usd_h"),
    ((*SUPPLY, "2xMine"), 1, C, "no on-demand price is known for 2xMine", "price_usd_h"),
    (("nodes", "2xMine", "gpu"), "Mien", "nodes.2xMine.gpu", "unknown GPU 'Mien'", "'Mine'"),
    (("nodes", "2xMine", "count"), 3, "nodes.2xMine", "the name says 2 of Mine", ""),
    (("nodes", "4xL4"), {"gpu": "L4", "count": 4, "network_gb_s": 1}, "nodes.4xL4", "the catalog has", "another name"),
    (("gpus", "L4"), TINY["gpus"]["Mine"], "gpus.L4", "the catalog has", "another name"),
    (("gpus", "Mine", "memory_gib"), 0, "gpus.Mine.memory_gib", "above 0", "GiB"),
    # running instances
    ((*RUN, "model"), "phi4-14", "running[0].model", "unknown model", "'phi4-14b'"),
    ((*MODEL, "variants"), {"a": {"quality": 1.0}}, "running[0].model", "served in parts", "phi4-14b.a"),
    ((*RUN, "phase"), "mixed", "running[0].phase", "no phase 'mixed' in mode 'disaggregated'", "prefill, decode"),
    ((*RUN, "region"), "us-east-3", "running[0].region", "unknown region", "'us-east-2'"),
    ((*RUN, "nodes"), {"1xL5": 1}, "running[0].nodes.1xL5", "unknown node configuration", "known GPUs"),
    ((*RUN, "nodes"), {"1xA10G": 1}, "running[0].nodes.1xA10G", "no region of the pool", ""),
    ((*RUN, "nodes"), {"1xL4": 4}, "running[0].nodes", "4 nodes; a template has 1 to 3", "max_nodes"),
    ((*RUN, "nodes"), {}, "running[0].nodes", "0 nodes", ""),
    ((*RUN, "count"), 0, "running[0].count", "at least 1", ""),
    (("running",), TINY["running"] * 2, "running[1]", "listed before", "add the counts"),
    # inline models
    ((*MODEL, "model"), {"layers": 2}, f"{P}.model.hidden", "missing", "width"),
    (
        (*MODEL, "model"),
        {"layers": 2, "hidden": 8, "heads": 5, "kv_heads": 2, "head_dim": 2, "vocab": 9, "intermediate": 3},
        f"{P}.model",
        "multiple of kv_heads",
        "",
    ),
    # not data
    (("description",), object(), "description", "no plain data", ""),
    (("models", 5), {}, "models", "the key 5 must be text", "quotes"),
]


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    data = copy.deepcopy(TINY)
    spot: Any = data
    for part in path[:-1]:
        spot = spot[part]
    if value is DELETE:
        del spot[path[-1]]
    else:
        spot[path[-1]] = value
    return data


def refused(data: Any) -> ScenarioError:
    with pytest.raises(ScenarioError) as caught:
        scenario_from_mapping(data, source="test")
    return caught.value


def test_the_base_is_right() -> None:
    """The table below changes one thing each: the base must have no mistake of its own."""
    assert isinstance(scenario_from_mapping(TINY), ResolvedScenario)


@pytest.mark.parametrize(("path", "value", "place", "problem", "hint"), WRONG)
def test_mistake_is_told(path: tuple[Any, ...], value: Any, place: str, problem: str, hint: str) -> None:
    """Each wrong value is named at its own place, with what to do."""
    error = refused(changed(path, value))
    found = [m for m in error.mistakes if m.place == place and problem in m.problem and hint in m.hint]
    assert found, str(error)
    assert f"{place}: " in str(error)


def test_a_mistyped_key_is_one_mistake() -> None:
    """Telling that the right key is missing as well would double the noise."""
    data = changed((*MODEL, "slo"), {"prefil_ms": 1200, "decode_ms": 60})
    (mistake,) = refused(data).mistakes
    assert mistake.place == "models.phi4-14b.slo.prefil_ms"


def test_all_mistakes_at_once() -> None:
    """Shape and names are checked together, also inside entries that are wrong already, and positions stay true."""
    data = copy.deepcopy(TINY)
    data["models"]["phi4-15b"] = {"slo": {"prefill_ms": "x", "decode_ms": 5}, "demand": {"requests_s": 1}}
    data["pool"]["regions"]["us-east-2"]["configurations"] |= {"1xL9": -1, "7xL4": 1}
    data["pool"]["regions"]["us-west-9"] = {"available": 1, "configurations": [5, "1xL4", "1xL7"]}
    data["running"] = [
        {"model": "phi4-14b"},
        TINY["running"][0] | {"region": "nowhere"},
        3,
        copy.deepcopy(TINY["running"][0]),
    ]
    data["running"][3] |= {"phase": "mixed"}
    data["solver"] = {"options": {"x": float("inf")}, "nam": "x"}
    places = {mistake.place for mistake in refused(data).mistakes}
    assert places == {
        "models.phi4-15b",
        "models.phi4-15b.slo.prefill_ms",
        "models.phi4-15b.demand",
        "pool.regions.us-east-2.configurations.1xL9",
        "pool.regions.us-east-2.configurations.7xL4",
        "pool.regions.us-west-9",
        "pool.regions.us-west-9.configurations[0]",
        "pool.regions.us-west-9.configurations[2]",
        "running[0].phase",
        "running[0].region",
        "running[0].nodes",
        "running[1].region",
        "running[2]",
        "running[3].phase",
        "solver.options.x",
        "solver.nam",
    }


GOOD = yaml.safe_dump(TINY, sort_keys=False)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", 0, "empty"),
        ("   \n# nothing\n", 0, "empty"),
        ("models: [1, 2\npool: 3\n", 2, "invalid YAML syntax in line 2, column"),
        ("models:\n\tx: 1\n", 2, "invalid YAML syntax in line 2, column 1"),
        ("a: 1\n---\nb: 2\n", 2, "invalid YAML syntax"),
        ("name: a\x07b\n", 1, "invalid YAML syntax in line 1, column 8"),
        (GOOD + "pool: {}\n", GOOD.count("\n") + 1, "appears twice, first in line"),
        ("- 1\n- 2\n", 1, "must be a mapping"),
        ("just text", 1, "must be a mapping"),
        ("name: !!python/object/apply:os.getcwd []\n", 1, "tag"),
        ("name: !secret x\n", 1, "tag"),
        ("? [a, b]\n: 1\n", 1, "a key must be text"),
        ("a: *nothing\n", 1, "undefined alias"),
        ("&a [*a]\n", 0, "nested too deeply"),
        ("[" * 5000, 0, "nested too deeply"),
        ("a: [" + "1," * 250_000 + "1]", 0, "more than 50,000 values"),
        ("a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
            f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
        ), 0, "aliases repeat too much"),
        (GOOD.replace("decode_ms: 60", "decode_ms: 60ms"), 5, "the text '60ms'"),
        (GOOD.replace("decode_ms: 60", "decode: 60"), 5, "unknown key"),
    ],
)  # fmt: skip
def test_file_mistakes_have_lines(text: str, line: int, problem: str, tmp_path: Path) -> None:
    """Files get file:line, as editors link it; and no content of a file can make anything but a ScenarioError."""
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(file)
    found = [str(mistake) for mistake in caught.value.mistakes if problem in mistake.problem]
    assert found, str(caught.value)
    assert not line or any(item.startswith(f"{file}:{line}: ") for item in found), found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"models": {}, "models": {}}', "appears twice"),
        ('{"models": {},}', "invalid JSON syntax in line 1"),
        ('{"name": "\\ud800"}', "unicode"),
        ('{"initialization_penalty": NaN}', "not nan"),
        ('{"initialization_penalty": 1e999}', "not inf"),
        ('{"initialization_penalty": ' + "9" * 5000 + "}", "too many digits"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_json_mistakes(text: str, problem: str, tmp_path: Path) -> None:
    """JSON files have their own traps: duplicates are dropped silently, NaN is read, digits are unlimited."""
    file = tmp_path / "mine.json"
    file.write_text(text)
    with pytest.raises(ScenarioError, match=problem):
        load_scenario(file)


def test_more_values_than_any_scenario_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Just as many are read, YAML and JSON alike; JSON of more commas is refused before it is parsed."""
    monkeypatch.setattr("coralopt.scenario.read._MOST_VALUES", 10)
    for is_json in (False, True):
        assert parse_text(json.dumps([1] * 9), "x", is_json=is_json)[0] == [1] * 9
        with pytest.raises(ScenarioError, match="holds more than 10 values"):
            parse_text(json.dumps([1] * 10), "x", is_json=is_json)
    with pytest.raises(ScenarioError, match="holds more than 10 values"):
        parse_text("," * 11, "x", is_json=True)
    with pytest.raises(ScenarioError, match="invalid JSON syntax"):
        parse_text("," * 10, "x", is_json=True)


def test_unreadable_files(tmp_path: Path) -> None:
    """A missing file names the built-ins; folders and binary files are told, not raised through."""
    with pytest.raises(ScenarioError, match="did you mean 'tiny'"):
        load_scenario("tinny")
    with pytest.raises(ScenarioError, match="cannot be read"):
        load_scenario(tmp_path)
    with pytest.raises(ScenarioError, match="no such file"):
        load_scenario("a\0b")
    (tmp_path / "x.yaml").write_bytes(b"name: \xff\xfe")
    with pytest.raises(ScenarioError, match="not UTF-8 text: byte 6 is 0xff"):
        load_scenario(tmp_path / "x.yaml")


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["1xL4", "9xL4", "all", "1.5s", "phi4-14b", "us-east-2", 10**400, -0.0, b"x", (), "\ud800"]),
    st.just(None).map(lambda _: copy.deepcopy(TINY["models"])),
    st.lists(st.one_of(st.integers(-2, 5), st.sampled_from(["1xL4", "1xL9"])), max_size=3),
    st.dictionaries(st.sampled_from(["1xL4", "available", "layers", "slo", "model"]), st.integers(-1, 5), max_size=3),
)
KEYS = st.one_of(
    st.sampled_from(
        ["models", "model", "slo", "available", "configurations", "1xL4", "dataset", "decode_tokens_s", ""]
    ),
    st.text(max_size=6),
    st.integers(0, 3),
)


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    data = copy.deepcopy(TINY)
    for _ in range(draw(st.integers(1, 4))):
        spot: Any = data
        for _ in range(draw(st.integers(0, 4))):
            children = list(spot.values()) if isinstance(spot, dict) else spot
            deeper = [child for child in children if isinstance(child, dict | list) and child]
            if not deeper:
                break
            spot = draw(st.sampled_from(deeper))
        here = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
        action = draw(st.sampled_from(["replace", "delete", "add"]))
        if action == "add" or not here:
            if isinstance(spot, dict):
                spot[draw(KEYS)] = draw(ODD)
            else:
                spot.append(draw(ODD))
        elif action == "delete":
            del spot[draw(st.sampled_from(here))]
        else:
            spot[draw(st.sampled_from(here))] = draw(ODD)
    return data


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutated())
def test_no_mutation_raises_anything_else(data: dict[str, Any]) -> None:
    """Any damage gives a ScenarioError with placed mistakes, or a scenario that survives the round trip."""
    outcome = attempt(data)
    if isinstance(outcome, ScenarioError):
        assert outcome.mistakes
        assert all(mistake.place and mistake.problem for mistake in outcome.mistakes)
        assert len(set(map(str, outcome.mistakes))) == len(outcome.mistakes)
        assert str(outcome)
    else:
        again = scenario_from_mapping(json.loads(json.dumps(dict(outcome.document), allow_nan=False)))
        assert again.digest == outcome.digest


def attempt(data: Any) -> ScenarioError | ResolvedScenario:
    try:
        return scenario_from_mapping(data)
    except ScenarioError as error:
        return error


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_damaged_file_raises_anything_else(data: st.DataObject) -> None:
    """Characters cut out of or pasted into a file give a ScenarioError or a scenario."""
    start = data.draw(st.integers(0, len(GOOD)))
    stop = data.draw(st.integers(start, min(len(GOOD), start + 20)))
    text = GOOD[:start] + data.draw(st.text(alphabet="ab1 :-{}[]&*!%@'\"\n\t#,<?|>\x00é", max_size=6)) + GOOD[stop:]
    try:
        content, _ = parse_text(text, "x.yaml")
    except ScenarioError as error:
        content = error.mistakes
    assert attempt(content)
