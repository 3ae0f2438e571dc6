"""Models of a valid document looked up: their phases, modes, variants, classes of requests, lengths and demand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from coralopt import catalog
from coralopt.catalog.types import ModelArchitecture
from coralopt.scenario.architectures import architecture_of, variants_of, with_adapters
from coralopt.scenario.facts.phases import PHASES_OF, Mode, ModelPhase, Phase, RequestClass, Variant
from coralopt.scenario.file.document import Document, Headroom
from coralopt.scenario.file.models import Model
from coralopt.scenario.file.requests import Demand, DemandClass
from coralopt.scenario.lengths import USUAL_SPREAD, LengthDistribution, LengthPair, LengthSpread
from coralopt.scenario.mistakes import MistakeList, suggest
from coralopt.scenario.resolve.engine import serving_of

#: How a share of the requests is planned for where only mean requests can be: headroom, learnt from simulations.
FOR_A_SHARE = "give slo.attainment: mean, and ask `coralopt plan --simulate --attainment` for the share"


def model_phases(document: Document, mistakes: MistakeList) -> tuple[ModelPhase, ...]:
    phases: list[ModelPhase] = []
    names: dict[str, str] = {}
    asked_for = {name_of(key, entry) for key, entry in document.models.items()}
    for key, entry in document.models.items():
        base = architecture_of(key, entry, mistakes)
        if base is None:
            continue
        mode = mode_of(document, key)
        base = with_adapters(key, entry, base, asked_for, mistakes)
        if entry.demand.classes:
            _check_classes(document, key, mistakes)
            for name, part in entry.demand.classes.items():
                most = (None if most is None else float(most) for most in (part.most_input, part.most_output))
                own = dataclasses.replace(base, name=f"{base.name}.{name}")
                names[own.name] = key
                phases += _phases_of(document, key, mode, part, (own, RequestClass(base.name, name, *most)), mistakes)
            continue
        if mode == "auto" or entry.variants:
            _check_choice(key, entry, "mode auto" if mode == "auto" else "a choice of variants", mistakes)
        for model, variant in variants_of(key, entry, base, mistakes):
            if model.name in names:
                what = f"is the same model as '{names[model.name]}'"
                mistakes.add(("models", key), what, "name it otherwise and give 'model'")
            names[model.name] = key
            if model.speculative is not None and mode != "disaggregated":
                place = ("models", key, "variants", "" if variant is None else variant.name, "speculative")
                problem = "times of speculative decoding are known for decode instances, not for mixed ones"
                mistakes.add(place, problem, "choose mode disaggregated for this model")
            phases += _phases_of(document, key, mode, entry.demand, (model, variant), mistakes)
    modes = [mode_of(document, key) for key in names.values()]
    known: list[str] = list(dict.fromkeys(phase for mode in modes or [document.mode] for phase in PHASES_OF[mode]))
    known += [
        f"{name}/{phase}"
        for pair, mode in zip(names.items(), modes, strict=True)
        for name in pair
        for phase in PHASES_OF[mode]
    ]
    for key in document.headroom or {}:
        if key not in known:
            what = f"there is no phase or model phase '{key}' in mode '{document.mode}'"
            mistakes.add(("headroom", key), what, suggest(key, dict.fromkeys(known)))
    return tuple(phases)


def _phases_of(
    document: Document,
    key: str,
    mode: Mode,
    demand: Demand | DemandClass,
    served: tuple[ModelArchitecture, Variant | RequestClass | None],
    mistakes: MistakeList,
) -> Iterator[ModelPhase]:
    """The phases of a model, of one variant of it, or for one class of its requests."""
    model, part = served
    slo, lengths, place = document.models[key].slo, _lengths(demand), tuple[str, ...](("models", key, "demand"))
    if isinstance(part, RequestClass):
        place = (*place, "classes", part.name)
    mean_input, mean_output = lengths.input.mean, lengths.output.mean
    if mean_input + mean_output > model.max_position:
        problem = f"a mean request of {mean_input + mean_output:g} tokens exceeds the context of {model.max_position}"
        mistakes.add(place, problem, "shorten input_tokens and output_tokens")
    lora = document.models[key].lora
    adapted = 0.0 if lora is None else math.fsum(adapter.requests_s for adapter in lora.adapters.values())
    for phase in PHASES_OF[mode]:
        rate = _rate(demand, phase, mean_input, mean_output, adapted)
        if rate is None:
            wanted = "mixed_tokens_s or decode_tokens_s" if phase == "mixed" else f"{phase}_tokens_s"
            mistakes.add(place, f"the rate of {phase} is missing in mode '{mode}'", f"give {wanted}")
            continue
        of = key if part is None else part.of
        room = _headroom(document, phase, f"{model.name}/{phase}", f"{key}/{phase}", f"{of}/{phase}")
        yield ModelPhase(
            model,
            phase,
            float(slo.ttft_ms),
            float(slo.tpot_ms),
            rate,
            mean_input,
            mean_output,
            float(room.throughput),
            float(room.latency),
            attainment=None if slo.attainment == "mean" else slo.attainment,
            input_spread=lengths.input.spread,
            output_spread=lengths.output.spread,
            serving=serving_of(document),
            variant=part if isinstance(part, Variant) else None,
            prefix_hit=document.models[key].demand.prefix_hit,
            request_class=part if isinstance(part, RequestClass) else None,
        )


def mode_of(document: Document, key: str) -> Mode:
    """How a model is served: by its own word, else by that of the scenario."""
    return (document.models[key].mode if key in document.models else None) or document.mode


def _check_choice(key: str, entry: Model, what: str, mistakes: MistakeList) -> None:
    """What is said of single phases says nothing where requests may go around them."""
    place, hint = ("models", key), "choose disaggregated or mixed for this model"
    if entry.variants:
        hint = "serve one variant as the model itself"
        if entry.slo.attainment != "mean" and entry.demand.min_shares:
            problem = (
                f"one variant serves all requests where {entry.slo.attainment:.6g} of them are to be within the SLOs"
            )
            mistakes.add((*place, "demand", "min_shares"), problem, f"leave it out; or {FOR_A_SHARE}")
    for name, wanted in (
        ("min_replicas", entry.min_replicas > 0),
        ("survive_region_loss", entry.survive_region_loss > 0),
        ("survive_instance_loss", entry.survive_instance_loss > 0),
        ("unmet", entry.unmet is not None),
    ):
        if wanted:
            mistakes.add((*place, name), f"is said of every phase, and {what} leaves phases out", hint)
    rates = [value for name, value in entry.demand if name.endswith("_tokens_s") and value is not None]
    if any(rates) and not all(rates):
        problem = f"{what} splits requests over instances of several phases, so each needs a rate"
        mistakes.add((*place, "demand"), problem, "give requests_s, or rates above 0 for all phases")


def _check_classes(document: Document, key: str, mistakes: MistakeList) -> None:
    """What classes of requests go with, and what their bounds say of their own lengths."""
    entry, hint = document.models[key], "leave it out, or plan without classes"
    place: tuple[str, ...] = ("models", key)
    unmet = entry.unmet is not None and entry.unmet.usd_per_1000_requests is not None
    stated = [
        ((*place, "min_replicas"), entry.min_replicas > 0),
        ((*place, "unmet", "usd_per_1000_requests"), unmet),
        (("sharing",), document.sharing is not None),
        (("templates",), document.templates == "on-demand"),
        (("transition",), document.transition != "free"),
        (("start",), document.start is not None),
        (("demand_cases",), bool(document.demand_cases)),
        (("placement", "latency_budgets"), document.placement.latency_budgets == "free"),
        (("placement", "network"), document.placement.network == "link"),
    ]
    sent = document.kv_transfer != "free" and len(document.pool.regions) > 1
    for name, other in document.models.items():
        # All models are in one programme: what one asks for holds for the classes of another.
        beside: tuple[str, ...] = ("models", name)
        mode = mode_of(document, name)
        stated += [
            ((*beside, "variants"), bool(other.variants)),
            ((*beside, "slo", "attainment"), other.slo.attainment != "mean"),
            ((*beside, "survive_region_loss"), other.survive_region_loss > 0),
            ((*beside, "survive_instance_loss"), other.survive_instance_loss > 0),
            ((*beside, "mode") if other.mode else ("mode",), mode == "auto"),
            (("kv_transfer",), sent and mode != "mixed"),
        ]
    for path in dict.fromkeys(path for path, is_stated in stated if is_stated):
        problem = f"is not planned for with classes of requests, which '{key}' has"
        advice = {"kv_transfer": "give kv_transfer: free", "attainment": FOR_A_SHARE}
        mistakes.add(path, problem, advice.get(path[-1], hint))
    for name, part in entry.demand.classes.items():
        inside, lengths = (*place, "demand", "classes", name), _lengths(part)
        if "/" in name:
            mistakes.add(inside, f"the name '{name}' must not hold '/'", "name it otherwise")
        for side, most, mean in (
            ("input", part.most_input, lengths.input.mean),
            ("output", part.most_output, lengths.output.mean),
        ):
            if most is not None and mean > most:
                problem = f"its mean of {mean:g} tokens is above most_{side}, {most:g}"
                mistakes.add((*inside, f"most_{side}"), problem, "correct one of them")


def _lengths(demand: Demand | DemandClass) -> LengthPair:
    known = None if demand.dataset is None else catalog.request_lengths()[demand.dataset]
    sides = []
    for side in ("input", "output"):
        quantiles = None if demand.lengths is None else getattr(demand.lengths, side)
        cv = getattr(demand, f"{side}_cv")
        mean = getattr(demand if known is None else known, f"{side}_tokens")
        spread = USUAL_SPREAD if cv is None else LengthSpread(float(cv))
        sides.append(LengthDistribution(float(mean), spread) if quantiles is None else quantiles.distribution)
    return LengthPair(*sides)


def _headroom(document: Document, phase: Phase, *keys: str) -> Headroom:
    """The room of one model phase: its own entry, else that of its phase, else none."""
    given = document.headroom or {}
    return next((given[key] for key in (*keys, phase) if key in given), Headroom())


def _rate(
    demand: Demand | DemandClass, phase: Phase, mean_input: float, mean_output: float, adapted: float
) -> float | None:
    """Demand of one phase in tokens/s: input tokens for prefill, output tokens otherwise.

    Requests for adapters come on top of a rate of requests; rates of tokens count all.
    """
    if isinstance(demand, DemandClass) or demand.requests_s is not None:
        return (float(demand.requests_s or 0.0) + adapted) * (mean_input if phase == "prefill" else mean_output)
    rate = demand.prefill_tokens_s if phase == "prefill" else demand.decode_tokens_s
    if phase == "mixed" and demand.mixed_tokens_s is not None:
        rate = demand.mixed_tokens_s
    return None if rate is None else float(rate)


def name_of(key: str, entry: Model) -> str:
    """The name of a model: that of the catalog where its key is a checkpoint's."""
    model = catalog.find_model(key) if entry.model is None else None
    return model.name if model else key
