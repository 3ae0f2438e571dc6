"""The Ray executor on a real local cluster, started by the test; skipped visibly where Ray is not installed."""

from __future__ import annotations

import pytest

from coralopt import load_scenario
from coralopt.errors import CoraloptError, OptionError
from coralopt.templates import BuildMethod, build_library, content_digest
from coralopt.templates.executors import RayCluster

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'coralopt[ray]')")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """A cluster of two CPUs on this machine only."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    yield
    ray.shutdown()


@pytest.mark.slow
def test_same_library_as_on_one_machine() -> None:
    """The same tasks with the same results, bit for bit, for the sweep; node set by node set for another solver."""
    scenario = load_scenario("tiny")
    assert content_digest(build_library(scenario, executor="ray")) == content_digest(build_library(scenario))
    method = BuildMethod("highs", sample=4, seed=1)
    there, here = (build_library(scenario, method=method, executor=name, workers=2) for name in ("ray", "local"))
    assert content_digest(there) == content_digest(here)


@pytest.mark.slow
def test_errors_of_a_task_come_home() -> None:
    """A task's own error is raised as it is, with its words."""

    def fails(_: object, task: int) -> int:
        if task == 2:
            raise OptionError("task 2 does not like this")
        return task

    with pytest.raises(CoraloptError, match="does not like this"):
        list(RayCluster().run(fails, None, [0, 1, 2]))
