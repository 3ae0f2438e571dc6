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
test_pyomo_old_interface = compliance.tests("pyomo:appsi_highs")
test_pyomo_scip = compliance.tests("pyomo:scip_direct")
test_pyomo_gurobi = compliance.tests("pyomo:gurobi_direct")
test_cplex = compliance.tests("cplex")
test_copt = compliance.tests("copt")
test_xpress = compliance.tests("xpress")
test_scipy = compliance.tests("scipy")
test_cbc = compliance.tests("pyomo:cbc")
test_glpk = compliance.tests("pyomo:glpk")


@pytest.mark.parametrize("solver", ["cp-sat", "glop", "pdlp"])
def test_ortools(solver: str) -> None:
    """In a process of its own, where OR-tools' library of HiGHS does not meet highspy's."""
    if not get_backend(solver).probe().installed:
        pytest.skip(get_backend(solver).probe().hint)
    command = [sys.executable, "-m", "coralopt.testing.compliance", solver]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout
