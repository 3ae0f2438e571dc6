"""The web server under an application, with its own answers in the application's form, and without silent connections."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

#: Makes the answer to a request that no application gets, of a status and of what is wrong with it.
Fault = Callable[[web.BaseRequest, int, str], web.Response]


class _Connection(web.RequestHandler):
    """One client's connection."""

    __slots__ = ("_fault",)

    def __init__(self, server: _Server, fault: Fault) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(server, loop=loop, access_log=None, auto_decompress=False)  # type: ignore[arg-type]
        self._fault = fault

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what could not be read as a request, or what the application failed on; the connection is closed."""
        # That one logs, and raises where an answer has begun; its own is a line of text.
        super().handle_error(request, status, exc, message)
        what = "the request cannot be read" if isinstance(exc, HttpProcessingError) else "the router failed"
        response = self._fault(request, status, f"{what}: {message or type(exc).__name__}")
        response.force_close()
        return response


class _Server(web.Server):
    def __init__(self, application: web.Server, fault: Fault) -> None:
        super().__init__(self._answer, request_factory=application.request_factory, handler_cancellation=True)
        self._application, self._fault = application.request_handler, fault
        #: Connections that have sent a whole head.
        self.heard: set[object] = set()

    def __call__(self) -> _Connection:
        return _Connection(self, self._fault)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.heard.add(request.protocol)
        try:
            return await self._application(request)
        except web.HTTPException as error:
            # An Expect header that the web server does not know.
            return self._fault(request, error.status, f"{request.method} {request.path}: {error.reason}")


class Listener(web.AppRunner):
    """Runs an application.

    Args:
        app: Gets the requests.
        fault: Answers what is none.
        drain_s: Seconds that requests in flight are given at the end.
    """

    def __init__(self, app: web.Application, fault: Fault, drain_s: float = 60.0) -> None:
        super().__init__(app, shutdown_timeout=drain_s)
        self._fault = fault
        logging.getLogger("aiohttp.server").addFilter(_is_ours)

    async def _make_server(self) -> web.Server:
        return _Server(await super()._make_server(), self._fault)

    async def close_silent(self, limit_s: float) -> None:
        """Close connections that have not sent the head of a request in time; later ones end with the keep-alive time."""
        since: dict[web.RequestHandler, float] = {}
        while isinstance(self.server, _Server):
            await asyncio.sleep(limit_s / 4)
            now, connections = time.monotonic(), set(self.server.connections)
            self.server.heard &= connections
            since = {connection: since.get(connection, now) for connection in connections - self.server.heard}
            for connection, first in since.items():
                if now - first > limit_s:
                    connection.force_close()


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether a fault that the web server found is one of this program; a request that is no HTTP is its sender's."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)
