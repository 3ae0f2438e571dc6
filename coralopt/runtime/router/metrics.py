"""What the router tells Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """All series in a registry of their own, so that several routers live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        where = {"registry": self.registry, "namespace": "coralopt_router"}
        self.requests = Counter("requests", "Requests answered, by HTTP status.", ["model", "code"], **where)  # type: ignore[arg-type]
        self.legs = Counter(
            "backend_requests",
            "Requests sent to a backend; outcome ok, refused (4xx), failed (before the first token) or broken (after it).",
            ["backend", "model", "phase", "outcome"],
            **where,  # type: ignore[arg-type]
        )
        self.retries = Counter("retries", "Requests sent again to another backend.", ["model"], **where)  # type: ignore[arg-type]
        self.rejected = Counter("rejected", "Requests refused by back-pressure.", ["model", "code"], **where)  # type: ignore[arg-type]
        self.waiting = Gauge("queue_length", "Requests that wait for a slot.", ["model", "phase"], **where)  # type: ignore[arg-type]
        self.in_flight = Gauge("in_flight", "Requests at a backend.", ["backend", "model", "phase"], **where)  # type: ignore[arg-type]
        self.up = Gauge("backend_up", "1 when a backend is healthy.", ["backend", "model", "phase"], **where)  # type: ignore[arg-type]
        self.first_byte = Histogram(
            "first_byte_seconds",
            "From arrival to the first byte of the answer.",
            ["model"],
            buckets=_SECONDS,
            **where,  # type: ignore[arg-type]
        )
        self.duration = Histogram(
            "request_seconds",
            "From arrival to the end of the answer.",
            ["model"],
            buckets=_SECONDS,
            **where,  # type: ignore[arg-type]
        )
        self.prompt_tokens = Counter("prompt_tokens", "Input tokens, where the answer tells.", ["model"], **where)  # type: ignore[arg-type]
        self.completion_tokens = Counter(
            "completion_tokens",
            "Output tokens, where the answer tells.",
            ["model"],
            **where,  # type: ignore[arg-type]
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)
