"""A scenario is a value: what its `with_` methods give is what its document says when read again."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coralopt.catalog.types import RegionLink
from coralopt.errors import ScenarioError
from coralopt.scenario import ResolvedScenario, RunningInstances, load_scenario, scenario_from_mapping
from coralopt.scenario.facts.facts import KvTransfer

#: Every form that supply may have, a region and nodes of one's own, prices by class, limits and rules.
BASE: dict[str, Any] = {
    "models": {
        "gpt-oss-20b": {
            "slo": {"prefill_ms": 900, "decode_ms": 30},
            "demand": {"requests_s": 4, "dataset": "azure-code"},
            "min_replicas": 1,
            "forbidden": ["L4"],
        },
        "mine": {
            "model": "phi4-14b",
            "slo": {"prefill_ms": 1200, "decode_ms": 60},
            "demand": {"prefill_tokens_s": 400, "decode_tokens_s": 90, "input_tokens": 1000, "output_tokens": 200},
            "survive_region_loss": 0.2,
        },
    },
    "pool": {
        "regions": {
            "us-east-2": {"configurations": ["1xL4", "1xL40S"], "available": 4, "limits": {"max_nodes": 9}},
            "ap-northeast-2": {
                "configurations": {
                    "1xL4": {"available": 6, "reserved": 3},
                    "1xL40S": {"available": 2, "spot": {"available": 2, "price_usd_h": 0.9, "preemption_usd_h": 0.05}},
                }
            },
            "cellar": {
                "configurations": {
                    "2xOwn": {
                        "available": 3,
                        "price_usd_h": 1.25,
                        "commitment": {"nodes": 2, "price_usd_h": 0.5, "term_h": 365},
                    }
                }
            },
        }
    },
    "gpus": {"Own": {"memory_gib": 40, "bandwidth_gb_s": 900, "bf16_tflops": 200, "link_gb_s": 50}},
    "nodes": {"2xOwn": {"gpu": "Own", "count": 2, "network_gb_s": 12.5}},
    "throughput": {"source": "roofline"},
    "horizon_h": 400,
}
BUILTIN = load_scenario("tiny")
OWN = scenario_from_mapping(BASE)


def test_every_class_of_supply_is_known() -> None:
    """Of commitments two terms of 365 h are paid for 400 h; spot nodes cost what preemptions do as well."""
    classes = {(item.name, item.region, item.configuration, item.nodes) for item in OWN.operations.classes}
    assert classes == {
        ("reserved", "ap-northeast-2", "1xL4", 3),
        ("spot", "ap-northeast-2", "1xL40S", 2),
        ("committed", "cellar", "2xOwn", 2),
    }
    prices = [item.usd_h for item in OWN.operations.classes]
    assert prices == pytest.approx([0.0, 0.9 + 0.05, 0.5 * 2 * 365 / 400])


def same(value: ResolvedScenario) -> None:
    """The value is what a reader of its document gets, but for configurations that are gone."""
    again = scenario_from_mapping(json.loads(json.dumps(dict(value.document))), source="again")
    assert json.dumps(again.document) == json.dumps(value.document)
    assert again.digest == value.digest
    assert again.model_phases == value.model_phases
    assert again.running == value.running
    assert again.operations == value.operations
    offered = value.availability.any(axis=0)
    assert again.configurations == tuple(c for c, some in zip(value.configurations, offered, strict=True) if some)
    np.testing.assert_array_equal(again.availability, value.availability[:, offered])
    np.testing.assert_array_equal(again.price_usd_h, value.price_usd_h[:, offered])


@given(st.sampled_from([BUILTIN, OWN]), st.integers(0, 2**32 - 1), st.booleans())
def test_what_changes_is_what_the_document_says(base: ResolvedScenario, seed: int, again: bool) -> None:
    """Demand, supply, running instances, headroom, limits, rules, penalty and name, alone and one upon another."""
    rng = np.random.default_rng(seed)
    value = base.named(f"{base.name}-epoch-{seed % 7}").with_penalty(float(rng.uniform(0, 2)))
    for _ in range(1 + again):
        rates = rng.uniform(0, 500, len(base.model_phases))
        value = value.with_demand(rates)
        assert [phase.demand_tokens_s for phase in value.model_phases] == rates.tolist()
        same(value)
        known = np.isfinite(base.price_usd_h)
        count = np.where(known, rng.integers(0, 4, known.shape), 0)
        count[0, int(np.flatnonzero(known[0])[0])] += 1
        price = np.where(known, base.price_usd_h * rng.uniform(0.5, 1.5, known.shape), np.nan)
        supplied = base.with_demand(rates).with_supply(count, price)
        np.testing.assert_array_equal(supplied.availability, count)
        np.testing.assert_array_equal(supplied.price_usd_h[known], price[known])
        assert supplied.configurations == base.configurations
        same(supplied)
        gone = base.configurations[int(rng.integers(len(base.configurations)))].name
        running = [
            RunningInstances(base.model_phases[0].key, base.regions[0], {gone: 1}, 2),
            RunningInstances(base.model_phases[1].key, base.regions[0], {base.configurations[0].name: 2}, 1),
        ]
        offered = {c.name for c, n in zip(base.configurations, count.sum(axis=0).tolist(), strict=True) if n}
        ran = supplied.with_running(running)
        assert {node for entry in ran.running for node in entry.nodes} <= offered
        same(ran)
        same(value.with_headroom({base.model_phases[0].key: (0.3, 0.1), base.model_phases[1].key: (0.0, 0.0)}))
        same(value.with_limits(budget_usd_h=30, min_replicas=int(rng.integers(3)), unmet_usd_mtok=2.0))
        same(ran.with_limits(budget_usd_h=30))
        same(value.with_rules({"engine": "vllm", "network": None, "budget_units": None}))
        value = supplied


def test_an_untouched_scenario_keeps_its_own_words() -> None:
    """Limits that say nothing new give the same value; the document of the user stays the base."""
    assert OWN.with_limits() is OWN
    assert OWN.with_limits(min_replicas=None, forbidden={}) is OWN
    assert OWN.document["pool"]["regions"]["us-east-2"]["configurations"] == ["1xL4", "1xL40S"]
    budget = OWN.with_limits(budget_usd_h=7.5)
    assert budget.with_limits(budget_usd_h=7.5) is budget
    assert budget.document["pool"] == OWN.document["pool"]


@pytest.mark.parametrize(
    ("change", "path", "value"),
    [
        (lambda s: s.with_limits(budget_usd_h=-1.0), ("limits", "max_usd_h"), -1.0),
        (lambda s: s.with_limits(min_replicas=-1), ("models", "mine", "min_replicas"), -1),
        (lambda s: s.with_limits(survive_region_loss=1.5), ("models", "mine", "survive_region_loss"), 1.5),
        (lambda s: s.with_limits(survive_instance_loss=-0.5), ("models", "mine", "survive_instance_loss"), -0.5),
        (lambda s: s.with_transition("never"), ("transition",), "never"),
        (lambda s: s.with_limits(forbidden={"mine": ["L41"]}), ("models", "mine", "forbidden"), ["L41"]),
        (lambda s: s.with_penalty(-1.0), ("initialization_penalty",), -1.0),
        (lambda s: s.named("no name"), ("name",), "no name"),
        (lambda s: s.with_rules({"engine": "vlm"}), ("placement", "engine"), "vlm"),
        (lambda s: s.with_headroom({"mine/mixed": (1.0, 0.0)}), ("headroom",), {"mine/mixed": {"throughput": 1.0}}),
    ],
)
def test_what_a_file_may_not_say_is_refused_in_the_same_words(change: Any, path: tuple[str, ...], value: Any) -> None:
    """As if it stood in the file."""
    data = copy.deepcopy(BASE)
    place = data
    for key in path[:-1]:
        place = place.setdefault(key, {})
    place[path[-1]] = value
    with pytest.raises(ScenarioError) as read:
        scenario_from_mapping(data)
    with pytest.raises(ScenarioError) as changed:
        change(OWN)
    mine = {str(mistake) for mistake in changed.value.mistakes}
    assert {str(mistake) for mistake in read.value.mistakes} <= mine
    assert all("".join(path[-1:]) in line or path[0] in line for line in mine)


def test_supply_and_demand_out_of_range() -> None:
    """Figures that no file may hold, and a pool without nodes."""
    with pytest.raises(ScenarioError, match=r"demand.prefill_tokens_s: must be at least 0"):
        OWN.with_demand(np.array([-1.0, 1.0, 1.0, 1.0]))
    with pytest.raises(ScenarioError, match="there is no node to rent"):
        OWN.with_supply(np.zeros_like(OWN.availability), OWN.price_usd_h)
    with pytest.raises(ScenarioError, match=r"price_usd_h: must be at most 1,000,000"):
        OWN.with_supply(OWN.availability, OWN.price_usd_h * 1e9)


def test_demand_of_a_class_is_its_rate_of_requests() -> None:
    """Tokens/s become requests/s again, by the class's own lengths, and no class gets those of another."""
    classes = {
        "short": {"requests_s": 12.0, "input_tokens": 300, "output_tokens": 80, "most_input": 1024},
        "long": {"requests_s": 4.0, "input_tokens": 4000, "output_tokens": 150},
    }
    pool = {"regions": {"us-east-2": {"configurations": {"1xL40S": 8}}}}
    models = {
        "phi4-14b": {"slo": {"ttft_ms": 1000, "tpot_ms": 60, "attainment": "mean"}, "demand": {"classes": classes}}
    }
    for mode in ("mixed", "disaggregated"):
        value = scenario_from_mapping({"mode": mode, "models": models, "pool": pool})
        demand = np.array([phase.demand_tokens_s for phase in value.model_phases])
        changed = value.with_demand(
            np.where([p.request_class.name == "long" for p in value.model_phases], 3, 0.5) * demand
        )
        stated = changed.document["models"]["phi4-14b"]["demand"]["classes"]
        assert {name: stated[name]["requests_s"] for name in stated} == pytest.approx({"short": 6.0, "long": 12.0})


def test_caches_stay_for_nothing_and_leave_where_there_is_a_link() -> None:
    """Within a region no link is needed; links have a direction."""
    transfer = KvTransfer("priced", (RegionLink("here", "there", 0.02),))
    assert transfer.link("here", "here") == RegionLink("here", "here", 0.0)
    assert transfer.link("here", "there") is transfer.links[0]
    assert transfer.link("there", "here") is None
