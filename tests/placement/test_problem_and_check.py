"""The placement problem, throughput of a placement, and the checker that trusts nobody."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.errors import SolverError
from coralopt.placement import Placement, PlacementProblem, Stage, max_flow_throughput, throughput_of
from coralopt.testing.placement_strategies import corrupted, every_placement, placement_problems


def problem(values=None, node_set=(1, 1), stages=None):
    return PlacementProblem(np.ones((2, 3, 2, 5)) if values is None else values, node_set, ("a", "b"), stages)


@settings(max_examples=150, deadline=None)
@given(placement_problems(), st.data())
def test_good_placements_pass_and_broken_ones_do_not(problem, data):
    """The checker is the last gate before an answer leaves: it must tell the two apart, whatever was broken."""
    placements = list(every_placement(problem))
    if not placements:
        return
    placement = data.draw(st.sampled_from(placements))
    check = problem.check(placement)
    assert check.feasible, check.violations
    assert check.objective == throughput_of(problem.values, placement) > 0
    broken = data.draw(corrupted(placement))
    check = problem.check(broken)
    assert not check.feasible
    assert check.violations
    assert check.objective == 0


@settings(max_examples=100, deadline=None)
@given(placement_problems(), st.data())
def test_throughput_is_the_maximum_flow(problem, data):
    """min over stages of a sum is a claim about flow through data-parallel nodes; a flow algorithm must agree."""
    placements = list(every_placement(problem))
    if placements:
        placement = data.draw(st.sampled_from(placements))
        assert max_flow_throughput(problem.values, placement) == throughput_of(problem.values, placement)


def test_a_node_that_cannot_hold_its_layers_is_named():
    """Without this the paper's ILP may park a node where its memory overflows."""
    values = np.ones((2, 3, 2, 5))
    values[1, 2, 1, 3] = 0.0
    placement = Placement((Stage(1, (1, 0)), Stage(3, (0, 1))))
    check = problem(values).check(placement)
    assert check.sentences == ("stage 2 of 2: b cannot hold 3 layers",)
    assert throughput_of(values, placement) == 0.0


def test_a_fixed_stage_count_is_kept():
    """A placement with another stage count was computed for another latency budget."""
    check = problem(stages=2).check(Placement((Stage(4, (1, 1)),)))
    assert check.sentences == ("1 stages instead of 2",)


def test_more_stages_than_the_tables_know_are_refused():
    """There is no stage budget for them, hence no throughput."""
    check = problem(node_set=(3, 0)).check(Placement((Stage(1, (1, 0)), Stage(1, (1, 0)), Stage(2, (1, 0)))))
    assert not check.feasible


def test_roles_of_the_stages_are_used():
    """First and last stage carry embedding and head, so their tables differ."""
    values = np.ones((3, 3, 1, 4))
    values[2, 0], values[2, 1], values[2, 2] = 5.0, 4.0, 3.0
    one = Placement((Stage(1, (1,)), Stage(1, (1,)), Stage(1, (1,))))
    assert throughput_of(values, one) == 3.0
    assert throughput_of(values, Placement((Stage(1, (1,)), Stage(1, (1,)), Stage(1, (2,))))) == 4.0


def test_placement_adds_up():
    """Templates are listed by node set."""
    placement = Placement((Stage(3, (1, 0)), Stage(2, (2, 1))))
    assert placement.node_set == (3, 1)
    assert placement.layers == 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"values": np.ones((2, 2, 2, 5))}, r"it must be \(S, 3, C, L \+ 1\)"),
        ({"values": np.full((2, 3, 2, 5), np.nan)}, r"values\[0, 0, 0, 0\] is nan"),
        ({"values": -np.ones((2, 3, 2, 5))}, "finite and not negative"),
        ({"node_set": (1,)}, "node_set has 1"),
        ({"node_set": (0, 0)}, "at least one positive"),
        ({"node_set": (2, -1)}, "must not be negative"),
        ({"stages": 3}, "values covers 1 to 2 stages"),
        ({"stages": 0}, "stages is 0"),
    ],
)
def test_a_problem_that_makes_no_sense_is_refused(change, words):
    """An error at once, with the value and the place, instead of a wrong placement later."""
    with pytest.raises(SolverError, match=words):
        problem(**change)


def test_stage_counts_leave_every_stage_a_node_and_a_layer():
    """The solvers need not try what cannot be."""
    values = np.ones((5, 3, 1, 4))
    assert PlacementProblem(values, (9,), ("a",)).stage_counts == (1, 2, 3)
    assert PlacementProblem(values, (2,), ("a",)).stage_counts == (1, 2)
    assert PlacementProblem(values, (2,), ("a",), stages=3).stage_counts == ()
