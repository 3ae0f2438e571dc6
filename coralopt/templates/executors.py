"""Who does the tasks of the offline stage: this process, a pool of processes, or a Ray cluster. Same tasks, same results."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

from coralopt.errors import CoraloptError, LibraryError, OptionError

C = TypeVar("C")
T = TypeVar("T")
R = TypeVar("R")
F = TypeVar("F")


class Executor(Protocol):
    """Runs tasks and hands back results as they come, in any order."""

    @property
    def name(self) -> str:
        """As on the command line."""
        ...

    def run(self, function: Callable[[C, T], R], context: C, tasks: Sequence[T]) -> Iterator[tuple[int, R]]:
        """(position of the task, its result) for every task.

        Raises:
            LibraryError: A worker died; results handed out before are good.
        """
        ...


def _in_flight(
    submit: Callable[[T], F], first_finished: Callable[[Collection[F]], Iterable[F]], tasks: Sequence[T], most: int
) -> Iterator[tuple[int, F]]:
    """(position of a task, its finished future) as they come.

    ``most`` tasks run or wait ahead of the workers; the rest stays here, so that stopping is quick.
    """
    left = iter(enumerate(tasks))
    running: dict[F, int] = {}
    while True:
        for position, task in islice(left, most - len(running)):
            running[submit(task)] = position
        if not running:
            return
        for future in first_finished(running):
            yield running.pop(future), future


@dataclass(frozen=True)
class InProcess:
    """One task after the other, here; the task itself may use threads.

    Attributes:
        told: Called while a task runs with its position and the share of it that is done; the function must then
            take such a callback (of the share alone) as its third argument.
    """

    told: Callable[[int, float], None] | None = None
    name: str = "local"

    def run(self, function: Callable[..., R], context: C, tasks: Sequence[T]) -> Iterator[tuple[int, R]]:
        for position, task in enumerate(tasks):
            if self.told is None:
                yield position, function(context, task)
            else:
                yield position, function(context, task, partial(self.told, position))


@dataclass(frozen=True)
class ProcessPool:
    """A pool of fresh processes on this machine.

    Attributes:
        workers: Processes; one a core when ``None``.
    """

    workers: int | None = None
    name: str = "local"

    def run(self, function: Callable[[C, T], R], context: C, tasks: Sequence[T]) -> Iterator[tuple[int, R]]:
        before = set(multiprocessing.active_children())
        # Threads of compiled kernels and solvers do not survive a fork; fresh processes have none.
        pool = ProcessPoolExecutor(
            min(self.workers or os.cpu_count() or 1, max(len(tasks), 1)),
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(function, context),
        )
        most = 3 * (self.workers or os.cpu_count() or 1)
        try:
            for position, future in _in_flight(
                partial(_submit, pool),
                lambda running: wait(running, return_when=FIRST_COMPLETED).done,
                tasks,
                most,
            ):
                yield position, future.result()
            pool.shutdown()
        except BrokenProcessPool as error:
            raise LibraryError(
                "a worker process died (killed, or out of memory); finished parts are kept, run the same command again"
            ) from error
        finally:
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()
            # Waits for the pool's thread: one that ends while Python does may print a traceback of its own.
            pool.shutdown(cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, task: object) -> Future[Any]:
    """Submit a task, which may start a worker: Ctrl-C waits here until that is done, and there until its imports are, which
    would end with a traceback."""
    if not hasattr(signal, "pthread_sigmask"):
        return pool.submit(_do, task)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(_do, task)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# What every task of this worker shares: the function, whose types the pool has checked, and its context.
_shared: tuple[Callable[..., Any], object] | None = None


def _begin(function: Callable[[C, T], R], context: C) -> None:
    """In a worker: keep what all tasks share; let Ctrl-C end the process without a traceback."""
    global _shared
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _shared = (function, context)


def _end_with_parent() -> None:
    """A killed build must not leave workers behind that solve for nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _do(task: object) -> Any:  # what the function returns
    assert _shared is not None
    function, context = _shared
    return function(context, task)


@dataclass(frozen=True)
class RayCluster:
    """A Ray cluster: the one at ``address`` (or in RAY_ADDRESS), else a local one started for this build.

    Every machine of the cluster needs coralopt installed in the same version.

    Attributes:
        address: For example ``"ray://head:10001"`` or ``"auto"``; ``None`` as above.
        workers: Tasks at a time, each on one CPU; as many as the cluster takes when ``None``.
    """

    address: str | None = None
    workers: int | None = None
    name: str = "ray"

    def run(self, function: Callable[[C, T], R], context: C, tasks: Sequence[T]) -> Iterator[tuple[int, R]]:
        # Ray types only part of what it exports.
        ray: Any
        try:
            ray = importlib.import_module("ray")
        except ImportError as error:
            raise OptionError("executor 'ray' needs the package ray: pip install 'coralopt[ray]'") from error
        ours = not ray.is_initialized()
        if ours:
            try:
                ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR, **self._local_only())
            except Exception as error:
                # Ray raises what it likes: of time, of connections, and plain ones.
                raise LibraryError(
                    f"Ray could not be started or reached: {str(error).partition(chr(10))[0]}"
                ) from error
        try:
            shared = ray.put(context)
            # One task after the other on a CPU; a worker that dies is replaced and its task done again.
            remote = ray.remote(num_cpus=1, max_retries=2)(function)
            most = self.workers or max(1, int(ray.cluster_resources().get("CPU", 1)) * 2)
            for position, future in _in_flight(
                partial(remote.remote, shared), lambda running: ray.wait(list(running), num_returns=1)[0], tasks, most
            ):
                yield position, ray.get(future)
        except ray.exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, CoraloptError):
                raise cause from error
            raise LibraryError(f"a task failed on the Ray cluster: {error}") from error
        except ray.exceptions.RayError as error:
            raise LibraryError(
                f"the Ray cluster lost a task ({error}); finished parts are kept, run the same command again"
            ) from error
        finally:
            if ours:
                ray.shutdown()

    def _local_only(self) -> dict[str, object]:
        """A cluster started here listens on this machine only and has no dashboard."""
        if self.address is not None or os.environ.get("RAY_ADDRESS"):
            return {}
        return {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "num_cpus": os.cpu_count()}


EXECUTORS = ("local", "ray")


def make_executor(
    name: str, workers: int | None, in_process: bool, told: Callable[[int, float], None] | None = None
) -> Executor:
    """The executor of this name.

    Args:
        name: ``"local"`` or ``"ray"``.
        workers: Processes, or tasks at a time.
        in_process: Whether the tasks use threads of their own, so that one after the other is best on one machine.
        told: See :class:`InProcess`; the other executors speak only of whole tasks.

    Raises:
        OptionError: Unknown name.
    """
    if name == "ray":
        return RayCluster(workers=workers)
    if name == "local":
        return InProcess(told) if in_process else ProcessPool(workers)
    raise OptionError(f"unknown executor {name!r}; choose one of: {', '.join(EXECUTORS)}")
