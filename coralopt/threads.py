"""Work of one process in several threads: results in order, errors raised, and Ctrl-C that reaches all of it."""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

_Result = TypeVar("_Result")

#: Seconds between two looks for Ctrl-C.
LOOK_S = 0.2


class _Here(threading.local):
    """What ends the work of this thread, and whether it has been told of that already."""

    ended: threading.Event | None = None
    told = False


_HERE = _Here()


def heed_interrupt() -> None:
    """For loops that wait in other threads than the main one, which Ctrl-C does not reach.

    Raises:
        KeyboardInterrupt: Once in every piece of work, where Ctrl-C came, or nobody waits for it any more.
    """
    if _HERE.ended is not None and _HERE.ended.is_set() and not _HERE.told:
        _HERE.told = True
        raise KeyboardInterrupt


def wait_for(event: threading.Event) -> None:
    """Wait in any thread.

    Raises:
        KeyboardInterrupt: Ctrl-C, or :func:`heed_interrupt`.
    """
    over = False
    while not over:
        over = event.wait(LOOK_S)
        heed_interrupt()


class Piece(Generic[_Result]):
    """A piece of work, and what became of it."""

    def __init__(self, work: Callable[[], _Result]) -> None:
        self.work, self.over = work, threading.Event()
        self.results: list[_Result] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        _HERE.told = False
        try:
            self.results.append(self.work())
        except BaseException as error:
            self.error = error
        finally:
            self.over.set()


class Lanes:
    """Threads that do pieces of work side by side; a context manager, which ends what nobody waits for any more.

    Ctrl-C is passed on to the pieces that wait by :func:`heed_interrupt`, and no more are begun; a second one gives up
    waiting for them.

    Args:
        count: How many pieces at a time. 1 needs no thread.

    Attributes:
        interrupted: Whether Ctrl-C came.
    """

    def __init__(self, count: int) -> None:
        self.count, self.interrupted = count, False
        self._ended = threading.Event()
        self._queue: SimpleQueue[Piece[Any] | None] = SimpleQueue()
        self._threads = 0
        self._begun: list[Piece[Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        for _ in range(self._threads):
            self._queue.put(None)
        if not isinstance(error, KeyboardInterrupt):
            for piece in self._begun:
                self._until_over(piece)

    def results(self, work: Iterator[Callable[[], _Result] | None], ahead: int) -> Iterator[_Result]:
        """Results in order, without those that Ctrl-C or :meth:`stop` kept from ending well.

        Piece k is asked for once result k - ``ahead`` has been taken, and not before: what pieces are does not depend on
        how long others take, or on how many there are at a time.

        Args:
            work: Pieces that change nothing they share, and spend their time where Python lets other threads run; ``None``
                for nothing until one more result has been taken, of those there are.
            ahead: How many pieces may be begun of which no result has been taken.

        Raises:
            Exception: What a piece raised.
        """
        pending: deque[Piece[_Result]] = deque()
        while True:
            try:
                while len(pending) < ahead and not self._ended.is_set() and (following := next(work, None)) is not None:
                    pending.append(self.begin(following))
                if not pending:
                    return
                results = self.wait(pending[0])
            except KeyboardInterrupt:
                # It may land anywhere in here, not only where a piece is waited for.
                self._interrupt()
                continue
            pending.popleft()
            yield from results

    def stop(self) -> None:
        """Have all pieces end early."""
        self._ended.set()

    def begin(self, work: Callable[[], _Result]) -> Piece[_Result]:
        """A piece that is done as soon as a thread is free, or by :meth:`wait` where there is none."""
        piece = Piece(work)
        if self.count > 1:
            if self._threads < self.count:
                # Not Thread.start: Ctrl-C that lands inside it loses track of the running thread.
                _thread.start_new_thread(self._serve, ())
                self._threads += 1
            self._queue.put(piece)
            # Last, because what is listed here is waited for: wherever Ctrl-C lands, a thread has it.
            self._begun = [other for other in self._begun if not other.over.is_set()] + [piece]
        return piece

    def wait(self, piece: Piece[_Result]) -> list[_Result]:
        """Its result, once it is over; none where Ctrl-C or :meth:`stop` kept it from ending well.

        Raises:
            Exception: What it raised.
        """
        if self.count > 1:
            self._until_over(piece)
        elif not self._ended.is_set():
            piece.run()
        if isinstance(piece.error, KeyboardInterrupt):
            if not self._ended.is_set():
                self._interrupt()
        elif piece.error is not None:
            raise piece.error
        return piece.results

    def _until_over(self, piece: Piece[Any]) -> None:
        """Wait for a piece that a thread does."""
        while True:
            try:
                return wait_for(piece.over)
            except KeyboardInterrupt:
                self._interrupt()

    def _interrupt(self) -> None:
        """Ctrl-C came: the first one ends the pieces, the second one gives up waiting for them."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self._ended.set()

    def _serve(self) -> None:
        """What a thread does."""
        _HERE.ended = self._ended
        while (piece := self._queue.get()) is not None:
            if self._ended.is_set():
                piece.over.set()
            else:
                piece.run()
