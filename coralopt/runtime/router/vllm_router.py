"""vLLM's own router in place of ours, where a plan needs no weights: a command line a model, checked against 0.1.17.

It has no weighted policy and serves one model, so it fits when all instances of a phase have the same throughput.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from coralopt.errors import LaunchError
from coralopt.runtime.router.config import BackendConfig, RouterConfig

#: Weights may differ by this share of their mean: the tolerance that our own router is tested with.
TOLERANCE = 0.05
#: Our connectors by the names of its option.
CONNECTORS = {"NixlConnector": "nixl", "NixlPushConnector": "nixl", "MooncakeConnector": "mooncake"}


def vllm_router_commands(
    config: RouterConfig, host: str = "127.0.0.1", port: int = 8000, program: str = "vllm-router"
) -> dict[str, tuple[str, ...]]:
    """Model name -> program and arguments; models get consecutive ports from ``port`` on.

    Raises:
        LaunchError: A model needs weights, or a connector that the router does not speak; names every such model.
    """
    wrong: list[str] = []
    commands: dict[str, tuple[str, ...]] = {}
    wrong += [f"{model}: is served by variants, each with its share of the requests" for model in config.variants]
    wrong += [f"{model}: its requests come in classes, each with instances of its own" for model in config.classes]
    models = list(dict.fromkeys(backend.model for backend in config.backends))
    for number, model in enumerate(models):
        backends = [backend for backend in config.backends if backend.model == model]
        why = _unfit(model, backends)
        wrong += why
        if not why:
            argv = [program, "--host", host, "--port", str(port + number), *_workers(backends)]
            # Its metrics go to a port of their own; as far above as there are models, so that none meet.
            argv += ["--policy", "round_robin", "--prometheus-port", str(port + len(models) + number)]
            commands[model] = tuple(argv)
    if not models:
        wrong.append("there are no backends")
    if wrong:
        raise LaunchError(
            "\n  - ".join(["vllm-router cannot route this plan:", *wrong])
            + "\nuse `coralopt route`, which keeps weights"
        )
    return commands


def _unfit(model: str, backends: list[BackendConfig]) -> list[str]:
    wrong = []
    phases = {backend.phase for backend in backends}
    if "mixed" in phases and len(phases) > 1:
        wrong.append(f"{model}: has disaggregated and mixed instances")
    for phase in sorted(phases):
        weights = [backend.weight for backend in backends if backend.phase == phase]
        mean = sum(weights) / len(weights)
        if max(abs(weight - mean) for weight in weights) > TOLERANCE * mean:
            speeds = ", ".join(f"{weight:.0f}" for weight in weights)
            wrong.append(f"{model}: its {phase} instances need weights ({speeds} tokens/s), and it knows none")
    if "mixed" not in phases and phases != {"prefill", "decode"}:
        wrong.append(f"{model}: has only {', '.join(sorted(phases))} instances")
    if any(not a.reaches(b) for a in backends for b in backends if (a.phase, b.phase) == ("prefill", "decode")):
        wrong.append(
            f"{model}: KV caches may not go from every prefill to every decode instance, and it knows no regions"
        )
    strange = sorted({b.connector for b in backends if b.connector is not None} - set(CONNECTORS))
    if strange:
        wrong.append(f"{model}: passes KV caches by {', '.join(strange)}, which it does not speak")
    return wrong


def _workers(backends: list[BackendConfig]) -> list[str]:
    if all(backend.phase == "mixed" for backend in backends):
        return ["--worker-urls", *(backend.url for backend in backends)]
    connector = next(CONNECTORS[b.connector] for b in backends if b.connector is not None)
    words = ["--vllm-pd-disaggregation", "--kv-connector", connector]
    for backend in backends:
        if backend.phase == "prefill":
            bootstrap = urlsplit(backend.kv_url).port if backend.kv_url else None
            words += ["--prefill", backend.url, *([str(bootstrap)] if bootstrap else [])]
        else:
            words += ["--decode", backend.url]
    return words
