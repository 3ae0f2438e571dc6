"""A stand-in for the ``vllm`` program: the same command line, the same HTTP API, tokens made from the prompt.

Strict where vLLM is: unknown options, a layer partition that does not fit, missing ranks. Stages meet at the master port.
Answers depend on the prompt only, so any server gives the same tokens. Environment: FAKE_START_S delays the start,
FAKE_TOKEN_S is the time of a token, FAKE_FAIL=RANK ends that rank's process at once with an error, FAKE_STUCK keeps
/health from answering, FAKE_LIFE_S ends a server by itself after it served so long. FAKE_WORKERS is the number of processes
that every process starts, as vLLM does; they outlive whoever kills it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LAYERS = 8


def parse() -> argparse.Namespace:
    """The options of ``vllm serve`` that coralopt uses; any other is an error, as in vLLM."""
    parser = argparse.ArgumentParser(prog="vllm", allow_abbrev=False)
    serve = parser.add_subparsers(required=True).add_parser("serve", allow_abbrev=False)
    serve.add_argument("model")
    for name in ("served-model-name", "host", "master-addr", "max-model-len", "kv-cache-memory-bytes"):
        serve.add_argument(f"--{name}")
    for name in ("compilation-config", "kv-transfer-config"):
        serve.add_argument(f"--{name}", type=json.loads)
    for name in ("port", "master-port", "node-rank", "max-num-seqs", "max-num-batched-tokens", "shutdown-timeout"):
        serve.add_argument(f"--{name}", type=int, default=0)
    for name in ("tensor-parallel-size", "pipeline-parallel-size", "nnodes"):
        serve.add_argument(f"--{name}", type=int, default=1)
    serve.add_argument("--gpu-memory-utilization", type=float)
    for name in ("headless", "enforce-eager"):
        serve.add_argument(f"--{name}", action="store_true")
    return parser.parse_args()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__((options.host, options.port), Handler)
        self.options = options
        self.stopping = False
        self.busy = 0
        self.lock = threading.Lock()
        transfer = options.kv_transfer_config or {}
        self.role = transfer.get("kv_role")
        self.connector = transfer.get("kv_connector")


def tokens(prompt: str, count: int) -> list[str]:
    return [f"{zlib.crc32(f'{prompt}/{index}'.encode()) % 1000} " for index in range(count)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def _json(self, status: int, data: object) -> None:
        text = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        ready = self.path == "/health" and not os.environ.get("FAKE_STUCK")
        self._json(200 if ready else 404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.stopping:
            return self._json(500, {"error": "cannot schedule new futures after shutdown"})
        with self.server.lock:
            self.server.busy += 1
        try:
            self._answer(body)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            with self.server.lock:
                self.server.busy -= 1
        return None

    def _answer(self, body: dict) -> None:  # type: ignore[type-arg]
        options = self.server.options
        if body["model"] != options.served_model_name:
            return self._json(404, {"error": "no such model"})
        params = body.get("kv_transfer_params")
        if (self.server.connector or "").startswith("Nixl"):
            wanted = "do_remote_decode" if self.server.role == "kv_producer" else "do_remote_prefill"
            if not (params and params.get(wanted)):
                return self._json(400, {"error": f"kv_transfer_params without {wanted}"})
        prompt = body.get("prompt") or json.dumps(body["messages"])
        if prompt == "poison":
            return self._json(500, {"error": "this request fails everywhere"})
        words = tokens(prompt, int(body.get("max_tokens", 8)))
        pause = float(os.environ.get("FAKE_TOKEN_S", "0"))
        layout = f"fake-pp{options.pipeline_parallel_size}-tp{options.tensor_parallel_size}"
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(words)}
        if not body.get("stream"):
            time.sleep(pause * len(words))
            document = {"choices": [{"text": "".join(words)}], "system_fingerprint": layout}
            document["usage"] = usage
            if self.server.role == "kv_producer":
                document["kv_transfer_params"] = {"do_remote_prefill": True, "remote_port": options.port}
            return self._json(200, document)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for word in words:
            self._chunk(f"data: {json.dumps({'choices': [{'text': word}], 'system_fingerprint': layout})}\n\n")
            time.sleep(pause)
        if (body.get("stream_options") or {}).get("include_usage"):
            self._chunk(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n")
        self._chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")
        return None

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def check(options: argparse.Namespace) -> None:
    """What vLLM itself checks at the start."""
    stages = options.pipeline_parallel_size
    if stages > 1:
        split = [int(n) for n in os.environ["VLLM_PP_LAYER_PARTITION"].split(",")]
        assert len(split) == stages, "VLLM_PP_LAYER_PARTITION has not one entry a stage"
        assert sum(split) == LAYERS, "VLLM_PP_LAYER_PARTITION does not sum to the layers"
        assert options.nnodes == stages, "one node a stage"
        assert os.environ["VLLM_HOST_IP"], "VLLM_HOST_IP"
    assert (options.node_rank > 0) == options.headless, "only other ranks than 0 are headless"
    if os.environ.get("FAKE_FAIL") == str(options.node_rank):
        print("ValueError: this rank was told to fail", flush=True)
        sys.exit(3)


def meet(options: argparse.Namespace) -> list[socket.socket]:
    """Rank 0 waits for all others at the master port; they keep trying."""
    if options.nnodes == 1:
        return []
    if options.node_rank == 0:
        with socket.create_server((options.master_addr, options.master_port)) as door:
            return [door.accept()[0] for _ in range(options.nnodes - 1)]
    while True:
        try:
            return [socket.create_connection((options.master_addr, options.master_port), timeout=1)]
        except OSError:
            time.sleep(0.02)


def start_workers() -> list[int]:
    workers = []
    for _ in range(int(os.environ.get("FAKE_WORKERS", "0"))):
        if (pid := os.fork()) == 0:
            while True:
                time.sleep(60)
        workers.append(pid)
    return workers


def end_workers(workers: list[int]) -> None:
    for pid in workers:
        os.kill(pid, signal.SIGKILL)


def main() -> None:
    options = parse()
    check(options)
    time.sleep(float(os.environ.get("FAKE_START_S", "0")))
    workers = start_workers()
    others = meet(options)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Rank 0 serves when every other stage can be told to stop.
    if options.headless:
        others[0].sendall(b"1")
        stop.wait()
        end_workers(workers)
        return
    for other in others:
        other.recv(1)
    server = Server(options)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    print(f"serving on {options.port} with {len(others)} other stages", flush=True)
    death = time.monotonic() + float(os.environ.get("FAKE_LIFE_S", "inf"))
    while not stop.wait(0.05):
        if time.monotonic() > death:
            os._exit(9)
    server.stopping = True
    limit = time.monotonic() + options.shutdown_timeout
    while server.busy and time.monotonic() < limit:
        time.sleep(0.01)
    end_workers(workers)
    print("drained", flush=True)


if __name__ == "__main__":
    main()
