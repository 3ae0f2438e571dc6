"""The router chooses the instances that the simulator chooses, request by request."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import numpy as np
import pytest
from closed_cases import BY_LENGTH, case_of, instance_of
from simulation_cases import SimulationCase
from slow_reference import Reference

from coralopt.routing import ROUTINGS, Routing, work_of
from coralopt.runtime.launch import Launch
from coralopt.runtime.router.config import BackendConfig, RouterConfig, router_document
from coralopt.runtime.router.legs import prompt_tokens
from coralopt.runtime.router.pool import Backend, BackendPool, Need
from coralopt.runtime.router.router import Router
from coralopt.simulation.state import PHASES

WEIGHTS = (1.0, 2.0, 2.0)


def _backend(number: int, phase: str = "prefill") -> Backend:
    config = BackendConfig(
        name=f"b{number}", model="m", phase=phase, url="http://localhost:1", weight=WEIGHTS[number], max_in_flight=10**6
    )
    return Backend(config, healthy=True)


async def _picks(case: SimulationCase, phase: str, first_s: list[float], ends_s: list[float]) -> list[int]:
    """What the router picks when every first token comes and every request ends when the simulator says they do."""
    word = int(np.random.SeedSequence(case.config.seed).generate_state(1, np.uint64)[0])
    replayed = Reference([], [], [], [], case.config, case.serving, word)
    pool = BackendPool(uniform=replayed.uniform)
    pool.routing = case.serving.routing
    backends = [_backend(number, phase) for number in range(len(case.blueprints))]
    for backend in backends:
        pool.add(backend)
    at_work: dict[int, AsyncExitStack] = {}
    needs: dict[int, Need] = {}
    picks: list[int] = []
    for request, arrival in enumerate(case.arrival_s):
        for other in [other for other in at_work if first_s[other] <= arrival]:
            backends[picks[other]].begun(needs[other])
        for other in [other for other in at_work if ends_s[other] <= arrival]:
            await at_work.pop(other).aclose()
        at_work[request] = AsyncExitStack()
        needs[request] = Need(frozenset(), *work_of(phase, float(case.input_tokens[request])))
        picks.append(backends.index(await at_work[request].enter_async_context(pool.slot(needs[request], 1.0))))
    for stack in at_work.values():
        await stack.aclose()
    assert all(backend.work == 0 for backend in backends)
    return picks


@pytest.mark.parametrize("phase", ["prefill", "mixed"])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_router_and_simulator_choose_alike(routing: Routing, phase: str) -> None:
    """Three prefill, or mixed, instances of different rates under load: the same instance for each of 600 requests."""
    rng = np.random.default_rng(7)
    lengths, outputs = rng.integers(1, 190, 600), rng.integers(1, 10, 600) if phase == "mixed" else 1
    instances = [replace(instance_of(PHASES.index(phase)), weight=weight) for weight in WEIGHTS]
    for blueprint in instances:
        blueprint.nodes["chunk"] = 2048
    case = case_of(
        instances, np.cumsum(rng.exponential(0.040, 600)), lengths, outputs, times=BY_LENGTH, routing=routing
    )
    requests = case.simulate().state.requests
    ends = requests["first_token" if phase == "prefill" else "finish"]
    picks = asyncio.run(_picks(case, phase, requests["first_token"].tolist(), ends.tolist()))
    assert picks == requests["prefill_instance"].tolist()
    assert set(picks) == {0, 1, 2}


def test_the_router_is_told_how_to_choose() -> None:
    """By its document, which says nothing of weighted round robin; and later, for the pools that it has and will have."""
    config = RouterConfig(backends=(_backend(0).config,), routing="least-work")
    router = Router(config)
    assert router.pools("m")["prefill"].routing == "least-work"
    router.route_by("power-of-two", {})
    router.add(_backend(1, "decode").config)
    assert {pool.routing for pool in router.pools("m").values()} == {"power-of-two"}
    assert router_document(Launch("vllm", (), routing="least-work"))["routing"] == "least-work"
    assert "routing" not in router_document(Launch("vllm", ()))


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"prompt": "x" * 400}, 100),
        ({"prompt": ["x" * 40, "y" * 40]}, 20),
        ({"prompt": list(range(50))}, 50),
        ({"messages": [{"role": "user", "content": "x" * 40}, {"role": "user", "content": [{"text": "y" * 80}]}]}, 30),
        ({"messages": "?", "prompt": ""}, 1),
        ({}, 1),
    ],
)
def test_a_prompt_is_measured_by_its_text(body: dict[str, object], tokens: float) -> None:
    """Four characters a token: among instances of one phase only proportions matter."""
    assert prompt_tokens(body) == tokens  # type: ignore[arg-type]
