"""Clients with keys and limits of their own."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable

from coralopt.runtime.router.config import ClientConfig


class Bucket:
    """Fills at a steady rate up to a minute's worth; what was taken beyond that is owed.

    Args:
        per_minute: How fast it fills; it is full at first.
        clock: Seconds.
    """

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute, self._clock = per_minute, clock
        self._level, self._at = per_minute, clock()

    def wait_s(self, amount: float) -> float:
        """Seconds until it holds ``amount``, or all it can hold where that is less; 0 when it does."""
        now = self._clock()
        self._level = min(self._per_minute, self._level + (now - self._at) * self._per_minute / 60)
        self._at = now
        return max(0.0, min(amount, self._per_minute) - self._level) * 60 / self._per_minute

    def take(self, amount: float) -> None:
        self._level -= amount


class Client:
    """One key's owner."""

    def __init__(self, config: ClientConfig) -> None:
        self.name = config.name
        self._requests = None if config.requests_per_minute is None else Bucket(config.requests_per_minute)
        self._tokens = None if config.tokens_per_minute is None else Bucket(config.tokens_per_minute)

    def admit(self) -> int:
        """Count a request; or the seconds after which it may come again, 0 when it may come now."""
        waits = [bucket.wait_s(1.0) for bucket in (self._requests, self._tokens) if bucket is not None]
        if wait := max(waits, default=0.0):
            return max(1, math.ceil(wait))
        if self._requests is not None:
            self._requests.take(1.0)
        return 0

    def used(self, tokens: int) -> None:
        """Count the tokens of an answer; nobody knows them before."""
        if self._tokens is not None:
            self._tokens.take(tokens)


class Clients:
    """Who may ask: everybody where no key is set at all.

    Args:
        configs: Those with limits.
        key: One more key, without limits.
    """

    def __init__(self, configs: Iterable[ClientConfig], key: str | None) -> None:
        self._by_digest = {config.key_sha256: Client(config) for config in configs}
        self._anybody: Client | None = None
        if key is not None:
            self._by_digest[_digest(key.encode())] = Client(ClientConfig(name="default", key_sha256="0" * 64))
        elif not self._by_digest:
            self._anybody = Client(ClientConfig(name="anybody", key_sha256="0" * 64))

    def find(self, authorization: str) -> Client | None:
        """The owner of the key in a header; digests are compared, so time tells nothing about keys."""
        key = authorization.removeprefix("Bearer ").encode(errors="surrogateescape")
        return self._anybody or self._by_digest.get(_digest(key))


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()
