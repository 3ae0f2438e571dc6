"""The controller of another process: its plan, its demand, and a new plan for it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from coralopt.errors import LaunchError
from coralopt.plan import Plan

#: Seconds within which questions are answered; applying a plan may take as long as servers take to start.
QUESTION_S = 30.0


@dataclass(frozen=True)
class RemoteController:
    """A running ``coralopt launch``.

    Attributes:
        url: Base URL of its router.
        api_key: Its key, if it asks for one.

    Raises:
        LaunchError: Not a URL.
    """

    url: str
    api_key: str | None = None

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise LaunchError(f"--apply {self.url!r}: must be the URL of a router, for example http://127.0.0.1:8000")

    def apply(self, plan: Plan) -> dict[str, Any]:
        """Make the servers follow ``plan``; returns when they do.

        Returns:
            Names of pipelines ``kept``, ``started`` and ``stopped``.

        Raises:
            LaunchError: Nobody answers there, or the controller says why it cannot follow.
        """
        return self._ask("/router/plan", plan.to_json().encode(), None)

    def plan(self) -> tuple[Plan | None, dict[str, int]]:
        """The plan that is followed, and of each of its instances how many run as a whole.

        Raises:
            LaunchError: Nobody answers there, or not as a controller.
        """
        told = self._ask("/router/plan", None, QUESTION_S)
        try:
            plan = None if told["plan"] is None else Plan.model_validate(told["plan"])
            return plan, {str(name): int(count) for name, count in told["running"].items()}
        except (KeyError, TypeError, ValueError) as error:
            raise LaunchError(f"{self.url}: does not say which plan it follows; is it another version?") from error

    def demand(self) -> dict[str, Any]:
        """What was asked of the router since it started; see :class:`coralopt.runtime.router.demand.DemandMeter`.

        Raises:
            LaunchError: Nobody answers there, or not as a router.
        """
        return self._ask("/router/demand", None, QUESTION_S)

    def _ask(self, path: str, body: bytes | None, timeout_s: float | None) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.url.rstrip('/')}{path}", body)
        if self.api_key:
            request.add_header("Authorization", f"Bearer {self.api_key}")
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            try:
                why = json.load(error)["error"]["message"]
            except (ValueError, KeyError, TypeError):
                why = f"answered {error.code}; is it the router of `coralopt launch --target local`?"
            raise LaunchError(f"{self.url}: {why}") from error
        except (OSError, ValueError) as error:
            raise LaunchError(f"{self.url}: no running `coralopt launch` answers there: {error}") from error


def apply_plan(plan: Plan, url: str, api_key: str | None = None) -> dict[str, Any]:
    """Make the servers behind the router at ``url`` follow ``plan``; see :meth:`RemoteController.apply`."""
    return RemoteController(url, api_key).apply(plan)
