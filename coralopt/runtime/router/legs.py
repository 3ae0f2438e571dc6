"""The two legs of a disaggregated request: what the prefill server is asked, what the decode server is handed.

Each connector has its protocol, as vLLM's own proxies speak it. ExampleConnector and LMCache find the cache by the prompt
itself and need no word.
"""

from __future__ import annotations

import uuid

from coralopt.types import Json, JsonObject

#: Fields of the request that make no sense for an answer of one token that nobody reads.
_DROPPED = ("stream_options", "min_tokens", "n", "best_of", "stop", "stop_token_ids")
_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


def prefill_body(body: JsonObject, connector: str | None) -> dict[str, Json]:
    """The request as the prefill server gets it: the same prompt, one token, no stream."""
    request = {key: value for key, value in body.items() if key not in _DROPPED}
    request |= {"max_tokens": 1, "stream": False}
    if "max_completion_tokens" in request:
        request["max_completion_tokens"] = 1
    if (connector or "").startswith("Nixl"):
        unknown = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
        request["kv_transfer_params"] = {**_PREFILL, **unknown}
    if connector == "MooncakeConnector":
        request["kv_transfer_params"] = {**_PREFILL, "transfer_id": f"xfer-{uuid.uuid4()}"}
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
    if (connector or "").startswith("Nixl") and params:
        return {**body, "kv_transfer_params": params}
    if connector == "MooncakeConnector":
        sent = prefill["kv_transfer_params"]
        assert isinstance(sent, dict)
        transfer = {"transfer_id": sent["transfer_id"], **place}
        return {**body, "kv_transfer_params": {"do_remote_decode": False, "do_remote_prefill": True, **transfer}}
    return body
