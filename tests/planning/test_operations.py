"""What operators ask for, from the scenario's words to a verified plan, alone and through epochs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coralopt.errors import InfeasibleError, OptionError, ScenarioError, WorkloadError
from coralopt.plan import Plan
from coralopt.plan.verify import verify_plan
from coralopt.planning import (
    PlanRequest,
    RollingSettings,
    adapt,
    demand_of_trace,
    epoch_inputs,
    plan_scenario,
    prove_bound,
    read_demand_or_trace,
)
from coralopt.scenario import ResolvedScenario, load_scenario, scenario_from_mapping
from coralopt.workload import EpochAvailability, Trace

BASE: dict[str, Any] = {
    "models": {
        "gpt-oss-20b": {
            "slo": {"ttft_ms": 900, "tpot_ms": 30, "attainment": "mean"},
            "demand": {"requests_s": 4, "dataset": "azure-code"},
        },
        "phi4-14b": {
            "slo": {"ttft_ms": 1200, "tpot_ms": 60, "attainment": "mean"},
            "demand": {"requests_s": 4, "dataset": "azure-conv"},
        },
    },
    "pool": {
        "regions": {
            "us-east-2": {"configurations": {"1xL4": 6, "1xL40S": 4}},
            "ap-northeast-2": {"configurations": {"1xL4": 4, "1xL40S": 4}},
        }
    },
    "pruning": {"max_nodes": 2, "memory_ratio": 12},
    "serving": {"preset": "paper"},
}


def scenario(change: Callable[[dict[str, Any]], None] | None = None) -> ResolvedScenario:
    """The base scenario, changed in place."""
    data = copy.deepcopy(BASE)
    if change is not None:
        change(data)
    return scenario_from_mapping(data)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One library file: nothing here changes templates."""
    return tmp_path_factory.mktemp("library") / "small.parquet"


def everything(data: dict[str, Any]) -> None:
    """Every option at once, all of them to be met."""
    data["limits"] = {"max_usd_h": 30, "max_nodes": 30, "max_gpus": {"L4": 20, "L40S": 20}}
    data["models"]["gpt-oss-20b"] |= {"min_replicas": 2, "survive_region_loss": 0.5}
    data["models"]["phi4-14b"] |= {"forbidden": ["L4"], "limits": {"max_nodes": 8, "max_usd_h": 20}}
    data["models"]["phi4-14b"]["survive_instance_loss"] = 0.5
    data["transition"] = "start-first"
    data["running"] = [{"model": "phi4-14b", "phase": "decode", "region": "us-east-2", "nodes": {"1xL40S": 1}}]
    pool = data["pool"]["regions"]
    pool["us-east-2"]["limits"] = {"max_nodes": 12, "max_usd_h": 20, "max_gpus": {"L4": 12}}
    pool["us-east-2"]["configurations"] = {
        "1xL4": {"available": 6, "reserved": 3},
        "1xL40S": {"available": 2, "spot": {"available": 2, "price_usd_h": 0.9, "preemption_usd_h": 0.05}},
    }


def test_commitments_are_chosen_where_their_terms_pay(library: Path) -> None:
    """As many nodes as is best, against committing to every number of them by hand; whole terms are paid."""
    price, term = 0.5, 730.0

    def committed(nodes: int, horizon_h: float, most: float = price) -> Plan:
        def change(data: dict[str, Any]) -> None:
            data["horizon_h"] = horizon_h
            offer = {"nodes": nodes, "price_usd_h": most, "term_h": term}
            data["pool"]["regions"]["us-east-2"]["configurations"]["1xL4"] = {"available": 6, "commitment": offer}

        return plan_scenario(scenario(change), library=library, options={"rel_gap": 0.0})

    def by_hand(nodes: int, usd_h: float) -> float:
        def change(data: dict[str, Any]) -> None:
            data["pool"]["regions"]["us-east-2"]["configurations"]["1xL4"] = {"available": 6, "reserved": nodes}

        return plan_scenario(scenario(change), library=library, options={"rel_gap": 0.0}).cost_usd_h + nodes * usd_h

    for horizon_h, terms in ((730.0, 1), (1000.0, 2)):
        plan, usd_h = committed(3, horizon_h), price * terms * term / horizon_h
        assert plan.cost_usd_h == pytest.approx(min(by_hand(k, usd_h) for k in range(4)))
        assert verify_plan(plan).ok
        assert prove_bound(plan) == ()
        (own,) = [item for item in plan.node_classes if item.node_class == "committed"]
        assert own.usd_h == pytest.approx(usd_h)
        assert plan.resolved.with_demand(
            np.array([p.demand_tokens_s for p in plan.resolved.model_phases])
        ).operations == (plan.resolved.operations)
        supply = plan.resolved.with_supply(plan.resolved.availability, plan.resolved.price_usd_h)
        assert supply.operations == plan.resolved.operations
    # A tenth of a term: dearer than on demand.
    assert committed(3, 73.0).node_classes == ()
    with pytest.raises(ScenarioError, match=r"1xL4\.commitment: 7 nodes to commit to and 0 reserved ones, but 6"):
        committed(7, 730.0)


def test_a_commitment_needs_a_horizon() -> None:
    """What a term costs an hour depends on it."""

    def change(data: dict[str, Any]) -> None:
        offer = {"nodes": 1, "price_usd_h": 0.5, "term_h": 730}
        data["pool"]["regions"]["us-east-2"]["configurations"]["1xL4"] = {"available": 6, "commitment": offer}

    with pytest.raises(ScenarioError, match="give horizon_h at the top of the scenario"):
        scenario(change)


def test_terms_that_cannot_be_counted_are_refused() -> None:
    """A term of next to no time overflowed."""

    def change(data: dict[str, Any]) -> None:
        data["horizon_h"] = 730
        offer = {"nodes": 1, "price_usd_h": 0.5, "term_h": 1e-308}
        data["pool"]["regions"]["us-east-2"]["configurations"]["1xL4"] = {"available": 6, "commitment": offer}

    with pytest.raises(ScenarioError, match=r"commitment\.term_h: 1e-308 h is no length of a term"):
        scenario(change)


@pytest.fixture(scope="module")
def full(library: Path) -> Plan:
    """A plan with everything."""
    return plan_scenario(scenario(everything), library=library)


def test_every_option_holds_and_is_stated(full: Plan) -> None:
    """The plan says where each option stands, and a check that knows no side rows agrees."""
    assert verify_plan(full).violations == ()
    assert list(prove_bound(full)) == []
    stated = {option.option: option for option in full.options}
    assert len(stated) == 19
    assert stated["transition (1xL40S in us-east-2)"].asked == 3
    assert stated["limits.max_gpus.L4"].unit == "GPUs"
    assert stated["models.gpt-oss-20b.min_replicas (decode)"].planned >= 2
    assert all("1xL4" not in item.nodes() for item in full.instances if item.model == "phi4-14b")
    by_class = {(item.configuration, item.node_class): item for item in full.node_classes}
    assert by_class["1xL4", "reserved"].usd_h == 0
    assert by_class["1xL40S", "spot"].usd_h == pytest.approx(0.95)
    assert full.provisioning_usd_h == pytest.approx(sum(item.nodes * item.usd_h for item in full.node_classes))


@pytest.mark.parametrize(
    ("place", "value", "name"),
    [
        (("limits", "max_usd_h"), 1.0, "limits.max_usd_h"),
        (("limits", "max_nodes"), 3, "limits.max_nodes"),
        (("limits", "max_gpus"), {"L4": 1, "L40S": 1}, "limits.max_gpus.L40S"),
        (
            ("pool", "regions", "us-east-2", "limits", "max_gpus"),
            {"L4": 0},
            "pool.regions.us-east-2.limits.max_gpus.L4",
        ),
        (("pool", "regions", "us-east-2", "limits", "max_nodes"), 1, "pool.regions.us-east-2.limits.max_nodes"),
        (("pool", "regions", "us-east-2", "limits", "max_usd_h"), 0.5, "pool.regions.us-east-2.limits.max_usd_h"),
        (("models", "phi4-14b", "limits", "max_nodes"), 1, "models.phi4-14b.limits.max_nodes"),
        (("models", "phi4-14b", "limits", "max_usd_h"), 1.0, "models.phi4-14b.limits.max_usd_h"),
        (("models", "phi4-14b", "forbidden"), ["L40S"], "models.phi4-14b.forbidden"),
        (("models", "gpt-oss-20b", "min_replicas"), 9, "models.gpt-oss-20b.min_replicas (prefill)"),
        (("models", "gpt-oss-20b", "survive_region_loss"), 1.0, "models.gpt-oss-20b.survive_region_loss"),
        (("models", "phi4-14b", "survive_instance_loss"), 1.0, "models.phi4-14b.survive_instance_loss"),
        (("running", 0, "count"), 6, "transition (1xL40S in us-east-2)"),
    ],
)
def test_violated_option_is_named(full: Plan, place: tuple[str, ...], value: Any, name: str) -> None:
    """The same instances under a harder option: the verification says which one they break."""
    document = copy.deepcopy(dict(full.scenario))
    here = document
    for key in place[:-1]:
        here = here[key]
    here[place[-1]] = value
    changed = full.model_copy(
        update={
            "scenario": document,
            "scenario_digest": scenario_from_mapping(document).digest,
            "options": full.options,
        }
    )
    found = verify_plan(changed).sentences
    assert any(line.startswith(name) and "asked for" in line for line in found), found


def test_quotas_count_gpus_in_nodes_of_any_size() -> None:
    """Clouds grant GPUs, not nodes: two GPUs are one node of two or two of one."""

    def plan(quota: dict[str, int] | None) -> Plan:
        data = dict(load_scenario("tiny").document)
        data["limits"] = {"max_gpus": quota}
        return plan_scenario(scenario_from_mapping(data))

    def gpus(made: Plan, kind: str) -> int:
        count = {c.name: c.count for c in made.resolved.configurations if c.gpu.name == kind}
        return sum(i.count * n * count.get(name, 0) for i in made.instances for name, n in i.nodes().items())

    free = plan(None)
    assert "max_gpus" not in free.to_json()
    used = gpus(free, "L40S")
    tight = plan({"L40S": used - 1, "A10G": 0, "L4": 100})
    assert gpus(tight, "L40S") < used
    assert tight.cost_usd_h > free.cost_usd_h
    assert verify_plan(tight).ok
    assert {option.option: option.unit for option in tight.options} == {
        "limits.max_gpus.L40S": "GPUs",
        "limits.max_gpus.L4": "GPUs",
    }
    assert plan({"L40S": 0}).instances
    with pytest.raises(InfeasibleError, match=r"limits\.max_gpus\.L4"):
        plan({"L4": 1, "L40S": 0})
    with pytest.raises(ScenarioError, match=r"limits.max_gpus.H999: unknown GPU 'H999'"):
        plan({"H999": 3})


def test_wrong_statements_are_found(full: Plan) -> None:
    """Figures about options, classes and unmet demand cannot be bent."""
    first = full.options[0]
    nodes = full.node_classes[0]
    for update, word in (
        ({"options": full.options[1:]}, "missing"),
        ({"options": (first.model_copy(update={"planned": first.planned + 1}), *full.options[1:])}, "stated"),
        ({"node_classes": full.node_classes[1:]}, "cheapest"),
        ({"node_classes": (nodes.model_copy(update={"usd_h": nodes.usd_h + 1}), *full.node_classes[1:])}, "cheapest"),
        ({"unmet_usd_h": 1.0}, "unmet_usd_h"),
        ({"on_infeasible": "scale", "served_factor": 0.5}, "unmet_tokens_s"),
        ({"served_factor": 0.5}, "served_factor"),
    ):
        found = verify_plan(full.model_copy(update=update)).sentences
        assert any(word in line for line in found), (update, found)


def test_scale_explain_and_shortfall(library: Path) -> None:
    """A budget too small: explained by name; the largest share is proven; unmet demand is paid for, model by model."""
    tight = scenario().with_limits(budget_usd_h=5.5)
    with pytest.raises(InfeasibleError, match=r"limits\.max_usd_h"):
        plan_scenario(tight, library=library)
    scaled = plan_scenario(tight, library=library, on_infeasible="scale")
    assert scaled.on_infeasible == "scale"
    assert 0 < scaled.served_factor <= scaled.served_factor_bound < 1
    assert verify_plan(scaled).violations == ()
    assert list(prove_bound(scaled)) == []
    assert list(prove_bound(scaled.model_copy(update={"served_factor_bound": scaled.served_factor / 2})))
    with pytest.raises(OptionError, match="unmet"):
        plan_scenario(tight, library=library, on_infeasible="shortfall")
    priced = tight.with_limits(unmet_usd_mtok=1.0)
    short = plan_scenario(priced, library=library, on_infeasible="shortfall")
    assert short.unmet_usd_h > 0
    assert verify_plan(short).violations == ()
    assert list(prove_bound(short)) == []
    shares = {}
    for item in short.demands:
        shares.setdefault(item.model, set()).add(round(item.unmet_tokens_s / item.demand_tokens_s, 9))
    assert all(len(values) == 1 for values in shares.values()), "phases of a model go unmet together"
    # Beside a bill of 1e9 USD/h the initialization is no difference of large figures.
    dear = plan_scenario(tight.with_limits(unmet_usd_mtok=1e6), library=library, on_infeasible="shortfall")
    assert dear.initialization_usd_h > 0
    assert verify_plan(dear).violations == ()
    # Demand that can be met is met, whatever the prices say.
    rich = scenario().with_limits(unmet_usd_mtok=1e-6)
    assert plan_scenario(rich, library=library, on_infeasible="shortfall").on_infeasible == "met"


def test_nothing_starts_on_nodes_that_still_serve(library: Path) -> None:
    """Most of the large nodes run: with start-first they are not there for another model, whatever stops."""
    runs = {"us-east-2": 3, "ap-northeast-2": 1}

    def busy(transition: str) -> ResolvedScenario:
        def change(data: dict[str, Any]) -> None:
            place = {"model": "gpt-oss-20b", "phase": "decode", "nodes": {"1xL40S": 1}}
            data["running"] = [place | {"region": region, "count": count} for region, count in runs.items()]
            data["transition"] = transition

        return scenario(change)

    def new(plan: Plan, region: str) -> int:
        mine = (item for item in plan.instances if item.region == region)
        return sum((item.count - item.kept) * item.nodes().get("1xL40S", 0) for item in mine)

    free, first = (plan_scenario(busy(rule), library=library) for rule in ("free", "start-first"))
    assert verify_plan(first).violations == ()
    assert any(new(free, region) > 4 - count for region, count in runs.items())
    assert all(new(first, region) <= 4 - count for region, count in runs.items())
    assert first.lower_bound_usd_h > free.cost_usd_h
    assert {item.option: item.asked for item in first.options} == {
        "transition (1xL40S in us-east-2)": 1,
        "transition (1xL40S in ap-northeast-2)": 3,
    }


def test_starting_costs_what_loading_takes(library: Path) -> None:
    """Weights of the fullest node over its load rate, after the boot; as computed by hand, and checked on every plan."""

    def slow(data: dict[str, Any]) -> None:
        data["start"] = {"load_gb_s": 0.5, "boot_s": 90, "interval_s": 1800}

    plan = plan_scenario(scenario(slow), library=library)
    assert verify_plan(plan).violations == ()
    assert list(prove_bound(plan)) == []
    models = {phase.model.name: phase.model for phase in plan.resolved.model_phases}
    usd_h = 0.0
    for item in plan.instances:
        model, last = models[item.model], len(item.stages) - 1
        loads = [stage.layers * model.layer_bytes for stage in item.stages]
        for end in {0, last}:
            loads[end] += model.end_bytes(last + 1)
        usd_h += item.count * item.price_usd_h * (90 + max(loads) / 0.5e9) / 1800
    assert plan.initialization_usd_h == pytest.approx(usd_h)
    document = dict(plan.scenario) | {"start": {"load_gb_s": 0.4, "boot_s": 90, "interval_s": 1800}}
    quicker = {"scenario": document, "scenario_digest": scenario_from_mapping(document).digest}
    assert any("initialization_usd_h" in line for line in verify_plan(plan.model_copy(update=quicker)).sentences)
    with pytest.raises(OptionError, match="leave out --penalty"):
        list(adapt(PlanRequest(scenario(slow)), epoch_inputs(scenario(slow), epochs=1), RollingSettings(0.5)))


def test_demand_cases_are_one_two_stage_programme(library: Path) -> None:
    """The plan's cost is rent plus the mean over the cases of what each leaves unserved, and no fixed share is better."""

    def cases(data: dict[str, Any]) -> None:
        data["kv_transfer"] = "free"
        data["initialization_penalty"] = 0
        data["models"]["phi4-14b"]["unmet"] = {"usd_per_1000_requests": 0.9}
        data["demand_cases"] = {
            "usual": {"probability": 0.6},
            "launch": {"probability": 0.1, "factors": {"phi4-14b": 1.75}},
            "night": {"probability": 0.3, "factor": 0.25},
        }

    plan = plan_scenario(scenario(cases), library=library)
    assert verify_plan(plan).violations == ()
    assert list(prove_bound(plan)) == []
    assert all(item.unmet_share == 0 for item in plan.cases if item.model == "gpt-oss-20b" or item.case == "night")
    lacks = {item.case: item for item in plan.cases if item.model == "phi4-14b"}
    assert lacks["launch"].unmet_share > 0
    assert lacks["launch"].unmet_usd_h == pytest.approx(lacks["launch"].unmet_share * 1.75 * 4 * 3.6 * 0.9)
    expected = sum(item.probability * item.unmet_usd_h for item in plan.cases)
    assert plan.cost_usd_h == pytest.approx(plan.provisioning_usd_h + expected)
    given = {(item.model, item.phase): item.planned_tokens_s / item.demand_tokens_s for item in plan.demands}
    served = min(given["phi4-14b", "prefill"], given["phi4-14b", "decode"])
    assert lacks["launch"].unmet_share == pytest.approx(1 - served / 1.75)
    # Serving any case whole costs no less.
    for factor in (0.25, 1.0, 1.75):

        def fixed(data: dict[str, Any], factor: float = factor) -> None:
            cases(data)
            del data["demand_cases"]
            data["models"]["phi4-14b"]["demand"]["requests_s"] = 4 * factor

        rent = plan_scenario(scenario(fixed), library=library).provisioning_usd_h
        lost = sum(p * max(0.0, f - factor) * 4 * 3.6 * 0.9 for p, f in ((0.6, 1.0), (0.1, 1.75), (0.3, 0.25)))
        assert plan.lower_bound_usd_h <= rent + lost + 1e-6
    less = plan.cases[0].model_copy(update={"unmet_share": 0.5})
    wrong = plan.model_copy(update={"cases": (less, *plan.cases[1:])})
    assert any("not as stated" in line for line in verify_plan(wrong).sentences)
    assert any("is missing" in line for line in verify_plan(plan.model_copy(update={"cases": ()})).sentences)
    twice = plan.model_copy(update={"cases": (*plan.cases, plan.cases[0])})
    assert any("not one of the scenario, or twice" in line for line in verify_plan(twice).sentences)
    with pytest.raises(OptionError, match="leave out --on-infeasible"):
        plan_scenario(scenario(cases), library=library, on_infeasible="shortfall")

    def unpriced(data: dict[str, Any]) -> None:
        cases(data)
        for model in data["models"].values():
            model.pop("unmet", None)
        data["demand_cases"]["launch"]["factor"] = 100

    with pytest.raises(OptionError, match="leave out --on-infeasible"):
        plan_scenario(scenario(unpriced), library=library, on_infeasible="scale")


@pytest.mark.parametrize("priced", [(), ("phi4-14b",), ("phi4-14b", "gpt-oss-20b")])
def test_what_smaller_demands_leave_of_the_whole_is_told_of_what_is_there(
    library: Path, priced: tuple[str, ...]
) -> None:
    """Where every case is below the demand itself, its unmet tokens/s follow from the instances, not from the cases."""

    def cases(data: dict[str, Any]) -> None:
        data["kv_transfer"] = "free"
        for name in priced:
            data["models"][name]["unmet"] = {"usd_per_1000_requests": 0.3}
        data["demand_cases"] = {
            "low": {"probability": 0.6, "factor": 0.3},
            "high": {"probability": 0.4, "factors": {"phi4-14b": 0.15, "gpt-oss-20b": 0.5}},
        }

    plan = plan_scenario(scenario(cases), library=library)
    assert verify_plan(plan).violations == ()
    assert list(prove_bound(plan)) == []
    for item in plan.demands:
        shares = [
            1 - other.planned_tokens_s / other.demand_tokens_s for other in plan.demands if other.model == item.model
        ]
        assert item.unmet_tokens_s == pytest.approx(max(0.0, *shares) * item.demand_tokens_s)


def test_mistakes_have_places() -> None:
    """Options that make no sense are refused where they stand."""

    def broken(data: dict[str, Any]) -> None:
        data["models"]["phi4-14b"] |= {"forbidden": ["L5"]}
        data["pool"]["regions"]["us-east-2"]["configurations"]["1xL4"] = {"available": 2, "reserved": 3}

    with pytest.raises(ScenarioError) as caught:
        scenario(broken)
    places = {mistake.place for mistake in caught.value.mistakes}
    assert "models.phi4-14b.forbidden[0]" in places
    assert "pool.regions.us-east-2.configurations.1xL4.reserved" in places
    with pytest.raises(ScenarioError, match="survive the loss of the only region"):
        load_scenario("tiny").with_limits(survive_region_loss=0.5)
    two = {"a": {"probability": 0.5}, "b": {"probability": 0.4, "factors": {"phi": 2}}}
    with pytest.raises(ScenarioError) as caught:
        scenario(lambda data: data.update(demand_cases=two))
    for words in (
        "demand_cases: the probabilities sum to 0.9",
        "demand_cases.b.factors.phi: unknown",
        "caches go anywhere",
    ):
        assert words in str(caught.value)
    shares = load_scenario("core-slo")
    with pytest.raises(ScenarioError, match=r"survive_instance_loss: is planned for mean requests, not for 0\.99"):
        shares.with_limits(survive_instance_loss=1.0)
    with pytest.raises(ScenarioError, match="transition: is planned for mean requests") as caught:
        shares.with_transition("start-first")
    # Once, though every model asks for a share.
    assert len(caught.value.mistakes) == 1
    with pytest.raises(ScenarioError, match="is no model here"):
        scenario().with_limits(forbidden={"phi": ["L4"]})


def test_what_asks_for_nothing_changes_nothing() -> None:
    """Defaults written out leave digest and document as they are, so old libraries and walks stay good."""

    def defaults(data: dict[str, Any]) -> None:
        data["limits"] = {}
        data["models"]["phi4-14b"] |= {"min_replicas": 0, "survive_region_loss": 0, "survive_instance_loss": 0}
        data["models"]["phi4-14b"]["forbidden"] = []
        data["transition"] = "free"

    assert scenario(defaults).digest == scenario().digest
    assert scenario(defaults).document == scenario().document


def test_walk_keeps_options_and_goes_on(library: Path, tmp_path: Path) -> None:
    """Epochs with every option: each plan verifies; the pool shrinks below the reserved nodes; the walk resumes."""
    asked = scenario(everything)
    names = tuple(c.name for c in asked.configurations)
    plenty = [[6, 2], [4, 4]] if names == ("1xL4", "1xL40S") else [[2, 6], [4, 4]]
    counts = np.array([plenty, plenty, np.where(np.array(plenty) == 6, 2, plenty)])
    inputs = epoch_inputs(asked, availability=EpochAvailability(asked.regions, names, counts))
    request = PlanRequest(asked, library=library, on_infeasible="scale")
    first = list(adapt(request, epoch_inputs(asked, epochs=1)))
    assert verify_plan(first[0].plan).violations == ()
    whole = list(adapt(request, inputs, RollingSettings(output=tmp_path / "walk")))
    for epoch in whole:
        assert verify_plan(epoch.plan).violations == ()
        assert sum(not option.option.startswith("transition") for option in epoch.plan.options) == 18
    again = list(adapt(request, inputs, RollingSettings(output=tmp_path / "again")))
    assert [epoch.plan.to_json() for epoch in again] == [epoch.plan.to_json() for epoch in whole]
    resumed = list(adapt(request, inputs, RollingSettings(output=tmp_path / "again")))
    assert all(epoch.resumed for epoch in resumed)


def test_trace_becomes_demand(tmp_path: Path) -> None:
    """Cut into epochs by hand; models without requests need nothing; holes and a short last epoch are said."""
    asked = scenario()
    trace = Trace(
        np.array([0.0, 10.0, 250.0]),
        np.array([100, 200, 50]),
        np.array([10, 20, 5]),
        np.zeros(3, dtype=np.int64),
        ("",),
    )
    found = demand_of_trace(trace, asked, 100.0, "phi4-14b")
    keys = found.demand.keys
    assert found.demand.tokens_s[0, keys.index("phi4-14b/prefill")] == 3.0
    assert found.demand.tokens_s[2, keys.index("phi4-14b/decode")] == 0.05
    assert found.demand.tokens_s[:, keys.index("gpt-oss-20b/decode")].sum() == 0
    assert len(found.remarks) == 2
    assert "1 of 3 epochs (1)" in found.remarks[0]
    with pytest.raises(WorkloadError, match="--trace-model"):
        demand_of_trace(trace, asked, 100.0)
    with pytest.raises(WorkloadError, match="no model llama"):
        demand_of_trace(trace, asked, 100.0, "llama")
    (tmp_path / "trace.csv").write_text("arrival_s,input_tokens,output_tokens,model\n0,100,10,phi4-14b\n")
    read = read_demand_or_trace(tmp_path / "trace.csv", asked, 100.0)
    assert read.demand.tokens_s[0, keys.index("phi4-14b/prefill")] == 1.0
    (tmp_path / "falls.csv").write_text("arrival_s,input_tokens,output_tokens\n5,1,1\n0,1,1\n")
    with pytest.raises(WorkloadError, match="before the line above"):
        read_demand_or_trace(tmp_path / "falls.csv", asked, 100.0, "phi4-14b")
    rows = "".join(f"0,{key.split('/')[0]},{key.split('/')[1]},7\n" for key in keys)
    (tmp_path / "table.csv").write_text("epoch,model,phase,tokens_s\n" + rows)
    assert read_demand_or_trace(tmp_path / "table.csv", asked, 100.0).demand.tokens_s.tolist() == [[7.0] * len(keys)]
