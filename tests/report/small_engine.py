"""An OpenAI server of a few lines in threads of its own, for tests whose router is another process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class _Handler(BaseHTTPRequestHandler):
    """Well while its server is; every answer is a stream of as many tokens as were asked for, 2 ms apart."""

    def do_GET(self) -> None:
        self.send_response(200 if self.server.well else 503)  # type: ignore[attr-defined]
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        count = int(body.get("max_tokens", 4))
        usage = {"prompt_tokens": 7, "completion_tokens": count}
        streamed = bool(body.get("stream"))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if streamed else "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        if not streamed:
            self.wfile.write(json.dumps({"choices": [{"text": "t"}], "usage": usage}).encode())
            return
        for part in (*({"choices": [{"text": "t"}]} for _ in range(count)), {"choices": [], "usage": usage}):
            self.wfile.write(f"data: {json.dumps(part)}\n\n".encode())
            time.sleep(0.002)
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *values: object) -> None:
        """Nothing."""


class SmallEngine(ThreadingHTTPServer):
    """Attributes:
    well: Whether its health check says so.
    """

    daemon_threads = True
    well = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def small_engines(count: int) -> Iterator[list[SmallEngine]]:
    """So many of them, on ports the system picks."""
    engines = [SmallEngine(("127.0.0.1", 0), _Handler) for _ in range(count)]
    threads = [Thread(target=engine.serve_forever, args=(0.05,), daemon=True) for engine in engines]
    for thread in threads:
        thread.start()
    try:
        yield engines
    finally:
        for engine, thread in zip(engines, threads, strict=True):
            engine.shutdown()
            thread.join()
            engine.server_close()
