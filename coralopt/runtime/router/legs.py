"""The two legs of a disaggregated request: what the prefill server is asked, what the decode server is handed.

Each connector has its protocol, as vLLM's own proxies speak it. ExampleConnector and LMCache find the cache by the prompt
itself and need no word.
"""

from __future__ import annotations

import uuid
from typing import Any

#: Fields of the request that make no sense for an answer of one token that nobody reads.
_DROPPED = ("stream_options", "min_tokens", "n", "best_of", "stop", "stop_token_ids")


def prefill_body(body: dict[str, Any], connector: str | None) -> dict[str, Any]:
    """The request as the prefill server gets it: the same prompt, one token, no stream."""
    asked = {key: value for key, value in body.items() if key not in _DROPPED}
    asked |= {"max_tokens": 1, "stream": False}
    if "max_completion_tokens" in asked:
        asked["max_completion_tokens"] = 1
    if (connector or "").startswith("Nixl"):
        asked["kv_transfer_params"] = {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        }
    if connector == "MooncakeConnector":
        asked["kv_transfer_params"] = {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "transfer_id": f"xfer-{uuid.uuid4()}",
        }
    return asked


def decode_body(
    body: dict[str, Any], connector: str | None, asked: dict[str, Any], answer: dict[str, Any], place: dict[str, Any]
) -> dict[str, Any]:
    """The request as the decode server gets it: as it came, with word of where the KV cache lies.

    Args:
        body: As it came.
        connector: How caches move.
        asked: What the prefill server was asked, from :func:`prefill_body`.
        answer: What it answered.
        place: Where its caches are: ``remote_engine_id`` and ``remote_bootstrap_addr``, for Mooncake.
    """
    params = answer.get("kv_transfer_params")
    if (connector or "").startswith("Nixl") and params:
        return {**body, "kv_transfer_params": params}
    if connector == "MooncakeConnector":
        transfer = {"transfer_id": asked["kv_transfer_params"]["transfer_id"], **place}
        return {**body, "kv_transfer_params": {"do_remote_decode": False, "do_remote_prefill": True, **transfer}}
    return body
