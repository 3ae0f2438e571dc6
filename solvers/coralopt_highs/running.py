"""A run of HiGHS: in a thread of its own, one at a time in a process, with its events told."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from coralopt.solving.job import Job

if TYPE_CHECKING:
    from highspy import Highs


class ThreadPool:
    """HiGHS keeps one pool of threads a process; changing its size needs a reset, which must not overlap a solve.

    A process that is forked while another thread solves has the lock and the pool, but not the threads behind them.
    """

    lock = threading.Lock()
    lost = False

    @classmethod
    def forked(cls) -> None:
        if cls.lock.locked():
            cls.lock, cls.lost = threading.Lock(), True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ThreadPool.forked)


def run(solver: Highs, job: Job) -> bool:
    """Run to the end; whether Ctrl-C cut it short."""
    stop = threading.Event()
    job.stop = stop.set

    # No callback refers to the solver: a cycle would keep its memory.
    def interrupt(event: Any) -> None:
        if stop.is_set():
            event.interrupt()

    def incumbent(event: Any) -> None:
        data = event.data_out
        job.tell(data.objective_function_value, data.mip_dual_bound, lambda: np.array(data.mip_solution))

    for callback in (solver.cbMipInterrupt, solver.cbSimplexInterrupt, solver.cbIpmInterrupt):
        callback.subscribe(interrupt)
    if job.listener is not None:
        solver.cbMipImprovingSolution.subscribe(incumbent)
        solver.cbMipLogging.subscribe(lambda e: job.tell(e.data_out.mip_primal_bound, e.data_out.mip_dual_bound))

    begun: list[bool] = []

    def work() -> None:
        begun.append(True)
        try:
            # Without any time HiGHS would still copy the model and look at its start, which the core keeps anyway.
            if not stop.is_set() and job.time_left != 0:
                solver.resetGlobalScheduler(True)
                solver.run()
        finally:
            lock.release()

    # Waiting for the solves of other threads is no time of this one. The worker gives the lock back: a run that its
    # caller gave up on still keeps the others out.
    lock = ThreadPool.lock
    lock.acquire()
    try:
        with job.solving():
            return job.in_thread(work)
    finally:
        if not begun:
            lock.release()
