"""How much of the prompts a prefix cache holds, from traces that name the blocks of every prompt.

Mooncake's traces (JSON lines: ``timestamp``, ``input_length``, ``hash_ids``) give every block of 512 prompt tokens a number
that says all that comes before it, too. Prompts are served in order of arrival from one cache of blocks, where the one used
longest ago goes first when it is full. What a request finds are the leading blocks of its prompt that are there, and at most
all tokens but the last one, which is computed in any case.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from coralopt.errors import WorkloadError
from coralopt.workload.files.tables import open_text

#: Tokens of one block in Mooncake's traces.
BLOCK_TOKENS = 512


@dataclass(frozen=True)
class PrefixHits:
    """What prompts find in a cache.

    Attributes:
        cache_tokens: Its size in tokens, ``None`` for any.
        requests: Requests of the trace.
        input_tokens: Their prompt tokens.
        hit_tokens: Those found in the cache.
        hit_requests: Requests that found some.
    """

    cache_tokens: int | None
    requests: int
    input_tokens: int
    hit_tokens: int
    hit_requests: int

    @property
    def prefix_hit(self) -> float:
        """Share of the prompt tokens found in the cache."""
        return self.hit_tokens / self.input_tokens


def prefix_hits(path: str | Path, cache_tokens: int | None = None, block_tokens: int = BLOCK_TOKENS) -> PrefixHits:
    """Serve a trace from one prefix cache.

    Args:
        path: JSON lines in Mooncake's format, gzipped or not.
        cache_tokens: Tokens that the cache holds; any number when ``None``.
        block_tokens: Tokens of a block.

    Raises:
        WorkloadError: A line is none of that format, or there is none; or a size is out of range.
    """
    for name, size in (("cache_tokens", cache_tokens), ("block_tokens", block_tokens)):
        if size is not None and size < 1:
            raise WorkloadError(f"{name} is {size}; it must be at least 1")
    prompts = sorted(_prompts(Path(path), block_tokens), key=lambda prompt: prompt[0])
    if not prompts:
        raise WorkloadError(f"{path}: holds no requests")
    room = None if cache_tokens is None else cache_tokens // block_tokens
    cache: OrderedDict[int, None] = OrderedDict()
    hit_tokens = hit_requests = 0
    for _, length, blocks in prompts:
        leading = next((k for k, block in enumerate(blocks) if block not in cache), len(blocks))
        hit = min(leading * block_tokens, length - 1)
        hit_tokens += hit
        hit_requests += hit > 0
        for block in reversed(blocks):
            # The beginning of a prompt is worth most, so it goes last.
            cache[block] = None
            cache.move_to_end(block)
        while room is not None and len(cache) > room:
            cache.popitem(last=False)
    return PrefixHits(cache_tokens, len(prompts), sum(length for _, length, _ in prompts), hit_tokens, hit_requests)


def _prompts(path: Path, block_tokens: int) -> list[tuple[float, int, list[int]]]:
    """(arrival, tokens, blocks) of every request."""
    prompts = []
    with open_text(path) as text:
        for number, line in enumerate(text, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                arrival, length, blocks = float(row["timestamp"]), row["input_length"], row["hash_ids"]
                sound = isinstance(length, int) and length > 0 and all(isinstance(block, int) for block in blocks)
                if not sound or not (len(blocks) - 1) * block_tokens < length <= len(blocks) * block_tokens:
                    raise ValueError
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise WorkloadError(
                    f"{path}: line {number} is no request with block hashes: it needs timestamp, input_length (above 0) and "
                    f"hash_ids, a number for each block of {block_tokens} tokens; only such traces tell what caches hold"
                ) from error
            prompts.append((arrival, length, blocks))
    return prompts
