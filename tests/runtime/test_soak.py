"""The soak of docs/runtime-tests.md for two minutes, at a rate that leaves the processor to the other tests."""

from __future__ import annotations

import pytest
from soak import soak


@pytest.mark.soak
def test_two_minutes() -> None:
    """Kills as often as in the ten minutes of the command, and new plans: nothing is lost, doubled, cut or left over."""
    report = soak(120, rate=8, kill_s=20, plan_s=45)
    assert report["failed"] == [], report
