"""One trace through Vidur, in an environment that has what Vidur imports: ``python vidur_worker.py VIDUR JOB ANSWER``.

VIDUR is a checkout of github.com/microsoft/vidur. Its scheduler, events and composition of a step are its own; the times
of a layer's kernels are those of the job, where Vidur would predict them from its profile.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: Vidur's classes, which have no types.
_External = Any


def main(source: str, job_file: str, answer_file: str) -> None:
    """Run the job's trace; write (time to first token, time per output token) of every request, and the seconds it took."""
    sys.path.insert(0, source)
    from vidur.config import (
        ClusterConfig,
        MetricsConfig,
        ReplicaConfig,
        RoundRobinGlobalSchedulerConfig,
        SarathiSchedulerConfig,
        SimulationConfig,
        SyntheticRequestGeneratorConfig,
    )
    from vidur.entities import Request
    from vidur.execution_time_predictor import ExecutionTimePredictorRegistry
    from vidur.simulator import Simulator

    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    predictor = _predictor(job)
    ExecutionTimePredictorRegistry.get = classmethod(lambda cls, kind, **configs: predictor(**configs))
    arrivals = zip(job["arrival_s"], job["input_tokens"], job["output_tokens"], strict=True)
    requests = [Request(arrived_at=at, num_prefill_tokens=s, num_decode_tokens=o) for at, s, o in arrivals]
    # What an answer has left changes at a preemption.
    answers = [request.num_decode_tokens for request in requests]
    with tempfile.TemporaryDirectory() as folder:
        metrics = MetricsConfig(write_metrics=False, store_plots=False, enable_chrome_trace=False, output_dir=folder)
        metrics.output_dir = folder
        replica = ReplicaConfig(
            model_name=job["model"],
            device="a100",
            network_device="a100_pairwise_nvlink",
            num_pipeline_stages=job["stages"],
        )
        scheduler = SarathiSchedulerConfig(
            batch_size_cap=job["batch"],
            block_size=16,
            num_blocks=job["blocks"],
            chunk_size=job["chunk"],
            watermark_blocks_fraction=0.0,
        )
        cluster = ClusterConfig(
            num_replicas=job["replicas"],
            replica_config=replica,
            global_scheduler_config=RoundRobinGlobalSchedulerConfig(),
            replica_scheduler_config=scheduler,
        )
        config = SimulationConfig(
            cluster_config=cluster,
            metrics_config=metrics,
            request_generator_config=SyntheticRequestGeneratorConfig(num_requests=1),
        )
        simulator = Simulator(config)
        _replace_requests(simulator, requests)
        begun = time.process_time()
        simulator.run()
        seconds = time.process_time() - begun
    ttft = [1e3 * (request.prefill_completed_at - request.arrived_at) for request in requests]
    later = [max(answer - 1, 1) for answer in answers]
    tpot = [1e3 * (r.completed_at - r.prefill_completed_at) / n for r, n in zip(requests, later, strict=True)]
    result = {"ttft_ms": ttft, "tpot_ms": tpot, "seconds": seconds, "restarts": sum(r.num_restarts for r in requests)}
    Path(answer_file).write_text(json.dumps(result), encoding="utf-8")


def _replace_requests(simulator: _External, requests: list[_External]) -> None:
    """The job's arrivals in the place of generated ones, and no report at the end."""
    import atexit

    from vidur.events import RequestArrivalEvent

    atexit.unregister(simulator._write_output)
    simulator._event_queue.clear()
    for request in requests:
        simulator._add_event(RequestArrivalEvent(request.arrived_at, request))


def _predictor(job: dict[str, Any]) -> type:
    """A predictor with the job's kernel times, ms of a layer: products by tokens of the step, attention by sequence."""
    from vidur.execution_time_predictor.base_execution_time_predictor import BaseExecutionTimePredictor

    products, attention = job["products_ms"], job["attention_ms"]

    def nothing(self: _External, batch: _External) -> float:
        return 0.0

    def of_tokens(self: _External, batch: _External) -> float:
        return float(products[batch.total_num_tokens])

    def decodes(self: _External, batch: _External) -> float:
        contexts = [r.num_processed_tokens for r in batch.requests if r.is_prefill_complete]
        return attention["launch"] + attention["read"] * sum(contexts) if contexts else 0.0

    def prompts(self: _External, batch: _External) -> float:
        chunks = [
            n * (r.num_processed_tokens + n / 2)
            for r, n in zip(batch.requests, batch.num_tokens, strict=True)
            if not r.is_prefill_complete
        ]
        return float(attention["launch_prompts"] + attention["pair"] * sum(chunks)) if chunks else 0.0

    def at_stage(self: _External, batch: _External, stage: int) -> _External:
        self.stage = stage
        return BaseExecutionTimePredictor.get_execution_time(self, batch, stage)

    def other(self: _External, batch: _External) -> float:
        """Head and host at the last stage; embedding at the first; what passing activations on takes at all but the last."""
        last = self.stage == job["stages"] - 1
        if job["stages"] == 1:
            return float(job["other_ms"])
        each = job["embed_ms"] * (self.stage == 0) + job["send_ms"] * (not last)
        return float(job["other_ms"] * last + job["hop_ms"] + each * batch.total_num_tokens)

    methods: dict[str, Any] = dict.fromkeys(BaseExecutionTimePredictor.__abstractmethods__, nothing)
    methods["_get_mlp_layer_up_proj_execution_time"] = of_tokens
    methods["_get_attention_decode_execution_time"] = decodes
    methods["_get_attention_prefill_execution_time"] = prompts
    methods["_get_sampler_e2e_time"] = other
    methods["get_execution_time"] = at_stage
    return type("JobTimes", (BaseExecutionTimePredictor,), methods)


if __name__ == "__main__":
    main(*sys.argv[1:])
