"""A small plan that all tests of whole simulations share."""

from __future__ import annotations

import pytest

from coralopt import Plan, load_scenario, plan_scenario


@pytest.fixture(scope="session")
def tiny_plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The plan of the smallest built-in scenario: one instance for each of four model phases."""
    return plan_scenario(load_scenario("tiny"), library=tmp_path_factory.mktemp("library") / "tiny.parquet")
