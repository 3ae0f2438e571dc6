"""The soak of docs/runtime.md in a short form, and for two minutes with the slow tests."""

from __future__ import annotations

import pytest
from soak import soak


def test_twenty_seconds() -> None:
    """Kills and a new plan under load: no stream is lost, doubled or cut without a word, and nothing is left over."""
    report = soak(20, rate=15, kill_s=5, plan_s=9)
    assert report["failed"] == [], report


@pytest.mark.slow
def test_two_minutes() -> None:
    """The same as often as in the ten minutes of the command."""
    report = soak(120)
    assert report["failed"] == [], report
