"""Threads for what does not depend on each other; compiled simulations run side by side, with the results of one thread."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from coralopt.types import Progress

T = TypeVar("T")
R = TypeVar("R")


class _StoppedError(Exception):
    """Somebody else failed, or Ctrl-C: nobody waits for this result."""


class OutOfTimeError(Exception):
    """The time limit is over: what is known by now has to do."""


class Workers:
    """One thread a core.

    Args:
        progress: Told what is done, by one thread at a time.
        seconds: Work that tells of itself ends after so many.
    """

    def __init__(self, progress: Progress | None = None, seconds: float | None = None) -> None:
        self._progress, self._lock = progress, threading.Lock()
        # What ended the work, if anything did.
        self._failure: BaseException | None = None
        self._maps = 0
        self._deadline = math.inf if seconds is None else time.monotonic() + seconds

    def go_on(self, seconds: float) -> None:
        """Work may be done again, after time was over or before, and ends after so many seconds."""
        self._failure, self._deadline = None, time.monotonic() + seconds

    def tell(self, what: str, number: int, total: int) -> None:
        """Pass progress on; work that tells of itself ends here as soon as other work has failed, or time is over.

        Raises:
            OutOfTimeError: It is.
        """
        if self._failure is not None:
            raise _StoppedError
        if time.monotonic() > self._deadline:
            raise OutOfTimeError
        if self._progress is not None:
            with self._lock:
                self._progress(what, number, total)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """What a function gives for each item, in their order; the function may be at work on several at once.

        The first failure of any work ends all of it, and is what is raised, whichever work is waited for.
        """

        def watched(item: T) -> R:
            try:
                return function(item)
            except BaseException as error:
                self._failure = self._failure or error
                raise

        with self._lock:
            self._maps += 1
        try:
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                try:
                    return list(pool.map(watched, items))
                except BaseException as error:
                    self._failure = self._failure or error
                    raise self._failure from None
        finally:
            with self._lock:
                self._maps -= 1
                if not self._maps:
                    # Nobody is at work any more: whoever handles the failure may have other work done.
                    self._failure = None
