"""The controller of another process: its plan, its demand, and a new plan for it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, TypedDict

from coralopt.errors import LaunchError
from coralopt.plan import Plan

#: Seconds within which questions are answered; applying a plan may take as long as servers take to start.
QUESTION_S = 30.0


class ServerStatus(TypedDict):
    """What runs behind a router.

    Attributes:
        instances: Instance of the plan -> how many of it run as a whole, and how many are planned.
        given_up: Pipelines that died too often -> why.
        backends: As ``GET /router/backends`` tells them.
    """

    instances: dict[str, dict[str, int]]
    given_up: dict[str, str]
    backends: list[dict[str, Any]]  # Any: fields of BackendConfig and their types, as JSON


@dataclass(frozen=True)
class RemoteController:
    """A running ``coralopt launch start``.

    Attributes:
        url: Base URL of its router.
        api_key: Its key, if it asks for one.

    Raises:
        LaunchError: Not a URL; from every method: nobody answers there, or not as a controller.
    """

    url: str
    api_key: str | None = None

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise LaunchError(f"{self.url!r} must be the URL of a router, for example http://127.0.0.1:8000")

    def apply(self, plan: Plan) -> dict[str, list[str]]:
        """Make the servers follow ``plan``; returns when they do.

        Returns:
            Names of pipelines ``kept``, ``started`` and ``stopped``.

        Raises:
            LaunchError: The controller says why it cannot follow.
        """
        return self._ask("/router/plan", plan.to_json().encode(), None)

    def plan(self) -> tuple[Plan | None, dict[str, int]]:
        """The plan that is followed, and of each of its instances how many run as a whole."""
        answer = self._ask("/router/plan")
        try:
            plan = None if answer["plan"] is None else Plan.model_validate(answer["plan"])
            return plan, {str(name): int(count) for name, count in answer["running"].items()}
        except (KeyError, TypeError, ValueError) as error:
            raise LaunchError(f"{self.url}: does not say which plan it follows; is it another version?") from error

    def status(self) -> ServerStatus:
        """What runs, instance by instance and server by server."""
        plan, running = self.plan()
        planned = {} if plan is None else {item.name: item.count for item in plan.instances}
        return {
            "instances": {name: {"running": running.get(name, 0), "planned": n} for name, n in planned.items()},
            "given_up": self._ask("/router/plan")["given_up"],
            "backends": self._ask("/router/backends")["backends"],
        }

    def demand(self) -> dict[str, Any]:  # Any: what :func:`coralopt.runtime.measured_demand` reads and checks
        """What was asked of the router since it started; see :class:`coralopt.runtime.router.demand.DemandMeter`."""
        return self._ask("/router/demand")

    # Any: the answer of a server of ours, checked by whoever reads it.
    def _ask(self, path: str, body: bytes | None = None, timeout_s: float | None = QUESTION_S) -> dict[str, Any]:
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
                why = f"answered {error.code}; is it the router of `coralopt launch start`?"
            raise LaunchError(f"{self.url}: {why}") from error
        except (OSError, ValueError) as error:
            raise LaunchError(f"{self.url}: no running `coralopt launch start` answers there: {error}") from error
