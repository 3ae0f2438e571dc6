"""The Poisson generator."""

from __future__ import annotations

import numpy as np
import pytest

from coralopt import load_scenario, scenario_from_mapping
from coralopt.errors import WorkloadError
from coralopt.workload import poisson_for_scenario


def test_requests_have_the_demand_planned_for() -> None:
    """Rate, mean lengths and spread are what was asked for; the seed decides the rest."""
    scenario = load_scenario("core")
    trace = poisson_for_scenario(scenario, duration_s=3000.0, seed=4)
    assert len(trace) / 3000 == pytest.approx(30.0, rel=0.02)
    for phase in scenario.model_phases:
        mine = trace.model == trace.models.index(phase.model.name)
        assert trace.input_tokens[mine].mean() == pytest.approx(phase.mean_input_tokens, rel=0.03)
        assert trace.output_tokens[mine].mean() == pytest.approx(phase.mean_output_tokens, rel=0.03)
        lengths = trace.output_tokens[mine]
        assert lengths.std() / lengths.mean() == pytest.approx(1.0, rel=0.06)
    same, other = (poisson_for_scenario(scenario, duration_s=3000.0, seed=seed) for seed in (4, 5))
    assert same.arrival_s.tobytes() == trace.arrival_s.tobytes()
    assert other.arrival_s.tobytes() != trace.arrival_s.tobytes()
    fixed = poisson_for_scenario(scenario, duration_s=50.0, length_cv=0.0)
    assert len(np.unique(fixed.input_tokens[fixed.model == 0])) == 1


def test_lengths_are_those_of_the_scenario() -> None:
    """Spreads and quantiles of the scenario are drawn, and a cv of one's own takes their place."""
    document = dict(load_scenario("tiny").document)
    demand = {"requests_s": 5, "output_tokens": 100, "output_cv": 0}
    demand |= {"lengths": {"input": {"quantiles": {"0.5": 300, "0.9": 900}}}}
    models = {name: entry | {"demand": demand} for name, entry in document["models"].items()}
    scenario = scenario_from_mapping(document | {"models": models})
    trace = poisson_for_scenario(scenario, duration_s=3000.0, seed=2)
    assert np.unique(trace.output_tokens).tolist() == [100]
    assert np.quantile(trace.input_tokens, [0.5, 0.9]) == pytest.approx([300, 900], rel=0.04)
    own = poisson_for_scenario(scenario, duration_s=3000.0, seed=2, length_cv=1.0)
    assert own.output_tokens.std() / own.output_tokens.mean() == pytest.approx(1.0, rel=0.06)


def test_bad_parameters_are_refused() -> None:
    """The message names the parameter, its value and what to give."""
    for arguments in ({"rate": 0.0}, {"rate": float("nan")}, {"duration_s": -1.0}, {"length_cv": -0.5}, {"seed": -1}):
        with pytest.raises(WorkloadError, match=next(iter(arguments)).removesuffix("_s")):
            poisson_for_scenario(load_scenario("tiny"), **arguments)
