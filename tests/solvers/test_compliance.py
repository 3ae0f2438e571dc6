"""Every back end of this repository passes the suite that third parties are asked to pass."""

from __future__ import annotations

from coralopt.testing import compliance

test_highs = compliance.tests("highs")
test_scip = compliance.tests("scip")
test_gurobi = compliance.tests("gurobi")
test_pyomo_highs = compliance.tests("pyomo:highs")
test_pyomo_old_interface = compliance.tests("pyomo:appsi_highs")
test_pyomo_scip = compliance.tests("pyomo:scip_direct")
test_pyomo_gurobi = compliance.tests("pyomo:gurobi_direct")
