"""What changes from one plan to the next, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from coralopt import Plan
from coralopt.plan import PlanDifference, difference
from coralopt.plan.reasons import reasons


def test_a_difference_starts_stops_and_keeps_by_name(tiny_plan: Plan, tmp_path: Path) -> None:
    """From nothing all is started; more of one, fewer of another and one that is gone each have their row."""
    first = difference(None, tiny_plan)
    assert (first.start, first.stop, first.keep) == (sum(item.count for item in tiny_plan.instances), 0, 0)
    assert first.started_usd_h == pytest.approx(sum(item.price_usd_h * item.count for item in tiny_plan.instances))
    more, fewer, gone, *same = tiny_plan.instances
    before = (more, fewer.model_copy(update={"count": fewer.count + 2}), gone, *same)
    after = (more.model_copy(update={"count": more.count + 3}), fewer, *same)
    one, other = (tiny_plan.model_copy(update={"instances": instances}) for instances in (before, after))
    found = difference(one, other)
    rows = {item.name: (item.before, item.after, item.start, item.stop, item.keep) for item in found.changes}
    assert rows == {
        more.name: (more.count, more.count + 3, 3, 0, more.count),
        fewer.name: (fewer.count + 2, fewer.count, 0, 2, fewer.count),
        gone.name: (gone.count, 0, 0, gone.count, 0),
        **{item.name: (item.count, item.count, 0, 0, item.count) for item in same},
    }
    found.save(tmp_path / "d.json")
    assert PlanDifference.load(tmp_path / "d.json") == found


def test_reasons_are_what_changed_between_the_scenarios(tiny_plan: Plan) -> None:
    assert reasons(None, tiny_plan) == ("It is the first plan.",)
    (nothing,) = reasons(tiny_plan, tiny_plan)
    assert nothing == "Demand, SLOs, supply and prices are those of the plan before."
    scenario = tiny_plan.resolved
    dearer = scenario.with_supply(scenario.availability, scenario.price_usd_h * 2)
    again = tiny_plan.model_copy(update={"scenario": dearer.document})
    (sentence,) = reasons(tiny_plan, again)
    assert all(name in sentence for name in (scenario.configurations[0].name, scenario.regions[0]))
