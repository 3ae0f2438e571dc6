"""Every back end of this repository passes the suite that third parties are asked to pass."""

from __future__ import annotations

import subprocess
import sys

import pytest

from coralopt.solving import get_backend
from coralopt.testing import compliance

test_highs = compliance.tests("highs")
test_highs_ipx = compliance.tests("highs:ipx")
test_highs_hipo = compliance.tests("highs:hipo")
test_scip = compliance.tests("scip")
test_gurobi = compliance.tests("gurobi")
test_pyomo_highs = compliance.tests("pyomo:highs")
test_pyomo_old_interface = pytest.mark.slow(compliance.tests("pyomo:appsi_highs"))
test_pyomo_scip = pytest.mark.slow(compliance.tests("pyomo:scip_direct"))
test_pyomo_gurobi = pytest.mark.slow(compliance.tests("pyomo:gurobi_direct"))
test_cplex = compliance.tests("cplex")
test_copt = compliance.tests("copt")
test_xpress = compliance.tests("xpress")
test_scipy = compliance.tests("scipy")
test_cbc = pytest.mark.slow(compliance.tests("pyomo:cbc"))
test_glpk = pytest.mark.slow(compliance.tests("pyomo:glpk"))

#: One case of each kind for every other solver behind Pyomo, whose one plugin is fully tested with HiGHS.
SAMPLE = (
    *("linear_maximum", "mixed_columns", "objective_constant", "unbounded_linear", "infeasible_integer", "empty_model"),
    *(
        "negative_bounds",
        "range_and_equality_rows",
        "random_programmes_equal_enumeration",
        "presolve_keeps_the_problem",
    ),
    *(
        "time_limit_keeps_the_incumbent",
        "node_limit_is_no_error",
        "options_do_not_leak",
        "unknown_native_option_raises",
    ),
    *("complete_start_is_accepted", "progress_is_monotone", "duals_prove_the_optimum", "interrupt_keeps_the_incumbent"),
    *("silent_by_default", "log_on_demand", "special_ordered_sets", "export_and_reread_same_optimum"),
)
#: What CBC and GLPK, which are programs, get wrong by themselves or take for themselves.
OWN_MISTAKES = (
    *("rows_of_millionths", "preprocessing_keeps_the_optimum", "better_by_millionths", "infeasible_all_through"),
    *("columns_that_a_binary_switches_off", "costs_a_billion_apart", "no_time_at_all", "isolated_solve_agrees"),
    *("works_in_another_thread", "native_options_win", "models_do_not_leak", "presolve_off_same_optimum"),
)
SAMPLES = dict.fromkeys(("appsi_highs", "scip_direct", "gurobi_direct"), SAMPLE)
SAMPLES |= dict.fromkeys(("cbc", "glpk"), (*SAMPLE, *OWN_MISTAKES))


@pytest.mark.parametrize("interface", SAMPLES)
def test_other_interfaces_of_pyomo(interface: str) -> None:
    if not get_backend(f"pyomo:{interface}").probe().installed:
        pytest.skip(get_backend(f"pyomo:{interface}").probe().hint)
    outcomes = compliance.run(f"pyomo:{interface}", only=SAMPLES[interface])
    assert len(outcomes) == len(SAMPLES[interface])
    assert [outcome for outcome in outcomes if outcome.status == "failed"] == []


@pytest.mark.parametrize("solver", ["cp-sat", "glop", "pdlp"])
def test_ortools(solver: str) -> None:
    """In a process of its own, where OR-tools' library of HiGHS does not meet highspy's."""
    if not get_backend(solver).probe().installed:
        pytest.skip(get_backend(solver).probe().hint)
    command = [sys.executable, "-m", "coralopt.testing.compliance", solver]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout
