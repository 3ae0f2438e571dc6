"""Why a request gets no tokens: what a backend did, and errors in the form of the OpenAI API."""

from __future__ import annotations

from aiohttp import web

from coralopt.runtime.router.pool import Backend
from coralopt.types import JsonObject

#: Types of errors in the OpenAI API, by HTTP status.
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 409: "conflict_error"}
_TYPES |= {429: "overloaded_error", 502: "upstream_error", 503: "overloaded_error", 504: "upstream_error"}


def error_response(status: int, message: str, retry_after_s: int | None = None) -> web.Response:
    """An error in the form of the OpenAI API."""
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return web.json_response(error_body(status, message), status=status, headers=headers)


def error_body(status: int, message: str) -> JsonObject:
    """The document of such an error."""
    kind = _TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


class Lost(Exception):
    """A backend failed before its first token: the request may go to another one."""

    def __init__(self, backend: Backend, why: str, answer: web.Response | None = None) -> None:
        super().__init__(why)
        self.backend = backend
        self.answer = answer or error_response(502, f"instance {backend.config.name}: {why}")


class Refused(Exception):
    """A backend refused the request itself (4xx): no other one would take it."""

    def __init__(self, answer: web.Response) -> None:
        super().__init__(answer.status)
        self.answer = answer


def words_of(error: Exception) -> str:
    """What went wrong, for a message; a timeout says nothing of itself."""
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
