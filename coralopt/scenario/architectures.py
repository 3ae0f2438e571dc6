"""Architectures that a scenario names: of models, in the formats asked for, and of their variants."""

from __future__ import annotations

import dataclasses
import re
from difflib import get_close_matches

from coralopt import catalog
from coralopt.catalog.shapes import ModelShape
from coralopt.catalog.types import GIB, Adapters, LatentAttention, ModelArchitecture, Speculative, WeightFormat
from coralopt.scenario.facts.phases import Variant
from coralopt.scenario.file.models import Checkpoint, InlineModel, Model, Speculation, VariantEntry
from coralopt.scenario.mistakes import MistakeList, Path, suggest


def find_model(key: str, given: str | None, mistakes: MistakeList, place: Path = ()) -> ModelArchitecture | None:
    """The catalog's model of a name, or of a key where none is given; what a name is like where there is none.

    Args:
        key: Key of the model.
        given: Name of the catalog or of a checkpoint.
        mistakes: Takes what is found.
        place: Of the entry, where that is not the model's.
    """
    wanted, place = given or key, place or ("models", key)
    architecture = catalog.find_model(wanted)
    if architecture is None and not (given is None and mistakes.about((*place, "model"))):
        place = place if given is None else (*place, "model")
        hint = suggest(wanted, catalog.models())
        if "/" in wanted:
            # A checkpoint of a like name is another model, surely where a number differs.
            numbers = re.findall(r"\d+", wanted)
            alike = [m.hf_id for m in catalog.models().values() if re.findall(r"\d+", m.hf_id) == numbers]
            near = get_close_matches(wanted, alike, 1, 0.95)
            hint = f"did you mean '{near[0]}'?" if near else ""
        if not hint.startswith("did"):
            hint = (
                "name its config.json or folder (./config.json), or describe it under 'model'; `coralopt catalog models` "
                "lists those known by name"
            )
        mistakes.add(place, f"unknown model '{wanted}'", hint)
    return architecture


def architecture_of(key: str, entry: Checkpoint, mistakes: MistakeList, place: Path = ()) -> ModelArchitecture | None:
    """The architecture of a model, or of what stands at another place; ``None`` where nobody knows it."""
    if isinstance(entry.model, InlineModel):
        name, model = key, _inline(key, entry.model)
    else:
        known = find_model(key, entry.model, mistakes, place)
        if known is None:
            return None
        name, model = (known.name if entry.model is None else key), known
    if "/" in name:
        mistakes.add(
            ("models", key), f"the model name '{name}' must not hold '/'", "the checkpoint's name goes under 'model'"
        )
    if entry.weight_format is not None and entry.weight_format != model.weight_format:
        model = _requantised(model, entry.weight_format)
    if entry.hf_id is not None:
        # Another checkpoint of the same shape: what was measured of the published one holds, its format is as asked for.
        measured_as = model.measured_as or model.hf_id
        model = dataclasses.replace(model, hf_id=entry.hf_id, measured_as=measured_as, published_format=None)
    return dataclasses.replace(model, name=name, kv_format=entry.kv_format or model.kv_format)


def _requantised(model: ModelArchitecture, form: WeightFormat) -> ModelArchitecture:
    """The published checkpoint of the same model in this format, or the model itself said to be in it."""
    for other in catalog.models().values():
        if other.weight_format == form and _stem(other) == _stem(model):
            return other
    return dataclasses.replace(
        model, weight_format=form, published_format=model.published_format or model.weight_format
    )


def _stem(model: ModelArchitecture) -> str:
    """Name of a checkpoint without publisher and format: an instruction-tuned model is no substitute for a base one."""
    return re.sub("-(FP8|AWQ)$", "", model.hf_id.rpartition("/")[2])


def _inline(name: str, given: InlineModel) -> ModelArchitecture:
    sizes = dict(given)
    if given.latent is not None:
        sizes["latent"] = LatentAttention(**dict(given.latent))
    return ModelShape(**sizes).architecture(name)


def variants_of(
    key: str, entry: Model, model: ModelArchitecture, mistakes: MistakeList
) -> list[tuple[ModelArchitecture, Variant | None]]:
    """The ways to serve a model: its variants, called after it, or the model itself where it has none."""
    demand, known = entry.demand, list(entry.variants)
    place: Path = ("models", key, "demand")
    for name in demand.min_shares:
        if name not in known:
            hint = suggest(name, known) if known else "list it under 'variants'"
            mistakes.add((*place, "min_shares", name), f"there is no variant '{name}'", hint)
    if not known:
        if demand.min_quality is not None:
            mistakes.add((*place, "min_quality"), "there are no variants to choose from", "list them under 'variants'")
        return [(model, None)]
    best, taken = max(variant.quality for variant in entry.variants.values()), sum(demand.min_shares.values())
    if taken > 1 + 1e-9:
        mistakes.add((*place, "min_shares"), f"the least shares sum to {taken:g}, above 1", "correct them")
    reached = sum((entry.variants[v].quality - best) * a for v, a in demand.min_shares.items() if v in known) + best
    if demand.min_quality is not None and demand.min_quality > reached + 1e-12:
        why = f"with these least shares it is at most {reached:g}" if reached < best else f"the best has {best:g}"
        mistakes.add(
            (*place, "min_quality"), f"no mix of the variants has {demand.min_quality:g}: {why}", "ask for less"
        )
    ways: list[tuple[ModelArchitecture, Variant | None]] = []
    for name, variant in entry.variants.items():
        where: Path = ("models", key, "variants", name)
        if "/" in name:
            mistakes.add(where, f"the name '{name}' must not hold '/'", "name it otherwise")
        parts = _line(where, entry, variant, mistakes)
        merged: dict[str, object] = dict.fromkeys(_CHECKPOINT)
        for part in parts:
            given = {n: value for n, value in part if n in _CHECKPOINT and value is not None}
            merged = {**(dict.fromkeys(_CHECKPOINT) if "model" in given else merged), **given}
        own = architecture_of(key, Checkpoint.model_construct(None, **merged), mistakes, where)
        if own is None:
            continue
        speculation = next(
            (p.speculative for p in reversed(parts) if isinstance(p, VariantEntry) and p.speculative), None
        )
        if speculation is not None:
            own = _with_speculation(own, speculation, (*where, "speculative"), mistakes)
        own = dataclasses.replace(own, name=f"{model.name}.{name}")
        least = 0.0 if demand.min_quality is None else float(demand.min_quality)
        mix = Variant(model.name, name, float(variant.quality), float(demand.min_shares.get(name, 0.0)), least)
        ways.append((own, mix))
    return ways


#: Fields that a variant takes over from what it differs from.
_CHECKPOINT = tuple(Checkpoint.model_fields)


def _line(place: Path, entry: Model, variant: VariantEntry, mistakes: MistakeList) -> list[Checkpoint]:
    """The model, and every variant from it to this one."""
    line: list[Checkpoint] = [variant]
    while variant.base is not None:
        if variant.base not in entry.variants:
            others = [name for name, other in entry.variants.items() if other is not variant]
            hint = "leave it out: then the model itself is the base"
            hint = f"{suggest(variant.base, others)}; or {hint}" if others else hint
            mistakes.add((*place, "base"), f"there is no variant '{variant.base}'", hint)
            break
        variant = entry.variants[variant.base]
        if any(variant is other for other in line):
            mistakes.add((*place, "base"), "its bases lead back to itself", "leave one of them out")
            break
        line.append(variant)
    return [entry, *reversed(line)]


def with_adapters(
    key: str, entry: Model, model: ModelArchitecture, taken: set[str], mistakes: MistakeList
) -> ModelArchitecture:
    """The model with its LoRA adapters, if it has any.

    Args:
        key: Key of the model.
        entry: What the scenario says of it.
        model: The model itself.
        taken: Names that requests may use already; those of the adapters are added.
        mistakes: Takes what is found.
    """
    if entry.lora is None:
        return model
    place: Path = ("models", key, "lora")
    for name, stated in (("variants", entry.variants), ("demand", entry.demand.classes)):
        if stated:
            what = "variants" if name == "variants" else "classes of requests"
            mistakes.add(
                ("models", key, name), f"{what} are not planned for with adapters", f"leave {what} or lora out"
            )
    if entry.lora.adapter_gib is None and (model.experts or model.latent is not None):
        problem = "what an adapter holds of experts or latent attention does not follow from its rank"
        mistakes.add(place, problem, "give adapter_gib, the memory of one adapter")
    for name in entry.lora.adapters:
        if name in taken:
            mistakes.add((*place, "adapters", name), f"'{name}' is asked for already", "name it otherwise")
        taken.add(name)
    each = entry.lora.rank * model.adapted_width * 2.0
    if entry.lora.adapter_gib is not None:
        each = float(entry.lora.adapter_gib) * GIB / model.layers
    modules = tuple((name, part.hf_id or name) for name, part in entry.lora.adapters.items())
    own = Adapters(modules, entry.lora.rank, len(modules) * each, float(entry.lora.step_factor))
    return dataclasses.replace(model, adapters=own)


def _with_speculation(
    model: ModelArchitecture, given: Speculation, place: Path, mistakes: MistakeList
) -> ModelArchitecture:
    draft = None if given.draft is None else find_model(given.draft, None, mistakes, (*place, "draft"))
    if draft is not None and draft.vocab != model.vocab:
        problem = (
            f"the draft '{draft.name}' has a vocabulary of {draft.vocab:,} tokens, the model one of {model.vocab:,}"
        )
        mistakes.add((*place, "draft"), problem, "take a draft with the model's own tokens")
    speculative = Speculative(given.tokens, float(given.acceptance_length), draft)
    return dataclasses.replace(model, speculative=speculative)
