"""A run of HiGHS: in a thread of its own, with its events told.

HiGHS keeps a pool of worker threads for every thread that runs it (``HighsTaskExecutor``, thread-local), which ends with
that thread. So runs of several threads share nothing, and each may have another number of threads.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from coralopt.solving.job import Job

if TYPE_CHECKING:
    from highspy import Highs


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

    def work() -> None:
        # Without any time HiGHS would still copy the model and look at its start, which the core keeps anyway.
        if not stop.is_set() and job.time_left != 0:
            solver.run()

    with job.solving():
        return job.in_thread(work)
