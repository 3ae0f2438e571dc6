"""Handing a plan to the controller of another process."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from coralopt.errors import LaunchError
from coralopt.plan import Plan


def apply_plan(plan: Plan, url: str, api_key: str | None = None) -> dict[str, Any]:
    """Make the servers behind the router at ``url`` follow ``plan``; returns when they do.

    Returns:
        Names of pipelines ``kept``, ``started`` and ``stopped``.

    Raises:
        LaunchError: Nobody answers there, or the controller says why it cannot follow.
    """
    if not url.startswith(("http://", "https://")):
        raise LaunchError(f"--apply {url!r}: must be the URL of a router, for example http://127.0.0.1:8000")
    request = urllib.request.Request(f"{url.rstrip('/')}/router/plan", plan.to_json().encode())
    if api_key:
        request.add_header("Authorization", f"Bearer {api_key}")
    try:
        with urllib.request.urlopen(request) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as error:
        try:
            why = json.load(error)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            why = f"answered {error.code}; is it the router of `coralopt launch --target local`?"
        raise LaunchError(f"{url}: {why}") from error
    except (OSError, ValueError) as error:
        raise LaunchError(f"{url}: no running `coralopt launch` answers there: {error}") from error
