"""vLLM as an engine: argument lists and environments for ``vllm serve``, checked against vLLM 0.32.0."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from coralopt.catalog.types import Speculative
from coralopt.errors import LaunchError
from coralopt.plan import Plan
from coralopt.runtime.engine import Command, NodeJob
from coralopt.runtime.launch import EngineVerdict
from coralopt.runtime.vllm_rules import CONNECTORS, Rules, judge
from coralopt.scenario.facts.serving import LEAST_PROMPTS, LEAST_STEP_TOKENS
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.throughput.engines import graph_sizes, own_graphs
from coralopt.throughput.nodes import MEMORY_SHARE


@dataclass(frozen=True)
class VllmEngine:
    """Stock vLLM: one process a stage, several nodes without Ray.

    Attributes:
        program: How to call vLLM, ``("vllm",)``.
        model_paths: Model name -> checkpoint name or directory; the published checkpoint by default.
        connector: ``"auto"``: NIXL, pushing where a prefill side is pipelined; ``"nixl"``, ``"nixl-push"``,
            ``"mooncake"``, ``"lmcache"`` (servers of yours at ``kv_server``), or ``"example"`` (files in
            ``kv_directory``, for tests).
        kv_directory: Shared directory of the connector ``"example"``.
        kv_server: HOST:PORT of the LMCache server, as every node reaches its own.
        virtual_nodes: Run nodes with more GPUs than the common tensor-parallel degree as several stages. The
            plan's throughput no longer holds.
        memory_share: Share of GPU memory vLLM takes; the planner counts on 0.9.
        max_model_len: Longest context in tokens; the longest that fits when ``None``.
        kv_cache_bytes: KV cache a process, for example ``"64M"``, in place of what is left of the memory.
        expert_parallel: Experts of a mixture-of-experts model whole on single GPUs, rather than each split over all.
        interface: Network interface for NCCL and Gloo, for example ``"eth0"``; their own choice when ``None``.
        drain_s: Seconds that requests in flight are given when a server is told to stop.
        cpu: Start vLLM's CPU build, for trying things out: no GPUs, no compiled graphs.
        extra: Further arguments of every ``vllm serve``.

    Raises:
        LaunchError: An unknown connector, ``"example"`` without a directory, or a ``kv_server`` that is no address.
    """

    program: tuple[str, ...] = ("vllm",)
    model_paths: Mapping[str, str] = field(default_factory=dict)
    connector: str = "auto"
    kv_directory: str | None = None
    kv_server: str = "localhost:5555"
    virtual_nodes: bool = False
    memory_share: float = MEMORY_SHARE
    max_model_len: int | None = None
    kv_cache_bytes: str | None = None
    expert_parallel: bool = False
    interface: str | None = None
    drain_s: int = 120
    cpu: bool = False
    extra: tuple[str, ...] = ()

    name = "vllm"
    health_path = "/health"

    def __post_init__(self) -> None:
        if self.connector not in {"auto", *CONNECTORS}:
            raise LaunchError(
                f"connector {self.connector!r} is not one of auto, {', '.join(CONNECTORS)}; auto picks by the rules"
            )
        if self.connector == "example" and not self.kv_directory:
            raise LaunchError("connector 'example' passes KV caches as files: name a shared directory (kv_directory)")
        host, _, port = self.kv_server.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise LaunchError(f"kv_server {self.kv_server!r}: expected HOST:PORT, for example localhost:5555")

    def judge(self, plan: Plan, scenario: ResolvedScenario) -> tuple[EngineVerdict, ...]:
        """Verdicts by the rules of docs/runtime.md; see :class:`coralopt.runtime.Engine`."""
        return judge(plan, scenario, Rules(self.connector, self.virtual_nodes, self.memory_share, self.model_paths))

    def command(self, job: NodeJob) -> Command:
        """The ``vllm serve`` of one process; see :class:`coralopt.runtime.Engine`."""
        part, pipeline, model = job.pipeline.slices[job.rank], job.pipeline, job.model_phase.model
        stages, degree = len(pipeline.slices), len(part.gpus)
        argv = [*self.program, "serve", self.model_paths.get(model.name, model.hf_id)]
        argv += ["--served-model-name", job.model_phase.served]
        if job.rank == 0:
            argv += ["--host", job.bind, "--port", str(job.ports["http"]), "--shutdown-timeout", str(self.drain_s)]
        argv += ["--tensor-parallel-size", str(degree)]
        if stages > 1:
            argv += ["--pipeline-parallel-size", str(stages), "--nnodes", str(stages), "--node-rank", str(job.rank)]
            argv += ["--master-addr", job.head, "--master-port", str(job.ports["rendezvous"])]
            argv += ["--headless"] if job.rank else []
        if self.expert_parallel and model.experts and degree > 1:
            argv.append("--enable-expert-parallel")
        if model.published_format is not None and model.name not in self.model_paths:
            argv += ["--quantization", model.weight_format]
        if model.kv_format != "bf16":
            argv += ["--kv-cache-dtype", model.kv_format]
        argv += ["--max-model-len", "auto" if self.max_model_len is None else str(self.max_model_len)]
        argv += self._batching(job)
        argv += self._graphs(job)
        if model.speculative is not None and job.phase == "decode":
            argv += ["--speculative-config", _speculation(model.speculative)]
        if model.adapters is not None:
            modules = [f"{name}={self.model_paths.get(name, path)}" for name, path in model.adapters.modules]
            argv += ["--enable-lora", "--max-loras", str(len(modules)), "--max-lora-rank", str(model.adapters.rank)]
            argv += ["--lora-modules", *modules]
        if self.kv_cache_bytes:
            argv += ["--kv-cache-memory-bytes", self.kv_cache_bytes]
        elif not self.cpu:
            # Rounded down: what several engines take must not add up to more than there is.
            share = (
                self.memory_share if pipeline.memory_share is None else math.floor(1e4 * pipeline.memory_share) / 1e4
            )
            argv += ["--gpu-memory-utilization", f"{share:g}"]
        if pipeline.swapped:
            argv.append("--enable-sleep-mode")
        if pipeline.connector is not None:
            argv += ["--kv-transfer-config", self._transfer(pipeline.connector, job.phase)]
        if self.cpu:
            # Eager mode skips the warm-up that allocates the buffers between stages, so a pipeline needs the other way.
            eager = ["--compilation-config", '{"mode":2,"backend":"eager"}'] if stages > 1 else ["--enforce-eager"]
            argv += eager
        argv += self.extra
        return Command(tuple(argv), self._environment(job), self._own_address(job))

    def _batching(self, job: NodeJob) -> list[str]:
        """The limits behind the planned throughput, so that vLLM's batches respect the latency the plan counts on."""
        resident = job.pipeline.resident
        if job.phase == "decode":
            return ["--max-num-seqs", str(resident)]
        sequences = max(resident, LEAST_PROMPTS) if job.phase == "prefill" else resident
        return ["--max-num-seqs", str(sequences), "--max-num-batched-tokens", str(_step_tokens(job))]

    def _graphs(self, job: NodeJob) -> list[str]:
        """CUDA graphs for steps with prompts, too; options of the user's own come first."""
        if self.cpu or own_graphs(self.extra) or job.phase == "decode":
            return []
        sizes = {"cudagraph_capture_sizes": graph_sizes(_step_tokens(job))}
        return ["--compilation-config", json.dumps(sizes, separators=(",", ":"))]

    def _transfer(self, connector: str, phase: str) -> str:
        role = "kv_producer" if phase == "prefill" else "kv_consumer"
        config: dict[str, object] = {"kv_connector": connector, "kv_role": role}
        if connector == "ExampleConnector":
            config["kv_connector_extra_config"] = {"shared_storage_path": self.kv_directory}
        elif connector == "LMCacheMPConnector":
            host, _, port = self.kv_server.rpartition(":")
            config["kv_connector_extra_config"] = {"lmcache.mp.host": f"tcp://{host}", "lmcache.mp.port": int(port)}
        elif self.cpu:
            config["kv_buffer_device"] = "cpu"
        return json.dumps(config, separators=(",", ":"))

    def _environment(self, job: NodeJob) -> dict[str, str]:
        part, pipeline = job.pipeline.slices[job.rank], job.pipeline
        env: dict[str, str] = {}
        if len(pipeline.slices) > 1:
            # Checked by vLLM on every process: as many entries as stages, summing to the model's layers.
            env["VLLM_PP_LAYER_PARTITION"] = ",".join(str(count) for count in pipeline.layer_counts)
            if self.interface:
                env["NCCL_SOCKET_IFNAME"] = env["GLOO_SOCKET_IFNAME"] = self.interface
        if job.several_on_machine and not self.cpu:
            # Indices count as the driver lists devices, not from the fastest one on.
            env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
            env["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in part.gpus)
        if (pipeline.connector or "").startswith("Nixl") and job.rank == 0:
            env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(job.ports["kv"])
        if pipeline.connector == "MooncakeConnector" and job.phase == "prefill":
            # Every stage registers at the head, where decode servers look it up.
            env["VLLM_MOONCAKE_BOOTSTRAP_PORT"] = str(job.ports["kv"])
        if pipeline.swapped:
            # Sleeping and waking are endpoints of the development mode.
            env["VLLM_SERVER_DEV_MODE"] = "1"
        if self.cpu:
            env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        return env

    def _own_address(self, job: NodeJob) -> tuple[str, ...]:
        names = ["VLLM_HOST_IP"] if len(job.pipeline.slices) > 1 else []
        if (job.pipeline.connector or "").startswith("Nixl") and job.rank == 0:
            names.append("VLLM_NIXL_SIDE_CHANNEL_HOST")
        return tuple(names)


def _step_tokens(job: NodeJob) -> int:
    """Most tokens of a step of a server that computes prompts; vLLM wants one a sequence at least."""
    pipeline = job.pipeline
    return max(pipeline.batched_tokens, LEAST_STEP_TOKENS if job.phase == "prefill" else pipeline.resident)


def _speculation(speculative: Speculative) -> str:
    how = {"method": "ngram"} if speculative.draft is None else {"model": speculative.draft.hf_id}
    return json.dumps({**how, "num_speculative_tokens": speculative.tokens}, separators=(",", ":"))
