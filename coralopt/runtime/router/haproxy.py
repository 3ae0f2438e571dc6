"""HAProxy in place of the router, for plans without KV transfer: its configuration, with the weights of the plan.

Checked against HAProxy 2.6. It keeps weights, slots, queues, health checks, retries and streams, an order of magnitude
cheaper than Python does. It knows no tokens, no demand, and no requests of two legs.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from coralopt.errors import LaunchError
from coralopt.runtime.router.config import BackendConfig, RouterConfig
from coralopt.runtime.router.doors import ROUTER_KEY
from coralopt.runtime.router.wire import place_of
from coralopt.types import Json, JsonObject

_PATHS = ("/v1/completions", "/v1/chat/completions")
#: Largest weight of a server.
MOST = 256
#: Bytes of a request in which its model is looked for, where there is more than one.
LOOKED_AT = 2**18


def haproxy_configuration(config: RouterConfig, host: str, port: int, certificate: Path | None = None) -> str:
    """A whole configuration; keys come from the environment in which HAProxy starts.

    Args:
        config: Backends, weights and limits.
        host: Address to listen on.
        port: Its port.
        certificate: PEM file with certificate and key, for HTTPS.

    Raises:
        LaunchError: The plan needs what HAProxy has not; names all of it.
    """
    models = list(dict.fromkeys(backend.model for backend in config.backends))
    wrong = [
        f"{model}: its prefill and decode instances pass KV caches, which takes two requests in order"
        for model in models
        if any(backend.phase != "mixed" for backend in config.backends if backend.model == model)
    ]
    wrong += [f"{model}: is served by variants, each with its share of the requests" for model in config.variants]
    wrong += [f"{model}: its requests come in classes, told by their lengths" for model in config.classes]
    wrong += ["there are no backends"] if not models else []
    wrong += ["clients have limits of their own"] if config.clients else []
    wrong += ["models have aliases: it does not change what is in a request"] if config.aliases else []
    wrong += (
        ["adapters of several models: it does not know whose a request's is"] if config.adapters and models[1:] else []
    )
    wrong += ["affinity by prefix: it does not read prompts"] if config.affinity == "prefix" else []
    if wrong:
        raise LaunchError("\n  - ".join(["HAProxy cannot route this plan:", *wrong]) + "\nuse `coralopt route` for it")
    apart = len(models) > 1
    data: list[Json] = [{"id": model, "object": "model", "owned_by": "coralopt"} for model in models]
    listed: JsonObject = {"object": "list", "data": data}
    address = f"[{host}]" if ":" in host else host
    lines = [
        "# Written by `coralopt route --haproxy`: haproxy -W -f FILE; after a change, SIGUSR2 to the master loses nothing.",
        "global",
        # Old processes go on until their last stream ends.
        f"  hard-stop-after {_ms(config.answer_timeout_s)}",
        *([f"  tune.bufsize {LOOKED_AT}"] if apart else []),
        "",
        "defaults",
        "  mode http",
        # A token is not to wait for the next one.
        "  option http-no-delay",
        "  option redispatch",
        f"  retries {config.retries}",
        "  retry-on conn-failure empty-response 503",
        f"  timeout connect {_ms(config.connect_timeout_s)}",
        f"  timeout http-request {_ms(config.head_timeout_s)}",
        f"  timeout client {_ms(config.body_timeout_s)}",
        f"  timeout server {_ms(max(config.first_token_timeout_s, config.idle_timeout_s))}",
        f"  timeout queue {_ms(config.queue_timeout_s)}",
        "",
        "frontend openai",
        f"  bind {address}:{port}" + (f" ssl crt {certificate}" if certificate else ""),
        "  monitor-uri /health",
        *(f"  monitor fail if {{ nbsrv({_label(number)}) lt 1 }}" for number in range(len(models))),
        f"  .if defined({ROUTER_KEY})",
        f'  http-request deny status 401 unless {{ req.hdr(authorization) -m str "Bearer ${{{ROUTER_KEY}}}" }}',
        "  .endif",
        f"  http-request return status 200 {_json(listed)} if {{ path /v1/models }}",
        # Servers have other doors, which are not for clients.
        f"  http-request return status 404 {_json(_error('no such path'))} unless {{ path {' '.join(_PATHS)} }}",
    ]
    if apart:
        known = " ".join(map(_word, models))
        lines += [
            "  option http-buffer-request",
            "  http-request set-var(txn.model) req.body,json_query('$.model')",
            f"  http-request return status 404 {_json(_error('no such model'))} unless {{ var(txn.model) -m str {known} }}",
            *(
                f"  use_backend {_label(number)} if {{ var(txn.model) -m str {_word(model)} }}"
                for number, model in enumerate(models)
            ),
        ]
    else:
        lines.append(f"  default_backend {_label(0)}")
    for number, model in enumerate(models):
        lines += ["", f"# {model}", f"backend {_label(number)}", *_backend(config, model)]
    return "\n".join(lines) + "\n"


def _error(message: str) -> JsonObject:
    return {"error": {"message": message, "type": "not_found_error", "param": None, "code": 404}}


def _json(document: JsonObject) -> str:
    return f"content-type application/json string {_word(json.dumps(document))}"


def _backend(config: RouterConfig, model: str) -> list[str]:
    servers = [backend for backend in config.backends if backend.model == model]
    largest = max(server.weight for server in servers)
    if config.affinity == "session":
        how = [f"balance hdr({config.session_header})", "hash-type consistent", "hash-balance-factor 125"]
    else:
        how = ["balance roundrobin"]
    lines = [
        *how,
        f"option httpchk GET {servers[0].health_path}",
        "http-check expect status 200",
        "http-request del-header Authorization",
        ".if defined(VLLM_API_KEY)",
        'http-request set-header Authorization "Bearer ${VLLM_API_KEY}"',
        ".endif",
        f"default-server check inter {_ms(config.health_interval_s)} fall {config.unhealthy_after} rise 1",
        f"fullconn {sum(server.max_in_flight for server in servers)}",
    ]
    return [f"  {line}" for line in [*lines, *(_server(server, largest, config) for server in servers)]]


def _server(server: BackendConfig, largest: float, config: RouterConfig) -> str:
    place = place_of(server.url)
    if place.path != "/":
        raise LaunchError(f"{server.name}: HAProxy cannot put {place.path} before its paths; use `coralopt route`")
    weight = max(1, math.floor(MOST * server.weight / largest + 0.5))
    host = f"[{place.host}]" if ":" in place.host else place.host
    tls = " ssl verify required ca-file @system-ca" if place.tls else ""
    room = f"maxconn {server.max_in_flight} maxqueue {config.queue_size}"
    return f"server {server.name} {host}:{place.port} weight {weight} {room}{tls}"


def _label(number: int) -> str:
    return f"model_{number}"


def _ms(seconds: float) -> str:
    return f"{round(1000 * seconds)}ms"


def _word(text: str) -> str:
    """One word of the configuration, whatever is in it."""
    return "'" + text.replace("'", "'\\''") + "'"
