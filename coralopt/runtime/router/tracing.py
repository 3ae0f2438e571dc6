"""OpenTelemetry traces (extra ``otel``): a span a request and one a leg of it; never what was asked or answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from coralopt.errors import LaunchError
from coralopt.types import JsonObject

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

#: Fields of the access log -> attributes, by OpenTelemetry's conventions where it has any.
_ATTRIBUTES = {
    "request_id": "coralopt.request_id",
    "client": "coralopt.client",
    "instance": "coralopt.instance",
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "status": "http.response.status_code",
}


class RequestSpan:
    """The span of one request."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def say(self, line: JsonObject) -> None:
        """Add what the access log says of it."""
        from opentelemetry.trace import StatusCode

        for field, name in _ATTRIBUTES.items():
            if isinstance(value := line.get(field), str | int):
                self._span.set_attribute(name, value)
        if isinstance(status := line.get("status"), int) and status >= 500:
            self._span.set_status(StatusCode.ERROR)


class Tracing:
    """Makes spans; a trace that a client began goes on, and servers get its number in ``traceparent``.

    Args:
        provider: Who keeps or sends them.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = provider.get_tracer("coralopt.router")
        self._carried = TraceContextTextMapPropagator()

    @classmethod
    def sending(cls) -> Tracing:
        """To a collector, as the standard variables say (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_SERVICE_NAME``, ...).

        Raises:
            LaunchError: The extra is not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise LaunchError(
                f"--otel needs {error.name}, which is not installed: pip install 'coralopt[runtime,otel]'"
            ) from error
        ours = Resource.create({"service.name": "coralopt-router"})
        provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    @contextmanager
    def request(self, method: str, path: str, headers: Mapping[str, str]) -> Iterator[RequestSpan]:
        """The span of a request, from its arrival to the last byte of its answer."""
        from opentelemetry.trace import SpanKind

        begun = self._carried.extract({name.lower(): value for name, value in headers.items()})
        attributes = {"http.request.method": method, "url.path": path}
        with self._tracer.start_as_current_span(f"{method} {path}", begun, SpanKind.SERVER, attributes) as span:
            yield RequestSpan(span)

    @contextmanager
    def leg(self, phase: str, instance: str, headers: dict[str, str]) -> Iterator[None]:
        """The span of a request to a server, told to it in ``headers``."""
        from opentelemetry.trace import SpanKind

        attributes = {"coralopt.phase": phase, "coralopt.instance": instance}
        with self._tracer.start_as_current_span(phase, None, SpanKind.CLIENT, attributes):
            self._carried.inject(headers)
            yield
