"""The controller of another process: its plan, its demand, and a new plan for it."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import urlsplit

from coralopt.errors import LaunchError
from coralopt.plan import Plan
from coralopt.runtime.router.doors import ADMIN_SOCKET, socket_address

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
        where: Its folder on this machine, or the base URL of its router.
        admin_key: The router's admin key, for a URL.

    Raises:
        LaunchError: Neither folder nor URL; from every method: nobody answers there, or not as a controller.
    """

    where: str
    admin_key: str | None = None

    def __post_init__(self) -> None:
        if not self.where.startswith(("http://", "https://")) and not Path(self.where).is_dir():
            raise LaunchError(
                f"{self.where!r} must be the URL of a router, for example http://127.0.0.1:8000, or the folder of a running "
                "`coralopt launch start`"
            )

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
            raise LaunchError(f"{self.where}: does not say which plan it follows; is it another version?") from error

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
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self.admin_key:
            headers["Authorization"] = f"Bearer {self.admin_key}"
        connection, base = self._connection(timeout_s)
        try:
            connection.request("GET" if body is None else "POST", base + path, body, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, http.client.HTTPException) as error:
            raise LaunchError(f"{self.where}: no running `coralopt launch start` answers there: {error}") from error
        except ValueError:
            answer = None
        finally:
            connection.close()
        if response.status < 400 and isinstance(answer, dict):
            return answer
        try:
            why = answer["error"]["message"]
        except (KeyError, TypeError):
            why = f"answered {response.status}; is it the router of `coralopt launch start`?"
        raise LaunchError(f"{self.where}: {why}")

    def _connection(self, timeout_s: float | None) -> tuple[http.client.HTTPConnection, str]:
        """Not opened yet, and what stands before paths."""
        if not self.where.startswith(("http://", "https://")):
            return _SocketConnection(Path(self.where) / ADMIN_SOCKET, timeout_s), ""
        url = urlsplit(self.where)
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        try:
            return kind(url.hostname or "", url.port, timeout=timeout_s), url.path.rstrip("/")
        except (ValueError, http.client.InvalidURL) as error:
            raise LaunchError(f"{self.where!r} must be the URL of a router: {error}") from error


class _SocketConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with socket_address(self._path) as address:
            self.sock.connect(address)
