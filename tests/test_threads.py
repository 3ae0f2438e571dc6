"""Work in several threads: results do not depend on how many, errors surface, and Ctrl-C reaches all of it."""

from __future__ import annotations

import _thread
import sys
import threading
import time
from functools import partial
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coralopt import threads
from coralopt.threads import Lanes, heed_interrupt

#: Seconds after which something hangs.
PATIENCE_S = 30.0


def until_ended(begun: threading.Event | None = None) -> None:
    """Wait to be interrupted."""
    if begun is not None:
        begun.set()
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        time.sleep(0.005)
        heed_interrupt()
    raise AssertionError("nobody ended this")


def press() -> None:
    """Ctrl-C, once the main thread waits for a piece: earlier or later, it would land in pytest."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        frame: FrameType | None = sys._current_frames()[threading.main_thread().ident or 0]
        while frame is not None and frame.f_code is not Lanes._until_over.__code__:
            frame = frame.f_back
        if frame is not None:
            break
        time.sleep(0.005)
    _thread.interrupt_main()


@given(
    delays=st.lists(st.sampled_from([0.0, 0.001, 0.003]), max_size=8),
    count=st.integers(1, 4),
    ahead=st.integers(1, 5),
)
def test_what_is_drawn_depends_on_results_and_not_on_threads(delays, count, ahead):
    """Piece k knows the results of all pieces up to k - ahead, whatever ends first."""
    taken: list[int] = []

    def piece(k: int, known: int, delay: float) -> tuple[int, int]:
        time.sleep(delay)
        return k, known

    def drawn():
        for k, delay in enumerate(delays):
            yield partial(piece, k, len(taken), delay)

    with Lanes(count) as lanes:
        for k, known in lanes.results(drawn(), ahead):
            assert known == max(0, k - ahead + 1)
            taken.append(k)
    assert taken == list(range(len(delays)))
    assert not lanes.interrupted


def test_nothing_is_drawn_until_a_result_is_taken():
    """Who yields None has nothing to do but what others make of it."""
    taken: list[int] = []

    def drawn():
        for k in range(3):
            while len(taken) < k:
                yield None
            yield lambda k=k: k

    with Lanes(2) as lanes:
        for k in lanes.results(drawn(), 4):
            taken.append(k)
    assert taken == [0, 1, 2]


def test_pieces_run_at_the_same_time():
    """Two that wait for each other both end."""
    meeting = threading.Barrier(2, timeout=PATIENCE_S)
    with Lanes(2) as lanes:
        assert sorted(lanes.results(iter([meeting.wait, meeting.wait]), 2)) == [0, 1]


@pytest.mark.parametrize("count", [1, 2])
def test_errors_surface_and_end_the_others(count):
    """The first in order is raised; nobody goes on for nothing."""

    def fail() -> None:
        raise ZeroDivisionError("in a piece")

    with pytest.raises(ZeroDivisionError, match="in a piece"), Lanes(count) as lanes:
        list(lanes.results(iter([fail, until_ended]), 2))


def test_leaving_early_ends_what_runs():
    """No piece outlives the block."""
    begun = threading.Event()
    with Lanes(2) as lanes:
        for _ in lanes.results(iter([lambda: begun.wait(PATIENCE_S), partial(until_ended, begun)]), 2):
            break
    assert not lanes.interrupted


def test_stop_keeps_what_ended_well():
    """Who is told to stop may still say what is known."""

    def first() -> str:
        begun.wait(PATIENCE_S)
        lanes.stop()
        return "first"

    def second() -> str:
        try:
            until_ended(begun)
        except KeyboardInterrupt:
            return "cut short"
        return "to the end"

    begun = threading.Event()
    with Lanes(2) as lanes:
        assert list(lanes.results(iter([first, second, until_ended]), 3)) == ["first", "cut short"]
    assert not lanes.interrupted


@pytest.mark.parametrize("count", [1, 2])
def test_interrupt_reaches_all_pieces(count):
    """Ctrl-C ends those that wait, and begins no more; what ended before is kept."""

    def second() -> None:
        if count == 1:
            # The signal arrives between two steps of this thread.
            _thread.interrupt_main()
            time.sleep(PATIENCE_S)
        first_taken.wait(PATIENCE_S)
        press()
        until_ended()

    first_taken = threading.Event()
    taken = []
    with Lanes(count) as lanes:
        for result in lanes.results(iter([lambda: 1, second, until_ended, until_ended]), 2):
            taken.append(result)
            first_taken.set()
    assert taken == [1]
    assert lanes.interrupted


def test_a_second_interrupt_gives_up_waiting():
    """A piece that does not heed the first is left to itself."""
    release = threading.Event()

    def deaf() -> None:
        press()
        while not lanes.interrupted:
            time.sleep(0.005)
        press()
        release.wait(PATIENCE_S)

    with pytest.raises(KeyboardInterrupt), Lanes(2) as lanes:
        list(lanes.results(iter([deaf, until_ended]), 2))
    release.set()


def test_an_interrupt_while_the_next_piece_is_drawn():
    """What has begun ends, and what is known is kept."""

    def drawn():
        yield begun.set
        begun.wait(PATIENCE_S)
        raise KeyboardInterrupt

    begun = threading.Event()
    with Lanes(2) as lanes:
        assert list(lanes.results(drawn(), 2)) == [None]
    assert lanes.interrupted


def test_an_interrupt_at_any_line_leaves_nothing_waiting(interrupt_at):
    """What is kept are the first results, and the block ends."""
    outcomes = set()
    came, line = True, 0
    while came:
        line += 1
        taken: list[int] = []
        lanes = Lanes(2)
        with interrupt_at(line, lambda code: code.co_filename == threads.__file__) as has_come:
            try:
                with lanes:
                    taken.extend(lanes.results((partial(int, k) for k in range(4)), 2))
            except KeyboardInterrupt:
                outcomes.add("raised")
            else:
                outcomes.add("kept" if lanes.interrupted else "to the end")
                assert taken == list(range(len(taken)))
            came = has_come()
    assert outcomes == {"raised", "kept", "to the end"}
    assert taken == [0, 1, 2, 3]


def test_pieces_of_pieces_are_interrupted_too():
    """A piece may have threads of its own: it hears of Ctrl-C while it waits for them, and passes it on."""
    begun = threading.Event()

    def outer() -> bool:
        with Lanes(2) as inner:
            list(inner.results(iter([partial(until_ended, begun), until_ended]), 2))
        return inner.interrupted

    def second() -> None:
        begun.wait(PATIENCE_S)
        press()
        until_ended()

    with Lanes(2) as lanes:
        assert list(lanes.results(iter([outer, second]), 2)) == [True]
    assert lanes.interrupted


def test_the_main_thread_is_never_told():
    """Outside of pieces there is nothing to heed."""
    heed_interrupt()
