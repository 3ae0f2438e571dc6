"""Figures that the verification of plans computes, against sums by hand on the smallest scenarios that have them."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from coralopt.plan import Plan
from coralopt.plan.parts import PlannedFlow, PlannedShare
from coralopt.plan.verify.cases import unmet_usd_h
from coralopt.plan.verify.inspected import Inspected
from coralopt.plan.verify.money import _kept, _penalty
from coralopt.plan.verify.rent import rent
from coralopt.plan.verify.routes import _figures
from coralopt.plan.verify.simulated import simulated
from coralopt.scenario.facts.phases import ModelPhase


def inspected(**parts: Any) -> Inspected:
    return cast("Inspected", SimpleNamespace(**parts))


def of(**parts: Any) -> Any:
    return SimpleNamespace(**parts)


def test_nodes_beyond_the_pool_cost_the_list_price() -> None:
    """Four nodes where there are two, one of them reserved: 0 + 3 + 2 * 3 USD/h."""
    reserved = of(name="reserved", region="here", configuration="n", nodes=1, usd_h=0.0)
    scenario = of(
        regions=("here", "there"),
        configurations=(of(name="n"),),
        availability=np.array([[2], [0]]),
        price_usd_h=np.array([[3.0], [np.nan]]),
        operations=of(classes=(reserved,)),
    )

    def instance(region: str, nodes: int) -> Any:
        return of(region=region, count=1, rents=1, nodes=lambda: {"n": nodes})

    known = [(instance("here", 3), None), (instance("here", 1), None), (instance("there", 2), None)]
    assert rent(scenario, cast("Any", known)) == {"here": Fraction(9), "there": Fraction(0)}


@pytest.mark.parametrize(("layers", "held_gb"), [((2, 6), 11), ((7, 3), 12), ((2, 9, 1), 9), ((4,), 9)])
def test_starting_costs_until_the_fullest_stage_has_loaded(layers: tuple[int, ...], held_gb: int) -> None:
    """Layers of 1 GB, and 5 GB at the first and the last stage; 30 s to boot and 2 GB/s of an hour."""
    start = of(boot_s=30.0, load_gb_s=2.0, interval_s=3600.0)
    model = of(layer_bytes=10**9, end_bytes=lambda count: 5 * 10**9)
    share = _penalty(
        inspected(scenario=of(operations=of(start=start))),
        of(stages=[of(layers=count) for count in layers]),
        of(model=model),
    )
    assert share == (30 + Fraction(held_gb, 2)) / 3600


def test_nothing_on_a_shared_node_was_kept(tiny_plan: Plan) -> None:
    """What runs already has nodes of its own, though one of the same place and nodes is planned on a shared one."""
    item = tiny_plan.instances[0].model_copy(update={"count": 3, "kept": 2})
    share = PlannedShare(group="node", position=0, step_ms=2.0, cycle_ms=8.0, memory_share=0.5)
    running = of(key=item.key, region=item.region, nodes=item.nodes(), count=2)

    def wrong(**change: object) -> list[str]:
        known = [(item.model_copy(update=change), None)]
        return [str(found) for found in _kept(inspected(scenario=of(running=[running]), known=known))]

    assert wrong() == wrong(shared=share, kept=0) == []
    assert wrong(shared=share) == [f"{item.name}: kept is 2, but 0 run already and 3 are planned"]
    assert wrong(kept=3) == [f"{item.name}: kept is 3, but 2 run already and 3 are planned"]


@pytest.mark.parametrize(
    ("phase", "usd_mtok"),
    [("prefill", Fraction(2)), ("decode", Fraction(5)), ("mixed", Fraction(5) + 2 * Fraction(400, 50))],
)
def test_a_missing_token_costs_what_its_requests_do(phase: str, usd_mtok: Fraction) -> None:
    """2 USD a million prompt tokens, 5 of answers; a mixed phase counts answers, each with eight prompt tokens here."""
    models = (("m", of(unmet_usd_mtok=(2.0, 5.0))),)
    own = of(served="m", phase=phase, mean_input_tokens=400.0, mean_output_tokens=50.0)
    assert unmet_usd_h(inspected(scenario=of(operations=of(models=models))), own) == 3600 * usd_mtok / 10**6


def test_only_what_no_cache_holds_is_sent() -> None:
    """Ten requests/s of 100 MB of KV cache, 30 % of which the other end has: 0.7 GB/s, at 0.01 USD/GB 25.2 USD/h."""
    link = of(source="a", target="b", usd_gb=0.01)
    scenario = of(regions=("a", "b"), kv_transfer=of(links=(link,)))
    prefill = of(model=of(kv_bytes=lambda tokens: tokens * 10**6), mean_input_tokens=100, prefix_hit=0.3)

    def wrong(gb_s: float, usd_h: float) -> list[str]:
        flow = PlannedFlow(model="m", prefill_region="a", decode_region="b", requests_s=10.0, gb_s=gb_s, usd_h=usd_h)
        return [str(found) for found in _figures(inspected(scenario=scenario), flow, cast("ModelPhase", prefill))]

    assert wrong(0.7, 25.2) == []
    (sent, paid) = wrong(1.0, 36.0)
    assert "gb_s is 1.0, recomputed 0.7" in sent
    assert "usd_h is 36.0, recomputed 25.2" in paid


@pytest.mark.parametrize(
    ("attainment", "feasible", "said"),
    [(0.75, 0.75, ""), (0.75, 1.0, ""), (0.75, None, ""), (0.75, 0.5, "is above that of its feasible requests")],
)
def test_no_share_is_above_that_of_what_is_feasible(attainment: float, feasible: float | None, said: str) -> None:
    """Who meets the SLO is feasible: of fewer requests it is a larger share."""
    row = of(
        key="m/mixed",
        kind="prefill",
        requests=40,
        attainment=attainment,
        attainment_feasible=feasible,
        causes={"queue": 1 - attainment},
    )
    other = of(**{**vars(row), "kind": "decode"})
    mark = of(kind="poisson", trace=None, phases=(row, other), requests=40, over="all", passed=False, target=0.9)
    phases = (of(key="m/mixed", phase="mixed"),)
    sentences = [str(wrong) for wrong in simulated(mark, inspected(scenario=of(model_phases=phases)))]
    assert sentences == ([f"simulated: attainment of m/mixed {said}"] * 2 if said else [])
