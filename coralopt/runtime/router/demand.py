"""What clients ask for, counted where they ask: the demand behind the next epoch's plan."""

from __future__ import annotations

import time
from typing import Any


class DemandMeter:
    """Sums since the router started, by model. Two looks at them, and the time between, give rates.

    Requests that were refused for want of room count as demand; those that no server would take (4xx) do not.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._models: dict[str, dict[str, int]] = {}

    def _of(self, model: str) -> dict[str, int]:
        return self._models.setdefault(
            model, {"requests": 0, "answered": 0, "prompt_tokens": 0, "completion_tokens": 0}
        )

    def arrived(self, model: str) -> None:
        """A request for a model that is served here."""
        self._of(model)["requests"] += 1

    def withdrawn(self, model: str) -> None:
        """It turned out to be at fault itself."""
        self._of(model)["requests"] -= 1

    def answered(self, model: str, prompt_tokens: int, completion_tokens: int) -> None:
        """A whole answer, with its tokens."""
        sums = self._of(model)
        sums["answered"] += 1
        sums["prompt_tokens"] += prompt_tokens
        sums["completion_tokens"] += completion_tokens

    def document(self) -> dict[str, Any]:
        """Seconds since the start, and the sums of every model that was asked for."""
        return {"seconds": time.monotonic() - self._started, "models": {m: dict(s) for m, s in self._models.items()}}
