"""What every answer of the router has: a request id, the form of the OpenAI API where it is an error, a line in the log."""

from __future__ import annotations

import logging
import re
import time
import uuid
from contextlib import ExitStack
from datetime import UTC, datetime

from aiohttp import web
from aiohttp.typedefs import Handler

from coralopt.runtime.router.doors import Doors
from coralopt.runtime.router.failures import error_response
from coralopt.runtime.router.relay import ID, INSTANCE_HEADER, MODEL, TOKENS, TRACING
from coralopt.types import JsonObject

_SOUND_ID = re.compile(r"[!-~]{1,128}")
#: Name of the client whose key came with a request.
CLIENT = web.RequestKey("client", str)
_LOG = logging.getLogger("coralopt.router")
#: Characters of what a parser says about a request.
_LONGEST_WHY = 300


def answer_in_one_form(app: web.Application, doors: Doors) -> None:
    """Let ``app`` answer so; has to come before the application starts."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        started = time.monotonic()
        request[ID] = request_id(request.headers.get("X-Request-Id"))
        try:
            with ExitStack() as spans:
                if doors.tracing is not None:
                    request[TRACING] = doors.tracing
                    span = spans.enter_context(doors.tracing.request(request.method, request.path, request.headers))
                response = await handler(request)
                if doors.tracing is not None:
                    span.say(_log_line(request, response, time.monotonic() - started))
        except web.HTTPException as error:
            response = error_response(error.status, f"{request.method} {request.path}: {error.reason}")
        except Exception as error:
            _LOG.exception("request %s failed", request[ID])
            response = error_response(500, f"the router failed: {type(error).__name__}")
        if doors.access_log is not None:
            doors.access_log(_log_line(request, response, time.monotonic() - started))
        return response

    async def name(request: web.Request, response: web.StreamResponse) -> None:
        response.headers["X-Request-Id"] = request[ID]

    app.middlewares.insert(0, answer)
    app.on_response_prepare.append(name)


def answer_fault(doors: Doors, request: web.BaseRequest, status: int, why: str) -> web.Response:
    """The same for what no application was asked: it is no HTTP, or the web server refuses it."""
    response = error_response(status, " ".join(why.split())[:_LONGEST_WHY])
    request[ID] = request_id(request.headers.get("X-Request-Id"))
    response.headers["X-Request-Id"] = request[ID]
    if doors.access_log is not None:
        doors.access_log(_log_line(request, response, 0.0))
    return response


def request_id(given: str | None) -> str:
    """The client's own where it is printable and short, else a new one."""
    return given if given is not None and _SOUND_ID.fullmatch(given) else uuid.uuid4().hex


def _log_line(request: web.BaseRequest, response: web.StreamResponse, seconds: float) -> JsonObject:
    """What happened, without anything that was asked or answered."""
    tokens = request.get(TOKENS)
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": request[ID],
        "client": request.get(CLIENT),
        "remote": request.remote,
        "method": request.method,
        "path": request.path,
        "model": request.get(MODEL),
        "instance": response.headers.get(INSTANCE_HEADER),
        "status": response.status,
        "seconds": round(seconds, 6),
        "prompt_tokens": None if tokens is None else tokens[0],
        "completion_tokens": None if tokens is None else tokens[1],
    }
