"""What a simulation assumes beyond the plan: links, start-up, noise, seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from coralopt.errors import CoraloptError
from coralopt.routing import ROUTINGS
from coralopt.scenario.facts.serving import Serving
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.simulation.state import ADMISSIONS, ORDERS


@dataclass(frozen=True)
class SimulationConfig:
    """Parameters of one run. Equal plan, trace and parameters give equal bytes.

    Attributes:
        seed: Seed of the noise and of the instances that ``power-of-two`` draws; without them nothing is random.
        noise: Coefficient of variation of every stage time: each is multiplied by a lognormal factor of mean 1.
        kv_gb_s: Bandwidth of a node for KV transfers, one direction, 1e9 bytes/s; ``None``: the node's network bandwidth.
        kv_latency_ms: Time before the first byte of a KV transfer arrives, ms.
        kv_region_latency_ms: Added when prefill and decode instance are in different regions, ms.
        kv_contention: Transfers through one node queue for its link; otherwise each has the whole link.
        node_start_s: From renting a node until it can load weights, s.
        weight_load_gb_s: Bandwidth at which a node loads its weights, 1e9 bytes/s.
        warm_up_s: From loaded weights until the instance serves (CUDA graphs, first kernels), s.
        warm_start: The first plan's instances serve at time 0; otherwise they start like any other.
        overlap: Instances a new plan drops drain only when all new ones of their model phase serve; otherwise at once.
        samples: Moments, evenly spaced over the trace, at which queue lengths are recorded.
        routing, order, admission: Instead of what the scenario says (:class:`coralopt.scenario.facts.serving.Serving`).
    """

    seed: int = 0
    noise: float = 0.0
    kv_gb_s: float | None = None
    kv_latency_ms: float = 1.0
    kv_region_latency_ms: float = 100.0
    kv_contention: bool = True
    node_start_s: float = 120.0
    weight_load_gb_s: float = 1.0
    warm_up_s: float = 30.0
    warm_start: bool = True
    overlap: bool = True
    samples: int = 360
    routing: str | None = None
    order: str | None = None
    admission: str | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
                raise CoraloptError(f"simulation parameter {item.name} is {value!r}; give a finite number, 0 or more")
        for name in ("kv_gb_s", "weight_load_gb_s"):
            if getattr(self, name) == 0:
                raise CoraloptError(f"simulation parameter {name} is 0; give a positive bandwidth in 1e9 bytes/s")
        if self.samples < 1:
            raise CoraloptError(f"simulation parameter samples is {self.samples}; give 1 or more")
        for name, words in (("routing", ROUTINGS), ("order", ORDERS), ("admission", ADMISSIONS)):
            if getattr(self, name) not in (None, *words):
                raise CoraloptError(
                    f"simulation parameter {name} is {getattr(self, name)!r}; give one of {', '.join(words)}"
                )

    def serving(self, scenario: ResolvedScenario) -> Serving:
        """How engines and the router work: the scenario's way, but for what is said here."""
        words = {name: getattr(self, name) for name in ("routing", "order", "admission")}
        return replace(scenario.serving, **{name: word for name, word in words.items() if word is not None})
