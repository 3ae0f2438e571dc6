"""What clients ask for, counted where they ask: the demand behind the next epoch's plan."""

from __future__ import annotations

import time
from collections import defaultdict

from coralopt.types import JsonObject

_SUMS = ("requests", "answered", "prompt_tokens", "completion_tokens")


class DemandMeter:
    """Sums since the router started, by model. Two looks at them, and the time between, give rates.

    Requests that were refused for want of room count as demand; those that no server would take (4xx) do not.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._models: defaultdict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_SUMS, 0))

    def arrived(self, model: str) -> None:
        """A request for a model that is served here."""
        self._models[model]["requests"] += 1

    def withdrawn(self, model: str) -> None:
        """It turned out to be at fault itself."""
        self._models[model]["requests"] -= 1

    def answered(self, model: str, prompt_tokens: int, completion_tokens: int) -> None:
        """A whole answer, with its tokens."""
        for name, count in zip(_SUMS[1:], (1, prompt_tokens, completion_tokens), strict=True):
            self._models[model][name] += count

    def document(self) -> JsonObject:
        """Seconds since the start, and the sums of every model that was asked for."""
        return {"seconds": time.monotonic() - self._started, "models": {m: dict(s) for m, s in self._models.items()}}
