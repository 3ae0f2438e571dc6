"""Decode tokens/s of a layout in Helix's own simulator; run by ``helix_served.py`` in an interpreter that has its packages.

    PYTHONPATH=HELIX python benchmarks/helix_simulator.py FOLDER SEED '{"A100": 4, "L4": 8, "T4": 12}'

FOLDER is what ``coralopt place POOL --write-helix FOLDER`` writes, or any folder with these four files. Offline mode as in
the artifact's ``simulate_maxflow_offline``, with a warm-up of 60 s and a window of 300 s. Logs and latency records are
switched off, finished requests are counted at once and past events are not kept: they take up to 20 GB and change nothing,
as do the locks of the queue of events and the collector of cycles, which take a quarter of the time.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

# Helix's artifact (Thesys-lab/Helix-ASPLOS25, Apache-2.0); it is no package that could be installed.
from simulator.event_simulator import cluster_simulator, latency_analyzer, logger  # type: ignore[import-not-found]
from simulator.event_simulator.cluster_simulator import (  # type: ignore[import-not-found]
    ClusterSimulator,
    ModelName,
    RequestPhase,
    SchedulingMethod,
)
from simulator.initial_layout.layout_synthesizer import (  # type: ignore[import-not-found]
    LayoutMethod,
    LayoutSynthesizer,
)
from simulator.scheduler.global_maxflow.global_maxflow_scheduler import (  # type: ignore[import-not-found]
    KVParameters,
    SchedulingMode,
)
from simulator.trace_generator.simulator_query_feeder import OfflineRequestFeeder  # type: ignore[import-not-found]

WARM_UP_S, WINDOW_S = 60, 300


class _Heap:
    """The queue of events without the locks of threads, of which there is one."""

    def __init__(self) -> None:
        self.queue: list[Any] = []

    def put(self, event: Any) -> None:
        """One more event."""
        heapq.heappush(self.queue, event)

    def get(self) -> Any:
        """The next event."""
        return heapq.heappop(self.queue)

    def empty(self) -> bool:
        """Whether no event is left."""
        return not self.queue


class _Forgets(dict[int, object]):
    """The simulator only asks whether an event has been there before."""

    def append(self, event: object) -> None:
        """Nothing is kept."""

    def __setitem__(self, number: int, event: object) -> None:
        """Nothing is kept."""


def main() -> None:
    gc.disable()
    cluster_simulator.PriorityQueue = _Heap
    folder, seed, machines = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    logger.Logger.add_log = lambda *_, **__: None
    latency_analyzer.LatencyAnalyzer.add_request = lambda *_, **__: None
    latency_analyzer.LatencyAnalyzer.add_query = lambda *_, **__: None
    counted = 0
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as workspace:
        layout = LayoutSynthesizer(
            complete_cluster_file_name=str(folder / "cluster.ini"),
            machine_profile_name=str(folder / "machine_profiles.ini"),
            model_name=ModelName.LLaMa70B,
            workspace_path=workspace,
            layout_method=LayoutMethod.LoadExisting,
            machine_num_dict=machines,
        )
        names = {
            "solution_file_name": str(folder / "solution.ini"),
            "simulator_cluster_file_name": str(folder / "simulator_cluster.ini"),
        }
        simulated = ClusterSimulator(model_name=ModelName.LLaMa70B, machine_num_dict=machines)
        simulated.from_ini_file(config_file_name=layout.synthesize(args=names))
        simulated.previous_events_list = simulated.previous_events_dict = _Forgets()
        rules = KVParameters(expected_kv_hwm=0.85, expected_output_length_ratio=1)
        simulated.init_scheduler(
            scheduling_method=SchedulingMethod.MaxFlow,
            args={"kv_param": rules, "scheduling_mode": SchedulingMode.Offline},
        )
        simulated.init_query_manager()
        simulated.mark_as_ready()
        start = layout.set_layout(simulator=simulated)
        simulated.update_scheduler()
        gather = simulated.handle_gather_finished

        def gather_and_count(event: object) -> None:
            nonlocal counted
            gather(event)
            for when, request in simulated.finished_requests.values():
                counted += request.phase == RequestPhase.Increment and when >= start + WARM_UP_S
            simulated.finished_requests.clear()

        simulated.handle_gather_finished = gather_and_count
        feeder = OfflineRequestFeeder(
            initial_query_count=20,
            start_time=start,
            duration=WARM_UP_S + WINDOW_S,
            stop_at_duration=True,
            feed_hwm=0.8,
            seed=seed,
        )
        feeder.auto_simulate(simulator=simulated, watch_items=[], watch_interval=None)
    print(counted / WINDOW_S)


if __name__ == "__main__":
    main()
