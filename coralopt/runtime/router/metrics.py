"""What the router tells Prometheus."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

#: Set for processes that share a port: the folder where each writes its series, and any of them reads all.
SHARED = "PROMETHEUS_MULTIPROC_DIR"
_PREFIX = "coralopt_router"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
#: Of one token.
_TOKEN_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2)
_OUTCOMES = "ok, refused (4xx), failed (before the first token) or broken (after it)"


class Metrics:
    """All series in a registry of their own, so that several routers live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, namespace=_PREFIX, registry=self.registry)

        def gauge(name: str, text: str, *labels: str, all_of: Literal["livesum", "livemin"] = "livesum") -> Gauge:
            return Gauge(name, text, labels, namespace=_PREFIX, registry=self.registry, multiprocess_mode=all_of)

        def seconds(name: str, text: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
            return Histogram(name, text, ["model"], namespace=_PREFIX, registry=self.registry, buckets=buckets)

        backend = ("backend", "model", "phase")
        self.requests = counter("requests", "Requests answered, by HTTP status.", "model", "code")
        self.legs = counter(
            "backend_requests", f"Requests sent to a backend; outcome {_OUTCOMES}.", *backend, "outcome"
        )
        self.retries = counter("retries", "Requests sent again to another backend.", "model")
        self.rejected = counter("rejected", "Requests refused by back-pressure.", "model", "code")
        self.waiting = gauge("queue_length", "Requests that wait for a slot.", "model", "phase")
        self.in_flight = gauge("in_flight", "Requests at a backend.", *backend)
        self.up = gauge("backend_up", "1 when a backend is healthy.", *backend, all_of="livemin")
        self.weight = gauge("backend_weight", "Planned throughput of a backend, tokens/s.", *backend, all_of="livemin")
        self.slo = gauge("slo_seconds", "SLO of the plan; latency is ttft or tpot.", "model", "latency")
        self.rent = gauge("rent_usd_per_hour", "Rent of the plan that is followed.")
        self.spent = gauge("spent_usd", "Rent of the plans since the router started.")
        self.plans = gauge("plan_timestamp_seconds", "When the servers began to follow their plan, since 1970.")
        self.first_byte = seconds("first_byte_seconds", "From arrival to the first byte of the answer.")
        self.output_token = seconds(
            "output_token_seconds", "Time per output token of streamed answers, after the first.", _TOKEN_SECONDS
        )
        self.duration = seconds("request_seconds", "From arrival to the end of the answer.")
        self.prompt_tokens = counter("prompt_tokens", "Input tokens, where the answer tells.", "model")
        self.completion_tokens = counter("completion_tokens", "Output tokens, where the answer tells.", "model")

    def forget(self, *backend: str) -> None:
        """No gauges any more for a backend that is gone; its counters stay."""
        for gauge in (self.up, self.in_flight, self.weight):
            with suppress(KeyError):
                gauge.labels(*backend).set(0)
                if SHARED not in os.environ:
                    gauge.remove(*backend)

    def text(self) -> bytes:
        """All series, of all processes on this port."""
        if SHARED not in os.environ:
            return generate_latest(self.registry)
        everybody = CollectorRegistry()
        MultiProcessCollector(everybody)  # type: ignore[no-untyped-call]
        return generate_latest(everybody)
