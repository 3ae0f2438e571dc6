"""Requests for a scenario: each model from the generator of its data set, at its rate, under the paper's imbalances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coralopt.errors import WorkloadError
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.workload.files.checks import random_of
from coralopt.workload.generation.arrivals import ArrivalOptions
from coralopt.workload.generation.generator import Generator, load_generator
from coralopt.workload.traces.operations import mix, request_shares
from coralopt.workload.traces.trace import Trace

#: Data set of a scenario -> packaged generator.
GENERATOR_OF_DATASET = {"azure-code": "azure-code-2023", "azure-conv": "azure-conv-2023", "burstgpt": "burstgpt"}
#: Generator of a model whose demand names no data set; its lengths are stretched to the scenario's means.
DEFAULT_GENERATOR = "azure-conv-2023"


@dataclass(frozen=True, eq=False)
class ModelLoad:
    """What one model of a scenario receives.

    Attributes:
        name: Model name in the scenario.
        rate_s: Requests/s.
        generator: Where its requests come from; mean lengths are the scenario's.
    """

    name: str
    rate_s: float
    generator: Generator


def model_loads(
    scenario: ResolvedScenario, imbalance: str = "balanced", generators: Mapping[str, str] | None = None
) -> tuple[ModelLoad, ...]:
    """Rate and generator of every model with demand, in the scenario's order.

    Rate times mean length is the scenario's demand in tokens/s in each phase, unless an imbalance other than ``balanced``
    moves requests between models: then the total number of requests stays and the shares are those of
    :func:`coralopt.workload.request_shares`, by the models' parameters.

    Args:
        scenario: The scenario.
        imbalance: ``balanced`` (the scenario as it stands), ``large-heavy`` or ``small-heavy`` (paper, section 5.5).
        generators: Model name -> packaged generator or generator file, where the data set's own is not wanted.

    Raises:
        WorkloadError: A name in ``generators`` that is no model, an unknown generator or imbalance, or no demand at all.
    """
    chosen = dict(generators or {})
    models = scenario.document["models"]
    unknown = sorted(set(chosen) - set(models))
    if unknown:
        raise WorkloadError(f"scenario {scenario.name} has no model {', '.join(unknown)}; it has {', '.join(models)}")
    if scenario.models_in_classes:
        raise WorkloadError(
            f"scenario {scenario.name} has classes of requests, which generators do not tell apart; simulate Poisson "
            "arrivals, or a trace"
        )
    lengths: dict[str, tuple[float, float]] = {}
    rates: dict[str, float] = {}
    sizes: dict[str, float] = {}
    for name in models:
        phases = {item.phase: item for item in scenario.model_phases if item.served == name}
        wanted = {phase: item.requests_s for phase, item in phases.items()}
        rate = max(wanted.values(), default=0.0)
        if rate <= 0:
            continue
        any_phase = next(iter(phases.values()))
        inputs, outputs = any_phase.mean_input_tokens, any_phase.mean_output_tokens
        # Token rates given one by one may imply two request rates; the larger one holds, with shorter lengths.
        if "prefill" in wanted:
            inputs, outputs = max(1.0, inputs * wanted["prefill"] / rate), max(1.0, outputs * wanted["decode"] / rate)
        lengths[name], rates[name], sizes[name] = (inputs, outputs), rate, float(any_phase.model.total_params)
    if not rates:
        raise WorkloadError(f"scenario {scenario.name} has no demand")
    shares = request_shares(sizes, imbalance)
    if imbalance != "balanced":
        total = sum(rates.values())
        rates = {name: total * share for name, share in shares.items()}
    loads = []
    for name, rate in rates.items():
        dataset = models[name]["demand"].get("dataset")
        source = chosen.get(name) or GENERATOR_OF_DATASET.get(str(dataset), DEFAULT_GENERATOR)
        loads.append(ModelLoad(name, rate, load_generator(source).with_mean_lengths(*lengths[name])))
    return tuple(loads)


def generate_for_scenario(
    scenario: ResolvedScenario,
    duration_s: float,
    seed: int = 0,
    *,
    imbalance: str = "balanced",
    generators: Mapping[str, str] | None = None,
    rate_s: float | None = None,
    options: ArrivalOptions = ArrivalOptions(),
) -> Trace:
    """One trace with the requests of every model of a scenario; equal arguments give equal traces.

    Args:
        scenario: The scenario.
        duration_s: Length, s.
        seed: Any whole number from 0.
        imbalance: See :func:`model_loads`.
        generators: See :func:`model_loads`.
        rate_s: Requests/s of all models together, when it is not to be the scenario's.
        options: Hour of the start, the logs' clocks, and whether each model gets exactly its number of requests.

    Raises:
        WorkloadError: As :func:`model_loads`; a rate, duration or seed out of range.
    """
    random_of(seed)
    loads = model_loads(scenario, imbalance, generators)
    factor = 1.0 if rate_s is None else rate_s / sum(load.rate_s for load in loads)
    traces = {}
    for position, load in enumerate(loads):
        own_seed = int(np.random.SeedSequence([seed, position]).generate_state(1, np.uint64)[0])
        rate = load.rate_s * factor
        traces[load.name] = load.generator.sample(rate, duration_s, own_seed, model=load.name, options=options)
    return mix(traces)
