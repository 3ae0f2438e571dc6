"""The two legs of a disaggregated request: what the prefill server is asked, what the decode server is handed.

Each connector has its protocol, as vLLM's own proxies speak it. ExampleConnector and LMCache find the cache by the prompt
itself and need no word.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping, Sequence

from coralopt.types import Json, JsonObject

PUSH = "NixlPushConnector"
#: Fields of the request that make no sense for an answer of one token that nobody reads.
_DROPPED = ("stream_options", "min_tokens", "n", "best_of", "stop", "stop_token_ids")
_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}
_DECODE = {"do_remote_decode": False, "do_remote_prefill": True}
#: What a pushing prefill server says about itself in every answer; those without a default must be there.
_PUSH_IDENTITY = ("remote_engine_id", "remote_host", "remote_port", "tp_size", "transfer_mode")
_PUSH_OPTIONAL = ("pp_size", "dcp_size")


def holds_cache(connector: str | None) -> bool:
    """Whether a prefill server keeps the blocks of one request for one decode server, and only for so long."""
    return (connector or "").startswith("Nixl") or connector == "MooncakeConnector"


def not_transferable(body: JsonObject, connector: str | None) -> str | None:
    """Why no KV cache can be handed over for this request: several sequences would share the blocks of one."""
    if not holds_cache(connector):
        return None
    for name in ("prompt", "prompt_embeds"):
        prompts = body.get(name)
        if isinstance(prompts, list) and len(prompts) > 1 and not all(isinstance(token, int) for token in prompts):
            return "several prompts in one request cannot be served where prefill and decode are apart; send one by one"
    for name in ("n", "best_of"):
        # Servers take "2" for 2.
        if (count := body.get(name)) not in (None, 1, "1"):
            return (
                f"{name} = {str(count)[:20]} cannot be served where prefill and decode are apart; ask for one at a time"
            )
    if body.get("use_beam_search"):
        return "use_beam_search cannot be served where prefill and decode are apart"
    return None


def prefill_body(body: JsonObject, connector: str | None) -> dict[str, Json]:
    """The request as the prefill server gets it: the same prompt, one token, no stream."""
    request = {key: value for key, value in body.items() if key not in _DROPPED}
    request |= {"max_tokens": 1, "stream": False}
    if "max_completion_tokens" in request:
        request["max_completion_tokens"] = 1
    transfer: dict[str, Json] = {"transfer_id": f"xfer-{uuid.uuid4()}"}
    if (connector or "").startswith("Nixl"):
        unknown = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
        request["kv_transfer_params"] = {**_PREFILL, **unknown, **(transfer if connector == PUSH else {})}
    if connector == "MooncakeConnector":
        request["kv_transfer_params"] = {**_PREFILL, **transfer}
    return request


def decode_body(
    body: JsonObject, connector: str | None, prefill: JsonObject, answer: JsonObject, place: JsonObject
) -> JsonObject:
    """The request as the decode server gets it: as it came, with word of where the KV cache lies.

    Args:
        body: As it came.
        connector: How caches move.
        prefill: What the prefill server was asked, from :func:`prefill_body`.
        answer: What it answered.
        place: Where its caches are: ``remote_engine_id`` and ``remote_bootstrap_addr``, for Mooncake.
    """
    params = answer.get("kv_transfer_params")
    if (connector or "").startswith("Nixl") and isinstance(params, dict) and params:
        return {**body, "kv_transfer_params": {**params, **_transfer(prefill)}}
    if connector == "MooncakeConnector":
        return {**body, "kv_transfer_params": {**_DECODE, **_transfer(prefill), **place}}
    return body


def push_identity(connector: str | None, answer: JsonObject) -> JsonObject | None:
    """What a pushing prefill server says about itself, from its answer; ``None`` where it says too little."""
    params = answer.get("kv_transfer_params")
    if connector != PUSH or not isinstance(params, dict) or params.get("transfer_mode") != "push":
        return None
    if any(params.get(name) is None for name in _PUSH_IDENTITY):
        return None
    return {name: params[name] for name in (*_PUSH_IDENTITY, *_PUSH_OPTIONAL) if name in params}


def pushed_body(body: JsonObject, identity: JsonObject, prefill: JsonObject, request_id: str) -> JsonObject:
    """The request for a decode server that waits for a push while the prefill server still works.

    Args:
        body: As it came.
        identity: Of the prefill server, from :func:`push_identity`.
        prefill: What it was asked, from :func:`prefill_body`.
        request_id: ``X-Request-Id`` of both.
    """
    params = {**identity, **_DECODE, **_transfer(prefill), "remote_request_id": request_id}
    return {**body, "kv_transfer_params": params}


def _transfer(prefill: JsonObject) -> Mapping[str, Json]:
    sent = prefill.get("kv_transfer_params")
    return {"transfer_id": sent["transfer_id"]} if isinstance(sent, dict) and "transfer_id" in sent else {}


def prompt_tokens(body: JsonObject) -> float:
    """About how many tokens the prompt of a request has: four characters each, or as many as it lists; 1 at least."""
    return max(1.0, _characters(body.get("prompt", body.get("messages"))) / 4)


def most_output(body: JsonObject) -> float:
    """Tokens that a request asks for at most; infinite where it does not say."""
    most = body.get("max_completion_tokens", body.get("max_tokens"))
    try:
        return float(most) if isinstance(most, int | float) and not isinstance(most, bool) else math.inf
    except OverflowError:
        return math.inf


def beginning(body: JsonObject, characters: int) -> str:
    """The first so many characters of a prompt or of messages."""
    prompt = body.get("prompt") or body.get("messages")
    if isinstance(prompt, str):
        return prompt[:characters]
    # Long conversations are cut before they are written out again: a message has at least one character.
    return json.dumps(prompt[:characters] if isinstance(prompt, list) else prompt)[:characters]


def _characters(part: Json) -> int:
    if isinstance(part, str):
        return len(part)
    if isinstance(part, Mapping):
        return _characters(part.get("content", part.get("text")))
    if isinstance(part, Sequence):
        return sum(map(_characters, part))
    # A prompt may be a list of token numbers.
    return 4 if isinstance(part, int) else 0
