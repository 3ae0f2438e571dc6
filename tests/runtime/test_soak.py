"""The soak of docs/runtime-tests.md for 40 seconds, at a rate that leaves the processor to the other tests."""

from __future__ import annotations

import pytest
from soak import soak


@pytest.mark.soak
@pytest.mark.parametrize(
    ("seconds", "kill_s", "plan_s"), [(40, 10, 15), pytest.param(120, 20, 45, marks=pytest.mark.slow)]
)
def test_nothing_is_lost(seconds: float, kill_s: float, plan_s: float) -> None:
    """Kills at least as often as in the ten minutes of the command, and new plans: nothing is lost, doubled, cut or left."""
    report = soak(seconds, rate=8, kill_s=kill_s, plan_s=plan_s)
    assert report["failed"] == [], report
